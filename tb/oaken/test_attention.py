"""OakenAttention against golden.oaken.attention: every word of every attend, every status."""

import pytest

from golden.attention.format import Status as JobStatus
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
    lengths_script,
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
}  # fmt: skip
REFUSED = (Status.BAD_REQUEST, Status.SEQUENCE_UNKNOWN, Status.BEYOND_LENGTH, Status.EMPTY)
FAILED = (Status.SLAVE_ERROR, Status.DECODE_ERROR, Status.MALFORMED)


@pytest.mark.parametrize("name", CONFIGS)
def test_attention(name, seed):
    config = CONFIGS[name]
    errors, statuses, results = errors_script(config, seed)
    assert {*REFUSED, *FAILED, Status.OK} <= statuses
    assert {JobStatus.OK, JobStatus.NONFINITE, JobStatus.OVERFLOW} <= results
    before, runs = flow_script(config, seed)
    scripts = {
        "random": random_script(config, seed, 20),
        "errors": errors,
        "between": between_script(config, seed),
        "lengths": lengths_script(config, seed),
        "beside": beside_script(config, seed),
    }
    params = {"scripts": scripts, "before": before, "runs": runs}
    simulate(OakenAttention(config), "tb.oaken.tb_attention", params=params, seed=seed)
