"""The engine of vector operations, softmax and functions (docs/blocks/kllm_functional_unit.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import Out

from golden.config import Config
from golden.fp16.format import FP16, FP32
from golden.index.format import INT_BITS, K_MAX
from golden.kllm.isa import ROW_ELEMENTS, Binary, CommandStatus, Opcode, Scalar
from hdl.block import Block
from hdl.emit import add
from hdl.fp16.compare import total_order_key
from hdl.fp16.convert import convert
from hdl.fp16.divide import FpReciprocal, FpReciprocalConfig
from hdl.fp16.exp import FpExp, FpExpConfig
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.index.table import IndexTable, IndexTableConfig
from hdl.kllm.engine import (
    ROW,
    command_layout,
    command_stream,
    descriptor_layout,
    operand,
    row_read,
    row_write_layout,
    slot_read,
    status_stream,
)
from hdl.kllm.function_pipeline import KllmFunctionPipeline, KllmFunctionPipelineConfig
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.stream.fifo import StreamFifo, StreamFifoConfig

__all__ = ["KllmFunctionalUnit", "KllmFunctionalUnitConfig"]

_ONE = FP16.bias << FP16.frac_bits
_MINUS_ONE = FP16.sign_bit | _ONE
_MINUS_ZERO = FP16.sign_bit
_ROW_BITS = FP16.bits * ROW_ELEMENTS
_OUTLIERS_AHEAD = 8  # asked for before they are used, of each slot
_LOWEST_KEY = 0x03FF  # total-order key of -infinity


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmFunctionalUnitConfig(Config):
    """Sizes of the functional unit."""

    bits_a: int = 4  # bits of an activation index, 2..4
    integer_bits: int = 8  # bits of an unsigned integer in an entry, 4 or 8; 0: no integers
    vector_rows: int = 4096  # rows of the vector memory, 1..65536
    slots: int = 16  # activation slots, 1..256
    slot_elements: int = 4096  # longest token of a slot, 16..16383
    outliers_max: int = 64  # most outliers of a token, 1..16383
    width: int = 8  # elements per cycle: 4, 8 or 16
    softmax_elements: int = 4096  # longest row of SOFTMAX, 16..16383

    def __post_init__(self) -> None:
        self._check_range("bits_a", 2, 4)
        self._check_choice("integer_bits", (0, *INT_BITS))
        self._check_range("vector_rows", 1, 1 << 16)
        self._check_range("slots", 1, 256)
        self._check_range("slot_elements", ROW_ELEMENTS, K_MAX)
        self._check_range("outliers_max", 1, K_MAX)
        self._check_choice("width", (4, 8, 16))
        self._check_range("softmax_elements", ROW_ELEMENTS, K_MAX)

    @property
    def beats(self) -> int:
        """Cycles that a row of 16 takes."""
        return ROW_ELEMENTS // self.width

    @property
    def buffer(self) -> MemoryConfig:
        """Exponentials of one row of SOFTMAX."""
        rows = -(-self.softmax_elements // ROW_ELEMENTS)
        return MemoryConfig(depth=rows * self.beats, width=FP16.bits * self.width)

    @property
    def slot_rows(self) -> int:
        """Rows of entries of one slot."""
        return -(-self.slot_elements // ROW_ELEMENTS)

    @property
    def rows_ahead(self) -> int:
        """Rows that are asked for before they are used: covers 4 cycles of latency or more."""
        return max(4, self.width // 2)

    @property
    def table(self) -> IndexTableConfig:
        return IndexTableConfig(
            bits_a=self.bits_a, integer_bits=self.integer_bits, width=self.width
        )


class _Rows:
    """Row numbers of ``tokens`` tokens of ``steps`` rows: first + k + t * stride.

    In pairs, two rows per step: first + k and second + k.
    """

    def __init__(self, m: Module, name: str, steps, tokens, pair):
        self.first = Signal(16, name=f"{name}_first")
        self.second = Signal(16, name=f"{name}_second")
        self.stride = Signal(16, name=f"{name}_stride")
        self.active = Signal(name=f"{name}_active")
        self.row = Signal(16, name=f"{name}_row")
        self.advance = Signal(name=f"{name}_advance")
        self.last_step = Signal(name=f"{name}_last_step")
        self._step = step = Signal(13, name=f"{name}_step")
        self._token = token = Signal(8, name=f"{name}_token")
        self._upper = upper = Signal(name=f"{name}_upper")
        m.d.comb += [
            self.row.eq(Mux(upper, self.second, self.first) + step),
            self.last_step.eq(step == steps - 1),
        ]
        with m.If(self.advance):
            with m.If(pair & ~upper):
                m.d.sync += upper.eq(1)
            with m.Else():
                m.d.sync += [upper.eq(0), step.eq(step + 1)]
                with m.If(self.last_step):
                    m.d.sync += [
                        step.eq(0),
                        token.eq(token + 1),
                        self.first.eq(self.first + self.stride),
                        self.second.eq(self.second + self.stride),
                    ]
                    with m.If(token == tokens - 1):
                        m.d.sync += self.active.eq(0)

    def start(self, first, second, stride):
        return [
            self.first.eq(first),
            self.second.eq(second),
            self.stride.eq(stride),
            self.active.eq(1),
            self._step.eq(0),
            self._token.eq(0),
            self._upper.eq(0),
        ]


class KllmFunctionalUnit(Block):
    """Runs the commands of ``Unit.FUNCTION`` (golden.kllm.isa), one after another.

        BINARY, AXPY, ROTARY   one rounding per element (ROTARY: the second product is exact)
        SOFTMAX                m = max s, e = exp(rne16(s - m)), r = rne32(1 / rne32(sum e)),
                               p = rne16(e * r); the sum is exact on the grid 2**-24
        FUNCTION               f of every element
        ACTIVATE               table[index] with table = f(rne16(s * c)), f(x) for outliers
        GLU                    rne16(ACTIVATE of slot a * dequantized slot b)

    Each command's arithmetic, roundings and statuses are those of golden.kllm.functional.execute.
    A command that fails writes nothing; SOFTMAX leaves out the rows that fail. A destination may
    be a source, row by row the same one; rows that overlap in another way may be read before or
    after they are written. ``outliers`` of a descriptor is the number of ones in its slot's masks
    within its length, at most ``outliers_max``.

    Rates, elements per cycle: ``width`` for BINARY, AXPY, ROTARY and ACTIVATE; GLU width, at most
    8, as one client reads both slots; FUNCTION 1; SOFTMAX three passes of width. A row with more
    outliers than 16 / width takes a cycle for each, of both slots together. Requests run ahead of
    their use by ``rows_ahead`` rows and are made only when there is room for the answer: answers
    are always taken at once. No combinational path leads from an input to an output.
    Source: KLLM, sections III-C and IV-A. Golden: golden.kllm.functional.execute.

    Members
    -------
    command, status      as hdl.kllm.engine says
    a_..., b_...         clients of the vector memory
    slot_...             client of the slots
    write : Out(stream)  row, word
    """

    meaning: ClassVar[dict[str, str]] = {
        "command": "Commands of Unit.FUNCTION.",
        "status": "One word of CommandStatus bits per command.",
        "a_request": "Rows of the first operand wanted.",
        "a_row": "Those rows, in order.",
        "b_request": "Rows of the second operand wanted.",
        "b_row": "Those rows, in order.",
        "slot_slot": "Descriptors wanted.",
        "slot_descriptor": "Those descriptors, in order.",
        "slot_entry_request": "Entry rows wanted.",
        "slot_entries": "Those rows, in order.",
        "slot_outlier_request": "Outlier words wanted.",
        "slot_outlier": "Those words, in order.",
        "write": "Rows of results.",
    }

    def __init__(self, config: KllmFunctionalUnitConfig):
        super().__init__(
            config,
            {
                "command": command_stream(),
                "status": status_stream(),
                **row_read("a"),
                **row_read("b"),
                **slot_read("slot", config.bits_a, config.integer_bits),
                "write": Out(stream.Signature(row_write_layout)),
            },
        )

    @property
    def latency(self) -> str:
        return "20 to 40 cycles beside the passes over the elements, by command"

    @property
    def throughput(self) -> str:
        return f"{self.config.width} elements per cycle, FUNCTION 1"

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self.config
        width, beats = config.width, config.beats
        held = Signal(command_layout)
        faults = Signal(len(CommandStatus))
        m.d.comb += self.status.p.status.eq(faults)

        def value(opcode: Opcode, name: str):
            return operand(held, opcode, name)

        # What runs: set in DECODE, constant while the command runs.
        length, tokens, walk_tokens = Signal(16), Signal(8), Signal(8)
        rows = Signal(13)  # of a token; of a head in ROTARY
        steps = Signal(13)  # of a token; in ROTARY pairs of rows of a head
        pair, uses_b, scalar_sink = Signal(), Signal(), Signal()
        is_vector, is_slot, two_slots = Signal(), Signal(), Signal()
        a_first, a_stride, b_first, b_stride = (Signal(16) for _ in range(4))
        d_first, d_stride, b_second = (Signal(16) for _ in range(3))
        function = Signal(3)
        slot_a, slot_b = Signal(8), Signal(8)
        scalar = Signal(16)  # AXPY's factor
        bad = Signal()
        opcode = held.opcode

        # ---- lanes: y = rne16(f_a * f_b + m_a * m_b), the second product exact ----------------
        # Sums and copies are of this form too: c = m_a * 1 is exact, and x * y + -0 is x * y.
        subtracts, scales, exponentials = Signal(), Signal(), Signal()
        maximum, r = Signal(16, reset_less=True), Signal(32, reset_less=True)
        lanes_valid, lanes_ready = Signal(), Signal()
        f_a, f_b, m_a, m_b = (Signal(data.ArrayLayout(16, width)) for _ in range(4))
        sums_valid, sums_ready = Signal(), Signal()
        sums, e = Signal(data.ArrayLayout(16, width)), Signal(data.ArrayLayout(16, width))
        e_valid = Signal()
        for lane in range(width):
            product = add(
                m, f"lane_{lane}_product", FpMul(FpMulConfig(o=FP32, stages=1, tag_bits=32))
            )
            fuse = add(m, f"lane_{lane}_fuse", FpFma(FpFmaConfig(b=FP32, c=FP32, stages=3)))
            power = add(m, f"lane_{lane}_power", FpExp(FpExpConfig(stages=4)))
            m.d.comb += [
                product.i.valid.eq(lanes_valid),
                product.i.p.a.eq(m_a[lane]),
                product.i.p.b.eq(m_b[lane]),
                product.i.p.tag.eq(Cat(f_a[lane], f_b[lane])),
                fuse.i.valid.eq(product.o.valid),
                product.o.ready.eq(fuse.i.ready),
                fuse.i.p.a.eq(product.o.p.tag[:16]),
                fuse.i.p.b.eq(Mux(scales, r, convert(m, product.o.p.tag[16:], FP16, FP32))),
                fuse.i.p.c.eq(product.o.p.y),
                fuse.o.ready.eq(Mux(exponentials, power.i.ready, sums_ready)),
                power.i.valid.eq(fuse.o.valid & exponentials),
                power.i.p.a.eq(fuse.o.p.y),
                power.o.ready.eq(1),
                sums[lane].eq(fuse.o.p.y),
                e[lane].eq(power.o.p.y),
            ]
            if lane == 0:  # all lanes move together
                m.d.comb += [
                    lanes_ready.eq(product.i.ready),
                    sums_valid.eq(fuse.o.valid & ~exponentials),
                    e_valid.eq(power.o.valid),
                ]

        # ---- rows of the operands -------------------------------------------------------------
        rows_a = _Rows(m, "a", steps, walk_tokens, pair)
        rows_b = _Rows(m, "b", steps, walk_tokens, pair)
        rows_d = _Rows(m, "d", steps, walk_tokens, pair)
        fifo = StreamFifoConfig(width=_ROW_BITS, depth=config.rows_ahead)
        queue_a = add(m, "queue_a", StreamFifo(fifo))
        queue_b = add(m, "queue_b", StreamFifo(fifo))
        table_a = add(m, "table_a", IndexTable(config.table))
        table_b = add(m, "table_b", IndexTable(config.table))
        for name, walk, queue, table in (
            ("a", rows_a, queue_a, table_a),
            ("b", rows_b, queue_b, table_b),
        ):
            request, answer = getattr(self, f"{name}_request"), getattr(self, f"{name}_row")
            given = queue.o.valid & queue.o.ready & ~is_slot
            room = _room(m, f"{name}_rows", config.rows_ahead, request, given)
            m.d.comb += [
                request.valid.eq(walk.active & room),
                request.p.row.eq(walk.row),
                walk.advance.eq(request.valid & request.ready),
                answer.ready.eq(1),  # there is room for it
            ]
            with m.If(is_slot):
                m.d.comb += [
                    queue.i.valid.eq(table.o.valid),
                    table.o.ready.eq(queue.i.ready),
                    queue.i.payload.eq(Cat(table.o.p.word, Const(0, 1))),
                ]
            with m.Else():
                m.d.comb += [
                    queue.i.valid.eq(answer.valid),
                    queue.i.payload.eq(Cat(answer.p.word, Const(0, 1))),
                ]

        # ---- the rows in work: one of each operand, or two of each in ROTARY ------------------
        low_valid = Signal()
        low_a, low_b = Signal(ROW, reset_less=True), Signal(ROW, reset_less=True)
        work_valid, work_free, work_ready = Signal(), Signal(), Signal()
        work_a, work_b = Signal(ROW, reset_less=True), Signal(ROW, reset_less=True)
        upper_a, upper_b = Signal(ROW, reset_less=True), Signal(ROW, reset_less=True)
        beat = Signal(5)  # of the rows in work
        last_beat = Signal()
        heads, load_low, load_work, load_codebook = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            last_beat.eq(
                beat == Mux(scalar_sink, ROW_ELEMENTS - 1, Mux(pair, 2 * beats - 1, beats - 1))
            ),
            work_free.eq(~work_valid | (work_ready & last_beat)),
            heads.eq(queue_a.o.valid & (queue_b.o.valid | ~uses_b)),
            load_low.eq(heads & pair & ~low_valid),
            load_work.eq(heads & (low_valid | ~pair) & work_free & ~load_codebook),
            queue_a.o.ready.eq(load_low | load_work | (load_codebook & queue_a.o.valid)),
            queue_b.o.ready.eq((load_low | load_work) & uses_b),
        ]
        with m.If(work_valid & work_ready):
            m.d.sync += beat.eq(Mux(last_beat, 0, beat + 1))
            with m.If(last_beat):
                m.d.sync += work_valid.eq(0)
        with m.If(load_low):
            m.d.sync += [
                low_valid.eq(1),
                low_a.eq(queue_a.o.p.data),
                low_b.eq(queue_b.o.p.data),
            ]
        with m.If(load_work):
            m.d.sync += [low_valid.eq(0), work_valid.eq(1), beat.eq(0)]
            with m.If(pair):
                m.d.sync += [
                    work_a.eq(low_a),
                    work_b.eq(low_b),
                    upper_a.eq(queue_a.o.p.data),
                    upper_b.eq(queue_b.o.p.data),
                ]
            with m.Else():
                m.d.sync += [work_a.eq(queue_a.o.p.data), work_b.eq(queue_b.o.p.data)]

        group = beat[: (beats - 1).bit_length()]  # of the row
        upper = Signal()  # the second row of a pair
        m.d.comb += upper.eq(pair & (beat >= beats))

        def slice_of(row) -> list[Value]:
            """The ``width`` elements of a row that this beat takes."""
            if beats == 1:
                return [row[lane] for lane in range(width)]
            return [
                Array(row[lane + width * g] for g in range(beats))[group] for lane in range(width)
            ]

        # ---- softmax: largest element, exponentials and their sum ------------------------------
        buffer = add(m, "buffer", Memory1R1W(config.buffer))
        seeks, from_buffer = Signal(), Signal()  # first pass, third pass
        depth_bits = config.buffer.depth.bit_length()
        token_beats = Signal(depth_bits + 1)
        m.d.comb += token_beats.eq(rows * beats)
        sought, powers, fetched = (Signal(depth_bits + 1) for _ in range(3))  # beats

        def within(count) -> list[Value]:
            """Which elements of beat ``count`` of a token lie within its length."""
            shift = (width - 1).bit_length()
            whole, part = count < length[shift:], count == length[shift:]
            return [whole | (part & _below(lane, length[:shift])) for lane in range(width)]

        # Largest: of a beat, then of all.
        a_slice = slice_of(work_a)
        best, best_valid = Signal(16, reset_less=True), Signal()
        best_wrong, wrong = Signal(reset_less=True), Signal()  # a NaN or +infinity
        top = Signal(16)  # key of the largest so far; 0 lies below that of every number
        keys, wrongs = [], []
        for word, inside in zip(a_slice, within(sought), strict=True):
            keys.append(Mux(inside, total_order_key(word), 0))
            special = word[:15] >= FP16.infinity
            negative_infinity = word == (FP16.sign_bit | FP16.infinity)
            wrongs.append(inside & special & ~negative_infinity)
        level = 0
        while len(keys) > 1:
            level += 1
            named = [Signal(16, name=f"key_{level}_{k}") for k in range(len(keys))]
            m.d.comb += [signal.eq(key) for signal, key in zip(named, keys, strict=True)]
            keys = [
                Mux(named[k] < named[k + 1], named[k + 1], named[k])
                for k in range(0, len(named), 2)
            ]
        seek = Signal()
        m.d.comb += seek.eq(work_valid & seeks)
        m.d.sync += [best_valid.eq(seek), best.eq(keys[0]), best_wrong.eq(Cat(wrongs).any())]
        with m.If(seek):
            m.d.sync += sought.eq(sought + 1)
        with m.If(best_valid):
            m.d.sync += [top.eq(Mux(top < best, best, top)), wrong.eq(wrong | best_wrong)]

        # Exponentials: into the buffer, and added up on the grid 2**-24.
        partial_bits = 25 + (width - 1).bit_length()
        total = Signal(25 + config.softmax_elements.bit_length())
        partial, partial_valid = Signal(partial_bits, reset_less=True), Signal()
        kept = Signal(data.ArrayLayout(16, width))
        addends = []
        for lane, inside in enumerate(within(powers)):
            m.d.comb += kept[lane].eq(Mux(inside, e[lane], 0))
            exponent = kept[lane][10:15]
            significand = Cat(kept[lane][:10], exponent.any())
            addend = Signal(25, name=f"addend_{lane}")
            m.d.comb += addend.eq(significand << Mux(exponent.any(), exponent - 1, 0)[:4])
            addends.append(addend)
        m.d.comb += [
            buffer.write_en.eq(e_valid),
            buffer.write_addr.eq(powers),
            buffer.write_data.eq(kept),
        ]
        m.d.sync += [partial_valid.eq(e_valid), partial.eq(sum(addends[1:], addends[0]))]
        with m.If(e_valid):
            m.d.sync += powers.eq(powers + 1)
        with m.If(partial_valid):
            m.d.sync += total.eq(total + partial)

        sum_bits = len(total) + 1
        to_float = add(
            m,
            "to_float",
            FixedToFloat(
                FixedToFloatConfig(
                    width=sum_bits, grid_exponents=(FP16.grid_exponent,), o=FP32, stages=2
                )
            ),
        )
        reciprocal = add(
            m, "reciprocal", FpReciprocal(FpReciprocalConfig(a=FP32, o=FP32, stages=10))
        )
        m.d.comb += [
            to_float.i.p.value.eq(Cat(total, Const(0, 1)).as_signed()),
            reciprocal.i.valid.eq(to_float.o.valid),
            to_float.o.ready.eq(reciprocal.i.ready),
            reciprocal.i.p.a.eq(to_float.o.p.y),
        ]

        # Read back: the RAM's output is the register that lanes take from.
        shown, fetch = Signal(), Signal()
        m.d.comb += [
            fetch.eq(from_buffer & (fetched != token_beats) & (~shown | lanes_ready)),
            buffer.read_en.eq(fetch),
            buffer.read_addr.eq(fetched),
        ]
        with m.If(~shown | lanes_ready):
            m.d.sync += shown.eq(fetch)
        with m.If(fetch):
            m.d.sync += fetched.eq(fetched + 1)

        # ---- operands of the lanes -------------------------------------------------------------
        upper_slice, b_slice = slice_of(upper_a), slice_of(work_b)
        sin_slice = slice_of(upper_b)
        multiplies, scaled_sum = Signal(), Signal()  # a * b; scalar * a + b
        for lane in range(width):
            a, b, other, sin = (
                a_slice[lane], b_slice[lane], upper_slice[lane], sin_slice[lane],
            )  # fmt: skip
            m.d.comb += [f_a[lane].eq(a), f_b[lane].eq(_ONE)]
            m.d.comb += [m_a[lane].eq(_MINUS_ZERO), m_b[lane].eq(_ONE)]
            with m.If(from_buffer):
                m.d.comb += f_a[lane].eq(buffer.read_data.word_select(lane, 16))
            with m.Elif(pair):
                # x_i cos - x_{i+h} sin, then x_{i+h} cos + x_i sin
                m.d.comb += [
                    f_a[lane].eq(Mux(upper, other, a)),
                    f_b[lane].eq(b),
                    m_a[lane].eq(Mux(upper, a, other)),
                    m_b[lane].eq(Cat(sin[:15], sin[15] ^ ~upper)),
                ]
            with m.Elif(subtracts):
                m.d.comb += [m_a[lane].eq(maximum), m_b[lane].eq(_MINUS_ONE)]
            with m.Elif(multiplies):
                m.d.comb += f_b[lane].eq(b)
            with m.Elif(scaled_sum):
                m.d.comb += [f_b[lane].eq(scalar), m_a[lane].eq(b)]
        m.d.comb += [
            lanes_valid.eq(Mux(from_buffer, shown, work_valid & ~seeks & ~scalar_sink)),
        ]

        # ---- functions of single words ---------------------------------------------------------
        pipeline = add(m, "functions", KllmFunctionPipeline(KllmFunctionPipelineConfig()))
        scale = add(m, "scale", FpMul(FpMulConfig(stages=1, tag_bits=1)))
        codebook = [
            [Signal(16, name=f"codebook_{name}_{j}", reset_less=True) for j in range(entries)]
            for name, entries in (("a", 1 << config.bits_a), ("b", 1 << config.bits_a))
        ]
        loaded = Signal(2)
        fills = Signal()  # tables are being filled
        entry, last_entry = Signal(config.bits_a + 1), Signal()
        filled = Signal(config.bits_a + 2)
        descriptors = [Signal(descriptor_layout, name=f"descriptor_{k}") for k in "ab"]
        outlier_queue = [
            add(m, f"outliers_{k}", StreamFifo(StreamFifoConfig(width=16, depth=_OUTLIERS_AHEAD)))
            for k in "ab"
        ]
        m.d.comb += [
            last_entry.eq(entry == (two_slots << config.bits_a) + ((1 << config.bits_a) - 1)),
            scale.i.p.a.eq(Mux(entry[-1], descriptors[1].scale, descriptors[0].scale)),
            scale.i.p.b.eq(Array([*codebook[0], *codebook[1]])[entry]),
            scale.i.p.tag.eq(entry[-1]),
            table_b.table.valid.eq(scale.o.valid & scale.o.p.tag),
            table_b.table.p.word.eq(scale.o.p.y),
            table_a.table.p.word.eq(pipeline.o.p.y),
            scale.o.ready.eq(Mux(scale.o.p.tag, table_b.table.ready, pipeline.i.ready)),
            pipeline.i.p.function.eq(function),
            table_a.outlier.p.word.eq(pipeline.o.p.y),
            table_b.outlier.valid.eq(outlier_queue[1].o.valid),
            table_b.outlier.p.word.eq(outlier_queue[1].o.p.data),
            outlier_queue[1].o.ready.eq(table_b.outlier.ready),
        ]
        scale_pending = Signal()
        m.d.comb += scale.i.valid.eq(scale_pending)
        with m.If(scale.i.valid & scale.i.ready):
            m.d.sync += [entry.eq(entry + 1), scale_pending.eq(~last_entry)]
        table_a_put = table_a.table.valid & table_a.table.ready
        table_b_put = table_b.table.valid & table_b.table.ready
        m.d.sync += filled.eq(filled + table_a_put + table_b_put)
        results_ready = Signal()  # of the row of results, in FUNCTION
        with m.If(fills):
            m.d.comb += [
                pipeline.i.valid.eq(scale.o.valid & ~scale.o.p.tag),
                pipeline.i.p.x.eq(scale.o.p.y),
                table_a.table.valid.eq(pipeline.o.valid),
                pipeline.o.ready.eq(table_a.table.ready),
            ]
        with m.Elif(is_slot):
            m.d.comb += [
                pipeline.i.valid.eq(outlier_queue[0].o.valid),
                pipeline.i.p.x.eq(outlier_queue[0].o.p.data),
                outlier_queue[0].o.ready.eq(pipeline.i.ready),
                table_a.outlier.valid.eq(pipeline.o.valid),
                pipeline.o.ready.eq(table_a.outlier.ready),
            ]
        with m.Else():
            m.d.comb += [
                pipeline.i.valid.eq(work_valid & scalar_sink),
                pipeline.i.p.x.eq(Array(work_a[e] for e in range(ROW_ELEMENTS))[beat[:4]]),
                pipeline.o.ready.eq(results_ready),
            ]
        m.d.comb += work_ready.eq(
            Mux(scalar_sink, pipeline.i.ready & ~fills & ~is_slot, seeks | lanes_ready)
        )

        # ---- entries and outliers of the slots ---------------------------------------------------
        slot_rows = Signal(range(config.slot_rows + 1))
        begin = Signal()
        entries = [
            add(
                m,
                f"entries_{k}",
                StreamFifo(
                    StreamFifoConfig(width=table_a.i.p.shape().size, depth=config.rows_ahead)
                ),
            )
            for k in "ab"
        ]
        m.d.comb += slot_rows.eq(rows)
        wanted = [slot_rows, Mux(two_slots, slot_rows, 0)]
        _fetch(
            m, "entries", begin, (slot_a, slot_b), wanted, config.slot_rows, "row",
            self.slot_entry_request, self.slot_entries, entries, config.rows_ahead,
        )  # fmt: skip
        wanted = [descriptors[0].outliers, Mux(two_slots, descriptors[1].outliers, 0)]
        _fetch(
            m, "outliers", begin, (slot_a, slot_b), wanted, config.outliers_max, "position",
            self.slot_outlier_request, self.slot_outlier, outlier_queue, _OUTLIERS_AHEAD,
        )  # fmt: skip
        tail = length[:4]
        for queue, table, name in zip(entries, (table_a, table_b), "ab", strict=True):
            at = Signal(11, name=f"entry_row_{name}")
            shown_entries = data.View(table.i.p.shape(), queue.o.p.data)
            whole = (at != slot_rows - 1) | (tail == 0)
            inside = Cat(whole | _below(k, tail) for k in range(ROW_ELEMENTS))
            m.d.comb += [
                table.i.valid.eq(queue.o.valid),
                queue.o.ready.eq(table.i.ready),
                table.i.p.value.eq(shown_entries.value),
                # Whatever stands behind the last element is not an outlier.
                table.i.p.outlier.eq(shown_entries.outlier & inside),
            ]
            with m.If(begin):
                m.d.sync += at.eq(0)
            with m.Elif(queue.o.valid & queue.o.ready):
                m.d.sync += at.eq(at + 1)

        # ---- rows of results ---------------------------------------------------------------------
        place = Signal(4)  # of the next element within the row
        result = Signal(ROW, reset_less=True)
        put, put_ready, row_done = Signal(), Signal(), Signal()
        last_place = Mux(scalar_sink, ROW_ELEMENTS - 1, ROW_ELEMENTS - width)
        row_end = Signal()
        m.d.comb += [
            row_end.eq(place == last_place),
            put_ready.eq(~row_end | ~self.write.valid | self.write.ready),
            sums_ready.eq(put_ready),
            results_ready.eq(put_ready),
            put.eq(Mux(scalar_sink, pipeline.o.valid & ~is_slot, sums_valid) & put_ready),
            row_done.eq(put & row_end),
            rows_d.advance.eq(row_done),
        ]
        written = Signal(ROW)
        for e_at in range(ROW_ELEMENTS):
            word = Signal(16, name=f"word_{e_at}")
            m.d.comb += word.eq(result[e_at])
            mine = Mux(scalar_sink, place == e_at, place == e_at // width * width)
            with m.If(mine):
                m.d.comb += word.eq(Mux(scalar_sink, pipeline.o.p.y, sums[e_at % width]))
            with m.If(put):
                m.d.sync += result[e_at].eq(word)
            beyond = rows_d.last_step & ~pair & (tail != 0) & ~_below(e_at, tail)
            m.d.comb += written[e_at].eq(Mux(beyond, 0, word))
        with m.If(put):
            m.d.sync += place.eq(Mux(row_end, 0, place + Mux(scalar_sink, 1, width)))
        write_valid = Signal()
        m.d.comb += self.write.valid.eq(write_valid)
        write_register = Signal(row_write_layout, reset_less=True)
        m.d.comb += self.write.payload.eq(write_register)
        with m.If(self.write.ready):
            m.d.sync += write_valid.eq(0)
        with m.If(row_done):
            m.d.sync += [
                write_valid.eq(1),
                write_register.row.eq(rows_d.row),
                write_register.word.eq(written),
            ]

        # ---- NEGATED_MEAN ---------------------------------------------------------------------
        mean = add(m, "mean", FpMul(FpMulConfig(a=FP32, b=FP32, o=FP16, stages=2)))
        m.d.comb += [
            mean.i.p.a.eq(descriptors[0].mean ^ FP32.sign_bit),
            mean.i.p.b.eq(descriptors[0].rms_reciprocal),
            mean.o.ready.eq(1),
        ]

        # ---- commands ---------------------------------------------------------------------------
        check = Signal(2)
        checked_first = Array([a_first, b_first, d_first, b_second])
        checked_stride = Array([a_stride, b_stride, d_stride, Const(0, 16)])
        half_rows = steps  # of a pair: half a head
        checked_rows = Array([rows, Mux(pair, half_rows, rows), rows, half_rows])
        in_use = Array([is_vector, uses_b & is_vector, Const(1), pair])
        end = Signal(26)
        m.d.comb += end.eq(
            checked_first[check] + checked_stride[check] * (tokens - 1)[:8] + checked_rows[check]
        )
        asked = Signal()
        second_slot = Signal()
        token = Signal(8)
        row_a, row_d = Signal(16), Signal(16)
        is_softmax, is_codebook, derives = Signal(), Signal(), Signal()
        length_of = {
            code: value(code, "length")
            for code in (
                Opcode.BINARY, Opcode.AXPY, Opcode.SOFTMAX, Opcode.FUNCTION, Opcode.ACTIVATE,
                Opcode.GLU,
            )
        }  # fmt: skip
        descriptor = self.slot_descriptor.p
        m.d.comb += self.slot_slot.p.slot.eq(Mux(second_slot, slot_b, slot_a))
        no_slot = [number >= config.slots for number in (slot_a, slot_b)]

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.command.ready.eq(1)
                m.d.sync += [held.eq(self.command.payload), faults.eq(0), bad.eq(0)]
                with m.If(self.command.valid):
                    m.next = "DECODE"

            with m.State("DECODE"):
                m.d.sync += [
                    tokens.eq(1), pair.eq(0), uses_b.eq(0), scalar_sink.eq(0), is_vector.eq(1),
                    is_slot.eq(0), two_slots.eq(0), is_softmax.eq(0), is_codebook.eq(0),
                    derives.eq(0), multiplies.eq(0), scaled_sum.eq(0), check.eq(0), token.eq(0),
                    a_stride.eq(0), b_stride.eq(0), d_stride.eq(0), second_slot.eq(0),
                    asked.eq(0), seeks.eq(0), subtracts.eq(0), scales.eq(0), exponentials.eq(0),
                    from_buffer.eq(0), slot_a.eq(0), slot_b.eq(0), length.eq(1),
                ]  # fmt: skip
                m.next = "LENGTH"
                with m.Switch(opcode):
                    with m.Case(Opcode.BINARY):
                        o = Opcode.BINARY
                        m.d.sync += [
                            length.eq(length_of[o]), tokens.eq(value(o, "tokens")), uses_b.eq(1),
                            a_first.eq(value(o, "a")), a_stride.eq(value(o, "a_stride")),
                            b_first.eq(value(o, "b")), b_stride.eq(value(o, "b_stride")),
                            d_first.eq(value(o, "dst")), d_stride.eq(value(o, "dst_stride")),
                            multiplies.eq(value(o, "op") == Binary.MULTIPLY),
                            scaled_sum.eq(value(o, "op") != Binary.MULTIPLY),
                            scalar.eq(_ONE), bad.eq(value(o, "tokens") == 0),
                        ]  # fmt: skip
                    with m.Case(Opcode.AXPY):
                        o = Opcode.AXPY
                        m.d.sync += [
                            length.eq(length_of[o]), uses_b.eq(1), scaled_sum.eq(1),
                            a_first.eq(value(o, "a")), b_first.eq(value(o, "b")),
                            d_first.eq(value(o, "dst")), scalar.eq(value(o, "immediate")),
                            derives.eq(value(o, "scalar") == Scalar.NEGATED_MEAN),
                            slot_a.eq(value(o, "slot")),
                        ]  # fmt: skip
                    with m.Case(Opcode.ROTARY):
                        o = Opcode.ROTARY
                        head_size = value(o, "head_size")
                        m.d.sync += [
                            length.eq(head_size), tokens.eq(value(o, "heads")), uses_b.eq(1),
                            pair.eq(1), a_first.eq(value(o, "src")), a_stride.eq(head_size >> 4),
                            b_first.eq(value(o, "cos")), b_second.eq(value(o, "sin")),
                            d_first.eq(value(o, "dst")), d_stride.eq(head_size >> 4),
                            bad.eq((value(o, "heads") == 0) | head_size[:5].any()),
                        ]  # fmt: skip
                    with m.Case(Opcode.SOFTMAX):
                        o = Opcode.SOFTMAX
                        m.d.sync += [
                            length.eq(length_of[o]), tokens.eq(value(o, "tokens")),
                            is_softmax.eq(1),
                            a_first.eq(value(o, "src")), a_stride.eq(value(o, "stride")),
                            d_first.eq(value(o, "dst")), d_stride.eq(value(o, "dst_stride")),
                            bad.eq(
                                (value(o, "tokens") == 0)
                                | (length_of[o] > config.softmax_elements)
                            ),
                        ]  # fmt: skip
                    with m.Case(Opcode.FUNCTION):
                        o = Opcode.FUNCTION
                        m.d.sync += [
                            length.eq(length_of[o]), scalar_sink.eq(1),
                            a_first.eq(value(o, "src")), d_first.eq(value(o, "dst")),
                            function.eq(value(o, "function")),
                        ]  # fmt: skip
                    with m.Case(Opcode.FUNCTION_CODEBOOK):
                        o = Opcode.FUNCTION_CODEBOOK
                        m.d.sync += [
                            is_codebook.eq(1), a_first.eq(value(o, "src")),
                            d_first.eq(value(o, "src")),
                        ]  # fmt: skip
                    with m.Case(Opcode.ACTIVATE):
                        o = Opcode.ACTIVATE
                        m.d.sync += [
                            length.eq(length_of[o]), is_slot.eq(1), is_vector.eq(0),
                            slot_a.eq(value(o, "slot")), d_first.eq(value(o, "dst")),
                            function.eq(value(o, "function")),
                            bad.eq(length_of[o] > config.slot_elements),
                        ]  # fmt: skip
                    with m.Case(Opcode.GLU):
                        o = Opcode.GLU
                        m.d.sync += [
                            length.eq(length_of[o]), is_slot.eq(1), is_vector.eq(0),
                            two_slots.eq(1), uses_b.eq(1), multiplies.eq(1),
                            slot_a.eq(value(o, "slot_a")), slot_b.eq(value(o, "slot_b")),
                            d_first.eq(value(o, "dst")), function.eq(value(o, "function")),
                            bad.eq(length_of[o] > config.slot_elements),
                        ]  # fmt: skip
                    with m.Default():
                        m.d.sync += faults.eq(int(CommandStatus.MALFORMED))
                        m.next = "STATUS"

            with m.State("LENGTH"):
                m.d.sync += [
                    rows.eq((length + (ROW_ELEMENTS - 1)) >> 4),
                    steps.eq(Mux(pair, length >> 5, (length + (ROW_ELEMENTS - 1)) >> 4)),
                    walk_tokens.eq(Mux(is_softmax, 1, tokens)),
                    row_a.eq(a_first), row_d.eq(d_first),
                ]  # fmt: skip
                uses_slot = is_slot | derives
                with m.If((length == 0) | (uses_slot & no_slot[0]) | (two_slots & no_slot[1])):
                    m.d.sync += bad.eq(1)
                m.next = "CHECK"

            with m.State("CHECK"):
                m.d.sync += check.eq(check + 1)
                with m.If(in_use[check] & (end > config.vector_rows)):
                    m.d.sync += bad.eq(1)
                with m.If(check == 3):
                    m.next = "JUDGE"

            with m.State("JUDGE"):
                with m.If(bad):
                    m.d.sync += faults.eq(int(CommandStatus.RANGE))
                    m.next = "STATUS"
                with m.Elif(is_slot & (~loaded[0] | (two_slots & ~loaded[1]))):
                    m.d.sync += faults.eq(int(CommandStatus.CODEBOOK_MISSING))
                    m.next = "STATUS"
                with m.Elif(is_slot | derives):
                    m.next = "DESCRIPTOR"
                with m.Elif(is_codebook):
                    m.d.sync += rows_a.start(a_first, a_first, 0)
                    m.next = "CODEBOOK"
                with m.Elif(is_softmax):
                    m.next = "TOKEN"
                with m.Else():
                    m.next = "START"

            with m.State("DESCRIPTOR"):
                m.d.comb += [self.slot_slot.valid.eq(~asked), self.slot_descriptor.ready.eq(asked)]
                with m.If(self.slot_slot.valid & self.slot_slot.ready):
                    m.d.sync += asked.eq(1)
                with m.If(self.slot_descriptor.valid & self.slot_descriptor.ready):
                    m.d.sync += [asked.eq(0), second_slot.eq(1)]
                    with m.If(second_slot):
                        m.d.sync += descriptors[1].eq(descriptor)
                    with m.Else():
                        m.d.sync += descriptors[0].eq(descriptor)
                    other = descriptor.integer | (descriptor.length != length)
                    with m.If(~descriptor.valid | (is_slot & other)):
                        m.d.sync += faults.eq(int(CommandStatus.SLOT_MISMATCH))
                    with m.If(~two_slots | second_slot):
                        m.next = "MATCH"
            with m.State("MATCH"):
                with m.If(faults.any()):
                    m.next = "STATUS"
                with m.Elif(derives):
                    m.next = "MEAN"
                with m.Else():
                    m.d.sync += [
                        fills.eq(1), scale_pending.eq(1), entry.eq(0), filled.eq(0),
                    ]  # fmt: skip
                    m.next = "TABLES"

            with m.State("MEAN"):
                m.d.comb += mean.i.valid.eq(~asked)
                m.d.sync += asked.eq(1)
                with m.If(mean.o.valid):
                    m.d.sync += scalar.eq(mean.o.p.y)
                    m.next = "START"
            with m.State("TABLES"):
                with m.If(filled == (1 << config.bits_a) << two_slots):
                    m.d.sync += fills.eq(0)
                    m.next = "START"

            with m.State("CODEBOOK"):
                m.d.comb += load_codebook.eq(1)
                which = value(Opcode.FUNCTION_CODEBOOK, "table")
                with m.If(queue_a.o.valid):
                    for k in range(2):
                        with m.If(which == k):
                            m.d.sync += [
                                word.eq(queue_a.o.p.data.word_select(j, 16))
                                for j, word in enumerate(codebook[k])
                            ]
                            m.d.sync += loaded[k].eq(1)
                    m.next = "STATUS"

            with m.State("START"):
                m.d.comb += begin.eq(is_slot)
                with m.If(is_vector):
                    m.d.sync += rows_a.start(a_first, a_first + steps, a_stride)
                    with m.If(uses_b):
                        m.d.sync += rows_b.start(b_first, b_second, b_stride)
                m.d.sync += rows_d.start(d_first, d_first + steps, d_stride)
                m.next = "RUN"
            with m.State("RUN"):
                with m.If(~rows_d.active & ~write_valid):
                    m.next = "STATUS"

            # SOFTMAX, token by token.
            with m.State("TOKEN"):
                m.d.sync += [
                    seeks.eq(1), from_buffer.eq(0), scales.eq(0), sought.eq(0), top.eq(0),
                    wrong.eq(0), *rows_a.start(row_a, row_a, 0),
                ]  # fmt: skip
                m.next = "LARGEST"
            with m.State("LARGEST"):
                with m.If((sought == token_beats) & ~best_valid):
                    m.next = "LARGEST_FOUND"
            with m.State("LARGEST_FOUND"):
                m.d.sync += [
                    seeks.eq(0), maximum.eq(Mux(top[15], top ^ 0x8000, ~top)),
                    powers.eq(0), total.eq(0),
                ]  # fmt: skip
                with m.If(wrong | (top <= _LOWEST_KEY)):
                    m.d.sync += faults.eq(int(CommandStatus.NONFINITE))
                    m.next = "NEXT"
                with m.Else():
                    m.d.sync += [
                        subtracts.eq(1), exponentials.eq(1), *rows_a.start(row_a, row_a, 0),
                    ]  # fmt: skip
                    m.next = "POWERS"
            with m.State("POWERS"):
                with m.If((powers == token_beats) & ~partial_valid):
                    m.d.sync += [subtracts.eq(0), exponentials.eq(0)]
                    m.next = "SUM"
            with m.State("SUM"):
                m.d.comb += to_float.i.valid.eq(1)
                m.next = "RECIPROCAL"
            with m.State("RECIPROCAL"):
                m.d.comb += reciprocal.o.ready.eq(1)
                with m.If(reciprocal.o.valid):
                    m.d.sync += [
                        r.eq(reciprocal.o.p.y), scales.eq(1), from_buffer.eq(1), fetched.eq(0),
                        *rows_d.start(row_d, row_d, 0),
                    ]  # fmt: skip
                    m.next = "SCALE"
            with m.State("SCALE"):
                with m.If(~rows_d.active):
                    m.next = "NEXT"
            with m.State("NEXT"):
                m.d.sync += [
                    token.eq(token + 1), row_a.eq(row_a + a_stride), row_d.eq(row_d + d_stride),
                ]  # fmt: skip
                m.next = "TOKEN"
                with m.If(token == tokens - 1):
                    m.next = "RUN"

            with m.State("STATUS"):
                m.d.comb += self.status.valid.eq(1)
                with m.If(self.status.ready):
                    m.next = "IDLE"
        return m


def _fetch(m: Module, name, begin, slots, wanted, most, field, request, answer, queues, depth):
    """Asks for ``wanted[k]`` words (``most`` at most) of slot k, in turn, and fills the queues.

    Asks only when the queue (``depth`` words) has room. ``order`` remembers whose an answer is.
    """
    left = [Signal(range(most + 1), name=f"{name}_left_{k}") for k in "ab"]
    at = [Signal(range(most + 1), name=f"{name}_at_{k}") for k in "ab"]
    valid, free, turn = Signal(), Signal(), Signal()
    payload = Signal(request.p.shape(), reset_less=True, name=f"{name}_asked")
    chosen, choose = Signal(), Signal()
    order = add(m, f"{name}_order", StreamFifo(StreamFifoConfig(width=1, depth=2 * depth)))
    m.d.comb += [
        request.valid.eq(valid),
        request.payload.eq(payload),
        free.eq(~valid | request.ready),
    ]
    may = []
    for k in range(2):
        room = Signal(range(depth + 1), name=f"{name}_taken_{k}")
        take = free & choose & (chosen == k)
        given = queues[k].o.valid & queues[k].o.ready
        m.d.sync += room.eq(room + take - given)
        may.append((left[k] != 0) & (room != depth))
        with m.If(begin):
            m.d.sync += [left[k].eq(wanted[k]), at[k].eq(0)]
        with m.Elif(take):
            m.d.sync += [left[k].eq(left[k] - 1), at[k].eq(at[k] + 1)]
    m.d.comb += [
        choose.eq(may[0] | may[1]),
        chosen.eq(Mux(turn, may[1], ~may[0])),
        order.i.valid.eq(free & choose),
        order.i.p.data.eq(chosen),
        order.i.p.last.eq(0),
    ]
    with m.If(free):
        m.d.sync += valid.eq(choose)
        with m.If(choose):
            m.d.sync += [
                turn.eq(~chosen),
                payload.slot.eq(Mux(chosen, slots[1], slots[0])),
                payload[field].eq(Mux(chosen, at[1], at[0])),
            ]
    m.d.comb += [answer.ready.eq(order.o.valid), order.o.ready.eq(answer.valid)]
    for k in range(2):
        m.d.comb += [
            queues[k].i.valid.eq(answer.valid & order.o.valid & (order.o.p.data == k)),
            queues[k].i.p.data.eq(answer.payload),
            queues[k].i.p.last.eq(0),
        ]


def _below(position: int, count) -> Value:
    """``position < count``; the highest position never is."""
    return Const(0, 1) if position == (1 << len(count)) - 1 else position < count


def _room(m: Module, name: str, depth: int, request, given) -> Value:
    """Whether one more answer fits a queue that ``given`` says to have lost one."""
    taken = Signal(range(depth + 1), name=f"{name}_taken")
    m.d.sync += taken.eq(taken + (request.valid & request.ready) - given)
    return taken != depth
