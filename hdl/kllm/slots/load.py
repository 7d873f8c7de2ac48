"""The engine that fills rows of the vector memory from data memory."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream

from golden.config import Config, bounded, nested
from golden.fp16.format import FP16
from golden.kllm.config import VectorShape
from golden.kllm.isa import ROW_BYTES, CommandStatus, Opcode
from golden.kllm.timing import loader
from hdl.block import Block, Tier
from hdl.children import add
from hdl.kllm.engine import command_stream, operand, row_write_layout, status_stream
from hdl.kllm.slots.choices import choice_reader
from hdl.kllm.slots.load_at import (
    KllmLoadAt,
    KllmLoadAtConfig,
    data_layout,
    place_reader,
    read_layout,
)
from hdl.ports import In, Out
from hdl.stream.link import link


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmLoadConfig(Config):
    """Sizes of the two memories."""

    vectors: VectorShape = nested(VectorShape, "the vector memory")
    address_bits: int = bounded(40, 32, 64, "bits of a byte address of the data memory")
    batch: int = bounded(0, 0, 64, "places of the batch; 0: no LOAD_AT")
    experts: int = bounded(0, 0, 16, "most choices of a place; 0, as without batch: none")

    @property
    def at(self) -> KllmLoadAtConfig:
        return KllmLoadAtConfig(
            vectors=self.vectors, address_bits=self.address_bits, places=max(self.batch, 1),
            experts=self.experts,
        )  # fmt: skip

    @property
    def has_experts(self) -> bool:
        """Whether LOAD_AT knows choices."""
        return self.batch > 0 and self.experts > 0


class KllmLoad(Block):
    """LOAD of golden.kllm.isa: ``V[dst + i]`` = row ``address + i`` of the data memory, i < rows.

    With ``batch`` also LOAD_AT, by ``kllm_load_at``, which has the ports ``index`` and ``entry``,
    with ``experts`` also ``rank`` and ``choice``.

    Rows are ROW_BYTES bytes, little-endian, element 0 lowest. Row ``address`` begins at byte
    ``address * ROW_BYTES``. RANGE: rows is 0 or the destination leaves the vector memory; nothing
    is read then. BUS_ERROR: some row came with an error, or the source ends above byte
    ``2**address_bits``, where nothing is read. All rows of the destination are NaN then. One row
    per cycle; a command begins when the one before it is done. No combinational path leads from
    the read data to the read command.
    Golden: golden.kllm.machine.

    The engine issues one ``read`` per command, 2 cycles after it. The port cuts it into bursts that
    respect 4 KiB boundaries. A row is written in the cycle in which its data comes. After an error
    the engine accepts all rows, then writes the whole destination again. The status comes one cycle
    after the last row.
    """

    tier = Tier.PART
    golden = "golden.kllm.machine:Machine"
    default = KllmLoadConfig()
    configs: ClassVar = {
        "table1": KllmLoadConfig(),
        "small": KllmLoadConfig(vectors=VectorShape(rows=256)),
        "batch": KllmLoadConfig(vectors=VectorShape(rows=256), batch=4),
        "experts": KllmLoadConfig(vectors=VectorShape(rows=256), batch=4, experts=3),
    }

    def __init__(self, config: KllmLoadConfig):
        super().__init__(
            config,
            {
                "command": command_stream(),
                "status": status_stream(),
                "read": Out(
                    stream.Signature(read_layout(config.address_bits)),
                    "Rows wanted of the data memory: byte address and number.",
                ),
                "data": In(stream.Signature(data_layout), "Those rows, in order."),
                "write": Out(stream.Signature(row_write_layout), "Rows of the destination."),
                **(place_reader() if config.batch else {}),
                **(choice_reader() if config.has_experts else {}),
            },
        )

    timing = loader()

    def elaborate(self, platform) -> Module:
        m = Module()
        command = self.command.p
        rows, dst = operand(command, Opcode.LOAD, "rows"), operand(command, Opcode.LOAD, "dst")
        address = operand(command, Opcode.LOAD, "address")
        row = Signal(range(self.config.vectors.rows))
        error = Signal()
        faults = Signal(len(CommandStatus))
        row_address = Cat(Const(0, (ROW_BYTES - 1).bit_length()), address)
        is_final = row == rows - 1
        # Operands cannot reach the end of a larger memory.
        memory_rows = (1 << self.config.address_bits) // ROW_BYTES
        may_leave = memory_rows < (1 << len(address)) + (1 << len(rows)) - 1
        m.d.comb += [
            self.read.p.address.eq(row_address),
            self.read.p.words.eq(rows),
            self.write.p.row.eq(dst + row),
            self.status.p.status.eq(faults),
        ]
        starts = self.command.valid
        if self.config.batch:
            starts = starts & (command.opcode != Opcode.LOAD_AT)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [row.eq(0), error.eq(0), faults.eq(0)]
                with m.If(starts):
                    m.next = "CHECK"
            with m.State("CHECK"):
                with m.If(command.opcode != Opcode.LOAD):
                    m.d.sync += faults.eq(int(CommandStatus.MALFORMED))
                    m.next = "STATUS"
                with m.Elif((rows == 0) | (dst + rows > self.config.vectors.rows)):
                    m.d.sync += faults.eq(int(CommandStatus.RANGE))
                    m.next = "STATUS"
                if may_leave:
                    with m.Elif(address + rows > memory_rows):
                        m.next = "FILL"
                with m.Else():
                    m.next = "READ"
            with m.State("READ"):
                m.d.comb += self.read.valid.eq(1)
                with m.If(self.read.ready):
                    m.next = "ROWS"
            with m.State("ROWS"):
                m.d.comb += [
                    self.write.valid.eq(self.data.valid),
                    self.write.p.word.as_value().eq(self.data.p.data),
                    self.data.ready.eq(self.write.ready),
                ]
                with m.If(self.data.valid & self.data.ready):
                    failed = error | self.data.p.error
                    m.d.sync += [row.eq(Mux(is_final, 0, row + 1)), error.eq(failed)]
                    with m.If(is_final):
                        m.next = "STATUS"
                        with m.If(failed):
                            m.next = "FILL"
            with m.State("FILL"):
                m.d.comb += self.write.valid.eq(1)
                m.d.comb += [word.eq(FP16.canonical_nan) for word in self.write.p.word]
                with m.If(self.write.ready):
                    m.d.sync += row.eq(row + 1)
                    with m.If(is_final):
                        m.d.sync += faults.eq(int(CommandStatus.BUS_ERROR))
                        m.next = "STATUS"
            with m.State("STATUS"):
                m.d.comb += [self.status.valid.eq(1), self.command.ready.eq(self.status.ready)]
                with m.If(self.status.ready):
                    m.next = "IDLE"
        if self.config.batch:
            _entries(m, self)
        return m


def _entries(m: Module, block: KllmLoad) -> None:
    """The engine of LOAD_AT, which has the ports for the time of its commands."""
    engine = add(m, "at", KllmLoadAt(block.config.at))
    is_here = Signal()
    m.d.comb += [
        is_here.eq(block.command.p.opcode == Opcode.LOAD_AT),
        block.index.eq(engine.index),
        engine.entry.eq(block.entry),
        engine.command.p.eq(block.command.p),
        engine.data.p.eq(block.data.p),
    ]
    if block.config.has_experts:
        m.d.comb += [block.rank.eq(engine.rank), engine.choice.eq(block.choice)]
    with m.If(is_here):
        link(m, engine.read, block.read)
        link(m, engine.write, block.write)
        link(m, engine.status, block.status)
        m.d.comb += [
            engine.command.valid.eq(block.command.valid),
            block.command.ready.eq(engine.command.ready),
            engine.data.valid.eq(block.data.valid),
            block.data.ready.eq(engine.data.ready),
        ]
