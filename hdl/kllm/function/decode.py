"""Commands to jobs."""

import dataclasses

from amaranth import Array, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, nested
from golden.fp16.format import FP16
from golden.index.format import K_MAX
from golden.kllm.config import FunctionShape, SlotShape, VectorShape
from golden.kllm.format import Operation
from golden.kllm.isa import ROW_ELEMENTS, Binary, CommandStatus, Function, Opcode, Scalar
from golden.kllm.timing import function_decode
from golden.timing import Timing
from hdl.bits import any_of
from hdl.block import Block, FieldOf, Tier
from hdl.kllm.engine import command_layout, command_stream, operand
from hdl.kllm.function.job import Kind, job_layout
from hdl.kllm.function.vector_lanes import BINARIES
from hdl.ports import Out

_ONE = FP16.bias << FP16.frac_bits
_WIRES = ("status", "scalar", "table")  # fields of a job that are made of the command as held
_REGISTERS = [name for name in job_layout.members if name not in _WIRES]
_OPERATIONS = {
    Binary.ADD: Operation.SUM,
    Binary.MULTIPLY: Operation.PRODUCT,
    Binary.MINIMUM: Operation.MINIMUM,
    Binary.MAXIMUM: Operation.MAXIMUM,
}
_registers_layout = data.StructLayout({name: job_layout.members[name] for name in _REGISTERS})


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmFunctionDecodeConfig(Config):
    """The memories that commands may reach, and the longest row."""

    vectors: VectorShape = nested(VectorShape, "the vector memory")
    slot: SlotShape = nested(SlotShape, "the slots")
    softmax_elements: int = bounded(4096, ROW_ELEMENTS, K_MAX, "longest row of SOFTMAX")
    extra: FunctionShape = nested(FunctionShape, "functions that not every machine has")


class KllmFunctionDecode(Block):
    """A command of Unit.FUNCTION to its job, with its ranges checked.

    | condition | status of the job |
    |---|---|
    | the opcode is of another unit | MALFORMED |
    | no tokens, no elements, rows, slots or lengths beyond the configuration | RANGE |
    | a function, or an operation of BINARY, that the configuration lacks | RANGE |
    | else | 0 |

    With a status the other fields are unspecified. ``job`` stays offered while the job runs and
    its transfer ends it: the next command is taken after that.

    Latency: command to job 7 cycles. Throughput: one command per job. No
    combinational path leads from an input to an output. Nothing rounds. Golden:
    golden.kllm.functional.execute.

    A head that is not a multiple of 32 elements is RANGE too. One adder checks the end of each
    vector in turn: a, b, the destination, and the second vector of b.
    """

    tier = Tier.PART
    golden = "golden.kllm.functional:execute"
    configs = FieldOf("kllm_functional_unit", "decode")

    def __init__(self, config: KllmFunctionDecodeConfig):
        super().__init__(
            config,
            {
                "command": command_stream(),
                "job": Out(stream.Signature(job_layout), "The same, decoded and checked."),
            },
        )

    @property
    def timing(self) -> Timing:
        return function_decode()

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        held = Signal(command_layout, reset_less=True)
        job = Signal(_registers_layout, reset_less=True)
        bad = Signal()
        malformed = Signal()
        check = Signal(2)
        status = Mux(bad, int(CommandStatus.RANGE), 0)
        m.d.comb += [
            *(Value.cast(self.job.p[name]).eq(Value.cast(job[name])) for name in _REGISTERS),
            self.job.p.status.eq(Mux(malformed, int(CommandStatus.MALFORMED), status)),
            # These take one form each.
            self.job.p.scalar.eq(
                Mux(
                    held.opcode == Opcode.AXPY, operand(held, Opcode.AXPY, "immediate"), _ONE
                )
            ),
            self.job.p.table.eq(operand(held, Opcode.FUNCTION_CODEBOOK, "table")),
        ]  # fmt: skip
        with m.FSM():
            with m.State("COMMAND"):
                m.d.comb += self.command.ready.eq(1)
                m.d.sync += [held.eq(self.command.payload), bad.eq(0), malformed.eq(0)]
                with m.If(self.command.valid):
                    m.next = "DECODE"
            with m.State("DECODE"):
                m.d.sync += check.eq(0)
                m.next = "LENGTH"
                _decode(m, held, job, bad, malformed, config)
            with m.State("LENGTH"):
                rows = (job.length + (ROW_ELEMENTS - 1)) >> 4
                is_pair = job.operation == Operation.ROTATE
                m.d.sync += [job.rows.eq(rows), job.steps.eq(Mux(is_pair, job.length >> 5, rows))]
                uses_slot = (job.kind == Kind.SLOTS) | job.derives
                no_slot = uses_slot & (job.slot_a >= config.slot.slots)
                no_slot |= job.two_slots & (job.slot_b >= config.slot.slots)
                with m.If((job.length == 0) | no_slot):
                    m.d.sync += bad.eq(1)
                m.next = "CHECK"
            with m.State("CHECK"):
                m.d.sync += check.eq(check + 1)
                with m.If(_is_outside(m, job, check, config.vectors.rows)):
                    m.d.sync += bad.eq(1)
                with m.If(check == 3):
                    m.next = "JOB"
            with m.State("JOB"):
                m.d.comb += self.job.valid.eq(1)
                with m.If(self.job.ready):
                    m.next = "COMMAND"
        return m


def _decode(m: Module, held, job, bad: Signal, malformed: Signal, config) -> None:
    """The fields of ``job`` that the operands give; ``bad``: some operand is out of its range."""

    def value(opcode: Opcode, name: str) -> Value:
        return operand(held, opcode, name)

    def fields(**values) -> None:
        m.d.sync += [Value.cast(job[name]).eq(each) for name, each in values.items()]

    def lacks_function(opcode: Opcode) -> Value:
        function = value(opcode, "function")
        there = (function == each for each in config.extra.tabled)
        return (function > Function.RSQRT) & ~any_of([Const(0, 1), *there])

    fields(
        kind=Kind.ROWS, operation=Operation.COPY, derives=0, two_slots=0, length=1, tokens=1,
        slot_a=0, slot_b=0, a_stride=0, b_stride=0, d_stride=0,
    )  # fmt: skip
    with m.Switch(held.opcode):
        with m.Case(Opcode.BINARY):
            o = Opcode.BINARY
            fields(
                operation=Array(_OPERATIONS[each] for each in Binary)[value(o, "op")],
                length=value(o, "length"), tokens=value(o, "tokens"),
                a_first=value(o, "a"), a_stride=value(o, "a_stride"),
                b_first=value(o, "b"), b_stride=value(o, "b_stride"),
                d_first=value(o, "dst"), d_stride=value(o, "dst_stride"),
            )  # fmt: skip
            lacks = Const(0) if config.extra.bounds else value(o, "op") > Binary.MULTIPLY
            m.d.sync += bad.eq((value(o, "tokens") == 0) | lacks)
        with m.Case(Opcode.AXPY):
            o = Opcode.AXPY
            fields(
                operation=Operation.SUM, length=value(o, "length"),
                a_first=value(o, "a"), b_first=value(o, "b"), d_first=value(o, "dst"),
                derives=value(o, "scalar") == Scalar.NEGATED_MEAN, slot_a=value(o, "slot"),
            )  # fmt: skip
        with m.Case(Opcode.ROTARY):
            o = Opcode.ROTARY
            head_size = value(o, "head_size")
            fields(
                operation=Operation.ROTATE, length=head_size, tokens=value(o, "heads"),
                a_first=value(o, "src"), a_stride=head_size >> 4,
                b_first=value(o, "cos"), b_second=value(o, "sin"),
                d_first=value(o, "dst"), d_stride=head_size >> 4,
            )  # fmt: skip
            m.d.sync += bad.eq((value(o, "heads") == 0) | head_size[:5].any())
        with m.Case(Opcode.SOFTMAX):
            o = Opcode.SOFTMAX
            length = value(o, "length")
            fields(
                kind=Kind.SOFTMAX, operation=Operation.SCORE, length=length,
                tokens=value(o, "tokens"), a_first=value(o, "src"), a_stride=value(o, "stride"),
                d_first=value(o, "dst"), d_stride=value(o, "dst_stride"),
            )  # fmt: skip
            m.d.sync += bad.eq((value(o, "tokens") == 0) | (length > config.softmax_elements))
        with m.Case(Opcode.FUNCTION):
            o = Opcode.FUNCTION
            fields(
                operation=Operation.ELEMENT, length=value(o, "length"), a_first=value(o, "src"),
                d_first=value(o, "dst"), function=value(o, "function"),
            )  # fmt: skip
            m.d.sync += bad.eq(lacks_function(o))
        with m.Case(Opcode.FUNCTION_CODEBOOK):
            o = Opcode.FUNCTION_CODEBOOK
            fields(kind=Kind.CODEBOOK, a_first=value(o, "src"), d_first=value(o, "src"))
        with m.Case(Opcode.ACTIVATE):
            o = Opcode.ACTIVATE
            fields(
                kind=Kind.SLOTS, length=value(o, "length"), slot_a=value(o, "slot"),
                d_first=value(o, "dst"), function=value(o, "function"),
            )  # fmt: skip
            m.d.sync += bad.eq((value(o, "length") > config.slot.elements) | lacks_function(o))
        with m.Case(Opcode.GLU):
            o = Opcode.GLU
            fields(
                kind=Kind.SLOTS, operation=Operation.PRODUCT, two_slots=1,
                length=value(o, "length"), slot_a=value(o, "slot_a"), slot_b=value(o, "slot_b"),
                d_first=value(o, "dst"), function=value(o, "function"),
            )  # fmt: skip
            m.d.sync += bad.eq((value(o, "length") > config.slot.elements) | lacks_function(o))
        with m.Default():
            m.d.sync += malformed.eq(1)


def _is_outside(m: Module, job, check: Signal, vector_rows: int) -> Value:
    """Vector ``check`` (a, b, destination, second of b) is in use and ends beyond the memory."""
    pair = job.operation == Operation.ROTATE
    sums = any_of(job.operation == each for each in BINARIES)
    reads = job.kind != Kind.SLOTS
    first = Array([job.a_first, job.b_first, job.d_first, job.b_second])[check]
    stride = Array([job.a_stride, job.b_stride, job.d_stride, Const(0, 16)])[check]
    # Of a pair, b is half a head.
    rows = Array([job.rows, Mux(pair, job.steps, job.rows), job.rows, job.steps])[check]
    in_use = Array([reads, reads & (sums | pair), Const(1), pair])[check]
    end = Signal(26)
    m.d.comb += end.eq(first + stride * (job.tokens - 1)[:8] + rows)
    return in_use & (end > vector_rows)
