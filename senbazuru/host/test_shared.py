"""Children of one prompt on the generated RTL, each equal to its whole prompt alone, bit for bit.

The machine has four places, nine sequences, and pages of 256 bytes that sequences share. The model
is a random LLaMA of one layer.

Shown to fail: the faults of the chip that docs/decisions/0338-prefixes-are-shared.md lists.
"""

import dataclasses
import random

import pytest

from golden.kllm.cache import Place
from golden.kllm.model.host import ModelHost
from golden.kllm.model.host_image import pages_most
from golden.kllm.model.program import step_program
from golden.oaken.kv_engine import Request
from golden.paging.format import Op
from hdl.kllm.room import BLOCKS
from senbazuru.host.build import build_chip
from senbazuru.host.engine import Engine, Policy, Reason, VerilatedChip
from senbazuru.host.test_host import DATA, GREEDY, image_of, one_by_one, prompt
from senbazuru.host.wanted import Prefix, Wanted, take
from tests.kllm import model_example as example

SIZES = {"sequences": 9, "pages": 120, "page_bytes": 256, "forks": True}
MACHINE = example.paged(layers=1, **SIZES)
SMALL = BLOCKS["kllm_accelerator"].configs["small_forks"]
# As ``make talk`` builds it.
SHARED = dataclasses.replace(
    SMALL, machine=MACHINE, functions=4, ahead=True, banks=2,
    build=dataclasses.replace(SMALL.build, coding="sums", packet_words=16),
)  # fmt: skip
PLACES, CONTEXT = MACHINE.batch, example.CONTEXT
PAGE_WORDS = MACHINE.cache.page_bytes // (SHARED.attention_config.engine.mmu.data_bits // 8)


@pytest.fixture(scope="module")
def library():
    return build_chip(SHARED)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pack") / "model"
    return example.packed(folder, layers=1, **SIZES)


@pytest.fixture(scope="module")
def golden():
    return ModelHost(example.image(layers=1, **SIZES))


def whole(request):
    """The same request without a prefix."""
    return dataclasses.replace(
        request, prompt=request.whole, prefix=None, tokens=[], end=None, number=0
    )


def golden_ids(host, sequence, tokens, cached, most):
    """The chosen tokens after ``tokens``, of which so many are cached."""
    made = list(tokens)
    while len(made) < len(tokens) + most:
        count = min(PLACES, len(made) - cached)
        chooses = cached + count == len(made)
        places = [Place(sequence, at, made[at]) for at in range(cached, cached + count)]
        made += host.step(step_program(host.layout, count, int(chooses)), places).ids
        cached += count
    return made[len(tokens) :]


def test_golden_forks_a_prompt(golden):
    """A child has the tokens of the whole prompt; it has the prompt's full pages."""
    cache = golden.machine.cache
    table, before = cache.engines[0].table, prompt(1, 20)
    free = table.free_pages
    (alone, parent) = (cache.request(Request(Op.OPEN)).sequence for _ in range(2))
    wanted = golden_ids(golden, alone, [*before, 9], 0, 3)
    pages = free - table.free_pages
    for at in range(0, 20, PLACES):
        places = [Place(parent, n, before[n]) for n in range(at, at + PLACES)]
        golden.step(step_program(golden.layout, PLACES, 0), places)
    middle = table.free_pages
    answer = cache.request(Request(Op.FORK, parent, token=20))
    assert answer.status == 0
    child = answer.sequence
    assert golden_ids(golden, child, [*before, 9], 20, 3) == wanted
    assert middle - table.free_pages < pages / 2
    for sequence in (parent, alone, child):
        assert cache.request(Request(Op.FREE, sequence)).status == 0
    assert table.free_pages == free


def children(prefix, count):
    rng = random.Random(7)
    return [
        Wanted(
            prompt(n, 1 + n % 3), 4, GREEDY if n % 2 else (1.2, 5, rng.getrandbits(32)),
            user=n % 3, prefix=prefix,
        )
        for n in range(count)
    ]  # fmt: skip


def test_children_of_one_prompt(library, packed, golden):
    """Eight children at once: the prompt goes through once, and all tokens are as alone."""
    prefix = Prefix(prompt(50, 20))
    shared = children(prefix, MACHINE.cache.sequences - 1)
    with VerilatedChip(library, packed.folder, 5) as chip:
        alone = one_by_one(chip, packed, [whole(each) for each in shared])
    # Golden's own FORK has been compared above; here are its tokens of the whole prompt.
    cache = golden.machine.cache
    for each, found in zip(shared, alone, strict=True):
        if each.sampling == GREEDY:
            sequence = cache.request(Request(Op.OPEN)).sequence
            assert golden_ids(golden, sequence, each.whole, 0, each.most) == found
            cache.request(Request(Op.FREE, sequence))
    figures = {}
    for name in ("shared", "apart"):
        requests = shared if name == "shared" else [whole(each) for each in shared]
        with (
            VerilatedChip(library, packed.folder, 5) as chip,
            Engine(chip, image_of(packed)) as engine,
        ):
            assert engine.facts["forks"] == 1
            if name == "shared":
                prefix.submit(engine)
            pages = []

            def step(_number, engine=engine, pages=pages):
                pages.append(engine.stats()["pages_most"])

            requests = [each.submit(engine) for each in requests]
            served_more(engine, [prefix, *requests], step)
            stats = engine.stats()
            assert not stats["failed_steps"]
            assert stats["forks"] == (len(shared) if name == "shared" else 0)
            assert [each.tokens for each in requests] == alone
            figures[name] = (stats["steps"], stats["tokens"], stats["cycles"], max(pages))
            if name == "shared":
                engine.cancel(prefix.number)
                engine.step()
                assert engine.stats()["pages_most"] == 0
    print("steps, tokens, cycles, most pages:", figures)
    own = sum(len(each.prompt) + each.most - 1 for each in shared)
    assert figures["shared"][1] == len(prefix.prompt) + own
    assert figures["apart"][1] == len(shared) * len(prefix.prompt) + own
    assert figures["shared"][2] < figures["apart"][2]
    # Eight are open at the same time, on pages that would not do for eight prompts.
    assert figures["shared"][3] < len(shared) * pages_most(golden.layout, len(prefix.prompt))


def served_more(engine, requests, step):
    """Steps until all that can end has ended; the reports."""
    reports = []
    while engine.is_busy:
        step(len(reports))
        reports.append(engine.step())
        take(engine, requests)
    return reports


def test_faults(library, packed):
    """Pages of the prompt cannot be read for one step, nor written in a FORK: all are as alone."""
    prefix = Prefix(prompt(51, 13))
    shared = children(prefix, 4)
    with VerilatedChip(library, packed.folder, 5) as chip:
        alone = one_by_one(chip, packed, [whole(each) for each in shared])
    for port, when in ((DATA + 1, 6), (DATA + 2, 3), (DATA + 1, 3)):
        again = Prefix(prefix.prompt)
        requests = [dataclasses.replace(each, prefix=again, tokens=[], end=None) for each in shared]
        with (
            VerilatedChip(library, packed.folder, 5) as chip,
            Engine(chip, image_of(packed)) as engine,
        ):

            def step(number, chip=chip, port=port, when=when):
                if number in (when, when + 1):
                    for word in range(MACHINE.cache.pages * PAGE_WORDS):
                        chip.set_error(port, word, number == when)

            again.submit(engine)
            for each in requests:
                each.submit(engine)
            served_more(engine, [again, *requests], step)
            stats = engine.stats()
        assert stats["failed_steps"] + (stats["forks"] < 4) > 0
        assert [each.tokens for each in requests] == alone
        assert {each.end.reason for each in requests} == {Reason.LENGTH}


def test_a_reset_in_between(library, packed):
    prefix = Prefix(prompt(52, 13))
    shared = children(prefix, 3)
    with VerilatedChip(library, packed.folder, 5) as chip:
        alone = one_by_one(chip, packed, [whole(each) for each in shared])
    with (
        VerilatedChip(library, packed.folder, 5) as chip,
        Engine(chip, image_of(packed)) as engine,
    ):
        for each in (prefix, *shared):
            each.submit(engine)
        served_more(
            engine, [prefix, *shared], lambda number: engine.reset() if number == 6 else None
        )
        assert engine.usage(prefix.number)["repeats"] == 1
        assert engine.stats()["forks"] == 6
    assert [each.tokens for each in shared] == alone


def pages_of(golden, tokens):
    """The pages that so many tokens of a prompt take, by their number."""
    cache, made = golden.machine.cache, [0]
    table = cache.engines[0].table
    free, sequence = table.free_pages, cache.request(Request(Op.OPEN)).sequence
    for at, token in enumerate(tokens):
        golden.step(step_program(golden.layout, 1, 0), [Place(sequence, at, token)])
        made.append(free - table.free_pages)
        assert made[-1] <= pages_most(golden.layout, at + 1)
    cache.request(Request(Op.FREE, sequence))
    return made


@pytest.fixture(scope="module")
def filling(golden):
    """Tokens of prefixes that have all pages of the machine, to the last one: golden's count."""
    pages, line = MACHINE.cache.pages, prompt(3, CONTEXT - 2)
    counts = pages_of(golden, line)
    reach: dict[int, list[int]] = {0: []}  # pages to the lengths of the prefixes
    for _ in range(MACHINE.cache.sequences - 1):
        reach = {
            total + counts[length]: [*lengths, length]
            for total, lengths in reach.items()
            for length in range(1, CONTEXT - 1)
        }
    shortest = min(reach[pages])
    # One more token of this one would take a page that is not there.
    assert counts[shortest + 1] > counts[shortest]
    return [line[:length] for length in reach[pages]]


def fills(engine, lines):
    """Whether the chip has room for all of them at the same time."""
    prefixes = [Prefix(line).submit(engine) for line in lines]
    reports = served_more(engine, prefixes, lambda _number: None)
    return not any(each["failed"] for each in reports)


def test_every_page_counts(library, packed, filling):
    """The prefixes of ``filling`` fit a chip that was just reset; a token more finds no page."""
    shortest = min(filling, key=len)
    longer = prompt(3, len(shortest) + 1)
    more = [longer if line is shortest else line for line in filling]
    for lines in (filling, more):
        with (
            VerilatedChip(library, packed.folder, 5) as chip,
            Engine(chip, image_of(packed)) as engine,
        ):
            assert fills(engine, lines) == (lines is filling)


@pytest.mark.telling("200")
@pytest.mark.parametrize("count", [200, 2000])
def test_soak(count, library, packed, filling, seed):
    """Random prefixes and requests come, are cancelled, and meet errors of the pages' memory.

    A part of the requests follows a prefix. At the end every page is free: prefixes that have all
    of them, by golden's count, fit.
    """
    rng = random.Random(seed)
    starts = [prompt(rng.random(), rng.choice([3, 9, 14, 20, 26])) for _ in range(4)]
    kinds = [
        Wanted(prompt(rng.random(), rng.choice([1, 2, 3, 7])), 5,
               rng.choice([GREEDY, (rng.uniform(0.3, 3), 6, rng.getrandbits(32))]),
               prefix=rng.choice([None, *map(Prefix, starts)]))
        for _ in range(24)
    ]  # fmt: skip
    with VerilatedChip(library, packed.folder, 5) as chip:
        longest = one_by_one(chip, packed, [whole(each) for each in kinds])
    everyone, wanted = [], []

    bad: list[tuple[int, int]] = []

    def repair():
        while bad:
            chip.set_error(*bad.pop(), False)

    def disturb():
        repair()
        if rng.random() < 0.1:  # a page cannot be read, or not be written
            port, page = DATA + rng.randint(1, 2), rng.randrange(MACHINE.cache.pages // 2)
            bad.extend((port, PAGE_WORDS * page + n) for n in range(PAGE_WORDS))
            for each in bad:
                chip.set_error(*each)
        running = [each for each in everyone if not each.end]
        if running and rng.random() < 0.03:
            engine.cancel(rng.choice(running).number)

    def add():
        """A request; and its prefix, if there is none that is open and not cancelled."""
        at = rng.randrange(len(kinds))
        kind, most = kinds[at], rng.randint(1, 5)
        made = dataclasses.replace(kind, most=most, user=at % 5, tokens=[], end=None)
        if kind.prefix:
            open_ones = [each for each in everyone if isinstance(each, Prefix) and not each.end]
            same = [each for each in open_ones if each.prompt == kind.prefix.prompt]
            if not same and len(open_ones) < 3:
                same = [Prefix(kind.prefix.prompt).submit(engine)]
                everyone.append(same[0])
            made.prefix = same[0] if same else None
            if not same:
                made.prompt = kind.whole
        everyone.append(made.submit(engine))
        wanted.append((made, longest[at][:most]))

    with (
        VerilatedChip(library, packed.folder, 5) as chip,
        Engine(chip, image_of(packed), policy=Policy.FAIR, requests=count * 2) as engine,
    ):
        number = 0
        while number < count or engine.is_busy:
            for _ in range(rng.choice([0, 0, 1, 1, 2, 5])):
                if number < count:
                    add()
                    number += 1
            disturb()
            engine.step()
            take(engine, everyone)
        for each in everyone:
            if not each.end:
                engine.cancel(each.number)
        while engine.is_busy:
            engine.step()
        take(engine, everyone)
        stats = engine.stats()
        assert stats["pages_most"] == 0
        repair()
        for each in everyone:
            engine.free(each.number)
        assert engine.stats()["requests"] == 0
        assert fills(engine, filling)
    for made, tokens in wanted:
        if made.end.reason == Reason.LENGTH:
            assert made.tokens == tokens
        else:
            assert made.tokens == tokens[: len(made.tokens)]
            assert made.end.reason == Reason.CANCELLED
    assert stats["forks"] > count / 10
    assert stats["failed_steps"] >= count / 100
    print("soak:", stats)
