"""The jobs of one MATMUL."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.kinds import index_of
from hdl.kllm.engine import SLOT_LENGTH_BITS, descriptor_layout
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.matmul.config import FIRST_REQUEST
from hdl.kllm.matmul.payloads import matmul_work_layout, outlier_count_layout
from hdl.ports import In, Out, Payload
from hdl.walk import Walk

_ONE = FP16.bias << FP16.frac_bits


class KllmJobWalk(Block):
    """Gives, for each group and each token, one word of ``job``, and one of ``count`` for a slot.

        ========  ======================  ===================  =========
        work      scale                   outliers of the job  ``count``
        ========  ======================  ===================  =========
        slot      of the slot's           of the slot's        one word
                  descriptor              descriptor
        direct    1.0                     length               none
        void      1.0                     none                 none
        ========  ======================  ===================  =========

    The walk begins in the cycle after ``start``. ``work`` must not change until ``done``. The walk
    requests the descriptor of a job when the job before it has left.

    Latency: ``start`` to the first ``job`` 1 cycle if direct or void. Otherwise ``start`` to the
    first ``slot`` 1 cycle, and from the descriptor to ``job`` and ``count`` 1 cycle.
    Golden: golden.kllm.walks.job_words.

    A job has left when both ``job`` and ``count`` were taken, in any order.
    """

    tier = Tier.PART
    golden = "golden.kllm.walks:job_words"
    configs = FieldOf("kllm_accelerator", "lane", ("table1", "small"))

    def __init__(self, config: KllmPeLaneConfig):
        super().__init__(
            config,
            {
                "start": In(1, "A walk begins."),
                "work": In(matmul_work_layout, "The command that runs."),
                "done": Out(1, "Every job was taken."),
                "slot": Out(
                    stream.Signature(Payload(slot=(8, "number of the slot", index_of("slots")))),
                    "Descriptors wanted.",
                ),
                "descriptor": In(
                    stream.Signature(descriptor_layout), "Those descriptors, in order."
                ),
                "job": Out(stream.Signature(config.job_layout), "Jobs of the lanes."),
                "count": Out(stream.Signature(outlier_count_layout), "Outliers of each job."),
            },
        )

    # Of slots; the memory's latency is not included. The interval is that of direct jobs.
    timing = Timing(
        latency=1,
        start="descriptor",
        end="job and count",
        unit="job, if direct",
        delays=(
            FIRST_REQUEST,
            ("from start to the first job, if direct", 1),
            ("from a job to the next request", 1),
        ),
    )

    def elaborate(self, platform) -> Module:
        m, work = Module(), self.work
        walk = Walk(m, "jobs", groups=work.groups, tokens=work.tokens)
        # the descriptor of this job
        asked = Signal()
        have = Signal()
        job_sent = Signal()
        count_sent = Signal()
        job_gone = Signal()
        count_gone = Signal()
        scale = Signal(FP16.bits, reset_less=True)
        outliers = Signal(SLOT_LENGTH_BITS, reset_less=True)
        slot = Signal(8)
        no_slot = work.direct | work.void
        m.d.comb += [
            walk.start.eq(self.start),
            self.done.eq(walk.done),
            slot.eq(work.slot + walk.at.tokens),
            self.slot.valid.eq(~walk.done & ~asked),
            self.slot.p.slot.eq(slot),
            self.descriptor.ready.eq(~walk.done & asked & ~have),
            self.job.valid.eq(~walk.done & have & ~job_sent),
            self.job.p.length.eq(work.length),
            self.job.p.outliers.eq(Mux(no_slot, Mux(work.void, 0, work.length), outliers)),
            self.job.p.s_a.eq(Mux(no_slot, _ONE, scale)),
            self.job.p.last_column.eq(self.config.columns - 1),
            self.job.p.integer.eq(work.integer),
            self.count.valid.eq(~walk.done & have & ~count_sent),
            self.count.p.outliers.eq(outliers),
            self.count.p.slot.eq(slot),
            job_gone.eq(job_sent | (self.job.valid & self.job.ready)),
            count_gone.eq(count_sent | (self.count.valid & self.count.ready)),
            walk.step.eq(have & job_gone & count_gone),
        ]
        with m.If(self.slot.valid & self.slot.ready):
            m.d.sync += asked.eq(1)
        with m.If(self.descriptor.valid & self.descriptor.ready):
            m.d.sync += [
                have.eq(1),
                scale.eq(self.descriptor.p.scale),
                outliers.eq(self.descriptor.p.outliers),
            ]
        m.d.sync += [job_sent.eq(job_gone), count_sent.eq(count_gone)]
        with m.If(self.start | walk.step):
            m.d.sync += [
                job_sent.eq(0),
                count_sent.eq(no_slot),
                asked.eq(no_slot),
                have.eq(no_slot),
            ]
        return m
