"""KllmEntryWalk against golden.kllm.walks.entry_beats.

Shown to fail with:

- mask bits beyond the length, or the position of one element in a beat without its low bit
- outliers of integers
- the first beat of a row for all of them
- direct or void work that reads the slot
- void work with values or outliers
- a walk of groups that ends after the low eleven bits of ``groups``, or of tokens after seven
- a walk of rows that ends after the low nine bits of ``rows``
"""

import dataclasses

import numpy as np
import pytest
from amaranth.lib import data

from golden.kllm.walks import MatmulWork, entry_beats, entry_requests
from golden.words import alternating
from hdl.kllm.engine import SLOT_ROW_BITS, entry_row_layout
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.matmul.entries import KllmEntryWalk
from hdl.kllm.matmul.payloads import matmul_work_layout
from tb.kllm.support.walks import Bench, rate, walk

CONFIGS = {
    "elements_16": KllmPeLaneConfig(columns=16, k_max=16383),
    "elements_4": KllmPeLaneConfig(columns=16, k_max=256, elements=4, bits_a=2, integer_bits=4),
    "no_integers": KllmPeLaneConfig(columns=16, k_max=256, elements=8, bits_a=3, integer_bits=0),
}
SLOTS, ROWS, DELAY = 256, 8, 3
LONG_SLOT = 255  # has the rows of the longest vector


def works(rng, config) -> tuple[list[MatmulWork], list[MatmulWork]]:
    """Works of all flows, and the longest ones."""

    def work(length, **given):
        fields = {"slot": int(rng.integers(0, SLOTS - 3)), "tokens": 1, "groups": 1, "direct": 0,
                  "integer": 0} | given  # fmt: skip
        beats = -(-length // config.elements)
        return MatmulWork(length=length, rows=-(-length // 16), beats=beats, **fields)

    found = [work(n) for n in (1, 16, 17, 39)]
    found += [work(40, direct=1), work(3, direct=1, tokens=2, groups=2)]
    found += [work(33, void=1, tokens=2, groups=2), work(18, void=1, direct=1)]
    if config.integer_bits:
        found += [work(35, integer=1, void=1)]
        found += [work(35, integer=1, groups=2)]
    # Of any length that the lane takes, and the longest: each bit of a position counts.
    longest = min(config.k_max, config.elements << 10)
    found += [work(int(longest ** rng.uniform(0.5, 1)), direct=1) for _ in range(6)]
    # Slot 0 has outliers alone: each element but 0 is the first beyond the length once.
    found += [work(n + 1, slot=0) for n in range(config.elements)]
    found += [work(n + 1, slot=LONG_SLOT) for n in alternating(longest - 1)]
    found += [work(longest, direct=1), work(21, tokens=3, groups=2), work(120, tokens=2)]
    most = (1 << 16) // config.columns - 1  # groups of a machine of one lane
    largest = work(longest, slot=LONG_SLOT)
    return found, [largest, work(9, groups=most), work(17, slot=0, tokens=255)]


@pytest.mark.parametrize("name", CONFIGS)
def test_entry_walk(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 92])
    entry = entry_row_layout(config.bits_a, config.integer_bits)
    bits = max(config.bits_a, config.integer_bits)

    def mask(slot: int) -> int:
        return int(rng.integers(0, 1 << 16)) if slot else 0xFFFF

    slots = [
        [
            (rng.integers(0, 1 << bits, 16).tolist(), mask(slot))
            for _ in range(ROWS if slot < LONG_SLOT else -(-config.k_max // 16))
        ]
        for slot in range(SLOTS)
    ]
    request = data.StructLayout({"slot": 8, "row": SLOT_ROW_BITS})
    answers = {
        request.const({"slot": slot, "row": row}).as_bits(): entry.const(
            {"value": values, "outlier": mask}
        ).as_bits()
        for slot, rows in enumerate(slots)
        for row, (values, mask) in enumerate(rows)
    }

    def made(work: MatmulWork) -> dict:
        beats = [
            config.a_layout.const({"value": values, "outlier": mask, "last": int(last)}).as_bits()
            for values, mask, last in entry_beats(work, slots, config.elements)
        ]
        requests = [
            request.const({"slot": slot, "row": row}).as_bits()
            for slot, row in entry_requests(work)
        ]
        fields = matmul_work_layout.const(dataclasses.asdict(work)).as_bits()
        return walk({"work": fields}, {"entry_request": requests, "a": beats})

    walks, longest = ([made(work) for work in part] for part in works(rng, config))
    timing = KllmEntryWalk.timing
    first = timing.delay("from start to the first request") - 1 + DELAY + timing.latency
    direct = timing.delay("from start to the first beat, if direct") - 1

    def beats(number: int, start: int) -> dict:
        return {"a": range(start, start + len(walks[number]["sinks"]["a"]))}

    Bench(
        clients={"entry_request": "entries"},
        answers={"entry_request": answers},
        walks=walks,
        longest=longest,
        rates=[
            rate(len(walks) - 1, DELAY, beats(len(walks) - 1, first)),
            rate(4, DELAY, beats(4, direct)),
        ],
    ).run(KllmEntryWalk(config), seed)
