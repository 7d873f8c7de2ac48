"""``senbazuru.runs.engine_rates``: vectors of several lengths, and their cycles."""

import argparse
import json

import numpy as np

from golden.oaken.timing import quant_engine
from golden.oaken.vectors.kv_vectors import one_vector
from golden.oaken.vectors.quant_engine import Job, engine_vectors
from hdl.arguments import write_page
from hdl.oaken.quant_engine import OakenQuantEngine, OakenQuantEngineConfig
from senbazuru.runs.cycles import Figure, described, predicted, save
from tb.simulate.run import simulate

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
_THRESHOLDS = (0xC400, 0xAE66, 0x2E66, 0x4400)  # -4, -0.1, 0.1, 4


def _jobs(rng, config: OakenQuantEngineConfig, elements: int) -> list[Job]:
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
