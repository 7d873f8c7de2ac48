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
from golden.million.config import WindowShape
from golden.million.format import Op
from golden.million.script import REQUEST_FIELDS, STREAMS, fields
from hdl.million.attention import MillionAttention, MillionAttentionConfig
from hdl.million.room import BLOCKS
from senbazuru.runs.cycles import Figure, described, save
from tb.million.support.replay import part
from tb.simulate.run import ROOT, build_model, run_model

CONFIGS = BLOCKS[BLOCK].configs
BASE = 0x40_0000
_SHOWN = 8  # steps of a row of the table


def parts(pack: Pack, config: MillionAttentionConfig) -> list[dict]:
    """What tb_replay runs: the prompt, then the steps."""
    ops = [fields(REQUEST_FIELDS, word)["op"] for word in pack.words["request"]]
    # The LOAD of the first step precedes its APPEND.
    first = ops.index(Op.APPEND) - 1
    before = _counts(pack, config, ops[:first])
    made = []
    for name, span in (("prompt", (0, 1)), ("steps", (1, None))):
        words = {}
        for stream in STREAMS:
            bounds = [0, before[stream], len(pack.words[stream])]
            words[stream] = pack.words[stream][bounds[span[0]] : bounds[span[1] or 2]]
        made.append({"name": name, **part(words, config)})
    return made


def _counts(pack: Pack, config: MillionAttentionConfig, ops: list[int]) -> dict[str, int]:
    """Words of each stream that the first requests bring."""
    cache, rate = config.cache, config.rate
    vector = cache.head.heads * cache.pq.head_dim // rate.lanes
    record = config.record_writer.words
    loads = len(pack.words["codebook"]) // _number(pack, Op.LOAD)
    return {
        "request": len(ops),
        "status": len(ops),
        "codebook": loads * ops.count(Op.LOAD),
        "kv": 2 * vector * ops.count(Op.PREFILL),
        "restored": 2 * cache.head.heads * record * ops.count(Op.RESTORE),
        "query": 0,
        "o": 0,
    }


def _number(pack: Pack, op: Op) -> int:
    return sum(fields(REQUEST_FIELDS, word)["op"] == op for word in pack.words["request"])


def step_cycles(statuses: list[list[int]], layers: int) -> list[int]:
    """Cycles of each step: from the last ATTEND of the step before to its own last one."""
    ends = [cycle for op, cycle in statuses if op == Op.ATTEND]
    last = ends[layers - 1 :: layers]
    return [end - start for start, end in zip([0, *last], last, strict=False)]


def past_keys(window: WindowShape, context: int, step: int) -> int:
    """Keys in codes that the ATTEND of ``step`` sees: the window is flushed by blocks."""
    past, recent = context - window.sinks, 0
    for _ in range(step + 1):
        if window.recent and recent == window.recent:
            past, recent = past + window.block, recent - window.block
        past, recent = (past, recent + 1) if window.recent else (past + 1, 0)
    return past


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
