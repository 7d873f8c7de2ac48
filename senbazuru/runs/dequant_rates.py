"""``python -m senbazuru.runs.dequant_rates``: the dequantization engine's cycles next to D / L.

Every beat is also compared with golden.
A benchmark: no test asserts its cycles; ``full_rate`` asserts those of small sizes.
``--page`` rewrites the table of docs/blocks/oaken_dequant_engine.md.
"""

import argparse
import json
from typing import TYPE_CHECKING

import numpy as np

from golden import command
from golden.oaken import timing
from golden.oaken.format import Group
from hdl.arguments import add_page, check_page, write_page
from hdl.oaken.dequant_engine import OakenDequantEngine, OakenDequantEngineConfig
from senbazuru.runs.cycles import Figure, add_option, described, owned, predicted, save
from tb.simulate.run import ROOT, simulate

if TYPE_CHECKING:
    import torch

    from golden.oaken.quantize import Encoded

PAGE = ROOT / "docs" / "blocks" / "oaken_dequant_engine.md"
_HEAD_DIM = 128
_CONFIGS = (  # lanes, data_bits
    (8, 512),
    (16, 64),
    (16, 512),
    (32, 512),
    (64, 1024),
)
_READS = (  # tokens, tokens skipped, outliers in a hundred
    (1, 0, 10),
    (64, 0, 10),
    (256, 0, 10),
    (256, 0, 100),
    (256, 0, 0),
    (256, 63, 10),
)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.dequant_rates", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["dequant_rates"])
    with owned(parser, options.json):
        return report(options)


def _tokens(rng, count: int, percent: int) -> "tuple[Encoded, torch.Tensor]":
    import torch  # only now

    from golden.oaken.quantize import Encoded
    from golden.oaken.vectors.dequant_tokens import synthetic_tokens

    encoded, thresholds = synthetic_tokens(rng, count, _HEAD_DIM)
    is_outlier = torch.from_numpy(rng.random(encoded.code.shape)) < percent / 100
    kinds = torch.from_numpy(rng.choice([Group.INNER, Group.OUTER], encoded.code.shape))
    group = torch.where(is_outlier, kinds, int(Group.MIDDLE))
    return Encoded(encoded.scale, encoded.code, group, encoded.fifth * is_outlier), thresholds[0]


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    from golden.oaken.vectors.dequant_job import Job  # torch, only now

    figures = []
    rng = np.random.default_rng(1)
    lines = [
        "| L | memory word | tokens | skipped | outliers | tokens * D / L | cycles | above |",
        "|" + " ---: |" * 8,
    ]
    for lanes, data_bits in _CONFIGS:
        config = OakenDequantEngineConfig(lanes=lanes, data_bits=data_bits)
        vectors, phases = {}, []
        for tokens, skip, percent in _READS:
            phase = f"{tokens}_{skip}_{percent}"
            job = Job(config, rng)
            encoded, thresholds = _tokens(rng, tokens + skip, percent)
            job.add(encoded, thresholds, skip=skip)
            vectors |= job.vectors(phase)
            phases.append(phase)
        work = simulate(
            OakenDequantEngine(config),
            "tb.oaken.tb_dequant_engine",
            vectors=vectors,
            params={"phases": phases, "rates": phases},
            testcase="rates",
        )
        measured = json.loads((work / "rates.json").read_text())
        for phase, (tokens, skip, percent) in zip(phases, _READS, strict=True):
            bound, took = tokens * _HEAD_DIM // lanes, measured[phase][1]
            row = (
                lanes, f"{data_bits} bits", tokens, skip, f"{percent} %", bound, took,
                f"{took / bound - 1:.1%}",
            )  # fmt: skip
            lines.append("| " + " | ".join(map(str, row)) + " |")
            # Golden states the full rate: no record is skipped, and a word feeds every beat.
            is_fed = not skip and (config.zero_insert.chunk_bytes > lanes or not percent)
            full = timing.dequant_engine(config.scale_stages, config.stages)
            cycles = full.latency + bound * full.interval
            figures.append(
                Figure(
                    command="senbazuru.runs.dequant_rates",
                    block="oaken_dequant_engine",
                    configuration=described(config),
                    parameters={"head_dim": _HEAD_DIM, "tokens": tokens, "skipped": skip,
                                "outlier_percent": percent},
                    span="from the request to the end of the last beat",
                    cycles=took,
                    bound=bound,
                    **(predicted(timing.dequant_engine, cycles) if is_fed else {}),
                )
            )  # fmt: skip
    print("\n".join(lines))
    write_page(options.page, {"dequant_rates": "\n".join(lines) + "\n"})
    save(options.json, figures)
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.dequant_rates", main)
