"""Centroids and thresholds of two texts: ``python -m golden.llm.reports.outlier_shift``.

KLLM, section II, Figure 2, on the inputs of q_proj. Codebooks of activations are trained offline,
on one text, and used online, on another one. The figure compares both sides with outliers and
without them.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from golden import command
from golden.kllm.config import outlier_count
from golden.llm.eval.accuracy.arguments import ROOT
from golden.llm.reports.common import add_page, give, prepare, status
from golden.markers import table

if TYPE_CHECKING:
    from torch import Tensor

PAGE = ROOT / "docs" / "accuracy.md"
_ENTRIES = 16
_SEEDS = (0, 1, 2)


class Shift(NamedTuple):
    """Root mean square differences between two texts.

    whole, inner : of sorted centroids, with a token's outliers and without them
    thresholds : of sorted upper thresholds, over the largest of both texts
    """

    whole: float
    inner: float
    thresholds: float


def _centroids(values: "Tensor", seed: int) -> "Tensor":
    """Sorted centroids of the values of all tokens."""
    from golden.index.lloyd import Training, kmeans

    training = Training(seed=seed, iterations=200, tolerance=0.0)
    return kmeans(values.reshape(1, -1, 1), _ENTRIES, None, training).centroids.flatten().sort()[0]


def _rms(a: "Tensor", b: "Tensor") -> float:
    return float((a.double() - b.double()).square().mean().sqrt())


def _inner(x: "Tensor") -> "Tensor":
    """The values of each token without its outliers, over the largest magnitude that is left."""
    count = outlier_count(x.shape[1])
    kept = x.sort(1)[0][:, count : x.shape[1] - count]
    return kept / kept.abs().amax(1, keepdim=True)


def shift(online: "Tensor", offline: "Tensor", seed: int) -> Shift:
    """Compares two sets of tokens (n, d) of equal size."""
    whole = [x / x.abs().amax(1, keepdim=True) for x in (online, offline)]
    count = outlier_count(online.shape[1])
    limits = [x.sort(1)[0][:, -count].sort()[0] for x in (online, offline)]
    largest = max(float(each.abs().max()) for each in limits)
    return Shift(
        _rms(*(_centroids(each, seed) for each in whole)),
        _rms(*(_centroids(_inner(x), seed) for x in (online, offline))),
        _rms(limits[0], limits[1]) / largest,
    )


def sections(found: Mapping[int, Sequence[Shift]]) -> dict[str, str]:
    """The page's section; found: by layer, a Shift for each seed."""

    def cell(values: Sequence[float]) -> str:
        mean = sum(values) / len(values)
        low, high = min(values), max(values)
        return f"{mean:.4f}" if high - low < 5e-5 else f"{mean:.4f} ({low:.4f}..{high:.4f})"

    rows = [
        [str(layer), *(cell([getattr(each, name) for each in made]) for name in Shift._fields)]
        for layer, made in found.items()
    ]
    head = ("layer", "centroids, with outliers", "without outliers", "upper thresholds")
    paper = ["paper: LLaMA-2-7B, first layer", "0.14", "0.01", "0.29"]
    return {"outlier_shift": table(head, [*rows, paper])}


def _arguments() -> argparse.ArgumentParser:
    parser = command.Parser(
        prog="python -m golden.llm.reports.outlier_shift",
        description="Compare centroids and thresholds of activations of two texts.",
    )
    parser.add_argument("--model", help="as for golden.llm.eval; SmolLM2-135M if none")
    parser.add_argument("--online", type=Path, required=True, help="plain or .jsonl")
    parser.add_argument("--offline", type=Path, required=True, help="plain or .jsonl")
    parser.add_argument("--tokens", type=int, default=128, help="of each text")
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 10, 20, 29])
    add_page(parser, PAGE)
    return parser


def _run(options: argparse.Namespace) -> int:
    from golden.llm.capture import capture_inputs
    from golden.llm.checkpoint import check_layers, layer_count, load, read_text, windows

    prepare(options)
    check_layers(options.layers, layer_count(options.model))
    checkpoint = load(options.model)
    names = {layer: f"model.layers.{layer}.self_attn.q_proj" for layer in options.layers}
    sides = [
        capture_inputs(
            checkpoint.model,
            windows(checkpoint, read_text(text), 1, options.tokens, 0)[0],
            names.values(),
        )
        for text in (options.online, options.offline)
    ]
    found = {
        layer: [shift(sides[0][name].x, sides[1][name].x, seed) for seed in _SEEDS]
        for layer, name in names.items()
    }
    give(options.page, sections(found))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    options = _arguments().parse_args(arguments)
    return status("outlier_shift", lambda: _run(options))


if __name__ == "__main__":
    command.run("golden.llm.reports.outlier_shift", main)
