"""Attention of the queries of a KV head on streams of exact rows
(docs/blocks/attention_stream.md).
"""

from typing import ClassVar

from amaranth import Module, Signal
from amaranth.lib import stream

from golden.timing import Timing
from hdl.attention.cap import CAP_BITS
from hdl.attention.stream_config import JOBS, AttentionStreamConfig
from hdl.attention.stream_order import AttentionStreamOrder
from hdl.attention.stream_output import AttentionStreamOutput
from hdl.attention.stream_products import AttentionStreamProducts
from hdl.attention.stream_queries import AttentionStreamQueries, query_ports
from hdl.attention.stream_scores import AttentionStreamScores
from hdl.attention.stream_sums import AttentionStreamSums
from hdl.attention.weights import AttentionWeights
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue

__all__ = ["AttentionStream", "AttentionStreamConfig"]


class AttentionStream(Block):
    """Softmax attention on the rows of K and V of ``heads`` KV heads, ``queries`` queries of each.

        s = cap(rne16(q . k));  w = exp(rne16(s - max s));  W = sum w * v;  S = sum w
        o = rne16(rne32(W) * rne32(1 / rne32(S)))

    A row has K, or V, of a token, head by head. ``job`` says how many rows. ``q`` brings its
    queries, with ``1 / sqrt(head_dim)`` in them: for each beat of a row, for each query of its
    head, ``lanes`` words. ``o`` gives the outputs in the same order. ``rows`` brings the rows,
    ``lanes`` elements per beat, first those of K, then those of V. K of the next job comes before
    V: K0 K1 V0 K2 V1 and so on, so that its scores hide the softmax. A job with ``last`` ends a
    run: V of the job before comes next, then its own.

    With ``caps`` a job may have a soft cap c of its scores: s becomes c * tanh(s / c) in the steps
    of golden.attention.caps. A score beyond FP16 becomes c. With ``sinks`` the words of ``q``
    of a job begin with a sink for each of its queries, ``ceil(queries / width)`` beats of them. A
    sink is one score more in max and S. It has no cap and no value, and -infinity is none.

    ``status`` ends a job, after its last word of ``o``. Words of a query without a result are NaN
    (0x7E00). A job without rows, or with more than ``max_rows``, is refused: the block accepts and
    discards its queries and rows. A fault of a job is never one of another.

    The same multipliers serve K and V, ``macs`` products per cycle: a beat takes
    ``queries * lanes / macs`` cycles. All sums are exact, so that the order of rows never matters.
    Rounding points: the score, those of its cap, its difference from the largest, the exponential,
    both sums, the reciprocal, the output. No combinational path leads from an input to an output.
    Golden: golden.attention.stream.attend.
    """

    golden = "golden.attention.stream:attend"
    reference = "tests/attention/test_stream.py: test_attention_follows_its_definition"
    default = AttentionStreamConfig()
    configs: ClassVar = {
        "llama2": AttentionStreamConfig(),
        "smollm2": AttentionStreamConfig(head_dim=64, queries=3, macs=192, max_rows=8192),
        "small": AttentionStreamConfig(
            head_dim=32, queries=2, lanes=16, macs=16, width=8, max_rows=64
        ),
        "small_rules": AttentionStreamConfig(
            head_dim=32, queries=2, lanes=16, macs=16, width=8, max_rows=64, caps=True, sinks=True
        ),
    }

    def __init__(self, config: AttentionStreamConfig):
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Jobs, in runs."),
                "q": In(stream.Signature(config.q_layout), "Queries of each job."),
                "rows": In(stream.Signature(config.rows_layout), "Rows: K0 K1 V0 K2 V1 of a run."),
                "o": Out(stream.Signature(config.o_layout), "Outputs of each job."),
                "status": Out(stream.Signature(config.status_layout), "How a job ended."),
            },
        )

    @property
    def timing(self) -> Timing:
        return self.config.shape.timing()

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        order = add(m, "order", AttentionStreamOrder(config))
        queries = add(m, "queries", AttentionStreamQueries(config))
        products = add(m, "products", AttentionStreamProducts(config))
        scores = add(m, "scores", AttentionStreamScores(config))
        weights = add(m, "weights", AttentionWeights(config.weights))
        sums = add(m, "sums", AttentionStreamSums(config))
        output = add(m, "output", AttentionStreamOutput(config))
        phases = queue(m, "phases", config.phase_layout, 2)
        ends = queue(m, "ends", config.end_layout, JOBS)
        link(m, self.job, order.job)
        link(m, self.q, queries.q)
        link(m, self.rows, products.rows)
        link(m, order.phase, phases.i)
        link(m, phases.o, products.phase)
        link(m, order.end, ends.i)
        link(m, ends.o, output.end)
        for name in ("key_end", "value_end"):
            faults = queue(m, f"{name}s", config.fault_layout, JOBS)
            link(m, getattr(products, name), faults.i)
            link(m, faults.o, getattr(output, name))
        for name in query_ports(config):
            source, sink = (products, queries)
            if name in ("q_full", "q_bad", "q_data"):
                source, sink = sink, source
            m.d.comb += getattr(sink, name).eq(getattr(source, name))
        for engine in (scores, sums):
            m.d.comb += [
                getattr(engine, name).eq(getattr(products, name))
                for name in ("flags", "term", "sign")
            ]
        m.d.comb += [sums.claim.eq(products.claim), products.room.eq(sums.room)]

        link(m, products.row, weights.row)
        link(m, scores.score, weights.past_score)
        link(m, weights.past_weight, products.weight)
        self._rules(m, phases.o, queries, products, scores, weights)
        link(m, weights.total, output.total)
        link(m, sums.sum, output.sum)
        link(m, output.o, self.o)
        link(m, output.status, self.status)
        return m

    def _rules(self, m: Module, phase, queries, products, scores, weights) -> None:
        """The cap and the sinks of each softmax, from the cycle in which it takes its row on.

        The sinks are one exact key, whose score the softmax takes in the next cycle and whose
        weight counts for nothing. The row's last product is not before that cycle, so they are
        still there. No score is under way when the cap changes: the softmax has had all of the row
        before.
        """
        config = self.config
        m.d.comb += weights.window_weight.ready.eq(1)
        if not (config.sinks or config.caps):
            m.d.comb += weights.window_score.valid.eq(0)
            return
        begun = let(m, "begun", products.row.valid & products.row.ready)
        if config.sinks:
            due = Signal(name="sinks_due")
            m.d.comb += weights.window_score.valid.eq(due)
            m.d.sync += due.eq(begun | (due & ~weights.window_score.ready))
            m.d.comb += weights.window_score.p.word.eq(queries.sink)
        if config.caps:
            cap = Signal(CAP_BITS, reset_less=True)
            m.d.comb += scores.cap.eq(cap)
            with m.If(begun):
                m.d.sync += cap.eq(phase.p.cap)
