"""OakenAttention against golden.oaken.attention: every word of every attend, every status.

Shown to fail, each with one fault in the block:

- V requested although its K was refused, or with the rows of another K;
- tokens of a READ taken for those of another one;
- a V with another number of rows than K taken as sound, in a run or at its end;
- words of a READ that were discarded end the next one, or are not discarded;
- the status of V before that of K; of two failed READs, or of the attend before;
- every failed attend void; words that do not wait for the status of V;
- a result that stays for the next attend, or that comes with a status;
- a READ of the user carried out; idle while an attend waits;
- groups in the other order, or V of one group with K of another (``two_groups``);
- the status of one group only, ``last`` in each group, a run that ends with each group;
- NaN that stays for the next group, that only K or only V gives, or that SLAVE_ERROR does not.

With ``forks`` also those of docs/decisions/0338-prefixes-are-shared.md.
"""

import dataclasses

import pytest

from golden.attention.format import Status as JobStatus
from golden.config import ConfigError
from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.vectors.attention import random_script
from golden.paging.format import Status
from hdl.oaken.attention import OakenAttention, OakenAttentionConfig
from hdl.oaken.kv_engine import OakenKvEngineConfig
from hdl.oaken.mmu import PagingMmuConfig
from tb.oaken.support.attention_scripts import (
    beside_script,
    between_script,
    errors_script,
    flow_script,
    fork_script,
    lengths_script,
    races_script,
    rates_script,
)
from tb.simulate.run import simulate

CONFIGS = {
    "small": OakenAttention.configs["small"],
    "two_groups": OakenAttentionConfig(
        engine=OakenKvEngineConfig(
            mmu=PagingMmuConfig(
                cache=CacheConfig(
                    kv=KvShape(heads=4, head_dim=16, block=16, order="token", groups=2),
                    sequences=2, layers=1, pages=40, page_bytes=256, max_tokens=20,
                ),
                data_bits=64, burst_beats=256, outstanding=1, reads=1, appends=1, token_beats=8,
            ),
            lanes=16, queue=2,
        ),
        queries=3, macs=48, width=16,
    ),
    "smollm2": OakenAttentionConfig(  # with tables of a few pages, which take few cycles to set up
        engine=OakenKvEngineConfig(
            mmu=PagingMmuConfig(
                cache=CacheConfig(
                    kv=KvShape(heads=3, head_dim=64, order="token"),
                    sequences=2, layers=1, pages=80, max_tokens=512,
                ),
                data_bits=512,
            ),
            lanes=64,
        ),
        queries=3, macs=192,
    ),
}  # fmt: skip

FORKS = OakenAttentionConfig(
    engine=OakenKvEngineConfig(
        mmu=PagingMmuConfig(
            cache=CacheConfig(
                kv=KvShape(heads=2, head_dim=32, block=16, order="token"),
                sequences=4, layers=2, pages=200, page_bytes=256, max_tokens=24, forks=True,
            ),
            data_bits=128, burst_beats=8, outstanding=4, reads=4, appends=2, token_beats=16,
        ),
        lanes=16,
    ),
    queries=2, macs=16, width=8,
)  # fmt: skip


def with_rules(config: OakenAttentionConfig, **rules: bool) -> OakenAttentionConfig:
    """The same with windows, caps or sinks."""
    mmu = config.engine.mmu
    mmu = dataclasses.replace(mmu, cache=dataclasses.replace(mmu.cache, **rules))
    return dataclasses.replace(config, engine=dataclasses.replace(config.engine, mmu=mmu))


def longer(tokens: int) -> OakenKvEngineConfig:
    """The default engine with longer sequences."""
    engine = OakenAttentionConfig().engine
    cache = dataclasses.replace(engine.cache, max_tokens=tokens)
    return dataclasses.replace(engine, mmu=dataclasses.replace(engine.mmu, cache=cache))


REFUSED = (Status.BAD_REQUEST, Status.SEQUENCE_UNKNOWN, Status.BEYOND_LENGTH, Status.EMPTY)
FAILED = (Status.SLAVE_ERROR, Status.DECODE_ERROR, Status.MALFORMED)
RESULTS = (JobStatus.OK, JobStatus.NONFINITE, JobStatus.OVERFLOW)
LENGTHS = {"small": (1, 2, 6, 40), "two_groups": (1, 8, 20), "smollm2": (1, 8, 16, 64)}
KEPT_UP = {"small": (1, 2), "two_groups": (), "smollm2": (1, 2, 20, 40)}  # latencies of memory


@pytest.mark.telling("small", "two_groups")
@pytest.mark.parametrize("name", CONFIGS)
def test_attention(name, seed):
    check_scripts(CONFIGS[name], seed, LENGTHS[name], KEPT_UP[name])


@pytest.mark.parametrize("name", ["small", "two_groups"])
def test_windows(name, seed):
    """Attends see all tokens or the latest ones; each script has both, at random.

    Shown to fail: a row too many skipped; V's window of another K; rows that a window leaves out
    counted in the job. No window taken for one of no rows; the rows of the stretch before skipped
    once only.
    """
    check_scripts(with_rules(CONFIGS[name], windows=True), seed, LENGTHS[name], KEPT_UP[name])


@pytest.mark.telling("small", "two_groups")
@pytest.mark.parametrize("name", ["small", "two_groups", "smollm2"])
def test_caps_and_sinks(name, seed):
    """Attends with caps and sinks, or without them, and with windows; each job has its own sinks.

    Shown to fail: a cap that does not reach the job; that of the next attend.
    """
    config = with_rules(CONFIGS[name], windows=True, caps=True, sinks=True)
    check_scripts(config, seed, LENGTHS[name], KEPT_UP[name])


def check_scripts(config, seed, lengths, kept_up):
    errors, statuses, results = errors_script(config, seed)
    assert {*REFUSED, *FAILED, Status.OK} <= statuses
    assert set(RESULTS) <= results
    scripts = {
        "random": random_script(config, seed, 20),
        "errors": errors,
        "between": between_script(config, seed),
        "beside": beside_script(config, seed),
        "rates": rates_script(config, seed, lengths, (1, 2, 5)),
    }
    if config.cache.max_tokens <= 40:
        scripts["lengths"] = lengths_script(config, seed)
    if config.groups == 1 and config.cache.max_tokens <= 40:
        scripts["races"] = races_script(config, seed)
    attend(config, seed, scripts, kept_up)


def attend(config, seed, scripts, kept_up=()):
    before, runs = flow_script(config, seed)
    params = {
        "scripts": scripts, "before": before, "runs": runs, "latencies": (1, 2, 20, 40),
        "kept_up": kept_up,
    }  # fmt: skip
    simulate(OakenAttention(config), "tb.oaken.tb_attention", params=params, seed=seed)


def test_sequences_share_pages(seed):
    """Children of a prompt append and attend, and outlive it."""
    scripts = {"random": random_script(FORKS, seed, 12), "forks": fork_script(FORKS, seed)}
    attend(FORKS, seed, scripts)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"engine": OakenKvEngineConfig()}, "engine.mmu.cache.kv.order must be token, not 'head'"),
        ({"macs": 32}, "macs must be lanes = 64 times a divisor of queries = 1, not 32"),
        ({"queries": 8}, "heads must be at most 4 with queries = 8, not 8"),
        ({"engine": longer(32769)}, "engine.mmu.cache.max_tokens must be at most 32768, not 32769"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match=message):
        OakenAttentionConfig(**wrong)
