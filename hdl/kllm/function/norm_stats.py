"""Norm statistics of quantized tokens from index counts."""

import dataclasses
from typing import ClassVar

from amaranth import Module
from amaranth.lib import stream

from golden.config import bounded
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.children import add
from hdl.kllm.function.norm_finish import KllmNormFinish, KllmNormFinishConfig, norm_result_layout
from hdl.kllm.function.norm_sums import KllmNormSums, KllmNormSumsConfig, norm_inputs
from hdl.ports import Out
from hdl.stream.link import link, link_members


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmNormStatsConfig(KllmNormSumsConfig):
    """Shape of the statistics unit: that of the sums, and the depth of the operators."""

    convert_stages: int = bounded(3, 1, 8, "cycles of the fixed-point conversion")
    fma_stages: int = bounded(4, 1, 8, "cycles of the multiply-add")
    divide_stages: int = bounded(15, 1, 32, "cycles of the quotient")
    rsqrt_stages: int = bounded(15, 1, 32, "cycles of the reciprocal square root")

    @property
    def sums(self) -> KllmNormSumsConfig:
        return KllmNormSumsConfig(bits_a=self.bits_a, elements=self.elements, k_max=self.k_max)

    @property
    def finish(self) -> KllmNormFinishConfig:
        return KllmNormFinishConfig(
            value_bits=self.x2_bits + 1,
            convert_stages=self.convert_stages,
            fma_stages=self.fma_stages,
            divide_stages=self.divide_stages,
            rsqrt_stages=self.rsqrt_stages,
        )

    @property
    def timing(self) -> Timing:
        """The sums from the last beat to the next job; then the floating-point part."""
        next_job = "from a token's last beat to the next job"
        sums = self.sums.timing.delay(next_job)
        return Timing(
            latency=sums + self.finish.cycles(layer_norm=False),
            latency_max=sums + self.finish.cycles(layer_norm=True),
            start="a token's last beat",
            unit="beat",
            delays=((next_job, sums),),
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

    The compiler folds gamma into the weights before their k-means. So the token is not normalised,
    and the product is scaled afterwards (golden.kllm.norms.fold, normalise): ``y = rms_reciprocal *
    (x @ F - mean * colsum(F)) + beta @ W + bias``.

    Compared with float64, for 512 elements at 4 and 4 bits, roundings cost 3e-4 (RMSNorm) and 3e-4
    to 6e-4 (LayerNorm) of the output's RMS. With quantization the error is 0.13 (``pytest -s
    tests/kllm/test_norms.py -k folded``). A and X1 are on the grid 2**-24, Q and X2 on 2**-48.
    mean_sq and rms_reciprocal are each within 3 roundings of exact. LayerNorm's v is a difference
    of rounded terms: its relative error is about 2**-23 mean_sq / v, or 1e-4 where the mean is 30
    deviations.

    At the default stages the floating-point part takes 42 cycles for RMSNorm and 64 for LayerNorm.
    From a token's last beat to its word that is 68 and 90. So tokens of 23 or 45 beats and more
    never wait for it. Decisions 0025 and 0026 give the reasons.
    """

    tier = Tier.PART
    golden = "golden.kllm.norms:norm_statistics"
    default = KllmNormStatsConfig()
    configs: ClassVar = {
        "table1": KllmNormStatsConfig(),
        "table1_w4a3": KllmNormStatsConfig(bits_a=3),
        "small": KllmNormStatsConfig(bits_a=2, elements=4, k_max=100),
    }

    OUTLIERS_OF_MASK = KllmNormSums.OUTLIERS_OF_MASK

    def __init__(self, config: KllmNormStatsConfig):
        super().__init__(
            config,
            {
                **norm_inputs(config),
                "o": Out(
                    stream.Signature(norm_result_layout),
                    "mean (LayerNorm, else +0), reciprocal RMS or deviation, status bits",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return self.config.timing

    def elaborate(self, platform) -> Module:
        m = Module()
        sums = add(m, "sums", KllmNormSums(self.config.sums))
        finish = add(m, "finish", KllmNormFinish(self.config.finish))
        link_members(m, self, sums, ("codebook", "job", "i", "x"))
        link(m, sums.token, finish.token)
        link(m, sums.value, finish.value)
        link(m, finish.o, self.o)
        return m
