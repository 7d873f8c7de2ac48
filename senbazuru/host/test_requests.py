"""Scheduling, faults and bad input, on a chip in Python that notes each rule that is broken.

Every request gets the tokens that it gets alone. Its tokens depend on all tokens before them.

Shown to fail: each of the faults that docs/decisions/0340-the-host-as-a-library.md lists.
"""

import contextlib
import ctypes
import dataclasses
import random
import struct
import threading
import zlib

import pytest

from golden.kllm.fetch import Answer
from golden.kllm.isa import RUN_UNIT, CommandStatus, RunStatus, Unit
from senbazuru.host.engine import (
    End,
    Engine,
    HostError,
    Policy,
    Reason,
    _library,
    header,
    result_text,
)
from senbazuru.host.strict import DONE, Sizes, StrictChip, alone
from senbazuru.host.wanted import Wanted, take

SIZES = Sizes()
FEW = Sizes(places=3, sequences=6, context=32, refused=frozenset({(3, 0), (3, 3), (2, 1)}))
MOST = 50_000  # steps: more than any of these tests takes
BUS_ERROR = Answer(CommandStatus.BUS_ERROR, Unit.CACHE, 17)


def finish(engine, chip, requests):
    """Steps until nothing is left; the chip is as after a reset. The tokens compared."""
    take(engine, requests)
    for _ in range(MOST):
        if not engine.is_busy:
            break
        engine.step()
        take(engine, requests)
    assert not engine.is_busy
    assert not chip.broken
    assert not chip.sequences
    assert chip.free_pages == chip.sizes.pages
    return sum(each.check(chip.sizes) for each in requests)


def some(rng, sizes, number, longest=None):
    """A random request."""
    longest = longest or sizes.context - 1
    length = rng.choice([1, 2, 3, rng.randint(1, longest), rng.randint(1, longest)])
    draws = rng.random() < 0.5
    return Wanted(
        prompt=[rng.randrange(sizes.vocabulary) for _ in range(length)],
        most=rng.choice([1, 2, rng.randint(1, 20), 1000]),
        sampling=(rng.uniform(0.1, 3), rng.randint(1, 6), rng.getrandbits(32)) if draws
        else (0.0, 0, 9),
        stops=tuple(rng.sample(range(sizes.vocabulary), rng.choice([0, 0, 40]))),
        user=number % 3,
    )  # fmt: skip


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("sizes", [SIZES, FEW, Sizes(places=1, sequences=1)], ids=["8", "3", "1"])
def test_requests_of_a_batch_are_as_alone(sizes, policy):
    rng, chip, requests = random.Random(1), StrictChip(sizes), []
    with Engine(chip, sizes.image(), policy=policy) as engine:
        for number in range(40):
            requests.append(some(rng, sizes, number).submit(engine))
            for _ in range(rng.randrange(4)):
                engine.step()
                take(engine, requests)
        assert finish(engine, chip, requests) > 200
        stats = engine.stats()
        assert stats["steps"] == chip.steps
        assert stats["tokens"] == sum(map(len, chip.batches))
        assert chip.most_open == sizes.sequences
        assert not stats["failed_steps"]
        for each in requests:
            usage = engine.usage(each.number)
            assert usage["prompt_tokens"] == len(each.prompt)
            assert usage["chosen_tokens"] == len(each.tokens)
            engine.free(each.number)
        assert engine.stats()["requests"] == 0
    if sizes.places > 1:
        assert max(map(len, chip.batches)) == sizes.places


def test_cycles_of_units():
    """A step has what the counters grew by, also past 2**32, and after a reset."""
    for counts in (True, False):
        chip = StrictChip(SIZES)
        if not counts:
            chip.busy = None
        with Engine(chip, SIZES.image()) as engine:
            assert engine.step()["unit_cycles"] == [0] * len(Unit)  # nothing to do
            request = Wanted([1, 2, 3], 60).submit(engine)
            while engine.is_busy:
                found = engine.step()["unit_cycles"]
                assert found == (chip.work[-1] if counts else [0] * len(Unit))
                assert engine.stats()["last"]["unit_cycles"] == found
                take(engine, [request])
                if chip.steps == 20:
                    engine.reset()
            finish(engine, chip, [request])
        assert chip.steps > 50
        assert chip.busy is None or all(count < 1 << 20 for count in chip.busy)


def test_decoding_goes_on_while_a_prompt_comes():
    """Each request that decodes has a place in every step. The prompt gets the others."""
    sizes = Sizes(places=4)
    chip = StrictChip(sizes)
    with Engine(chip, sizes.image()) as engine:
        first = [Wanted([n + 1], 30).submit(engine) for n in range(2)]
        engine.step()
        long = Wanted(list(range(20)), 3).submit(engine)
        for step in range(1, 11):
            report = engine.step()
            take(engine, [*first, long])
            assert [len(each.tokens) for each in first] == [step + 1] * 2
            assert (report["tokens"], report["sequences"]) == (4, 3)
            assert report["chosen"] == (3 if step == 10 else 2)
            assert engine.usage(long.number)["cached_tokens"] == 2 * step
        assert len(long.tokens) == 1
        finish(engine, chip, [*first, long])


def test_all_that_decode_come_in_turn():
    """Six sequences share two places; none is more than a token ahead."""
    sizes = Sizes(places=2, sequences=6)
    chip = StrictChip(sizes)
    with Engine(chip, sizes.image()) as engine:
        requests = [Wanted([n], 20).submit(engine) for n in range(6)]
        for _ in range(30):
            engine.step()
            take(engine, requests)
            counts = [len(each.tokens) for each in requests]
            assert max(counts) - min(counts) <= 1
        finish(engine, chip, requests)


def ends(policy, requests, sizes, **options):
    """The requests by their ends, as places in the list."""
    chip, order = StrictChip(sizes), []
    with Engine(chip, sizes.image(), policy=policy, **options) as engine:
        for each in requests:
            each.submit(engine)
        while engine.is_busy:
            engine.step()
            take(engine, requests)
            order += [n for n, each in enumerate(requests) if each.end and n not in order]
        finish(engine, chip, requests)
    return order


def test_policies():
    sizes = Sizes(places=4, sequences=4)

    def made():
        return [Wanted([1] * length, 4) for length in (20, 3, 12, 5)]

    assert ends(Policy.FIRST_COME, made(), sizes, sequences=1) == [0, 1, 2, 3]
    assert ends(Policy.SHORTEST, made(), sizes, sequences=1) == [1, 3, 2, 0]
    assert ends(Policy.SHORTEST, made(), sizes) == [1, 3, 2, 0]
    # One user has asked five times before the other came.
    greedy = [Wanted([n] * 8, 4, user=7) for n in range(5)]
    order = ends(Policy.FAIR, [*greedy, Wanted([9] * 8, 4, user=8)], sizes, sequences=1)
    assert order == [0, 5, 1, 2, 3, 4]
    greedy = [Wanted([n] * 8, 4, user=7) for n in range(5)]
    order = ends(Policy.FIRST_COME, [*greedy, Wanted([9] * 8, 4, user=8)], sizes, sequences=1)
    assert order == [0, 1, 2, 3, 4, 5]


def test_who_comes_later_has_no_credit():
    """A user who was away does not get all places until he has caught up."""
    sizes = Sizes(places=2, sequences=1)
    chip, order = StrictChip(sizes), []
    with Engine(chip, sizes.image(), policy=Policy.FAIR) as engine:
        requests = [Wanted([n] * 30, 2, user=1).submit(engine) for n in range(3)]
        for _ in range(20):
            engine.step()
        requests += [Wanted([n] * 8, 2, user=2).submit(engine) for n in range(8)]
        while engine.is_busy:
            engine.step()
            take(engine, requests)
            order += [n for n, each in enumerate(requests) if each.end and n not in order]
        finish(engine, chip, requests)
    users = [1 if n < 3 else 2 for n in order]
    # Two requests of the first user have 62 places. The second begins where he was: at 39.
    assert users == [1, 1, 2, 2, 2, 1, 2, 2, 2, 2, 2]


def test_options():
    chip = StrictChip(SIZES)
    with Engine(chip, SIZES.image(), places=2, sequences=3, requests=5) as engine:
        requests = [Wanted([n, n], 9).submit(engine) for n in range(5)]
        with pytest.raises(HostError, match="TOO_MANY"):
            engine.submit([1], 1)
        finish(engine, chip, requests)
        with pytest.raises(HostError, match="TOO_MANY"):
            engine.submit([1], 1)
        engine.free(requests[0].number)
        requests[0] = Wanted([5], 1).submit(engine)
        finish(engine, chip, requests[:1])
    assert chip.most_open == 3
    assert max(map(len, chip.batches)) == 2
    for wrong in ({"policy": 3}, {"places": 9}, {"sequences": 9}):
        with pytest.raises(HostError, match="BAD_ARGUMENT"):
            Engine(StrictChip(SIZES), SIZES.image(), **wrong)


# Ends.


def test_ends():
    chip = StrictChip(SIZES)
    with Engine(chip, SIZES.image()) as engine:
        line = alone(SIZES, [1, 2], 20)
        stop = Wanted([1, 2], 20, stops=(7777 % 1000, line[5])).submit(engine)
        most = Wanted([1, 2], 3).submit(engine)
        context = Wanted([3] * 60, 1000).submit(engine)
        longest = Wanted([4] * 63, 1000).submit(engine)
        finish(engine, chip, [stop, most, context, longest])
        assert (stop.tokens, stop.end.reason) == (line[:6], Reason.STOP)
        assert (most.tokens, most.end.reason) == (line[:3], Reason.LENGTH)
        assert (len(context.tokens), context.end.reason) == (4, Reason.LENGTH)
        assert (len(longest.tokens), longest.end.reason) == (1, Reason.LENGTH)
    assert max(position for batch in chip.batches for _, position, _, _ in batch) == 62


def test_cancel():
    """A request ends at once: while it waits, in its prompt, and while it decodes."""
    sizes = Sizes(places=2, sequences=3)
    chip = StrictChip(sizes)
    with Engine(chip, sizes.image()) as engine:
        other = Wanted([5], 40).submit(engine)
        decoding, prompt = Wanted([6], 40).submit(engine), Wanted([7] * 30, 40).submit(engine)
        waiting = Wanted([8], 40).submit(engine)
        everyone = [other, decoding, prompt, waiting]
        for _ in range(4):
            engine.step()
        take(engine, everyone)
        assert len(decoding.tokens) >= 2
        for each in (waiting, prompt, decoding):
            before, used = len(each.tokens), engine.stats()["pages_most"]
            engine.cancel(each.number)
            take(engine, everyone)
            assert each.end == End(each.number, Reason.CANCELLED)
            assert len(each.tokens) == before
            with pytest.raises(HostError, match="ENDED"):
                engine.cancel(each.number)
            engine.step()
            take(engine, everyone)
            assert len(chip.sequences) == engine.stats()["running"]
            assert engine.stats()["pages_most"] <= used or each is waiting
        assert list(chip.sequences) == [engine.usage(other.number)["sequence"]]
        engine.cancel(other.number)
        assert not engine.step()["tokens"]
        finish(engine, chip, everyone)


def test_a_step_stops_nobody():
    """During a step others submit, cancel, poll and free; a second step is refused."""
    chip = StrictChip(SIZES)
    inside, go_on = threading.Event(), threading.Event()

    def fault(_step, _places):
        inside.set()
        assert go_on.wait(20)

    chip.fault = fault
    with Engine(chip, SIZES.image()) as engine:
        first, second = Wanted([1, 2], 5).submit(engine), Wanted([3], 5).submit(engine)
        thread = threading.Thread(target=engine.step)
        thread.start()
        assert inside.wait(20)
        third = Wanted([4], 5).submit(engine)
        engine.cancel(second.number)
        take(engine, [first, second])
        assert second.end == End(second.number, Reason.CANCELLED)
        engine.free(second.number)
        assert engine.stats()["leaving"] == 1
        assert [slot["request"] for slot in engine.slots()].count(0) == 6
        handle, busy = engine._handle, header.constants["SZR_BUSY"]
        assert _library().szr_step(handle, None) == _library().szr_reset(handle) == busy
        assert len(chip.sequences) == 2  # its sequence is in the step
        go_on.set()
        thread.join(20)
        assert len(chip.sequences) == 1
        assert finish(engine, chip, [first, third]) == 10


# Faults of the chip.


@pytest.mark.parametrize("sizes", [SIZES, FEW], ids=["8", "3"])
@pytest.mark.parametrize(
    "answer",
    [
        BUS_ERROR,
        Answer(CommandStatus.CAPACITY, Unit.QUANTIZE, 3),
        Answer(RunStatus.BUS_ERROR, RUN_UNIT, 9),
        Answer(RunStatus.ABORTED, RUN_UNIT, 9),
    ],
    ids=lambda answer: result_text(answer.word),
)
def test_faults_that_pass(answer, sizes):
    """Steps fail now and then: every request is as alone."""
    rng = random.Random(2)

    def fault(step, _places):
        return answer if step % 23 == 5 else None  # more steps than any repeat has

    chip, requests = StrictChip(sizes, fault), []
    with Engine(chip, sizes.image()) as engine:
        requests = [some(rng, sizes, number).submit(engine) for number in range(24)]
        assert finish(engine, chip, requests) > 60
        assert all(each.end.reason != Reason.FAULT for each in requests)
        assert engine.stats()["failed_steps"] > 5


def test_soft_statuses_are_no_faults():
    soft = Answer(RunStatus.OVERFLOW | RunStatus.SCALE_NONFINITE, RUN_UNIT, 7)
    chip = StrictChip(SIZES)
    requests = [Wanted([n], 5) for n in range(3)]
    chip.fault = lambda _step, _places: soft
    with Engine(chip, SIZES.image()) as engine:
        for each in requests:
            each.submit(engine)
        for _ in range(5):
            report = engine.step()
            assert (report["result"], report["failed"]) == (soft.word, 0)
        finish(engine, chip, requests)


def test_a_fault_of_one_request_is_its_own():
    """Each step with the token 666 fails. Its request ends; all others are as alone."""

    def fault(_step, places):
        is_bad = any(token == 666 for _, _, token, _ in places)
        return Answer(CommandStatus.NONFINITE, Unit.QUANTIZE, 12) if is_bad else None

    rng, chip = random.Random(3), StrictChip(SIZES, fault)
    with Engine(chip, SIZES.image()) as engine:
        bad = [Wanted([1] * n + [666, 2, 3], 9).submit(engine) for n in (0, 5, 30)]
        good = [some(rng, SIZES, number, 20).submit(engine) for number in range(12)]
        assert not any(666 in each.prompt + each.alone(SIZES) for each in good)
        finish(engine, chip, [*bad, *good])
        for each in bad:
            assert each.end == End(each.number, Reason.FAULT, "command 12 (QUANTIZE): NONFINITE")
            assert not each.tokens
        assert all(each.end.reason != Reason.FAULT for each in good)
        usage = engine.usage(bad[0].number)
        assert (usage["repeats"], usage["reason"]) == (2, Reason.FAULT)


def test_a_late_fault_keeps_the_tokens_before_it():
    """The chosen tokens stay. The other requests wait no longer than a repeat takes."""
    line = alone(SIZES, [1, 2], 20)

    def fault(_step, places):
        return BUS_ERROR if any(token == line[9] for _, _, token, _ in places) else None

    chip = StrictChip(SIZES, fault)
    with Engine(chip, SIZES.image()) as engine:
        bad, good = Wanted([1, 2], 20).submit(engine), Wanted([3], 20).submit(engine)
        finish(engine, chip, [bad, good])
        assert bad.tokens == line[:10]
        assert bad.end == End(bad.number, Reason.FAULT, "command 17 (CACHE): BUS_ERROR")
        # The others' steps; then each alone, eight tokens in a step.
        assert chip.steps == 20 + 1 + 2 * 2 + 1


def test_a_chip_that_always_fails_ends_all():
    chip = StrictChip(SIZES, lambda _step, _places: Answer(RunStatus.BUS_ERROR, RUN_UNIT, 0))
    with Engine(chip, SIZES.image()) as engine:
        requests = [Wanted([n] * 20, 5).submit(engine) for n in range(20)]
        finish(engine, chip, requests)
        assert {each.end.fault for each in requests} == {"the run: BUS_ERROR"}


def test_a_damaged_program_is_written_again():
    chip = StrictChip(SIZES)
    with Engine(chip, SIZES.image()) as engine:
        requests = [Wanted([n], 20).submit(engine) for n in range(4)]
        for _ in range(5):
            engine.step()
        for address in chip.memory:
            chip.memory[address] = b"x" * 64
        take(engine, requests)
        finish(engine, chip, requests)
        assert all(each.end.reason == Reason.LENGTH for each in requests)
        assert engine.stats()["failed_steps"] == 1


@pytest.mark.parametrize("share", [1, 1.2, 1.5])
@pytest.mark.parametrize("sizes", [SIZES, FEW], ids=["8", "3"])
def test_a_want_of_pages(sizes, share):
    """Fewer go on, come to their ends, and the others follow: every request is as alone.

    share: of the pages, those of the longest request are 1.
    """
    sizes = dataclasses.replace(sizes, pages=int(share * sizes.pages_of(sizes.context - 1)))
    rng, chip, requests = random.Random(4), StrictChip(sizes), []
    with Engine(chip, sizes.image()) as engine:
        for number in range(24):
            requests.append(some(rng, sizes, number).submit(engine))
            engine.step()
            take(engine, requests)
        finish(engine, chip, requests)
        assert all(each.end.reason != Reason.FAULT for each in requests)
        assert engine.stats()["failed_steps"] > 0
        assert 1 <= engine.stats()["limit"] <= sizes.sequences


def test_a_request_for_more_pages_than_there_are():
    sizes = dataclasses.replace(SIZES, pages=6)
    chip = StrictChip(sizes)
    with Engine(chip, sizes.image()) as engine:
        large = Wanted([1] * 30, 9).submit(engine)
        small = [Wanted([n], 12).submit(engine) for n in range(4)]
        finish(engine, chip, [large, *small])
        assert (large.end.reason, large.tokens) == (Reason.FAULT, [])
        assert large.end.fault.endswith("(CACHE): CAPACITY")
        assert all(each.end.reason == Reason.LENGTH for each in small)


def test_a_silent_chip_and_a_reset():
    """The step gives an error, and each after it, until a reset. Then all go through again."""
    rng, chip = random.Random(5), StrictChip(SIZES)
    with Engine(chip, SIZES.image()) as engine:
        requests = [some(rng, SIZES, number).submit(engine) for number in range(12)]
        for _ in range(6):
            engine.step()
        take(engine, requests)
        chip.is_silent = True
        for _ in range(2):
            with pytest.raises(HostError, match="SILENT"):
                engine.step()
        steps = chip.steps
        assert engine.stats()["broken"] == header.constants["SZR_SILENT"]
        cancelled = next(each for each in requests if not each.end)
        engine.cancel(cancelled.number)
        assert chip.steps == steps
        engine.reset()
        assert not engine.stats()["broken"]
        finish(engine, chip, requests)
        assert cancelled.end.reason == Reason.CANCELLED


def test_a_chip_that_breaks_rules():
    """An id beyond the vocabulary, fewer ids than places, a sequence that is open already."""
    chip = StrictChip(SIZES)
    with Engine(chip, SIZES.image()) as engine:
        request = Wanted([1], 5).submit(engine)
        honest = chip._choose

        def beyond(places):
            honest(places)
            chip._queues["READBACK"][-1] = SIZES.vocabulary

        for wrong in (beyond, lambda _places: None):
            chip._choose = wrong
            with pytest.raises(HostError, match="CHIP"):
                engine.step()
            chip._choose = honest
            engine.reset()
        engine.step()
        take(engine, [request])
        held = chip.sequences.pop(engine.usage(request.number)["sequence"])
        chip._last = 0
        assert held
        Wanted([2], 5).submit(engine)
        with pytest.raises(HostError, match="CHIP"):
            engine.step()
        engine.reset()


# Bad input.


def test_bad_requests():
    """Each has an error's name, and nothing of it stays."""
    chip = StrictChip(SIZES)
    with Engine(chip, SIZES.image()) as engine:
        for name, prompt, most, others in (
            ("EMPTY_PROMPT", [], 5, {}),
            ("TOO_LONG", [1] * 64, 1, {}),
            ("TOO_LONG", [1] * 3_000_000, 1, {}),
            ("BAD_TOKEN", [1, 1000], 5, {}),
            ("BAD_TOKEN", [-1], 5, {}),
            ("BAD_TOKEN", [1 << 32], 5, {}),
            ("BAD_TOKEN", [(1 << 32) + 5], 5, {}),
            ("BAD_TOKEN", ["x"], 5, {}),
            ("BAD_TOKEN", [1], 5, {"stops": [1000]}),
            ("BAD_MAX_TOKENS", [1], 0, {}),
            ("BAD_MAX_TOKENS", [1], -3, {}),
            ("BAD_SAMPLING", [1], 5, {"temperature": -0.5}),
            ("BAD_SAMPLING", [1], 5, {"temperature": float("nan")}),
            ("BAD_SAMPLING", [1], 5, {"temperature": float("inf")}),
            ("BAD_SAMPLING", [1], 5, {"temperature": 100.5}),
            ("BAD_SAMPLING", [1], 5, {"temperature": 1.0, "top_k": 0}),
            ("BAD_SAMPLING", [1], 5, {"temperature": 1.0, "top_k": 7}),
            ("BAD_ARGUMENT", [1], 5, {"seed": 1 << 32}),
            ("BAD_ARGUMENT", [1], 5, {"seed": -1}),
            ("BAD_ARGUMENT", [1], 5, {"user": 1 << 32}),
            ("BAD_ARGUMENT", [1], 5, {"stops": [1] * 1001}),
        ):
            with pytest.raises(HostError) as caught:
                engine.submit(prompt, most, **others)
            assert caught.value.name == name, (prompt[:3], most, others)
        assert engine.stats()["requests"] == 0
        assert not engine.is_busy
        for wrong in (0, 1, -1, 1 << 64, 1 << 70):
            for call in (engine.cancel, engine.free, engine.usage):
                with pytest.raises(HostError, match="UNKNOWN"):
                    call(wrong)
        request = Wanted([1], 2).submit(engine)
        with pytest.raises(HostError, match="ACTIVE"):
            engine.free(request.number)
        while engine.is_busy:
            engine.step()
        with pytest.raises(HostError, match="ENDED"):
            engine.cancel(request.number)
        engine.free(request.number)
        assert engine.poll() == []  # those of the freed request
        for call in (engine.free, engine.cancel, engine.usage):
            with pytest.raises(HostError, match="UNKNOWN"):
                call(request.number)
        assert engine.submit([1], 2) == request.number + 1


def test_missing_pointers():
    library, wrong = _library(), header.constants["SZR_BAD_ARGUMENT"]
    chip = StrictChip(SIZES)
    handle, image = ctypes.c_void_p(), SIZES.image()
    ok = (ctypes.byref(chip.backend), image, len(image), None, ctypes.byref(handle))
    for n in (0, 1, 4):
        assert library.szr_open(*(None if m == n else each for m, each in enumerate(ok))) == wrong
    empty = header.structures["szr_backend"]()
    assert library.szr_open(ctypes.byref(empty), *ok[1:]) == wrong
    assert library.szr_open(*ok) == 0
    count = ctypes.c_size_t()
    for call in (
        lambda engine: library.szr_submit(engine, None, None),
        lambda engine: library.szr_usage_of(engine, 1, None),
        lambda engine: library.szr_poll(engine, None, 1, ctypes.byref(count)),
        lambda engine: library.szr_poll(engine, None, 0, None),
        lambda engine: library.szr_stats_of(engine, None),
        lambda engine: library.szr_slots_of(engine, None, 1, ctypes.byref(count)),
        lambda engine: library.szr_facts_of(engine, None),
    ):
        assert call(handle) == call(None) == wrong
    assert library.szr_step(None, None) == library.szr_reset(None) == wrong
    assert library.szr_cancel(None, 1) == library.szr_free(None, 1) == wrong
    assert library.szr_result_text(0, None, 0) == wrong
    assert library.szr_poll(handle, None, 0, ctypes.byref(count)) == 0
    assert library.szr_step(handle, None) == 0
    library.szr_close(handle)
    library.szr_close(None)


def test_damaged_images():
    """A byte that differs, a part that is missing, sizes that make no sense with a right check."""
    image = SIZES.image()

    def refused(made):
        with pytest.raises(HostError, match="BAD_IMAGE"):
            Engine(StrictChip(SIZES), made)

    rng = random.Random(6)
    for at in (0, 5, 9, 13, 20, *(rng.randrange(len(image)) for _ in range(40))):
        refused(image[:at] + bytes([image[at] ^ 1 << rng.randrange(8)]) + image[at + 1 :])
    for size in (0, 1, 15, 63, 64, 200, len(image) - 1):
        refused(image[:size])
    refused(image + b"\0")
    for word in range(4, 13):
        for value in (0, 0xFFFF_FFFF, 0x7FFF_FFFF, 1 << 20):
            body = bytearray(image[16:])
            struct.pack_into("<I", body, 4 * (word - 4), value)
            made = image[:12] + struct.pack("<I", zlib.crc32(body)) + body
            # Others make sense, or the chip refuses the thresholds.
            with contextlib.suppress(HostError):
                Engine(StrictChip(SIZES), made).close()
    refused(dataclasses.replace(SIZES, refused=frozenset({(1, 0)})).image())


def test_names():
    names = [name for name in header.constants if name.startswith("SZR_")]
    errors = names[: names.index("SZR_FIRST_COME")]
    said = [_library().szr_error_name(header.constants[name]).decode() for name in errors]
    assert said == errors
    assert _library().szr_error_name(-1) == _library().szr_error_name(99) == b"unknown error"
    both = CommandStatus.BUS_ERROR | CommandStatus.RANGE
    assert result_text(Answer(both, Unit.LOAD, 9).word) == "command 9 (LOAD): RANGE|BUS_ERROR"
    assert result_text(DONE.word) == "the run: OK"
    assert result_text(6 << 13) == "command 0 (no unit): OK"
    short = ctypes.create_string_buffer(5)
    assert _library().szr_result_text(DONE.word, short, 5) == 0
    assert short.value == b"the "


# All at once.


@pytest.mark.parametrize("seed", range(4))
def test_soak(seed):
    """Requests come, are cancelled and freed; steps fail, pages are wanting, the chip is lost."""
    rng = random.Random(seed)
    sizes = Sizes(
        places=rng.randint(1, 8), sequences=rng.randint(1, 9), pages=rng.randint(16, 60),
        refused=frozenset((t, c) for t in range(2, 9) for c in range(t + 1) if rng.random() < 0.2),
    )  # fmt: skip

    def fault(_step, places):
        if any(token == 13 for _, _, token, _ in places):
            return BUS_ERROR
        if rng.random() < 0.03:
            return Answer(rng.choice([CommandStatus.LANE_FAULT, 1, 1 << 7]), rng.randrange(6), 1)
        return Answer(RunStatus.DAMAGED, RUN_UNIT, 3) if rng.random() < 0.01 else None

    chip, requests, kept, compared = StrictChip(sizes, fault), [], [], 0
    with Engine(chip, sizes.image(), policy=Policy(seed % 3)) as engine:
        for number in range(500):
            requests.append(some(rng, sizes, number).submit(engine))
            kept.append(requests[-1])
            for _ in range(rng.randrange(8)):
                if chip.is_silent and engine.is_busy:
                    with pytest.raises(HostError, match="SILENT"):
                        engine.step()
                    engine.reset()
                engine.step()
                take(engine, kept)
            chip.is_silent = rng.random() < 0.01
            if rng.random() < 0.2:
                running = [each for each in kept if each.end is None]
                if running:
                    engine.cancel(rng.choice(running).number)
            take(engine, kept)
            for each in [each for each in kept if each.end and rng.random() < 0.5]:
                engine.free(each.number)
                kept.remove(each)
            assert engine.stats()["requests"] == len(kept)
        chip.is_silent = False
        finish(engine, chip, kept)
        compared = sum(each.check(sizes) for each in requests)
    assert compared > 1000
    ended = [each.end.reason for each in requests]
    assert {Reason.STOP, Reason.LENGTH, Reason.CANCELLED, Reason.FAULT} <= set(ended)
