"""Exact attention on the sinks and the recent tokens."""

from fractions import Fraction
from typing import ClassVar

from amaranth import Module
from amaranth.lib import stream

from golden.index.timing import tree_levels
from golden.million.timing import BETWEEN_SUMS
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.children import add
from hdl.million.encode_control import row_layout
from hdl.million.layouts import beat_layout
from hdl.million.shapes import SMALL_CACHE, SMALL_RATE, SMOLLM2_CACHE, SMOLLM2_RATE
from hdl.million.window_config import MillionWindowConfig
from hdl.million.window_rows import MillionWindowRows, row_ports
from hdl.million.window_scores import MillionWindowScores
from hdl.million.window_values import MillionWindowValues
from hdl.ports import In, Out, Payload
from hdl.stream.fork import fork
from hdl.stream.link import link, link_members
from hdl.stream.queue import queue

__all__ = ["MillionWindow", "MillionWindowConfig"]

_JOBS = 4  # jobs between their scores and their values


class MillionWindow(Block):
    """Rows of exact K and V, and attention on them: scores, then weighted sums.

        s = rne16(sum_i q_i * k_i + slope * distance)
        W_i = sum over the exact keys of w * v_i, exact on the grid 2**-48

    ``write`` names a row of a window, and ``x`` brings its head_dim elements. Row r of the sinks is
    row r. The ring of recent tokens follows, from row ``window.sinks`` on: it has ``recent`` rows,
    at least 2. ``fetch`` gives a row again, in cycles that no job reads.

    ``job`` attends ``sinks`` rows from row 0 on, then ``recent`` rows of the ring from place
    ``start`` on: this is the order of the keys. ``distance`` is that of row 0. The next row has one
    less, and the newest recent token 0. A packet ``q`` of ``queries`` queries follows. The block
    gives a beat ``window_score`` per key, takes a beat ``window_weight`` per key, and gives the
    sums: for each query, ``head_dim / window_macs`` beats ``sum``. A job without keys has
    neither scores nor weights, and its sums are 0.

    Scores and values run side by side, on different jobs. Each takes ``window_macs`` products per
    cycle: ``queries * head_dim / window_macs`` cycles per key. Six jobs may wait for their weights.
    A row must not be written while a job reads it. Words are finite: NaN and infinity are
    illegal and not checked. Weights are 0..1. Rounding points: the score.

    No combinational path leads from an input to an output.
    Source: MILLION, section IV. Golden: golden.million.window window_scores, window_sums.

    A word of K is read once for all queries. A tree adds its products, with one carry chain per
    cycle, and one rounding unit serves the accumulators of all queries. All weights of a job come
    before its first product, so that one accumulator per element is enough. A fetch never delays a
    job. Scores leave queries - 1 of queries cycles of K's RAM free, and sums leave none of V's.

    Widths follow from the numbers of terms. A product of two FP16 words lies below 2**80 on the
    grid 2**-48, and slope times distance below 2**81. A score of 256 elements has 90 bits with its
    sign. A weighted value lies below 2**64. Golden keeps such sums in two limbs.
    """

    tier = Tier.PART
    golden = "golden.million.window:window_scores"
    default = MillionWindowConfig()
    configs: ClassVar = {
        "smollm2": MillionWindowConfig(cache=SMOLLM2_CACHE, rate=SMOLLM2_RATE),
        "small": MillionWindowConfig(cache=SMALL_CACHE, rate=SMALL_RATE),
    }

    def __init__(self, config: MillionWindowConfig):
        row = stream.Signature(row_layout(config.cache))
        beat = stream.Signature(beat_layout(config.rate.lanes))
        heads = stream.Signature(config.heads_layout)
        super().__init__(
            config,
            {
                "write": In(row, "Rows to write."),
                "x": In(beat, "Elements of the rows to write."),
                "fetch": In(row, "Rows to give."),
                "vector": Out(beat, "Elements of the rows to give."),
                "job": In(stream.Signature(config.job_layout), "Keys of each group of queries."),
                "q": In(beat, "Queries of each job, query 0 first."),
                "window_score": Out(heads, "Scores of the exact keys."),
                "window_weight": In(heads, "Weights of the exact keys."),
                "sum": Out(
                    stream.Signature(config.sum_layout),
                    "Weighted sums: for each query, each word of a row.",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        """A step of a row is multiplied by each query in turn; scores and values side by side.

        ``window_macs`` products and the distance's term are added by a tree.

        A sum follows the last weight by a cycle per exact key. The next ones come at the pace of
        the keys, but not more often than ``between sums``.
        """
        cycles = self.config.rate.queries * self.config.steps
        return Timing(
            latency=cycles + 10 + tree_levels(self.config.rate.window_macs + 1),
            interval=Fraction(cycles),
            start="job",
            end="window_score",
            unit="exact key",
            delays=(
                ("from the last window_weight to sum, and one per exact key", 5),
                ("between sums, at least", BETWEEN_SUMS),
            ),
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        rows = add(m, "rows", MillionWindowRows(config))
        scores = add(m, "scores", MillionWindowScores(config))
        values = add(m, "values", MillionWindowValues(config))
        for name in ("write", "x", "fetch"):
            link(m, getattr(self, name), getattr(rows, name))
        link_members(m, rows, self, ["vector"])
        for engine, name in ((scores, "k"), (values, "v")):
            for port in row_ports(config, name):
                source, sink = (rows, engine) if port.endswith("_data") else (engine, rows)
                m.d.comb += getattr(sink, port).eq(getattr(source, port))

        to_scores, to_values = fork(m, "jobs", self.job, 2)
        waiting = queue(m, "waiting", Payload(**config.keys_parts), _JOBS)
        link(m, to_scores, scores.job)
        link(m, to_values, waiting.i, discard=("distance", "slope"))
        link(m, waiting.o, values.job)
        link(m, self.q, scores.q)
        link(m, scores.score, self.window_score)
        link(m, self.window_weight, values.weight)
        link(m, values.sum, self.sum)
        return m
