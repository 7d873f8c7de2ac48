"""The end of a lane: sums to outputs, and a status per job."""

from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream

from golden.kllm.format import NO_OUTPUT, Status
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.children import add
from hdl.fp16.compare import is_special
from hdl.kllm.lane.config import SMALL, STATUS_BITS, KllmPeLaneConfig
from hdl.kllm.lane.scaler import KllmScaler
from hdl.ports import In, Out


class KllmLaneFinish(Block):
    """``y[n] = rne16(fma32(s_a, dense[n], rne32(sparse[n])) * s_b[n])``; then the job's status.

    For each word of ``job`` the block takes these words:

        ========  ==============================  ============================
        stream    words                           if
        ========  ==============================  ============================
        s_b       ``last_column + 1``             always
        sparse    ``columns``                     ``counted``
        dense     ``columns``                     ``counted`` and not ``direct``
        ========  ==============================  ============================

    The dense sum of a direct job is 0. The job gives ``last_column + 1`` words of y, ``last`` on
    the final one, and then its status. A job whose status has a bit of
    golden.kllm.format.NO_OUTPUT gives no y. The block adds SCALE_NONFINITE and OVERFLOW to the
    status of a job with outputs. It offers the status of a job before the first y of the next.
    ``done`` is 1 in the cycle in which the last output of a job leaves the scaler.

    One column per cycle. Latency: s_b to y 6 cycles, the last y to the status 1 cycle.
    ``ready`` of each input depends combinationally on ``valid`` of the others and on ``y.ready``.
    Source: KLLM, section III-D. Golden: golden.kllm.blocks.finish_job.

    A job takes ``columns`` cycles if it is ``counted``, otherwise last_column + 1. The register of
    the status takes a word every 2 cycles.
    """

    tier = Tier.PART
    golden = "golden.kllm.blocks:finish_job"
    default = KllmPeLaneConfig()
    configs: ClassVar = {"table1": KllmPeLaneConfig(), "small": SMALL}

    def __init__(self, config: KllmPeLaneConfig):
        super().__init__(
            config,
            {
                "job": In(
                    stream.Signature(config.info_layout), "What became of a job up to its sums."
                ),
                "dense": In(stream.Signature(config.dense_layout), "Dense sums, column by column."),
                "sparse": In(
                    stream.Signature(config.sparse_layout), "Exact sparse sums, column by column."
                ),
                "s_b": In(
                    stream.Signature(config.value_layout), "FP16 scale of each output column."
                ),
                "y": Out(stream.Signature(config.word_layout), "FP16 outputs of a job."),
                "status": Out(
                    stream.Signature(config.status_layout),
                    "One word per job: its fault bits, 0 if none.",
                ),
                "done": Out(1, "A job has ended."),
            },
        )

    @property
    def timing(self) -> Timing:
        """``stages`` registers of the scaler. A status takes 1 cycle after the last y."""
        return Timing(
            latency=self.config.scaler_config.stages,
            start="s_b",
            end="y",
            unit="column",
            delays=(("from a job's last y to its status", 1),),
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        job, dense, sparse, s_b = self.job.p, self.dense, self.sparse, self.s_b
        scaler = add(m, "scaler", KllmScaler(config.scaler_config))

        column = Signal(range(max(config.columns, 2)))
        wanted = Signal()
        is_end = Signal()
        is_last = Signal()
        dropped = Signal()
        ready = Signal()
        send = Signal()
        go = Signal()
        m.d.comb += [
            dropped.eq((job.status & int(NO_OUTPUT)) != 0),
            wanted.eq(column <= job.last_column),
            # The column that ends the job's outputs, and the one that ends the job.
            is_last.eq(column == Mux(job.counted, config.columns - 1, job.last_column)),
            is_end.eq(Mux(dropped, is_last, column == job.last_column)),
            ready.eq(
                self.job.valid
                & (s_b.valid | ~wanted)
                & (((dense.valid | job.direct) & sparse.valid) | ~job.counted)
            ),
            send.eq(ready & Mux(dropped, is_end, wanted)),
            go.eq(ready & (~send | scaler.i.ready)),
            s_b.ready.eq(go & wanted),
            dense.ready.eq(go & job.counted & ~job.direct),
            sparse.ready.eq(go & job.counted),
            self.job.ready.eq(go & is_last),
        ]
        with m.If(go):
            m.d.sync += column.eq(Mux(is_last, 0, column + 1))
        bad_scale = wanted & is_special(s_b.p.word)
        tag = data.View(config.output_tag, scaler.i.p.tag)
        m.d.comb += [
            scaler.i.valid.eq(send),
            scaler.i.p.d.eq(Mux(job.direct, 0, dense.p.y)),
            scaler.i.p.s.eq(sparse.p.sum),
            scaler.i.p.s_a.eq(job.s_a),
            scaler.i.p.s_b.eq(s_b.p.word),
            tag.empty.eq(dropped),
            tag.end.eq(is_end),
            tag.status.eq(job.status | Mux(bad_scale & ~dropped, int(Status.SCALE_NONFINITE), 0)),
        ]

        # y, and after the last y of a job its status.
        out = scaler.o
        out_tag = data.View(config.output_tag, out.p.tag)
        faults = Signal(STATUS_BITS)  # of the outputs so far
        new_faults = Signal(STATUS_BITS)
        status_free = Signal()
        gone = Signal()
        m.d.comb += [
            status_free.eq(~out_tag.end | ~self.status.valid),
            self.y.valid.eq(out.valid & ~out_tag.empty & status_free),
            self.y.p.word.eq(out.p.y),
            self.y.p.last.eq(out_tag.end),
            out.ready.eq(status_free & (out_tag.empty | self.y.ready)),
            gone.eq(out.valid & out.ready),
            new_faults.eq(
                faults
                | out_tag.status
                | Mux(out.p.overflow & ~out_tag.empty, int(Status.OVERFLOW), 0)
            ),
            self.done.eq(gone & out_tag.end),
        ]
        with m.If(self.status.ready):
            m.d.sync += self.status.valid.eq(0)
        with m.If(gone):
            m.d.sync += faults.eq(Mux(out_tag.end, 0, new_faults))
            with m.If(out_tag.end):
                m.d.sync += [
                    self.status.valid.eq(1),
                    self.status.p.as_value().eq(new_faults),
                ]
        return m
