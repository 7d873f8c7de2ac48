"""No sequence changes, reads or delays another: the whole chip, several sequences in each step.

Each request's tokens are those of the golden machine, which has the request alone. All traffic of
the pages goes through ``owners.Owners``. It compares K and V of every token with golden's, byte for
byte. Pages that are freed get other bytes at once, so a use of them would show.

Shown to fail: the faults of ``test_planted_faults``. ``test_watch.py`` has those of single words.
"""

import dataclasses
import itertools
import shutil
from collections.abc import Callable

import pytest

from golden.kllm import engines
from golden.kllm.cache import Place
from golden.kllm.fetch import program_image
from golden.kllm.model.host import ModelHost
from golden.kllm.model.host_image import host_image
from golden.kllm.model.program import step_program
from golden.oaken.kv_engine import Request
from golden.paging.format import Op
from senbazuru.host.build import build_chip
from senbazuru.host.engine import Engine, HostError, Reason, VerilatedChip, result_text
from senbazuru.host.owners import Owners
from senbazuru.host.planted import PLANTED
from senbazuru.host.test_host import (
    BAD,
    DATA,
    GREEDY,
    MACHINE,
    PLACES,
    SHARED,
    SIZES,
    prompt,
    served,
)
from senbazuru.host.wanted import Wanted, take
from senbazuru.host.watched import Registers, WatchedChip, is_done, oracle_of
from tests.kllm import model_example as example

LAYERS = 2
CACHE = MACHINE.cache
READS, WRITES = DATA + 1, DATA + 2  # ports of the pages
WORD = SHARED.attention_config.engine.mmu.data_bits // 8
NAN = 0x7E00
LATENCY = 5


def asked() -> list[Wanted]:
    """Who is disturbed, then the others."""
    return [
        Wanted(prompt(90, 10), 6, (1.5, 6, 3)), Wanted(prompt(91, 6), 7), Wanted(prompt(92, 1), 9,
        (1.2, 5, 4), user=1), Wanted(prompt(93, 13), 3, GREEDY, user=2),
    ]  # fmt: skip


class Golden:
    """The golden machine: of a request alone its tokens, and the records of each K and V.

    engine : whose records they are, of the machine's ``engines``
    """

    def __init__(
        self, layers: int, sizes: dict | None = None, engines: int = 1, engine: int = 0
    ) -> None:
        self.layers, self.engine = layers, engine
        image = example.image(layers=layers, engines=engines, **(sizes or SIZES))
        self.host = ModelHost(image)
        self.records: dict[tuple[tuple[int, ...], int, int], list[bytes]] = {}
        self.oracle = oracle_of(self.records)

    def tokens(self, request: Wanted) -> list[int]:
        cache = self.host.machine.cache
        assert cache is not None
        sequence = cache.request(Request(Op.OPEN)).sequence
        temperature, top_k, seed = request.sampling
        sampling = engines.Sampling.at(temperature, top_k, seed) if temperature else None
        tokens, cached = request.whole, 0
        while len(tokens) < len(request.whole) + request.most:
            count = min(PLACES, len(tokens) - cached)
            chooses = cached + count == len(tokens)
            places = [
                Place(sequence, position, tokens[position], sampling)
                for position in range(cached, cached + count)
            ]
            ids = self.host.step(step_program(self.host.layout, count, int(chooses)), places).ids
            tokens, cached = tokens + ids, cached + count
        for token in range(cached):
            for layer in range(self.layers):
                for kv in range(2):
                    found = cache.engines[self.engine].records(sequence, layer, kv, token)
                    self.records[tuple(tokens[: token + 1]), layer, kv] = found
        cache.request(Request(Op.FREE, sequence))
        return tokens[len(request.whole) :]


@pytest.fixture(scope="module")
def library():
    return build_chip(SHARED)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pack") / "model"
    return example.packed(folder, layers=LAYERS, **SIZES)


@pytest.fixture(scope="module")
def golden():
    return Golden(LAYERS)


@pytest.fixture(scope="module")
def alone(golden):
    """The tokens of each of ``asked``."""
    return [golden.tokens(each) for each in asked()]


def image_of(pack):
    return host_image(pack.step_programs, pack.thresholds.tolist())


@dataclasses.dataclass
class Bench:
    """A watched chip; the counts of all tests go to one line."""

    chip: WatchedChip
    pack: object
    golden: Golden

    @property
    def owners(self) -> Owners:
        return self.chip.owners

    def engine(self, **options) -> Engine:
        return Engine(self.chip, image_of(self.pack), **options)

    def pages_of(self, request: Wanted, engine: Engine) -> list[int]:
        """The pages of a request that runs."""
        sequence = engine.usage(request.number)["sequence"]
        return self.owners.pages_of(sequence) if sequence >= 0 else []

    def set_errors(self, port: int, pages, is_set: bool = True) -> None:
        each = CACHE.page_bytes // WORD
        for page in pages:
            for word in range(page * each, (page + 1) * each):
                self.chip.chip.set_error(port, word, is_set)


@pytest.fixture
def bench(library, packed, golden, alone, record_property):
    with VerilatedChip(library, packed.folder, LATENCY) as chip:
        owners = Owners(CACHE, WORD, golden.oracle)
        made = Bench(WatchedChip(chip, owners, PLACES), packed, golden)
        yield made
    for name, value in dataclasses.asdict(owners.counts).items():
        record_property(name, value)
    print(owners.counts)


def serve(bench, requests, step=lambda _number, _engine: None, **options):
    """Takes all requests to their ends at once; the reports of the steps, and the figures."""
    with bench.engine(**options) as engine:
        reports = served(
            engine, [(0, each) for each in requests], lambda number: step(number, engine)
        )
        return reports, engine.stats()


def check(requests, alone):
    """The tokens of each are golden's, of those that did not end early."""
    for request, tokens in zip(requests, alone, strict=True):
        if request.end.reason == Reason.LENGTH:
            assert request.tokens == tokens
        else:
            assert request.tokens == tokens[: len(request.tokens)]


def test_nothing_disturbs(bench, alone):
    """Every word of the pages is right, and read by its own sequence alone."""
    requests = asked()
    reports, stats = serve(bench, requests)
    check(requests, alone)
    assert {each.end.reason for each in requests} == {Reason.LENGTH}
    counts = bench.owners.counts
    assert not counts.lost
    assert not stats["failed_steps"]
    tokens = sum(len(each.prompt) + each.most - 1 for each in requests)
    assert counts.vectors == 2 * LAYERS * tokens
    assert counts.words == counts.vectors * CACHE.kv.elements
    assert sum(each["sequences"] >= 3 for each in reports) >= 6
    assert not bench.owners.owner  # all pages are free again


# One request is disturbed: the others' tokens, and every K and V, are as alone.


@pytest.mark.telling(f"7-{READS}", f"4-{WRITES}")
@pytest.mark.parametrize("port", [READS, WRITES])
@pytest.mark.parametrize("at", [4, 7])
def test_bus_errors_of_one_sequence(port, at, bench, alone):
    """All pages of one sequence give errors in one step."""
    requests = asked()
    pages: list[int] = []

    def disturb(number, engine):
        if number == at:
            pages.extend(bench.pages_of(requests[0], engine))
            assert pages
            bench.set_errors(port, pages)
        elif number == at + 1:
            bench.set_errors(port, pages, False)

    reports, _stats = serve(bench, requests, disturb)
    check(requests, alone)
    assert {each.end.reason for each in requests} == {Reason.LENGTH}
    assert [n for n, each in enumerate(reports) if each["failed"]] == [at]
    assert "(CACHE): BUS_ERROR" in result_text(reports[at]["result"])
    assert reports[at]["sequences"] > 1


def test_pages_that_stay_bad(bench, alone):
    """A request with bad pages ends with FAULT; the others go on in pages that are good."""
    requests = asked()
    bad: set[int] = set()

    def disturb(_number, engine):
        if requests[0].end is None:
            found = set(bench.pages_of(requests[0], engine)) - bad
            bench.set_errors(READS, found)
            bad.update(found)
        else:
            bench.set_errors(READS, bad, False)

    _, stats = serve(bench, requests, disturb, sequences=3)
    assert requests[0].end.reason == Reason.FAULT
    assert stats["failed_steps"] >= 3
    check(requests, alone)
    assert [each.end.reason for each in requests[1:]] == [Reason.LENGTH] * 3


@pytest.fixture
def broken_pack(packed, tmp_path):
    """The packed model, but the embedding of one token has a NaN."""
    folder = tmp_path / "broken"
    shutil.copytree(packed.folder, folder)
    with (folder / "data.bin").open("r+b") as file:
        file.seek(32 * packed.layout.row_of_token(BAD) + 6)
        file.write(NAN.to_bytes(2, "little"))
    return dataclasses.replace(packed, folder=folder)


@pytest.mark.telling("9")
@pytest.mark.parametrize("place", [3, 9])
def test_a_token_that_is_no_number(place, library, broken_pack, golden, alone):
    requests = asked()
    requests[0].prompt[place] = BAD
    assert not any(BAD in tokens for tokens in alone[1:])
    with VerilatedChip(library, broken_pack.folder, LATENCY) as chip:
        owners = Owners(CACHE, WORD, golden.oracle)
        bench = Bench(WatchedChip(chip, owners, PLACES), broken_pack, golden)
        _, stats = serve(bench, requests)
    assert requests[0].end.reason == Reason.FAULT
    assert not requests[0].tokens
    check(requests[1:], alone[1:])
    assert [each.end.reason for each in requests[1:]] == [Reason.LENGTH] * 3
    assert stats["failed_steps"] >= 3


@pytest.mark.telling(f"{NAN}")
@pytest.mark.parametrize("word", [NAN, 0x7C00])
def test_a_stored_scale_that_is_no_number(word, bench, alone):
    """NaN or infinity in the first record of one sequence: it goes through again in other pages."""
    requests = asked()

    def disturb(number, engine):
        if number == 6:
            sequence = engine.usage(requests[0].number)["sequence"]
            page = bench.owners.streams[sequence, 1, 1, 0].pages[0]
            bench.chip.damage(page * CACHE.page_bytes + 2, word.to_bytes(2, "little"))

    _reports, stats = serve(bench, requests, disturb)
    check(requests, alone)
    assert {each.end.reason for each in requests} == {Reason.LENGTH}
    assert stats["failed_steps"] == 1


@pytest.mark.telling("400")
@pytest.mark.parametrize("polls", [3, 400])
def test_an_abort_in_the_middle(polls, bench, alone):
    """A step of all sequences ends by an abort, early or late. Everybody goes through again."""
    requests, left = asked(), []

    def disturb(number, _engine):
        left[:] = [polls] if number == 5 else []

    def during():
        if left:
            left[0] -= 1
            if not left[0]:
                bench.chip.abort()
                left.clear()

    bench.chip.during = during
    reports, _ = serve(bench, requests, disturb)
    (failed,) = (each for each in reports if each["failed"])
    assert "ABORTED" in result_text(failed["result"])
    assert failed["sequences"] > 1
    check(requests, alone)
    assert {each.end.reason for each in requests} == {Reason.LENGTH}


@pytest.mark.telling("3")
@pytest.mark.parametrize("after", range(1, 8, 2))
def test_a_cancel_in_the_middle(after, bench, alone):
    """Its pages go to a request that comes then, whose tokens are as alone too."""
    requests = asked()
    late = asked()[3]
    with bench.engine(sequences=4) as engine:
        for each in requests:
            each.submit(engine)
        requests.append(late)
        number = 0
        while engine.is_busy:
            if number == after:
                engine.cancel(requests[0].number)
                late.submit(engine)
            engine.step()
            number += 1
            take(engine, [each for each in requests if each.number])
    assert requests[0].end.reason == Reason.CANCELLED
    check(requests, [*alone, alone[3]])
    assert all(each.end.reason == Reason.LENGTH for each in requests[1:])


# Time.


def test_a_long_sequence_delays_nobody_for_ever(bench, golden):
    """A request with one token left gets a place every ceil(S / P) steps: S sequences, P places.

    Prompts get the places that are left.
    """
    requests = [
        Wanted(prompt(70, 30), 6), *(Wanted(prompt(71 + n, 1), 12, user=n) for n in range(5))
    ]  # fmt: skip
    alone = [golden.tokens(each) for each in requests]
    came: dict[int, list[int]] = {}
    with bench.engine() as engine:
        for each in requests:
            each.submit(engine)
        number = 0
        while engine.is_busy:
            engine.step()
            seen = [len(each.tokens) for each in requests]
            take(engine, requests)
            for each, before in zip(requests, seen, strict=True):
                came.setdefault(each.number, []).extend([number] * (len(each.tokens) - before))
            number += 1
    check(requests, alone)
    gaps = [b - a for steps in came.values() for a, b in itertools.pairwise(steps)]
    assert len(gaps) == sum(each.most - 1 for each in requests)
    assert max(gaps) == -(-SIZES["sequences"] // PLACES)
    assert all(each.end.reason == Reason.LENGTH for each in requests)


# What the chip itself keeps apart, without a host that repeats anything.


class Seat:
    """A request on a chip whose host is the test: what it has, and what golden gives it."""

    def __init__(self, host: Registers, request: Wanted, tokens: list[int]) -> None:
        self.host, self.first = host, len(request.prompt)
        self.tokens, self.cached = [*request.prompt, *tokens], 0
        self.sequence = host.open()

    def next(self, token: int | None = None) -> tuple[int, int, int]:
        """A place of its next token, or of another one in its stead."""
        position = self.cached
        self.cached += 1
        return self.sequence, position, self.tokens[position] if token is None else token

    def takes(self, word: int) -> bool:
        """Whether an id is that which it gets alone; within a prompt none is known."""
        return self.cached < self.first or word == self.tokens[self.cached]


def advance(host: Registers, seats: list[Seat]) -> None:
    """A step of all of them, whose ids are right."""
    result, ids = host.step([seat.next() for seat in seats], len(seats))
    assert is_done(result)
    assert len(ids) == len(seats)
    assert all(seat.takes(word) for seat, word in zip(seats, ids, strict=True))


def seated(host: Registers, requests, alone) -> list[Seat]:
    """Each has six tokens."""
    seats = [Seat(host, each, tokens) for each, tokens in zip(requests, alone, strict=True)]
    for _ in range(6):
        advance(host, seats[:PLACES])
        advance(host, seats[PLACES:])
    return seats


def stream_of(bench: Bench, seat: Seat):
    """V of its first layer, so that there is a layer after what goes wrong."""
    return bench.owners.streams[seat.sequence, 0, 1, 0]


def read_error(bench, seat):
    bench.set_errors(READS, stream_of(bench, seat).pages)


def write_error(bench, seat):
    """The words of its next record fail."""
    found = stream_of(bench, seat)
    first = (found.pages[-1] * CACHE.page_bytes + found.end) // WORD
    for word in range(first, first + 2):
        bench.chip.chip.set_error(WRITES, word)


def bad_scale(bench, seat):
    bench.chip.damage(
        stream_of(bench, seat).pages[0] * CACHE.page_bytes + 2, NAN.to_bytes(2, "little")
    )


def abort(bench, _seat):
    left = [60]

    def during():
        left[0] -= 1
        if not left[0]:
            bench.chip.abort()

    bench.chip.during = during


def nothing(_bench, _seat):
    pass


@dataclasses.dataclass(frozen=True)
class Case:
    """A disturbance at place 0, and what the step leaves of the three others.

    status: of the step; mate: whether place 1, which is of the same group of tokens, has K and V as
    alone; others: whether places 2 and 3 have, of the other group; ids: whether all three ids are
    """

    disturb: Callable[[Bench, Seat], None]
    status: str
    mate: bool
    others: bool
    ids: bool
    token: int | None = None
    position: int = 0  # so many too far


CASES = {
    "write error": Case(write_error, "(CACHE): BUS_ERROR", True, True, True),
    "position": Case(nothing, "(CACHE): SLOT_MISMATCH", True, True, True, position=1),
    "read error": Case(read_error, "(CACHE): BUS_ERROR", False, True, False),
    "scale": Case(bad_scale, "(CACHE)", False, True, False),
    "embedding": Case(nothing, "(QUANTIZE): NONFINITE", False, True, False, token=BAD),
    "abort": Case(abort, "ABORTED", False, False, False),
}


@pytest.mark.telling("read error", "write error", "embedding")
@pytest.mark.parametrize("name", CASES)
def test_what_a_failed_step_leaves(name, library, broken_pack, golden):
    """A fifth sequence has no place in that step, and goes on as if there had been none."""
    case, layout = CASES[name], broken_pack.layout
    requests = [
        dataclasses.replace(each, sampling=GREEDY) for each in (*asked(), Wanted(prompt(94, 5), 6))
    ]
    tokens = [golden.tokens(each) for each in requests]
    with VerilatedChip(library, broken_pack.folder, LATENCY) as chip:
        owners = Owners(CACHE, WORD, golden.oracle)
        watched = WatchedChip(chip, owners, PLACES)
        bench = Bench(watched, broken_pack, golden)

        def image(count: int, choosing: int) -> bytes:
            return program_image(step_program(layout, count, choosing).words, MACHINE)

        host = Registers(watched, broken_pack.thresholds.tolist(), image, layout.rows)
        bad, *others, absent = seated(host, requests, tokens)
        case.disturb(bench, bad)
        sequence, position, token = bad.next(case.token)
        places = [(sequence, position + case.position, token), *(each.next() for each in others)]
        result, ids = host.step(places, len(places))
        watched.during = lambda: None
        assert not is_done(result)
        kept = [owners.done.get(each.sequence, 0) == 2 * LAYERS for each in others]
        right = len(ids) == len(places) and all(
            each.takes(word) for each, word in zip(others, ids[1:], strict=True)
        )
        print(name, result_text(result), kept, right, owners.counts)
        assert case.status in result_text(result)
        assert kept == [case.mate, case.others, case.others]
        assert right == case.ids
        # Who has K and V as alone goes on with the fifth, with the same bits.
        for port in (READS, WRITES):
            bench.set_errors(port, range(CACHE.pages), False)
        host.free(bad.sequence)
        going = [absent]
        for each, has in zip(others, kept, strict=True):
            if has:
                going.append(each)
            else:
                host.free(each.sequence)
        for _ in range(2):
            advance(host, going)


# Faults.


class Tamper:
    """Words of a host that is wrong: ``change`` gets a group of words in the place of the chip."""

    def __init__(self, register: str, change: Callable[[list[int]], None]) -> None:
        self.register, self.change = register, change
        self.group: list[int] = []

    def __call__(self, name: str, word: int) -> int:
        """The words of a group come one by one, so a change sees those that came before."""
        if name != self.register:
            return word
        size = 4 if name == "REQUEST" else 5 if self.group and self.group[0] >> 9 & 1 else 3
        self.group.append(word)
        given = list(self.group)
        self.change(given)
        if len(self.group) == size:
            self.group = []
        return given[-1]


def of_batch(number: int, change: Callable[[int, list[int]], int]) -> Callable[[], Tamper]:
    """Word ``number`` of a place becomes ``change(word, those of the same number before)``."""

    def made() -> Tamper:
        before: list[int] = []

        def apply(words: list[int]) -> None:
            if len(words) == number + 1:
                word = words[-1]
                words[-1] = change(word, before)
                before.append(word)

        return Tamper("BATCH", apply)

    return made


def of_request(op: Op, change: Callable[[list[int]], None]) -> Callable[[], Tamper]:
    def made() -> Tamper:
        return Tamper("REQUEST", lambda words: change(words) if words[0] & 0xFF == op else None)

    return made


def other_sequence(words: list[int]) -> None:
    if len(words) == 1:
        words[0] ^= 1 << 16


def other_layer(words: list[int]) -> None:
    if len(words) == 1:
        words[0] ^= 1 << 24


def other_side(words: list[int]) -> None:
    if len(words) == 2:
        words[1] ^= 1 << 31


def last(word: int, before: list[int]) -> int:
    return before[-1] if before else word


def sequence_of_last(word: int, before: list[int]) -> int:
    return word & 0xFFFF | (before[-1] if word & 0xFF and before else word) & 0xFF0000


TAMPERED = {
    "two places of the batch are swapped": of_batch(0, lambda word, _: word ^ 1),
    "a place has the sequence of the one before": of_batch(0, sequence_of_last),
    "a place has the position of the one before": of_batch(1, last),
    "a place has the token of the one before": of_batch(2, last),
    "a position is one too high": of_batch(1, lambda word, _: word + 1),
    "FREE of another sequence": of_request(Op.FREE, other_sequence),
    "thresholds of another layer": of_request(Op.THRESHOLDS, other_layer),
    "thresholds of K for V": of_request(Op.THRESHOLDS, other_side),
    "the seed of a place is that of the one before": of_batch(4, last),
}


def is_found(bench, alone) -> str:
    """Says how a wrong chip, or a wrong host, shows; "": it does not."""
    requests = asked()
    requests[1].sampling = 1.1, 6, 77
    try:
        _, stats = serve(bench, requests)
        check(requests, alone)
    except (HostError, AssertionError) as found:
        return str(bench.chip.failure or found) or "other tokens"
    if stats["failed_steps"]:
        return f"failed steps: {stats['failed_steps']}"
    return "" if all(each.end.reason == Reason.LENGTH for each in requests) else "an END"


@pytest.fixture(scope="module")
def drawn(golden):
    """The tokens of the requests of ``is_found``."""
    requests = asked()
    requests[1].sampling = 1.1, 6, 77
    return [golden.tokens(each) for each in requests]


@pytest.mark.telling("FREE of another sequence", "thresholds of K for V")
@pytest.mark.parametrize("name", TAMPERED)
def test_words_that_are_wrong(name, bench, drawn):
    bench.chip.tamper = TAMPERED[name]()
    found = is_found(bench, drawn)
    print(name, "->", found)
    assert found


@pytest.mark.telling
@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults(name, packed, golden, drawn):
    """Each chip takes minutes to compile."""
    with VerilatedChip(
        build_chip(SHARED, 1, PLANTED[name].accelerator()), packed.folder, LATENCY
    ) as chip:
        owners = Owners(CACHE, WORD, golden.oracle)
        bench = Bench(WatchedChip(chip, owners, PLACES), packed, golden)
        found = is_found(bench, drawn)
    print(name, "->", found)
    assert found
