"""A packed model on MillionAttention: prompt by RESTORE, steps of LOAD, APPEND and ATTEND.

What ``senbazuru.runs.million`` does, at a small size and through golden.llm.pack's files.

Shown to fail:

- ``last`` at the end of each KV head instead of each group;
- words of ``restored`` with V before K;
- codebooks by part instead of by entry.
"""

import dataclasses
import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from golden.index.lloyd import Training
from golden.llm.million import example
from golden.llm.million.pack import StreamConfig, load, write
from golden.million.config import WindowShape
from golden.million.format import Op
from golden.million.script import Script
from hdl.million.attention import MillionAttention
from hdl.million.room import BLOCKS
from tb.million.support import steps, trains
from tb.million.support.replay import Parts, random_books, some_words
from tb.simulate.run import simulate

SMALL = BLOCKS["million_attention"].configs["small"]
CONTEXT, STEPS = 14, 8


def packed(folder, config=SMALL):
    """The folder of a tiny model, for ``config``."""
    torch.manual_seed(0)
    cache = config.cache
    heads, d = cache.head.heads * cache.head.group, cache.pq.head_dim
    shape = LlamaConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=cache.head.heads, head_dim=d, vocab_size=50, initializer_range=0.2,
    )  # fmt: skip
    model = LlamaForCausalLM(shape).eval()
    ids = torch.randint(50, (400 + CONTEXT + STEPS,))
    training = example.capture(model, ids[:400], [0, 1], cache)
    books = {n: example.trained(each, cache, Training(few=True)) for n, each in enumerate(training)}
    seen = dict(enumerate(example.capture(model, ids[400:], [0, 1], cache)))
    script = Script(cache, config.rate.lanes, config.data_bits)
    example.run(script, seen, books, CONTEXT, STEPS)
    stream = StreamConfig(cache=cache, lanes=config.rate.lanes, data_bits=config.data_bits)
    described = {"layers": [0, 1], "context": CONTEXT, "tokens": STEPS}
    write(folder, stream, script, described, {})
    return load(folder, stream)


def test_packed_model(tmp_path, seed):
    pack = packed(tmp_path)
    params = {"parts": steps.parts(pack, SMALL), "base": steps.BASE, "latency": 7}
    block = MillionAttention(SMALL)
    work = simulate(block, "tb.million.tb_replay", params=params, seed=seed)
    made = json.loads((work / "replay.json").read_text())["parts"]
    statuses = made["steps"]["statuses"]
    ops = [op for op, _ in statuses]
    assert [ops.count(op) for op in (Op.LOAD, Op.APPEND, Op.ATTEND)] == [2 * STEPS] * 3
    cycles = steps.step_cycles(statuses, 2)
    assert len(cycles) == STEPS
    assert min(cycles) > 0


@pytest.mark.parametrize("kind", ["attend", "encoder"])
def test_trains(kind, seed, monkeypatch):
    """Those that ``senbazuru.runs.million_rates`` measures."""
    for name, number in (("PREFILLS", 3), ("PAIRS", 2), ("_RESTORES", 6)):
        monkeypatch.setattr(trains, name, number)
    if kind == "attend":
        parts = trains.attend_parts(SMALL, [4, 17])
        names = ["restore 4", "attend 4", "restore 10", "restore 16", "restore 17", "attend 17"]
    else:
        parts = trains.encoder_parts(SMALL, 12)
        names = ["restore", "prefill", "busy 0", "idle 0", "busy 1", "idle 1"]
    assert [part["name"] for part in parts] == names
    params = {"parts": parts, "base": steps.BASE, "latency": 3}
    work = simulate(MillionAttention(SMALL), "tb.million.tb_replay", params=params, seed=seed)
    made = json.loads((work / "replay.json").read_text())["parts"]
    if kind == "encoder":
        cycles, number = trains.train_cycles(made["prefill"], Op.PREFILL)
        assert number == 2
        for name in ("busy", "idle"):
            assert 0 < trains.lone_cycles(made, name) < cycles * 9


def test_keys_in_codes(seed):
    """``past_keys`` is what golden has in codes."""
    for window in ((2, 3, 4), (1, 0, 3), (0, 0, 0)):
        sinks, keep, block = window
        shape = WindowShape(sinks=sinks, keep=keep, block=block)
        cache = dataclasses.replace(SMALL.cache, window=shape)
        config = dataclasses.replace(SMALL, cache=cache)
        train = Parts(config)
        generator = torch.Generator().manual_seed(seed)
        train.load(0, random_books(config, generator))
        sequence = train.open()
        shape = (2, cache.head.heads, cache.pq.head_dim)
        for _ in range(9):
            train.prefill(sequence, 0, *some_words(generator, *shape))
        for step in range(12):
            train.append(sequence, 0, *some_words(generator, *shape))
            past = train.cache.layers[sequence, 0].past
            assert steps.past_keys(cache.window, 9, step) == past
