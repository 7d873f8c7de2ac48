"""K, q and V in a form that quantizes better; the layer computes the same without quantization.

    K' = rope(t * k) + offset,  q' = rope(q / t)        softmax(q' K'^T) = softmax(q K^T)
    V' = v R,                   o' = o R^T              for each head

t has one factor per rotary pair of a KV head, so it commutes with RoPE. ``offset`` adds the same to
a query's scores of all keys, and softmax does not see it. R is orthogonal. t and R go into the
weights offline. The offset is one BINARY ADD per token after ROTARY.
"""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float
from golden.rotation import Rotation, small_matrix

__all__ = ["Conditioning", "balance", "offset"]

_ROTATION_SEED = 0  # of heads whose size has no Hadamard matrix


def balance(q: Tensor, k: Tensor) -> Tensor:
    """t (kv_heads, size) float64 with equal energy of q' and K' in each rotary pair.

    q : (T, heads, size), k : (T, kv_heads, size), both after RoPE. The mean of k over the tokens is
    left out, as the offset takes it. 1 where q or k is zero.
    """
    kv_heads, size = k.shape[1:]
    centred = k.double() - k.double().mean(0)
    energy_k = centred.square().mean(0)
    energy_q = q.double().square().mean(0).reshape(kv_heads, -1, size).mean(1)
    pair_k, pair_q = (each.reshape(kv_heads, 2, -1).sum(1) for each in (energy_k, energy_q))
    factor = torch.where((pair_k > 0) & (pair_q > 0), (pair_q / pair_k) ** 0.25, 1.0)
    return factor.repeat(1, 2)


def offset(k: Tensor, factor: Tensor | None = None) -> Tensor:
    """FP16 words (kv_heads, size) of minus the mean of ``t * k``; k : (T, kv_heads, size)."""
    mean = k.double().mean(0)
    return bits_from_float(-(mean if factor is None else mean * factor), FP16)


@dataclasses.dataclass(frozen=True)
class Conditioning:
    """What the weights of a layer take up. factor : t (kv_heads, size) or None; rotate : R or not.

    size : elements of a head.
    """

    size: int
    factor: Tensor | None = None
    rotate: bool = False

    def weights(self, linear: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The changed ones of q, k, v, o (N, K), float64; q and k as they are without a factor."""
        made: dict[str, Tensor] = {}
        if self.factor is not None:
            k, q = linear["k"].double(), linear["q"].double()
            t = self.factor.to(k.device)
            group = len(q) // len(k)
            of_query = t.repeat_interleave(group, 0).flatten()[:, None]
            made["k"], made["q"] = k * t.flatten()[:, None], q / of_query
        if self.rotate:
            generator = torch.Generator().manual_seed(_ROTATION_SEED)
            turn = Rotation(self.size, small_matrix(self.size, generator))
            v, o = linear["v"].double(), linear["o"].double()
            by_head = v.reshape(-1, self.size, v.shape[1]).transpose(1, 2)
            made["v"] = turn(by_head).transpose(1, 2).reshape(v.shape)
            made["o"] = turn(o.reshape(len(o), -1, self.size)).reshape(o.shape)
        return made
