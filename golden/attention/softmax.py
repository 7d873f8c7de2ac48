"""Softmax of rows of FP16 scores, whole and in the parts that an engine computes one by one.

Words are int64 tensors of bit patterns, any device: FP16, and FP32 where a docstring says so. Every
rounding is to nearest even and written as rne16 or rne32. Nothing else rounds.
"""

import dataclasses

import torch
from torch import Tensor

from golden.fp16 import functions
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import add, fixed_point, from_fixed, is_nan, mul, negate
from golden.fp16.ops import total_order_key as order_key

_NEGATIVE_INFINITY = FP16.sign_bit | FP16.infinity


@dataclasses.dataclass(frozen=True)
class Partial:
    """Softmax of (..., L) scores before the division.

    Rows that are ``bad`` have no result. Their other fields are unspecified.
    """

    maximum: Tensor  # (...,) words, m = max s
    weight: Tensor  # (..., L) words, e = exp(rne16(s - m))
    total: Tensor  # (...,) int64, the exact sum of the weights in units of 2**-24
    bad: Tensor  # (...,) bool: an element is NaN or +infinity, or all are -infinity


def _words(x) -> Tensor:
    return torch.as_tensor(x).to(torch.int64) & 0xFFFF


def difference(scores: Tensor, maximum: Tensor) -> Tensor:
    """``rne16(s - m)``: (..., L) words of (..., L) scores and (...,) maxima."""
    return add(_words(scores), negate(_words(maximum)[..., None]))


def partial(scores: Tensor) -> Partial:
    """Maximum, weights and exact sum of each row of (..., L) scores.

        m = max s;  e = exp(rne16(s - m));  total = sum e on the grid 2**-24, exact

    The order of words finds the maximum, with -0 below +0. A score of -infinity gives +0.
    """
    x = _words(scores)
    bad = (is_nan(x) | (x == FP16.infinity)).any(dim=-1)
    bad |= (x == _NEGATIVE_INFINITY).all(dim=-1)
    usable = torch.where(bad[..., None], 0, x)
    at = order_key(usable).argmax(dim=-1, keepdim=True)
    maximum = usable.gather(-1, at)[..., 0]
    weight = functions.exp(difference(usable, maximum))
    return Partial(maximum, weight, fixed_point(weight).sum(dim=-1), bad)


def row_weights(window: Tensor, past: Tensor) -> tuple[Tensor, Tensor, Partial]:
    """(weights of window, weights of past, Partial) of (..., R) and (..., N) scores of one row.

    Both parts have one maximum. Weights and total of a ``bad`` row are 0.
    """
    part = partial(torch.cat([_words(window), _words(past)], dim=-1))
    weight = torch.where(part.bad[..., None], 0, part.weight)
    part = dataclasses.replace(part, weight=weight, total=torch.where(part.bad, 0, part.total))
    first = torch.as_tensor(window).shape[-1]
    return weight[..., :first], weight[..., first:], part


def reciprocal(total: Tensor) -> Tensor:
    """``r = rne32(1 / rne32(total * 2**-24))``: FP32 words of int64 sums."""
    return functions.reciprocal(from_fixed(total, FP16.grid_exponent, FP32), FP32, FP32)


def softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """(..., L) words and (...,) bool flags of rows that have no result (canonical NaN there).

        m = max s;  e = exp(rne16(s - m));  S = rne32(sum e, exact on the grid 2**-24)
        r = rne32(1 / S);  p = rne16(e * r)

    A row has no result if an element is NaN or +infinity, or if all are -infinity. An element
    of -infinity gives +0 otherwise.
    """
    part = partial(scores)
    p = mul(part.weight, reciprocal(part.total)[..., None], FP16, FP32, FP16)
    return torch.where(part.bad[..., None], FP16.canonical_nan, p), part.bad
