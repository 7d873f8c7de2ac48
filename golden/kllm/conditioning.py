"""K and V in a form that quantizes better; the layer computes the same without quantization.

    K' = rope(k) + offset                    softmax(q K'^T) = softmax(q K^T)
    V' = v R,    o' = o R^T, for each head   attention(V') o'^T = attention(V) o^T

The offset adds the same to a query's scores of all keys, and softmax does not see it. It is one
BINARY ADD per token after ROTARY. R is orthogonal, and the weights of v and o take it up offline.
"""

import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float
from golden.rotation import Rotation, small_matrix

_SEED = 0  # of heads whose size has no Hadamard matrix


def offset(k: Tensor) -> Tensor:
    """FP16 words (kv_heads, size) of minus the mean of K after RoPE, (T, kv_heads, size)."""
    return bits_from_float(-k.double().mean(0), FP16)


def rotated(v: Tensor, o: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Weights of v (kv_heads * size, K) and o (N, heads * size) with R of heads between, float64.

    A bias of v may be a column of its weight.
    """
    generator = torch.Generator().manual_seed(_SEED)
    turn = Rotation(size, small_matrix(size, generator))
    by_head = v.double().reshape(-1, size, v.shape[1]).transpose(1, 2)
    return (
        turn(by_head).transpose(1, 2).reshape(v.shape),
        turn(o.double().reshape(len(o), -1, size)).reshape(o.shape),
    )
