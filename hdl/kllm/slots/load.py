"""The engine that fills rows of the vector memory from data memory."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded, nested
from golden.fp16.format import FP16
from golden.kllm.config import VectorShape
from golden.kllm.isa import CommandStatus, Opcode
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kinds import NUMBER, index_of
from hdl.kllm.engine import ROW, command_stream, operand, row_write_layout, status_stream
from hdl.ports import In, Out, Payload

ROW_BYTES = ROW.size // 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmLoadConfig(Config):
    """Sizes of the two memories."""

    vectors: VectorShape = nested(VectorShape, "the vector memory")
    address_bits: int = bounded(40, 32, 64, "bits of a byte address of the data memory")

    @property
    def read_layout(self) -> data.StructLayout:
        """A command of the read port: byte address and number of rows."""
        return Payload(
            address=(self.address_bits, "byte address of the first row", index_of("bytes")),
            words=(17, "rows wanted", NUMBER),
        )

    @property
    def data_layout(self) -> data.StructLayout:
        return Payload(
            data=(ROW.size, "one row, element 0 in the low bits", FP16),
            error=(1, "the response was SLVERR or DECERR"),
            last=(1, "the command's final row"),
        )


class KllmLoad(Block):
    """LOAD of golden.kllm.isa: ``V[dst + i]`` = row ``address + i`` of the data memory, i < rows.

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
    }

    def __init__(self, config: KllmLoadConfig):
        super().__init__(
            config,
            {
                "command": command_stream(),
                "status": status_stream(),
                "read": Out(
                    stream.Signature(config.read_layout),
                    "Rows wanted of the data memory: byte address and number.",
                ),
                "data": In(stream.Signature(config.data_layout), "Those rows, in order."),
                "write": Out(stream.Signature(row_write_layout), "Rows of the destination."),
            },
        )

    timing = Timing(latency=2, start="command", end="read", unit="row")

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
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [row.eq(0), error.eq(0), faults.eq(0)]
                with m.If(self.command.valid):
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
        return m
