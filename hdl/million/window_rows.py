"""K and V of the exact rows in RAM: part of million_window."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.kinds import index_of
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.million.encode_control import row_layout
from hdl.million.layouts import beat_layout
from hdl.million.window_config import MillionWindowConfig, regroup
from hdl.ports import In, Out


def row_ports(config: MillionWindowConfig, name: str, flip=In) -> dict:
    """The read port of one RAM, as the RAM has it (In) or as its reader does (Out)."""
    other = Out if flip is In else In
    row = range(config.slots * config.rows)
    return {
        f"{name}_en": flip(1, "Read; the data comes in the next cycle."),
        f"{name}_row": flip(row, "Row, slot by slot.", index_of("rows")),
        f"{name}_step": flip(range(max(2, config.steps)), "Word of the row.", index_of("words")),
        f"{name}_data": other(config.memory.width, "Elements of the word.", FP16),
    }


class MillionWindowRows(Block):
    """RAMs of K and of V. A read is always granted; ``fetch`` takes cycles without a read.

    ``write`` names a row, and ``x`` brings it. ``fetch`` names a row, and ``vector`` gives it. Only
    the latest word read is there: the reader takes ``k_data`` in the cycle after ``k_en``.
    """

    def __init__(self, config: MillionWindowConfig):
        row, beat = row_layout(config.cache), beat_layout(config.rate.lanes)
        super().__init__(
            config,
            {
                "write": In(stream.Signature(row), "Rows to write."),
                "x": In(stream.Signature(beat), "Elements of the rows to write."),
                "fetch": In(stream.Signature(row), "Rows to give."),
                "vector": Out(stream.Signature(beat), "Elements of the rows to give."),
                **row_ports(config, "k"),
                **row_ports(config, "v"),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        lanes, macs, steps = config.rate.lanes, config.rate.window_macs, config.steps
        memories = [add(m, name, Memory1R1W(config.memory)) for name in ("keys", "values")]

        def opened(name: str, port) -> tuple[Signal, Signal, Signal, Signal]:
            """(is open, V, row, step) of the packet that ``port`` begins."""
            is_open = Signal(name=f"{name}_open")
            kv = Signal(name=f"{name}_kv", reset_less=True)
            row = Signal(self.k_row.shape(), name=f"{name}_row", reset_less=True)
            step = Signal(range(max(2, steps)), name=f"{name}_step")
            m.d.comb += port.ready.eq(~is_open)
            with m.If(port.valid & port.ready):
                m.d.sync += [is_open.eq(1), kv.eq(port.p.kv), step.eq(0)]
                m.d.sync += row.eq(port.p.slot * config.rows + port.p.row)
            return is_open, kv, row, step

        words = regroup(m, "words", lanes, macs)
        is_open, kv, row, step = opened("written", self.write)
        writes = let(m, "writes", is_open & words.o.valid)
        m.d.comb += [
            words.i.valid.eq(self.x.valid),
            words.i.p.data.eq(self.x.p.word),
            words.i.p.last.eq(self.x.p.last),
            self.x.ready.eq(words.i.ready),
            words.o.ready.eq(is_open),
        ]
        for n, memory in enumerate(memories):
            m.d.comb += [
                memory.write_en.eq(writes & (kv == n)),
                memory.write_addr.eq(row * steps + step),
                memory.write_data.eq(words.o.p.data),
            ]
        with m.If(writes):
            m.d.sync += step.eq(step + 1)
            with m.If(step == steps - 1):
                m.d.sync += is_open.eq(0)

        # One word at a time: read, kept, given.
        is_open, kv, row, step = opened("fetched", self.fetch)
        free = Mux(kv, ~self.v_en, ~self.k_en)
        read = Signal()
        kept = Signal()
        word = Signal(config.memory.width, reset_less=True)
        last = Signal(reset_less=True)
        fetch = Signal()
        given = Signal()
        m.d.comb += fetch.eq(is_open & ~read & ~kept & free)
        for n, (memory, name) in enumerate(zip(memories, "kv", strict=True)):
            wanted = getattr(self, f"{name}_en")
            address = getattr(self, f"{name}_row") * steps + getattr(self, f"{name}_step")
            m.d.comb += [
                memory.read_en.eq(wanted | (fetch & (kv == n))),
                memory.read_addr.eq(Mux(wanted, address, row * steps + step)),
                getattr(self, f"{name}_data").eq(memory.read_data),
            ]
        m.d.sync += read.eq(fetch)
        with m.If(fetch):
            m.d.sync += [step.eq(step + 1), last.eq(step == steps - 1)]
            with m.If(step == steps - 1):
                m.d.sync += is_open.eq(0)
        with m.If(read):
            m.d.sync += [kept.eq(1), word.eq(Mux(kv, self.v_data, self.k_data))]
        with m.If(given):
            m.d.sync += kept.eq(0)
        beats = regroup(m, "beats", macs, lanes)
        m.d.comb += [
            beats.i.valid.eq(kept),
            beats.i.p.data.eq(word),
            beats.i.p.last.eq(last),
            given.eq(kept & beats.i.ready),
        ]
        m.d.comb += [
            self.vector.valid.eq(beats.o.valid),
            self.vector.p.word.eq(beats.o.p.data),
            self.vector.p.last.eq(beats.o.p.last),
            beats.o.ready.eq(self.vector.ready),
        ]
        return m
