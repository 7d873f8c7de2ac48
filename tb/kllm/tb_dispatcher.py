"""Runs inside the simulator, started by test_dispatcher.py: commands, engines and the host.

The model keeps the commands of each unit in order and counts what was issued and completed. It sees
every transfer. The engines take commands, wait and give random statuses.
"""

import dataclasses
from collections import Counter, deque

import cocotb
from cocotb.triggers import ClockCycles, FallingEdge, ReadOnly

from golden.kllm.engines import screen
from golden.kllm.isa import COMMAND_WORDS, COMMANDS, FIRST_OPERAND_WORD, CommandStatus, Unit, encode
from golden.words import join
from tb.bench import SILENCE, Bench, Watch, config, params
from tb.contract import block_timing
from tb.kllm.support.commands import command_payload

UNITS = list(Unit)[: config.units]
KNOWN = [each for each in COMMANDS.values() if each.known(len(UNITS))]
UNKNOWN = [0x00, 0x03, 0x13, 0x22, 0x38, 0x43, 0x52, 0xFF]
UNKNOWN += [int(each.opcode) for each in COMMANDS.values() if each not in KNOWN]
MASK = 0xFFFF
# With ``ahead``: the unit on whose eldest command one of the unit may lean.
AHEAD = {Unit.FUNCTION: Unit.MATMUL, Unit.QUANTIZE: Unit.FUNCTION} if config.ahead else {}
EARLY = Unit.MATMUL  # its engine sees a command before the command's waits are fulfilled
COMMAND, STATUS = [f"command_{u:d}" for u in UNITS], [f"status_{u:d}" for u in UNITS]


@dataclasses.dataclass
class Entry:
    tag: int
    payload: int
    after: list[int]
    fault: CommandStatus
    met: list[bool]  # waits that were fulfilled when it was issued
    begun: bool = False  # it was offered to its engine
    released: bool = False  # the same with its release; EARLY alone
    leans: bool = False  # it began before one that it waits for was complete


class Model:
    """Commands issued and not yet reported, and what may happen to them."""

    def __init__(self):
        self.issued, self.completed = [0] * len(UNITS), [0] * len(UNITS)
        self.queue = [deque() for _ in UNITS]
        self.unknown = deque()
        self.partial = []
        self.aborting = False
        self.seen = Counter()
        self.certain = dict.fromkeys(AHEAD.values(), False)  # of the eldest commands
        self.was_certain = dict(self.certain)  # the same in the cycle before

    @property
    def outstanding(self) -> bool:
        return bool(self.unknown) or any(self.queue)

    def word(self, word):
        """A word was taken; while aborting it is dropped."""
        if self.aborting:
            self.seen["dropped"] += 1
            return
        self.partial.append(word)
        if len(self.partial) < COMMAND_WORDS:
            return
        words, self.partial = self.partial, []
        unit, fault = screen(words, self.issued)
        tag = words[0] >> 16
        self.seen[fault.name or "sound"] += 1
        if unit is None:
            self.unknown.append(tag)
            self.seen["unknown"] += 1
            return
        payload = command_payload(words)
        after = [words[1 + u // 2] >> 16 * (u % 2) & MASK for u in UNITS]
        met = [not (self.completed[u] - after[u]) >> 15 & 1 for u in UNITS]
        self.queue[unit].append(Entry(tag, payload, after, fault, met))
        self.issued[unit] += 1

    def waits(self, entry) -> list[int]:
        return [
            u for u in UNITS
            if not entry.met[u] and (self.completed[u] - entry.after[u]) >> 15 & 1
        ]  # fmt: skip

    def offered(self, unit, payload, may_begin):
        """A command appears at an engine: the next one, fulfilled, sound, not aborted."""
        queue = self.queue[unit]
        entry = next((e for e in queue if not e.begun), None)
        assert entry is not None, f"{unit.name}: a command that was not issued"
        assert not entry.fault, f"{unit.name}: tag {entry.tag:#x} begins with {entry.fault!r}"
        assert all(e.begun for e in list(queue)[: queue.index(entry)])
        assert payload == entry.payload, f"{unit.name}: tag {entry.tag:#x} came as {payload:#x}"
        early = self.waits(entry)
        self.seen["early"] += bool(early)
        if early and unit in AHEAD:
            self.lean(unit, entry, early)
            early = []
        assert not early or unit == EARLY, (
            f"{unit.name}: tag {entry.tag:#x} begins before {early} are done"
        )
        assert may_begin, f"{unit.name}: tag {entry.tag:#x} begins in an abort"
        entry.begun = True

    def lean(self, unit, entry, early):
        """It waits for one certain command alone, which leans on none; nothing runs before it."""
        other = AHEAD[unit]
        what = f"{unit.name}: tag {entry.tag:#x}"
        assert early == [other], f"{what} begins before {early} are done"
        assert (entry.after[other] - self.completed[other]) & MASK == 1, f"{what}: not the eldest"
        assert self.was_certain[other], f"{what} leans on what is not certain"
        assert entry is self.queue[unit][0], f"{what} leans and is not the eldest"
        assert not self.queue[other][0].leans, f"{what} leans on one that leans"
        entry.leans = True
        self.seen[f"leans: {unit.name}"] += 1

    def note_certain(self, rng, p_certain):
        """Some commands that run become certain, and stay so until they end."""
        self.was_certain = dict(self.certain)
        for u in self.certain:
            eldest = self.queue[u][0] if self.queue[u] else None
            runs = eldest is not None and eldest.begun and (u != EARLY or eldest.released)
            self.certain[u] = bool(runs and (self.certain[u] or rng.random() < p_certain))

    def release(self, is_aborted, may_run):
        """The release of the command that its engine sees: fulfilled, or ended by an abort."""
        entry = next((e for e in self.queue[EARLY] if e.begun and not e.released), None)
        assert entry is not None, "a release without a command"
        early = self.waits(entry)
        if is_aborted:
            self.seen["released as aborted"] += 1
        else:
            assert not early, f"tag {entry.tag:#x} is released before {early} are done"
        assert may_run != is_aborted, f"tag {entry.tag:#x}: released, aborted: {is_aborted}"
        entry.released = True

    def reported(self, word, given, aborted):
        """given: statuses that the engines gave and that were not reported yet."""
        status, unit, tag = word & 0x1FFF, Unit(word >> 13 & 7), word >> 16
        if not unit and self.unknown and self.unknown[0] == tag:
            assert status == CommandStatus.MALFORMED
            self.unknown.popleft()
            return
        assert self.queue[unit], f"{unit.name}: status of {tag:#x}, none is expected"
        entry = self.queue[unit].popleft()
        assert tag == entry.tag, f"{unit.name}: tag {tag:#x}, not {entry.tag:#x}"
        assert not entry.leans, f"{unit.name}: tag {tag:#x} ends before one that it waits for"
        for leaning in (u for u, other in AHEAD.items() if other == unit and self.queue[u]):
            self.queue[leaning][0].leans = False
        if unit in self.certain:
            self.certain[unit] = False
        if entry.begun:
            want = given[unit].popleft()
        elif entry.fault:
            want = entry.fault
        else:
            assert aborted, f"{unit.name}: tag {tag:#x} reported and never begun"
            want = CommandStatus.ABORTED
            self.seen["ABORTED"] += 1
        assert status == want, f"{unit.name}: tag {tag:#x} has {status:#x}, not {want:#x}"
        self.completed[unit] += 1


def commands(rng, count, issued, faulty=0.25, far=0.3, kinds=(0, 1, 2, 3, 4, 4), units=UNITS):
    """Words of random commands. issued: of the units before, is brought up to date.

    kinds of fault, from 0 on:

    - a wait too far ahead;
    - a bit next to the opcode;
    - a bit in the high half of word 3;
    - an unknown opcode;
    - a bit next to the operands.
    """
    words = []
    turn = rng.sample(kinds, len(kinds))  # each kind once, before chance decides
    for _ in range(count):
        unit = rng.choice(units)
        command = rng.choice([each for each in KNOWN if each.unit == unit])
        row = [0] * COMMAND_WORDS
        row[0] = int(command.opcode) | rng.getrandbits(16) << 16
        for u in UNITS:
            # Mostly what was issued a moment ago; now and then the farthest that is allowed.
            back = rng.choice([0, 0, 1, 2, 3]) if rng.random() > far else rng.choice([9, 32767])
            row[1 + u // 2] |= (issued[u] - back & MASK) << 16 * (u % 2)
        for n, operand in enumerate(command.operands):
            row[FIRST_OPERAND_WORD + n] = rng.getrandbits(operand.bits)
        if rng.random() < faulty:
            kind = turn.pop() if turn else rng.choice(kinds)
            if kind == 0:
                u = rng.choice(UNITS)
                ahead = rng.choice([1, 1, 2, 32768])
                row[1 + u // 2] &= ~(MASK << 16 * (u % 2))
                row[1 + u // 2] |= (issued[u] + ahead & MASK) << 16 * (u % 2)
            elif kind == 1:
                row[0] |= 1 << rng.randrange(8, 16)
            elif kind == 2:
                row[3] |= 1 << rng.randrange(16, 32)
            elif kind == 3:
                row[0] = row[0] & ~0xFF | rng.choice(UNKNOWN)
                unit = None
            else:  # a bit next to an operand, or in an unused word
                n = rng.randrange(12)
                bits = command.operands[n].bits if n < len(command.operands) else 0
                if bits < 32:
                    row[FIRST_OPERAND_WORD + n] |= 1 << rng.randrange(bits, 32)
        if unit is not None:
            issued[unit] += 1
        words += row
    return words


class System:
    """The dispatcher's ports, one loop per cycle."""

    def __init__(self, dut):
        self.dut = dut
        self.bench = Bench(dut, sources=("word", *STATUS), sinks=("report", "release", *COMMAND))
        self.port = self.bench._port
        dut.abort_pulse.value = 0
        if AHEAD:
            dut.certain.value = 0

    async def reset(self, cycles=3):
        await self.bench.reset(cycles)
        self.model = Model()
        self.held = {}
        self.running = [deque() for _ in UNITS]  # cycle at which each ends
        self.given = [deque() for _ in UNITS]
        self.cycle = 0
        self.early_taken = [0, 0]  # commands of EARLY and their releases

    def offers(self, name):
        """A sink's valid, and whether it is new; checks that an offered word stays."""
        payload, valid, ready = self.port[name]
        before = self.held.get(name)
        if not valid.value:
            assert before is None, f"{name} fell before its transfer"
            return None, False
        word = int(payload.value)
        assert before in (None, word), f"{name} changed before its transfer"
        self.held[name] = None if ready.value else word
        return word, before is None

    def check_busy(self):
        """A unit has a command that was offered, EARLY one whose release was, up to its report."""
        at_work = [any(e.begun for e in queue) for queue in self.model.queue]
        early = any(e.released for e in self.model.queue[EARLY])
        self.model.seen["waits, not at work"] += at_work[EARLY] and not early
        at_work[EARLY] = early
        wanted = sum(on << u for u, on in enumerate(at_work))
        assert int(self.dut.busy.value) == wanted, f"cycle {self.cycle}: at work, not {wanted:b}"

    async def run(
        self, words, rng, p_idle=0.0, p_stall=0.0, report_stall=0.0, longest=0, abort_at=None,
        junk=0, stop_at=None, silence=SILENCE, p_certain=0.2,
    ):  # fmt: skip
        """Send ``words``; returns when all are reported: cycles of last words, starts, reports.

        longest: cycles that an engine takes, at most. abort_at: cycle; from then on ``junk`` words
        are offered without a gap, and nothing more. AssertionError, a hang: no word, command,
        status or report was transferred for ``silence`` cycles and the longest command.
        """
        model, port, dut = self.model, self.port, self.dut
        sent, offered = 0, False
        log = {"last_word": [], "start": [], "report": []}
        begin, quiet, aborted = self.cycle, 0, None
        watch = Watch(p_idle, p_stall, report_stall, held=longest, silence=silence)
        shown = [None] * len(UNITS)  # statuses on offer
        while stop_at is None or self.cycle - begin < stop_at:
            now = self.cycle - begin
            is_abort = now == abort_at
            dut.abort_pulse.value = is_abort
            if is_abort:
                self.note_abort(sent)
                words = words[: sent + offered] + [rng.getrandbits(32) for _ in range(junk)]
                aborted, p_idle = now, 0.0
            payload, valid, _ = port["word"]
            if not offered and sent < len(words) and (not p_idle or rng.random() >= p_idle):
                offered = True
                payload.value = words[sent]
            elif not offered and p_idle:
                payload.value = rng.getrandbits(32)
            valid.value = offered
            for u in UNITS:
                payload, valid, _ = port[STATUS[u]]
                queue = self.running[u]
                if shown[u] is None and queue and queue[0] <= self.cycle:
                    shown[u] = rng.choice([0, 0, rng.getrandbits(13)])
                valid.value = shown[u] is not None
                payload.value = rng.getrandbits(13) if shown[u] is None else shown[u]
            for name in self.bench.sinks:
                stall = report_stall if name == "report" else p_stall
                port[name][2].value = not stall or rng.random() >= stall
            if AHEAD:
                model.note_certain(rng, p_certain)
                dut.certain.value = sum(held << u for u, held in model.certain.items())
            await ReadOnly()
            # idle tells of the cycle before.
            want = not model.outstanding and not model.aborting
            assert bool(dut.idle.value) == want, f"cycle {now}: idle is {dut.idle.value}"
            if config.counts and want:
                assert bool(dut.partial.value) == bool(model.partial), f"cycle {now}: partial"
                counts = join(*((count & MASK, 16) for count in model.issued))
                assert int(dut.issued.value) == counts, f"cycle {now}: issued"
            was_outstanding = model.outstanding
            report, _ = self.offers("report")
            began = min(self.early_taken)
            for u in UNITS:
                word, is_new = self.offers(COMMAND[u])
                if is_new:
                    # A start decided in the abort's own cycle shows one cycle later.
                    model.offered(u, word, aborted is None or now <= aborted + 1)
                    log["start"].append(now)
                if word is not None and port[COMMAND[u]][2].value:
                    watch.moved = now
                    if u == EARLY:
                        self.early_taken[0] += 1
                    else:
                        self.running[u].append(self.cycle + 1 + rng.randint(0, longest))
                if shown[u] is not None and port[STATUS[u]][2].value:
                    self.given[u].append(shown[u])
                    watch.moved = now
                    self.running[u].popleft()
                    shown[u] = None
            word, is_new = self.offers("release")
            if is_new:
                model.release(bool(word), aborted is None or now <= aborted + 1)
            if config.counts:
                self.check_busy()
            if word is not None and port["release"][2].value:
                watch.moved = now
                self.early_taken[1] += 1
            if min(self.early_taken) > began:
                self.running[EARLY].append(self.cycle + 1 + rng.randint(0, longest))
            if report is not None and port["report"][2].value:
                model.reported(report, self.given, aborted is not None)
                log["report"].append(now)
                watch.moved = now
            word_taken = offered and port["word"][2].value
            if word_taken:
                model.word(words[sent])
                if not model.partial:
                    log["last_word"].append(now)
            # What follows the abort; an offered word prolongs it.
            if is_abort:
                model.aborting = True
            elif model.aborting:
                model.partial = []
                if not was_outstanding and not offered:
                    model.aborting = False
            if word_taken:
                offered, sent, watch.moved = False, sent + 1, now
            await FallingEdge(dut.clk)
            self.cycle += 1
            over = sent == len(words) and not model.outstanding and not model.aborting
            over &= abort_at is None or aborted is not None
            quiet = quiet + 1 if over else 0
            if quiet > 8 and stop_at is None:
                break
            if stop_at is None:
                watch.check(
                    self.cycle - begin, lambda: f"{[len(q) for q in model.queue]} commands left"
                )
        for name in self.bench.sources:
            port[name][1].value = 0
        for name in self.bench.sinks:
            port[name][2].value = 0
        dut.abort_pulse.value = 0
        assert stop_at is not None or not any(self.given)
        return log

    def note_abort(self, sent):
        """Notes what the abort finds."""
        model = self.model
        model.seen["abort: incomplete command"] += bool(model.partial)
        model.seen["abort: unknown opcode"] += bool(model.unknown)
        for u in UNITS:
            waiting = [e for e in model.queue[u] if not e.begun]
            model.seen["abort: running"] += len(model.queue[u]) > len(waiting)
            model.seen["abort: queued"] += len(waiting) > 1
            model.seen["abort: waiting"] += bool(
                waiting and not waiting[0].fault and model.waits(waiting[0])
            )


async def started(dut):
    system = System(dut)
    await system.reset()
    return system


@cocotb.test()
@cocotb.parametrize(
    flow=[
        (0.0, 0.0, 0.0, 0),
        (0.3, 0.5, 0.3, 30),
        (0.0, 0.9, 0.0, 5),
        (0.0, 0.1, 0.97, 10),
        (0.0, 0.0, 0.1, 250),
    ]
)
async def random_commands(dut, flow):
    """flow: chances of idle, of engines and report that stall, longest command."""
    p_idle, p_stall, report_stall, longest = flow
    system = await started(dut)
    rng = system.bench.rng(f"commands {flow}")
    words = commands(rng, params["commands"], [0] * len(UNITS))
    await system.run(words, rng, p_idle, p_stall, report_stall, longest)
    seen = system.model.seen
    assert min(seen[k] for k in ("sound", "MALFORMED", "DEPENDENCY", "unknown")) > 0, seen
    assert seen["waits, not at work"] > 10 or longest < 100 or not config.counts, seen


@cocotb.test()
async def full_rate(dut):
    """Latency and interval as the block's timing states them."""
    system, timing = await started(dut), block_timing()
    rng = system.bench.rng("rate")
    issued = [0] * len(UNITS)
    words = []
    for _ in range(12):
        words += commands(rng, 1, issued, faulty=0.0, far=1.0)
    log = await system.run(words, rng)
    first = COMMAND_WORDS - 1
    assert log["last_word"] == [first + timing.interval * n for n in range(12)], log
    late = [start - last for start, last in zip(log["start"], log["last_word"], strict=True)]
    assert set(late) == {timing.latency}, late


@cocotb.test(skip=not AHEAD)
@cocotb.parametrize(p_certain=[0.05, 0.5], p_stall=[0.0, 0.6])
async def commands_that_lean(dut, p_certain, p_stall):
    """Commands of three units, most of which wait for the latest of each other unit."""
    system = await started(dut)
    rng = system.bench.rng(f"leaning {p_certain} {p_stall}")
    units, issued = [*AHEAD, EARLY], [0] * len(UNITS)
    for _ in range(4):
        words = commands(rng, 2 * params["commands"], issued, 0.05, 0.05, units=units)
        await system.run(words, rng, 0.0, p_stall, p_stall, 60, p_certain=p_certain)
    seen = system.model.seen
    assert all(seen[f"leans: {unit.name}"] > 5 for unit in AHEAD), seen


@cocotb.test(skip=not AHEAD)
async def one_leans_at_once(dut):
    """A command begins in the cycle after the one that it waits for is certain.

    Its status shows in the cycle after that one's report. What leans on a command that leans begins
    after that too.
    """
    system = await started(dut)
    rng = system.bench.rng("lean")
    chain = (Unit.MATMUL, Unit.FUNCTION, Unit.QUANTIZE)
    words, before = [], None
    for unit in chain:
        command = next(each for each in KNOWN if each.unit == unit)
        after = {} if before is None else {before: 1}
        words += encode(command.opcode, int(unit), after, {e.name: 0 for e in command.operands})
        before = unit
    starts = {unit: system.port[f"command_{unit:d}"] for unit in chain}
    system.port["release"][2].value = 1
    system.port["report"][2].value = 1
    for unit in chain:
        starts[unit][2].value = 1
    word, valid, ready = system.port["word"]
    begun, reports, sent, cycle = {}, [], 0, 0
    plan = {Unit.MATMUL: rng.randrange(90, 110)}  # cycles in which a bit of certain rises
    ends: dict[Unit, int] = {}
    while len(reports) < len(chain):
        assert cycle < 400
        word.value, valid.value = words[min(sent, len(words) - 1)], sent < len(words)
        dut.certain.value = sum(
            1 << u for u, at in plan.items() if cycle >= at and u not in [r for r, _ in reports]
        )
        for unit in chain:
            port = system.port[f"status_{unit:d}"]
            port[0].value, port[1].value = 0, unit in ends and cycle >= ends[unit]
        await ReadOnly()
        for unit in chain:
            if starts[unit][1].value and unit not in begun:
                begun[unit] = cycle
        if Unit.FUNCTION in begun and Unit.FUNCTION not in plan:
            plan[Unit.FUNCTION] = cycle + 5  # certain, and leaning
            ends[Unit.FUNCTION] = cycle + 8  # its status waits
            ends[Unit.MATMUL] = cycle + 20
        if system.port["report"][1].value:
            reports.append((Unit(int(system.port["report"][0].value) >> 13 & 7), cycle))
        sent += bool(sent < len(words) and ready.value)
        for unit in chain:
            port = system.port[f"status_{unit:d}"]
            if port[1].value and port[2].value:
                ends[unit] = 1 << 30
        if Unit.QUANTIZE in begun and Unit.QUANTIZE not in ends:
            ends[Unit.QUANTIZE] = cycle + 2
        await FallingEdge(dut.clk)
        cycle += 1
    assert begun[Unit.FUNCTION] == plan[Unit.MATMUL] + 1, (begun, plan)
    assert [unit for unit, _ in reports] == list(chain)
    at = dict(reports)
    assert at[Unit.FUNCTION] == at[Unit.MATMUL] + 1, reports
    assert begun[Unit.QUANTIZE] == at[Unit.MATMUL] + 2, (begun, reports)


@cocotb.test()
async def abort_at_every_phase(dut):
    system = await started(dut)
    rng = system.bench.rng("abort")
    seen = system.model.seen
    wanted = [f"abort: {what}" for what in ("incomplete command", "unknown opcode", "running",
                                            "queued", "waiting")]  # fmt: skip
    wanted += ["ABORTED", "released as aborted", "early", "dropped"]
    for n in range(20 * params["aborts"]):
        # A seed may need more aborts than others for the rarest case.
        if n >= params["aborts"] and all(seen[what] for what in wanted):
            break
        issued = list(system.model.issued)
        stall = rng.choice([0.0, 0.0, 0.9])
        faulty, kinds = (0.7, (3,)) if stall else (0.3, (0, 1, 2, 3, 4))
        units = rng.sample(UNITS, rng.choice([1, 2, 5]))
        words = commands(rng, 14, issued, faulty, kinds=kinds, units=units)
        await system.run(
            words, rng, rng.choice([0.0, 0.3]), rng.choice([0.0, 0.8]), stall,
            rng.choice([0, 40, 400]), abort_at=rng.randrange(250), junk=rng.choice([0, 1, 5, 40]),
        )  # fmt: skip
        if n % 4 == 0:
            await system.run(commands(rng, 4, list(system.model.issued)), rng, longest=6)
    cocotb.log.info("%s", dict(seen))
    for what in wanted:
        assert seen[what], f"no abort found {what}: {dict(seen)}"


@cocotb.test(skip=not params["exhaustive"])
async def every_bit_that_must_be_zero(dut):
    """Each bit of each command next to the opcode, to the waits or to an operand is refused alone.

    So is each bit of a word that the command does not have.
    """
    system = await started(dut)
    words, wanted = [], []
    for command in KNOWN:
        row = encode(command.opcode, 0, {}, {each.name: 0 for each in command.operands})
        bits = [each.bits for each in command.operands]
        bits += [0] * (COMMAND_WORDS - FIRST_OPERAND_WORD - len(bits))
        places = [(0, bit) for bit in range(8, 16)]
        places += [(3, bit) for bit in range(16, 32) if len(UNITS) < len(Unit)]
        places += [
            (FIRST_OPERAND_WORD + n, bit)
            for n, first in enumerate(bits)
            for bit in range(first, 32)
        ]
        for place, bit in places:
            wrong = list(row)
            wrong[place] |= 1 << bit
            wrong[0] |= len(wanted) << 16
            assert screen(wrong, [0] * len(UNITS))[1] == CommandStatus.MALFORMED
            words += wrong
            wanted.append(CommandStatus.MALFORMED | command.unit << 13 | len(wanted) << 16)
    # A loop of its own: the one of ``system`` takes ten times as long.
    (word, word_valid, word_ready), (report, report_valid, report_ready) = (
        system.port[name] for name in ("word", "report")
    )
    word_valid.value, report_ready.value = 1, 1
    found, sent = [], 0
    for _ in range((COMMAND_WORDS + 4) * len(wanted)):
        if sent < len(words):
            word.value = words[sent]
        word_valid.value = sent < len(words)
        await ReadOnly()
        if report_valid.value:
            found.append(int(report.value))
        sent += sent < len(words) and bool(word_ready.value)
        await FallingEdge(dut.clk)
    assert sorted(found) == sorted(wanted)


@cocotb.test()
async def words_prolong_an_abort(dut):
    """While words are offered an abort goes on: idle stays low, each is dropped."""
    system = await started(dut)
    rng = system.bench.rng("prolong")
    await system.run([], rng, abort_at=2, junk=90)
    assert system.model.seen["dropped"] >= 89
    await system.run(commands(rng, 6, [0] * len(UNITS), faulty=0.0), rng)


@cocotb.test(skip=not params["exhaustive"])
async def waits_wrap(dut):
    """More than 2**16 commands of one unit, and 2**14 of each other one, all malformed.

    Then commands that wait across 0.
    """
    system = await started(dut)
    rng = system.bench.rng("wrap")
    for unit in UNITS:
        # Each word is an opcode: operands where none belong. It counts, and reaches no engine.
        word = next(int(each.opcode) for each in KNOWN if each.unit == unit)
        words = [word] * COMMAND_WORDS
        assert screen(words, system.model.issued) == (unit, CommandStatus.MALFORMED)
        count = (1 << 16) - 3 if unit == Unit.LOAD else 1 << 14
        dut.word__payload.value, dut.word__valid.value, dut.report__ready.value = word, 1, 1
        await ClockCycles(dut.clk, (COMMAND_WORDS + 2) * count)
        # The last one's words are in, none of the next.
        await FallingEdge(dut.clk)
        dut.word__valid.value = 0
        await ClockCycles(dut.clk, 20)
        await FallingEdge(dut.clk)
        # The words of a command that had begun are dropped.
        system.model.issued[unit] = system.model.completed[unit] = count
        await system.run([], rng, abort_at=1)
    issued = list(system.model.issued)
    # Others wait for the LOADs to both sides of 0.
    extra = commands(rng, 5, issued, faulty=0.0, far=0.0, units=[Unit.LOAD])
    extra += commands(rng, 5, issued, faulty=0.0, far=0.0, units=UNITS[1:])
    extra += commands(rng, 50, issued, faulty=0.1, far=0.1)
    for first in range(0, len(extra), 10 * COMMAND_WORDS):
        await system.run(
            extra[first : first + 10 * COMMAND_WORDS], rng, longest=90, report_stall=0.3
        )
    assert system.model.issued[0] > 1 << 16
    cocotb.log.info("issued %s, %s", system.model.issued, dict(system.model.seen))


@cocotb.test()
async def reset_in_mid_command(dut):
    system = await started(dut)
    rng = system.bench.rng("reset")
    for cut in (3, 15, 16, 17, 18, 19, 20, 21, 22, 40, 77, 130):
        words = commands(rng, 10, [0] * len(UNITS))
        await system.run(words, rng, 0.0, 0.3, 0.3, 20, stop_at=cut)
        await system.reset(1)
    await system.run(commands(rng, 20, [0] * len(UNITS)), rng, 0.1, 0.3, 0.3, 20)
