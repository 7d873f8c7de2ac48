"""One linear layer and the attention of KLLM, bit-true, many tokens at a time.

The same arithmetic as the programs of golden.kllm.layer, without their memories: each function
below is the sequence of commands that it names. Words are FP16 bit patterns, int64.
"""

import torch
from torch import Tensor

from golden.attention.softmax import softmax
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import bits_from_float, float_from_bits, mul
from golden.kllm.format import NO_OUTPUT, Status
from golden.kllm.functional import binary
from golden.kllm.isa import Binary, Norm, OutlierMode
from golden.kllm.matmul import MatmulResult, index_matmul, integer_matmul
from golden.kllm.orizuru import outlier_count
from golden.kllm.quantize import QuantizedWeight
from golden.kllm.quantizer import SlotTokens, quantize_command, quantize_integer_command

__all__ = ["attention", "dequantize", "linear", "quantize"]

_ONE = FP16.bias << FP16.frac_bits
_MINUS_INFINITY = FP16.sign_bit | FP16.infinity


def quantize(
    x: Tensor,
    codebook: Tensor,
    share: float = 0.0,
    thresholds: tuple[int, int] | None = None,
    epsilon: float | None = None,
) -> SlotTokens:
    """QUANTIZE of (T, K) words: ``share`` of outliers on each side, or beyond two words (OFFLINE).

    epsilon: with the statistics of RMSNorm. ArithmeticError: a token has no result.
    """
    k = outlier_count(x.shape[1], share) if share and thresholds is None else 0
    upper, lower = thresholds or (0, 0)
    made = quantize_command(
        x, k, k, OutlierMode.ONLINE if thresholds is None else OutlierMode.OFFLINE, upper, lower,
        codebook, Norm.NONE if epsilon is None else Norm.RMS,
        int(bits_from_float(torch.tensor(epsilon or 0.0).double(), FP32)), x.shape[1],
    )  # fmt: skip
    return _quantized("QUANTIZE", made)


def _quantized(command: str, made: SlotTokens) -> SlotTokens:
    if made.command_status:
        raise ArithmeticError(f"{command}: {made.command_status!r}")
    return made


def _multiplied(made: MatmulResult) -> MatmulResult:
    """Infinities that follow IEEE 754 pass; a row without outputs does not."""
    if not bool(made.has_output.all()):
        status = Status(int(made.status[~made.has_output][0])) & NO_OUTPUT
        raise ArithmeticError(f"MATMUL: {status!r}")
    return made


def linear(
    x: Tensor,
    tokens: SlotTokens,
    codebook: Tensor,
    weight: QuantizedWeight,
    product: str = "rounded",
    fold_norm: bool = False,
) -> MatmulResult:
    """MATMUL of tokens that ``quantize`` made from the words x (T, K); fold_norm as the command.

    ArithmeticError: a token has no result.
    """
    s_b = weight.scale
    if fold_norm:
        s_b = mul(s_b[None, :], tokens.rms_reciprocal[:, None], FP16, FP32, FP16)
    words = torch.where(tokens.outlier, x, 0)
    made = index_matmul(
        tokens.index, tokens.outlier, words, tokens.scale, weight.index, s_b, codebook,
        weight.codebook, product,
    )  # fmt: skip
    return _multiplied(made)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    codebook_k: Tensor,
    codebook_v: Tensor,
    codebook_q: Tensor | None = None,
    integer_bits: int = 8,
    product: str = "rounded",
) -> Tensor:
    """Causal attention of one sequence: (heads, T, head_size) words.

    q: (heads, T, head_size) words with 1 / sqrt(head_size) in them, k, v: (kv_heads, T, head_size),
    K rotated. K and V are quantized without outliers; scores by DIRECT, or of quantized q where
    ``codebook_q`` is given; then BINARY (mask), SOFTMAX, BINARY (V's scales), QUANTIZE_INTEGER and
    MATMUL INTEGER, as golden.kllm.layer orders them. ArithmeticError: a row has no result.
    """
    heads, tokens, size = q.shape
    kv_heads = len(k)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    mask = torch.where(hidden, _MINUS_INFINITY, 0).repeat(heads // kv_heads, 1)
    made = []
    for head, queries in enumerate(q.reshape(kv_heads, -1, size)):
        keys, values = quantize(k[head], codebook_k), quantize(v[head], codebook_v)
        if codebook_q is None:
            every = torch.ones_like(queries, dtype=torch.bool)
            ones = torch.full_like(queries[:, 0], _ONE)
            scores = index_matmul(
                torch.zeros_like(queries), every, queries, ones, keys.index.t(), keys.scale,
                codebook_k, codebook_k, product,
            )  # fmt: skip
        else:
            slots = quantize(queries, codebook_q)
            scores = index_matmul(
                slots.index, slots.outlier, queries, slots.scale, keys.index.t(), keys.scale,
                codebook_q, codebook_k, product,
            )  # fmt: skip
        p, bad = softmax(binary(Binary.ADD, _multiplied(scores).y, mask))
        if bool(bad.any()):
            raise ArithmeticError("SOFTMAX: a score is NaN or infinite")
        weighted = binary(Binary.MULTIPLY, p, values.scale.expand_as(p))
        a = _quantized("QUANTIZE_INTEGER", quantize_integer_command(weighted, integer_bits))
        scale = torch.full((size,), _ONE, device=q.device)
        y = integer_matmul(a.entry, a.scale, values.index, scale, codebook_v, integer_bits)
        made.append(_multiplied(y).y.reshape(-1, tokens, size))
    return torch.cat(made)


def dequantize(tokens: SlotTokens, x: Tensor, codebook: Tensor) -> Tensor:
    """``s * c``, or the outlier itself, of tokens made from the words x: (T, K) float64, exact."""
    value = float_from_bits(codebook)[tokens.index.long()] * float_from_bits(tokens.scale)[:, None]
    return torch.where(tokens.outlier, float_from_bits(x), value)
