"""CQ codes of vectors of K and V (docs/blocks/vq_kv_encoder.md)."""

from hdl.million.pq_encoder import MillionPqEncoder, MillionPqEncoderConfig


class VqKvEncoderConfig(MillionPqEncoderConfig):
    """Channel groups are the subspaces, and each KV head has its own codebooks."""


class VqKvEncoder(MillionPqEncoder):
    """``code_g = argmin_j of sum_i (x_i - 2**exponent * C[g][j][i])**2`` of each channel group g.

    This is million_pq_encoder with ``books`` KV heads: a channel group of CQ is a subspace. Nothing
    of it differs (decision 0212). Of equal distances the lowest j wins, and all sums are exact.
    Source: VQ-LLM, Table II (CQ); MILLION, section IV. Golden: golden.index.pq.exact_codes.
    """
