"""``senbazuru.runs.qet_rates``: cycles of qet_dequant_gemv by rows and entries, and its traffic.

Random matrices of three tiles, each a job alone, with the entries that ratio 4 leaves. All results
and statuses are compared with golden. ``--page`` rewrites the table of docs/qet-rates.md.
"""

import argparse
import json
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from golden import command
from golden.command import elapsed
from golden.config import ConfigError
from golden.markers import table
from golden.qet.config import Budget, QetShape, Stage
from golden.qet.timing import gemv_bound, gemv_cycles, gemv_fill, image_bound
from hdl.arguments import add_page, check_page, whole, write_page
from hdl.qet.dequant_gemv import QetDequantGemv
from hdl.qet.gemv_config import QetDequantGemvConfig
from hdl.qet.room import BLOCKS
from senbazuru.runs.cycles import Figure, add_option, described, owned, predicted, save
from senbazuru.runs.qet import SPANS
from tb.simulate.run import ROOT, build_model, run_model

if TYPE_CHECKING:
    from golden.qet.matrix import QetMatrix

PAGE = ROOT / "docs" / "qet-rates.md"
SECTION = "rates"
BLOCK = "qet_dequant_gemv"
_TILES = 3
# By configuration: bits of an element, rows.
_CASES = {"smollm2": (16, (64, 256, 512, 1024, 1536)), "llama": (32, (1024, 4096, 11008))}
_RATIOS = (2, 4, 8)
_HEAD = ("configuration", "rows", "ratio", "entries", "bits of codes and maps", "bits of codebooks",
         "share", "share read", "bound + fill", "cycles", "ratio to bound")  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.qet_rates", description=__doc__)
    parser.add_argument("--config", action="append", choices=("smollm2", "llama"),
                        help="by default both")  # fmt: skip
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, [SECTION])
    with owned(parser, options.json):
        return report(options, options.config or ["smollm2", "llama"])


def cases_of(name: str) -> list[tuple[int, int, tuple[int, ...]]]:
    """(rows, ratio, entries) that a configuration has room for and a budget allows."""
    config, found = BLOCKS[BLOCK].configs[name], []
    assert isinstance(config, QetDequantGemvConfig)
    bits, sizes = _CASES[name]
    for rows in sizes:
        for ratio in _RATIOS:
            shape = QetShape(
                rows=rows, columns=64, element_bits=bits,
                stages=(Stage(levels=3), Stage(levels=0)),
            )  # fmt: skip
            try:
                solved = Budget(ratio=Fraction(ratio)).solve(shape)
            except ConfigError:
                continue
            entries = tuple(stage.entries for stage in solved.stages)
            most = [stage.entries for stage in config.shape.stages]
            if all(have <= room for have, room in zip(entries, most, strict=True)):
                found.append((rows, ratio, entries))
    return found


def _tile_bits(matrix: "QetMatrix") -> tuple[int, int]:
    """The bits of a tile: codes and maps, codebooks."""
    shape = matrix.shape
    rows = sum(shape.map_bits(stage) + shape.code_bits(stage) for stage in shape.stages)
    books = sum(shape.codebook_bits(stage) for stage in shape.stages)
    return rows // shape.tiles, books // shape.tiles


def measured(name: str, latency: int, say) -> list[tuple[tuple[object, ...], Figure]]:
    """Cells of the table, and the figure, of each case."""
    from golden.qet.vectors.gemv import gemv_job, random_matrix  # torch, only now
    from golden.vqllm.vectors.engine import random_x

    config = BLOCKS[BLOCK].configs[name]
    assert isinstance(config, QetDequantGemvConfig)
    rng, cases = np.random.default_rng(1), cases_of(name)
    model = build_model(QetDequantGemv(config), long_run=True)
    columns, found = _TILES * config.shape.columns, []
    for rows, ratio, entries in cases:
        matrix = random_matrix(config.shape, rng, rows, columns, entries)
        job = gemv_job(config, matrix, random_x(rng, 1, columns))
        params = {"jobs": [job.params()], "latency": latency}
        work = run_model(model, "tb.qet.tb_gemv_replay", config=config, params=params)
        made = json.loads((work / "replay.json").read_text())["jobs"][0]
        of_rows, of_books = _tile_bits(matrix)
        books, codes = (Fraction(bits, config.data_bits) for bits in (of_books, of_rows))
        bound = gemv_bound(rows, _TILES, books, codes, 0)
        words = _TILES * config.image.row_words(rows)
        whole = image_bound(matrix.shape, config.image)
        foreseen = gemv_cycles(whole, latency, config.ahead, words)
        bound += gemv_fill(latency, config.ahead, words)
        cells = (
            name, rows, ratio, ", ".join(map(str, entries)), of_rows, of_books,
            f"{of_books / (of_books + of_rows):.1%}",
            f"{made['books'] / (made['books'] + made['codes']):.1%}",
            bound, made["cycles"], f"{made['cycles'] / bound:.3f}",
        )  # fmt: skip
        say(f"{rows} rows, ratio {ratio}: {made['cycles']} cycles, bound {bound}")
        figure = Figure(
            command="senbazuru.runs.qet_rates",
            block=BLOCK,
            configuration=described(config),
            parameters={
                "rows": rows, "columns": columns, "entries": cells[3], "memory_latency": latency,
            },
            span=SPANS[BLOCK],
            cycles=made["cycles"],
            bound=bound,
            **predicted(gemv_cycles, foreseen),
        )  # fmt: skip
        found.append((cells, figure))
    return found


def report(options: argparse.Namespace, names: list[str]) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    console = Console()
    say = elapsed(lambda line: console.print(line, highlight=False))
    found = []
    for name in names:
        say(name)
        found += measured(name, options.latency, say)
    text = table(_HEAD, [cells for cells, _ in found])
    console.print(text, highlight=False, soft_wrap=True)
    write_page(options.page, {SECTION: text})
    save(options.json, [figure for _, figure in found])
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.qet_rates", main)
