"""Directed scripts for the bench of oaken_attention."""

import dataclasses
from collections.abc import Iterable

from golden.attention.format import Status as JobStatus
from golden.oaken.vectors.attention import (
    LARGEST,
    AttentionScript,
    append_tokens,
    mild_vector,
    open_all,
)
from golden.oaken.vectors.kv_script import fp16
from golden.paging.format import Kv, Op, PageOp, Status
from golden.paging.pages import PageCommand

FAILURES = ((2, Status.SLAVE_ERROR), (3, Status.DECODE_ERROR))  # of memory: RESP, status


Make = type[AttentionScript]


def filled(
    config, seed: int, tokens: Iterable[int], make: Make = AttentionScript
) -> AttentionScript:
    """Thresholds, and a sequence of each number of tokens."""
    script = make(config, seed)
    open_all(script, dict(enumerate(tokens)))
    return script


def errors_script(config, seed: int) -> tuple[list[dict], set, set]:
    """Every status and every result of an attend, alone and in a run; each loses no other's words.

    (phases, statuses, results)
    """
    script = AttentionScript(config, seed)
    cache, groups = config.cache, config.groups
    top = cache.layers - 1
    for layer in range(cache.layers):
        for side in Kv:
            if not top or (layer, side) != (top, Kv.V):
                script.set_thresholds(layer, side)
    script.wait()
    mine, kept = 0, 1
    assert script.attend(mine, 0, 1).status == Status.SEQUENCE_UNKNOWN
    assert script.attend(mine, cache.layers, 1).status == Status.BAD_REQUEST
    assert script.read(mine, 0, 0, 1) == Status.BAD_REQUEST
    script.wait()
    for _ in (mine, kept):
        script.open()
        script.wait()

    def around(*attends, faults=(), status=None) -> None:
        """The attends in a run between sound ones, then each alone."""
        for run in (attends, *([each] for each in attends)):
            script.phases[-1]["faults"] += faults
            script.attend(kept, 0, 3, last=False)
            found = [script.attend(*each, last=False, **more).status for each, more in run]
            script.attend(kept, 0, 2)
            assert status is None or found == [status] * len(run), (found, status)
            script.wait()

    for token in range(3):
        for side in Kv:
            assert script.append(kept, 0, side, token) == Status.OK
    for token in range(5):
        assert script.append(mine, 0, Kv.K, token) == Status.OK
        if top:
            assert script.append(mine, top, Kv.K, token) == Status.OK
    script.wait()
    # Refused: K of no tokens, V of none or of fewer; V without thresholds; K of fewer than V.
    around(((mine, 0, 5), {}), ((mine, 0, 1), {}), status=Status.BEYOND_LENGTH)
    if top:
        around(((mine, top, 5), {}), status=Status.THRESHOLDS)
        around(((mine, top, 6), {}), status=Status.BEYOND_LENGTH)  # of K, which comes first
    around(((mine, 0, 0), {}), status=Status.EMPTY)
    around(((mine, 0, (1 << 21) - 1), {}), ((kept, 0, 1 << 20), {}), status=Status.BEYOND_LENGTH)
    around(((255, 0, 1), {}), status=Status.SEQUENCE_UNKNOWN)
    around(((mine, 255, 1), {}), status=Status.BAD_REQUEST)
    around(((mine, 0, 6), {}), ((mine, 0, 5), {}), ((mine, 0, 0), {}), ((mine, 9, 0), {}))
    for token in range(4):
        assert script.append(mine, 0, Kv.V, token) == Status.OK
    script.wait()
    around(((mine, 0, 5), {}), status=Status.BEYOND_LENGTH)
    around(((mine, 0, 4), {}), ((mine, 0, 5), {}), ((mine, 0, 3), {}))
    assert script.append(mine, 0, Kv.V, 4) == Status.OK
    script.wait()

    def page(side: Kv, group: int) -> tuple[int, int]:
        """The page of the first record that a READ of ``mine`` reads."""
        first = script.place(mine, 0, side, group, 5) // cache.page_bytes * cache.page_bytes
        return first, first + cache.page_bytes

    # Memory refuses K, or V, or both; or what it gives is no record.
    places = [(side, group) for side in Kv for group in range(groups)]
    for resp, status in FAILURES:
        for place in places:
            around(((mine, 0, 5), {"memory": {place: status}}),
                   faults=[(*page(*place), resp)], status=status)  # fmt: skip
        for one, two in ((a, b) for a in places for b in places if a < b):
            other = FAILURES[status == Status.SLAVE_ERROR]
            faults = [(*page(*one), resp), (*page(*two), other[0])]
            around(((mine, 0, 5), {"memory": {one: status, two: other[1]}}),
                   faults=faults, status=status)  # fmt: skip
    malformed = Status.MALFORMED
    for place in places:
        address = script.count_place(mine, 0, *place, 5)
        record = script.golden.records(mine, 0, place[0], 0)[place[1]]
        script.poke(address, 0xFF)
        around(((mine, 0, 5), {"memory": {place: malformed}}), status=malformed)
        script.poke(address, record[address - script.place(mine, 0, *place, 5)])
        around(((mine, 0, 5), {}), status=Status.OK)
    # An error of K's memory comes before a refusal of V.
    assert script.append(mine, 0, Kv.K, 5) == Status.OK
    script.wait()
    for resp, status in FAILURES:
        around(((mine, 0, 6), {"memory": {(Kv.K, groups - 1): status}}),
               faults=[(*page(Kv.K, groups - 1), resp)], status=status)  # fmt: skip
    assert script.append(mine, 0, Kv.V, 5) == Status.OK
    script.wait()

    # Memory refuses what a READ drops: only its status says so, and no row has an error.
    append_tokens(script, mine, range(6, 14), layers=(0,))
    for resp, status in FAILURES:
        for side, group in places:
            last = _last_page(script, mine, side, group)
            around(((mine, 0, 1), {"memory": {(side, group): status}}),
                   faults=[(last, last + cache.page_bytes, resp)], status=status)  # fmt: skip

    # Queries without a result.
    for word, result in ((0x7E00, JobStatus.NONFINITE), (LARGEST, JobStatus.OVERFLOW)):
        for place in ((0, 0), (-1, -1)):
            q = script.queries() * 0 + 0x3000
            if result == JobStatus.OVERFLOW:
                q[place] = word
            else:
                q[(*place, -1)] = word
            script.attend(mine, 0, 6, last=False, q=q)
            script.attend(kept, 0, 3)
        script.wait()
    q = script.queries() * 0 + 0x3000
    q[0, 0, 0], q[-1, -1] = 0x7C00, LARGEST
    script.attend(mine, 0, 6, q=q)
    script.wait()
    assert script.free(mine) == Status.OK
    script.wait()
    around(((mine, 0, 1), {}), status=Status.SEQUENCE_UNKNOWN)
    return script.done(), script.statuses, script.results


def _last_page(script: AttentionScript, sequence: int, side: Kv, group: int) -> int:
    """Address of the last page of a stream of layer 0, after the one of its first record."""
    table, size = script.golden.table, script.config.cache.page_bytes
    found = table.command(PageCommand(PageOp.READ, sequence, 0, side, group, 1))
    page, pages = found.page, -(-(found.offset + found.bytes) // size)
    assert pages > 1
    for _ in range(pages - 1):
        page = table.command(PageCommand(PageOp.NEXT, sequence, 0, side, group, page=page)).page
    return script.base + page * size


def between_script(config, seed: int, make: Make = AttentionScript) -> list[dict]:
    """TRIM, FREE or a new sequence between the READ of K and that of V of one attend."""
    script = filled(config, seed, (7, 4), make)
    mine, kept = 0, 1
    cache = config.cache

    def held(token: int):
        """A phase that ends with K of an attend, but for its last V."""
        script.attend(kept, 0, 4, last=False)
        pending = script.begin(mine, 0, token, last=False)
        script.phases[-1]["held"] = True
        script.wait()
        return pending

    def ended(pending, result, status=Status.OK) -> None:
        found = script.finish(pending)
        assert (found.status, found.result) == (status, result)
        script.attend(kept, 0, 3)
        script.wait()
        script.attend(kept, 0, 4)
        script.wait()

    pending = held(7)
    script.trim(mine, 3)  # V has fewer rows
    script.phases[-1]["held"] = True
    script.wait()
    ended(pending, JobStatus.DATA)
    pending = held(7)
    script.free(mine)  # V has none
    script.phases[-1]["held"] = True
    script.wait()
    ended(pending, JobStatus.OK, Status.SEQUENCE_UNKNOWN)
    script.open()
    script.wait()
    append_tokens(script, mine, range(7))
    script.trim(mine, 5)
    script.wait()
    pending = held(7)
    for op in (Op.FREE, Op.OPEN):  # V has more rows
        script.request(op, **({"sequence": mine} if op == Op.FREE else {}))
        script.phases[-1]["held"] = True
        script.wait()
    for token in range(7):
        for layer in range(cache.layers):
            for side in Kv:
                script.append(mine, layer, side, token)
        script.phases[-1]["held"] = True
        script.wait()
    ended(pending, JobStatus.DATA)
    script.attend(mine, 0, 7)
    script.wait()
    return script.done()


def races_script(config, seed: int) -> list[dict]:
    """Attends of one group, each with a TRIM of its sequence a little later.

    ``orders`` of a phase: the end of the attend with the TRIM between its K and its V, and after
    its V. The attend ends a run, so its V follows its own K.
    """
    tokens, races = 24, 20
    script = filled(config, seed, (0,))
    for token in range(tokens):
        for layer in range(config.cache.layers):
            for side in Kv:  # ordinary scores, so that each row counts
                words = fp16([script.rng.gauss(0, 1) for _ in range(config.cache.kv.elements)])
                assert script.append(0, layer, side, token, words) == Status.OK
        script.wait()
    q = script.queries() * 0 + 0x3000
    for start in range(1, races + 1):
        phase = script.phases[-1]
        pending = script.begin(0, 0, tokens, q=q, window=0)
        between = dataclasses.replace(pending, begun=script.golden.begin(q, 0, 0, tokens))
        assert script.finish(pending).result == JobStatus.OK
        assert script.trim(0, start) == Status.OK
        assert script.finish(between).result == JobStatus.DATA
        phase["orders"] = [phase["ends"].pop(), phase["ends"][0]]
        script.wait()
    return script.done()


def lengths_script(config, seed: int, make: Make = AttentionScript) -> list[dict]:
    """The longest sequence, whole and trimmed; of one token; runs of both, and of many attends."""
    most = config.cache.max_tokens
    script = filled(config, seed, (most, 1), make)
    for _ in range(2):
        for run in ([(0, most)], [(1, 1)], [(0, most), (0, most)], [(1, 1)] * 9,
                    [(0, most), (1, 1), (0, 1), (0, most - 1)]):  # fmt: skip
            for n, (sequence, token) in enumerate(run):
                script.attend(sequence, 0, token, last=n == len(run) - 1)
        script.wait()
        least = most // 2
        script.trim(0, 0)
    script.wait()
    for start in (1, least, most - 1):
        script.trim(0, start)
        script.wait()
        for token in (start + 1, most):
            assert script.attend(0, 0, token, last=False).status == Status.OK
        assert script.attend(0, 0, start).status == Status.EMPTY
        script.attend(1, 0, 1)
        script.wait()
    return script.done()


def beside_script(config, seed: int, make: Make = AttentionScript) -> list[dict]:
    """A run of attends during APPENDs to another sequence and other requests."""
    script = filled(config, seed, (9, 3), make)
    for n in range(6):
        script.attend(0, 0, 9 - n, last=n == 5)
    for token in range(3, 6):
        for side in Kv:
            assert script.append(1, 0, side, token) == Status.OK
    script.set_thresholds(0, 0, fp16([0.0] * 4))
    script.read(0, 0, 0, 1)
    script.wait()
    script.attend(1, 0, 6)
    script.wait()
    return script.done()


def flow_script(config, seed: int, make: Make = AttentionScript) -> tuple[list[dict], list[dict]]:
    """(phases before, runs of attends during APPENDs to another sequence), for the contract."""
    script = filled(config, seed, (6, 1), make)
    before = script.done()
    script.phases = []
    script.wait()
    for run in ([5], [6, 1], [2, 9, 6], [3, 0, 6, 4], [6, 6], [1, 1, 1]):
        for n, token in enumerate(run):
            script.attend(0, 0, token, last=n == len(run) - 1)
        token = len(script.phases)
        assert script.append(1, 0, Kv.K, token) == Status.OK
        script.wait()
    return before, script.done()


def rates_script(
    config, seed: int, lengths: Iterable[int], runs: Iterable[int], make: Make = AttentionScript
) -> list[dict]:
    """Runs of so many attends on all tokens of a sequence, which has so many in turn.

    Vectors are without outliers. Each run is a phase.
    """
    script = make(config, seed)
    for side in Kv:
        script.set_thresholds(0, side)
    script.wait()
    script.open()
    script.wait()
    middle = fp16([1.0, -1.0] * (script.config.cache.kv.elements // 2))
    token = 0
    for length in sorted(lengths):
        while token < length:
            for side in Kv:
                assert script.append(0, 0, side, token, middle) == Status.OK
            token += 1
            if token % 4 == 0 or token == length:
                script.wait()
        for attends in runs:
            for n in range(attends):
                script.attend(0, 0, length, last=n == attends - 1, window=0)
            script.phases[-1]["rates"] = (length, attends)
            script.wait()
    return script.done()


def fork_script(config, seed: int, make: Make = AttentionScript) -> list[dict]:
    """A prompt and its children: each appends and attends, side by side, and outlives the prompt.

    Runs of attends go from sequence to sequence. FORKs come during attends to their parent, and
    right after its APPENDs.
    """
    script = make(config, seed)
    rng, cache = script.rng, script.config.cache
    tokens, parent, free = cache.max_tokens // 2, 0, script.golden.free_pages
    open_all(script, {parent: tokens - 1})
    assert script.free(parent) == Status.OK
    script.wait()
    assert script.fork(parent, 0).status == Status.SEQUENCE_UNKNOWN
    assert script.open() == parent
    script.wait()
    append_tokens(script, parent, range(tokens - 1))
    assert script.trim(parent, 1) == Status.OK
    script.wait()
    # The statuses of the last APPENDs are not awaited, nor are the attends.
    for token in (tokens - 1, tokens - 2):
        script.attend(parent, cache.layers - 1, token, last=token == tokens - 2)
    for layer in range(cache.layers):
        for side in Kv:
            words = mild_vector(script)
            assert script.append(parent, layer, side, tokens - 1, words) == Status.OK
    children = [script.fork(parent, tokens).sequence for _ in range(cache.sequences - 2)]
    script.wait()
    assert script.fork(parent, tokens - 1).status == Status.TOKEN_ORDER
    assert script.fork(parent, tokens + 1).status == Status.BEYOND_LENGTH
    assert script.fork(children[0], tokens).status == Status.BAD_REQUEST
    script.wait()
    assert script.open() == cache.sequences - 1
    script.wait()
    assert script.fork(parent, tokens).status == Status.TABLE_FULL
    assert script.free(cache.sequences - 1) == Status.OK
    children.append(script.fork(parent, tokens).sequence)
    script.wait()
    everyone = [parent, *children]
    lengths = dict.fromkeys(everyone, tokens)

    def attends() -> None:
        run = [(sequence, layer) for sequence in everyone for layer in range(cache.layers)]
        for n, (sequence, layer) in enumerate(rng.sample(run, len(run))):
            count = rng.choice([lengths[sequence], tokens, rng.randrange(2, tokens)])
            script.attend(sequence, layer, count, last=n == len(run) - 1 or rng.random() < 0.3)
        script.wait()

    attends()
    # No child sees a token of the prompt or of another child that came after its FORK.
    for turn in range(3):
        for sequence in rng.sample(everyone, len(everyone)):
            append_tokens(script, sequence, range(tokens + turn, tokens + turn + 1))
            lengths[sequence] += 1
        attends()
    assert script.free(parent) == Status.OK
    script.wait()
    everyone.remove(parent)
    attends()
    assert script.open() == parent  # its pages are new ones
    script.wait()
    append_tokens(script, parent, range(2))
    script.attend(parent, 0, 2)
    attends()
    assert script.trim(children[0], tokens) == Status.OK
    script.wait()
    script.attend(children[0], 0, lengths[children[0]])
    script.wait()
    for sequence in rng.sample([parent, *children], 1 + len(children)):
        assert script.free(sequence) == Status.OK
        script.wait()
    assert script.golden.free_pages == free
    return script.done()
