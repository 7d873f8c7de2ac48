"""Requests that begin with a prefix, on a chip in Python: tokens are those of the whole prompt.

Shown to fail: each of the faults of the library that docs/decisions/0338-prefixes-are-shared.md
lists.
"""

import ctypes
import dataclasses
import random

import pytest

from golden.kllm.fetch import Answer
from golden.kllm.isa import RUN_UNIT, CommandStatus, RunStatus, Unit
from golden.paging.format import Status
from senbazuru.host.engine import Engine, HostError, Policy, Reason, _library, header
from senbazuru.host.strict import FORK_FAULTS, Sizes, StrictChip
from senbazuru.host.wanted import Prefix, Wanted, take

SIZES = Sizes(forks=True)
MOST = 50_000  # steps: more than any of these tests takes
BUS_ERROR = Answer(CommandStatus.BUS_ERROR, Unit.CACHE, 17)


def used(chip):
    return chip.sizes.pages - chip.free_pages


def run(engine, chip, requests):
    """Steps until nothing is left to do; the bound of pages holds after each step."""
    for _ in range(MOST):
        if not engine.is_busy:
            break
        engine.step()
        take(engine, requests)
        assert used(chip) <= engine.stats()["pages_most"]
    assert not engine.is_busy
    assert not chip.broken


def finish(engine, chip, requests):
    """Ends all prefixes too; the chip is as after a reset. The tokens compared."""
    take(engine, requests)
    run(engine, chip, requests)
    for each in requests:
        if isinstance(each, Prefix) and each.end is None:
            engine.cancel(each.number)
    run(engine, chip, requests)
    assert not chip.sequences
    assert chip.free_pages == chip.sizes.pages
    assert engine.stats()["pages_most"] == 0
    return sum(each.check(chip.sizes) for each in requests if isinstance(each, Wanted))


def fed(chip, tokens):
    """Counts the steps that each of these tokens went through."""
    return [sum(entry[2] == token for batch in chip.batches for entry in batch) for token in tokens]


def test_the_prompt_goes_through_once():
    """Seven children, some with draws, that come before the prefix is cached; then one after it."""
    sizes = dataclasses.replace(SIZES, vocabulary=2000, page_tokens=4)
    chip = StrictChip(sizes)
    with Engine(chip, sizes.image(), places=5) as engine:
        assert engine.facts["forks"] == 1
        prefix = Prefix(list(range(1000, 1030))).submit(engine)
        children = [
            Wanted([n], 3, (1.0, 4, n) if n % 2 else (0.0, 1, 0), prefix=prefix).submit(engine)
            for n in range(7)
        ]  # fmt: skip
        while not engine.stats()["prefixes"]:
            engine.step()
            assert len(chip.sequences) == 1
        assert engine.usage(prefix.number)["cached_tokens"] == 30
        engine.step()
        assert len(chip.sequences) == 8
        assert engine.usage(children[0].number)["shared_tokens"] == 30
        # The full pages of the prompt once, and of each child the one in which it goes on.
        assert used(chip) == 8 + 7
        run(engine, chip, [prefix, *children])
        assert fed(chip, prefix.prompt) == [1] * 30
        assert engine.stats()["forks"] == chip.forks == 7
        assert list(chip.sequences) == [engine.usage(prefix.number)["sequence"]]
        # A child with a prompt of several tokens, long after.
        late = Wanted(list(range(40, 52)), 9, prefix=prefix).submit(engine)
        run(engine, chip, [prefix, *children, late])
        assert engine.usage(late.number)["prompt_tokens"] == 42
        assert fed(chip, prefix.prompt) == [1] * 30
        assert finish(engine, chip, [prefix, *children, late]) == 7 * 3 + 9
        assert prefix.end.reason == Reason.CANCELLED


def test_shared_pages_count_once():
    sizes = dataclasses.replace(SIZES, page_tokens=4)
    chip = StrictChip(sizes)
    with Engine(chip, sizes.image()) as engine:
        prefix = Prefix([7] * 32).submit(engine)
        run(engine, chip, [prefix])
        assert engine.stats()["pages_most"] == used(chip) == 8
        children = [Wanted([n], 6, prefix=prefix).submit(engine) for n in range(5)]
        engine.step()
        # Each has one token of its own: a page, and one that it might have copied.
        assert engine.stats()["pages_most"] == 8 + 5 * 2
        slots = [slot for slot in engine.slots() if slot["shared_tokens"]]
        assert [slot["pages_most"] for slot in slots] == [2] * 5
        engine.cancel(prefix.number)
        take(engine, [prefix, *children])
        engine.step()
        assert len(chip.sequences) == 5  # the pages of the prefix are still there, once
        assert used(chip) == 8 + 5
        assert engine.stats()["pages_most"] == 8 + 5 * 2
        finish(engine, chip, [prefix, *children])


def test_who_waits_for_a_prefix_stops_nobody():
    sizes = dataclasses.replace(SIZES, places=2, sequences=3)
    chip = StrictChip(sizes)
    with Engine(chip, sizes.image()) as engine:
        prefix = Prefix([5] * 20).submit(engine)
        child = Wanted([6], 2, prefix=prefix).submit(engine)
        other = Wanted([8], 5).submit(engine)
        for _ in range(6):
            engine.step()
        take(engine, [prefix, child, other])
        assert len(other.tokens) == 5
        assert engine.usage(child.number)["sequence"] == -1
        assert engine.usage(prefix.number)["cached_tokens"] < 20
        assert finish(engine, chip, [prefix, child, other]) == 7
        assert chip.forks == 1


def test_a_prefix_is_cancelled():
    """Its children go on; who waits for it, or comes with it later, has the whole prompt."""
    chip = StrictChip(SIZES)
    with Engine(chip, SIZES.image(), sequences=3) as engine:
        prefix = Prefix(list(range(500, 520))).submit(engine)
        some = [Wanted([n], 5, prefix=prefix).submit(engine) for n in range(4)]
        for _ in range(5):
            engine.step()
        assert chip.forks == 2  # three sequences
        engine.cancel(prefix.number)
        with pytest.raises(HostError, match="ENDED"):
            engine.submit([1], 1, prefix=prefix.number)
        take(engine, [prefix, *some])
        engine.free(prefix.number)
        with pytest.raises(HostError, match="UNKNOWN"):
            engine.submit([1], 1, prefix=prefix.number)
        assert finish(engine, chip, some) == 20
        assert fed(chip, [500]) == [3]


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize(
    "answer", [BUS_ERROR, Answer(RunStatus.BUS_ERROR, RUN_UNIT, 9)], ids=["command", "run"]
)
def test_faults_that_pass(answer, policy):
    """Steps fail now and then, those of prefixes too: a child repeats its whole prompt."""
    rng = random.Random(2)
    chip = StrictChip(SIZES, lambda step, _places: answer if step % 23 == 5 else None)
    with Engine(chip, SIZES.image(), policy=policy) as engine:
        prefixes = [Prefix([100 * n + k for k in range(9 + n)]).submit(engine) for n in range(3)]
        requests = list(prefixes)
        for n in range(30):
            prompt = [rng.randrange(1000) for _ in range(rng.randint(1, 9))]
            made = Wanted(prompt, rng.randint(1, 9), user=n % 3, prefix=rng.choice(prefixes))
            requests.append(made.submit(engine))
            for _ in range(rng.randrange(3)):
                engine.step()
                take(engine, requests)
        assert finish(engine, chip, requests) > 50
        stats = engine.stats()
    assert stats["failed_steps"] >= 3
    assert all(each.end.reason == Reason.LENGTH for each in requests[3:])
    assert all(each.end.reason == Reason.CANCELLED for each in prefixes)


def test_a_failed_child_shares_nothing():
    """A page of the prefix may be what fails. So a repeat has pages of its own."""
    chip = StrictChip(SIZES)
    chip.fault = lambda _step, places: (
        BUS_ERROR if any(sequence in chip.children for sequence, *_ in places) else None
    )
    with Engine(chip, SIZES.image()) as engine:
        prefix = Prefix([3] * 10).submit(engine)
        some = [Wanted([n], 3, prefix=prefix).submit(engine) for n in range(3)]
        finish(engine, chip, [prefix, *some])
    assert [each.end.reason for each in some] == [Reason.LENGTH] * 3


@pytest.mark.parametrize("status", FORK_FAULTS)
def test_forks_that_fail(status):
    """Now and then, and always."""
    for chance in (0.5, 1.0):
        rng, chip = random.Random(3), StrictChip(SIZES)
        chip.fork_fault = lambda rng=rng, chance=chance: (
            status if rng.random() < chance else Status.OK
        )
        with Engine(chip, SIZES.image()) as engine:
            prefix = Prefix([3] * 10).submit(engine)
            some = [Wanted([n], 4, prefix=prefix).submit(engine) for n in range(9)]
            some.append(Wanted([9, 9], 4).submit(engine))
            assert finish(engine, chip, [prefix, *some]) == 40
        assert [each.end.reason for each in some] == [Reason.LENGTH] * 10
        assert bool(chip.forks) == (chance < 1)


def test_bad_tokens_of_a_prefix():
    """A prefix that cannot be cached ends, and its children meet the fault themselves."""
    chip = StrictChip(SIZES)
    chip.fault = lambda _step, places: (
        BUS_ERROR if any(token == 13 for _, _, token, _ in places) else None
    )
    with Engine(chip, SIZES.image()) as engine:
        prefix = Prefix([1, 2, 13]).submit(engine)
        good = Prefix([1, 2, 14]).submit(engine)
        some = [
            Wanted([n], 3, prefix=each).submit(engine) for n in (4, 5) for each in (prefix, good)
        ]
        finish(engine, chip, [prefix, good, *some])
    assert prefix.end.reason == Reason.FAULT
    assert [each.end.reason for each in some] == [Reason.FAULT, Reason.LENGTH] * 2


def test_few_pages():
    """Prefixes and requests that do not fit together: all come to their ends."""
    for pages in (8, 9, 11, 14, 20):
        sizes = dataclasses.replace(SIZES, pages=pages, context=24, sequences=4)
        chip = StrictChip(sizes)
        with Engine(chip, sizes.image()) as engine:
            prefixes = [Prefix([n] * 10).submit(engine) for n in range(2)]
            some = [
                Wanted([n], 12, prefix=prefixes[n % 2] if n % 3 else None).submit(engine)
                for n in range(9)
            ]
            finish(engine, chip, [*prefixes, *some])
        assert {each.end.reason for each in some} == {Reason.LENGTH}
        assert prefixes[0].end.reason == Reason.CANCELLED


def test_prefixes_that_do_not_fit_together():
    """The one that finds no page ends; its children do without."""
    sizes = dataclasses.replace(SIZES, pages=7, context=24)
    chip = StrictChip(sizes)
    with Engine(chip, sizes.image()) as engine:
        prefixes = [Prefix([n] * 16).submit(engine) for n in range(2)]
        run(engine, chip, prefixes)
        assert sorted(each.end is None for each in prefixes) == [False, True]
        (ended,) = (each for each in prefixes if each.end)
        assert ended.end.reason == Reason.FAULT
        (kept,) = (each for each in prefixes if not each.end)
        child = Wanted([1], 3, prefix=kept).submit(engine)
        assert finish(engine, chip, [*prefixes, child]) == 3


def test_prefixes_that_end_in_one_step():
    """Both have tokens in the step that finds no page: one ends, the other begins again."""
    sizes = dataclasses.replace(SIZES, pages=4, context=24)
    chip = StrictChip(sizes)
    with Engine(chip, sizes.image()) as engine:
        prefixes = [Prefix([n] * 10).submit(engine) for n in range(2)]
        run(engine, chip, prefixes)
        assert {entry[2] for entry in chip.batches[1]} == {0, 1}
        assert [each.end and each.end.reason for each in prefixes] == [Reason.FAULT, None]
        assert engine.usage(prefixes[1].number)["repeats"] == 1
        children = [Wanted([5], 1, prefix=each).submit(engine) for each in prefixes[1:]]
        assert finish(engine, chip, [*prefixes, *children]) == 1
        assert chip.forks == 1


def test_prefixes_come_first():
    """Requests that came before it wait: those that come after may begin with it."""
    sizes = dataclasses.replace(SIZES, sequences=2)
    chip = StrictChip(sizes)
    with Engine(chip, sizes.image()) as engine:
        others = [Wanted([n], 9).submit(engine) for n in range(4)]
        engine.step()
        prefix = Prefix([9] * 5).submit(engine)
        while not others[0].end:
            engine.step()
            take(engine, [*others, prefix])
        engine.step()
        assert engine.usage(prefix.number)["sequence"] >= 0
        assert finish(engine, chip, [*others, prefix]) == 36


def test_a_reset_in_between():
    """The chip forgets K and V of the prefix too; it goes through once more."""
    chip = StrictChip(SIZES)
    with Engine(chip, SIZES.image()) as engine:
        prefix = Prefix(list(range(500, 520))).submit(engine)
        some = [Wanted([n], 9, prefix=prefix).submit(engine) for n in range(4)]
        for _ in range(6):
            engine.step()
        assert chip.forks == 4
        engine.reset()
        assert not chip.sequences
        assert finish(engine, chip, [prefix, *some]) == 36
        assert fed(chip, prefix.prompt) == [2] * 20
    assert chip.forks == 8


def test_bad_input():
    sizes = dataclasses.replace(SIZES, sequences=3, context=10)
    chip = StrictChip(sizes)
    with Engine(chip, sizes.image(), requests=4) as engine:
        for name, prompt, options in (
            ("EMPTY_PROMPT", [], {}),
            ("TOO_LONG", [1] * 9, {}),
            ("BAD_TOKEN", [1, 1000], {}),
            ("BAD_TOKEN", [-1], {}),
            ("BAD_TOKEN", [1 << 32], {}),
            ("BAD_ARGUMENT", [1], {"user": 1 << 32}),
        ):
            with pytest.raises(HostError) as caught:
                engine.prefix(prompt, **options)
            assert caught.value.name == name, prompt
        first, longest = Prefix([1]).submit(engine), Prefix([1] * 8).submit(engine)
        with pytest.raises(HostError, match="TOO_MANY"):  # no sequence would be left
            engine.prefix([2])
        other = Wanted([1], 1).submit(engine)
        for name, prompt, prefix in (
            ("UNKNOWN", [1], 99),
            ("UNKNOWN", [1], -1),
            ("UNKNOWN", [1], 1 << 64),
            ("NOT_A_PREFIX", [1], other.number),
            ("TOO_LONG", [1, 1], longest.number),
            ("TOO_LONG", [1] * 9, first.number),
            ("EMPTY_PROMPT", [], first.number),
            ("BAD_TOKEN", [1000], first.number),
        ):
            with pytest.raises(HostError) as caught:
                engine.submit(prompt, 5, prefix=prefix)
            assert caught.value.name == name, (prompt, prefix)
        with pytest.raises(HostError, match="ACTIVE"):
            engine.free(first.number)
        last = Wanted([1], 1, prefix=longest).submit(engine)
        with pytest.raises(HostError, match="TOO_MANY"):
            engine.submit([1], 1, prefix=first.number)
        assert finish(engine, chip, [first, longest, other, last]) == 2
        with pytest.raises(HostError, match="ENDED"):
            engine.cancel(first.number)
        handle, number = engine._handle, ctypes.c_uint64()
        wrong = header.constants["SZR_BAD_ARGUMENT"]
        words = (ctypes.c_uint32 * 1)(1)
        assert _library().szr_prefix(handle, words, 1, 0, None) == wrong
        assert _library().szr_prefix(handle, None, 1, 0, ctypes.byref(number)) == wrong
        assert _library().szr_prefix(None, words, 1, 0, ctypes.byref(number)) == wrong


def test_a_chip_without_forks():
    sizes = dataclasses.replace(SIZES, forks=False)
    chip = StrictChip(sizes)
    with Engine(chip, sizes.image()) as engine:
        assert engine.facts["forks"] == 0
        with pytest.raises(HostError, match="NO_FORKS"):
            engine.prefix([1, 2])
        plain = Wanted([1], 2).submit(engine)
        with pytest.raises(HostError, match="NO_FORKS"):
            engine.submit([1], 1, prefix=plain.number)
        finish(engine, chip, [plain])


@pytest.mark.parametrize("seed", range(4))
def test_soak(seed):
    """Prefixes and requests come and go; steps and FORKs fail, pages are wanting, the chip is lost.

    At the end every page is free.
    """
    rng = random.Random(seed)
    sizes = Sizes(
        places=rng.randint(1, 8), sequences=rng.randint(2, 9), pages=rng.randint(16, 60),
        forks=True,
        refused=frozenset((t, c) for t in range(2, 9) for c in range(t + 1) if rng.random() < 0.2),
    )  # fmt: skip

    def fault(_step, places):
        if any(token == 13 for _, _, token, _ in places):
            return BUS_ERROR
        return BUS_ERROR if rng.random() < 0.03 else None

    chip, requests, kept = StrictChip(sizes, fault), [], []
    chip.fork_fault = lambda: rng.choice(FORK_FAULTS) if rng.random() < 0.1 else Status.OK
    with Engine(chip, sizes.image(), policy=Policy(seed % 3)) as engine:
        for number in range(400):
            prefixes = [each for each in kept if isinstance(each, Prefix) and not each.end]
            length = rng.choice([1, 4, 8, rng.randint(1, 30)])
            prompt = [rng.randrange(sizes.vocabulary) for _ in range(length)]
            made = Wanted(prompt, rng.choice([1, 5, 1000]), user=number % 3)
            if prefixes and rng.random() < 0.8:
                made.prefix = rng.choice(prefixes)
            if len(prefixes) < sizes.sequences - 1 and rng.random() < 0.1:
                made = Prefix(prompt)
            requests.append(made.submit(engine))
            kept.append(requests[-1])
            for _ in range(rng.randrange(8)):
                if chip.is_silent and engine.is_busy:
                    with pytest.raises(HostError, match="SILENT"):
                        engine.step()
                    engine.reset()
                engine.step()
                take(engine, kept)
                assert used(chip) <= engine.stats()["pages_most"]
            chip.is_silent = rng.random() < 0.01
            running = [each for each in kept if each.end is None]
            if running and rng.random() < 0.2:
                engine.cancel(rng.choice(running).number)
            take(engine, kept)
            for each in [each for each in kept if each.end and rng.random() < 0.5]:
                engine.free(each.number)
                kept.remove(each)
        chip.is_silent = False
        finish(engine, chip, kept)
        compared = sum(each.check(sizes) for each in requests if isinstance(each, Wanted))
    assert compared > 1000
    assert chip.forks > 20
