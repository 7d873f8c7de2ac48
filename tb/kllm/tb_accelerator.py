"""Runs inside the simulator, started by test_accelerator.py: programs on KllmAccelerator.

``params``: lists of programs as test_accelerator.as_vectors makes them, by purpose, and "follow", a
short one without faults: it loads all that it uses.
"""

import cocotb
import pytest
from cocotb.triggers import FallingEdge, ReadOnly

from golden.axi.format import CACHE_REGISTERS, COUNTERS, REGISTERS, RESP_OKAY
from golden.kllm.isa import COMMAND_WORDS, RUN_UNIT, CommandStatus, Unit
from golden.paging.format import Op
from tb.bench import config, params
from tb.contract import block_timing
from tb.kllm.support.host import BATCH, RUN, Host
from tb.kllm.support.rebase import counted, rebase, units_of
from tb.kllm.support.reports import compare
from tb.simulate.ports import stream_port

ABORTED = int(CommandStatus.ABORTED)
FRESH = (0,) * len(Unit)  # commands of each unit after reset
POLL = 6  # cycles from one read of a status to the next
UNITS = config.machine.units
UNIT_OF = units_of(UNITS)
EARLY = int(CommandStatus.MALFORMED | CommandStatus.DEPENDENCY)


def prepare(host, program):
    """Memories of a program, as golden had them; faults as pairs of word address, response."""
    for memory, data, errors in zip(
        (host.data, *host.weights),
        (program["data"], *program["weights"]),
        (program["data_faults"], *program["weight_faults"]),
        strict=True,
    ):
        memory.data, memory.errors = bytearray(data), dict(errors)
    for pages in host.pages:
        pages.response = RESP_OKAY


async def requests(host, program, **options) -> None:
    """The host's requests before the program. FREEs of what may be open are answered anyhow.

    The FREEs are complete before the next request: THRESHOLDS are refused while one is open.
    Answers of several ops may overtake each other.
    """
    given = {words[0] >> 8 & 0xFF: (words, answer) for words, answer in program["requests"]}
    is_free = {tag: words[0] & 0xFF == Op.FREE for tag, (words, _) in given.items()}
    for first in (True, False):
        some = [tag for tag in given if is_free[tag] == first]
        answers = await host.request([given[tag][0] for tag in some], **options)
        got = {answer & 0xFF: answer for answer in answers}
        assert sorted(got) == sorted(some)
        for tag in some:
            words, answer = given[tag]
            assert got[tag] == answer or first, f"{words}: {got[tag]:#x}, not {answer:#x}"


def parts(program) -> list[dict]:
    """The program batch by batch: words, results, what is read back, and the batch before it."""
    steps = program["steps"] or [(0, [], [RESP_OKAY] * config.machine.engines)]
    assert not steps[0][0]
    ends = [first for first, _, _ in steps[1:]] + [len(program["results"])]
    found, read = [], 0
    for (first, batch, response), end in zip(steps, ends, strict=True):
        count = sum(program["reads"][first:end])
        found.append(
            {
                "words": program["words"][COMMAND_WORDS * first : COMMAND_WORDS * end],
                "results": program["results"][first:end],
                "readback": program["readback"][read : read + count],
                "reads": program["reads"][first:end],
                "batch": batch,
                "response": response,
            }
        )
        read += count
    return found


async def begin(host, part, **options) -> None:
    """Writes the batch of a part, and sets what the pages' memory answers."""
    if host.pages:
        await host.run(part["batch"], to=BATCH, **options)
        for pages, response in zip(host.pages, part["response"], strict=True):
            pages.response = response


async def execute(host, program, base=FRESH, **options):
    """Run a program; all that comes until nothing more does is what golden says."""
    prepare(host, program)
    plain = {name: options[name] for name in ("p_stall", "latency") if name in options}
    await requests(host, program, **plain)
    for part in parts(program):
        await begin(host, part, **plain)
        words, results = rebase(part["words"], base), part["results"]
        got, taken = await host.run(
            words, len(results), len(part["readback"]), drain=True, **options
        )
        compare(got, taken, results, part["readback"])


async def abort(host, program, at, **options) -> tuple[list[int], int]:
    """Run a program up to an abort in cycle ``at``; commands counted until then, and the ABORTED.

    Its parts before the last run whole. Of the last one, the commands that give a status are the
    first n. Of each unit, those up to some command end as golden says and have given the words
    that golden says. Those after it are ABORTED, or have a fault that is found before they begin.
    """
    prepare(host, program)
    plain = {name: options[name] for name in ("p_stall", "latency") if name in options}
    await requests(host, program, **plain)
    *whole, program = parts(program)
    done = FRESH
    for part in whole:
        await begin(host, part, **plain)
        got, taken = await host.run(
            part["words"], len(part["results"]), len(part["readback"]), **plain
        )
        compare(got, taken, part["results"], part["readback"])
        done = [a + b for a, b in zip(done, counted(part["words"], UNITS), strict=True)]
    await begin(host, program, **plain)
    got, taken = await host.run(program["words"], abort_at=at, **options)
    n = len(got)
    results = program["results"][:n]
    reported = sorted((report.tag, report.unit) for report in got)
    assert reported == sorted((tag, unit) for tag, unit, _ in results), f"abort at {at}"
    found = {int(unit): [] for unit in Unit}
    for report in got:
        found[report.unit].append((report.tag, report.status))
    words = program["words"][: COMMAND_WORDS * n]
    due = 0
    ends = dict.fromkeys(map(int, Unit), False)
    for number, (tag, unit, status) in enumerate(results):
        if words[COMMAND_WORDS * number] & 0xFF not in UNIT_OF:
            found[unit].remove((tag, status))
    for number, (tag, unit, status) in enumerate(results):
        if words[COMMAND_WORDS * number] & 0xFF not in UNIT_OF:
            continue
        assert found[unit][0][0] == tag, f"abort at {at}: unit {unit}, {found[unit][0]} for {tag}"
        _, ended = found[unit].pop(0)
        ends[unit] |= ended == ABORTED
        assert ended == status or ended == ABORTED, f"abort at {at}: {tag} ended with {ended:#x}"
        assert not ends[unit] or ended & (ABORTED | EARLY), f"abort at {at}: {tag} began behind it"
        if ended == ABORTED:
            assert not status & EARLY
        else:
            due += program["reads"][number]
    assert taken == program["readback"][:due], f"abort at {at}: {len(taken)} words, not {due}"
    base = [a + b for a, b in zip(done, counted(words, UNITS), strict=True)]
    return base, sum(report.status == ABORTED for report in got)


@cocotb.test()
async def programs(dut):
    """Programs run without a reset between them; what they leave in memory changes no clean one."""
    host = Host(dut, config)
    for p_stall, latency in ((0.0, 20), (0.4, 3)):
        for faulty, clean in zip(params["faulty"], params["clean"], strict=True):
            await host.reset()
            await execute(host, faulty, p_stall=p_stall, latency=latency)
            base = counted(faulty["words"], UNITS)
            await execute(host, clean, base, p_stall=p_stall, latency=latency)
            assert dut.idle.value == 1


async def run_part(host, part, **options) -> None:
    """A part of a fetched program, by RUN: no status, what is read back, one word for all."""
    got, taken = await host.run(
        [part["run"]], 0, len(part["readback"]), to=RUN, results=1, **options
    )
    assert not got
    assert host.results == [part["answer"]]
    assert taken == part["readback"]


@cocotb.test(skip="fetched" not in params)
async def runs_from_memory(dut):
    """Programs that the chip reads itself, and then one of the host."""
    host = Host(dut, config)
    for p_stall, latency in ((0.0, 20), (0.4, 3)):
        options = {"p_stall": p_stall, "latency": latency}
        for program in params["fetched"]:
            await host.reset()
            prepare(host, program)
            await requests(host, program, **options)
            base = FRESH
            for part in program["parts"]:
                await begin(host, part, **options)
                await run_part(host, part, **options)
                more = counted(part["words"], UNITS)
                base = [a + b for a, b in zip(base, more, strict=True)]
            assert dut.idle.value == 1
            await execute(host, params["follow"], base, **options)


@cocotb.test(skip="forked" not in params)
async def forks(dut):
    """Requests of the host between the parts of a program, each after the answer to the last."""
    host = Host(dut, config)
    for p_stall, latency in ((0.0, 20), (0.4, 3)):
        options = {"p_stall": p_stall, "latency": latency}
        for program in params["forked"]:
            await host.reset()
            prepare(host, program)
            for number, part in enumerate(program["parts"]):
                await begin(host, part, **options)
                for words, answer in part["requests"]:
                    (got,) = await host.request([words], **options)
                    assert got == answer, f"part {number}: {got:#x}, not {answer:#x}"
                got, taken = await host.run(
                    part["words"], len(part["results"]), len(part["readback"]), drain=True,
                    **options,
                )  # fmt: skip
                compare(got, taken, part["results"], part["readback"])
            assert dut.idle.value == 1


@cocotb.test(skip="fetched" not in params)
async def abort_of_a_fetched_program(dut):
    """The result of the run says how many commands were given; the next program is right."""
    host = Host(dut, config)
    rng = host._bench.rng("abort")
    seen = set()
    for whole in params["fetched"]:
        for cut in range(4):
            parts_before = whole["parts"][: rng.randrange(len(whole["parts"]))]
            last = whole["parts"][len(parts_before)]
            at = 20 + rng.randrange(20 * len(last["words"]) // COMMAND_WORDS if cut else 60)
            options = {"p_stall": 0.3 * (cut % 2), "latency": (1, 60)}
            await host.reset()
            prepare(host, whole)
            await requests(host, whole, **options)
            for part in parts_before:
                await begin(host, part, **options)
                await run_part(host, part, **options)
            await begin(host, last, **options)
            got, taken = await host.run([last["run"]], to=RUN, results=1, abort_at=at, **options)
            (result,) = host.results
            assert not got
            assert taken == last["readback"][: len(taken)]
            given = len(last["words"]) // COMMAND_WORDS
            if result & 0xFFFF == ABORTED | RUN_UNIT << 13:
                given = result >> 16
            else:
                assert (result, taken) == (last["answer"], last["readback"])
            seen.add(given < len(last["words"]) // COMMAND_WORDS)
            words = [word for part in parts_before for word in part["words"]]
            base = counted(words + last["words"][: COMMAND_WORDS * given], UNITS)
            await execute(host, params["follow"], base, **options)
    assert True in seen, "no run was aborted"


@cocotb.test()
async def ports_of_different_latency(dut):
    """Each port in turn is far away; every burst takes its time."""
    host = Host(dut, config)
    for n, memory in enumerate((host.data, *host.weights)):
        await host.reset()
        memory.delay = 150
        pool = params["clean"] if n % 2 else params["faulty"]
        await execute(host, pool[n % len(pool)], p_stall=0.1, latency=(1, 60))
        memory.delay = 0


@cocotb.test()
async def slow_host(dut):
    """A host that polls rarely, and one that polls only when the engines wait for it."""
    host = Host(dut, config)
    await host.reset()
    await execute(host, params["clean"][0], p_away=0.98)
    for program in params["long"]:
        await host.reset()
        await execute(host, program, deaf=2000)
        # More commands than all queues hold: the statuses did stop the engines.
        assert host.unsent > 0


def upto(program, rng) -> dict:
    """The program up to some batch, that one included."""
    steps = program["steps"]
    count = rng.randint(1, len(steps))
    end = steps[count][0] if count < len(steps) else len(program["results"])
    return {**program, "steps": steps[:count], "results": program["results"][:end]}


@cocotb.test()
async def abort_at_random(dut):
    """Whenever it comes, statuses say what was done, and the next program is right."""
    host = Host(dut, config)
    rng = host._bench.rng("abort")
    ended = 0
    for whole in (*params["faulty"], *params["clean"]):
        for cut in range(3):
            program = upto(whole, rng) if whole["steps"] else whole
            length = 60 * (len(program["results"]) - (program["steps"] or [(0,)])[-1][0])
            at = rng.randrange(length if cut else min(length, 200))
            p_stall, latency = rng.choice([(0.0, 4), (0.3, (1, 80))])
            await host.reset()
            base, aborted = await abort(
                host, program, at, p_stall=p_stall, latency=latency, p_away=rng.choice([0.0, 0.9])
            )
            ended += aborted
            got, taken = await host.run([], abort_at=0)
            assert not got
            assert not taken
            await execute(host, params["follow"], base, p_stall=p_stall, latency=latency)
    assert ended, "no command was ended by an abort"


@cocotb.test()
async def reset_at_random(dut):
    """A reset leaves nothing of what ran before it."""
    host = Host(dut, config)
    rng = host._bench.rng("reset")
    for program in (*params["faulty"], *params["clean"]):
        for _ in range(2):
            at = rng.randrange(60 * len(program["results"]))
            await host.reset()
            prepare(host, program)
            await requests(host, program)
            some = rng.choice(parts(program))
            await begin(host, some)
            await host.run(
                some["words"], len(some["results"]), len(some["readback"]),
                stop_at=at, p_stall=rng.choice([0.0, 0.4]), latency=rng.choice([2, 50]),
            )  # fmt: skip
            await host.reset(cycles=rng.randint(1, 4))
            await execute(host, params["follow"])


@cocotb.test()
async def bus_errors(dut):
    """SLVERR and DECERR on one port alone, early and late words of an image."""
    host = Host(dut, config)
    for program in params["errors"]:
        await host.reset()
        await execute(host, program, p_stall=0.1, latency=(1, 30))


@cocotb.test()
async def a_hang_is_found(dut):
    """The host stops where a status never comes, instead of waiting for ever, and a reset helps."""
    host = Host(dut, config)
    await host.reset()
    program = params["follow"]
    prepare(host, program)
    assert not program["steps"]
    with pytest.raises(AssertionError, match="nothing moves"):
        await host.run(program["words"], len(program["results"]) + 1, silence=1500)
    await host.reset()
    await execute(host, program, silence=1500)


@cocotb.test()
async def loads_at_full_rate(dut):
    """The block's timing: of each LOAD the read, the next command and ``idle``, to the cycle."""
    timing, host = block_timing(), Host(dut, config)
    await host.reset()
    words, memory, rng = params["loads"], host.data, host._bench.rng("loads")
    memory.data = bytearray(rng.randbytes(len(memory.data) or 1 << 14))
    (aw, w, b), idle = (stream_port(dut, f"host__{name}") for name in ("aw", "w", "b")), dut.idle
    b[2].value = 1
    taken, reads, rows, is_idle = [], [], [], []

    def taken_most(cycle: int) -> int:
        """Words of the commands that have begun by then, one per interval."""
        return min(len(words), (int(cycle / timing.interval) + 1) * COMMAND_WORDS)

    for cycle in range(timing.interval.numerator * len(words) // COMMAND_WORDS + 100):
        memory.drive(cycle, rng, 0.0)
        # The registers take a command faster than the interval: their queue would fill.
        more = taken_most(cycle) > len(taken)
        aw[0].value = REGISTERS["COMMAND"].offset
        w[0].value = words[len(taken)] | 0xF << 32 if more else 0
        aw[1].value = w[1].value = more
        await ReadOnly()
        assert aw[2].value == w[2].value
        if more and w[2].value:
            taken.append(cycle)
        reads += [cycle] * bool(memory.ar[1].value)
        rows += [cycle] * bool(memory.offered and memory.r[2].value)
        is_idle.append(bool(idle.value))
        memory.sample(cycle, 1)
        await FallingEdge(dut.clk)
    starts = taken[COMMAND_WORDS - 1 :: COMMAND_WORDS]
    assert len(taken) == len(words)
    assert starts == [starts[0] + n * timing.interval for n in range(len(starts))]
    assert reads == [start + timing.latency for start in starts]
    assert len(rows) == len(starts)
    end = timing.delay("from its final data__r to idle")
    for row in rows:
        assert is_idle[row : row + end + 1] == [False] * end + [True]


@cocotb.test()
async def functions_at_full_rate(dut):
    """Each FUNCTION begins in the cycle after the status of the one before it.

    The host finds a status when it polls, at most ``POLL`` cycles later.
    """
    host = Host(dut, config)
    await host.reset()
    host.data.data = bytearray(params["data"])
    got, _ = await host.run(params["words"], 1 + len(params["apart"]))
    assert not any(report.status for report in got)
    first, *others = (report.cycle for report in got[1:])
    due = first
    for cycle, cycles in zip(others, params["apart"][1:], strict=True):
        due += cycles + 1
        assert abs(cycle - due) <= POLL, f"{cycle}, not {due}"


async def run_loaded(dut) -> list:
    """The reports of a program of ``after_product``, of which every word is compared."""
    host = Host(dut, config)
    await host.reset()
    host.data.data = bytearray(params["data"])
    for memory, data in zip(host.weights, params["weights"], strict=True):
        memory.data = bytearray(data)
    results = params["results"]
    got, taken = await host.run(params["words"], len(results), len(params["readback"]), drain=True)
    compare(got, taken, results, params["readback"])
    return got


@cocotb.test()
async def results_over_rows_ahead(dut):
    """The last command's results are what stays."""
    await run_loaded(dut)


@cocotb.test()
async def rows_ahead_at_full_rate(dut):
    """A status comes so many cycles after the last rows that its command waits for, and no more."""
    got, results = await run_loaded(dut), params["results"]
    ends = {report.tag: report.cycle for report in got}
    product = next(tag for tag, unit, _ in results if unit == Unit.MATMUL and tag > 6)
    tags = [tag for tag, _, _ in results]
    at = tags.index(product)
    product, sums, others, quantize = (ends[tag] for tag in tags[at : at + 4])
    cocotb.log.info("apart: %d %d %d", sums - product, others - sums, quantize - others)
    assert sums - product <= params["sums"] + POLL, f"{sums - product}, not {params['sums']}"
    assert quantize - others <= params["quantize"] + POLL, f"{quantize - others}"
    # Without rows ahead each takes longer.
    assert params["sums"] + POLL < params["apart"][0]
    assert params["quantize"] + POLL < params["apart"][1]


async def counts(host) -> tuple[list[int], int]:
    """Cycles in which each unit was at work; in how many cycles they were not counted by CYCLES."""
    cycles, *busy = [await host.look(CACHE_REGISTERS[name].offset) for name in COUNTERS]
    return [word for word, _ in busy], cycles[1] - cycles[0]


@cocotb.test()
async def units_are_counted(dut):
    """Units work one after another: each as long as its statuses come after those before them.

    The first LOAD takes so long that all other commands are in the chip when it ends.
    """
    host, far = Host(dut, config), 4000
    for _ in range(2):
        await host.reset()
        was, begin = await counts(host)
        assert was == [0] * len(Unit)
        host.data.data, host.data.delay = bytearray(params["data"]), far
        for memory, data in zip(host.weights, params["weights"], strict=True):
            memory.data = bytearray(data)
        results = params["results"]
        got, taken = await host.run(params["words"], len(results), len(params["readback"]))
        compare(got, taken, results, params["readback"])
        busy, now = await counts(host)
        assert now == begin, "CYCLES counts each cycle"
        assert (await counts(host))[0] == busy, "no unit is at work"
        first, *others = got
        number = dict.fromkeys(Unit, 0)
        due = dict.fromkeys(Unit, 0)
        due[first.unit], number[first.unit] = far, 1
        for before, report in zip(got, others, strict=False):
            # The next command begins 2 cycles after a status.
            due[report.unit] += report.cycle - before.cycle - 2
            number[report.unit] += 1
        cocotb.log.info("%s", [(unit.name, busy[unit], due[unit]) for unit in Unit])
        for unit in Unit:
            off = abs(busy[unit] - due[unit])
            assert off <= POLL * number[unit], f"{unit.name}: {busy[unit]}, not {due[unit]}"
            assert due[unit] > 20


@cocotb.test()
async def malformed_streams(dut):
    """Commands that are none, then a program; a command that ends early, an abort, a program."""
    host = Host(dut, config)
    await host.reset()
    for program in params["garbage"]:
        await host.reset()
        await execute(host, program)
        base = counted(program["words"], UNITS)
        for rest in (1, 9, 15):
            got, taken = await host.run(program["words"][:rest], abort_at=100)
            assert not got
            assert not taken
            await execute(host, params["follow"], base)
            more = counted(params["follow"]["words"], UNITS)
            base = [a + b for a, b in zip(base, more, strict=True)]
