"""``python -m golden.llm.qet``: matrices quantized by compare-swap and residual clustering.

    python -m golden.llm.qet quantize FILE.npy --ratio 4 -o FILE.qet
    python -m golden.llm.qet quantize model.layers.15.mlp.up_proj.weight@smollm2 --ratio 8 -o up.qet
    python -m golden.llm.qet restore FILE.qet -o FILE.npy
    python -m golden.llm.qet report FILE.qet --against FILE.npy

``quantize`` takes a matrix of numpy or a tensor of a model. ``report`` says how many bits each part
takes, and with ``--against`` how far the matrix is from the one that was quantized.
"""

import argparse
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from golden import command
from golden.config import ConfigError
from golden.files import claimed, replacing
from golden.qet.config import ELEMENT_BITS, EXPONENT_BITS, GRID, Budget, QetShape, Stage

if TYPE_CHECKING:
    from golden.qet.matrix import QetMatrix
    from golden.qet.metrics import Errors


def levels(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


def shares(text: str) -> tuple[Fraction, ...]:
    try:
        return tuple(Fraction(each) for each in text.split(","))
    except ZeroDivisionError:
        raise ValueError(text) from None


def ratio(text: str) -> Fraction:
    return shares(text)[0]


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command.Parser(
        prog="python -m golden.llm.qet", description=(__doc__ or "").splitlines()[0]
    )
    parts = parser.add_subparsers(dest="part", required=True, parser_class=command.Parser)
    quantize = parts.add_parser("quantize", help="a matrix to a file")
    quantize.add_argument("source", metavar="FILE.npy|TENSOR@MODEL")
    quantize.add_argument("--ratio", type=ratio, default=Fraction(4),
                          help="bits of the matrix over bits stored, default 4")  # fmt: skip
    quantize.add_argument("--levels", type=levels, default=(3, 0), metavar="L,L",
                          help="compare-swaps of each stage, default 3,0")  # fmt: skip
    quantize.add_argument("--shares", type=shares, metavar="R,R",
                          help="of the memory that the maps leave, default 7/10,3/10")  # fmt: skip
    quantize.add_argument("--group", type=int, default=8, help="columns of a codebook, default 8")
    quantize.add_argument("--entry-bits", type=int, default=10,
                          help="of an entry's element, 0: the matrix's, default 10")  # fmt: skip
    quantize.add_argument("--range", choices=("stage", "group"), default="stage",
                          help="what shares a range of entries, default stage")  # fmt: skip
    quantize.add_argument("--element-bits", type=int, choices=ELEMENT_BITS,
                          help="by default those of the matrix")  # fmt: skip
    quantize.add_argument("--seed", type=int, default=0)
    quantize.add_argument("--device", help="of torch, by default cuda if there is one")
    quantize.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    restore = parts.add_parser("restore", help="a file to a matrix of numpy")
    restore.add_argument("file", type=Path)
    restore.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.npy")
    report = parts.add_parser("report", help="bits and errors of a file")
    report.add_argument("file", type=Path)
    report.add_argument("--against", metavar="FILE.npy|TENSOR@MODEL")
    return parser.parse_args(arguments)


def _default_shares(stages: int) -> tuple[Fraction, ...]:
    """The paper's for one and two stages; of more, each stage after the first has equal parts."""
    if stages == 1:
        return (Fraction(1),)
    return (Fraction(7, 10), *[Fraction(3, 10) / (stages - 1)] * (stages - 1))


def _quantize(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    stages = tuple(Stage(levels=levels) for levels in options.levels)
    budget = Budget(ratio=options.ratio, shares=options.shares or _default_shares(len(stages)))
    import torch

    from golden.llm.qet.source import matrix_of
    from golden.qet import file
    from golden.qet.matrix import lost, quantize, training_for, words_of
    from golden.qet.metrics import errors

    matrix, bits = matrix_of(options.source, options.element_bits)
    words_of(matrix, bits)  # what is not finite is refused before any budget
    shape = budget.solve(
        QetShape(
            rows=matrix.shape[0],
            columns=matrix.shape[1],
            element_bits=bits,
            group=options.group,
            stages=stages,
            entry_bits=options.entry_bits,
            by_group=options.range == "group",
        )
    )
    entries = ", ".join(f"{stage.entries:,}" for stage in shape.stages)
    say(f"{shape.rows} x {shape.columns} of FP{bits}: {entries} entries in {shape.groups} groups")
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    made = quantize(matrix.to(device), shape, training_for(shape, options.seed), say)
    size = file.write(options.output, made, options.source)
    say(f"{size:,} bytes in {options.output}")
    _print(made, errors(matrix, made.real().cpu()), lost(matrix.to(device), made))


def _restore(options: argparse.Namespace) -> None:
    import numpy as np

    from golden.qet import file

    made, _ = file.read(options.file)
    bits = made.shape.element_bits
    array = made.dequantized().numpy().astype(f"uint{bits}").view(f"float{bits}")
    with replacing(options.output) as part, part.open("wb") as target:
        np.save(target, array)


def _report(options: argparse.Namespace) -> None:
    from golden.llm.qet.source import matrix_of
    from golden.qet import file
    from golden.qet.matrix import lost
    from golden.qet.metrics import errors

    made, name = file.read(options.file)
    shown = name if name.isprintable() else ascii(name)
    print(f"{options.file}: {shown or 'a matrix without a name'}")
    found, below = None, 0
    if options.against:
        matrix, _ = matrix_of(options.against, made.shape.element_bits)
        shape = made.shape.rows, made.shape.columns
        if tuple(matrix.shape) != shape:
            raise ConfigError(f"{options.against}: must be {shape}, not {tuple(matrix.shape)}")
        found, below = errors(matrix, made.real()), lost(matrix, made)
    _print(made, found, below)


def _print(made: "QetMatrix", found: "Errors | None", below: int) -> None:
    """below: elements that count as 0, for the largest one is so much larger."""
    shape = made.shape
    print(f"{shape.rows} x {shape.columns} of FP{shape.element_bits}, groups of {shape.group}")
    whole = shape.stored_bits
    print(f"{'':24}{'bits':>16}{'share':>8}")

    def line(what: str, bits: int) -> None:
        print(f"{what:24}{bits:>16,}{bits / whole:>8.1%}")

    for number, stage in enumerate(shape.stages):
        print(f"stage {number}: {stage.levels} levels, {stage.entries:,} entries per codebook")
        line("  maps", shape.map_bits(stage))
        line("  codes", shape.code_bits(stage))
        line("  codebooks", shape.codebook_bits(stage))
        line("  ranges", shape.range_bits)
    line("exponent", EXPONENT_BITS)
    line("all", whole)
    per_element = whole / (shape.rows * shape.columns)
    print(f"{per_element:.3f} bits per element, ratio {float(shape.ratio):.3f}")
    if shape.padded != shape.columns:
        print(f"{shape.padded - shape.columns} columns are padding")
    if below:
        unit = f"2**{made.exponent - GRID}"
        print(f"{below:,} elements are below {unit}, the grid of the largest one, and count as 0")
    if found is not None:
        zeros = f", {found.zeros} zeros left out of MRE" if found.zeros else ""
        print(f"MAE {found.mae:.4g}, MRE {found.mre:.4g}, MSE {found.mse:.4g}{zeros}")


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr. Progress goes to stderr."""
    options = _arguments(arguments)
    say = command.elapsed(lambda line: print(line, file=sys.stderr))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if options.part == "quantize":
                with claimed(options.output):
                    _quantize(options, say)
            elif options.part == "restore":
                with claimed(options.output):
                    _restore(options)
            else:
                _report(options)
    except (ValueError, ArithmeticError, OSError, RuntimeError) as error:
        print(f"golden.llm.qet: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    command.run("golden.llm.qet", main)
