"""MillionAttendControl against golden.million.groups: groups, reads, and their cycles.

Shown to fail:

- ``queries`` of the last group of a head; ``last`` of a head, or in each group of the last head;
- reads of no code, of a refused ATTEND, or V before the first group;
- V of this head, of the next one, or none at the end; a tag of K for V; bits of ``token``;
- heads, windows or groups that stay from the ATTEND before;
- the window of head 0 for all; a bit of ``slot``;
- slopes of a refused ATTEND awaited; slopes of the group before;
- ``split``, or a read, that repeats or does not wait.
"""

import numpy as np
import pytest

from golden.config import ConfigError
from golden.million.config import NAMED, HeadShape, MillionConfig, PqShape, RateShape, WindowShape
from golden.million.groups import groups, reads
from golden.paging.format import Op
from golden.words import layout_word
from hdl.million.attend_control import MillionAttendControl, MillionAttendControlConfig
from hdl.million.layouts import slopes_layout
from hdl.paging.layouts import REQUEST_LAYOUT
from tb.simulate.run import simulate

SMALL = PqShape(head_dim=16, subspaces=4, bits=4)


def control(pq, heads, group, queries, **cache):
    return MillionAttendControlConfig(
        cache=MillionConfig(pq=pq, head=HeadShape(heads=heads, group=group), **cache),
        rate=RateShape(macs=8, window_macs=8, lanes=8, queries=queries),
    )


CONFIGS = {
    "default": MillionAttendControlConfig(),
    "smollm2": control(NAMED["4b_64"], 3, 3, 3, layers=3),
    "small": control(SMALL, 2, 3, 2, layers=2),  # groups of two and of one
    "one": control(SMALL, 1, 1, 1, layers=1, window=WindowShape(sinks=0, keep=0, block=0)),
    "one_at_a_time": control(SMALL, 3, 5, 1, layers=2, sequences=256),
    "two_halves": control(SMALL, 5, 16, 8, sequences=2, layers=256),
}
KEYS = (0, 1, 32768, 17, 0)


def attend_vectors(block, seed):
    """Discarded ATTENDs and such without codes, alone and in a row; all fields random."""
    config = block.config
    cache = config.cache
    heads, size, queries = cache.head.heads, cache.head.group, config.rate.queries
    rng = np.random.default_rng([seed, 144])
    parts = groups(heads, size, queries)
    words = {name: [] for name in ("job", "slopes", "split", "group", "read")}
    packets = {name: [] for name in words}
    discards = []
    for n in range(40):
        discard = int(n in (3, 4, 6) or (rng.random() < 0.2 and n > 6))
        common = {
            name: int(rng.integers(0, 1 << config.job_layout[name].width))
            for name in (*config.tokens_parts, "entries")
        }
        common |= {name: int(rng.integers(-8, 16)) for name in ("exponent_k", "exponent_v")}
        common["keys"] = KEYS[n % 5] if n % 3 else int(rng.integers(1, 32769))
        sequence, layer = (int(rng.integers(0, n)) for n in (cache.sequences, cache.layers))
        slot = (sequence * cache.layers + layer) * heads
        words["job"].append(
            layout_word(
                config.job_layout, discard=discard, sequence=sequence, layer=layer, slot=slot,
                **common,
            )
        )  # fmt: skip
        for part in parts:
            words["split"].append(
                layout_word(config.splitter.job_layout, queries=part.queries, discard=discard)
            )
            if discard:
                continue
            slopes = {
                "slope": rng.integers(0, 1 << 16, queries).tolist(),
                "bad": int(rng.integers(0, 1 << queries)),
            }
            words["slopes"].append(layout_word(slopes_layout(queries), **slopes))
            words["group"].append(
                layout_word(
                    config.group_layout, head=part.head, queries=part.queries,
                    slot=slot + part.head, last=int(part.last), **common, **slopes,
                )
            )  # fmt: skip
        if not discard and common["keys"]:
            words["read"] += [
                layout_word(
                    REQUEST_LAYOUT, op=Op.READ, tag=each.kv, sequence=sequence, layer=layer,
                    kv=each.kv, head=each.head, heads=1, token=common["keys"],
                )
                for each in reads(heads, size, queries)
            ]  # fmt: skip
        discards.append((discard, common["keys"]))
        for name, found in words.items():
            packets[name].append(len(found))
    vectors = {
        name: np.array([list(w.to_bytes(256, "little")) for w in found], dtype=np.uint8)
        for name, found in words.items()
    }
    return vectors, {"packets": packets, "cycles": cycles(block.timing, len(parts), discards)}


def cycles(stated, parts, jobs):
    """A step per cycle: job; split, K, V of the group before, slopes, group; V of the last."""
    found = {name: [] for name in ("job", "slopes", "split", "group", "read")}
    at = 0
    for discard, keys in jobs:
        found["job"].append(at)
        at += 1
        for part in range(parts):
            found["split"].append(at)
            if not discard:
                found["read"] += [at + 1] * bool(keys) + [at + 2] * bool(keys and part)
                found["group"].append(at - 1 + stated.latency)
                found["slopes"].append(found["group"][-1] - stated.delay("from slopes to group"))
            at += stated.delay("per refused group") if discard else int(stated.interval)
        found["read"] += [at] * bool(keys and not discard)
        at += stated.delay("per ATTEND in addition") - 1
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_attend_control(name, seed):
    block = MillionAttendControl(CONFIGS[name])
    vectors, params = attend_vectors(block, seed)
    simulate(block, "tb.million.tb_attend_control", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": RateShape(macs=256)}, "RateShape.macs must be a divisor of head_dim = 128, not"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match=message):
        MillionAttendControlConfig(**wrong)
