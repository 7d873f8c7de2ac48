"""Runs inside the simulator, started by test_fetch.py: a host, a data memory and a dispatcher.

The host writes the words of a packet when those of the packet before it are taken. So it writes a
run while its commands are under way, and commands while a run is.
"""

from collections import deque

import cocotb

from golden.kllm.engines import moved, screen
from golden.kllm.isa import (
    COMMAND_ROWS,
    COMMAND_WORDS,
    HEADER_ROWS,
    RUN_UNIT,
    CommandStatus,
    Header,
    RunStatus,
    Unit,
)
from golden.words import join
from tb.bench import config, params
from tb.contract import Followed, block_timing

PACKETS, MEMORY = params["packets"], params["memory"]
GIVEN = ("word", "run")
TAKEN = ("o", "status", "answer")
UNITS = tuple(Unit)[: config.units]
MASK = 0xFFFF
ABORTED, BUS_ERROR = int(RunStatus.ABORTED), int(RunStatus.BUS_ERROR)
SOFT = int(RunStatus.OVERFLOW | RunStatus.SCALE_NONFINITE)


class Dispatcher:
    """Takes words and gives statuses: those of a unit in order, after ``longest`` cycles or fewer.

    An abort drops words until nothing is under way and none is offered; a command that has not
    begun, every second one, ends with ABORTED.
    """

    def __init__(self, rng, statuses, longest) -> None:
        self.rng, self.statuses, self.longest = rng, statuses, longest
        self.partial: list[int] = []
        self.issued = [0] * len(UNITS)
        self.under_way = [deque() for _ in UNITS]  # [cycle at which it ends, report]
        self.outstanding = 0
        self.aborting = False
        self.commands = 0  # that came whole

    @property
    def idle(self) -> bool:
        return not self.aborting and not self.outstanding

    def word(self, word: int, cycle: int) -> None:
        if self.aborting:
            return
        self.partial.append(word)
        if len(self.partial) < COMMAND_WORDS:
            return
        words, self.partial = self.partial, []
        self.commands += 1
        unit, _ = screen(words, self.issued)
        if unit is not None:
            self.issued[unit] += 1
        status = next(self.statuses, 0)
        report = join((int(status), 13), (int(unit or 0), 3), (words[0] >> 16, 16))
        due = cycle + self.rng.randint(1, self.longest)
        self.under_way[unit or 0].append([due, report])
        self.outstanding += 1

    def reports(self, cycle: int) -> list[int]:
        """Those that are due, of the units in any order."""
        found = []
        for queue in self.rng.sample(self.under_way, len(self.under_way)):
            while queue and queue[0][0] <= cycle:
                found.append(queue.popleft()[1])
        return found

    def abort(self) -> None:
        self.aborting, self.partial = True, []
        for queue in self.under_way:
            for n, each in enumerate(queue):
                if n % 2:
                    each[1] = each[1] & ~0x1FFF | int(CommandStatus.ABORTED)


class Runs(Followed):
    """The packets in order. Reads are compared here: after an error their number is a matter of
    time.
    """

    def __init__(self, packets, **fields) -> None:
        self.all = packets
        names = (*GIVEN, *TAKEN)
        words = {n: [word for each in packets for word in each.get(n, [])] for n in names}
        ends = dict.fromkeys(names, 0)
        done = {n: [] for n in names}
        for each in packets:
            for name in names:
                ends[name] += len(each.get(name, []))
                done[name].append(ends[name])
        for name in ("read", "data", "report"):
            words[name], done[name] = [], [0] * len(packets)
        super().__init__(words, packets=done, **fields)
        self.longest = 40

    def begin(self, bench) -> None:
        statuses = iter([status for each in self.all for status in each["statuses"]])
        self.model = Dispatcher(bench.rng("dispatcher"), statuses, self.longest)
        self.lists = {name: [] for name in (*GIVEN, "data", "report")}
        self.allowed, self.next, self.cycle = 0, 0, 0
        self.reads = deque()  # of the run under way
        self.runs = deque()  # packets whose run is taken
        self.left = 0  # words of the packet that are not taken
        self.by_host = 0  # commands that no run gave
        self.was_aborted = False
        bench.dut.abort_pulse.value = 0

    def offers(self, counts):
        self.allowed = self.wanted
        return self.lists

    def sample(self, bench) -> None:
        model, self.cycle = self.model, self.cycle + 1
        assert not bench.offered("data") or bench._port["data"][2].get(), "data must wait"
        offers = bench.offered("o")
        is_idle, has_run = bool(bench.dut.idle.value), bool(self.runs) or bench.offered("run")
        assert not (is_idle and has_run), "idle in spite of a run"
        assert is_idle or has_run or self.was_aborted, "not idle, and no run is there"
        for name, word in bench.transfers((*GIVEN, "o", "read", "report", "answer")):
            if name in GIVEN:
                self.left -= 1
            if name == "run":
                self.runs.append(next(self.pending_runs))
                self.reads = deque(self.runs[-1]["reads"])
                self.before_run = model.commands
            elif name == "o":
                before = model.commands
                model.word(word, self.cycle)
                if not self.runs:
                    self.by_host += model.commands - before
            elif name == "report":
                model.outstanding -= 1
            elif name == "read":
                self.read(word)
            elif name == "answer":
                self.answered(word)
        if bench.dut.abort_pulse.value:
            self.was_aborted = True
            model.abort()
        elif model.aborting and not model.outstanding and not offers:
            model.aborting = False

    def answered(self, word: int) -> None:
        packet, given = self.runs.popleft(), self.model.commands - self.before_run
        assert word >> 13 & 7 != RUN_UNIT or word >> 16 == given, f"{given} commands were given"
        assert not self.reads or not packet["all_reads"], f"{len(self.reads)} reads were left out"

    def read(self, word: int) -> None:
        row, count = (word & ((1 << config.address_bits) - 1)) // 32, word >> config.address_bits
        assert self.reads, f"{count} rows from {row:#x} on read after the program"
        assert (row, count) == self.reads.popleft()
        held = [MEMORY.get(row + n, (0, True)) for n in range(count)]
        self.lists["data"] += [
            join((data, 256), (error, 1), (n == count - 1, 1))
            for n, (data, error) in enumerate(held)
        ]

    def drive(self, bench) -> None:
        model, dut = self.model, bench.dut
        if not self.left and self.next < self.allowed:
            packet = self.all[self.next]
            for name in GIVEN:
                words = packet.get(name, [])
                self.lists[name] += words
                self.left += len(words)
            self.next += 1
        self.lists["report"] += model.reports(self.cycle)
        dut.dispatcher_idle.value = model.idle
        dut.partial.value = bool(model.partial)
        dut.issued.value = join(*((count & MASK, 16) for count in model.issued))

    async def replay(self, bench, packets=None, **flow):
        self.wanted = self.count if packets is None else packets
        self.pending_runs = iter([each for each in self.all if "run" in each])
        counts = {name: self.packets[name][self.wanted - 1] for name in self.words}
        takes = {name: counts[name] for name in self.sinks} | {"read": None}
        result = await bench.run(self.offers(counts), takes, **flow)
        for name in TAKEN:
            result.check(name, self.words[name][: counts[name]])
        return result

    async def interrupt(self, bench, cut, **flow) -> None:
        self.wanted = self.count
        self.pending_runs = iter([each for each in self.all if "run" in each])
        await bench.run(self.offers({}), dict.fromkeys(self.sinks), stop_at=cut, **flow)

    def check_timing(self, flow, packets=None) -> None:
        """The first run: latency to its reads and words; then a word in each cycle."""
        timing, cycles = block_timing(), flow.cycles
        assert cycles["read"][0] == cycles["run"][0] + timing.latency
        header = timing.delay("from the header's last row to the program's read")
        assert cycles["read"][1] == cycles["data"][1] + header
        words = cycles["o"][: len(PACKETS[0]["o"])]
        assert words[0] == cycles["data"][3] + timing.delay("from a command's second row to o")
        assert words == list(range(words[0], words[0] + len(words)))
        commands = len(words) // COMMAND_WORDS
        assert words[-1] - words[0] + 1 == commands * timing.interval


contract = Runs(PACKETS, some=14, cuts=range(1, 120, 7))
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def reset_in_any_cycle(dut):
    """A reset in each cycle of a run whose reads and rows are slow."""
    bench = contract.bench(dut)
    idle = {name: 0.6 * (name == "data") for name in contract.sources}
    stall = {name: 0.6 * (name == "read") for name in contract.sinks}
    for cut in range(1, 80):
        await contract.restart(bench, 1)
        await contract.interrupt(bench, cut, p_idle=idle, p_stall=stall)
        await contract.restart(bench, 1)
        contract.check_timing(await contract.replay(bench, 1))


def program_words(row: int) -> list[int]:
    """The words of the program at ``row``."""
    rows = [MEMORY[row + n][0] for n in range(HEADER_ROWS)]
    count = rows[0] >> 32 * Header.COMMANDS & 0xFFFFFFFF
    body = [MEMORY[row + HEADER_ROWS + n][0] for n in range(COMMAND_ROWS * count)]
    return [word >> 32 * n & 0xFFFFFFFF for word in body for n in range(8)]


class Directed(Runs):
    """The host of a test of its own; all runs are of the first program, which ends well."""

    def __init__(self, **fields) -> None:
        super().__init__(PACKETS, **fields)
        self.row = PACKETS[0]["run"][0]
        self.program = program_words(self.row)

    def begin(self, bench) -> None:
        super().begin(bench)
        self.model.statuses = iter(())
        self.base = None  # commands of each unit before the last run

    def sample(self, bench) -> None:
        super().sample(bench)
        self.idle = bool(bench.dut.idle.value) and self.model.idle

    def last_run(self) -> None:
        self.base = list(self.model.issued)
        self.lists["run"].append(self.row)

    def check_last(self, flow) -> None:
        """The last run gives its whole program, the waits moved by what was there before."""
        words, size = flow.words["o"], len(self.program)
        wanted = []
        for n in range(0, size, COMMAND_WORDS):
            command = self.program[n : n + COMMAND_WORDS]
            wanted += moved(command, n // COMMAND_WORDS, self.base)
        assert words[-size:] == wanted
        done = join((0, 13), (RUN_UNIT, 3), (size // COMMAND_WORDS, 16))
        assert flow.words["answer"][-1] == done


class Aborts(Directed):
    """The runs ``before``, and a command of the host after the first; an abort at cycle ``at``.

    When everything is idle the host runs a program once more.
    """

    def __init__(self, at, before=(PACKETS[0],) * 3) -> None:
        super().__init__()
        self.at, self.before = at, before

    def begin(self, bench) -> None:
        super().begin(bench)
        self.quiet = 0
        self.lists["run"] += [packet["run"][0] for packet in self.before]
        runs = (*self.before, PACKETS[0])
        self.pending_runs = iter([packet | {"all_reads": False} for packet in runs])

    def sample(self, bench) -> None:
        super().sample(bench)
        if bench.dut.abort_pulse.value:
            self.issued, self.commands = list(self.model.issued), self.model.commands

    def drive(self, bench) -> None:
        super().drive(bench)
        bench.dut.abort_pulse.value = self.cycle == self.at
        if self.runs and not self.lists["word"] and self.cycle < self.at:
            self.lists["word"] += [1] * COMMAND_WORDS  # MALFORMED: it counts
        self.quiet = self.quiet + 1 if self.cycle > self.at and self.idle else 0
        if self.quiet == 3 and self.base is None:
            self.check_left()
            self.last_run()

    def check_left(self) -> None:
        left = (self.model.issued, self.model.partial)
        assert left == (self.issued, []), "the abort left words of the host"

    async def survive(self, bench, **flow) -> list[int]:
        """Statuses of the runs before the last one."""
        await self.restart(bench)
        takes = dict.fromkeys(self.sinks) | {"answer": len(self.before) + 1}
        made = await bench.run(self.lists, takes, **flow)
        self.task.cancel()
        self.check_last(made)
        assert len(made.words["status"]) == self.by_host, "a status of the host is lost"
        found = []
        answers = zip(made.words["answer"], made.cycles["answer"], self.before, strict=False)
        for word, cycle, packet in answers:
            whole = packet["answer"][0] & ~SOFT
            status, unit, commands = word & 0x1FFF, word >> 13 & 7, word >> 16
            if word == whole:
                assert not any(each & ABORTED for each in found), "a run ended as before the abort"
                assert flow or cycle <= self.at
            else:
                assert unit == RUN_UNIT
                assert status in (ABORTED, ABORTED | whole & 0x1FFF)
                assert commands <= whole >> 16
            found.append(status)
        return found


@cocotb.test()
async def aborts(dut):
    """An abort in any state: an answer for each run, and the next one is as if nothing had been."""
    bench = contract.bench(dut)
    length = 20 * len(PACKETS[0]["o"]) // COMMAND_WORDS
    seen = set()
    for at in (*range(40), *range(40, 3 * length, 17)):  # 0: a run is offered in that cycle
        found = await Aborts(at).survive(bench)
        seen.add(found.count(ABORTED))
    # The words and runs of the host are in queues, which show them without a gap: after an abort
    # it sends none, and a run that came late would not be aborted.
    idle = {name: 0.5 * (name not in GIVEN) for name in contract.sources}
    for at in range(1, 6 * length, 61):
        await Aborts(at).survive(bench, p_stall=0.5, p_idle=idle)
    assert seen >= {1, 2, 3}


@cocotb.test()
async def aborts_after_an_error(dut):
    """An abort adds ABORTED to the status of a run, but not when that is offered already."""
    bench = contract.bench(dut)
    error = BUS_ERROR | RUN_UNIT << 13
    runs = [each for each in PACKETS if "run" in each]
    bad = next(each for each in runs if each["answer"][0] > 0xFFFF
               and each["answer"][0] & 0xFFFF == error)  # fmt: skip
    seen, stall = set(), {name: 0.8 * (name == "answer") for name in contract.sinks}
    for at in range(1, 120 + 20 * config.chunk, 3):
        seen |= {*await Aborts(at, (bad,)).survive(bench, p_stall=stall)}
    assert seen == {ABORTED, BUS_ERROR, ABORTED | BUS_ERROR}


class LateWords(Aborts):
    """Part of a command comes ``late`` cycles after the abort, and its other words if it counts."""

    def __init__(self, at, late) -> None:
        super().__init__(at, PACKETS[:1])
        self.late, self.counts, self.is_whole = late, None, False

    def sample(self, bench) -> None:
        super().sample(bench)
        if self.counts is None and self.cycle > self.at + self.late and bench.offered("word"):
            self.counts = bool(bench.dut.idle.value)

    def drive(self, bench) -> None:
        if self.cycle <= self.at + self.late + 2 or (self.counts and self.model.partial):
            self.quiet = 0
        if self.cycle == self.at + self.late:
            self.lists["word"] += [1] * (COMMAND_WORDS // 3)
        if self.counts and not self.is_whole:
            self.lists["word"] += [1] * (COMMAND_WORDS - COMMAND_WORDS // 3)
            self.is_whole = True
        super().drive(bench)

    def check_left(self) -> None:
        if self.counts:
            assert self.model.commands == self.commands + 1, "words after the abort are lost"
        else:
            super().check_left()


@cocotb.test()
async def words_in_an_abort(dut):
    """Words that come before ``idle`` says that the abort is over are lost."""
    bench, lost = contract.bench(dut), 0
    idle = {name: 0.9 * (name == "data") for name in contract.sources}
    for at in range(1, 60, 6):
        for late in range(0, 30, 2):
            host = LateWords(at, late)
            await host.survive(bench, p_idle=idle)
            lost += not host.counts
    assert 20 < lost < 140


class LateRun(Aborts):
    """Commands of the host alone, an abort, and a run ``late`` cycles after it."""

    def __init__(self, at, late) -> None:
        super().__init__(at, PACKETS[:1])
        self.late, self.is_early = late, None
        self.longest = 120  # so that commands are under way when the run comes

    def begin(self, bench) -> None:
        super().begin(bench)
        self.lists["run"].clear()
        self.lists["word"] += [1] * 3 * COMMAND_WORDS

    def sample(self, bench) -> None:
        super().sample(bench)
        if bench.dut.abort_pulse.value:  # the statuses come in the cycles that follow
            for queue in self.model.under_way:
                for n, each in enumerate(queue):
                    each[0] = self.cycle + 1 + n
        if self.is_early is None and bench.offered("run"):
            self.is_early = not bench.dut.dispatcher_idle.value

    def drive(self, bench) -> None:
        if self.cycle <= self.at + self.late + 2:
            self.quiet = 0
        if self.cycle == self.at + self.late:
            self.lists["run"].append(self.row)
        super().drive(bench)

    def check_left(self) -> None:
        if self.is_early:
            super().check_left()


@cocotb.test()
async def runs_in_an_abort(dut):
    """A run that comes while the dispatcher aborts commands of the host is aborted too.

    The host gets the statuses of its commands, though it takes the answer late.
    """
    bench, early = contract.bench(dut), 0
    stall = {name: 0.9 * (name == "answer") for name in contract.sinks}
    for at in range(17, 80, 7):
        for late in (0, 1, 5, 12):
            host = LateRun(at, late)
            found = await host.survive(bench, p_stall=stall if at % 2 else 0.0)
            assert found == [ABORTED] or not host.is_early
            early += host.is_early
    assert early > 5


class Partial(Directed):
    """Half a command of the host, a run, and much later the other half."""

    def begin(self, bench) -> None:
        super().begin(bench)
        self.pending_runs = iter(PACKETS[:1])
        self.lists["word"] += [1] * (COMMAND_WORDS // 2)

    def drive(self, bench) -> None:
        super().drive(bench)
        if self.cycle == 20:
            self.lists["run"].append(self.row)
        if self.cycle == 120:
            assert not self.runs
            self.lists["word"] += [1] * (COMMAND_WORDS // 2)
        if self.base is None and self.model.issued[0]:
            self.base = list(self.model.issued)


@cocotb.test()
async def runs_wait_for_a_whole_command(dut):
    bench = contract.bench(dut)
    partial = Partial()
    await partial.restart(bench)
    takes = dict.fromkeys(partial.sinks) | {"answer": 1}
    flow = await bench.run(partial.lists, takes)
    partial.check_last(flow)
    assert flow.cycles["run"][0] > flow.cycles["status"][0] > 120
