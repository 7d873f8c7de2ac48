"""Runs inside the simulator, started by test_lite_registers.py: a foreign AXI4-Lite manager."""

import cocotb
from cocotb.triggers import ClockCycles, FallingEdge, ReadOnly, with_timeout
from cocotbext.axi import AxiLiteBus, AxiLiteMaster

from golden.axi.format import CACHE_REGISTERS, COUNTERS, REGISTERS, RESP_OKAY, RESP_SLVERR
from golden.axi.reference import RegisterModel
from golden.words import join
from tb.axi.support.buses import pauses, reset, sink, source, start_clock
from tb.bench import Bench, config
from tb.contract import block_timing

LEVELS, COMMAND = REGISTERS["LEVELS"].offset, REGISTERS["COMMAND"].offset
STATUS, READBACK = REGISTERS["STATUS"].offset, REGISTERS["READBACK"].offset
IS_CACHE = bool(config.cache_depth)
MAP = {**REGISTERS, **(CACHE_REGISTERS if IS_CACHE else {})}
# Queues that the host writes, with their depths; those that it reads.
PUSHED = {"command": config.command_depth}
POPPED = {"status": config.status_depth, "readback": config.readback_depth}
if IS_CACHE:
    PUSHED |= dict.fromkeys(("request", "batch", "run"), config.cache_depth)
    POPPED |= dict.fromkeys(("answer", "result"), config.cache_depth)


def fresh_model() -> RegisterModel:
    return RegisterModel(config.version, config.command_depth, config.cache_depth)


class Registers:
    """The block with its manager, its three streams, and a count of abort_pulse."""

    def __init__(self, dut, chance: float):
        self.dut, self.aborts = dut, 0
        bus = AxiLiteBus.from_prefix(dut, "s_axil")
        self.master = AxiLiteMaster(bus, dut.aclk, dut.aresetn, reset_active_level=False)
        writes, reads = self.master.write_if, self.master.read_if
        if chance:
            for name, channel in {
                "aw": writes.aw_channel, "w": writes.w_channel, "b": writes.b_channel,
                "ar": reads.ar_channel, "r": reads.r_channel,
            }.items():  # fmt: skip
                channel.set_pause_generator(pauses(name, chance))
        for name in PUSHED:
            setattr(self, name, sink(dut, name, chance))
        for name in POPPED:
            setattr(self, name, source(dut, name, chance))

    async def start(self):
        self.dut.idle.value = 0  # else it is what the test before left
        self.count([0] * len(COUNTERS))
        start_clock(self.dut)
        await reset(self.dut)
        cocotb.start_soon(self._count_aborts())

    def count(self, words) -> None:
        """Sets ``counter``, if there is one."""
        if IS_CACHE:
            self.dut.counter.value = join(*((word, 32) for word in words))

    async def _count_aborts(self):
        while True:
            await FallingEdge(self.dut.aclk)
            await ReadOnly()
            self.aborts += int(self.dut.abort_pulse.value)

    async def write(self, address: int, word: int, first: int = 0, last: int = 3) -> int:
        """Write bytes first..last of the word at ``address``; the response."""
        strobed = word.to_bytes(4, "little")[first : last + 1]
        answer = await with_timeout(self.master.write(address + first, strobed), 100, "us")
        return int(answer.resp)

    async def read(self, address: int) -> tuple[int, int]:
        answer = await with_timeout(self.master.read(address, 4), 100, "us")
        return int.from_bytes(answer.data, "little"), int(answer.resp)

    async def feed(self, model, words):
        """Send words of which all fit, and wait until they can be read."""
        await model.send(words)
        await with_timeout(model.wait(), 100, "us")
        await ClockCycles(self.dut.aclk, 4)

    async def ready_after_valid(self, name: str):
        """Makes ``name`` ready, from now on, only in cycles after valid has come."""
        while True:
            await FallingEdge(self.dut.aclk)
            getattr(self, name).pause = not self.dut[f"m_axis_{name}_tvalid"].value

    async def drain(self, name: str = "command") -> list[int]:
        """Let every word of ``name`` go."""
        stream = getattr(self, name)
        stream.clear_pause_generator()
        stream.pause = False
        await ClockCycles(self.dut.aclk, 3 * PUSHED[name] + 10)
        return stream.read_nowait()

    def hold(self) -> None:
        """No word leaves the queues that the host writes."""
        for name in PUSHED:
            getattr(self, name).clear_pause_generator()
            getattr(self, name).pause = True


@cocotb.test()
async def every_bit_of_an_address_counts(dut):
    """Reads and writes of each address that differs from a register's in one bit."""
    registers = Registers(dut, 0.0)
    registers.hold()
    await registers.start()
    model = fresh_model()
    queues = [(getattr(registers, name), getattr(model, name)) for name in POPPED]
    model.counter = [n + 1 for n, _ in enumerate(model.counter)]
    registers.count(model.counter)
    for register in MAP.values():
        for bit in range(2, config.address_bits):
            for stream, queue in queues:  # an empty one answers as no register does
                if not queue:
                    await registers.feed(stream, [1 << bit])
                    queue.append(1 << bit)
            address = register.offset ^ 1 << bit
            assert await registers.read(address) == model.read(address), f"read {address:#x}"
            word = 1 << bit | 1  # which aborts, if CONTROL takes it
            got = await registers.write(address, word)
            assert got == model.write(address, word), f"write {address:#x}"
    await ClockCycles(dut.aclk, 4)
    assert registers.aborts == model.aborts
    for name in PUSHED:
        assert await registers.drain(name) == list(getattr(model, name))


@cocotb.test()
@cocotb.parametrize(p_pause=[0.0, 0.6])
async def every_access(dut, p_pause):
    """Random accesses, known addresses and others, partial writes; queues at every level."""
    registers = Registers(dut, p_pause)
    registers.hold()
    await registers.start()
    model = fresh_model()
    rng = Bench.rng(None, "accesses")
    offsets = [register.offset for register in MAP.values()]
    seen = set()
    for n in range(1200):
        address = rng.choice([*offsets, COMMAND, COMMAND, LEVELS, STATUS, READBACK])
        if rng.random() < 0.1:
            address = rng.randrange(0, 1 << config.address_bits, 4)
        match rng.randrange(25):
            case 24:
                model.idle = rng.getrandbits(1)
                dut.idle.value = model.idle
                model.counter = [rng.getrandbits(32) for _ in model.counter]
                registers.count(model.counter)
                await ClockCycles(dut.aclk, 2)
            case 0:
                name = rng.choice([*PUSHED])
                assert await registers.drain(name) == list(getattr(model, name))
                getattr(model, name).clear()
                registers.hold()
                await ClockCycles(dut.aclk, 2)
            case 1 | 2:
                name, depth = rng.choice([*POPPED.items()])
                stream, queue = getattr(registers, name), getattr(model, name)
                words = [rng.getrandbits(32) for _ in range(rng.randint(0, depth - len(queue)))]
                if words:
                    await registers.feed(stream, words)
                    queue.extend(words)
            case 3 | 4:
                first = rng.randrange(4)
                last = rng.randrange(first, 4)
                word = rng.getrandbits(32)
                strobes = sum(1 << k for k in range(first, last + 1))
                got = await registers.write(address, word, first, last)
                assert got == model.write(address, word, strobes), f"access {n}: {address:#x}"
            case k if k < 14:
                word = rng.getrandbits(32)
                got = await registers.write(address, word)
                assert got == model.write(address, word), f"access {n}: write {address:#x}"
                seen.add((address, got))
            case _:
                got = await registers.read(address)
                assert got == model.read(address), f"access {n}: read {address:#x}"
                seen.add((address, got[1]))
    await ClockCycles(dut.aclk, 4)
    assert registers.aborts == model.aborts > 0
    for name in COUNTERS if IS_CACHE else ():
        assert {(MAP[name].offset, RESP_OKAY), (MAP[name].offset, RESP_SLVERR)} <= seen, name
    for name in (*PUSHED, *POPPED):
        at = MAP[name.upper()].offset
        if name != "readback":  # of which a reader may find a word each time
            assert {(at, RESP_OKAY), (at, RESP_SLVERR)} <= seen, name


@cocotb.test()
@cocotb.parametrize(p_pause=[0.0, 0.7], name=[*PUSHED])
async def words_arrive_in_order(dut, p_pause, name):
    """The writes of many at once that were answered OKAY come out in order, and no others do."""
    registers = Registers(dut, p_pause)
    await registers.start()
    rng = Bench.rng(None, name)
    words = [rng.getrandbits(32) for _ in range(4 * PUSHED[name] + 20)]
    if not p_pause:
        getattr(registers, name).set_pause_generator(pauses("slow", 0.8))
    at = MAP[name.upper()].offset
    answers = [registers.master.init_write(at, word.to_bytes(4, "little")) for word in words]
    taken = []
    for word, answer in zip(words, answers, strict=True):
        await with_timeout(answer.wait(), 1, "ms")
        if answer.data.resp == RESP_OKAY:
            taken.append(word)
    assert await registers.drain(name) == taken
    assert len(taken) >= PUSHED[name]


@cocotb.test()
@cocotb.parametrize(name=[*PUSHED])
async def words_do_not_wait_for_ready(dut, name):
    """A consumer that is ready only after valid takes every word, single ones and a full queue."""
    registers = Registers(dut, 0.0)
    getattr(registers, name).pause = True
    await registers.start()
    cocotb.start_soon(registers.ready_after_valid(name))
    rng = Bench.rng(None, "late")
    for count in (1, 1, 2, PUSHED[name]):
        words = [rng.getrandbits(32) for _ in range(count)]
        for word in words:
            assert await registers.write(MAP[name.upper()].offset, word) == RESP_OKAY
        await ClockCycles(dut.aclk, 3 * count + 10)
        assert getattr(registers, name).read_nowait() == words


@cocotb.test()
@cocotb.parametrize(p_pause=[0.0, 0.7], name=[n for n in POPPED if n != "readback"])
async def many_reads_at_once(dut, p_pause, name):
    """Every waiting word is answered once, in order, then SLVERR, however slow R is."""
    registers = Registers(dut, p_pause)
    await registers.start()
    rng = Bench.rng(None, "reads")
    for _ in range(8):
        words = [rng.getrandbits(32) for _ in range(POPPED[name])]
        await registers.feed(getattr(registers, name), words)
        at = MAP[name.upper()].offset
        reads = [registers.master.init_read(at, 4) for _ in range(len(words) + 2)]
        for n, read in enumerate(reads):
            await with_timeout(read.wait(), 100, "us")
            got = int.from_bytes(read.data.data, "little"), int(read.data.resp)
            assert got == ((words[n], RESP_OKAY) if n < len(words) else (0, RESP_SLVERR))


@cocotb.test()
async def levels_can_be_trusted(dut):
    """A host can read or write as many words at once as LEVELS shows, while streams move."""
    registers = Registers(dut, 0.0)
    registers.status.set_pause_generator(pauses("status", 0.6))
    registers.readback.set_pause_generator(pauses("readback", 0.8))
    registers.command.set_pause_generator(pauses("command", 0.9))
    await registers.start()
    rng = Bench.rng(None, "levels")
    words = {name: [rng.getrandbits(32) for _ in range(150)] for name in ("status", "readback")}
    await registers.status.send(words["status"])
    await registers.readback.send(words["readback"])
    got = {"status": [], "readback": []}
    written = 0
    while any(len(got[name]) < len(words[name]) for name in got):
        levels, _ = await registers.read(LEVELS)
        room, waiting, readback = levels & 0xFFFF, levels >> 16 & 0x7FFF, levels >> 31
        for name, offset, count in (("status", STATUS, waiting), ("readback", READBACK, readback)):
            for _ in range(count):
                word, response = await registers.read(offset)
                assert response == RESP_OKAY
                got[name].append(word)
        for _ in range(min(room, 3)):
            assert await registers.write(COMMAND, written) == RESP_OKAY
            written += 1
    assert got == words
    assert await registers.drain() == list(range(written))


@cocotb.test()
@cocotb.parametrize(p_pause=[0.0, 0.5])
async def levels_while_writes_are_on_the_way(dut, p_pause):
    """The words that had an answer when a read was sent, and its room, say how many may be sent.

    Reads and writes go on at once, and no write waits for an answer.
    """
    registers = Registers(dut, p_pause)
    registers.command.set_pause_generator(pauses("command", 0.8))
    await registers.start()
    total, writes, answered, met = 12 * config.command_depth, [], 0, 0
    while len(writes) < total:
        while answered < len(writes) and writes[answered].is_set():
            answered += 1
        limit = answered  # a word on the way may be in LEVELS already, so this may be too few
        levels, _ = await registers.read(LEVELS)
        met += not all(each.is_set() for each in writes)
        limit += levels & 0xFFFF
        for word in range(len(writes), min(limit, total)):
            writes.append(registers.master.init_write(COMMAND, word.to_bytes(4, "little")))
    for each in writes:
        await with_timeout(each.wait(), 100, "us")
        assert each.data.resp == RESP_OKAY
    assert met > 4, "reads met no writes on the way"
    assert await registers.drain() == list(range(total))


@cocotb.test()
async def latency_and_rate(dut):
    """An access per cycle, answered 2 cycles after its address, in both directions at once."""
    registers = Registers(dut, 0.0)
    await registers.start()
    cycles = {"ar": [], "r": [], "aw": [], "b": []}

    async def watch():
        cycle = 0
        while True:
            await FallingEdge(dut.aclk)
            await ReadOnly()
            for name, found in cycles.items():
                valid, ready = dut[f"s_axil_{name}valid"], dut[f"s_axil_{name}ready"]
                if valid.value and ready.value:
                    found.append(cycle)
            cycle += 1

    cocotb.start_soon(watch())
    reads = [registers.master.init_read(LEVELS, 4) for _ in range(20)]
    writes = [registers.master.init_write(COMMAND, bytes(4)) for _ in range(20)]
    for each in (*reads, *writes):
        await with_timeout(each.wait(), 10, "us")
    promised = block_timing()
    for address, answer in (("ar", "r"), ("aw", "b")):
        first = cycles[address][0]
        each, latency = int(promised.interval), promised.latency
        assert cycles[address] == [first + each * n for n in range(20)], address
        assert cycles[answer] == [first + each * n + latency for n in range(20)], answer


@cocotb.test()
async def reset_empties_the_queues(dut):
    registers = Registers(dut, 0.0)
    registers.hold()
    await registers.start()
    fresh = fresh_model().read(LEVELS)
    rng = Bench.rng(None, "reset")
    for _ in range(6):
        await registers.status.send([rng.getrandbits(32) for _ in range(config.status_depth)])
        for name in set(POPPED) - {"status"}:
            await getattr(registers, name).send([rng.getrandbits(32)])
        for _ in range(5):
            for name in PUSHED:
                registers.master.init_write(MAP[name.upper()].offset, bytes(4))
            registers.master.init_read(STATUS, 4)
        await ClockCycles(dut.aclk, rng.randrange(6, 40))
        await reset(dut, 1)
        for name in POPPED:
            getattr(registers, name).clear()
        assert await registers.read(LEVELS) == fresh
        for name in POPPED:
            assert await registers.read(MAP[name.upper()].offset) == (0, RESP_SLVERR)
    for name in PUSHED:
        assert await registers.drain(name) == []
        await registers.write(MAP[name.upper()].offset, 7)
        assert await registers.drain(name) == [7]
