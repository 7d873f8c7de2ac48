"""MillionAttention against golden.million.cache.Cache: every output word, every status.

Shown to fail: with the 35 faults that docs/blocks/million_attention.md lists, one at a time; with a
bit of ``base`` stuck at 0.
"""

import functools

import pytest

from golden.million.config import HeadShape, MillionConfig, PqShape, RateShape, WindowShape
from golden.million.format import Op, Status
from golden.million.vectors.script import random_script, rates_script
from hdl.million.attention import MillionAttention, MillionAttentionConfig
from tb.million.support.failures import failures_script, wide_script
from tb.million.support.statuses import grown_script, statuses_script
from tb.simulate.run import simulate

CONFIGS = {
    "flush": MillionAttentionConfig(
        cache=MillionConfig(
            pq=PqShape(head_dim=16, subspaces=4, bits=4),
            head=HeadShape(heads=2, group=3),
            window=WindowShape(sinks=2, keep=0, block=4),
            sequences=3, layers=2, max_tokens=24, pages=18, page_bytes=256, scope_heads=True,
        ),
        rate=RateShape(macs=8, keys=2, queries=2, window_macs=8, lanes=8),
        data_bits=64, burst_beats=4, outstanding=4, reads=4, beats=16,
    ),
    "sliding": MillionAttentionConfig(
        cache=MillionConfig(
            pq=PqShape(head_dim=16, subspaces=16, bits=5),
            head=HeadShape(heads=3, group=1),
            window=WindowShape(sinks=0, keep=3, block=2),
            sequences=3, layers=1, max_tokens=24, pages=16, page_bytes=256, scope_layers=False,
        ),
        rate=RateShape(macs=4, keys=1, queries=1, window_macs=16, lanes=4),
        data_bits=128, burst_beats=8, outstanding=2, reads=2, beats=4,
    ),
    "none": MillionAttentionConfig(
        cache=MillionConfig(
            pq=PqShape(head_dim=32, subspaces=16, bits=6),
            head=HeadShape(heads=1, group=5),
            window=WindowShape(sinks=1, keep=0, block=0),
            sequences=2, layers=3, max_tokens=60, pages=23, page_bytes=256,
        ),
        rate=RateShape(macs=16, keys=4, queries=4, window_macs=8, lanes=16),
        data_bits=256, burst_beats=16, outstanding=8, reads=8, beats=32,
    ),
    "apart": MillionAttentionConfig(
        cache=MillionConfig(
            pq=PqShape(head_dim=16, subspaces=8, bits=4),
            head=HeadShape(heads=2, group=2),
            window=WindowShape(sinks=2, keep=1, block=3),
            sequences=3, layers=2, max_tokens=32, pages=18, page_bytes=256,
        ),
        rate=RateShape(macs=8, keys=1, queries=2, window_macs=16, lanes=8),
        data_bits=64, burst_beats=4, outstanding=4, reads=6, beats=8, kv_apart=True,
    ),
}  # fmt: skip
WIDE = MillionAttentionConfig(
    cache=MillionConfig(
        pq=PqShape(head_dim=16, subspaces=4, bits=12),
        head=HeadShape(heads=1, group=2),
        window=WindowShape(sinks=1, keep=0, block=2),
        layers=1, max_tokens=16, pages=16, page_bytes=256,
    ),
    rate=RateShape(macs=4, keys=1, queries=2, window_macs=4, lanes=4),
    data_bits=64, burst_beats=4, outstanding=4, reads=4, beats=16,
)  # fmt: skip


def _odd(pq, rate, group, block) -> MillionAttentionConfig:
    return MillionAttentionConfig(
        cache=MillionConfig(
            pq=pq, head=HeadShape(heads=2, group=group),
            window=WindowShape(sinks=2, keep=0, block=block),
            layers=1, max_tokens=24, pages=16, page_bytes=1024,
        ),
        rate=rate, data_bits=256, burst_beats=4, outstanding=4, reads=8, beats=16,
    )  # fmt: skip


_D80, _D16 = (PqShape(head_dim=d, subspaces=d // 4, bits=4) for d in (80, 16))
_D128 = PqShape(head_dim=128, subspaces=16, bits=4)
# By slowest stage: sizes, tokens in codes.
ODD = {
    "finish": (_odd(_D80, RateShape(macs=16, queries=3, window_macs=16, lanes=8), 3, 4), 3),
    "window": (_odd(_D80, RateShape(macs=16, queries=3, window_macs=4, lanes=8), 3, 4), 3),
    "window, few": (_odd(_D80, RateShape(macs=16, queries=3, window_macs=4, lanes=8), 5, 0), 3),
    "window, wide": (_odd(_D128, RateShape(macs=128, queries=4, window_macs=8), 4, 3), 3),
    "output": (_odd(_D16, RateShape(macs=16, queries=2, window_macs=16, lanes=4), 2, 4), 0),
    "output, codes": (_odd(_D16, RateShape(macs=16, queries=2, window_macs=16, lanes=8), 2, 4), 3),
    "output, one": (_odd(_D16, RateShape(macs=16, queries=1, window_macs=16, lanes=4), 3, 0), 0),
}


@functools.cache
def scripts(name, seed):
    config = CONFIGS[name]
    return {
        "random": random_script(config, seed, 10),
        "short": random_script(config, seed + 1, 4),
        "statuses": statuses_script(config, seed)[0],
        "grown": grown_script(config, seed),
        "failures": failures_script(config, seed),
        "rates": rates_script(config, seed),
    }


@pytest.mark.telling("flush")
@pytest.mark.parametrize("name", CONFIGS)
def test_attention(name, seed):
    params = {"scripts": scripts(name, seed)}
    simulate(MillionAttention(CONFIGS[name]), "tb.million.tb_attention", params=params, seed=seed)


@pytest.mark.telling("window, few")
@pytest.mark.parametrize("name", ODD)
def test_slowest_stage(name, seed):
    config, codes = ODD[name]
    stages = config.stages
    assert max(stages, key=lambda stage: stages[stage]) == name.split(",")[0]
    script = rates_script(config, seed, codes=codes, attends=14)
    params = {"scripts": {"rates": script}, "stages": stages}
    block = MillionAttention(config)
    simulate(block, "tb.million.tb_attention", params=params, seed=seed, testcase="long_train")


def test_widest_codebooks(seed):
    """12-bit codes: the tables of a group take 32,768 cycles, in which no stream moves."""
    params = {"scripts": {"wide": wide_script(WIDE, seed)}}
    block = MillionAttention(WIDE)
    simulate(block, "tb.million.tb_attention", params=params, seed=seed, testcase="wide")


def test_every_status_is_asked_for(seed):
    found = set().union(*(statuses_script(CONFIGS[name], seed)[1] for name in CONFIGS))
    assert {status for _, status in found} == set(Status)
    assert {status for op, status in found if op == Op.ATTEND} == set(Status) - {
        Status.TABLE_FULL, Status.TOKEN_ORDER, Status.LENGTH_LIMIT, Status.OUT_OF_PAGES,
    }  # fmt: skip
