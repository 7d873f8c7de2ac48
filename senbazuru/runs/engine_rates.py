"""``python -m senbazuru.runs.engine_rates``: cycles per vector of the quantization engine.

Vectors of one length follow one another without a gap, a third of them without outliers, a third
with outliers only. Every word is also compared with golden. A benchmark: ``full_rate`` asserts the
cycles of small sizes.
``--page`` rewrites the table of docs/blocks/oaken_quant_engine.md.
"""

import argparse
import json
from typing import TYPE_CHECKING

import numpy as np

from golden import command
from golden.oaken.timing import quant_engine
from hdl.arguments import add_page, check_page, write_page
from hdl.oaken.quant_engine import OakenQuantEngine, OakenQuantEngineConfig
from senbazuru.runs.cycles import Figure, add_option, described, owned, predicted, save
from tb.simulate.run import ROOT, simulate

if TYPE_CHECKING:
    from golden.oaken.vectors.quant_engine import Job

PAGE = ROOT / "docs" / "blocks" / "oaken_quant_engine.md"
LANES = (8, 16, 32, 64)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
_THRESHOLDS = (0xC400, 0xAE66, 0x2E66, 0x4400)  # -4, -0.1, 0.1, 4


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.engine_rates", description=__doc__)
    parser.add_argument("--lanes", type=int, choices=LANES, nargs="+", default=LANES)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    if options.page and tuple(options.lanes) != LANES:
        parser.error("--page: the page has all lanes: no --lanes")
    check_page(parser, options.page, ["engine_rates"])
    with owned(parser, options.json):
        return report(options)


def _jobs(rng, config: OakenQuantEngineConfig, elements: int) -> "list[Job]":
    from golden.oaken.vectors.kv_vectors import one_vector  # torch, only now
    from golden.oaken.vectors.quant_engine import Job

    kinds = ("usual", "middle", "outer") * max(3, 2048 // elements)
    return [
        Job(
            elements // config.block,
            _THRESHOLDS,
            one_vector(rng, kind, _THRESHOLDS, elements),
        )
        for kind in kinds
    ]


def _figures(config: OakenQuantEngineConfig, found: dict[str, dict]) -> list[Figure]:
    block = OakenQuantEngine(config)
    block._MustUse__silence = True  # nothing elaborates it
    timing = block.timing
    figures = []
    for name, phase in found.items():
        elements, further = int(name), phase["vectors"] - 1
        beats = further * elements // config.lanes
        for span, cycles, bound, golden in (
            ("from a vector's last beat to its first codes", phase["latency"], None,
             timing.latency),
            ("from the first vector's last codes to the last one's", phase["span"], beats,
             beats * timing.interval),
        ):  # fmt: skip
            figures.append(
                Figure(
                    command="senbazuru.runs.engine_rates",
                    block="oaken_quant_engine",
                    configuration=described(config),
                    parameters={"elements": elements, "vectors": phase["vectors"]},
                    span=span,
                    cycles=cycles,
                    bound=bound,
                    **predicted(quant_engine, golden),
                )
            )
    return figures


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    from golden.oaken.vectors.quant_engine import engine_vectors  # torch, only now

    measured, figures = {}, []
    for lanes in options.lanes:
        config = OakenQuantEngineConfig(lanes=lanes)
        rng = np.random.default_rng(1)
        vectors = {}
        for elements in LENGTHS:
            found = engine_vectors(config, _jobs(rng, config, elements))
            vectors |= {f"{elements}.{name}": words for name, words in found.items()}
        work = simulate(
            OakenQuantEngine(config),
            "tb.oaken.tb_engine_rates",
            vectors=vectors,
            params={"phases": [str(elements) for elements in LENGTHS]},
        )
        measured[lanes] = json.loads((work / "rates.json").read_text())
        figures += _figures(config, measured[lanes])
    lines = ["| lanes | " + " | ".join(f"D = {length}" for length in LENGTHS) + " | to the codes |"]
    lines.append("|" + " ---: |" * (len(LENGTHS) + 2))
    for lanes, found in measured.items():
        cells = []
        for length in LENGTHS:
            cycles, bound = found[str(length)]["cycles"], length / lanes
            cells.append(f"{cycles:g}" if cycles == bound else f"{cycles:g} (not {bound:g})")
        cells.append(str(found[str(LENGTHS[-1])]["latency"]))
        lines.append(f"| {lanes} | " + " | ".join(cells) + " |")
    print("\n".join(lines))
    write_page(options.page, {"engine_rates": "\n".join(lines) + "\n"})
    save(options.json, figures)
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.engine_rates", main)
