"""The control of the functional unit: it decides what happens when."""

import dataclasses

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, nested
from golden.fp16.format import FP16, FP32
from golden.kllm.format import Operation
from golden.kllm.isa import ROW_ELEMENTS, CommandStatus
from golden.kllm.timing import function_control
from golden.timing import Timing
from hdl.attention.softmax import AttentionSoftmaxConfig
from hdl.block import Block, FieldOf, Tier
from hdl.children import add
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.kinds import index_of, mask_of
from hdl.kllm.engine import descriptor_layout, status_stream
from hdl.kllm.function.job import (
    Kind,
    job_layout,
    result_walk_layout,
    row_walk_layout,
)
from hdl.kllm.function.slot_fetch import KllmSlotFetchConfig
from hdl.kllm.function.slot_rows import KllmSlotRowsConfig
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmFunctionControlConfig(Config):
    """The phases that control starts."""

    softmax: AttentionSoftmaxConfig = nested(AttentionSoftmaxConfig)
    entries: KllmSlotFetchConfig = nested(KllmSlotFetchConfig)
    outliers: KllmSlotFetchConfig = nested(KllmSlotFetchConfig)
    slots: KllmSlotRowsConfig = nested(KllmSlotRowsConfig)


class KllmFunctionControl(Block):
    """Runs one job after another: starts the phases, and gives the status when all are idle.

    The first condition that holds is the status: that of the job, CODEBOOK_MISSING, SLOT_MISMATCH.
    Nothing is read or written then. SOFTMAX leaves out the rows that are bad and gives NONFINITE.
    The scalar of AXPY may be ``rne16(-mean * rms_reciprocal)`` of the slot's descriptor.

    Contract of the phases: a phase is idle when control offers it work, and takes it at once.
    ``idle`` is high when every row of results was taken.

    Latency: job to the walks of a job on rows 1 cycle, ``idle`` to status 1 cycle. No
    combinational path leads from an input to an output, but from ``status.ready`` to
    ``job.ready`` and from ``job``, ``maximum`` and ``total`` to what they start. Rounding: rne16
    of the negated mean. Source: KLLM, section III-C. Golden: golden.kllm.functional.execute.

    | job | what control starts, in order |
    |---|---|
    | on rows | row readers a and b, result rows |
    | AXPY with a derived scalar | a descriptor, whose scalar it computes; then as on rows |
    | on slots | a descriptor of each slot; the tables; entries, outliers, result rows |
    | SOFTMAX, each token | the row for the maximum, then for differences; then result rows |
    | codebook | row reader a; the row goes into the table |

    A slot that is empty, of integers, or of another length gives SLOT_MISMATCH. The transfer of the
    job is that of its status, so its fields are constant while it runs.
    """

    tier = Tier.PART
    golden = "golden.kllm.functional:execute"
    default = KllmFunctionControlConfig()
    configs = FieldOf("kllm_functional_unit", "control")

    def __init__(self, config: KllmFunctionControlConfig):
        walk = stream.Signature(row_walk_layout)
        scales = Payload(scale=(data.ArrayLayout(FP16.bits, 2), "FP16 scale of each slot", FP16))
        maximum = Payload(
            word=(FP16.bits, "FP16 word", FP16), bad=(1, "the row has no result and ends here")
        )
        super().__init__(
            config,
            {
                "job": In(
                    stream.Signature(job_layout),
                    "Jobs; each is offered until its status was taken.",
                ),
                "status": status_stream(),
                "slot_slot": Out(
                    stream.Signature(Payload(slot=(8, "number of the slot", index_of("slots")))),
                    "Descriptors wanted.",
                ),
                "slot_descriptor": In(
                    stream.Signature(descriptor_layout), "Those descriptors, in order."
                ),
                "loaded": In(2, "One bit per codebook that was loaded.", mask_of("codebooks")),
                "operation": Out(Operation, "What the lanes compute."),
                "scalar": Out(FP16.bits, "Scalar of the lanes.", FP16),
                "scale": Out(FP32.bits, "Scale of the lanes, FP32.", FP32),
                "walk_a": Out(walk, "Rows of the first operand."),
                "walk_b": Out(walk, "Rows of the second operand."),
                "walk_d": Out(stream.Signature(result_walk_layout), "Rows of results."),
                "idle": In(1, "Every row of results was taken."),
                "entries": Out(
                    stream.Signature(config.entries.walk_layout), "Entries of the slots."
                ),
                "outliers": Out(
                    stream.Signature(config.outliers.walk_layout), "Outliers of the slots."
                ),
                "shape": Out(config.slots.shape_layout, "What the words of the slots are."),
                "load": Out(
                    stream.Signature(
                        Payload(table=(1, "number of the codebook", index_of("codebooks")))
                    ),
                    "The next row is a codebook.",
                ),
                "fill": Out(stream.Signature(scales), "Scales of the slots."),
                "row": Out(stream.Signature(config.softmax.row_layout), "Begins a row of softmax."),
                "maximum": In(stream.Signature(maximum), "Largest score of the row."),
                "total": In(
                    stream.Signature(config.softmax.total_layout),
                    "Sum of the weights and its reciprocal.",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return function_control()

    def elaborate(self, platform) -> Module:
        m = Module()
        job = self.job.p
        faults = Signal(len(CommandStatus))
        operation = Signal(Operation)
        scalar = Signal(FP16.bits, reset_less=True)
        asked = Signal()
        second_slot = Signal()
        descriptors = [
            Signal(descriptor_layout, name=f"descriptor_{k}", reset_less=True) for k in "ab"
        ]
        is_slots = Signal()
        begins = Signal()
        m.d.comb += [
            is_slots.eq(job.kind == Kind.SLOTS),
            self.status.p.status.eq(faults),
            self.operation.eq(operation),
            self.scalar.eq(scalar),
            self.entries.valid.eq(begins & is_slots),
            self.outliers.valid.eq(begins & is_slots),
        ]
        row_a, row_d = self._payloads(m, descriptors, second_slot)
        mean = add(m, "mean", FpMul(FpMulConfig(a=FP32, b=FP32, o=FP16, stages=2)))
        m.d.comb += [
            mean.i.p.a.eq(descriptors[0].mean ^ FP32.sign_bit),
            mean.i.p.b.eq(descriptors[0].rms_reciprocal),
            mean.o.ready.eq(1),
        ]
        with m.FSM():
            with m.State("JOB"):
                m.d.sync += [
                    faults.eq(job.status), operation.eq(job.operation), scalar.eq(job.scalar),
                    row_a.eq(job.a_first), row_d.eq(job.d_first), asked.eq(0), second_slot.eq(0),
                ]  # fmt: skip
                with m.If(self.job.valid):
                    m.next = "START"
                    with m.If(job.status.any()):
                        m.next = "STATUS"
                    with m.Elif(is_slots & ~(self.loaded[0] & (self.loaded[1] | ~job.two_slots))):
                        m.d.sync += faults.eq(int(CommandStatus.CODEBOOK_MISSING))
                        m.next = "STATUS"
                    with m.Elif(is_slots | job.derives):
                        m.next = "DESCRIPTOR"
                    with m.Elif(job.kind == Kind.CODEBOOK):
                        m.d.comb += self.walk_a.valid.eq(1)
                        m.next = "CODEBOOK"
                    with m.Elif(job.kind == Kind.SOFTMAX):
                        m.next = "TOKEN"
            with m.State("CODEBOOK"):
                m.d.comb += self.load.valid.eq(1)
                with m.If(self.load.ready):
                    m.next = "STATUS"
            with m.State("DESCRIPTOR"):
                descriptor = self.slot_descriptor.p
                m.d.comb += [self.slot_slot.valid.eq(~asked), self.slot_descriptor.ready.eq(asked)]
                with m.If(self.slot_slot.valid & self.slot_slot.ready):
                    m.d.sync += asked.eq(1)
                with m.If(self.slot_descriptor.valid & self.slot_descriptor.ready):
                    m.d.sync += [asked.eq(0), second_slot.eq(1)]
                    with m.If(second_slot):
                        m.d.sync += descriptors[1].eq(descriptor)
                    with m.Else():
                        m.d.sync += descriptors[0].eq(descriptor)
                    other = descriptor.integer | (descriptor.length != job.length)
                    with m.If(~descriptor.valid | (is_slots & other)):
                        m.d.sync += faults.eq(int(CommandStatus.SLOT_MISMATCH))
                    with m.If(~job.two_slots | second_slot):
                        m.next = "MATCH"
            with m.State("MATCH"):
                m.next = "TABLES"
                with m.If(faults.any()):
                    m.next = "STATUS"
                with m.Elif(job.derives):
                    m.next = "MEAN"
            with m.State("MEAN"):
                m.d.comb += mean.i.valid.eq(~asked)
                m.d.sync += asked.eq(1)
                with m.If(mean.o.valid):
                    m.d.sync += scalar.eq(mean.o.p.y)
                    m.next = "START"
            with m.State("TABLES"):
                m.d.comb += self.fill.valid.eq(1)
                with m.If(self.fill.ready):
                    m.next = "START"
            with m.State("START"):
                uses_b = (operation != Operation.COPY) & (operation != Operation.ELEMENT)
                m.d.comb += [
                    begins.eq(1),
                    self.walk_a.valid.eq(~is_slots),
                    self.walk_b.valid.eq(~is_slots & uses_b),
                    self.walk_d.valid.eq(1),
                ]
                m.next = "RUN"
            with m.State("RUN"):
                with m.If(self.idle):
                    m.next = "STATUS"
            self._softmax_states(m, operation, scalar, faults, row_a, row_d)
            with m.State("STATUS"):
                m.d.comb += [self.status.valid.eq(1), self.job.ready.eq(self.status.ready)]
                with m.If(self.status.ready):
                    m.next = "JOB"
        return m

    def _payloads(self, m: Module, descriptors, second_slot) -> tuple[Signal, Signal]:
        """Drives the payload of each phase; returns the rows at which a token of SOFTMAX begins."""
        job = self.job.p
        is_softmax = job.kind == Kind.SOFTMAX
        row_a = Signal(16, reset_less=True)
        row_d = Signal(16, reset_less=True)
        pair = job.operation == Operation.ROTATE
        tokens = Mux(is_softmax, 1, job.tokens)
        d_walk = self.walk_d.p.rows
        for walk, first, stride in (
            (self.walk_a.p, Mux(is_softmax, row_a, job.a_first), job.a_stride),
            (d_walk, Mux(is_softmax, row_d, job.d_first), job.d_stride),
            (self.walk_b.p, job.b_first, job.b_stride),
        ):
            second = job.b_second if walk is self.walk_b.p else first + job.steps
            m.d.comb += [
                walk.first.eq(first), walk.second.eq(second), walk.stride.eq(stride),
                walk.steps.eq(job.steps), walk.tokens.eq(tokens), walk.pair.eq(pair),
            ]  # fmt: skip
        counts = [each.outliers for each in descriptors]
        m.d.comb += [
            self.walk_d.p.tail.eq(job.length[:4]),
            self.walk_d.p.single.eq(job.operation == Operation.ELEMENT),
            self.slot_slot.p.slot.eq(Mux(second_slot, job.slot_b, job.slot_a)),
            self.entries.p.count[0].eq(job.rows),
            self.entries.p.count[1].eq(Mux(job.two_slots, job.rows, 0)),
            self.outliers.p.count[0].eq(counts[0]),
            self.outliers.p.count[1].eq(Mux(job.two_slots, counts[1], 0)),
            self.shape.slots.eq(job.kind == Kind.SLOTS),
            self.shape.function.eq(job.function),
            self.shape.two.eq(job.two_slots),
            self.shape.rows.eq(job.rows),
            self.shape.tail.eq(job.length[:4]),
            self.load.p.table.eq(job.table),
            self.row.p.length.eq(job.length),
            self.row.p.beats.eq(job.rows * (ROW_ELEMENTS // self.config.softmax.width)),
        ]
        for walk in (self.entries.p, self.outliers.p):
            m.d.comb += [walk.slot[0].eq(job.slot_a), walk.slot[1].eq(job.slot_b)]
        m.d.comb += [self.fill.p.scale[k].eq(descriptors[k].scale) for k in range(2)]
        return row_a, row_d

    def _softmax_states(self, m: Module, operation, scalar, faults, row_a, row_d) -> None:
        """Token by token: its row read twice, its weights scaled."""
        job = self.job.p
        token = Signal(8)
        scale = Signal(FP32.bits, reset_less=True)
        m.d.comb += self.scale.eq(scale)
        with m.State("TOKEN"):
            m.d.comb += [self.row.valid.eq(1), self.walk_a.valid.eq(1)]
            m.d.sync += operation.eq(Operation.SCORE)
            m.next = "LARGEST"
        with m.State("LARGEST"):
            m.d.comb += self.maximum.ready.eq(1)
            with m.If(self.maximum.valid):
                m.d.sync += [scalar.eq(self.maximum.p.word), operation.eq(Operation.DIFFERENCE)]
                m.next = "WEIGHTS"
                with m.If(self.maximum.p.bad):
                    m.d.sync += faults.eq(int(CommandStatus.NONFINITE))
                    m.next = "NEXT"
                with m.Else():
                    m.d.comb += self.walk_a.valid.eq(1)
        with m.State("WEIGHTS"):
            m.d.comb += [self.total.ready.eq(1), self.walk_d.valid.eq(self.total.valid)]
            with m.If(self.total.valid):
                m.d.sync += [scale.eq(self.total.p.reciprocal), operation.eq(Operation.SCALE)]
                m.next = "SCALE"
        with m.State("SCALE"):
            with m.If(self.walk_d.ready):  # all rows of the token are results
                m.next = "NEXT"
        with m.State("NEXT"):
            m.d.sync += [
                token.eq(token + 1),
                row_a.eq(row_a + job.a_stride),
                row_d.eq(row_d + job.d_stride),
            ]
            m.next = "TOKEN"
            with m.If(token == job.tokens - 1):
                m.d.sync += token.eq(0)
                m.next = "RUN"
