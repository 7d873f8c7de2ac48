"""OakenKvEngine against golden.oaken.kv_engine: every word read back, every status.

Shown to fail, each with one fault in the engine:

- thresholds of another READ, or of K for V;
- the MMU's tag of a READ;
- sparse records not skipped;
- own statuses of APPENDs lost or put before the page table's;
- MALFORMED lost, or put before the bus;
- the first head's status forgotten;
- READs without thresholds named BEYOND_LENGTH;
- THRESHOLDS taken with an infinity, not taken with -0, taken while open, refused after FREE, or
  taken while a vector is in flight;
- FREE and TRIM that wait for nothing;
- FREE and TRIM that count the APPENDs or READs that wait when they reach the front of their queue;
- more READs than places;
- long READs not split, windows split;
- starts that fall or outlive their sequence;
- a READ in pieces that is settled anew for each, or whose pieces do not wait for the first;
- vectors of refused APPENDs not discarded;
- idle while a request is under way;
- a bit of ``base`` stuck at 0 or at 1 (each test has another base);
- in order token: a READ of half a group taken, or of another group; records skipped twice;
- in order token: blocks that do not wait for their scales in a queue (full_rate).

Not found: TRIM or FREE let in between the pieces, a timing that these scripts do not meet.
"""

import functools

import pytest

from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.format import SCALE_BYTES
from golden.oaken.vectors.kv_script import (
    THRESHOLDS,
    Script,
    fp16,
    random_script,
    some_thresholds,
    vector,
)
from golden.paging.format import Op, Status
from hdl.oaken.kv_engine import OakenKvEngine, OakenKvEngineConfig
from hdl.oaken.mmu import PagingMmuConfig
from tb.oaken.support.overlap import overlap_script
from tb.simulate.run import simulate

SMALL = OakenKvEngineConfig(
    mmu=PagingMmuConfig(
        cache=CacheConfig(
            kv=KvShape(heads=4, head_dim=32, block=16),
            sequences=3, layers=2, pages=120, page_bytes=256, max_tokens=40,
        ),
        data_bits=128, burst_beats=8, outstanding=4, reads=2, appends=2,
        dense_beats=16, sparse_beats=16, scale_beats=8,
    ),
    lanes=8, scale_tokens=6, queue=3,
)  # fmt: skip
CONFIGS = {
    "small": SMALL,
    "one_head": OakenKvEngineConfig(
        mmu=PagingMmuConfig(
            cache=CacheConfig(
                kv=KvShape(heads=1, head_dim=64, block=64),
                sequences=2, layers=1, pages=24, page_bytes=512, max_tokens=25,
            ),
            data_bits=64, burst_beats=256, outstanding=1, reads=1, appends=1,
            dense_beats=40, sparse_beats=40, scale_beats=40,
        ),
        lanes=64, scale_tokens=4, queue=2,
    ),
    "three_heads": OakenKvEngineConfig(
        mmu=PagingMmuConfig(
            cache=CacheConfig(
                kv=KvShape(heads=3, head_dim=64, block=32),
                sequences=4, layers=2, pages=120, page_bytes=1024, max_tokens=60,
            ),
            data_bits=256, burst_beats=16, outstanding=8, reads=8, appends=4,
        ),
        lanes=16, scale_tokens=16, queue=4,
    ),
    "token": OakenKvEngineConfig(
        mmu=PagingMmuConfig(
            cache=CacheConfig(
                kv=KvShape(heads=4, head_dim=32, block=16, order="token", groups=2),
                sequences=3, layers=2, pages=52, page_bytes=512, max_tokens=40,
            ),
            data_bits=128, burst_beats=8, outstanding=4, reads=2, appends=2, token_beats=16,
        ),
        lanes=8, scale_tokens=6, queue=3,
    ),
    # Sequences share pages.
    "forks": OakenKvEngineConfig(
        mmu=PagingMmuConfig(
            cache=CacheConfig(
                kv=KvShape(heads=4, head_dim=32, block=16),
                sequences=4, layers=2, pages=260, page_bytes=256, max_tokens=40, forks=True,
            ),
            data_bits=128, burst_beats=8, outstanding=4, reads=2, appends=2,
            dense_beats=16, sparse_beats=16, scale_beats=8,
        ),
        lanes=8, scale_tokens=6, queue=3,
    ),
    "token_one_head": OakenKvEngineConfig(
        mmu=PagingMmuConfig(
            cache=CacheConfig(
                kv=KvShape(heads=1, head_dim=64, block=64, order="token"),
                sequences=2, layers=1, pages=24, page_bytes=512, max_tokens=25,
            ),
            data_bits=64, burst_beats=256, outstanding=1, reads=1, appends=1, token_beats=40,
        ),
        lanes=64, queue=2,
    ),
    "token_smollm2": OakenKvEngineConfig(
        mmu=PagingMmuConfig(
            cache=CacheConfig(
                kv=KvShape(heads=3, head_dim=64, order="token"),
                sequences=3, layers=2, pages=40, page_bytes=1024, max_tokens=60,
            ),
            data_bits=256, burst_beats=16, outstanding=8, reads=8, appends=4,
        ),
        lanes=16, queue=4,
    ),
    "token_wide": OakenKvEngineConfig(
        mmu=PagingMmuConfig(
            cache=CacheConfig(
                kv=KvShape(heads=3, head_dim=64, order="token"),
                sequences=3, layers=2, pages=40, page_bytes=1024, max_tokens=60,
            ),
            data_bits=512, burst_beats=16, outstanding=8, reads=8, appends=4,
        ),
        lanes=64, queue=4,
    ),
}  # fmt: skip
WHOLE = (0, 1 << 40)
FAILURES = ((2, Status.SLAVE_ERROR), (3, Status.DECODE_ERROR))  # of memory: RESP, status


def first_count(script, sequence, part, tokens):
    """Address and value of the count byte of the first block of a part of K of layer 0."""
    kv = script.config.cache.kv
    record = script.golden.records(sequence, 0, 0, 0)[part if kv.is_by_token else 2 * part + 1]
    at = SCALE_BYTES + kv.block // 2 if kv.is_by_token else 0
    return script.count_place(sequence, 0, 0, part, tokens), record[at]


def statuses_script(config, seed):
    """Every status; after each, requests that are carried out and data that are still there."""
    script = Script(config, seed)
    cache = config.cache
    kv, rng = cache.kv, script.rng
    other = cache.layers - 1, 1  # (layer, K or V) without thresholds

    # Nothing is open: thresholds wrong in every way, then right.
    nan, infinite, ok = 0x7E00, 0x7C00, THRESHOLDS
    for wrong in (
        [nan, *ok[1:]], [*ok[:3], infinite], [0xFC00, *ok[1:]], [ok[1], ok[0], *ok[2:]],
        [*ok[:2], ok[3], ok[2]], [ok[0], ok[0], *ok[2:]], [*ok[:3], ok[2]],
        [ok[0], fp16(0.1), *ok[2:]], [*ok[:2], fp16(-0.1), ok[3]], [0, 0, 0, 0],
        [ok[0], 0xFE00, *ok[2:]], [*ok[:2], 0x7FFF, ok[3]],
    ):  # fmt: skip
        assert script.set_thresholds(0, 0, wrong) == Status.THRESHOLDS
    # The edges of what is right: two groups, zeros of either sign.
    for right in ([0xFBFF, 0x8000, 0x0000, 0x7BFF], [0x8001, 0x0000, 0x8000, 0x0001], ok):
        assert script.set_thresholds(0, 0, right) == Status.OK
    assert script.set_thresholds(cache.layers, 0) == Status.BAD_REQUEST
    for layer in range(cache.layers):
        for side in range(2):
            if (layer, side) not in ((0, 0), other):
                script.set_thresholds(layer, side, some_thresholds(rng))
    for op in range(6 + cache.forks, 16):
        assert script.request(op).status == Status.BAD_REQUEST
    assert script.append(0, 0, 0, 0) == Status.SEQUENCE_UNKNOWN
    assert script.append(0, *other, 0) == Status.SEQUENCE_UNKNOWN
    assert script.read(0, 0, 0, 1) == Status.SEQUENCE_UNKNOWN
    assert script.trim(0, 0) == Status.SEQUENCE_UNKNOWN
    assert script.free(0) == Status.SEQUENCE_UNKNOWN
    script.wait()

    # All sequences open; the last one holds data that nothing below may touch.
    for _ in range(cache.sequences):
        script.open()
    assert script.request(Op.OPEN).status == Status.TABLE_FULL
    script.wait()
    mine, kept = 0, cache.sequences - 1
    tokens = 0

    def still_right(count=1):
        """Some tokens more, and both sequences read whole."""
        nonlocal tokens
        for _ in range(count):
            assert script.append(mine, 0, 0, tokens) == Status.OK
            tokens += 1
        script.wait()
        assert script.read(mine, 0, 0, tokens) == Status.OK
        assert script.read(kept, 0, 0, 3) == Status.OK
        script.wait()

    for token in range(3):
        script.append(kept, 0, 0, token)
    still_right(2)

    assert script.set_thresholds(0, 0) == Status.THRESHOLDS  # a sequence is open
    assert script.append(mine, cache.layers, 0, 0) == Status.BAD_REQUEST
    assert script.append(mine, 255, 1, 0) == Status.BAD_REQUEST
    for head, heads in ((0, 0), (0, kv.heads + 1), (kv.heads, 1), (kv.heads - 1, 2), (255, 255)):
        assert script.read(mine, 0, 0, 1, head, heads) == Status.BAD_REQUEST
    if kv.part_heads > 1:  # parts of groups
        for head, heads in ((0, 1), (1, kv.part_heads), (kv.heads - 1, 1), (0, kv.heads - 1)):
            assert script.read(mine, 0, 0, 1, head, heads) == Status.BAD_REQUEST
    assert script.read(mine, cache.layers, 0, 1) == Status.BAD_REQUEST
    assert script.append(cache.sequences, 0, 0, 0) == Status.SEQUENCE_UNKNOWN
    assert script.read(255, 0, 0, 1) == Status.SEQUENCE_UNKNOWN
    still_right()

    assert script.append(mine, *other, 0) == Status.THRESHOLDS
    assert script.append(mine, *other, 5, [nan] * kv.elements) == Status.THRESHOLDS
    assert script.read(mine, *other, 0) == Status.THRESHOLDS
    assert script.read(mine, *other, 2) == Status.THRESHOLDS
    still_right()

    # Two faults in one APPEND: the first of Status is reported.
    bad = [nan] * kv.elements
    for token in (tokens + 1, 0, 1 << 20):
        assert script.append(mine, 0, 0, token) == Status.TOKEN_ORDER
        assert script.append(mine, 0, 0, token, bad) == Status.TOKEN_ORDER
        assert script.append(mine, 0, 0, token, bad[: config.lanes]) == Status.TOKEN_ORDER
    still_right()
    for count in {1, kv.elements // config.lanes - 1, kv.elements // config.lanes + 1} - {0}:
        words = fp16([0.5] * (count * config.lanes))
        if len(words) != kv.elements:
            assert script.append(mine, 0, 0, tokens, words) == Status.VECTOR_LENGTH
            words[0] = nan
            assert script.append(mine, 0, 0, tokens, words) == Status.VECTOR_LENGTH
            still_right()
    for word in (nan, infinite, 0xFC00, 0xFFFF, 0x7C01):
        words = fp16([0.5] * kv.elements)
        words[rng.randrange(kv.elements)] = word
        assert script.append(mine, 0, 0, tokens, words) == Status.NONFINITE
    assert script.append(mine, 0, 0, tokens, bad) == Status.NONFINITE
    still_right()

    assert script.read(mine, 0, 0, tokens + 1) == Status.BEYOND_LENGTH
    assert script.read(mine, 0, 1, 1) == Status.BEYOND_LENGTH
    assert script.read(mine, 0, 0, 0) == Status.EMPTY
    assert script.trim(mine, 1) == Status.BEYOND_LENGTH  # other vectors have no token yet
    still_right()

    # What memory does: writes and reads with errors, damaged records.
    for resp, status in FAILURES:
        script.fault(*WHOLE, resp)
        assert script.append(mine, 0, 0, tokens, memory=status) == status
        script.wait()
        still_right()
        page = script.count_place(mine, 0, 0, 0, tokens)
        page -= page % cache.page_bytes
        script.fault(page, page + cache.page_bytes, resp)
        assert script.read(mine, 0, 0, tokens, memory=status) == status
        assert script.read(kept, 0, 0, 3) == Status.OK
        script.wait()
        still_right()
    place, count = first_count(script, mine, kv.parts - 1, tokens)
    script.poke(place, 0xFF)
    assert script.read(mine, 0, 0, tokens, memory=Status.MALFORMED) == Status.MALFORMED
    assert script.read(kept, 0, 0, 3) == Status.OK
    if kv.parts > 1:
        assert script.read(mine, 0, 0, tokens, 0, kv.heads - kv.part_heads) == Status.OK
    script.wait()
    script.poke(place, count)
    still_right()

    # Two parts that fail in different ways: the bus before MALFORMED, DECERR before SLVERR.
    place, count = first_count(script, mine, 0, tokens)
    other_page = first_count(script, mine, min(1, kv.parts - 1), tokens)[0]
    page = other_page // cache.page_bytes * cache.page_bytes
    for resp, status in FAILURES if kv.parts > 1 else ():
        script.poke(place, 0xFF)
        script.fault(page, page + cache.page_bytes, resp)
        assert script.read(mine, 0, 0, tokens, memory=status) == status
        script.wait()
        script.poke(place, count)
        still_right()
    first = place // cache.page_bytes * cache.page_bytes
    for one, two in ((2, 3), (3, 2)) if kv.parts > 1 else ():
        script.fault(first, first + cache.page_bytes, one)
        script.fault(page, page + cache.page_bytes, two)
        status = Status.DECODE_ERROR
        assert script.read(mine, 0, 0, tokens, memory=status) == status
        script.wait()
        still_right()

    # Until a sequence is full.
    while tokens < cache.max_tokens:
        if script.append(mine, 0, 0, tokens) != Status.OK:
            break
        tokens += 1
        if tokens % 8 == 0:
            script.wait()
    script.wait()
    status = script.append(mine, 0, 0, tokens)
    assert status in (Status.LENGTH_LIMIT, Status.OUT_OF_PAGES)
    assert script.append(mine, 0, 0, tokens, bad) in (Status.LENGTH_LIMIT, Status.NONFINITE)
    script.wait()
    assert script.read(mine, 0, 0, tokens) == Status.OK
    assert script.read(kept, 0, 0, 3) == Status.OK
    script.wait()

    # Until there are no pages; what is there stays, and after FREE there is room again.
    token, where = 0, (1 % cache.sequences, 0, 0)
    big = fp16([40.0] * kv.elements)
    sequences = [each for each in range(cache.sequences) if each not in (mine, kept)] or [mine]
    is_full = status == Status.OUT_OF_PAGES
    for sequence in sequences:
        for side in range(2):
            for layer in range(cache.layers):
                if (layer, side) == other or is_full:
                    continue
                where, token = (sequence, layer, side), 0
                if where == (mine, 0, 0):
                    continue
                while token < cache.max_tokens:
                    if script.append(*where, token, big) == Status.OUT_OF_PAGES:
                        is_full = True
                        break
                    token += 1
                script.wait()
    assert is_full
    script.wait()
    assert script.append(*where, token, big) == Status.OUT_OF_PAGES
    assert script.append(kept, 0, 0, 3, big) in (Status.OUT_OF_PAGES, Status.OK)
    script.wait()
    if token:
        assert script.read(*where, token) == Status.OK
    assert script.read(kept, 0, 0, 3) == Status.OK
    assert script.read(mine, 0, 0, tokens) == Status.OK
    assert script.free(where[0]) == Status.OK  # after the READs of the same sequence
    script.wait()
    assert script.read(*where, 1) == Status.SEQUENCE_UNKNOWN
    assert script.read(kept, 0, 0, 3) == Status.OK
    assert script.open() == where[0]
    script.wait()
    assert script.read(*where, 1) == Status.BEYOND_LENGTH
    assert script.append(*where, 0) == Status.OK
    script.wait()
    assert script.read(*where, 1) == Status.OK
    for sequence in range(cache.sequences):
        assert script.free(sequence) == Status.OK
    script.wait()
    assert script.golden.free_pages == cache.pages
    assert script.set_thresholds(0, 0) == Status.OK  # nothing is open any more
    phases = script.done()
    missing = set(Status) - script.statuses
    assert missing <= {Status.LENGTH_LIMIT, Status.OUT_OF_PAGES}, missing
    return phases, script.statuses


def pass_script(config, seed):
    """Some data; then, in the last two phases, as many APPENDs as may wait, and READs."""
    script = Script(config, seed)
    script.set_thresholds(0, 0)
    script.wait()
    script.open()
    script.wait()
    for token in range(5):
        script.append(0, 0, 0, token)
    script.wait()
    for token in range(config.queue):
        script.append(0, 0, 0, 5 + token)
    script.wait()
    for _ in range(4):
        script.read(0, 0, 0, 5)
    return script.done()


def rates_script(config, seed):
    """Vectors without outliers: APPENDs alone and in a train, then READs.

    Of a vector of one token: one part, all parts, a train of all. Of one of more tokens: one part,
    and a train of all.
    """
    script = Script(config, seed)
    kv = config.cache.kv
    for side in range(2):
        script.set_thresholds(0, side)
    script.wait()
    script.open()
    script.wait()
    middle = fp16([1.0, -1.0] * (kv.elements // 2))
    assert script.append(0, 0, 1, 0, middle) == Status.OK
    script.wait()
    alone, train = 2, 4
    for token in range(alone):
        assert script.append(0, 0, 0, token, middle) == Status.OK
        script.wait()
    for token in range(alone, alone + train):
        assert script.append(0, 0, 0, token, middle) == Status.OK
    script.wait()
    for heads in (kv.part_heads, kv.heads):
        assert script.read(0, 0, 1, 1, 0, heads) == Status.OK
        script.wait()
    for _ in range(4):
        assert script.read(0, 0, 1, 1) == Status.OK
    script.wait()
    tokens = alone + train
    if kv.is_by_token:  # a READ of few beats is faster than the look-ups of the next
        for token in range(tokens, 2 * tokens):
            assert script.append(0, 0, 0, token, middle) == Status.OK
        script.wait()
        tokens *= 2
    assert script.read(0, 0, 0, tokens, 0, kv.part_heads) == Status.OK
    script.wait()
    for _ in range(4):
        assert script.read(0, 0, 0, tokens) == Status.OK
    return script.done()


def window_script(config, seed):
    """A sliding window that fits the scale buffer is read at once, however long the sequence.

    Every sequence has a window of its own, and its number's next owner starts at 0 again.
    """
    script = Script(config, seed)
    cache = config.cache
    elements, heads = cache.kv.elements, cache.kv.heads
    middle = fp16([1.0, -1.0] * (elements // 2))  # the shortest sparse records
    vectors = [(layer, side) for layer in range(cache.layers) for side in range(2)]
    for where in vectors:
        script.set_thresholds(*where)
    script.wait()
    sequences = [script.open() for _ in range(cache.sequences)]
    script.wait()
    tokens = config.scale_tokens + 3
    for token in range(tokens):
        for sequence in sequences:
            for where in vectors:
                assert script.append(sequence, *where, token, middle) == Status.OK
            script.wait()

    def read(sequence, token, start):
        """A READ of all heads, and its bursts: those of scales once, or for each head."""
        assert script.read(sequence, 0, 0, token) == Status.OK
        count = token - start
        words = -(-count * cache.kv.dense_bytes // config.mmu.word_bytes)
        scales = heads if count > config.scale_tokens else 1
        bursts = heads * (-(-words // config.mmu.burst_beats) + 1) + scales
        script.phases[-1]["bursts"] = bursts
        script.wait()

    starts = dict.fromkeys(sequences, 0)
    for trim in (0, 2, 3, 1, tokens - 1):
        for sequence in script.rng.sample(sequences, len(sequences)):
            assert script.trim(sequence, trim) == Status.OK
            script.wait()
            starts[sequence] = max(starts[sequence], trim)
            for each in sequences:
                read(each, tokens, starts[each])
    for sequence in sequences:
        script.free(sequence)
        script.wait()
        assert script.open() == sequence
        script.wait()
        for token in range(config.scale_tokens + 1):
            script.append(sequence, 0, 0, token, middle)
        script.wait()
        read(sequence, config.scale_tokens + 1, 0)
        for each in sequences[sequences.index(sequence) + 1 :]:
            read(each, tokens, starts[each])
    return script.done()


def errors_script(config, seed):
    """Requests with each fault of one vector or its memory, where there is one head alone."""
    script = Script(config, seed)
    cache = config.cache
    elements = cache.kv.elements
    script.set_thresholds(0, 0)
    script.wait()
    script.open()
    script.wait()
    tokens = 0
    for more, status in (
        ({}, Status.OK),
        ({"words": [0x7E00] * elements}, Status.NONFINITE),
        ({"words": fp16([1.0] * (elements + config.lanes))}, Status.VECTOR_LENGTH),
        ({"words": fp16([1.0] * (3 * elements))}, Status.VECTOR_LENGTH),
        ({"memory": Status.SLAVE_ERROR}, Status.SLAVE_ERROR),
        ({"memory": Status.DECODE_ERROR}, Status.DECODE_ERROR),
    ):
        for _ in range(2):
            assert script.append(0, 0, 0, tokens + 1) == Status.TOKEN_ORDER
            assert script.append(0, 0, 1, 0) == Status.THRESHOLDS
            script.wait()
            if status == more.get("memory"):
                script.fault(*WHOLE, 2 + (status == Status.DECODE_ERROR))
            assert script.append(0, 0, 0, tokens, **more) == status
            script.wait()
            assert script.append(0, 0, 0, tokens + (status == Status.OK)) == Status.OK
            tokens += 1 + (status == Status.OK)
            script.wait()
            assert script.read(0, 0, 0, tokens) == Status.OK
            assert script.read(0, 0, 0, tokens + 1) == Status.BEYOND_LENGTH
            script.wait()
    place, count = first_count(script, 0, 0, tokens)
    page = place // cache.page_bytes * cache.page_bytes
    for resp, status in ((2, Status.SLAVE_ERROR), (3, Status.DECODE_ERROR), (0, Status.MALFORMED)):
        if resp:
            script.fault(page, page + cache.page_bytes, resp)
        else:
            script.poke(place, 0x80)
        assert script.read(0, 0, 0, tokens, memory=status) == status
        script.wait()
        script.poke(place, count)
        assert script.read(0, 0, 0, tokens) == Status.OK
        script.wait()
    return script.done()


def order_script(config, seed):
    """APPEND, TRIM, FREE, APPEND; data again; READs that fill all places and one more, TRIM and
    FREE of a sequence that is not open, READ."""
    script = Script(config, seed)
    script.set_thresholds(0, 0)
    script.wait()

    def fill():
        script.open()
        script.wait()
        for token in range(3):
            assert script.append(0, 0, 0, token) == Status.OK
        script.wait()

    fill()
    assert script.append(0, 0, 0, 3) == Status.OK
    script.trim(0, 0)
    assert script.free(0) == Status.OK
    assert script.append(0, 0, 0, 4) == Status.SEQUENCE_UNKNOWN
    script.wait()
    assert script.read(0, 0, 0, 3) == Status.SEQUENCE_UNKNOWN
    script.wait()
    fill()
    for _ in range(config.mmu.reads + 1):
        assert script.read(0, 0, 0, 3) == Status.OK
    assert script.trim(1, 0) == Status.SEQUENCE_UNKNOWN
    assert script.free(1) == Status.SEQUENCE_UNKNOWN
    assert script.read(0, 0, 0, 3) == Status.OK
    return script.done()


def late_script(config, seed):
    """Thresholds; an APPEND that will be refused, other thresholds, OPEN; what holds then."""
    script = Script(config, seed)
    script.set_thresholds(0, 0)
    script.wait()
    assert script.append(0, 0, 0, 0) == Status.SEQUENCE_UNKNOWN
    assert script.set_thresholds(0, 0, some_thresholds(script.rng)) == Status.OK
    script.open()
    script.wait()
    for token in range(3):
        script.append(0, 0, 0, token)
    script.wait()
    script.read(0, 0, 0, 3)
    return script.done()


def race_script(config, seed, rounds=8):
    """READs in pieces among TRIMs, FREEs and APPENDs whose statuses nobody has awaited."""
    script = Script(config, seed)
    rng, cache = script.rng, config.cache
    vectors = [(layer, side) for layer in range(cache.layers) for side in range(2)]
    for where in vectors:
        script.set_thresholds(*where)
    script.wait()
    for _ in range(rounds):
        script.open()
        script.wait()
        tokens = config.scale_tokens + 4
        for where in vectors:
            for token in range(tokens):
                assert script.append(0, *where, token) == Status.OK
            script.wait()
        read = {
            "sequence": 0, "layer": 0, "kv": 0, "head": 0, "heads": cache.kv.heads, "token": tokens,
        }  # fmt: skip
        words = vector(rng, cache.kv.elements)
        script.race(
            {**read, "token": tokens + 1}, 0,
            Op.APPEND, sequence=0, layer=0, kv=0, token=tokens, vector=words,
        )  # fmt: skip
        for lead, token in enumerate((1, rng.randrange(2, 4), rng.randrange(4, tokens - 1))):
            script.race(read, lead, Op.TRIM, sequence=0, token=token)
        script.race({**read, "token": tokens + 1}, rng.randrange(3), Op.FREE, sequence=0)
    return script.done()


def fork_script(config, seed):
    """A prompt and its children: each reads the prompt and its own tokens, trims and frees.

    Shown to fail: a child that does not count as open; a FORK that waits for no APPEND. Not found:
    a child without its parent's start, which reads scales more often.
    """
    script = Script(config, seed)
    rng, cache = script.rng, config.cache
    vectors = [(layer, side) for layer in range(cache.layers) for side in range(2)]
    for where in vectors:
        script.set_thresholds(*where)
    script.wait()
    assert script.fork(0, 0).status == Status.SEQUENCE_UNKNOWN
    assert script.set_thresholds(0, 0) == Status.OK  # nothing is open
    parent = script.open()
    script.wait()

    def append(sequence, first, count):
        for token in range(first, first + count):
            for where in vectors:
                assert script.append(sequence, *where, token) == Status.OK

    def read(sequence, tokens):
        for where in vectors:
            assert script.read(sequence, *where, tokens) == Status.OK

    tokens = config.scale_tokens + 8
    append(parent, 0, tokens)
    script.wait()
    assert script.trim(parent, 3) == Status.OK
    # A FORK after the last APPENDs of its parent, whose statuses nobody has awaited.
    append(parent, tokens, 1)
    tokens += 1
    child = script.fork(parent, tokens)
    assert child.status == Status.OK
    script.wait()
    for sequence in (parent, child.sequence):
        read(sequence, tokens)
        append(sequence, tokens, 2)
    script.wait()
    for sequence in (child.sequence, parent):
        read(sequence, tokens + 2)
    assert script.fork(parent, tokens).status == Status.TOKEN_ORDER
    assert script.fork(parent, tokens + 3).status == Status.BEYOND_LENGTH
    assert script.fork(child.sequence, tokens + 2).status == Status.BAD_REQUEST
    script.wait()
    for response, status in FAILURES:
        script.fault(*WHOLE, response)
        assert script.fork(parent, tokens + 2, memory=status).status == status
        script.wait()
    others = [script.fork(parent, tokens + 2).sequence for _ in range(cache.sequences - 2)]
    assert script.fork(parent, tokens + 2).status == Status.TABLE_FULL
    script.wait()
    assert script.set_thresholds(0, 0) == Status.THRESHOLDS
    assert script.free(parent) == Status.OK
    script.wait()
    for sequence in (child.sequence, *others):
        read(sequence, tokens + 2)
    script.wait()
    assert script.trim(others[0], tokens) == Status.OK
    script.wait()
    for sequence in rng.sample([child.sequence, *others], 1 + len(others)):
        read(sequence, tokens + 2)
        script.wait()
        assert script.free(sequence) == Status.OK
        script.wait()
    assert script.golden.free_pages == cache.pages
    assert script.set_thresholds(0, 0) == Status.OK
    return script.done()


@functools.cache
def scripts(name, seed):
    config = CONFIGS[name]
    found = {
        "random": random_script(config, seed, 14),
        "short": random_script(config, seed + 1, 5),
        "pass": pass_script(config, seed),
        "late": late_script(config, seed),
        "order": order_script(config, seed),
        "overlap": overlap_script(config, seed, appends=12, reads=6, tokens=12),
    }
    if config.cache.kv.heads == 1:
        found["errors"] = errors_script(config, seed)
    else:
        found["statuses"], _ = statuses_script(config, seed)
        found["rates"] = rates_script(config, seed)
    if name == "small":
        found["window"] = window_script(config, seed)
    if config.cache.forks:
        found["forks"] = fork_script(config, seed)
    if name in ("small", "token"):
        found["race"] = race_script(config, seed)
    return found


@pytest.mark.telling("small", "token", "token_wide", "forks")
@pytest.mark.parametrize("name", CONFIGS)
def test_kv_engine(name, seed):
    params = {"scripts": scripts(name, seed)}
    simulate(OakenKvEngine(CONFIGS[name]), "tb.oaken.tb_kv_engine", params=params, seed=seed)


def test_every_status_is_asked_for(seed):
    found = [statuses_script(CONFIGS[name], seed)[1] for name in ("small", "three_heads", "token")]
    assert set().union(*found) == set(Status)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mmu": SMALL.mmu, "lanes": 32}, "lanes must be at most block = 16, not 32"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        OakenKvEngineConfig(**wrong)
    assert str(error.value) == f"OakenKvEngineConfig.{message}"
