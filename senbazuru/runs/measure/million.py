"""``senbazuru.runs.million``: a packed model on million_attention, and the cycles of its steps."""

import argparse
import json
import statistics
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from golden.llm.million.pack import BLOCK, Pack, StreamConfig, load
from golden.manifest import PackError
from golden.million.bounds import step_bound
from hdl.million.attention import MillionAttention, MillionAttentionConfig
from hdl.million.room import BLOCKS
from senbazuru.runs.cycles import Figure, described, save
from tb.million.support.steps import BASE, parts, past_keys, step_cycles
from tb.simulate.run import ROOT, build_model, run_model

CONFIGS = BLOCKS[BLOCK].configs
_SHOWN = 8  # steps of a row of the table












def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
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
    console: Console, config: MillionAttentionConfig, pack: Pack, made: dict, latency: int
) -> list[Figure]:
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
