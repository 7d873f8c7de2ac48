"""Directed scripts for the bench of several attention engines as one."""

from golden.attention.format import Status as JobStatus
from golden.oaken.format import DENSE_BITS, SCALE_BYTES
from golden.oaken.vectors.attention import LARGEST, append_tokens, open_all
from golden.oaken.vectors.attention_array import ArrayScript
from golden.oaken.vectors.kv_script import fp16
from golden.paging.format import Kv, Op, Status

FAILURES = ((2, Status.SLAVE_ERROR), (3, Status.DECODE_ERROR))  # of memory: RESP, status
MINE, KEPT = 0, 1  # sequences


def _sound(script: ArrayScript) -> None:
    """The next phase, with memories that answer."""
    script.wait()
    script.golden.memory[:] = [Status.OK] * script.array.engines


def _memories(script: ArrayScript, failed: dict[int, Status]) -> list[dict]:
    """Lists by engine what memory does to each READ of an attend."""
    places = [(side, group) for side in Kv for group in range(script.array.cache.kv.groups)]
    count = script.array.engines
    return [dict.fromkeys(places, failed[n]) if n in failed else {} for n in range(count)]


def errors_script(config, seed: int) -> list[dict]:
    """Each engine in turn has a memory that refuses, a damaged record, a token less, no result."""
    script = ArrayScript(config, seed)
    open_all(script, {MINE: 5, KEPT: 3})
    count, token = config.engines, 5

    def attends(status: Status, failed: dict[int, Status] | None = None) -> None:
        memories = _memories(script, failed or {})
        for last in (False, True):
            script.attend(KEPT, 0, 3, last=False, memory=memories)
            found = script.attend(MINE, 0, token, last=last, memory=memories)
            assert found.status == status, (found.status, status)
        _sound(script)

    for engine in range(count):
        for response, status in FAILURES:
            script.refuse(engine, response, status)
            attends(status, {engine: status})
            # Its APPENDs fail, and the others have the token. It is appended once more.
            script.refuse(engine, response, status)
            for side in Kv:
                assert script.append(MINE, 0, side, token) == status
            _sound(script)
            token += 1
            attends(Status.BEYOND_LENGTH)
            for side in Kv:
                found = Status.OK if count == 1 else Status.TOKEN_ORDER
                assert script.append(MINE, 0, side, token - 1) == found
            _sound(script)
            attends(Status.OK)
    # Of two engines that fail, the first decides; the other's words are NaN, or void.
    for one, two in (FAILURES, FAILURES[::-1]):
        script.refuse(0, *one)
        script.refuse(count - 1, *two)
        attends(one[1], {0: one[1], count - 1: two[1]})
        script.refuse(0, *one)
        script.refuse(count - 1, *two)
        for side in Kv:
            assert script.append(MINE, 0, side, token) == one[1]
        _sound(script)
        for side in Kv:
            script.append(MINE, 0, side, token)
        token += 1
        _sound(script)
    for engine, other in ((0, count - 1), (count - 1, 0)):
        script.refuse(engine, *FAILURES[0])
        for side in Kv:
            script.append(MINE, 0, side, token)
        _sound(script)
        token += 1
        script.refuse(other, *FAILURES[1])
        first = Status.BEYOND_LENGTH if engine == 0 else Status.DECODE_ERROR
        attends(first, {other: Status.DECODE_ERROR})
        for side in Kv:
            script.append(MINE, 0, side, token - 1)
        _sound(script)
        attends(Status.OK)
    shape = config.cache.kv
    for engine in range(count):
        start = script.place_of(engine, MINE, 0, Kv.V, token)
        at = SCALE_BYTES + shape.block * DENSE_BITS // 8
        record = script.golden.engines[engine].records(MINE, 0, Kv.V, 0)[0]
        script.phases[-1]["pokes"].append((engine, start + at, 0xFF))
        memories = _memories(script, {})
        memories[engine] = {(Kv.V, 0): Status.MALFORMED}
        found = script.attend(MINE, 0, token, memory=memories)
        assert found.status == Status.MALFORMED
        script.wait()
        script.phases[-1]["pokes"].append((engine, start + at, record[at]))
        attends(Status.OK)
    _results(script, token)
    return script.done()


def _results(script: ArrayScript, token: int) -> None:
    """Queries of one engine, or of two, without a result."""
    count, heads = script.array.engines, script.array.cache.kv.heads
    for first, second, result in (
        (0x7E00, None, JobStatus.NONFINITE), (LARGEST, None, JobStatus.OVERFLOW),
        (LARGEST, 0x7C00, JobStatus.NONFINITE), (0x7C00, LARGEST, JobStatus.NONFINITE),
    ):  # fmt: skip
        for one, two in ((0, count - 1), (count - 1, 0)):
            q = script.queries() * 0 + 0x3000
            for engine, word in ((one, first), (two, second)):
                if word is not None:
                    q[engine * heads] = word
            found = script.attend(MINE, 0, token, last=False, q=q)
            assert (found.status, found.result) == (Status.OK, result)
            script.attend(KEPT, 0, 3, q=script.queries() * 0 + 0x3000)
        script.wait()


def full_script(config, seed: int) -> list[dict]:
    """Records of one engine are longer: its pages run out, and the others go on; FREE ends it."""
    script = ArrayScript(config, seed)
    sequences = range(config.cache.sequences)
    open_all(script, dict.fromkeys(sequences, 1))
    elements, count = config.cache.kv.elements, config.engines
    refused = 0
    for token in range(1, config.cache.max_tokens):
        for sequence in sequences:
            words = [fp16([40.0 if n == count - 1 else 0.75] * elements) for n in range(count)]
            vector = [word for part in words for word in part]
            for layer in range(config.cache.layers):
                for side in Kv:
                    status = script.append(sequence, layer, side, token, vector)
                    refused += status == Status.OUT_OF_PAGES
        script.wait()
        script.attend(0, 0, token + 1, last=False)
        script.attend(1, 0, 1)
        script.wait()
        if refused > 2:
            break
    assert refused > 2
    free = [engine.free_pages for engine in script.golden.engines]
    assert free[0] > free[-1]
    for sequence in sequences:
        assert script.free(sequence) == Status.OK
        script.wait()
    assert script.golden.free_pages == config.cache.pages
    assert script.open() == 0
    script.wait()
    append_tokens(script, 0, range(2))
    script.attend(0, 0, 2)
    return script.done()


def order_script(config, seed: int) -> list[dict]:
    """Requests of every op one after another, none of which waits for a status."""
    script = ArrayScript(config, seed)
    cache = config.cache
    open_all(script, dict.fromkeys(range(cache.sequences), 2))
    for turn in range(3):
        token = 2 if not turn else 1
        for side in Kv:
            assert script.append(KEPT, 0, side, token) == Status.OK
        assert script.request(Op.OPEN).status == Status.TABLE_FULL
        assert script.free(KEPT) == Status.OK
        assert script.append(KEPT, 0, 0, token + 1) == Status.SEQUENCE_UNKNOWN
        assert script.append(MINE, 0, 0, 2 + turn) == Status.OK
        assert script.open() == KEPT
        assert script.set_thresholds(0, 0) == Status.THRESHOLDS
        for layer in range(cache.layers):
            for side in Kv:
                assert script.append(KEPT, layer, side, 0) == Status.OK
        assert script.trim(KEPT, 1) == Status.OK
        assert script.append(cache.sequences, 0, 0, 0) == Status.SEQUENCE_UNKNOWN
        assert script.trim(KEPT, 2) == Status.BEYOND_LENGTH
        assert script.read(KEPT, 0, 0, 1) == Status.BAD_REQUEST
        script.wait()
    script.attend(MINE, 0, 2)
    return script.done()


def long_script(config, seed: int) -> list[dict]:
    """Long runs of attends of many lengths."""
    script = ArrayScript(config, seed)
    open_all(script, {MINE: 9, KEPT: 3})
    for count in (9, 5):
        for n in range(count):
            script.attend(*((MINE, 0, 9 - n) if n % 3 else (KEPT, 0, 3)), last=n == count - 1)
        script.wait()
    return script.done()


def fork_errors_script(config, seed: int) -> list[dict]:
    """FORKs that fail in some engines leave no child in the others, and number the next one alike.

    A memory refuses; an engine lacks a token; the pages of one run out.
    """
    script = ArrayScript(config, seed)
    cache, count, tokens = config.cache, config.engines, 5
    vectors = [(layer, side) for layer in range(cache.layers) for side in Kv]
    open_all(script, {MINE: tokens, KEPT: 3})
    first = KEPT + 1  # the number of the next child

    def forks(status: Status, length: int) -> None:
        """Two FORKs one after the other, then the same in sound memories."""
        free = script.golden.free_pages
        assert [script.fork(MINE, length) for _ in range(2)] == [(status, MINE, (), 0)] * 2
        _sound(script)
        assert script.golden.free_pages == free
        _children(script, length, first)

    for engine in range(count):
        for response, status in FAILURES:
            script.refuse(engine, response, status)
            forks(status, tokens)
    for one, two in (FAILURES, FAILURES[::-1]):
        script.refuse(0, *one)
        script.refuse(count - 1, *two)
        forks(one[1], tokens)
    for engine in range(count):
        script.refuse(engine, *FAILURES[0])
        for layer, side in vectors:
            assert script.append(MINE, layer, side, tokens) == Status.SLAVE_ERROR
        _sound(script)
        # A token too many in all engines but one, or too few in one.
        assert script.fork(MINE, tokens).status == Status.TOKEN_ORDER
        assert script.fork(MINE, tokens + 1).status == Status.BEYOND_LENGTH
        script.wait()
        for layer, side in vectors:
            assert script.append(MINE, layer, side, tokens) == Status.TOKEN_ORDER
        _sound(script)
        tokens += 1
        _children(script, tokens, first)
    return script.done()


def _children(script: ArrayScript, tokens: int, first: int) -> None:
    """Two children of one number each in all engines, which attend and go."""
    for child in (first, first + 1):
        assert script.fork(MINE, tokens).sequence == child
    script.wait()
    for child in (first, first + 1):
        append_tokens(script, child, range(tokens, tokens + 1))
    for child in (first, first + 1):
        script.attend(child, 0, tokens + 1, last=False)
    script.attend(MINE, 0, tokens)
    script.wait()
    for child in (first + 1, first):
        assert script.free(child) == Status.OK
        script.wait()


def fork_full_script(config, seed: int) -> list[dict]:
    """The last engine has longer records, and too few pages for a child: no engine has one."""
    script = ArrayScript(config, seed)
    cache, count = config.cache, config.engines
    open_all(script, dict.fromkeys(range(cache.sequences - 1), 0))
    words = [fp16([40.0 if n == count - 1 else 0.75] * cache.kv.elements) for n in range(count)]
    vector = [word for part in words for word in part]
    least = 2 * cache.layers * cache.kv.slots  # a page for each stream
    lengths = [0] * (cache.sequences - 1)
    while script.golden.engines[-1].free_pages >= least:
        sequence = lengths.index(min(lengths))
        for layer in range(cache.layers):
            for side in Kv:
                status = script.append(sequence, layer, side, lengths[sequence], vector)
                assert status == Status.OK
        lengths[sequence] += 1
        script.wait()
    before = [engine.free_pages for engine in script.golden.engines]
    assert before[0] >= least
    assert script.fork(MINE, lengths[MINE]).status == Status.OUT_OF_PAGES
    script.wait()
    assert [engine.free_pages for engine in script.golden.engines] == before
    script.attend(MINE, 0, lengths[MINE])
    assert script.open() == len(lengths)  # the number that the child had
    script.wait()
    for sequence in range(cache.sequences):
        assert script.free(sequence) == Status.OK
        script.wait()
    assert script.golden.free_pages == cache.pages
    return script.done()
