"""Objectives of faiss's k-means, stored for ``test_lloyd``: a wheel of 65 MB is no test's need.

``python tests/index/faiss_objectives.py`` prints ``faiss_objectives.json`` again. It needs
``pip install faiss-cpu==1.15.1``, which no other part of the project does.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

STORED = Path(__file__).with_suffix(".json")
# Elements of a part, entries, samples: MILLION's parts, with at least 39 samples per entry.
CASES = ((2, 256, 16384), (4, 256, 16384), (4, 512, 40 * 512))
ITERATIONS = 25
_SEEDS = 5


def samples(d: int, count: int) -> np.ndarray:
    """(count, d) float32: clusters of other weights and widths, heavy tails, rare outliers."""
    rng = np.random.default_rng(d)
    centres = rng.normal(size=(40, d)) * 3
    widths = rng.uniform(0.2, 1.5, size=40)
    which = rng.choice(40, size=count, p=np.arange(1, 41) / 820)
    x = centres[which] + widths[which, None] * rng.standard_t(4, size=(count, d))
    x[:: count // 8] *= 8
    return np.ascontiguousarray(x, dtype=np.float32)


def digest(x: np.ndarray) -> str:
    """SHA-256 of the samples to three decimals, which another libm hardly changes."""
    rounded = np.round(x.astype(np.float64) * 1e3).astype(np.int64)
    return hashlib.sha256(rounded.tobytes()).hexdigest()


def _objectives() -> dict[str, Any]:
    import faiss

    cases = []
    for d, entries, count in CASES:
        x = samples(d, count)
        found = []
        for seed in range(_SEEDS):
            kmeans = faiss.Kmeans(
                d, entries, niter=ITERATIONS, seed=seed, max_points_per_centroid=count
            )
            kmeans.train(x)
            distance, _ = kmeans.index.search(x, 1)
            found.append(float(distance.astype(np.float64).sum()))
        cases.append(
            {"d": d, "entries": entries, "samples": count, "sha256": digest(x), "costs": found}
        )
    return {"faiss": faiss.__version__, "iterations": ITERATIONS, "cases": cases}


if __name__ == "__main__":
    json.dump(_objectives(), sys.stdout, indent=1)
    print()
