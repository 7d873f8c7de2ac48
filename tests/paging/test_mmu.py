"""golden.paging.mmu against lists of records: what was appended is read, and nothing else.

Shown to fail:

- ``skip`` off by one;
- a second page written at the first one's offset;
- a rolled back append whose tokens stay;
- the first response instead of the worst.
"""

import dataclasses
import random

import pytest

import golden.paging.config as paging
from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.format import SCALE_BYTES
from golden.paging.config import RecordKind, VectorRecords
from golden.paging.format import Op, PageOp, Status
from golden.paging.mmu import Answer, Mmu, Request, joined

CONFIG = CacheConfig(
    kv=KvShape(heads=2, head_dim=16, block=16),
    sequences=3,
    layers=2,
    pages=60,
    page_bytes=256,
    max_tokens=40,
)
KV = CONFIG.kv


def records_of(rng: random.Random) -> list[bytes]:
    records = []
    for _ in range(KV.heads):
        records.append(rng.randbytes(KV.dense_bytes))
        records.append(rng.randbytes(rng.randint(KV.head_blocks, KV.sparse_bytes_max)))
    return [*records, rng.randbytes(SCALE_BYTES)]


def check_read(mmu: Mmu, request: Request, records: list[list[bytes]], start: int) -> None:
    """``records``: of all tokens of the vector."""
    answer = mmu.request(request)
    size = mmu.word_bytes
    wanted = records[start : request.token]
    assert joined(answer.scale, size) == b"".join(token[-1] for token in wanted)
    assert [head.head for head in answer.heads] == list(
        range(request.head, request.head + request.heads)
    )
    for head in answer.heads:
        assert head.tokens == len(wanted)
        dense = b"".join(token[2 * head.head] for token in wanted)
        assert joined(head.dense, size) == dense
        first = start - head.skip
        sparse = b"".join(token[2 * head.head + 1] for token in records[first:])
        assert joined(head.sparse, size) == sparse
    for words in (answer.scale, *(w for h in answer.heads for w in (h.dense, h.sparse))):
        assert [word.last for word in words] == [0] * (len(words) - 1) + [1]
        assert all(word.end == size for word in words[:-1])
        assert not any(word.first for word in words[1:])


def owned_pages(mmu: Mmu) -> list[int]:
    return [
        page
        for sequence in range(mmu.config.sequences)
        for layer in range(CONFIG.layers)
        for kv in range(2)
        for slot in range(KV.slots)
        for page in mmu.table.chain(sequence, layer, kv, slot)
    ]


@pytest.mark.parametrize("data_bits", [64, 1024])
def test_what_was_appended_is_read(data_bits, seed):
    rng = random.Random(seed)
    mmu = Mmu(CONFIG, data_bits)
    cache: dict[int, dict] = {}
    counts = dict.fromkeys(Status, 0)
    for _ in range(3000):
        op = rng.choices([Op.OPEN, Op.APPEND, Op.READ, Op.TRIM, Op.FREE], [1, 60, 20, 4, 0.6])[0]
        if op == Op.OPEN or not cache:
            answer = mmu.request(Request(Op.OPEN))
            if answer.status == Status.OK:
                assert answer.sequence not in cache
                cache[answer.sequence] = {"start": 0}
            else:
                assert len(cache) == CONFIG.sequences
            continue
        number = rng.choice(list(cache))
        sequence, vector = cache[number], (rng.randrange(2), rng.randrange(2))
        records = sequence.setdefault(vector, [])
        request = Request(op, 0, number, *vector)
        if op == Op.APPEND:
            new = records_of(rng)
            free = mmu.free_pages
            answer = mmu.request(request._replace(token=len(records)), new)
            counts[answer.status] += 1
            if answer.status == Status.OK:
                records.append(new)
            elif answer.status == Status.OUT_OF_PAGES:
                assert mmu.free_pages == free < KV.slots
            else:
                assert answer.status == Status.LENGTH_LIMIT
                assert len(records) == CONFIG.max_tokens
        elif op == Op.READ:
            token = rng.randint(0, len(records))
            head = rng.randrange(KV.heads)
            heads = rng.randint(1, KV.heads - head)
            request = request._replace(head=head, heads=heads, token=token)
            if token > sequence["start"]:
                check_read(mmu, request, records, sequence["start"])
            else:
                assert mmu.request(request).status == Status.EMPTY
        elif op == Op.TRIM:
            vectors = [(layer, kv) for layer in range(2) for kv in range(2)]
            most = min(len(sequence.get(each, [])) for each in vectors)
            token = rng.randint(0, most + 1)
            answer = mmu.request(request._replace(token=token))
            assert answer.status == (Status.BEYOND_LENGTH if token > most else Status.OK)
            if token <= most:
                sequence["start"] = max(sequence["start"], token)
        else:
            assert mmu.request(request).status == Status.OK
            del cache[number]
        owned = owned_pages(mmu)
        assert len(set(owned)) == len(owned)
        assert mmu.free_pages + len(owned) == CONFIG.pages
    assert counts[Status.OUT_OF_PAGES]
    for number in list(cache):
        assert mmu.request(Request(Op.FREE, sequence=number)).status == Status.OK
    assert mmu.free_pages == CONFIG.pages


FORKS = dataclasses.replace(CONFIG, forks=True, sequences=5)
VECTORS = [(layer, kv) for layer in range(2) for kv in range(2)]


def test_children_have_what_their_parent_had(seed):
    """Sequences part and go on, are trimmed and freed in any order; each reads its own records.

    Shown to fail:

    - a copy of too few bytes;
    - a failed FORK whose child stays.
    """
    rng = random.Random(seed)
    mmu = Mmu(FORKS, 64)
    cache: dict[int, dict] = {}
    children: set[int] = set()
    counts = dict.fromkeys(Status, 0)
    for _ in range(1500):
        op = rng.choices(
            [Op.OPEN, Op.APPEND, Op.READ, Op.TRIM, Op.FREE, Op.FORK], [1, 30, 20, 4, 2, 8]
        )[0]
        if op == Op.OPEN or not cache:
            answer = mmu.request(Request(Op.OPEN))
            if answer.status == Status.OK:
                cache[answer.sequence] = {"start": 0} | {vector: [] for vector in VECTORS}
                children.discard(answer.sequence)
            continue
        number = rng.choice(list(cache))
        sequence = cache[number]
        lengths = [len(sequence[vector]) for vector in VECTORS]
        request = Request(op, 0, number)
        if op == Op.APPEND:  # a token of all vectors, or of some
            for vector in VECTORS[: rng.choice([4, 4, 4, 2])]:
                new = records_of(rng)
                named = Request(op, 0, number, *vector, token=len(sequence[vector]))
                if mmu.request(named, new).status == Status.OK:
                    sequence[vector].append(new)
        elif op == Op.READ:
            for vector in VECTORS:
                named = Request(op, 0, number, *vector, 0, KV.heads, len(sequence[vector]))
                if named.token > sequence["start"]:
                    check_read(mmu, named, sequence[vector], sequence["start"])
        elif op == Op.TRIM:
            token = rng.randint(0, min(lengths))
            assert mmu.request(request._replace(token=token)).status == Status.OK
            sequence["start"] = max(sequence["start"], token)
        elif op == Op.FREE:
            assert mmu.request(request).status == Status.OK
            del cache[number]
        else:
            token = max(lengths[0] + rng.choice([0, 0, 0, 1, -1]), 0)
            free = mmu.free_pages
            answer = mmu.request(request._replace(token=token))
            counts[answer.status] += 1
            if answer.status == Status.OK:
                assert set(lengths) == {token}
                cache[answer.sequence] = {
                    key: list(value) if key != "start" else value for key, value in sequence.items()
                }
                children.add(answer.sequence)
                assert number not in children
                continue
            assert mmu.free_pages == free
            assert answer.sequence == number
            assert (answer.status == Status.BAD_REQUEST) == (number in children)
            if answer.status == Status.TABLE_FULL:
                assert len(cache) == FORKS.sequences
            elif answer.status != Status.BAD_REQUEST:
                assert answer.status == Status.OUT_OF_PAGES or set(lengths) != {token}
        owned = owned_pages(mmu)
        assert mmu.free_pages + len(set(owned)) == FORKS.pages
    assert counts[Status.OK] > 10
    for number in rng.sample(list(cache), len(cache)):
        assert mmu.request(Request(Op.FREE, sequence=number)).status == Status.OK
    assert mmu.free_pages == FORKS.pages


@pytest.mark.parametrize("is_write", [False, True])
def test_a_fork_with_a_bus_error_is_undone(is_write):
    rng = random.Random(3)
    bad: dict[tuple[int, bool], int] = {}
    mmu = Mmu(FORKS, 64, lambda address, is_write: bad.get((address // 256, is_write), 0))
    mmu.request(Request(Op.OPEN))
    for layer, kv in VECTORS:
        assert mmu.request(Request(Op.APPEND, 0, 0, layer, kv), records_of(rng)).status == Status.OK
    free = mmu.free_pages
    pages = [next(iter(mmu.table.chain(0, 1, 1, 0))), next(iter(mmu.table.free_chain()))]
    bad[pages[is_write], is_write] = 2
    fork = Request(Op.FORK, sequence=0, token=1)
    assert mmu.request(fork) == Answer(Status.SLAVE_ERROR, 0)
    assert mmu.free_pages == free
    bad.clear()
    assert mmu.request(fork) == Answer(Status.OK, 1)
    assert mmu.request(fork._replace(sequence=1)) == Answer(Status.BAD_REQUEST, 1)
    assert Mmu(CONFIG, 64).request(fork).status == Status.BAD_REQUEST


def kinds(*sizes: tuple[str, int, int]) -> tuple[RecordKind, ...]:
    return tuple(RecordKind(name=name, least=least, most=most) for name, least, most in sizes)


SHAPES = {
    "codes": VectorRecords(heads=3, per_head=kinds(("codes", 48, 48)), per_vector=()),
    "two_fixed": VectorRecords(
        heads=2, per_head=kinds(("codes", 24, 24), ("norm", 3, 3)), per_vector=()
    ),
    "variable": VectorRecords(heads=2, per_head=kinds(("a", 2, 50)), per_vector=()),
    "kinds": VectorRecords(
        heads=2,
        per_head=kinds(("a", 1, 40), ("b", 16, 16), ("c", 9, 9), ("d", 3, 100)),
        per_vector=kinds(("e", 5, 30), ("f", 12, 12)),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_records_of_any_kinds_are_read(name, seed):
    """A window slides over one vector; each READ gives the records of the tokens in it.

    Shown to fail: ``skip`` of one kind in the info of another, tokens without the start.
    """
    rng, kv = random.Random(seed), SHAPES[name]
    mmu = Mmu(paging.CacheConfig(kv=kv, layers=1, pages=160, page_bytes=256, max_tokens=60), 64)
    mmu.request(Request(Op.OPEN))
    records: list[list[bytes]] = []
    for token in range(60):
        sizes = [kv.kind(slot) for slot in range(kv.slots)]
        new = [rng.randbytes(rng.randint(kind.least, kind.most)) for kind in sizes]
        for vector in range(2):
            request = Request(Op.APPEND, kv=vector, token=token)
            assert mmu.request(request, new).status == Status.OK
        records.append(new)
        start = max(token - 20, 0)
        assert mmu.request(Request(Op.TRIM, token=start)).status == Status.OK
        head = rng.randrange(kv.heads)
        answer = mmu.request(Request(Op.READ, head=head, heads=kv.heads - head, token=token + 1))
        assert answer.status == Status.OK
        for each in answer.heads:
            assert each.tokens == token + 1 - start
            for kind in kv.kinds:
                slot = kv.slot(kind.name, each.head)
                words = (answer.transfers | each.transfers)[kind.name]
                first = start - (0 if kind.is_fixed else each.skips[kv.skips[kind.name]])
                assert joined(words, 8) == b"".join(given[slot] for given in records[first:])
    assert mmu.request(Request(Op.FREE)).status == Status.OK
    assert mmu.free_pages == 160


class Forgetful(Mmu):
    """Walks over all streams at each TRIM."""

    def request(self, request, records=()):
        self._bounds.clear()
        return super().request(request, records)


def test_bounds_change_no_answer(seed):
    """Pages, their order in the free list and statuses are those of full walks.

    Shown to fail:

    - bounds that a FREE leaves to the next sequence;
    - a stream of one page without a bound;
    - a bound one token too high;
    - a TRIM to the bound itself left out.
    """
    rng = random.Random(seed)
    mmu, slow = Mmu(CONFIG, 64), Forgetful(CONFIG, 64)
    lengths: dict[int, list[int]] = {}
    ends, commands = [], []
    run = mmu.table.command
    mmu.table.command = lambda command: commands.append(command.op) or run(command)
    for _ in range(8000):
        op = rng.choices([Op.OPEN, Op.APPEND, Op.TRIM, Op.FREE], [1, 60, 20, 0.5])[0]
        number = rng.choice([*lengths, rng.randrange(CONFIG.sequences)])
        tokens = lengths.get(number, [0] * 4)
        vector = tokens.index(min(tokens)) if rng.random() < 0.8 else rng.randrange(4)
        request = Request(op, 0, number, vector // 2, vector % 2, token=tokens[vector])
        if op == Op.TRIM:
            most = min(tokens)
            token = rng.choice([most, most - 5, most - 8, rng.randint(0, most + 1)])
            request = request._replace(token=max(token, 0))
        records = records_of(rng) if op == Op.APPEND else []
        if records and rng.random() < 0.1:
            records[rng.randrange(len(records))] = b""
        commands.clear()
        answer = mmu.request(request, records)
        assert answer == slow.request(request, records)
        assert list(mmu.table.free_chain()) == list(slow.table.free_chain())
        if op == Op.TRIM and answer.status == Status.OK:
            ends.append(list(commands))
        elif op == Op.OPEN and answer.status == Status.OK:
            lengths[answer.sequence] = [0] * 4
        elif op == Op.APPEND and answer.status == Status.OK:
            tokens[vector] += 1
        elif op == Op.FREE and answer.status == Status.OK:
            del lengths[number]
    alone = sum(each == [PageOp.SET_START] for each in ends)
    some = sum(0 < each.count(PageOp.TRIM_CHECK) < 4 for each in ends)
    assert alone > 100
    assert some > 100
    assert len(ends) > alone + some


def test_refusals():
    mmu = Mmu(CONFIG, 64)
    rng = random.Random(1)
    assert mmu.request(Request(7, sequence=9)).status == Status.BAD_REQUEST
    for op in (Op.APPEND, Op.READ, Op.TRIM, Op.FREE):
        request = Request(op, sequence=1, heads=1)
        assert mmu.request(request, records_of(rng)).status == Status.SEQUENCE_UNKNOWN
    assert mmu.request(Request(Op.OPEN)) == Answer(Status.OK, 0)
    none = [b""] * KV.slots
    for wrong, status in (
        ({"layer": 2}, Status.BAD_REQUEST),
        ({"sequence": 2}, Status.SEQUENCE_UNKNOWN),
        ({"token": 1}, Status.TOKEN_ORDER),
        ({}, Status.VECTOR_LENGTH),
    ):
        assert mmu.request(Request(Op.APPEND)._replace(**wrong), none).status == status
    assert mmu.free_pages == CONFIG.pages
    assert mmu.request(Request(Op.APPEND), records_of(rng)).status == Status.OK
    for wrong, status in (
        ({"heads": 0}, Status.BAD_REQUEST),
        ({"head": 1, "heads": 2}, Status.BAD_REQUEST),
        ({"layer": 2}, Status.BAD_REQUEST),
        ({"token": 2}, Status.BEYOND_LENGTH),
        ({"token": 0}, Status.EMPTY),
    ):
        request = Request(Op.READ, heads=1, token=1)._replace(**wrong)
        assert mmu.request(request).status == status


@pytest.mark.parametrize(
    ("responses", "status"), [((2,), Status.SLAVE_ERROR), ((2, 3), Status.DECODE_ERROR)]
)
def test_the_worst_response_is_told(responses, status):
    """On writes, where the append is rolled back, and on reads, from that word on."""
    rng = random.Random(2)
    bad: dict[tuple[int, bool], int] = {}
    mmu = Mmu(CONFIG, 64, lambda address, is_write: bad.get((address, is_write), 0))
    mmu.request(Request(Op.OPEN))
    bad.update({(256 * n, True): resp for n, resp in enumerate(responses)})
    assert mmu.request(Request(Op.APPEND), records_of(rng)).status == status
    assert mmu.free_pages == CONFIG.pages
    bad.clear()
    for token in range(4):
        assert mmu.request(Request(Op.APPEND, token=token), records_of(rng)).status == Status.OK
    dense = next(iter(mmu.table.chain(0, 0, 0, 0)))
    bad.update({(256 * dense + 8 * n, False): resp for n, resp in enumerate(responses, 1)})
    answer = mmu.request(Request(Op.READ, heads=1, token=4))
    assert answer.status == status
    assert [word.error for word in answer.heads[0].dense][:2] == [0, responses[0]]
    assert answer.heads[0].dense[-1].error == max(responses)
