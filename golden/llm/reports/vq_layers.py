"""Error and k-means of single matrices: ``python -m golden.llm.reports.vq_layers --text FILE``.

The error of a quantized weight Q is ``tr((W - Q) H (W - Q)^T) / tr(W H W^T)`` with H the sum of
x x^T: the error of the outputs over their size. The report times k-means next to
faiss, where that is installed.
"""

import argparse
import functools
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from golden import command
from golden.llm.eval.accuracy.arguments import PAGE
from golden.llm.reports.common import add_page, give, prepare, status
from golden.markers import table

if TYPE_CHECKING:
    from torch import Tensor

_GROUP = 64
_VQ = (
    "aqlm3", "aqlm3:feedback=true", "gptvq3", "gptvq2", "gptvq2:size=2", "aqlm2x8",
    "aqlm2x8:feedback=true",
)  # fmt: skip
_PARTS = ("up_proj", "down_proj")


def _relative(weight: "Tensor", back: "Tensor", hessian: "Tensor") -> float:
    h = hessian.double()
    w, error = weight.double(), weight.double() - back.double()
    return float(((error @ h) * error).sum() / ((w @ h) * w).sum())


def _gptq(weight: "Tensor", hessian: "Tensor", bits: int, group: int) -> tuple["Tensor", float]:
    """(weight, stored bits)."""
    from golden.llm.methods.gptq import gptq, ragged

    width = weight.shape[1]
    sizes = ragged(width, group)
    found = gptq(weight, hessian, sizes, [bits] * len(sizes))
    return found.weight, bits + len(sizes) * (16 + bits) / width


def errors(weights: dict[str, tuple["Tensor", "Tensor"]]) -> str:
    """A line for each method: stored bits, error and processor seconds of each matrix.

    weights: (weight, Hessian) by name.
    """
    from golden.llm.methods import parse
    from golden.llm.methods.vqllm import VqWeights

    rows = []

    def add(label: str, quantize: Callable[["Tensor", "Tensor"], tuple["Tensor", float]]) -> None:
        cells: list[str] = []
        for weight, hessian in weights.values():
            begin = time.process_time()
            back, bits = quantize(weight, hessian)
            seconds = time.process_time() - begin
            cells += [f"{bits:.3f}", f"{_relative(weight, back, hessian):.4f}", f"{seconds:.1f}"]
        rows.append([label, *cells])

    for bits in (3, 2):
        for group in (0, _GROUP):
            label = f"`gptq-like-w{bits}a16{f':group={group}' if group else ''}`"
            add(label, functools.partial(_gptq, bits=bits, group=group))
    for spelling in _VQ:
        method = parse(spelling)
        assert isinstance(method, VqWeights)

        def vq(
            weight: "Tensor", hessian: "Tensor", method: VqWeights = method
        ) -> tuple["Tensor", float]:
            found = method.matrix(weight, hessian)
            return found.real()[:, : weight.shape[1]], found.stored_bits / weight.numel()

        add(f"`{spelling}`", vq)
    head = ["method"]
    for name in weights:
        head += [f"{name}: bits", "error", "seconds"]
    return table(head, rows)


def kmeans_times(weight: "Tensor", entries: int, size: int, iterations: int) -> str:
    """Processor seconds and objective of k-means of a matrix: ours and, if installed, faiss's."""
    import torch

    from golden.index.lloyd import Training, assign, kmeans

    x = weight.float().reshape(1, -1, size)
    rows = []

    def add(label: str, train: Callable[[], "Tensor"]) -> float:
        begin = time.process_time()
        books = train()
        seconds = time.process_time() - begin
        cost = float((x[0] - books[assign(x, books[None])[0]]).double().square().sum())
        rows.append([label, f"{seconds:.1f}", f"{cost:.1f}"])
        return seconds

    ours = {}
    for seeds in ("random", "plus_plus"):
        training = Training(seeds=seeds, iterations=iterations, tolerance=0.0)

        def own(training: Training = training) -> "Tensor":
            return kmeans(x, entries, None, training).centroids[0]

        ours[seeds] = add(f"ours, seeds `{seeds}`", own)
    if importlib.util.find_spec("faiss") is not None:
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())

        def theirs() -> "Tensor":
            found = faiss.Kmeans(
                size, entries, niter=iterations, seed=0, max_points_per_centroid=x.shape[1],
                min_points_per_centroid=1,
            )  # fmt: skip
            found.train(x[0].numpy())
            return torch.from_numpy(found.centroids)

        other = add(f"faiss {faiss.__version__}", theirs)
        for row, seconds in zip(rows, (*ours.values(), other), strict=True):
            row.append(f"{seconds / other:.2f}")
    head = ["k-means", "processor seconds", "objective"]
    return table([*head, "times faiss"][: len(rows[0])], rows)


def _arguments() -> argparse.ArgumentParser:
    parser = command.Parser(
        prog="python -m golden.llm.reports.vq_layers",
        description="Measure error and k-means of matrices of a feed-forward layer.",
    )
    parser.add_argument("--model", help="as for golden.llm.eval; SmolLM2-135M if none")
    parser.add_argument("--text", type=Path, required=True, help="plain or .jsonl")
    parser.add_argument("--layer", type=int, default=10)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=["up_proj"])
    parser.add_argument("--windows", type=int, default=8, help="whose inputs make the Hessian")
    parser.add_argument("--tokens", type=int, default=256, help="of a window")
    parser.add_argument("--skip", type=int, default=20480, help="tokens before the windows")
    add_page(parser, PAGE)
    return parser


def _run(options: argparse.Namespace) -> int:
    import torch

    from golden.llm.checkpoint import check_layers, layer_count, load, read_text, windows
    from golden.llm.eval.calibration import CalibrationData
    from golden.llm.methods import parse
    from golden.llm.methods.vqllm import Aqlm

    prepare(options)
    check_layers([options.layer], layer_count(options.model))
    checkpoint = load(options.model)
    text = read_text(options.text)
    parts = windows(checkpoint, text, options.windows, options.tokens, options.skip)
    data = CalibrationData(checkpoint.model, parts)
    names = {part: f"model.layers.{options.layer}.mlp.{part}" for part in options.parts}
    hessians = data.accumulate("hessian", lambda x: x.t() @ x, names=list(names.values()))
    weights = {
        part: (data.linears[name].weight.detach(), hessians[name]) for part, name in names.items()
    }
    method = parse("aqlm3")
    assert isinstance(method, Aqlm)
    first = next(iter(weights.values()))[0]
    with torch.no_grad():
        made = {
            "vqllm_layers": errors(weights),
            "vqllm_kmeans": kmeans_times(
                first, method.vq.entries, method.vq.size, method.iterations
            ),
        }
    give(options.page, made)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    options = _arguments().parse_args(arguments)
    return status("vq_layers", lambda: _run(options))


if __name__ == "__main__":
    command.run("golden.llm.reports.vq_layers", main)
