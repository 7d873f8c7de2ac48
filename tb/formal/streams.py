"""Properties of every stream block, and defects that the proofs must find."""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.hdl import Const
from amaranth.lib import stream, wiring

from hdl.memory.memory_1r1w import Memory1R1W
from hdl.stream.arbiter import StreamArbiter, StreamArbiterConfig
from hdl.stream.fifo import StreamFifo, StreamFifoConfig
from hdl.stream.fork import StreamFork, StreamForkConfig
from hdl.stream.join import StreamJoin, StreamJoinConfig
from hdl.stream.narrow import StreamNarrow, StreamNarrowConfig
from hdl.stream.register import StreamRegister, StreamRegisterConfig
from hdl.stream.repack import StreamRepack, StreamRepackConfig
from hdl.stream.skid import StreamSkidBuffer, StreamSkidBufferConfig
from hdl.stream.widen import StreamWiden, StreamWidenConfig
from tb.formal.prove import Proof
from tb.formal.spec import Queue, Spec, transfer


class SliceSpec(Spec):
    """One input, one output, an ideal queue between them: order, data, capacity, liveness."""

    capacity: int

    def specify(self, m: Module) -> None:
        i, o = self.block.i, self.block.o
        self.source(m, i, holds=False)  # such a block serves even a producer that withdraws
        self.sink(m, o)
        self.queue = Queue(m, self.capacity, push=transfer(i), word=i.payload, pop=transfer(o))
        count, slots = self.queue.count, self.queue.slots
        self.always(m, count <= self.capacity, "never more words than the capacity")
        self.always(m, ~o.valid | (count != 0), "no word is made up or repeated")
        self.always(m, ~o.valid | (Value.cast(o.payload) == slots[0]), "the oldest word comes next")
        self.cover(m, count == self.capacity, "full")
        if self.burst > 1:
            self.cover(m, transfer(i) & transfer(o), "in and out at once")
        streak = Signal(range(4))
        m.d.sync += streak.eq(Mux(transfer(o), Mux(streak == 3, 3, streak + 1), 0))
        self.cover(m, (streak >= self.burst - 1) & transfer(o), "words back to back")
        self.describe(m)

    burst = 3  # words that can leave in successive cycles

    def describe(self, m: Module) -> None:
        """When ``i`` is ready and ``o`` valid, and how the state holds the queue's words."""
        raise NotImplementedError


class RegisterSpec(SliceSpec):
    capacity = 1

    def describe(self, m):
        i, o, count = self.block.i, self.block.o, self.queue.count
        self.always(m, i.ready == ((count == 0) | o.ready), "ready when empty or emptied")
        self.always(m, o.valid == (count != 0), "a word held is offered")


class SkidSpec(SliceSpec):
    capacity = 2

    def describe(self, m):
        i, o, queue = self.block.i, self.block.o, self.queue
        self.always(m, i.ready == (queue.count != 2), "ready unless full")
        self.always(m, o.valid == (queue.count != 0), "a word held is offered")
        self.state(
            m,
            (queue.count != 2) | (self.block.skid_word == queue.slots[1]),
            "the skid register holds the younger word",
        )


class FifoSpec(SliceSpec):
    def __init__(self, block):
        super().__init__(block)
        self.capacity = block.config.depth
        self.burst = 3 if block.config.depth > block.timing.latency else block.config.depth

    def describe(self, m):
        block, queue, depth = self.block, self.queue, self.block.config.depth
        self.always(m, block.level == queue.count, "level is the number of words held")
        self.always(m, block.i.ready == (queue.count != depth), "ready unless full")
        waited = Signal(range(3))  # cycles in which the oldest word was not offered
        hidden = (queue.count != 0) & ~block.o.valid
        m.d.sync += waited.eq(Mux(hidden, waited + 1, 0))
        latency = block.timing.latency
        self.always(m, waited + hidden < latency, "a word is offered after the latency")

        def row(offset):
            place = Signal(range(2 * depth + 1))
            m.d.comb += place.eq(block.read_row + offset)
            return Mux(place >= depth, place - depth, place)

        # Words in rows follow those that the read register of a RAM shows.
        ram = block.config.storage == "memory"
        rows = block.ram.rows if ram else block.rows
        shown = block.o.valid if ram else Const(0)
        self.state(m, block.read_row < depth, "read_row in range")
        in_rows = Signal(range(depth + 1))
        m.d.comb += in_rows.eq(queue.count - shown)
        self.state(m, block.write_row == row(in_rows), "rows agree with level")
        for j in range(depth):
            for place in range(depth):
                expected = queue.slots[j]
                if ram and j + 1 < depth:
                    expected = Mux(shown, queue.slots[j + 1], expected)
                self.state(
                    m,
                    (in_rows <= j) | (row(j) != place) | (Value.cast(rows[place]) == expected),
                    f"row {place} holds word {j}",
                )
        if ram:
            self.ports.append(block.ram.anything)
            self.always(
                m, ~block.ram.collision, "the row being written is not read in the same cycle"
            )


class WeakestRam(wiring.Component):
    """Memory1R1W as its contract has it: a word read while it is written is anything."""

    def __init__(self, config):
        macro = Memory1R1W(config)
        macro._MustUse__silence = True  # only its ports are wanted
        super().__init__(macro.signature)
        self.rows = [Signal(config.width, name=f"row_{k}") for k in range(config.depth)]
        self.anything = Signal(config.width)  # a free input of the proof
        self.collision = Signal()

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.collision.eq(
            self.read_en & self.write_en & (self.read_addr == self.write_addr)
        )
        for k, word in enumerate(self.rows):
            with m.If(self.write_en & (self.write_addr == k)):
                m.d.sync += word.eq(self.write_data)
            with m.If(self.read_en & (self.read_addr == k)):
                m.d.sync += self.read_data.eq(Mux(self.collision, self.anything, word))
        return m


class RamFifo(StreamFifo):
    """StreamFifo over the weakest RAM."""

    def __init__(self, config):
        super().__init__(config)
        self.ram = WeakestRam(config.memory)

    def add_ram(self, m):
        m.submodules.ram = self.ram
        return self.ram


class ForkSpec(Spec):
    """Every word of i leaves every output exactly once, unchanged; outputs are independent."""

    def specify(self, m):
        block, i = self.block, self.block.i
        outputs = block.o
        waiting = self.source(m, i, holds=True)
        for k, o in enumerate(outputs):
            self.sink(m, o)
            had = Signal(name=f"had_{k}")  # o_k has taken the word now on i
            m.d.sync += had.eq((had | transfer(o)) & ~transfer(i))
            self.always(m, ~(had & o.valid), f"o_{k} gets no word twice")
            self.always(m, ~transfer(i) | had | transfer(o), f"o_{k} misses no word")
            self.always(
                m, ~o.valid | (Value.cast(o.payload) == Value.cast(i.payload)), f"o_{k} data"
            )
            self.always(m, o.valid == (i.valid & ~had), f"o_{k} waits for no other output")
            self.state(m, block.done[k] == had, "done is what was taken")
            self.state(m, ~had | waiting, "done only while a word waits")
            if len(outputs) > 1:
                self.cover(m, had & transfer(i), f"o_{k} takes a word before the others")
        past = Signal()
        m.d.sync += past.eq(transfer(i))
        self.cover(m, past & transfer(i), "words back to back")


class JoinSpec(Spec):
    """One word of every input, together or not at all."""

    def specify(self, m):
        block, o = self.block, self.block.o
        inputs = block.i
        width = block.config.width
        for i in inputs:
            self.source(m, i, holds=True)
        self.sink(m, o)
        everything, lasts = Const(1), []
        for k, i in enumerate(inputs):
            everything = everything & i.valid
            lasts.append(i.payload.last)
            self.always(m, transfer(i) == transfer(o), f"i_{k} and o move together")
            part = o.payload.data[k * width : (k + 1) * width]
            self.always(m, ~o.valid | (part == i.payload.data), f"o carries the data of i_{k}")
        self.always(m, o.valid == everything, "offered as soon as all are there")
        some, same = Const(0), Const(1)
        for last in lasts:
            some, same = some | last, same & (last == lasts[0])
        self.always(m, ~o.valid | (o.payload.last == some), "last when any is last")
        self.always(m, block.mismatch == (o.valid & ~same), "mismatch when lasts differ")
        past = Signal()
        m.d.sync += past.eq(transfer(o))
        self.cover(m, past & transfer(o), "words back to back")
        if len(inputs) > 1:
            self.cover(m, block.mismatch, "packets of different length")


class WidenSpec(Spec):
    """A beat is the words since the beat before, all of them, in order, padded with 0."""

    def specify(self, m):
        block, i, o = self.block, self.block.i, self.block.o
        width, ratio = block.config.width, block.config.ratio
        self.source(m, i, holds=False)
        self.sink(m, o)
        count = Signal(range(ratio + 2))  # words taken since the beat before
        slots = [Signal(block.config.i_layout, name=f"slot_{j}") for j in range(ratio)]
        place = Signal(range(ratio + 2))
        m.d.comb += place.eq(Mux(transfer(o), 0, count))
        m.d.sync += count.eq(place + transfer(i))
        for j, slot in enumerate(slots):
            with m.If(transfer(i) & (place == j)):
                m.d.sync += slot.eq(i.payload)

        ended = Const(0)
        for j, slot in enumerate(slots):
            ended = ended | ((count > j) & slot.last)
        complete = (count == ratio) | ended
        self.always(m, o.valid == complete, "offered when full or at last, not before")
        self.always(m, count <= ratio, "no word is taken that has no place")
        self.always(m, i.ready == (~o.valid | o.ready), "ready unless a beat waits")
        self.always(m, ~o.valid | (o.payload.count == count), "count is the number of words")
        self.always(m, ~o.valid | (o.payload.last == ended), "last is that of the final word")
        self.state(m, o.valid | (o.payload.count == count), "count")
        for j, slot in enumerate(slots):
            word = o.payload.data[j * width : (j + 1) * width]
            right = Mux(count > j, word == slot.data, word == 0)
            self.always(m, ~o.valid | right, f"word {j} in its place, 0 where there is none")
            self.state(m, o.valid | (count == 0) | right, f"place {j} while gathering")
            self.always(m, (count <= j + 1) | ~slot.last, f"no word follows word {j} with last")
        self.cover(m, o.valid & (o.payload.count == ratio), "a full beat")
        if ratio > 1:
            self.cover(m, o.valid & (o.payload.count == 1), "a beat of one word")
        self.cover(m, transfer(i) & transfer(o), "no cycle is lost between beats")


class NarrowSpec(Spec):
    """The words of a beat, low bits first, each once; the beat leaves with its final word."""

    def specify(self, m):
        block, i, o = self.block, self.block.i, self.block.o
        width, ratio = block.config.width, block.config.ratio
        waiting = self.source(m, i, holds=True)
        self.sink(m, o)
        given = Signal(range(ratio + 2))  # words of the beat that have left
        m.d.sync += given.eq(Mux(transfer(i), 0, given + transfer(o)))
        count = i.payload.count
        bad = (count == 0) | (count > ratio)
        words = Mux(bad, ratio, count)
        self.always(m, o.valid == i.valid, "a beat's word is offered at once")
        self.always(m, block.bad_count == (i.valid & bad), "bad_count names bad beats")
        self.always(m, transfer(i) == (transfer(o) & (given + 1 == words)), "all words, once")
        for j in range(ratio):
            word = i.payload.data[j * width : (j + 1) * width]
            self.always(
                m, ~o.valid | (given != j) | (o.payload.data == word), f"word {j} in its turn"
            )
        self.always(
            m,
            ~o.valid | (o.payload.last == (i.payload.last & (given + 1 == words))),
            "last on the final word alone",
        )
        self.state(m, block.place == given, "place is what has left")
        self.state(m, (given == 0) | (waiting & (given < words)), "within a beat")
        self.cover(m, transfer(i) & ~bad & (count == ratio), "a full beat")
        past = Signal()
        m.d.sync += past.eq(transfer(i))
        self.cover(m, past & transfer(o), "no cycle is lost between beats")


class RepackSpec(Spec):
    """Each byte that counts once and in order, full words but for a packet's last, errors."""

    def specify(self, m):
        block, i, o = self.block, self.block.i, self.block.o
        size, out = block.config.in_bytes, block.config.out_bytes
        capacity = size + out - 1
        self.source(m, i, holds=False)
        self.sink(m, o)
        # The bytes taken and not given, the oldest first, and whether the packet ends with them.
        count, ended = Signal(range(capacity + size + 1)), Signal()
        bits = block.config.error_bits
        slots = [Signal(8 + bits, name=f"slot_{j}") for j in range(capacity)]
        given = Signal(range(out + 1))
        rest, fresh = Signal(range(capacity + 1)), Signal(range(size + 1))
        end = Mux(i.payload.end > size, size, i.payload.end)
        m.d.comb += [
            given.eq(Mux(count > out, out, count)),
            rest.eq(Mux(transfer(o), count - given, count)),
            fresh.eq(Mux(end > i.payload.first, end - i.payload.first, 0)),
        ]
        m.d.sync += [
            count.eq(rest + Mux(transfer(i), fresh, 0)),
            ended.eq(Mux(transfer(i), i.payload.last, ended & ~(transfer(o) & o.payload.last))),
        ]
        for j, slot in enumerate(slots):
            with m.If(transfer(i) & (rest <= j)):
                place = i.payload.first + (j - rest)[: len(rest)]
                m.d.sync += slot.eq(Cat(i.payload.data.word_select(place, 8), i.payload.error))
            with m.Elif(transfer(o) & (j + out < capacity)):
                m.d.sync += slot.eq(slots[(j + out) % capacity])

        self.always(m, count <= capacity, "no byte is taken that has no place")
        self.always(m, o.valid == (ended | (count >= out)), "offered when full or at the end")
        self.always(m, ~o.valid | (o.payload.bytes == given), "bytes is the number of bytes")
        self.always(
            m, ~o.valid | (o.payload.last == (ended & (count <= out))), "last with the final byte"
        )
        error = Const(0)
        for j in range(out):
            byte = o.payload.data[8 * j : 8 * j + 8]
            right = Mux(given > j, byte == slots[j][:8], byte == 0)
            self.always(m, ~o.valid | right, f"byte {j} in its place, 0 where there is none")
            error = error | Mux(given > j, slots[j][8:], 0)
        self.always(m, ~o.valid | (o.payload.error == error), "error is that of its bytes")
        free = Mux(ended, transfer(o) & o.payload.last, rest < out)
        self.always(m, i.ready == free, "ready when a word fits, and at a packet's end")

        self.state(m, block.count == count, "count")
        self.state(m, block.has_ended == ended, "has_ended")
        for j, slot in enumerate(slots):
            held = block.held[8 * j : 8 * j + 8]
            self.state(m, held == Mux(count > j, slot[:8], 0), f"place {j}")
            known = Mux(count == j + 1, block.error_newest, slot[8:])
            self.state(m, (count <= j) | (slot[8:] == known), "error_newest")
            if j >= out:
                beyond = (count <= j) | (slot[8:] == block.error_newest)
                self.state(m, beyond, "beyond a word of o, all came in one word")
        union = Const(0)
        for j, slot in enumerate(slots):
            union = union | Mux(count > j, slot[8:], 0)
        self.state(m, block.error == union, "error")
        self.cover(m, count == capacity, "full")
        self.cover(m, transfer(i) & transfer(o) & o.payload.last, "no cycle is lost at the end")
        self.cover(m, transfer(o) & (o.payload.bytes == 0), "a packet without bytes")
        self.cover(m, transfer(o) & ~o.payload.last & (o.payload.error != 0), "an error on the way")


class _Wire(wiring.Component):
    """No register: a proof of a block is a proof of what it sends to its buffer."""

    def __init__(self, layout):
        words = stream.Signature(layout)
        super().__init__({"i": wiring.In(words), "o": wiring.Out(words)})

    def elaborate(self, platform):
        m = Module()
        wiring.connect(m, wiring.flipped(self.i), wiring.flipped(self.o))
        return m


class BareRepack(StreamRepack):
    """StreamRepack without its skid buffer, which has a proof of its own."""

    def add_buffer(self, m):
        m.submodules.words = words = _Wire(self.config.o_layout)
        return words


class ArbiterSpec(Spec):
    """Whole packets, every word once; round robin: a bound on the wait."""

    def specify(self, m):
        block, o = self.block, self.block.o
        inputs = block.i
        n, fair = len(inputs), block.config.policy == "round_robin"
        waiting = [self.source(m, i, holds=True) for i in inputs]
        self.sink(m, o)
        source = o.payload.source
        last = o.payload.last if block.config.last else Const(1)  # every word is a packet
        opened, owner = Signal(), Signal(block.config.source_bits)  # an unfinished packet
        with m.If(transfer(o)):
            m.d.sync += [opened.eq(~last), owner.eq(source)]
        self.always(m, ~(o.valid & opened) | (source == owner), "no packet is interrupted")
        anything = Const(0)
        for i in inputs:
            anything = anything | i.valid
        self.always(m, opened | (o.valid == anything), "no idle cycle while a packet waits")

        stalled = Signal()  # o offered a word in the cycle before and offers it still
        m.d.sync += stalled.eq(o.valid & ~o.ready)
        self.state(m, block.locked == (opened | stalled), "locked")
        self.state(m, ~opened | (block.held == owner), "held is the packet's source")
        self.state(m, block.held < n, "held in range")
        for k, i in enumerate(inputs):
            self.always(m, transfer(i) == (transfer(o) & (source == k)), f"i_{k} each word once")
            match = o.payload.data == i.payload.data
            if block.config.last:
                match = match & (o.payload.last == i.payload.last)
            self.always(
                m, ~o.valid | (source != k) | (i.valid & match), f"words of i_{k} unchanged"
            )
            self.state(m, ~stalled | (block.held != k) | waiting[k], "the held source waits")
            self.cover(m, transfer(o) & (source == k) & last, f"a packet of i_{k}")
            if n > 1:
                passed = Signal(range(n + 2), name=f"passed_{k}")  # packets it has seen pass
                ends = transfer(o) & last
                with m.If(transfer(i) | ~i.valid):
                    m.d.sync += passed.eq(0)
                with m.Elif(ends & (passed <= n)):
                    m.d.sync += passed.eq(passed + 1)
                if fair:
                    self.cover(m, passed == n - 1, f"i_{k} waits for all the others")
                    self.always(m, passed < n, f"i_{k} waits for at most {n - 1} packets")
                    for j in range(n):
                        between = (k - j - 1) % n  # inputs with a better claim once j is done
                        serving = block.locked & (j != k)
                        self.state(
                            m,
                            (block.held != j)
                            | (block.locked & (j == k))
                            | (passed + between + serving < n),
                            f"claims before i_{k} after i_{j}",
                        )
        if not fair:
            for k in range(1, n):
                better = Const(0)
                for i in inputs[:k]:
                    better = better | i.valid
                self.always(
                    m,
                    ~o.valid | block.locked | (source != k) | ~better,
                    f"i_{k} is taken up only when no better one waits",
                )


def _proofs() -> list[Proof]:
    proofs = []

    def add(spec, block, config, depth):
        sizes = "-".join(str(value) for value in vars(config).values())
        name = f"{block.__name__.removeprefix('Stream')}-{sizes}"
        proofs.append(Proof(name, lambda: spec(block(config)), depth))

    for width in (1, 2, 7, 32):
        add(RegisterSpec, StreamRegister, StreamRegisterConfig(width=width), 6)
        for last in (True, False) if width == 7 else (True,):
            config = StreamSkidBufferConfig(width=width, last=last)
            add(SkidSpec, StreamSkidBuffer, config, 8)
    for width, depth in ((1, 1), (2, 2), (7, 3), (3, 5), (32, 4)):
        for block, storage in ((StreamFifo, "flipflop"), (RamFifo, "memory")):
            for last in (True, False) if depth == 3 else (True,):
                config = StreamFifoConfig(width=width, depth=depth, storage=storage, last=last)
                add(FifoSpec, block, config, depth + 6)
    for width, outputs in ((1, 1), (32, 2), (7, 3), (2, 5)):
        add(ForkSpec, StreamFork, StreamForkConfig(width=width, outputs=outputs), 5)
    for width, inputs in ((1, 1), (32, 2), (7, 3)):
        add(JoinSpec, StreamJoin, StreamJoinConfig(width=width, inputs=inputs), 4)
    for width, ratio in ((1, 1), (2, 2), (7, 3), (8, 4), (1, 5)):
        add(WidenSpec, StreamWiden, StreamWidenConfig(width=width, ratio=ratio), ratio + 4)
        add(NarrowSpec, StreamNarrow, StreamNarrowConfig(width=width, ratio=ratio), ratio + 4)
    for size, out, bits in ((1, 1, 1), (1, 3, 1), (3, 1, 1), (2, 3, 2), (3, 2, 1), (4, 4, 1)):
        config = StreamRepackConfig(in_bytes=size, out_bytes=out, error_bits=bits)
        add(RepackSpec, BareRepack, config, 6)
    for policy in ("round_robin", "priority"):
        for width, inputs in ((1, 1), (32, 2), (7, 3), (2, 5)):
            for last in (True, False) if width == 7 else (True,):
                config = StreamArbiterConfig(width=width, inputs=inputs, policy=policy, last=last)
                add(ArbiterSpec, StreamArbiter, config, inputs + 4)
    return proofs


class DroppingSkid(StreamSkidBuffer):
    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.i.ready.eq(1)
        return m


class OverflowingFifo(StreamFifo):
    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.i.ready.eq(1)
        return m


class WrappingFifo(StreamFifo):
    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += self.write_row.eq(self.write_row + 1)
        return m


class EagerRamFifo(RamFifo):
    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.ram.read_en.eq(1)
        return m


class RepeatingFork(StreamFork):
    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.sync += self.done[0].eq(0)
        return m


class HastyJoin(StreamJoin):
    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.o.valid.eq(self.i[0].valid)
        return m


class LateWiden(StreamWiden):
    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.o.valid.eq(self.o.payload.count == self.config.ratio)
        return m


class LongNarrow(StreamNarrow):
    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.o.payload.last.eq(self.i.payload.last)
        return m


class HastyRepack(BareRepack):
    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.i.valid & self.i.ready & ~self.has_ended):
            m.d.sync += self.has_ended.eq(0)
        return m


class InterruptingArbiter(StreamArbiter):
    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.o.valid):
            m.d.sync += self.locked.eq(~self.o.ready)
        return m


class UnfairArbiter(StreamArbiter):
    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.o.valid & self.o.ready & self.o.payload.last):
            m.d.sync += self.held.eq(self.config.inputs - 1)
        return m


PROOFS = _proofs()

_FIFO = StreamFifoConfig(width=2, depth=3)
_RAM_FIFO = StreamFifoConfig(width=2, depth=3, storage="memory")
_ARBITER = StreamArbiterConfig(width=1, inputs=3)

DEFECTS = [
    Proof(
        "defect-skid",
        lambda: SkidSpec(DroppingSkid(StreamSkidBufferConfig(width=2))),
        10,
        "a word is taken when full",
    ),
    Proof("defect-fifo", lambda: FifoSpec(OverflowingFifo(_FIFO)), 10, "overflow"),
    Proof("defect-fifo-wrap", lambda: FifoSpec(WrappingFifo(_FIFO)), 10, "wraps at 4, not at 3"),
    Proof(
        "defect-fifo-ram",
        lambda: FifoSpec(EagerRamFifo(_RAM_FIFO)),
        10,
        "reads the row being written",
    ),
    Proof(
        "defect-fork",
        lambda: ForkSpec(RepeatingFork(StreamForkConfig(width=1, outputs=2))),
        6,
        "an output gets a word twice",
    ),
    Proof(
        "defect-join",
        lambda: JoinSpec(HastyJoin(StreamJoinConfig(width=1, inputs=2))),
        6,
        "does not wait for the second input",
    ),
    Proof(
        "defect-widen",
        lambda: WidenSpec(LateWiden(StreamWidenConfig(width=1, ratio=3))),
        8,
        "a short packet is held back",
    ),
    Proof(
        "defect-narrow",
        lambda: NarrowSpec(LongNarrow(StreamNarrowConfig(width=1, ratio=3))),
        8,
        "last on every word",
    ),
    Proof(
        "defect-repack",
        lambda: RepackSpec(HastyRepack(StreamRepackConfig(in_bytes=2, out_bytes=3))),
        6,
        "a packet goes on into the next",
    ),
    Proof("defect-arbiter", lambda: ArbiterSpec(InterruptingArbiter(_ARBITER)), 8, "interrupts"),
    Proof("defect-arbiter-unfair", lambda: ArbiterSpec(UnfairArbiter(_ARBITER)), 10, "starves"),
]
