"""Norm statistics of quantized tokens from index counts (docs/blocks/kllm_norm_stats.md)."""

import dataclasses
from itertools import pairwise
from typing import ClassVar

from amaranth import Array, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from golden.config import Config
from golden.fp16.format import FP16, FP32
from golden.index.format import CODEBOOK_BITS_MAX, CODEBOOK_BITS_MIN, K_MAX
from golden.kllm import timing
from golden.kllm.format import Status
from golden.timing import Timing
from hdl.block import Block
from hdl.emit import add
from hdl.fp16.convert import convert
from hdl.fp16.divide import FpDivide, FpDivideConfig
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.fp16.rsqrt import FpRsqrt, FpRsqrtConfig
from hdl.fp16.unpack import unpack
from hdl.index.reducer import centroid_parts
from hdl.kllm.scaler import is_special

__all__ = ["KllmNormStats", "KllmNormStatsConfig"]

_ONE_FP16, _ONE_FP32 = 0x3C00, 0x3F800000
_OUTLIERS_BITS = 16
_GRID = FP16.grid_exponent
# What goes through the one converter, in this order: (grid, which of the grids below).
_GRIDS = (_GRID, 2 * _GRID, 0)
_VALUES = ("q", "x2", "a", "x1", "length")
_GRID_OF = {"q": 1, "x2": 1, "a": 0, "x1": 0, "length": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmNormStatsConfig(Config):
    """Shape of the statistics unit."""

    bits_a: int = 4  # bits of an index, 2..4
    elements: int = 16  # elements per cycle, 1..32
    k_max: int = K_MAX  # longest token, 1..16383
    convert_stages: int = 2  # cycles of the fixed-point conversion, 1..8
    fma_stages: int = 3  # cycles of the multiply-add, 1..8
    divide_stages: int = 13  # cycles of the quotient, 1..32
    rsqrt_stages: int = 13  # cycles of the reciprocal square root, 1..32

    def __post_init__(self) -> None:
        self._check_range("bits_a", CODEBOOK_BITS_MIN, CODEBOOK_BITS_MAX)
        self._check_range("elements", 1, 32)
        self._check_range("k_max", 1, K_MAX)
        for field in ("convert_stages", "fma_stages"):
            self._check_range(field, 1, 8)
        for field in ("divide_stages", "rsqrt_stages"):
            self._check_range(field, 1, 32)

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
    def codebook_layout(self) -> data.StructLayout:
        return data.StructLayout({"word": FP16.bits, "last": 1})

    @property
    def job_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {
                "length": 16,
                "s": FP16.bits,
                "epsilon": FP32.bits,
                "layer_norm": 1,
                "outliers": _OUTLIERS_BITS,
            }
        )

    @property
    def i_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {
                "index": data.ArrayLayout(self.bits_a, self.elements),
                "outlier": self.elements,
                "last": 1,
            }
        )

    @property
    def x_layout(self) -> data.StructLayout:
        return data.StructLayout({"word": FP16.bits})

    @property
    def o_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {"mean": FP32.bits, "rms_reciprocal": FP32.bits, "status": len(Status)}
        )


class KllmNormStats(Block):
    """Mean and reciprocal RMS of a token from its index counts and outliers, in FP32.

    n_j is the number of inliers of index j, and K is the length. Four sums are exact integers:

        A = sum n_j c_j,     Q = sum n_j c_j**2
        X1 = sum of outliers, X2 = sum of their squares

    The roundings are:

        sum_sq = fma32(s**2, rne32(Q), rne32(X2)),  mean_sq = rne32(sum_sq / K)
        RMSNorm:    mean = +0,                                             v = mean_sq
        LayerNorm:  mean = rne32(fma32(s, rne32(A), rne32(X1)) / K),
                    v = max(+0, fma32(-mean, mean, mean_sq))
        rms_reciprocal = rsqrt32(rne32(v + epsilon))

    Every rounding is written above, nearest even. A token has one job, its beats up to ``last`` and
    ``outliers`` words of x, or with OUTLIERS_OF_MASK as many as its mask has bits. The three may be
    offered in any order and wait for one another. Elements beyond the length are not counted,
    whatever their index and mask bit. A job of length 0 has no beats. One word of o per job, in
    order.

    status: bits of golden.kllm.format.Status.

        LENGTH_ZERO
        LENGTH_TOO_LONG   beyond k_max
        CODEBOOK_MISSING  the latest packet had not 2**bits_a words of magnitude at most 1, or none
                          came since reset
        NONFINITE         s or epsilon is NaN or infinite
        LAST_MISPLACED    ``last`` not on beat ceil(K / elements)
        OUTLIER_COUNT     mask bits and ``outliers`` differ
        NONFINITE         an outlier is NaN or infinite
        OVERFLOW          rms_reciprocal is infinite or NaN, v + epsilon being 0 or negative; words
                          as computed

    Where one of the first four is set, these alone are shown, and the job's words are discarded.
    With any bit but OVERFLOW mean and rms_reciprocal are the canonical NaN.

    A codebook packet is taken when no token is being counted or reduced, before the next job. The
    block takes 1 beat and 1 outlier per cycle. It takes the next job 2**bits_a + 10 cycles after
    the last word of a token, 4 after that of a faulty one. Meanwhile the floating-point part goes
    on with the token. That part takes one token at a time, so a short token may have to wait for
    it.
    ``job.ready`` depends combinationally on ``codebook.valid``.
    Source: KLLM, section III-C2. Golden: golden.kllm.norms.norm_statistics.

    Members
    -------
    codebook : In(stream)  word: FP16 centroid, 2**bits_a of them; last
    job : In(stream)       length; s: FP16; epsilon: FP32; layer_norm; outliers: words of x
    i : In(stream)         index: elements x bits_a; outlier: mask; last
    x : In(stream)         word: FP16 outlier
    o : Out(stream)        mean, rms_reciprocal: FP32; status
    """

    OUTLIERS_OF_MASK = 2**_OUTLIERS_BITS - 1  # a job's outliers where only the mask knows them
    meaning: ClassVar[dict[str, str]] = {
        "codebook": "activation centroids, magnitude at most 1, kept until replaced",
        "job": "one token: elements, scale, epsilon, kind of norm, outliers (65535: see the mask)",
        "i": "indices of the token and the mask of its outliers; last ends it",
        "x": "outlier values in any order, as many as the job says",
        "o": "mean (LayerNorm, else +0), reciprocal RMS or deviation, status bits",
    }

    def __init__(self, config: KllmNormStatsConfig):
        super().__init__(
            config,
            {
                "codebook": In(stream.Signature(config.codebook_layout)),
                "job": In(stream.Signature(config.job_layout)),
                "i": In(stream.Signature(config.i_layout)),
                "x": In(stream.Signature(config.x_layout)),
                "o": Out(stream.Signature(config.o_layout)),
            },
        )

    @property
    def reduce_cycles(self) -> int:
        """Cycles from a token's last beat to the next job, the float part being idle."""
        return self.config.bins + len(_VALUES) + 5

    def float_cycles(self, layer_norm: bool) -> int:
        """Cycles from the last conversion to the word of o."""
        config = self.config
        multiply_adds, quotients = (5, 2) if layer_norm else (3, 1)
        return (
            config.convert_stages
            + multiply_adds * (config.fma_stages + 1)
            + quotients * (config.divide_stages + 1)
            + config.rsqrt_stages
            + 1
        )

    @property
    def timing(self) -> Timing:
        return timing.norm_stats(
            self.reduce_cycles, self.float_cycles(False), self.float_cycles(True)
        )

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        self.start = Signal()  # the float part takes this token
        self.float_idle = Signal()
        self.status = Signal(len(Status))
        self.job_now = Signal(config.job_layout, reset_less=True)
        self.converter = add(
            m,
            "converter",
            FixedToFloat(
                FixedToFloatConfig(
                    width=config.x2_bits + 1,
                    grid_exponents=_GRIDS,
                    o=FP32,
                    stages=config.convert_stages,
                    tag_bits=len(_VALUES).bit_length(),
                )
            ),
        )
        self._elaborate_sums(m)
        self._elaborate_float(m)
        return m

    def _elaborate_sums(self, m: Module) -> None:
        """Counting, exact sums, and their way to the float part."""
        config = self.config
        job, job_now, status = self.job.p, self.job_now, self.status

        # Codebook: a ring that the reduction turns once per token.
        loading, counting, reducing = Signal(), Signal(), Signal()
        loaded, bad = Signal(), Signal()
        words = Signal(range(config.bins + 2))  # so far, held at one too many
        word = self.codebook.p.word
        take_word, bad_word = Signal(), Signal()
        ring = [Signal(FP16.bits, name=f"ring_{j}", reset_less=True) for j in range(config.bins)]
        m.d.comb += [
            self.codebook.ready.eq(loading),
            take_word.eq(self.codebook.valid & loading),
            bad_word.eq(bad | (word[:-1] > _ONE_FP16)),
        ]
        with m.If(take_word):
            with m.If(self.codebook.p.last):
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
        with m.If(take_word | reducing):
            m.d.sync += [now.eq(after) for now, after in pairwise(ring)]
            m.d.sync += ring[-1].eq(Mux(take_word, word, ring[0]))

        # Elements: population counts of a beat, then the bins.
        left = Signal(16, reset_less=True)  # elements to come
        of_mask = Signal(reset_less=True)  # outliers are as many as the mask says
        x_to_come = Signal(_OUTLIERS_BITS, reset_less=True)  # less those of the mask, modulo 2**16
        x_left = Signal(_OUTLIERS_BITS)
        i_done, clear = Signal(reset_less=True), Signal()
        take_i, take_x = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(counting & ~i_done),
            self.x.ready.eq(counting & (x_left != 0)),
            take_i.eq(self.i.valid & self.i.ready),
            take_x.eq(self.x.valid & self.x.ready),
        ]
        # Wide enough for any job's length: a refused one's words are dropped, all of them.
        mask_count = Signal(_OUTLIERS_BITS, reset_less=True)
        m.d.comb += x_left.eq(x_to_come + Mux(of_mask, mask_count, 0))
        within = Signal(config.elements)
        inlier = Signal(config.elements)
        m.d.comb += [
            within.eq(Cat(left > e for e in range(config.elements))),
            inlier.eq(within & ~self.i.p.outlier),
        ]
        ones_shape = range(config.elements + 1)
        beat_held = Signal()
        m.d.sync += beat_held.eq(take_i)
        counts = [
            Signal(config.count_bits, name=f"count_{j}", reset_less=True)
            for j in range(config.bins)
        ]
        for j, count in enumerate(counts):
            ones = Signal(ones_shape, name=f"ones_{j}", reset_less=True)
            chosen = Cat(index == j for index in self.i.p.index)
            m.d.sync += ones.eq(sum((inlier & chosen)[e] for e in range(config.elements)))
            following = counts[j + 1] if j + 1 < config.bins else Const(0)
            with m.If(clear):
                m.d.sync += count.eq(0)
            with m.Elif(beat_held):
                m.d.sync += count.eq(count + ones)
            with m.Elif(reducing):
                m.d.sync += count.eq(following)
        masked = Signal(ones_shape, reset_less=True)
        marked = within & self.i.p.outlier
        m.d.sync += masked.eq(sum(marked[e] for e in range(config.elements)))
        with m.If(clear):
            m.d.sync += mask_count.eq(0)
        with m.Elif(beat_held):
            m.d.sync += mask_count.eq(mask_count + masked)

        # Outliers: parts and their square, then the sums.
        x_held = Signal()
        raw = unpack(m, self.x.p.word, FP16, "x")
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

        # Reduction: one bin per cycle, count * c, then (count * c) * c.
        term_held = Signal()
        sign, significand, shift = centroid_parts(ring[0])
        term = Signal(config.count_bits + FP16.precision, reset_less=True)
        term_sign = Signal(reset_less=True)
        term_significand = Signal(FP16.precision, reset_less=True)
        term_shift = Signal(4, reset_less=True)
        a = Signal(signed(config.a_bits), reset_less=True)
        q = Signal(config.q_bits, reset_less=True)
        m.d.sync += [
            term_held.eq(reducing),
            term.eq(counts[0] * significand),
            term_sign.eq(sign),
            term_significand.eq(significand),
            term_shift.eq(shift),
        ]
        linear = (term << term_shift)[: config.a_bits - 1]
        square = ((term * term_significand) << Cat(Const(0, 1), term_shift))[: config.q_bits]
        with m.If(clear):
            m.d.sync += [a.eq(0), q.eq(0)]
        with m.Elif(term_held):
            m.d.sync += [a.eq(a + Mux(term_sign, -linear, linear)), q.eq(q + square)]

        header = Signal(len(Status))
        epsilon_bad = is_special(job.epsilon, FP32)
        m.d.comb += header.eq(
            Mux(job.length == 0, Status.LENGTH_ZERO.value, 0)
            | Mux(job.length > config.k_max, Status.LENGTH_TOO_LONG.value, 0)
            | Mux(~loaded, Status.CODEBOOK_MISSING.value, 0)
            | Mux(is_special(job.s, FP16) | epsilon_bad, Status.NONFINITE.value, 0)
        )
        refused = Signal(reset_less=True)  # by its header
        found = Signal(len(Status))
        misplaced = self.i.p.last != (left <= config.elements)
        m.d.comb += found.eq(
            Mux(take_i & misplaced, Status.LAST_MISPLACED.value, 0)
            | Mux(take_x & is_special(self.x.p.word, FP16), Status.NONFINITE.value, 0)
        )
        miscounted = ~of_mask & (mask_count != job_now.outliers)

        step = Signal(range(max(config.bins, len(_VALUES))))
        values = {"q": q, "x2": x2, "a": a, "x1": x1, "length": job_now.length}
        to_convert = Signal(signed(config.x2_bits + 1))
        order = Array(Const(_GRID_OF[name], 2) for name in _VALUES)
        with m.Switch(step):
            for k, name in enumerate(_VALUES):
                with m.Case(k):
                    m.d.comb += to_convert.eq(values[name])
        converting = Signal()
        m.d.comb += [
            self.converter.i.valid.eq(converting),
            self.converter.i.p.value.eq(to_convert),
            self.converter.i.p.grid.eq(order[step]),
            self.converter.i.p.tag.eq(step),
        ]

        with m.FSM():
            with m.State("IDLE"):
                with m.If(self.codebook.valid):
                    m.next = "LOAD"
                with m.Else():
                    m.d.comb += self.job.ready.eq(1)
                with m.If(self.job.valid & self.job.ready):
                    m.d.comb += clear.eq(1)
                    m.d.sync += [
                        job_now.eq(job),
                        status.eq(header),
                        refused.eq(header != 0),
                        left.eq(job.length),
                        of_mask.eq(job.outliers == KllmNormStats.OUTLIERS_OF_MASK),
                        x_to_come.eq(
                            Mux(job.outliers == KllmNormStats.OUTLIERS_OF_MASK, 0, job.outliers)
                        ),
                        i_done.eq(job.length == 0),
                    ]
                    m.next = "COUNT"
            with m.State("LOAD"):
                m.d.comb += loading.eq(1)
                with m.If(take_word & self.codebook.p.last):
                    m.next = "IDLE"
            with m.State("COUNT"):
                m.d.comb += counting.eq(1)
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
                        m.next = "HAND"
            with m.State("REDUCE"):
                m.d.comb += reducing.eq(1)
                m.d.sync += step.eq(step + 1)
                with m.If(step == config.bins - 1):
                    m.next = "SETTLE"
            with m.State("SETTLE"):  # the last term is added
                m.next = "HAND"
            with m.State("HAND"):
                m.d.sync += step.eq(0)
                with m.If(self.float_idle):
                    m.d.comb += self.start.eq(1)
                    m.next = "IDLE"
                    with m.If(status == 0):
                        m.next = "CONVERT"
            with m.State("CONVERT"):
                m.d.comb += converting.eq(1)
                with m.If(self.converter.i.ready):
                    m.d.sync += step.eq(step + 1)
                    with m.If(step == len(_VALUES) - 1):
                        m.next = "IDLE"

    def _elaborate_float(self, m: Module) -> None:
        """One operation after another on one multiply-add, one divider, one root."""
        config = self.config
        fuse = add(
            m,
            "fuse",
            FpFma(FpFmaConfig(a=FP32, b=FP32, c=FP32, o=FP32, stages=config.fma_stages)),
        )
        divide = add(
            m,
            "divide",
            FpDivide(FpDivideConfig(a=FP32, b=FP32, o=FP32, stages=config.divide_stages)),
        )
        root = add(m, "rsqrt", FpRsqrt(FpRsqrtConfig(a=FP32, o=FP32, stages=config.rsqrt_stages)))

        def register(name: str) -> Signal:
            return Signal(FP32.bits, name=name, reset_less=True)

        value = {name: register(f"float_{name}") for name in _VALUES}
        mean_sq, total, mean, reciprocal = map(
            register, ("mean_sq", "total", "mean", "rms_reciprocal")
        )
        s, epsilon = Signal(FP16.bits, reset_less=True), register("epsilon")
        layer_norm = Signal(reset_less=True)
        status = Signal(len(Status), reset_less=True)
        wide_s = Signal(FP32.bits)
        variance = Signal(FP32.bits)
        m.d.comb += [
            wide_s.eq(convert(m, s, FP16, FP32)),
            # The rounded difference may be below 0.
            variance.eq(Mux(fuse.o.p.y[-1], 0, fuse.o.p.y)),
        ]

        issued = Signal()  # the operation of this state is in flight
        operands = [Signal(FP32.bits, name=f"operand_{name}") for name in "abc"]
        use = {unit: Signal(name=f"use_{unit}") for unit in ("fuse", "divide", "root")}
        units = {"fuse": fuse, "divide": divide, "root": root}
        done = Signal()
        for name, unit in units.items():
            m.d.comb += [unit.i.valid.eq(use[name] & ~issued), unit.o.ready.eq(1)]
            with m.If(use[name]):
                m.d.sync += issued.eq((issued | unit.i.ready) & ~unit.o.valid)
                m.d.comb += done.eq(issued & unit.o.valid)
        m.d.comb += [
            fuse.i.p.a.eq(operands[0]),
            fuse.i.p.b.eq(operands[1]),
            fuse.i.p.c.eq(operands[2]),
            divide.i.p.a.eq(operands[0]),
            divide.i.p.b.eq(value["length"]),
            root.i.p.a.eq(mean_sq),
            self.converter.o.ready.eq(1),
        ]

        def operate(unit: str, *given) -> None:
            m.d.comb += use[unit].eq(1)
            m.d.comb += [operand.eq(g) for operand, g in zip(operands, given, strict=False)]

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.float_idle.eq(1)
                with m.If(self.start):
                    m.d.sync += [
                        s.eq(self.job_now.s),
                        epsilon.eq(self.job_now.epsilon),
                        layer_norm.eq(self.job_now.layer_norm),
                        status.eq(self.status),
                        mean.eq(Mux(self.status == 0, 0, FP32.canonical_nan)),
                        reciprocal.eq(FP32.canonical_nan),
                    ]
                    m.next = "OUT"
                    with m.If(self.status == 0):
                        m.next = "COLLECT"
            with m.State("COLLECT"):
                with m.If(self.converter.o.valid):
                    for k, name in enumerate(_VALUES):
                        with m.If(self.converter.o.p.tag == k):
                            m.d.sync += value[name].eq(self.converter.o.p.y)
                    with m.If(self.converter.o.p.tag == len(_VALUES) - 1):
                        m.next = "SQUARE"
            with m.State("SQUARE"):
                operate("fuse", wide_s, wide_s, 0)
                with m.If(done):
                    m.d.sync += total.eq(fuse.o.p.y)
                    m.next = "SUM_SQ"
            with m.State("SUM_SQ"):
                operate("fuse", total, value["q"], value["x2"])
                with m.If(done):
                    m.d.sync += total.eq(fuse.o.p.y)
                    m.next = "MEAN_SQ"
            with m.State("MEAN_SQ"):
                operate("divide", total)
                with m.If(done):
                    m.d.sync += mean_sq.eq(divide.o.p.y)
                    m.next = "EPSILON"
                    with m.If(layer_norm):
                        m.next = "SUM"
            with m.State("SUM"):
                operate("fuse", wide_s, value["a"], value["x1"])
                with m.If(done):
                    m.d.sync += total.eq(fuse.o.p.y)
                    m.next = "MEAN"
            with m.State("MEAN"):
                operate("divide", total)
                with m.If(done):
                    m.d.sync += mean.eq(divide.o.p.y)
                    m.next = "VARIANCE"
            with m.State("VARIANCE"):
                operate("fuse", Cat(mean[:-1], ~mean[-1]), mean, mean_sq)
                with m.If(done):
                    m.d.sync += mean_sq.eq(variance)
                    m.next = "EPSILON"
            with m.State("EPSILON"):
                operate("fuse", _ONE_FP32, mean_sq, epsilon)
                with m.If(done):
                    m.d.sync += mean_sq.eq(fuse.o.p.y)
                    m.next = "ROOT"
            with m.State("ROOT"):
                operate("root")
                with m.If(done):
                    m.d.sync += reciprocal.eq(root.o.p.y)
                    with m.If(is_special(root.o.p.y, FP32)):
                        m.d.sync += status.eq(Status.OVERFLOW.value)
                    m.next = "OUT"
            with m.State("OUT"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "IDLE"
        m.d.comb += [
            self.o.p.mean.eq(mean),
            self.o.p.rms_reciprocal.eq(reciprocal),
            self.o.p.status.eq(status),
        ]
