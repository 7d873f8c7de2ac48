"""KLLM's processing element lane (docs/blocks/kllm_pe_lane.md)."""

from amaranth import Module
from amaranth.lib import data, stream

from golden.timing import Timing
from hdl.block import Block
from hdl.children import add
from hdl.kllm.lane.codebook import KllmLaneCodebook
from hdl.kllm.lane.codebook_rows import KllmLaneCodebookRows
from hdl.kllm.lane.concat import KllmConcat
from hdl.kllm.lane.config import LANES, KllmPeLaneConfig, Loaded
from hdl.kllm.lane.control import KllmLaneControl
from hdl.kllm.lane.dense import KllmLaneDense
from hdl.kllm.lane.finish import KllmLaneFinish
from hdl.kllm.lane.row_lookup import KllmRowLookup
from hdl.kllm.lane.select import KllmLaneSelect
from hdl.kllm.lane.sparse import KllmLaneSparse
from hdl.ports import In, Out
from hdl.stream.fork import fork
from hdl.stream.link import link, link_members
from hdl.stream.queue import queue


class KllmPeLane(Block):
    """``y[n] = rne16(fma32(s_a, rne32(D[n]), rne32(S[n])) * s_b[n])`` for up to ``columns`` n.

    K-Means x K-Means: ``D[n] = sum over inliers k of P[a_k, w_kn]`` by counting index pairs,
    ``S[n] = sum over outliers k of x_k * C_B[w_kn]``. P holds the products of centroids, rounded
    as ``product`` says: to FP16, or to a grid. C_V is FP16, or on a grid
    (golden.kllm.products).
    Integer x K-Means: ``D[n] = sum_j C_V[j] * (sum of a_k with w_kn = j)``, no outliers. All sums
    are exact; the roundings are those written above, nearest even, in golden at the same places.

    A job consists of these words:

        job  1 word
        a    ``ceil(length / elements)`` beats, ``last`` on the final one
        w    as many beats, ``last`` on the final one
        x    ``outliers`` words in ascending position
        s_b  ``last_column + 1`` words

    It gives ``last_column + 1`` words of ``y`` (``last`` on the final one) and then one word of
    ``status``. A job with one of the bits in golden.kllm.format.NO_OUTPUT gives no y. The lane
    drains what belongs to it: a length of 0 has no beats, other lengths have ``a`` and ``w`` up to
    ``last``. It computes the next job as if this one had not been.

    A packet on ``codebook`` (words and order: golden.kllm.format) is taken between jobs, once the
    jobs before it are done. It has priority over the next job. A packet of another length, or with
    an entry that is not in -1..1, leaves the buffer empty. With ``packet_words`` 16 a packet comes
    in rows.

    Rate: one beat (columns x elements pairs) per cycle. A beat with o outliers takes max(1, o)
    cycles. Counting a job overlaps reducing the last: golden.kllm.timing.lane_cycles.
    A job whose elements are all outliers (a direct product: FP16 by centroids) is not reduced. It
    takes its ``length`` or ``columns`` cycles, whichever is more.

    Phases: KllmLaneControl makes steps of a job, KllmConcat makes pairs of a step. KllmLaneDense
    and KllmLaneSparse add them up, and KllmLaneFinish scales the sums.

    ``ready`` of job, a, x and s_b depends combinationally on ``valid`` of every input but w, on
    ``y.ready`` and on ``status.ready``. No ``valid`` of an output depends on an input.
    Source: KLLM, sections III-B, III-D, IV-A, Table I. Golden: golden.kllm.matmul.matmul,
    integer_matmul.
    """

    golden = "golden.kllm.matmul:matmul"
    reference = "tests/kllm/test_matmul.py: test_kmeans_equals_rational_arithmetic"
    default = KllmPeLaneConfig()
    configs = LANES

    def __init__(self, config: KllmPeLaneConfig):
        value = stream.Signature(config.value_layout)
        word = stream.Signature(config.word_layout)
        super().__init__(
            config,
            {
                "job": In(
                    stream.Signature(config.job_layout),
                    "what the next job is: length, outliers, activation scale, columns, mode",
                ),
                "a": In(
                    stream.Signature(config.a_layout),
                    "activation indices (or integers) and outlier mask, elements at a time",
                ),
                "w": In(
                    stream.Signature(config.w_layout),
                    "weight indices, columns x elements at a time",
                ),
                "x": In(value, "FP16 values of the outliers, ascending positions"),
                "s_b": In(value, "FP16 scale of each output column"),
                "codebook": In(
                    stream.Signature(config.packet_layout),
                    "centroids and their products, loaded between jobs",
                ),
                "y": Out(word, "FP16 outputs of a job"),
                "status": Out(
                    stream.Signature(config.status_layout),
                    "one word per job: its fault bits, 0 if none",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return self.config.timing

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        buffer = KllmLaneCodebook if config.packet_words == 1 else KllmLaneCodebookRows
        codebook = add(m, "codebook_buffer", buffer(config))
        control = add(m, "control", KllmLaneControl(config))
        selects = config.counter == "select"
        if selects:
            beats = add(m, "row_lookup", KllmRowLookup(config.select_config))
            dense = add(m, "dense", KllmLaneSelect(config))
        else:
            beats = add(m, "concat", KllmConcat(config.concat_config))
            dense = add(m, "dense", KllmLaneDense(config))
        sparse = add(m, "sparse", KllmLaneSparse(config))
        finish = add(m, "finish", KllmLaneFinish(config))
        weights = queue(
            m, "weight_buffer", config.w_layout, config.weight_buffer_beats, storage="memory"
        )

        link_members(m, self, control, ("job", "a", "x", "codebook"))
        link(m, self.w, weights.i)
        link(m, weights.o, control.w)
        link(m, control.packet, codebook.i)
        m.d.comb += [control.loaded.eq(codebook.loaded), control.done.eq(finish.done)]
        link(m, codebook.product, (beats if selects else dense).product)
        (_link_rows if selects else _link_pairs)(m, control.step, beats)

        # Each beat to both paths. The dense sum of a job without inliers is 0: its beats bypass
        # the dense path, which makes no sums for it.
        to_dense, to_sparse = fork(m, "beats", beats.o, 2)
        beat = beats.o.p
        tag = data.View(config.outlier_tag, beat.tag)
        is_integer = codebook.loaded == Loaded.INTEGER
        m.d.comb += [
            dense.i.valid.eq(to_dense.valid & ~tag.direct),
            to_dense.ready.eq(dense.i.ready | tag.direct),
            *(dense.i.p[field].eq(beat[field]) for field in config.dense_beat_layout.members),
            (beats if selects else dense).is_integer.eq(is_integer),
            sparse.i.valid.eq(to_sparse.valid),
            to_sparse.ready.eq(sparse.i.ready),
            sparse.i.p.present.eq(tag.present),
            sparse.i.p.x.eq(tag.x),
            sparse.i.p.element.eq(tag.element),
            sparse.i.p.last.eq(beat.last),
            sparse.codebook_b.eq(codebook.codebook_b),
        ]
        if selects and len(config.select_config.grids) > 1:
            m.d.comb += dense.is_integer.eq(is_integer)
        for c, column in enumerate(beat.index if selects else beat.pair):
            m.d.comb += [
                sparse.i.p.index[c][e].eq(pair[: config.bits_b]) for e, pair in enumerate(column)
            ]

        link(m, control.info, finish.job)
        link(m, dense.o, finish.dense)
        link(m, sparse.o, finish.sparse)
        link(m, self.s_b, finish.s_b)
        link(m, finish.y, self.y)
        link(m, finish.status, self.status)
        return m


def _link_pairs(m: Module, step, concat: KllmConcat) -> None:
    """A step, its halves joined to pairs."""
    m.d.comb += [
        concat.i_a.valid.eq(step.valid),
        concat.i_w.valid.eq(step.valid),
        step.ready.eq(concat.i_a.ready),
        concat.i_a.p.value.eq(step.p.value),
        concat.i_a.p.inlier.eq(step.p.inlier),
        concat.i_a.p.last.eq(step.p.last),
        concat.i_a.p.tag.eq(step.p.tag),
        concat.i_w.p.index.eq(step.p.index),
    ]


def _link_rows(m: Module, step, lookup: KllmRowLookup) -> None:
    """A step, its values replaced by rows of products."""
    m.d.comb += [
        lookup.i.valid.eq(step.valid),
        step.ready.eq(lookup.i.ready),
        *(lookup.i.p[field].eq(step.p[field]) for field in lookup.i.p.shape().members),
    ]
