"""Many requests on the generated RTL, each equal to itself alone and to golden, bit for bit.

The machine has four places, six sequences, and pages for two of the longest requests. The model is
a random LLaMA of four layers. ``test_requests.py`` has the cases that need no RTL.
"""

import dataclasses
import random
import threading

import pytest

from golden.kllm import engines
from golden.kllm.cache import Place
from golden.kllm.model.host import ModelHost
from golden.kllm.model.host_image import host_image, pages_most
from golden.kllm.model.program import step_program
from golden.oaken.kv_engine import Request
from golden.paging.format import Op
from hdl.kllm.room import BLOCKS
from senbazuru.host.build import build_chip
from senbazuru.host.engine import (
    Engine,
    HostError,
    Policy,
    Reason,
    VerilatedChip,
    result_text,
)
from senbazuru.host.wanted import Wanted, take
from tests.kllm import model_example as example

SIZES = {"sequences": 6, "pages": 96}
MACHINE = example.paged(**SIZES)
SMALL = BLOCKS["kllm_accelerator"].configs["small_cache"]
# As ``make talk`` builds it.
SHARED = dataclasses.replace(
    SMALL, machine=MACHINE, functions=4, ahead=True, banks=2,
    build=dataclasses.replace(SMALL.build, coding="sums", packet_words=16),
)  # fmt: skip
PLACES = MACHINE.batch
DATA = MACHINE.ports.ports  # the data memory among the ports; then the reads of pages
BAD = 148  # its embedding cannot be read in a test; no other request has it
GREEDY = (0.0, 1, 0)


def prompt(seed, length):
    rng = random.Random(seed)
    return [rng.randrange(140) for _ in range(length)]


def asked():
    """Requests of many lengths and samplings, and the step before which each comes."""
    made = (
        (0, 1, 4, GREEDY), (0, 6, 3, (1.2, 5, 4)), (1, 17, 2, GREEDY), (2, 2, 5, (0.8, 6, 1)),
        (4, 9, 2, (3.0, 6, 1)), (4, 5, 4, (3.0, 6, 9)), (7, 20, 1, GREEDY),
    )  # fmt: skip
    return [
        (step, Wanted(prompt(n, length), most, sampling, user=n % 2))
        for n, (step, length, most, sampling) in enumerate(made)
    ]


@pytest.fixture(scope="module")
def library():
    return build_chip(SHARED)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return example.packed(tmp_path_factory.mktemp("pack") / "model", **SIZES)


def image_of(pack):
    return host_image(pack.step_programs, pack.thresholds.tolist())


@pytest.fixture
def chip(library, packed):
    with VerilatedChip(library, packed.folder, 5) as made:
        yield made


def served(engine, timed, step=lambda _number: None):
    """Takes requests to their ends; the reports of the steps.

    timed: of each the step before which it comes, and the request; step: called before each step
    """
    requests, reports, left = [], [], list(timed)
    while left or engine.is_busy:
        while left and left[0][0] <= len(reports):
            requests.append(left.pop(0)[1].submit(engine))
        step(len(reports))
        reports.append(engine.step())
        take(engine, requests)
    return reports


def one_by_one(chip, pack, requests):
    """The tokens of each request, which has the chip for itself."""
    with Engine(chip, image_of(pack), sequences=1) as engine:
        alone = [dataclasses.replace(each, tokens=[], end=None) for each in requests]
        served(engine, [(0, each) for each in alone])
    return [each.tokens for each in alone]


@pytest.fixture(scope="module")
def alone(library, packed):
    """The tokens of each of ``asked``."""
    with VerilatedChip(library, packed.folder, 5) as chip:
        return one_by_one(chip, packed, [each for _, each in asked()])


def golden_tokens(host, request):
    """The tokens of a request on the golden machine, step by step, and the pages that it took."""
    cache = host.machine.cache
    table = cache.engines[0].table
    free, sequence = table.free_pages, cache.request(Request(Op.OPEN)).sequence
    temperature, top_k, seed = request.sampling
    sampling = engines.Sampling.at(temperature, top_k, seed) if temperature else None
    tokens, cached = list(request.prompt), 0
    while len(tokens) < len(request.prompt) + request.most:
        count = min(PLACES, len(tokens) - cached)
        chooses = cached + count == len(tokens)
        places = [
            Place(sequence, position, tokens[position], sampling)
            for position in range(cached, cached + count)
        ]
        ids = host.step(step_program(host.layout, count, int(chooses)), places).ids
        tokens, cached = tokens + ids, cached + count
    pages = free - table.free_pages
    assert pages <= pages_most(host.layout, cached)
    assert cache.request(Request(Op.FREE, sequence)).status == 0
    return tokens[len(request.prompt) :]


def test_a_batch_is_as_alone(chip, packed, alone):
    """Requests of all lengths and samplings come at different steps, and share places."""
    timed = asked()
    with Engine(chip, image_of(packed)) as engine:
        reports = served(engine, timed)
        stats = engine.stats()
    found = [each.tokens for _, each in timed]
    assert found == alone
    assert [len(each) for each in found] == [each.most for _, each in timed]
    assert {each.end.reason for _, each in timed} == {Reason.LENGTH}
    assert max(each["tokens"] for each in reports) == PLACES
    assert max(each["sequences"] for each in reports) >= 3
    assert len({(each["tokens"], each["chosen"]) for each in reports}) > 3
    assert stats["programs"] <= 14
    assert not stats["failed_steps"]
    assert all(each["cycles"] > each["lane_cycles"] > 0 for each in reports if each["tokens"])


def test_golden_has_the_same_tokens(alone):
    """Each request step by step on the golden machine."""
    host = ModelHost(example.image(**SIZES))
    for (_, request), found in zip(asked(), alone, strict=True):
        assert golden_tokens(host, request) == found


@pytest.mark.parametrize("policy", [Policy.SHORTEST, Policy.FAIR])
def test_policies_change_no_token(policy, chip, packed, alone):
    timed = asked()
    with Engine(chip, image_of(packed), policy=policy, places=3, sequences=4) as engine:
        reports = served(engine, timed)
    assert [each.tokens for _, each in timed] == alone
    assert max(each["tokens"] for each in reports) == 3


def test_ends(chip, packed, alone):
    """A stop, and the end of the context."""
    context = Wanted(prompt(50, example.CONTEXT - 2), 1000)
    stop = dataclasses.replace(asked()[3][1], stops=(alone[3][2],))
    with Engine(chip, image_of(packed)) as engine:
        served(engine, [(0, context), (0, stop)])
    assert (len(context.tokens), context.end.reason) == (2, Reason.LENGTH)
    until = alone[3].index(alone[3][2]) + 1
    assert (stop.tokens, stop.end.reason) == (alone[3][:until], Reason.STOP)


def test_pages_of_cancelled_requests_come_back(chip, packed):
    """A load that takes more pages than there are goes through as before, step by step.

    Five prompts grow together. Each has 1,104 bytes for each K and V of a layer at least: 3 pages.
    """

    def load():
        return [(0, Wanted(prompt(60 + n, 24), 1, user=n)) for n in range(5)]

    with Engine(chip, image_of(packed), policy=Policy.FAIR) as engine:
        first = load()
        before = served(engine, first)
        assert any(each["failed"] for each in before)
        for seed in range(3):
            some = [Wanted(prompt(70 + seed + n, 14), 9).submit(engine) for n in range(4)]
            for _ in range(4 + seed):
                engine.step()
            for each in some:
                engine.cancel(each.number)
            take(engine, some)
            assert {each.end.reason for each in some} == {Reason.CANCELLED}
        while engine.is_busy:
            engine.step()
        second = load()
        after = served(engine, second)
    assert [each.tokens for _, each in first] == [each.tokens for _, each in second]
    assert all(len(each.tokens) == 1 for _, each in first)
    shown = "tokens", "chosen", "sequences", "failed"
    assert [[each[name] for name in shown] for each in before] == [
        [each[name] for name in shown] for each in after
    ]


# Faults.


def test_a_fault_of_one_request_is_its_own(chip, packed, alone):
    """The embedding of one token cannot be read. Its request ends, all others are as alone."""
    timed = asked()[:4]
    assert not any(BAD in tokens for tokens in alone)
    bad = Wanted([*prompt(80, 5), BAD, 3], 4)
    chip.set_error(DATA, packed.layout.row_of_token(BAD))
    with Engine(chip, image_of(packed)) as engine:
        served(engine, [*timed[:2], (0, bad), *timed[2:]])
        assert engine.stats()["failed_steps"] >= 3
        assert (bad.end.reason, bad.tokens) == (Reason.FAULT, [])
        assert bad.end.fault == "command 0 (LOAD): BUS_ERROR"
        assert [each.tokens for _, each in timed] == alone[:4]
        # Its pages are free: the same request is right when the memory is.
        chip.set_error(DATA, packed.layout.row_of_token(BAD), False)
        again = dataclasses.replace(bad, tokens=[], end=None)
        served(engine, [(0, again)])
    assert (again.end.reason, len(again.tokens)) == (Reason.LENGTH, 4)


@pytest.mark.parametrize(
    ("port", "reason"),
    [(0, "(MATMUL): BUS_ERROR"), (DATA, "the run: BUS_ERROR"), (DATA + 1, "(CACHE): BUS_ERROR"),
     (DATA + 2, "(CACHE): BUS_ERROR")],
)  # fmt: skip
def test_faults_that_pass(port, reason, chip, packed, alone):
    """Weights, programs, and pages cannot be read, or pages not written, for one step."""
    layout, timed = packed.layout, asked()[:4]
    weights = [layout.layers[2].image["down"][0] + 7]
    programs = range(layout.rows, layout.rows + 6000)  # all of them
    words = {0: weights, DATA: programs}.get(port, range(64))

    def step(number):
        if number in (3, 4):
            for word in words:
                chip.set_error(port, word, number == 3)

    with Engine(chip, image_of(packed)) as engine:
        reports = served(engine, timed, step)
    (failed,) = (each for each in reports if each["failed"])
    assert reason in result_text(failed["result"])
    assert [each.tokens for _, each in timed] == alone[:4]


def test_weights_that_cannot_be_read(chip, packed, alone):
    """Every request ends with the fault. When the memory is right again, so are the next ones."""
    word = packed.layout.layers[2].image["down"][0] + 7
    chip.set_error(1, word)
    with Engine(chip, image_of(packed)) as engine:
        some = [Wanted(prompt(n, 3), 3) for n in range(2)]
        served(engine, [(0, each) for each in some])
        for each in some:
            assert each.end.reason == Reason.FAULT
            assert each.end.fault.endswith("(MATMUL): BUS_ERROR")
        chip.set_error(1, word, False)
        timed = asked()[:2]
        served(engine, timed)
    assert [each.tokens for _, each in timed] == alone[:2]


def test_a_reset_in_between(chip, packed, alone):
    """The chip forgets K and V; the requests go on."""
    timed = asked()[:4]
    with Engine(chip, image_of(packed)) as engine:
        served(engine, timed, lambda number: engine.reset() if number == 4 else None)
        assert engine.usage(timed[2][1].number)["repeats"] == 1
    assert [each.tokens for _, each in timed] == alone[:4]


def test_chips_that_cannot_be_made(library, chip, tmp_path):
    with pytest.raises(HostError, match=r"CHIP: cannot read .*port_00\.bin"):
        VerilatedChip(library, tmp_path, 5)
    with pytest.raises(HostError, match="CHIP"):
        chip.set_error(99, 0)
    assert chip.why == "no such port"


def test_other_threads_run_during_a_step(chip, packed, alone):
    """A thread submits while another steps; the step holds no lock of Python."""
    timed = asked()[:2]
    with Engine(chip, image_of(packed)) as engine:
        ended = threading.Event()

        def serve():
            while not all(each.end for _, each in timed):
                engine.step()
                take(engine, [each for _, each in timed if each.number])
            ended.set()

        timed[0][1].submit(engine)
        thread = threading.Thread(target=serve)
        thread.start()
        counted = 0
        while not ended.wait(0.001):
            counted += 1
            if counted == 20:
                timed[1][1].submit(engine)
        thread.join()
    assert counted > 50
    assert [each.tokens for _, each in timed] == alone[:2]


@pytest.mark.telling("20")
@pytest.mark.parametrize("count", [20, 200])
def test_soak(count, library, tmp_path, seed):
    """Random requests of one layer come, are cancelled, and meet errors of the pages' memory."""
    rng = random.Random(seed)
    pack = example.packed(tmp_path / "pack", layers=1, **SIZES)
    kinds = [
        Wanted(prompt(rng.random(), rng.choice([1, 2, 3, 8, 15, 24])), 8,
               rng.choice([GREEDY, (rng.uniform(0.3, 3), 6, rng.getrandbits(32))]))
        for _ in range(min(count // 3, 24))
    ]  # fmt: skip
    with VerilatedChip(library, pack.folder, 5) as chip:
        longest = one_by_one(chip, pack, kinds)
    step, timed = 0, []
    for number in range(count):
        kind = rng.randrange(len(kinds))
        most = rng.randint(1, 8)
        made = dataclasses.replace(kinds[kind], most=most, user=number % 5, tokens=[])
        timed.append((step, made, longest[kind][:most]))
        step += rng.choice([0, 0, 1, 2, 4])
    requests = [made for _, made, _ in timed]

    def disturb(_number):
        for word in range(64):
            chip.set_error(DATA + 1, word, False)
        if rng.random() < 0.03:
            chip.set_error(DATA + 1, rng.randrange(64))
        running = [each for each in requests if each.number and not each.end]
        if running and rng.random() < 0.04:
            engine.cancel(rng.choice(running).number)

    with (
        VerilatedChip(library, pack.folder, 5) as chip,
        Engine(chip, image_of(pack), policy=Policy.FAIR) as engine,
    ):
        served(engine, [(at, made) for at, made, _ in timed], disturb)
        assert engine.stats()["pages_most"] == 0
        for each in requests:
            engine.free(each.number)
        assert engine.stats()["requests"] == 0
    for _, made, wanted in timed:
        if made.end.reason == Reason.LENGTH:
            assert made.tokens == wanted
        else:
            assert made.tokens == wanted[: len(made.tokens)]
            assert made.end.reason == Reason.CANCELLED
