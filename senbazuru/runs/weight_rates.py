"""``python -m senbazuru.runs.weight_rates``: the weight supply's cycles next to its bound, Table I.

Every word is also compared with golden.
A benchmark: no test asserts its cycles; ``full_rate`` asserts those of small sizes.
``--page`` rewrites the table of docs/blocks/kllm_weight_supply.md.
"""

import argparse
import json

import numpy as np

from golden import command
from golden.kllm.format import beats, groups
from golden.kllm.vectors.weight_supply import Job, supply_words
from hdl.arguments import add_page, check_page, write_page
from hdl.kllm.weights.supply import KllmWeightSupply, KllmWeightSupplyConfig
from senbazuru.runs.cycles import Figure, add_option, described, owned, save
from tb.simulate.run import ROOT, simulate

PAGE = ROOT / "docs" / "blocks" / "kllm_weight_supply.md"

_JOBS = (  # K, N, tokens
    (576, 576, 1),
    (576, 1536, 1),
    (1536, 576, 1),
    (4096, 1024, 1),
    (4096, 4096, 1),
    (11008, 1024, 1),
    (576, 1536, 4),
    (4096, 1024, 4),
)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.weight_rates", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["supply_rates"])
    with owned(parser, options.json):
        return _report(options)


def _report(options: argparse.Namespace) -> int:
    config = KllmWeightSupplyConfig()
    width = config.lane.group_outputs
    rng = np.random.default_rng(1)
    rates = []
    for length, outputs, tokens in _JOBS:
        words, memory = supply_words(config, [Job(length, outputs, tokens, tokens > 1)], rng)
        rates.append(
            (beats(length, config.lane.elements), groups(outputs, width), tokens, words, memory)
        )
    work = simulate(
        KllmWeightSupply(config),
        "tb.kllm.tb_weight_supply",
        params={"rates": rates},
        testcase="full_rate",
    )
    measured = json.loads((work / "rates.json").read_text())
    lines = ["| K | N | tokens | T | groups | bound | cycles | above |"]
    lines.append("|" + " ---: |" * 8)
    for (length, outputs, tokens), (bound, took), rate in zip(_JOBS, measured, rates, strict=True):
        row = (length, outputs, tokens, rate[0], rate[1], bound, took, f"{took / bound - 1:.1%}")
        lines.append("| " + " | ".join(map(str, row)) + " |")
    print("\n".join(lines))
    write_page(options.page, {"supply_rates": "\n".join(lines) + "\n"})
    save(
        options.json,
        [
            Figure(
                command="senbazuru.runs.weight_rates",
                block="kllm_weight_supply",
                configuration=described(config),
                parameters={"length": length, "outputs": outputs, "tokens": tokens},
                span="from the first port word to the last beat, both included",
                cycles=took,
                bound=bound,
            )
            for (length, outputs, tokens), (bound, took) in zip(_JOBS, measured, strict=True)
        ],
    )
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.weight_rates", main)
