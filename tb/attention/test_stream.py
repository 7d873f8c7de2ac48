"""AttentionStream against golden.attention.stream: runs of jobs, their outputs and statuses.

Shown to fail with:

- a job of max_rows + 1, or of no row, taken as any; V of a refused job taken, or its rows counted
- a run without its end; K of two jobs without a gap, a gap after every stretch of rows
- an empty stretch that stays open, a beat taken in its first turn
- a bad word of q only in the last beat, kept for the next job, or of the job before or after
- of head 0 for all: words of q, weights, queries of outputs, bad words; heads in the other order
- a row complete, or its weights taken, with its first head
- an infinity recognised by four bits of its exponent; the last lane of a row not looked at
- queries of one job held instead of two, or of three; queries released by V
- words of q, or weights, of the first turn for all; scores in the other order of turns
- V begun without room, or without its weights; room before the last sum
- ``error`` kept for the next job, or of the last row lost, or of K not seen; faults of V as K's
- an element of the next lane; a product, a score, a weighted value or a sum one bit short
- a complement without its one, or with that of the next product, in scores or sums
- the score of the row before, the sums of the job before, the first sums for all
- NaN, or the reciprocal, of query 0 for all; a query with a bad word weighed
- a fault of K that spares a query, NaN in V not seen, an overflow of one query not reported
- bad data before a wrong length, a bad word of q not reported
- a status before the last output; sums, or a total, taken for a refused job
- sinks left out; those of the other job held; sinks of three jobs taken
- a sink of NaN not reported, or +infinity taken as any, or -infinity as a fault
- the cap of the first job for all; that of a stretch of V for the scores under way
"""

import numpy as np
import pytest

from golden.attention.vectors.stream import run_vectors
from golden.config import ConfigError
from hdl.attention.stream import AttentionStream, AttentionStreamConfig
from tb.simulate.run import simulate


def sized(head_dim, queries, lanes, macs, width, max_rows, heads=1, **rules):
    return AttentionStreamConfig(
        heads=heads, head_dim=head_dim, queries=queries, lanes=lanes, macs=macs, width=width,
        max_rows=max_rows, **rules,
    )  # fmt: skip


CONFIGS = {
    "small": sized(32, 2, 16, 16, 8, 64),
    "one_query": sized(16, 1, 16, 16, 16, 30),
    "all_at_once": sized(16, 3, 16, 48, 16, 33),
    "two_of_four": sized(48, 4, 16, 32, 4, 40),
    "two_heads": sized(32, 2, 16, 16, 8, 40, heads=2),
    "smollm2_heads": sized(64, 3, 64, 192, 16, 60, heads=3),
    "smollm2": sized(64, 3, 64, 192, 16, 100),
    "llama2": sized(128, 1, 64, 64, 16, 90),
    "longest": sized(256, 8, 32, 32, 16, 20),
    "many_rows": sized(16, 1, 16, 16, 16, 3000),
}
RULES = {
    "both": sized(32, 2, 16, 16, 8, 64, caps=True, sinks=True),
    "caps": sized(16, 1, 16, 16, 16, 30, caps=True),
    "sinks": sized(16, 3, 16, 48, 16, 33, sinks=True),
    "both_two_of_four": sized(48, 4, 16, 32, 4, 40, caps=True, sinks=True),
    "both_two_heads": sized(32, 5, 16, 16, 4, 40, heads=2, caps=True, sinks=True),
    "gpt_oss": sized(64, 8, 64, 128, 16, 60, heads=4, sinks=True),
    "gemma2": sized(256, 2, 64, 64, 16, 40, heads=2, caps=True),
}
RUNS = {
    "smollm2": 14,
    "smollm2_heads": 12,
    "llama2": 16,
    "longest": 11,
    "many_rows": 1,
    "gpt_oss": 11,
    "gemma2": 11,
}  # of the others: 24


@pytest.mark.telling("small", "all_at_once", "two_of_four", "two_heads")
@pytest.mark.parametrize("name", CONFIGS)
def test_stream(name, seed):
    check(name, CONFIGS[name], seed)


@pytest.mark.telling("both", "both_two_of_four")
@pytest.mark.parametrize("name", RULES)
def test_caps_and_sinks(name, seed):
    """Each job has a cap or none, and sinks of all kinds."""
    check(name, RULES[name], seed)


def check(name, config, seed):
    words, params = run_vectors(config, np.random.default_rng([seed, 85]), RUNS.get(name, 24))
    simulate(
        AttentionStream(config),
        "tb.attention.tb_stream",
        params={"words": words, **params},
        seed=seed,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"head_dim": 96}, "head_dim must be a multiple of lanes = 64, not 96"),
        ({"macs": 96}, "macs must be lanes = 64 times a divisor of queries = 1, not 96"),
        (
            {"queries": 8, "macs": 512, "heads": 5},
            "heads must be at most 4 with queries = 8",
        ),
        ({"queries": 3, "macs": 128}, "macs must be lanes = 64 times a divisor of queries = 3"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match=message):
        AttentionStreamConfig(**wrong)
