"""Exact sums of a token from its index counts and outliers."""

import dataclasses
from itertools import pairwise

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.fp16.format import FP16, FP32
from golden.index.format import CODEBOOK_BITS_MAX, CODEBOOK_BITS_MIN, K_MAX
from golden.kllm.format import Status
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.fp16.compare import is_special
from hdl.fp16.unpack import unpack
from hdl.index.reducer import centroid_parts
from hdl.kinds import NUMBER, index_of, mask_of
from hdl.ports import In, Out, Payload

NORM_SUMS = ("q", "x2", "a", "x1", "length")  # the sums of a token, in this order
_ONE_FP16 = 0x3C00
_OUTLIERS_BITS = 16

# A token whose sums follow, if its status is 0.
norm_token_layout = Payload(
    s=(FP16.bits, "scale of the token, FP16", FP16),
    epsilon=(FP32.bits, "epsilon of the norm, FP32", FP32),
    layer_norm=(1, "LayerNorm, with a mean; 0: RMSNorm"),
    status=(len(Status), "golden.kllm.format.Status bits of the token", Status),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmNormSumsConfig(Config):
    """Shape of the counters and sums."""

    bits_a: int = bounded(4, CODEBOOK_BITS_MIN, CODEBOOK_BITS_MAX, "bits of an index")
    elements: int = bounded(16, 1, 32, "elements per cycle")
    k_max: int = bounded(K_MAX, 1, K_MAX, "longest token")

    @property
    def bins(self) -> int:
        return 2**self.bits_a

    @property
    def count_bits(self) -> int:
        return self.k_max.bit_length()

    @property
    def a_bits(self) -> int:
        """sum of n_j * c_j on the grid 2**-24: |c| <= 2**24."""
        return (self.k_max << 24).bit_length() + 1

    @property
    def q_bits(self) -> int:
        """sum of n_j * c_j**2 on the grid 2**-48, never negative."""
        return (self.k_max << 48).bit_length()

    @property
    def x1_bits(self) -> int:
        """sum of outliers on the grid 2**-24: |x| < 2**40."""
        return (self.k_max << 40).bit_length() + 1

    @property
    def x2_bits(self) -> int:
        """sum of squares of outliers on the grid 2**-48, never negative."""
        return (self.k_max << 80).bit_length()

    @property
    def timing(self) -> Timing:
        """One cycle per bin of the codebook, then a word of ``value`` per sum.

        ``token`` and ``value`` are taken at once.
        """
        return Timing(
            latency=self.bins + 4,
            start="a token's last beat",
            end="token",
            unit="beat",
            delays=(
                ("from token to the first value", 1),
                ("from a faulty token's last beat to token", 3),
                ("from a token's last beat to the next job", self.bins + len(NORM_SUMS) + 5),
            ),
        )

    @property
    def codebook_layout(self) -> data.StructLayout:
        return Payload(
            word=(FP16.bits, "FP16 word", FP16), last=(1, "last centroid of the codebook")
        )

    @property
    def job_layout(self) -> data.StructLayout:
        return Payload(
            length=(16, "elements of the token", NUMBER),
            s=(FP16.bits, "scale of the token, FP16", FP16),
            epsilon=(FP32.bits, "epsilon of the norm, FP32", FP32),
            layer_norm=(1, "LayerNorm, with a mean; 0: RMSNorm"),
            outliers=(_OUTLIERS_BITS, "words of x; 65535: as many as the mask says", NUMBER),
        )

    @property
    def i_layout(self) -> data.StructLayout:
        return Payload(
            index=(
                data.ArrayLayout(self.bits_a, self.elements),
                "index of each element",
                index_of("centroids"),
            ),
            outlier=(self.elements, "mask of the elements that are outliers", mask_of("elements")),
            last=(1, "final beat of the token"),
        )

    @property
    def x_layout(self) -> data.StructLayout:
        return Payload(word=(FP16.bits, "FP16 word", FP16))

    @property
    def value_layout(self) -> data.StructLayout:
        return Payload(
            value=(signed(self.x2_bits + 1), "exact sum"),
            sum=(range(len(NORM_SUMS)), "its place in NORM_SUMS"),
        )


def norm_inputs(config: KllmNormSumsConfig) -> dict:
    """Members of the sums that the whole statistics unit has too: codebook, job, i and x."""
    return {
        "codebook": In(
            stream.Signature(config.codebook_layout),
            "activation centroids, magnitude at most 1, kept until replaced",
        ),
        "job": In(
            stream.Signature(config.job_layout),
            "One word per token, before its elements.",
        ),
        "i": In(
            stream.Signature(config.i_layout),
            "indices of the token and the mask of its outliers; last ends it",
        ),
        "x": In(
            stream.Signature(config.x_layout),
            "outlier values in any order, as many as the job says",
        ),
    }


@dataclasses.dataclass(frozen=True)
class _Phase:
    """The actions of the control in this cycle."""

    loading: Signal  # the codebook
    counting: Signal
    reducing: Signal
    clear: Signal  # the counters, for a new token

    @classmethod
    def new(cls) -> "_Phase":
        return cls(*(Signal(name=field.name) for field in dataclasses.fields(cls)))


class KllmNormSums(Block):
    """Five integers per token: q, x2, a, x1 and length.

    n_j is the number of inliers of index j.

        q = sum n_j c_j**2,     x2 = sum of squares of outliers      on the grid 2**-48
        a = sum n_j c_j,        x1 = sum of outliers                 on the grid 2**-24

    A token has one job, its beats up to ``last`` and ``outliers`` words of x, or with
    OUTLIERS_OF_MASK as many as its mask has bits. The three may be offered in any order and wait
    for one another. Elements beyond the length are not counted. A job of length 0 has no beats. One
    word of ``token`` per job, in order. If its status is 0, five words of ``value`` follow it in
    the order of NORM_SUMS. No rounding.

    status: bits of golden.kllm.format.Status.

        LENGTH_ZERO
        LENGTH_TOO_LONG   beyond k_max
        CODEBOOK_MISSING  the latest packet had not 2**bits_a words of magnitude at most 1, or none
                          came since reset
        NONFINITE         s or epsilon is NaN or infinite
        LAST_MISPLACED    ``last`` not on beat ceil(K / elements)
        OUTLIER_COUNT     mask bits and ``outliers`` differ
        NONFINITE         an outlier is NaN or infinite

    Where one of the first four is set, these alone are shown, and the job's words are discarded.

    A codebook packet is taken when no token is being counted or reduced, before the next job. The
    block takes 1 beat and 1 outlier per cycle. The next job follows 2**bits_a + 10 cycles after the
    last word of a token, 4 after that of a faulty one. It waits until ``token`` is taken.
    ``job.ready`` depends combinationally on ``codebook.valid``.
    Source: KLLM, section III-C2. Golden: golden.kllm.norms.exact_sums.

    For 16,383 elements q, x2, a and x1 have 62, 94, 39 and 55 bits. At 4 bits the next job begins
    26 cycles after the last beat. Decision 0026 says why there is one set of counters.
    """

    tier = Tier.PART
    golden = "golden.kllm.norms:exact_sums"
    configs = FieldOf("kllm_norm_stats", "sums")

    OUTLIERS_OF_MASK = 2**_OUTLIERS_BITS - 1  # a job's outliers where only the mask knows them

    def __init__(self, config: KllmNormSumsConfig):
        super().__init__(
            config,
            {
                **norm_inputs(config),
                "token": Out(
                    stream.Signature(norm_token_layout),
                    "scale, epsilon and kind of norm of the job, status bits",
                ),
                "value": Out(
                    stream.Signature(config.value_layout),
                    "the token's sums, each an integer, if its status is 0",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return self.config.timing

    def elaborate(self, platform) -> Module:
        config, job = self.config, self.job.p
        m = Module()
        phase = _Phase.new()
        status = Signal(len(Status))
        job_now = Signal(config.job_layout, reset_less=True)
        left = Signal(16, reset_less=True)  # elements to come
        of_mask = Signal(reset_less=True)  # outliers are as many as the mask says
        x_to_come = Signal(_OUTLIERS_BITS, reset_less=True)  # less those of the mask, modulo 2**16
        i_done = Signal(reset_less=True)
        refused = Signal(reset_less=True)  # by its header
        take_i = Signal()
        take_x = Signal()
        x_left = Signal(_OUTLIERS_BITS)

        ring, loaded, packet_ends = _codebook(m, config, self.codebook, phase)
        counts, mask_count, beat_held = _count(m, config, self.i.p, left, take_i, phase)
        x1, x2, x_held = _outliers(m, config, self.x.p.word, take_x, phase.clear)
        a, q = _reduce(m, config, ring[0], counts[0], phase)
        step = Signal(range(max(config.bins, len(NORM_SUMS))))
        sums = {"q": q, "x2": x2, "a": a, "x1": x1, "length": job_now.length}
        m.d.comb += [
            # Wide enough for any job's length: a refused one's words are dropped, all of them.
            x_left.eq(x_to_come + Mux(of_mask, mask_count, 0)),
            self.i.ready.eq(phase.counting & ~i_done),
            self.x.ready.eq(phase.counting & (x_left != 0)),
            take_i.eq(self.i.valid & self.i.ready),
            take_x.eq(self.x.valid & self.x.ready),
            self.token.p.s.eq(job_now.s),
            self.token.p.epsilon.eq(job_now.epsilon),
            self.token.p.layer_norm.eq(job_now.layer_norm),
            self.token.p.status.eq(status),
            self.value.p.sum.eq(step),
        ]
        with m.Switch(step):
            for k, name in enumerate(NORM_SUMS):
                with m.Case(k):
                    m.d.comb += self.value.p.value.eq(sums[name])

        misplaced = self.i.p.last != (left <= config.elements)
        found = Signal(len(Status))
        m.d.comb += found.eq(
            Mux(take_i & misplaced, Status.LAST_MISPLACED.value, 0)
            | Mux(take_x & is_special(self.x.p.word, FP16), Status.NONFINITE.value, 0)
        )
        header = _header(m, config, job, loaded)
        miscounted = ~of_mask & (mask_count != job_now.outliers)
        with m.FSM():
            with m.State("IDLE"):
                with m.If(self.codebook.valid):
                    m.next = "LOAD"
                with m.Else():
                    m.d.comb += self.job.ready.eq(1)
                with m.If(self.job.valid & self.job.ready):
                    is_of_mask = job.outliers == self.OUTLIERS_OF_MASK
                    m.d.comb += phase.clear.eq(1)
                    m.d.sync += [
                        job_now.eq(job), status.eq(header), refused.eq(header != 0),
                        left.eq(job.length), of_mask.eq(is_of_mask),
                        x_to_come.eq(Mux(is_of_mask, 0, job.outliers)),
                        i_done.eq(job.length == 0),
                    ]  # fmt: skip
                    m.next = "COUNT"
            with m.State("LOAD"):
                m.d.comb += phase.loading.eq(1)
                with m.If(packet_ends):
                    m.next = "IDLE"
            with m.State("COUNT"):
                m.d.comb += phase.counting.eq(1)
                with m.If(take_i):
                    m.d.sync += [
                        left.eq(Mux(left <= config.elements, 0, left - config.elements)),
                        i_done.eq(self.i.p.last),
                    ]
                with m.If(take_x):
                    m.d.sync += x_to_come.eq(x_to_come - 1)
                with m.If(~refused):
                    m.d.sync += status.eq(status | found)
                with m.If(i_done & (x_left == 0) & ~beat_held & ~x_held):
                    with m.If(~refused & miscounted):
                        m.d.sync += status.eq(status | Status.OUTLIER_COUNT.value)
                    m.d.sync += step.eq(0)
                    m.next = "REDUCE"
                    with m.If((status != 0) | miscounted):
                        m.next = "TOKEN"
            with m.State("REDUCE"):
                m.d.comb += phase.reducing.eq(1)
                m.d.sync += step.eq(step + 1)
                with m.If(step == config.bins - 1):
                    m.next = "SETTLE"
            with m.State("SETTLE"):  # the last term is added
                m.next = "TOKEN"
            with m.State("TOKEN"):
                m.d.comb += self.token.valid.eq(1)
                m.d.sync += step.eq(0)
                with m.If(self.token.ready):
                    m.next = "IDLE"
                    with m.If(status == 0):
                        m.next = "VALUES"
            with m.State("VALUES"):
                m.d.comb += self.value.valid.eq(1)
                with m.If(self.value.ready):
                    m.d.sync += step.eq(step + 1)
                    with m.If(step == len(NORM_SUMS) - 1):
                        m.next = "IDLE"
        return m


def _codebook(m: Module, config: KllmNormSumsConfig, codebook, phase: _Phase):
    """(ring, loaded, packet_ends): centroids in a ring that the reduction turns once per token."""
    loaded = Signal()
    bad = Signal()
    words = Signal(range(config.bins + 2))  # so far, held at one too many
    word = codebook.p.word
    take_word = Signal()
    bad_word = Signal()
    ring = [Signal(FP16.bits, name=f"ring_{j}", reset_less=True) for j in range(config.bins)]
    m.d.comb += [
        codebook.ready.eq(phase.loading),
        take_word.eq(codebook.valid & phase.loading),
        bad_word.eq(bad | (word[:-1] > _ONE_FP16)),
    ]
    with m.If(take_word):
        with m.If(codebook.p.last):
            m.d.sync += [
                loaded.eq((words == config.bins - 1) & ~bad_word),
                words.eq(0),
                bad.eq(0),
            ]
        with m.Else():
            m.d.sync += [
                loaded.eq(0),
                words.eq(Mux(words > config.bins, words, words + 1)),
                bad.eq(bad_word),
            ]
    with m.If(take_word | phase.reducing):
        m.d.sync += [now.eq(after) for now, after in pairwise(ring)]
        m.d.sync += ring[-1].eq(Mux(take_word, word, ring[0]))
    return ring, loaded, take_word & codebook.p.last


def _count(m: Module, config: KllmNormSumsConfig, i, left, take_i, phase: _Phase):
    """(counts, mask_count, beat_held): population counts of a beat, a cycle later the bins."""
    within = Signal(config.elements)
    inlier = Signal(config.elements)
    m.d.comb += [
        within.eq(Cat(left > e for e in range(config.elements))),
        inlier.eq(within & ~i.outlier),
    ]
    ones_shape = range(config.elements + 1)
    beat_held = Signal()
    m.d.sync += beat_held.eq(take_i)
    counts = [
        Signal(config.count_bits, name=f"count_{j}", reset_less=True) for j in range(config.bins)
    ]
    for j, count in enumerate(counts):
        ones = Signal(ones_shape, name=f"ones_{j}", reset_less=True)
        chosen = Cat(index == j for index in i.index)
        m.d.sync += ones.eq(sum((inlier & chosen)[e] for e in range(config.elements)))
        following = counts[j + 1] if j + 1 < config.bins else Const(0)
        with m.If(phase.clear):
            m.d.sync += count.eq(0)
        with m.Elif(beat_held):
            m.d.sync += count.eq(count + ones)
        with m.Elif(phase.reducing):
            m.d.sync += count.eq(following)
    mask_count = Signal(_OUTLIERS_BITS, reset_less=True)
    masked = Signal(ones_shape, reset_less=True)
    marked = within & i.outlier
    m.d.sync += masked.eq(sum(marked[e] for e in range(config.elements)))
    with m.If(phase.clear):
        m.d.sync += mask_count.eq(0)
    with m.Elif(beat_held):
        m.d.sync += mask_count.eq(mask_count + masked)
    return counts, mask_count, beat_held


def _outliers(m: Module, config: KllmNormSumsConfig, word, take_x, clear):
    """(x1, x2, x_held): parts and square of an outlier, a cycle later the sums."""
    x_held = Signal()
    raw = unpack(m, word, FP16, "x")
    x_sign = Signal(reset_less=True)
    x_significand = Signal(FP16.precision, reset_less=True)
    x_square = Signal(2 * FP16.precision, reset_less=True)
    x_shift = Signal(FP16.exp_bits, reset_less=True)
    x1 = Signal(signed(config.x1_bits), reset_less=True)
    x2 = Signal(config.x2_bits, reset_less=True)
    m.d.sync += [
        x_held.eq(take_x),
        x_sign.eq(raw.sign),
        x_significand.eq(raw.significand),
        x_square.eq(raw.significand * raw.significand),
        x_shift.eq(raw.exponent - 1),
    ]
    x_fixed = (x_significand << x_shift)[:41]
    with m.If(clear):
        m.d.sync += [x1.eq(0), x2.eq(0)]
    with m.Elif(x_held):
        m.d.sync += [
            x1.eq(x1 + Mux(x_sign, -x_fixed, x_fixed)),
            x2.eq(x2 + (x_square << Cat(Const(0, 1), x_shift))[:82]),
        ]
    return x1, x2, x_held


def _reduce(m: Module, config: KllmNormSumsConfig, centroid, count, phase: _Phase):
    """(a, q): one bin per cycle, count * c, then (count * c) * c."""
    term_held = Signal()
    sign, significand, shift = centroid_parts(centroid)
    term = Signal(config.count_bits + FP16.precision, reset_less=True)
    term_sign = Signal(reset_less=True)
    term_significand = Signal(FP16.precision, reset_less=True)
    term_shift = Signal(4, reset_less=True)
    a = Signal(signed(config.a_bits), reset_less=True)
    q = Signal(config.q_bits, reset_less=True)
    m.d.sync += [
        term_held.eq(phase.reducing),
        term.eq(count * significand),
        term_sign.eq(sign),
        term_significand.eq(significand),
        term_shift.eq(shift),
    ]
    linear = (term << term_shift)[: config.a_bits - 1]
    square = ((term * term_significand) << Cat(Const(0, 1), term_shift))[: config.q_bits]
    with m.If(phase.clear):
        m.d.sync += [a.eq(0), q.eq(0)]
    with m.Elif(term_held):
        m.d.sync += [a.eq(a + Mux(term_sign, -linear, linear)), q.eq(q + square)]
    return a, q


def _header(m: Module, config: KllmNormSumsConfig, job, loaded) -> Value:
    """Status bits of the job word."""
    header = Signal(len(Status))
    epsilon_bad = is_special(job.epsilon, FP32)
    m.d.comb += header.eq(
        Mux(job.length == 0, Status.LENGTH_ZERO.value, 0)
        | Mux(job.length > config.k_max, Status.LENGTH_TOO_LONG.value, 0)
        | Mux(~loaded, Status.CODEBOOK_MISSING.value, 0)
        | Mux(is_special(job.s, FP16) | epsilon_bad, Status.NONFINITE.value, 0)
    )
    return header
