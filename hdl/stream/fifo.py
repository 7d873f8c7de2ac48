"""Queue of words, in flip-flops or in a RAM (docs/blocks/stream_fifo.md)."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Array, Module, Signal, Value
from amaranth.lib import memory, stream

from golden.config import Config, bounded, choice, flag
from golden.timing import Timing
from hdl.bits import after
from hdl.block import Block
from hdl.children import add
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out
from hdl.stream.payload import MAX_BITS, payload_layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamFifoConfig(Config):
    """Payload, capacity and storage of StreamFifo; ``depth`` need not be a power of two."""

    width: int = bounded(32, 1, MAX_BITS, "bits of data")
    depth: int = bounded(4, 1, 65_536, "words held")
    storage: str = choice(
        "flipflop", ("flipflop", "memory", "lut"),
        "memory: a Memory1R1W macro; lut: a RAM that is read at any time, from LUTs of an FPGA",
    )  # fmt: skip
    last: bool = flag(True, "whether a word has last, which ends a packet")

    @property
    def latency(self) -> int:
        """Cycles from a word of i to its o.valid."""
        return 2 if self.storage == "memory" else 1

    @property
    def layout(self):
        return payload_layout(self.width, self.last)

    @property
    def memory(self) -> MemoryConfig:
        """The macro of ``storage="memory"``: a row for every word held."""
        return MemoryConfig(depth=self.depth, width=self.layout.size)


class StreamFifo(Block):
    """``o`` carries the words of ``i`` in order; exactly ``depth`` words fit, ``level`` are held.

    No combinational path leads from an input to an output, so a full queue takes a word only in
    the cycle after one left it. ``i.ready`` is ``level != depth``.

        storage   first word: i to o.valid       full rate (1 word per cycle) from
        flipflop  1 cycle                        depth 2 (depth 1: 1/2)
        memory    2 cycles (synchronous read)    depth 3 (depth 1: 1/3, depth 2: 2/3)
        lut       as flipflop                    as flipflop

    The macro's row being written is never read in the same cycle.
    """

    golden = "golden.stream.reference:identity"
    default = StreamFifoConfig()
    configs: ClassVar = {
        "smallest": StreamFifoConfig(width=1, depth=1),
        "odd": StreamFifoConfig(width=7, depth=5),
        "ram": StreamFifoConfig(width=64, depth=512, storage="memory"),
        "ram_odd": StreamFifoConfig(width=7, depth=5, storage="memory"),
        "lut": StreamFifoConfig(width=64, depth=16, storage="lut"),
    }

    def __init__(self, config: StreamFifoConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.layout), "Words in."),
                "o": Out(stream.Signature(config.layout), "The same words, in order."),
                "level": Out(range(config.depth + 1), "Words held, 0..depth."),
            },
        )
        # State that the proofs in tb/formal speak of.
        row = range(max(2, config.depth))  # no zero-width signal at depth 1
        self.write_row = Signal(row)
        self.read_row = Signal(row)
        self.rows = [  # of storage="flipflop"
            Signal(config.layout, name=f"row_{row}", reset_less=True)
            for row in range(config.depth if config.storage == "flipflop" else 0)
        ]

    @property
    def timing(self) -> Timing:
        """A place is free again ``latency`` + 1 cycles after its word came."""
        latency = self.config.latency
        interval = max(Fraction(1), Fraction(latency + 1, self.config.depth))
        return Timing(latency=latency, interval=interval, words=(("i", 1), ("o", 1)))

    def add_ram(self, m: Module):
        """The macro; the proofs put the weakest RAM that its contract allows here."""
        return add(m, "ram", Memory1R1W(self.config.memory))

    def _row(self, m: Module, push: Value) -> Value:
        """The row ``read_row``, as it is now; ``push`` writes ``write_row``."""
        if self.config.storage == "flipflop":
            rows = Array(self.rows)
            with m.If(push):
                m.d.sync += rows[self.write_row].eq(self.i.payload)
            return rows[self.read_row]
        width, depth = self.config.layout.size, max(2, self.config.depth)
        m.submodules.words = words = memory.Memory(shape=width, depth=depth, init=[])
        write, read = words.write_port(), words.read_port(domain="comb")
        m.d.comb += [
            write.en.eq(push),
            write.addr.eq(self.write_row),
            write.data.eq(self.i.payload),
            read.addr.eq(self.read_row),
        ]
        return read.data

    def elaborate(self, platform) -> Module:
        m = Module()
        depth = self.config.depth
        level = Signal(range(depth + 1))
        write_row, read_row = self.write_row, self.read_row
        push = Signal()
        take = Signal()
        fetch = Signal()

        m.d.comb += [
            self.level.eq(level),
            self.i.ready.eq(level != depth),
            push.eq(self.i.valid & self.i.ready),
            take.eq(self.o.valid & self.o.ready),
        ]
        m.d.sync += level.eq(level + push - take)
        with m.If(push):
            m.d.sync += write_row.eq(after(write_row, depth))
        with m.If(fetch):
            m.d.sync += read_row.eq(after(read_row, depth))

        if self.config.storage != "memory":
            m.d.comb += [
                fetch.eq(take),
                self.o.valid.eq(level != 0),
                self.o.payload.eq(self._row(m, push)),
            ]
        else:
            ram = self.add_ram(m)
            # The macro's read register is the output register: shown says that it holds a word.
            shown = Signal()
            m.d.comb += [
                ram.write_en.eq(push),
                ram.write_addr.eq(write_row),
                ram.write_data.eq(self.i.payload),
                ram.read_en.eq(fetch),
                ram.read_addr.eq(read_row),
                fetch.eq((level != shown) & (~shown | self.o.ready)),
                self.o.valid.eq(shown),
                self.o.payload.eq(ram.read_data),
            ]
            with m.If(~shown | self.o.ready):
                m.d.sync += shown.eq(fetch)
        return m
