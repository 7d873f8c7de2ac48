"""CQ codes of vectors of K and V (docs/blocks/vq_kv_encoder.md)."""

from typing import ClassVar

from golden.million.config import RateShape
from golden.vqllm.config import ATTEND
from hdl.million.pq_encoder import MillionPqEncoder, MillionPqEncoderConfig
from hdl.vqllm.attend.config import SMALL_PQ


class VqKvEncoderConfig(MillionPqEncoderConfig):
    """Channel groups are the subspaces, and each KV head has its own codebooks."""


class VqKvEncoder(MillionPqEncoder):
    """``code_g = argmin_j of sum_i (x_i - 2**exponent * C[g][j][i])**2`` of each channel group g.

    This is million_pq_encoder with ``books`` KV heads: a channel group of CQ is a subspace. Nothing
    of it differs (decision 0212). Of equal distances the lowest j wins, and all sums are exact.
    Source: VQ-LLM, Table II (CQ); MILLION, section IV. Golden: golden.index.pq.exact_codes.
    """

    golden = "golden.index.pq:exact_codes"
    reference = "tests/index/test_pq.py: test_exact_on_any_words"
    default = VqKvEncoderConfig(books=8)
    configs: ClassVar = {
        "cq2": VqKvEncoderConfig(pq=ATTEND["cq2"].pq, books=8),
        "cq4_64": VqKvEncoderConfig(pq=ATTEND["cq4_64"].pq, books=3),
        "cq2_64": VqKvEncoderConfig(pq=ATTEND["cq2_64"].pq, books=3),
        "small": VqKvEncoderConfig(
            pq=SMALL_PQ, rate=RateShape(macs=8, window_macs=8, lanes=8), books=2
        ),
    }
