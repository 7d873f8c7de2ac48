"""``senbazuru.runs.million``: SmolLM2's attention over codes on the Verilated million_attention.

Packs K, V, codes and queries (golden.llm.pack) unless a folder is given. Restores the prompt of
three layers, then runs decoding steps of LOAD, APPEND and ATTEND per layer. Compares every word of
the outputs and every status with golden. Prints the cycles of the steps next to their bound.
"""

import argparse
import json
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from golden import command
from golden.manifest import PackError
from golden.million.bounds import step_bound
from golden.million.config import SYSTEMS
from hdl.arguments import folder, whole
from hdl.million.attention import MillionAttention, MillionAttentionConfig
from hdl.million.room import BLOCKS
from senbazuru.runs.cycles import Figure, add_option, described, owned, save
from tb.simulate.run import ROOT, build_model, run_model

if TYPE_CHECKING:
    from golden.llm.million.pack import Pack

BLOCK = "million_attention"
CONFIGS = BLOCKS[BLOCK].configs
_SHOWN = 8  # steps of a row of the table


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.million", description=__doc__)
    parser.add_argument("--model", default="smollm2", choices=list(SYSTEMS))
    parser.add_argument("--pack", type=folder, help="folder of golden.llm.pack; made when missing")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_option(parser)
    options = parser.parse_args(arguments)
    with owned(parser, options.json):
        return report(options)


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    from golden.llm.million.pack import StreamConfig, load  # torch, only now
    from tb.million.support.steps import BASE, parts

    console = Console(width=100)
    config = CONFIGS[options.model]
    assert isinstance(config, MillionAttentionConfig)
    folder = options.pack or ROOT / "build" / f"million-{options.model}"
    if not (folder / "manifest.json").exists():
        command = [sys.executable, "-m", "golden.llm.pack", "--block", BLOCK]
        command += ["--model", options.model, "-o", str(folder)]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return 2
    stream = StreamConfig(cache=config.cache, lanes=config.rate.lanes, data_bits=config.data_bits)
    try:
        pack = load(folder, stream)
    except (PackError, OSError) as error:
        print(f"senbazuru.runs.million: {error}", file=sys.stderr)
        return 2
    console.print(f"building the model of {BLOCK}, {options.model}")
    model = build_model(MillionAttention(config), long_run=True)
    params = {"parts": parts(pack, config), "base": BASE, "latency": options.latency}
    work = run_model(model, "tb.million.tb_replay", config=config, params=params)
    made = json.loads((work / "replay.json").read_text())
    save(options.json, _report(console, config, pack, made, options.latency))
    return 0


def _report(
    console: Console, config: MillionAttentionConfig, pack: "Pack", made: dict, latency: int
) -> list[Figure]:
    from tb.million.support.steps import past_keys, step_cycles

    described_model = pack.manifest.model
    context, layers = described_model["context"], len(described_model["layers"])
    took = step_cycles(made["parts"]["steps"]["statuses"], layers)
    keys = [past_keys(config.cache.window, context, step) for step in range(len(took))]
    bounds = [
        step_bound(config.cache, config.rate, each, config.data_bits, layers) for each in keys
    ]
    table = Table(title=f"{layers} layers per step", title_justify="left")
    for name in ("steps", "keys in codes", "bound", "cycles", "cycles / bound"):
        table.add_column(name, justify="right")
    for first in range(0, len(took), _SHOWN):
        some = slice(first, first + _SHOWN)
        cycles, bound = statistics.fmean(took[some]), statistics.fmean(bounds[some])
        end = first + len(took[some]) - 1
        table.add_row(
            f"{first}..{end}", f"{keys[first]}..{keys[end]}", f"{bound:.0f}", f"{cycles:.0f}",
            f"{cycles / bound:.3f}",
        )  # fmt: skip
    console.print(table)
    simulated, seconds = made["simulated"]["cycles"], made["simulated"]["seconds"]
    console.print(
        f"{len(took)} steps: {sum(took)} cycles, {statistics.fmean(took):.0f} a step, bound "
        f"{statistics.fmean(bounds):.0f}; {len(pack.words['o'])} beats of outputs and "
        f"{len(pack.words['status'])} statuses equal to golden; {simulated} cycles simulated, "
        f"{simulated / seconds:.0f} per second of processor time"
    )
    return [
        Figure(
            command="senbazuru.runs.million",
            block=BLOCK,
            configuration=described(config),
            parameters={"step": step, "keys": n, "layers": layers, "memory_latency": latency},
            span="from the last ATTEND of the step before to its own last one",
            cycles=cycles,
            bound=bound,
        )
        for step, (n, cycles, bound) in enumerate(zip(keys, took, bounds, strict=True))
    ]


if __name__ == "__main__":
    command.run("senbazuru.runs.million", main)
