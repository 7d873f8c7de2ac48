"""Children of one prompt under ``owners.Owners``: whole chip, pages that several sequences have.

The machine is that of ``test_shared.py``, and the same with two engines. Every word that a FORK
reads or writes is compared too.

Shown to fail: the faults of forks in ``test_planted_faults``.
"""

import dataclasses

import pytest

from senbazuru.host.build import build_chip
from senbazuru.host.engine import HostError, Reason, VerilatedChip
from senbazuru.host.owners import Owners
from senbazuru.host.planted import PLANTED_FORKS
from senbazuru.host.test_host import GREEDY, prompt
from senbazuru.host.test_isolation import (
    LATENCY,
    READS,
    WORD,
    WRITES,
    Bench,
    Golden,
    check,
)
from senbazuru.host.test_shared import MACHINE, PLACES, SHARED, SIZES
from senbazuru.host.wanted import Prefix, Wanted, take
from senbazuru.host.watched import WatchedChip
from tests.kllm import model_example as example

CACHE = MACHINE.cache
ENGINES = 2
SEVERAL = dataclasses.replace(SHARED, machine=example.paged(engines=ENGINES, layers=1, **SIZES))
STREAMS = CACHE.streams // CACHE.sequences


@pytest.fixture(scope="module")
def library():
    return build_chip(SHARED)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pack") / "model"
    return example.packed(folder, layers=1, **SIZES)


@pytest.fixture(scope="module")
def golden():
    return Golden(1, SIZES)


def asked():
    """A prefix, four children of it, and two requests that share nothing."""
    prefix = Prefix(prompt(60, 17))
    children = [
        Wanted(prompt(61 + n, 1 + n), 6, GREEDY if n % 2 else (1.3, 5, n), user=n, prefix=prefix)
        for n in range(4)
    ]
    return prefix, [*children, Wanted(prompt(70, 5), 8), Wanted(prompt(71, 12), 5, (1.1, 6, 8))]


@pytest.fixture(scope="module")
def alone(golden):
    return [golden.tokens(each) for each in asked()[1]]


@pytest.fixture
def bench(library, packed, golden, alone):
    with VerilatedChip(library, packed.folder, LATENCY) as chip:
        owners = Owners(CACHE, WORD, golden.oracle)
        yield Bench(WatchedChip(chip, owners, PLACES), packed, golden)
    print(owners.counts, owners.most_shared)


def serve(bench, prefix, requests, step=lambda _number, _engine: None):
    """All at once, and their ends; the figures. The prefix goes last."""
    with bench.engine() as engine:
        everyone = [prefix, *requests]
        for each in everyone:
            each.submit(engine)
        number = 0
        while engine.is_busy:
            step(number, engine)
            engine.step()
            take(engine, everyone)
            number += 1
        if not prefix.end:
            engine.cancel(prefix.number)
            engine.step()
        return engine.stats()


def check_shared(owners, stats, prefix, requests):
    """All has ended well: four FORKs, the prompt's tokens once in the pages, none left."""
    assert {each.end.reason for each in requests} == {Reason.LENGTH}
    assert not owners.counts.lost
    assert not stats["failed_steps"]
    assert stats["forks"] == owners.counts.forks == 4
    tokens = len(prefix.prompt) + sum(len(each.prompt) + each.most - 1 for each in requests)
    assert owners.counts.vectors == 2 * tokens
    assert owners.most_shared >= STREAMS
    assert not owners.owner
    assert not owners.shared


def test_children_share_pages(bench, alone):
    """Each word is right, and read by a sequence that has the page. None writes to a shared one."""
    prefix, requests = asked()
    stats = serve(bench, prefix, requests)
    check(requests, alone)
    check_shared(bench.owners, stats, prefix, requests)


@pytest.mark.telling("1")
@pytest.mark.parametrize("engine", range(ENGINES))
def test_several_engines(engine, tmp_path):
    """Each has pages of its own: the same rules hold for the traffic of each of them.

    Each quantizes its own heads alone, so the tokens are not those of one engine.
    """
    packed = example.packed(tmp_path / "model", layers=1, engines=ENGINES, **SIZES)
    golden = Golden(1, SIZES, ENGINES, engine)
    prefix, requests = asked()
    alone = [golden.tokens(each) for each in requests]
    with VerilatedChip(build_chip(SEVERAL), packed.folder, LATENCY) as chip:
        owners = Owners(SEVERAL.machine.cache_part, WORD, golden.oracle)
        bench = Bench(WatchedChip(chip, owners, PLACES, engine), packed, golden)
        stats = serve(bench, prefix, requests)
    print(owners.counts, owners.most_shared)
    check(requests, alone)
    check_shared(owners, stats, prefix, requests)


@pytest.mark.telling("parent-5", "child-7")
@pytest.mark.parametrize("at", [5, 7])
@pytest.mark.parametrize("who", ["parent", "child"])
def test_one_goes_in_the_middle(who, at, bench, alone):
    """The pages that others have stay with them, and all tokens are as alone."""
    prefix, requests = asked()
    gone = prefix if who == "parent" else requests[0]

    def disturb(number, engine):
        if number == at:
            engine.cancel(gone.number)

    serve(bench, prefix, requests, disturb)
    check(requests, alone)
    ended = [each for each in requests if each is not gone]
    assert {each.end.reason for each in ended} == {Reason.LENGTH}
    assert gone.end.reason == Reason.CANCELLED
    assert not bench.owners.owner


@pytest.mark.telling(f"{READS}")
@pytest.mark.parametrize("port", [READS, WRITES])
def test_bus_errors_of_the_prompt(port, bench, alone):
    """Pages of the prompt that cannot be read in one step, or copies of them be written."""
    prefix, requests = asked()
    pages: list[int] = []
    at = 8 if port == READS else 5  # the children are there; they come

    def disturb(number, engine):
        if number == at:
            pages.extend(range(CACHE.pages) if port == WRITES else bench.pages_of(prefix, engine))
            set_errors(bench, port, pages)
        elif number == at + 1:
            set_errors(bench, port, pages, False)

    stats = serve(bench, prefix, requests, disturb)
    check(requests, alone)
    assert {each.end.reason for each in requests} == {Reason.LENGTH}
    assert stats["failed_steps"]
    assert not bench.owners.owner


def set_errors(bench, port, pages, is_set=True):
    each = CACHE.page_bytes // WORD
    for page in pages:
        for word in range(page * each, (page + 1) * each):
            bench.chip.chip.set_error(port, word, is_set)


@pytest.mark.telling
@pytest.mark.parametrize("name", PLANTED_FORKS)
def test_planted_faults(name, packed, golden, alone):
    """Each chip takes minutes to compile."""
    made = PLANTED_FORKS[name].accelerator()
    with VerilatedChip(build_chip(SHARED, 1, made), packed.folder, LATENCY) as chip:
        bench = Bench(WatchedChip(chip, Owners(CACHE, WORD, golden.oracle), PLACES), packed, golden)
        prefix, requests = asked()
        found = ""
        try:
            serve(bench, prefix, requests)
            check(requests, alone)
        except (HostError, AssertionError) as error:
            found = str(bench.chip.failure or error) or "other tokens"
    print(name, "->", found)
    assert found
