"""The engine of vector operations, softmax and functions (docs/blocks/kllm_functional_unit.md)."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.config import Config, bounded, choice, flag, nested, power_of_two
from golden.fp16.format import FP16
from golden.index.format import K_MAX
from golden.kllm.config import FunctionShape, SlotShape, VectorShape
from golden.kllm.format import Operation
from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.timing import FunctionCycles
from golden.timing import Timing
from hdl.attention.softmax import AttentionSoftmax, AttentionSoftmaxConfig
from hdl.block import Block
from hdl.children import add
from hdl.index.table import IndexTableConfig
from hdl.kllm.engine import (
    SLOT_LENGTH_BITS,
    SLOT_ROW_BITS,
    command_stream,
    front_layout,
    row_read,
    row_write_layout,
    slot_read,
    status_stream,
)
from hdl.kllm.function.control import KllmFunctionControl, KllmFunctionControlConfig
from hdl.kllm.function.decode import KllmFunctionDecode, KllmFunctionDecodeConfig
from hdl.kllm.function.job import Kind
from hdl.kllm.function.pipeline import FUNCTIONS, KllmFunctionPipelineConfig
from hdl.kllm.function.result_rows import KllmResultRows, KllmResultRowsConfig
from hdl.kllm.function.row_reader import KllmRowReader, KllmRowReaderConfig
from hdl.kllm.function.slot_fetch import KllmSlotFetch, KllmSlotFetchConfig
from hdl.kllm.function.slot_rows import KllmSlotRows, KllmSlotRowsConfig
from hdl.kllm.function.vector_lanes import KllmVectorLanes, KllmVectorLanesConfig
from hdl.ports import Out
from hdl.stream.link import StreamView, link

_OUTLIERS_AHEAD = 8  # requested before they are used, of each slot


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmFunctionalUnitConfig(Config):
    """Sizes of the functional unit."""

    vectors: VectorShape = nested(VectorShape, "the vector memory")
    slot: SlotShape = nested(SlotShape, "the slots")
    width: int = power_of_two(8, 1, 16, "elements per cycle")
    functions: int = choice(1, FUNCTIONS, "elements per cycle of FUNCTION")
    softmax_elements: int = bounded(4096, ROW_ELEMENTS, K_MAX, "longest row of SOFTMAX")
    front: bool = flag(False, "the unit tells which rows of a command are still to come")
    extra: FunctionShape = nested(FunctionShape, "functions that not every unit has")

    @property
    def rows_ahead(self) -> int:
        """Rows requested before they are used. They cover 4 cycles of latency or more."""
        return max(4, self.width // 2)

    @property
    def decode(self) -> KllmFunctionDecodeConfig:
        return KllmFunctionDecodeConfig(
            vectors=self.vectors,
            slot=self.slot,
            softmax_elements=self.softmax_elements,
            extra=self.extra,
        )

    @property
    def control(self) -> KllmFunctionControlConfig:
        return KllmFunctionControlConfig(
            softmax=self.softmax,
            entries=self.entries,
            outliers=self.outliers,
            slots=self.slot_words,
        )

    @property
    def reader(self) -> KllmRowReaderConfig:
        return KllmRowReaderConfig(depth=self.rows_ahead)

    @property
    def table(self) -> IndexTableConfig:
        return IndexTableConfig(
            bits_a=self.slot.bits_a, integer_bits=self.slot.integer_bits, width=self.width
        )

    @property
    def slot_words(self) -> KllmSlotRowsConfig:
        return KllmSlotRowsConfig(
            table=self.table, rows=self.slot.rows, functions=self.functions, extra=self.extra
        )

    @property
    def entries(self) -> KllmSlotFetchConfig:
        return KllmSlotFetchConfig(
            word_bits=self.table.i_layout.size,
            count_max=self.slot.rows,
            position_bits=SLOT_ROW_BITS,
            depth=self.rows_ahead,
        )

    @property
    def outliers(self) -> KllmSlotFetchConfig:
        return KllmSlotFetchConfig(
            word_bits=FP16.bits,
            count_max=self.slot.outliers_max,
            position_bits=SLOT_LENGTH_BITS,
            depth=_OUTLIERS_AHEAD,
        )

    @property
    def lanes(self) -> KllmVectorLanesConfig:
        return KllmVectorLanesConfig(
            width=self.width, functions=self.functions, bounds=self.extra.bounds
        )

    @property
    def softmax(self) -> AttentionSoftmaxConfig:
        elements = -(-self.softmax_elements // ROW_ELEMENTS) * ROW_ELEMENTS
        return AttentionSoftmaxConfig(width=self.width, elements=elements)

    @property
    def results(self) -> KllmResultRowsConfig:
        return KllmResultRowsConfig(width=self.width, functions=self.functions)


class KllmFunctionalUnit(Block):
    """Runs the commands of ``Unit.FUNCTION`` (golden.kllm.isa), one after another.

        BINARY, AXPY, ROTARY   one rounding per element (ROTARY: the second product is exact)
        SOFTMAX                m = max s, e = exp(rne16(s - m)), r = rne32(1 / rne32(sum e)),
                               p = rne16(e * r); the sum is exact on the grid 2**-24
        FUNCTION               f of every element
        ACTIVATE               table[index] with table = f(rne16(s * c)), f(x) for outliers
        GLU                    rne16(ACTIVATE of slot a * dequantized slot b)

    Each command's arithmetic, roundings and statuses are those of golden.kllm.functional.execute.
    A command that fails writes nothing. SOFTMAX leaves out the rows that fail. A destination may
    be a source, row by row the same one. If rows overlap in another way, the order of reads and
    writes is undefined. ``outliers`` of a descriptor is the number of ones in its slot's masks
    within its length, at most ``outliers_max``.

    Rates, elements per cycle: ``width`` for BINARY, AXPY, ROTARY and ACTIVATE; ``functions`` for
    FUNCTION; SOFTMAX three passes of width. GLU has width, at most 8, as one client reads both
    slots. A row with more outliers than 16 / width takes a cycle for each, of both slots together.
    Requests run ahead of their use by ``rows_ahead`` rows. They are made only when there is room
    for the answer, so answers are always accepted at once. No combinational path leads from an
    input to an output. With the field ``front`` the unit tells which rows of a running command are
    still to be written. The command is BINARY, AXPY with an immediate, or FUNCTION, of one token.
    The phases are blocks of hdl.kllm.function and AttentionSoftmax; this block
    joins them. Source: KLLM, sections III-C and IV-A. Golden: golden.kllm.functional.execute.
    """

    golden = "golden.kllm.functional:execute"
    reference = "tests/kllm/test_functional.py: test_commands_equal_numpy_and_fractions"
    default = KllmFunctionalUnitConfig()
    configs: ClassVar = {
        "table1": KllmFunctionalUnitConfig(),
        "small": KllmFunctionalUnitConfig(
            vectors=VectorShape(rows=256),
            slot=SlotShape(slots=4, elements=256, bits_a=2, integer_bits=4),
            width=4,
            softmax_elements=256,
        ),
    }

    def __init__(self, config: KllmFunctionalUnitConfig):
        front = {}
        if config.front:
            front = {"front": Out(front_layout, "Rows that a certain command still writes.")}
        super().__init__(
            config,
            {
                "command": command_stream(),
                "status": status_stream(),
                **row_read("a", "rows of the first operand"),
                **row_read("b", "rows of the second operand"),
                **slot_read("slot", config.slot.bits_a, config.slot.integer_bits),
                "write": Out(stream.Signature(row_write_layout), "Rows of results."),
                **front,
            },
        )

    @property
    def timing(self) -> Timing:
        """The memory answers in 1 cycle. The least latency is that of BINARY of one row.

        ``FunctionCycles`` has the cycles of each command.
        """
        stages = KllmFunctionPipelineConfig().stages
        config = self.config
        cycles = FunctionCycles(config.width, config.slot.bits_a, stages, 1, config.functions)
        return Timing(
            latency=cycles.rows(1),
            interval=Fraction(1, config.width),
            start="command",
            end="status",
            unit="element",
            delays=(
                ("of a refused command", cycles.refused),
                ("of FUNCTION_CODEBOOK", cycles.codebook),
                ("of SOFTMAX of one row", cycles.softmax(1, 1)),
            ),
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        decode = add(m, "decode", KllmFunctionDecode(config.decode))
        control = add(m, "control", KllmFunctionControl(config.control))
        readers = [add(m, f"rows_{k}", KllmRowReader(config.reader)) for k in "ab"]
        entries = add(m, "entries", KllmSlotFetch(config.entries))
        outliers = add(m, "outliers", KllmSlotFetch(config.outliers))
        slots = add(m, "slots", KllmSlotRows(config.slot_words))
        lanes = add(m, "lanes", KllmVectorLanes(config.lanes))
        softmax = add(m, "softmax", AttentionSoftmax(config.softmax))
        results = add(m, "results", KllmResultRows(config.results))

        # Commands, and what starts the phases.
        link(m, self.command, decode.command)
        link(m, decode.job, control.job)
        link(m, control.status, self.status)
        link(m, control.slot_slot, self.slot_slot)
        link(m, self.slot_descriptor, control.slot_descriptor)
        link(m, control.walk_a, readers[0].walk)
        link(m, control.walk_b, readers[1].walk)
        link(m, control.walk_d, results.walk)
        link(m, control.entries, entries.walk)
        link(m, control.outliers, outliers.walk)
        link(m, control.load, slots.load)
        link(m, control.fill, slots.fill)
        link(m, control.row, softmax.row)
        link(m, softmax.maximum, control.maximum)
        link(m, softmax.total, control.total)
        m.d.comb += [
            control.idle.eq(results.idle),
            control.loaded.eq(slots.loaded),
            slots.shape.eq(control.shape),
            lanes.operation.eq(control.operation),
            lanes.scalar.eq(control.scalar),
            lanes.scale.eq(control.scale),
        ]

        # Memories.
        link(m, readers[0].a_request, self.a_request)
        link(m, self.a_row, readers[0].a_row)
        link(m, readers[1].a_request, self.b_request)
        link(m, self.b_row, readers[1].a_row)
        link(m, entries.request, self.slot_entry_request, rename={"position": "row"})
        link(m, outliers.request, self.slot_outlier_request)
        word = entries.answer.p.shape()
        entry_bits = Value.cast(self.slot_entries.payload)
        link(m, StreamView.of(entry_bits, word, self.slot_entries), entries.answer)
        link(m, self.slot_outlier, outliers.answer)
        link(m, results.write, self.write)

        # Words of the slots, then rows of either kind. A codebook is a row for the tables.
        for k, reader in enumerate(readers):
            words = Value.cast(entries.o[k].payload)
            link(
                m, StreamView.of(words, slots.entries[k].p.shape(), entries.o[k]), slots.entries[k]
            )
            link(m, outliers.o[k], slots.outliers[k])
            link(m, slots.rows[k], reader.i)
        rows = readers[0].o
        m.d.comb += [
            lanes.a.payload.eq(rows.payload),
            slots.row.payload.eq(rows.payload),
            lanes.a.valid.eq(rows.valid & ~control.load.valid),
            slots.row.valid.eq(rows.valid & control.load.valid),
            rows.ready.eq(Mux(control.load.valid, slots.row.ready, lanes.a.ready)),
        ]
        link(m, readers[1].o, lanes.b)
        if config.front:
            self._tell(m, decode.job.p, control, results)

        # Results: rows, functions of elements, and of softmax the differences.
        is_difference = control.operation == Operation.DIFFERENCE
        link(m, lanes.element, slots.element)
        link(m, slots.y, results.element)
        link(m, lanes.score, softmax.score)
        link(m, softmax.weight, lanes.weight)
        m.d.comb += [
            softmax.difference.payload.eq(lanes.o.payload),
            results.i.payload.eq(lanes.o.payload),
            softmax.difference.valid.eq(lanes.o.valid & is_difference),
            results.i.valid.eq(lanes.o.valid & ~is_difference),
            lanes.o.ready.eq(Mux(is_difference, softmax.difference.ready, results.i.ready)),
        ]
        return m

    def _tell(self, m: Module, job, control, results) -> None:
        """Drives ``front``: a command on rows of one token is certain when its results begin.

        Those of ROTARY come in pairs. Commands on slots read what a QUANTIZE may write.
        """
        front = Signal(front_layout)
        rows = control.walk_d.p.rows
        is_ordered = (job.kind == Kind.ROWS) & ~job.derives & (job.tokens == 1) & ~rows.pair
        m.d.comb += self.front.eq(front)
        with m.If(results.write.valid & results.write.ready):
            m.d.sync += front.next.eq(front.next + 1)
        with m.If(control.walk_d.valid & control.walk_d.ready):
            m.d.sync += [
                front.valid.eq(is_ordered),
                front.next.eq(rows.first),
                front.end.eq(rows.first + rows.steps),
            ]
        with m.If(control.status.valid & control.status.ready):
            m.d.sync += front.valid.eq(0)
