"""OakenAttentionArray against golden.oaken.attention_array: every word, every status.

Shown to fail, each with one fault in the block:

- an APPEND given during another op, or another op during an APPEND; APPENDs one at a time;
- the status of the last engine at fault, of a request or of an attend; that of the first engine;
- ``last`` of the user's vector in that of an engine; an engine's queries one word short;
- ``o.last`` with each engine's words; ``void`` lost; a void word that ends an engine's turn;
- ``attended`` before the last word; the greatest result; a result that comes with a status;
- free pages of the first engine; page 0 of the second engine at 0;
- outputs that wait in their engine for their turn;
- with sinks, an engine's queries without the beats of its sinks.

With ``forks`` also those of docs/decisions/0338-prefixes-are-shared.md.
"""

import dataclasses

import pytest

from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.vectors.attention import random_script
from golden.oaken.vectors.attention_array import ArrayScript
from hdl.oaken.attention_array import OakenAttentionArray, OakenAttentionArrayConfig
from hdl.oaken.attention_config import OakenAttentionConfig
from hdl.oaken.kv_engine import OakenKvEngineConfig
from hdl.oaken.mmu import PagingMmuConfig
from tb.oaken.support.array_scripts import (
    errors_script,
    fork_errors_script,
    fork_full_script,
    full_script,
    long_script,
    order_script,
)
from tb.oaken.support.attention_scripts import (
    beside_script,
    between_script,
    flow_script,
    fork_script,
    lengths_script,
    rates_script,
)
from tb.oaken.test_attention import with_rules
from tb.simulate.run import simulate

CONFIGS = {
    "small": OakenAttentionArray.configs["small"],
    "three": OakenAttentionArrayConfig(  # of two groups each
        engines=3,
        part=OakenAttentionConfig(
            engine=OakenKvEngineConfig(
                mmu=PagingMmuConfig(
                    cache=CacheConfig(
                        kv=KvShape(heads=2, head_dim=16, block=16, order="token", groups=2),
                        sequences=2, layers=1, pages=40, page_bytes=256, max_tokens=20,
                    ),
                    data_bits=64, burst_beats=256, outstanding=1, reads=1, appends=1,
                    token_beats=8,
                ),
                lanes=16, queue=2,
            ),
            queries=3, macs=48, width=16,
        ),
    ),
    "smollm2": OakenAttentionArrayConfig(  # with tables of a few pages
        engines=3,
        part=OakenAttentionConfig(
            engine=OakenKvEngineConfig(
                mmu=PagingMmuConfig(
                    cache=CacheConfig(
                        kv=KvShape(heads=1, head_dim=64, order="token"),
                        sequences=2, layers=1, pages=40, max_tokens=512,
                    ),
                    data_bits=512,
                ),
                lanes=64,
            ),
            queries=3, macs=192,
        ),
    ),
}  # fmt: skip

FORKS = OakenAttentionArrayConfig(  # sequences share pages
    engines=2,
    part=OakenAttentionConfig(
        engine=OakenKvEngineConfig(
            mmu=PagingMmuConfig(
                cache=CacheConfig(
                    kv=KvShape(heads=1, head_dim=32, block=16, order="token"),
                    sequences=4, layers=2, pages=64, page_bytes=256, max_tokens=24, forks=True,
                ),
                data_bits=128, burst_beats=8, outstanding=4, reads=4, appends=2,
                token_beats=16,
            ),
            lanes=16,
        ),
        queries=2, macs=16, width=8,
    ),
)  # fmt: skip

RULES = {  # with windows, caps and sinks
    f"{name}_rules": dataclasses.replace(
        CONFIGS[name], part=with_rules(CONFIGS[name].part, windows=True, caps=True, sinks=True)
    )
    for name in ("small", "three")
}
CONFIGS |= RULES

LENGTHS = {"small": (1, 8, 40), "three": (1, 8, 20), "smollm2": (1, 8, 64, 128)}
KEPT_UP = {"small": (1, 2), "three": (), "smollm2": (1, 2, 20, 40)}  # latencies of memory
for table in (LENGTHS, KEPT_UP):
    table.update({name: table[name.partition("_")[0]] for name in RULES})


@pytest.mark.telling("small", "three", "three_rules")
@pytest.mark.parametrize("name", CONFIGS)
def test_attention_array(name, seed):
    config = CONFIGS[name]
    scripts = {
        "random": random_script(config, seed, 12, make=ArrayScript),
        "long": long_script(config, seed),
        "beside": beside_script(config, seed, ArrayScript),
        "order": order_script(config, seed),
        "rates": rates_script(config, seed, LENGTHS[name], (1, 2, 5), ArrayScript),
    }
    directed = {"errors": errors_script(config, seed)}
    if config.cache.max_tokens <= 40:
        directed["between"] = between_script(config, seed, ArrayScript)
        directed["lengths"] = lengths_script(config, seed, ArrayScript)
    if name.startswith("small"):
        directed["full"] = full_script(config, seed)
    attend(config, seed, scripts, directed, KEPT_UP[name])


def attend(config, seed, scripts, directed, kept_up=()):
    before, runs = flow_script(config, seed, ArrayScript)
    params = {
        "scripts": scripts | directed, "directed": list(directed), "before": before,
        "runs": runs, "latencies": (1, 2, 20, 40), "kept_up": kept_up,
    }  # fmt: skip
    simulate(OakenAttentionArray(config), "tb.oaken.tb_attention_array", params=params, seed=seed)


def test_sequences_share_pages(seed):
    """Children have one number in all engines, and none where a FORK fails in some."""
    scripts = {
        "random": random_script(FORKS, seed, 8, make=ArrayScript),
        "long": long_script(FORKS, seed),
        "beside": beside_script(FORKS, seed, ArrayScript),
        "order": order_script(FORKS, seed),
    }
    directed = {
        "forks": fork_script(FORKS, seed, ArrayScript),
        "fork_errors": fork_errors_script(FORKS, seed),
        "fork_full": fork_full_script(FORKS, seed),
    }
    attend(FORKS, seed, scripts, directed)
