"""KllmNormStats against golden.kllm.norms.norm_statistics.

Shown to fail:

- any exact sum one bit short;
- without the sign of an outlier;
- a subnormal one taken as normal;
- a sum that is not cleared;
- padding counted or its mask bits counted;
- a reduction that ends before its last term;
- a token handed over before its last beat or while the floating-point part is busy;
- a variance that is not clamped or a mean that is added;
- NaN epsilon let through;
- ``last`` checked on one side only;
- faults of a refused job shown;
- k_max itself refused;
- a mask count that wraps at k_max;
- codebooks above 1, too long, or never taken.
"""

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16, FP32
from golden.kllm.format import Status, beats
from golden.kllm.norms import norm_statistics
from golden.kllm.records import Tokens
from hdl.kllm.norm_stats import KllmNormStats, KllmNormStatsConfig
from tb.run import simulate
from tb.words import pack

CONFIGS = {
    "longest": KllmNormStatsConfig(),
    "three_bits": KllmNormStatsConfig(
        bits_a=3, elements=5, k_max=200, convert_stages=1, fma_stages=1, divide_stages=1,
        rsqrt_stages=1,
    ),
    "two_bits": KllmNormStatsConfig(
        bits_a=2, elements=1, k_max=31, fma_stages=4, divide_stages=5, rsqrt_stages=9
    ),
}  # fmt: skip
ONE, INF, NAN = 0x3C00, 0x7C00, 0x7E00
EPSILON = int(np.float32(1e-5).view(np.uint32))


def codebooks(rng, entries) -> dict[str, tuple[np.ndarray, bool]]:
    """Packets of each phase, and whether they are valid."""
    random = rng.integers(0, 2, entries) << 15 | rng.integers(0, ONE + 1, entries)
    above = random.copy()
    above[rng.integers(0, entries - 1)] = 0xBC01
    trained = np.sort(rng.uniform(-1, 1, entries)).astype(np.float16).view(np.uint16)
    trained = trained.astype(np.int64)
    return {
        "none": (np.zeros(0, np.int64), False),
        "trained": (trained, True),
        "short": (trained[:-1], False),
        "ones": (np.resize([ONE, 0xBC00], entries), True),
        "long": (np.resize(trained, entries + 1), False),
        "random": (random, True),
        "above": (above, False),
        "longer": (np.resize(trained, 2 * entries + 2), False),
        "subnormal": (rng.integers(0, 2, entries) << 15 | rng.integers(0, 0x400, entries), True),
        "last_above": (np.concatenate([trained[:-1], [0x3C01]]), False),
        "again": (trained, True),
    }


class Job:
    """One token as the block sees it. cut: beats before ``last``; told: outliers of the job."""

    def __init__(self, rng, config, length, **given):
        codes = 2**config.bits_a
        self.config, self.length = config, length
        self.index = given.get("index")
        if self.index is None:
            self.index = rng.integers(0, codes, length)
        self.index = np.broadcast_to(self.index, length)
        share = given.get("share", 0.1)
        self.outlier = rng.random(length) < share
        drawn = rng.integers(0, 2, length) << 15 | rng.integers(0x3000, 0x5000, length)
        self.x = np.resize(given.get("x", drawn), length) if length else drawn
        self.s = given.get("s", int(rng.integers(0x3000, 0x4800)))
        self.epsilon = given.get("epsilon", EPSILON)
        self.layer_norm = given.get("layer_norm", bool(rng.integers(0, 2)))
        self.told = max(0, int(self.outlier.sum()) + given.get("more_outliers", 0))
        self.count = beats(length, config.elements)
        self.cut = max(0 if length == 0 else 1, self.count + given.get("more_beats", 0))
        size = max(self.count, self.cut) * config.elements
        pad = rng.integers(0, codes, size)
        pad[:length] = self.index
        self.beat_index = pad[: self.cut * config.elements].reshape(self.cut, config.elements)
        mask = rng.integers(0, 2, size)
        mask[:length] = self.outlier
        self.beat_mask = mask[: self.cut * config.elements].reshape(self.cut, config.elements)
        self.words = np.resize(self.x[self.outlier], self.told) if self.outlier.any() else drawn
        self.words = self.words[: self.told] if len(self.words) else np.full(self.told, ONE)
        if len(self.words) < self.told:
            self.words = np.resize(self.words, self.told)

    def golden(self, codebook, valid) -> tuple[int, int, int]:
        """(mean, rms_reciprocal, status)."""
        nan = FP32.canonical_nan
        shape = (1, self.length)
        loaded = codebook if valid else np.zeros(4, np.int64)
        token = Tokens(
            torch.tensor(self.index if valid else 0 * self.index).reshape(shape),
            torch.tensor(self.outlier).reshape(shape),
            torch.tensor(self.x).reshape(shape),
            torch.tensor([self.s]),
        )
        mean, rms_reciprocal, status = norm_statistics(
            token, torch.tensor(loaded), self.epsilon, self.layer_norm, self.config.k_max
        )
        special = self.s & INF == INF or self.epsilon & FP32.infinity == FP32.infinity
        header = Status(0 if valid else Status.CODEBOOK_MISSING)
        header |= Status.NONFINITE if special else Status(0)
        header |= Status.LENGTH_ZERO if self.length == 0 else Status(0)
        header |= Status.LENGTH_TOO_LONG if self.length > self.config.k_max else Status(0)
        if header:
            assert not valid or int(status) == header  # golden's word
            return nan, nan, int(header)
        if self.clean:
            return int(mean), int(rms_reciprocal), int(status)
        found = Status(0)
        if self.cut != self.count:
            found |= Status.LAST_MISPLACED
        if int(self.outlier[: self.cut * self.config.elements].sum()) != self.told:
            found |= Status.OUTLIER_COUNT
        if (self.words & INF == INF).any():
            found |= Status.NONFINITE
        if found:
            return nan, nan, int(found)
        return int(mean), int(rms_reciprocal), int(status)

    @property
    def clean(self) -> bool:
        return self.cut == self.count and self.told == int(self.outlier.sum())


def jobs_of(rng, config, few) -> list[Job]:
    """Tokens of a phase; ``few``: none of the longest."""
    most, codes = config.k_max, 2**config.bits_a
    width = config.elements

    def job(length, **given):
        return Job(rng, config, length, **given)

    short = [1, 2, width, width + 1, min(3 * width, most), min(5 * width + 2, most)]
    jobs = [job(n, layer_norm=kind) for n in short for kind in (False, True)]
    middle = min(90, most)
    for kind in (False, True):
        jobs += [job(middle, layer_norm=kind, s=s) for s in (0, 0x8000, 1, 0x3FF, 0x7BFF, 0xBC00)]
        jobs += [job(middle, layer_norm=kind, share=share) for share in (0, 0.5, 1)]
        # constant tokens: the variance is 0, but for roundings
        jobs += [job(middle, layer_norm=kind, index=j, share=0) for j in (0, codes - 1)]
        jobs += [job(n, layer_norm=kind, share=1, x=x) for n in (7, middle) for x in (
            0x7BFF, 0xFBFF, 0x0001, 0x83FF, 0, [0x7BFF, 0xFBFF], [0x7BFF, 0x0001], 0x4A37,
        )]  # fmt: skip
        for epsilon in (0, 1, 0x80000000, 0xB727C5AC, 0x7F7FFFFF):
            jobs += [job(middle, layer_norm=kind, epsilon=epsilon)]
            jobs += [job(3, layer_norm=kind, epsilon=epsilon, s=0, share=0)]
    # faults
    jobs += [job(0), job(0, s=NAN), job(0, more_outliers=3), job(most + 1, share=0.02)]
    jobs += [job(most + width, share=0, s=INF)]
    if most < 1000:
        # more outliers than a count of k_max can hold
        jobs += [job(2 * most + 3, share=1) for _ in range(4)]
    jobs += [job(middle, s=s) for s in (INF, 0xFC00, NAN)]
    jobs += [job(middle, epsilon=e) for e in (0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001)]
    jobs += [job(middle, share=0.3, x=[ONE, ONE, x]) for x in (INF, 0xFC00, NAN, 0xFC01)]
    jobs += [job(middle, more_beats=n, share=share) for n in (-1, 1, 4) for share in (0, 0.2)]
    jobs += [job(middle, more_outliers=n, share=0.3) for n in (-1, 1, 5)]
    jobs += [job(middle, more_beats=2, more_outliers=1, share=0.3, x=NAN)]
    jobs += [job(int(rng.integers(1, most + 1) if most < 1000 else 200)) for _ in range(8)]
    jobs = [jobs[n] for n in rng.permutation(len(jobs))]
    if few:
        jobs = jobs[:14]
    else:
        extreme = [{"share": 1, "x": x} for x in (0x7BFF, 0xFBFF, 0x0001, 0x7BFE)]
        extreme += [{"share": 0, "index": j, "s": 0x7BFF} for j in (0, codes - 1)]
        extreme += [{"share": 0.01}, {"share": 0, "s": 1}]
        jobs += [job(most, layer_norm=bool(n % 2), **given) for n, given in enumerate(extreme)]
    return jobs


def norm_vectors(config, seed):
    """(vectors, params): per phase the packet, the jobs, their beats, outliers and results."""
    rng = np.random.default_rng([seed, 42])
    vectors, phases = {}, {}
    seen = Status(0)
    for name, (codebook, valid) in codebooks(rng, 2**config.bits_a).items():
        jobs = jobs_of(rng, config, few=not valid or name in ("again", "random"))
        mean, reciprocal, status = np.array([j.golden(codebook, valid) for j in jobs]).T
        seen |= Status(int(np.bitwise_or.reduce(status)))
        if len(codebook):
            last = np.arange(len(codebook)) == len(codebook) - 1
            vectors[f"{name}.codebook"] = pack((codebook, 16), (last, 1))
        column = {
            field: np.array([getattr(j, field) for j in jobs])
            for field in ("length", "s", "epsilon", "layer_norm", "told", "cut")
        }
        # Some jobs leave the number of outliers to the mask.
        of_mask = np.array([j.clean for j in jobs]) & (rng.random(len(jobs)) < 0.4)
        header_told = np.where(of_mask, KllmNormStats.OUTLIERS_OF_MASK, column["told"])
        vectors[f"{name}.job"] = pack(
            (column["length"], 16), (column["s"], 16), (column["epsilon"], 32),
            (column["layer_norm"], 1), (header_told, 16),
        )  # fmt: skip
        last = np.concatenate([np.arange(n) == n - 1 for n in column["cut"]])
        vectors[f"{name}.i"] = pack(
            (np.concatenate([j.beat_index for j in jobs]), config.bits_a),
            (np.concatenate([j.beat_mask for j in jobs]), 1),
            (last, 1),
        )
        vectors[f"{name}.x"] = pack((np.concatenate([j.words for j in jobs]), 16))
        vectors[f"{name}.o"] = pack((mean, 32), (reciprocal, 32), (status, len(Status)))
        # What full_rate foresees: no faults, no outliers that wait for their mask.
        regular = [
            j.clean and s in (0, int(Status.OVERFLOW)) and not late
            for j, s, late in zip(jobs, status.tolist(), of_mask, strict=True)
        ]
        phases[name] = [
            (j.cut, j.told, j.layer_norm, bool(each)) for j, each in zip(jobs, regular, strict=True)
        ]
    assert seen == Status.LENGTH_ZERO | Status.LENGTH_TOO_LONG | Status.CODEBOOK_MISSING | (
        Status.NONFINITE | Status.LAST_MISPLACED | Status.OUTLIER_COUNT | Status.OVERFLOW
    )
    return vectors, {"phases": phases}


@pytest.mark.parametrize("name", CONFIGS)
def test_norm_stats(name, seed):
    config = CONFIGS[name]
    vectors, params = norm_vectors(config, seed)
    simulate(
        KllmNormStats(config), "tb.kllm.tb_norm_stats", vectors=vectors, params=params, seed=seed
    )


def test_sums_hold_the_largest_values():
    """The widths of the exact sums, at k_max elements of the largest magnitude."""
    for config in CONFIGS.values():
        largest = 65504 * 2**-FP16.grid_exponent
        assert config.k_max * 2**24 < 2 ** (config.a_bits - 1)
        assert config.k_max * 2**48 < 2**config.q_bits
        assert config.k_max * largest < 2 ** (config.x1_bits - 1)
        assert config.k_max * largest**2 < 2**config.x2_bits


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bits_a": 1}, "bits_a must be 2..4, not 1"),
        ({"elements": 0}, "elements must be 1..32, not 0"),
        ({"k_max": 16384}, "k_max must be 1..16383, not 16384"),
        ({"convert_stages": 9}, "convert_stages must be 1..8, not 9"),
        ({"fma_stages": 0}, "fma_stages must be 1..8, not 0"),
        ({"divide_stages": 33}, "divide_stages must be 1..32, not 33"),
        ({"rsqrt_stages": 0}, "rsqrt_stages must be 1..32, not 0"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        KllmNormStatsConfig(**wrong)
    assert str(error.value) == f"KllmNormStatsConfig.{message}"
