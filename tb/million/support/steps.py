"""A packed model as tb_replay takes it, and what its steps spend. Outside of the simulation."""

from golden.llm.million.pack import Pack
from golden.million.config import WindowShape
from golden.million.format import Op
from golden.million.script import REQUEST_FIELDS, STREAMS, fields
from hdl.million.attention import MillionAttentionConfig
from tb.million.support.replay import part

BASE = 0x40_0000


def parts(pack: Pack, config: MillionAttentionConfig) -> list[dict]:
    """The parts that tb_replay runs: the prompt, then the steps."""
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
