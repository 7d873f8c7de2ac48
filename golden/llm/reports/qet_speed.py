"""Times of QET: ``python -m golden.llm.reports.qet_speed --page``.

Seconds are those of the processor. faiss and nanopq have their lines where they are installed. No
part of the project needs them. Source: QET, section 4.2, "QT and DQT".
"""

import argparse
import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from golden import command
from golden.llm.eval.accuracy.arguments import ROOT
from golden.llm.reports.common import add_page, give, prepare, status
from golden.markers import table

if TYPE_CHECKING:
    from torch import Tensor

    from golden.qet.matrix import QetMatrix

PAGE = ROOT / "docs" / "qet-speed.md"
_SIZES = ("1024x128", "1024x512", "1024x1024", "2752x1024", "11008x1024", "11008x4096")
_RATIO = 4
_GROUP = 8
_METHODS = ("QET", "Vanilla", "PQ")
_FAISS = "PQ of faiss"
_ORACLE = (1024, 64, 64)  # rows and columns of a matrix for all oracles, and entries


@dataclasses.dataclass(frozen=True)
class Timed:
    """entries: of each stage. seconds: of the processor, to quantize and to restore."""

    entries: tuple[int, ...]
    seconds: float
    restoring: float
    mse: float


# rows, columns, method -> what was measured
Found = dict[tuple[int, int, str], Timed]


def size(text: str) -> tuple[int, int]:
    rows, columns = text.split("x")
    return int(rows), int(columns)


def _clock(run: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    made = run()
    return time.process_time() - begin, made


def _ours(matrix: "Tensor", method: str, iterations: int) -> Timed:
    from golden.qet.matrix import quantize, training_for
    from golden.qet.metrics import errors
    from golden.qet.rivals import VARIANTS

    rows, columns = matrix.shape
    shape = VARIANTS[method].shape(rows, columns, 32, Fraction(_RATIO))
    entries = tuple(stage.entries for stage in shape.stages)
    training = training_for(shape, iterations=iterations)

    def run() -> "QetMatrix":
        return quantize(matrix, shape, training)

    seconds, made = _clock(run)
    restoring, _ = _clock(made.dequantized)
    return Timed(entries, seconds, restoring, errors(matrix, made.real()).mse)


def _faiss(matrix: "Tensor", entries: int, iterations: int) -> Timed:
    """k-means of faiss for each group, so with any number of entries."""
    import faiss
    import numpy as np
    import torch

    from golden.qet.metrics import errors

    faiss.omp_set_num_threads(torch.get_num_threads())
    groups = np.ascontiguousarray(matrix.numpy().reshape(len(matrix), -1, _GROUP).swapaxes(0, 1))

    def run() -> tuple[list[Any], list[Any]]:
        books, codes = [], []
        for x in groups:
            found = faiss.Kmeans(
                _GROUP, entries, niter=iterations, seed=0, min_points_per_centroid=1
            )
            found.train(x)
            books.append(found.centroids)
            codes.append(found.index.search(x, 1)[1][:, 0])
        return books, codes

    seconds, (books, codes) = _clock(run)

    def restore() -> Any:
        return np.concatenate([book[own] for book, own in zip(books, codes, strict=True)], 1)

    restoring, back = _clock(restore)
    return Timed((entries,), seconds, restoring, errors(matrix, torch.from_numpy(back)).mse)


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _measured(sizes: list[tuple[int, int]], iterations: int, say: Callable[[str], None]) -> Found:
    from golden.llm.reports.qet_claims import synthetic

    found: Found = {}
    for rows, columns in sizes:
        matrix = synthetic(rows, columns, False, 0)
        for method in _METHODS:
            found[rows, columns, method] = each = _ours(matrix, method, iterations)
            say(f"{rows} x {columns}, {method}: {each.seconds:.1f} s")
        if _is_there("faiss"):
            each = _faiss(matrix, each.entries[0], iterations)
            found[rows, columns, _FAISS] = each
            say(f"{rows} x {columns}, {_FAISS}: {each.seconds:.1f} s")
    return found


def _oracles(iterations: int) -> list[list[str]]:
    """Errors of ours and of other libraries, of one matrix whose columns depend on each other."""
    import torch

    from golden.index.lloyd import Training
    from golden.qet.config import QetShape, Stage
    from golden.qet.matrix import quantize
    from golden.qet.metrics import errors
    from golden.qet.rivals import RotatedShape, rotate

    rows, columns, entries = _ORACLE
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(columns, columns, generator=generator)
    matrix = torch.randn(rows, columns, generator=generator) @ mixing
    power = float(matrix.double().var())
    lines: list[list[str]] = []

    def add(method: str, run: Callable[[], Any]) -> None:
        seconds, back = _clock(run)
        error = errors(matrix, torch.as_tensor(back)).mse / power
        lines.append([method, f"{100 * error:.2f}", f"{seconds:.2f}"])

    plain = QetShape(
        rows=rows, columns=columns, entry_bits=0, stages=(Stage(levels=0, entries=entries),)
    )
    training = Training(few=True, iterations=iterations)
    rotated = RotatedShape(rows=rows, columns=columns, entries=entries)
    add("PQ, ours", lambda: quantize(matrix, plain, training).real())
    add("OPQ, ours", lambda: rotate(matrix, rotated, training, iterations).matrix)
    x = matrix.numpy()
    if _is_there("faiss"):
        import faiss

        bits = (entries - 1).bit_length()

        def faiss_pq(x: Any = x) -> Any:
            made = faiss.ProductQuantizer(columns, columns // _GROUP, bits)
            made.cp.niter, made.cp.min_points_per_centroid = iterations, 1
            made.train(x)
            return made.decode(made.compute_codes(x))

        def faiss_opq() -> Any:
            rotation = faiss.OPQMatrix(columns, columns // _GROUP)
            rotation.pq = own = faiss.ProductQuantizer(columns, columns // _GROUP, bits)
            own.cp.min_points_per_centroid = 1
            rotation.niter = iterations
            rotation.train(x)
            return rotation.reverse_transform(faiss_pq(rotation.apply(x)))

        add(f"PQ, faiss {faiss.__version__}", faiss_pq)
        add(f"OPQ, faiss {faiss.__version__}", faiss_opq)
    if _is_there("nanopq"):
        import nanopq

        def nano(kind: Any, **options: Any) -> Any:
            made = kind(M=columns // _GROUP, Ks=entries, verbose=False)
            made.fit(x, seed=0, **options)
            return made.decode(made.encode(x))

        add("PQ, nanopq", lambda: nano(nanopq.PQ, iter=iterations))
        both = {"parametric_init": True, "rotation_iter": iterations, "pq_iter": iterations}
        add("OPQ, nanopq", lambda: nano(nanopq.OPQ, **both))
    return lines


def sections(
    found: Found, oracles: list[list[str]], settings: list[tuple[str, str]]
) -> dict[str, str]:
    """Returns the page's sections by marker."""
    sizes = list(dict.fromkeys(key[:2] for key in found))
    times, growth, decoding = [], [], []
    for rows, columns in sizes:
        own = {key[2]: each for key, each in found.items() if key[:2] == (rows, columns)}
        name, elements = f"{rows} x {columns}", rows * columns
        other = own.get(_FAISS)
        for method, each in own.items():
            cells = [name, method, ", ".join(map(str, each.entries)), f"{each.seconds:.2f}"]
            if other is not None:
                is_equal = each.entries == other.entries
                error = f"{100 * (each.mse / other.mse - 1):+.2f}" if is_equal else ""
                cells += [f"{each.seconds / other.seconds:.2f}", error]
            times.append(cells)
        growth.append([name, *(f"{1e6 * each.seconds / elements:.2f}" for each in own.values())])
        decoding.append(
            [name, *(f"{4 * elements / each.restoring / 1e9:.3f}" for each in own.values())]
        )
    methods = list(dict.fromkeys(key[2] for key in found))
    head = ["matrix", "method", "entries", "seconds", "times faiss", "error above faiss, %"]
    return {
        "qet_speed_settings": table(("setting", "value"), settings, align_right=False),
        "qet_times": table(head if _FAISS in methods else head[:4], times),
        "qet_growth": table(("matrix", *methods), growth),
        "qet_decoding": table(("matrix", *methods), decoding),
        "qet_oracles": table(("method", "error, % of the variance", "seconds"), oracles),
    }


def _arguments() -> argparse.ArgumentParser:
    parser = command.Parser(
        prog="python -m golden.llm.reports.qet_speed",
        description="Measure times of QET and product quantization, and write their tables.",
    )
    parser.add_argument("--sizes", type=size, nargs="+", metavar="NxD",
                        default=[size(each) for each in _SIZES],
                        help=f"rows x columns, default {' '.join(_SIZES)}")  # fmt: skip
    parser.add_argument("--iterations", type=int, default=10, help="of each k-means, default 10")
    add_page(parser, PAGE)
    return parser


def _run(options: argparse.Namespace) -> int:
    import os
    import platform

    import torch

    from golden.config import ConfigError

    for rows, columns in options.sizes:
        if rows < 1 or columns < 1 or columns % _GROUP:
            raise ConfigError(f"columns must be a multiple of {_GROUP}, not {rows}x{columns}")
    prepare(options)
    say = command.elapsed(lambda line: print(line, file=sys.stderr))
    before = os.getloadavg()[0]
    found = _measured(options.sizes, options.iterations, say)
    oracles = _oracles(options.iterations)
    settings = [
        ("matrices", f"normal, FP32, ratio {_RATIO}, groups of {_GROUP} columns"),
        ("k-means", f"at most {options.iterations} moves, one seed"),
        ("processor", f"{platform.machine()}, threads used: {torch.get_num_threads()}"),
        ("load of the machine", f"{before:.1f} before, {os.getloadavg()[0]:.1f} after"),
        ("processors", f"{os.cpu_count()}"),
        ("torch", torch.__version__),
    ]  # fmt: skip
    give(options.page, sections(found, oracles, settings))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    options = _arguments().parse_args(arguments)
    return status("qet_speed", lambda: _run(options))


if __name__ == "__main__":
    command.run("golden.llm.reports.qet_speed", main)
