"""Softmax of rows of FP16 words with every rounding named, bit-true."""

import torch
from torch import Tensor

from golden.fp16 import functions
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import add, fixed_point, from_fixed, is_nan, mul, negate, total_order_key

__all__ = ["softmax"]

_NEGATIVE_INFINITY = FP16.sign_bit | FP16.infinity


def softmax(x: Tensor) -> tuple[Tensor, Tensor]:
    """(T, L) words and (T,) bool flags of rows that have no result (canonical NaN there).

        m = max s_t;  e_t = exp(rne16(s_t - m));  S = rne32(sum of e_t, exact on the grid 2**-24)
        r = rne32(1 / S);  p_t = rne16(e_t * r)

    A row has no result where an element is NaN or +infinity, or all are -infinity. In other rows
    an element of -infinity gives +0.
    """
    x = torch.as_tensor(x).to(torch.int64) & 0xFFFF
    bad = (is_nan(x) | (x == FP16.infinity)).any(dim=-1)
    bad |= (x == _NEGATIVE_INFINITY).all(dim=-1)
    usable = torch.where(bad[..., None], 0, x)
    at = total_order_key(usable).argmax(dim=-1, keepdim=True)
    e = functions.exp(add(usable, negate(usable.gather(-1, at))))
    total = from_fixed(fixed_point(e).sum(dim=-1), FP16.grid_exponent, FP32)
    r = functions.reciprocal(total, FP32, FP32)
    p = mul(e, r[..., None], FP16, FP32, FP16)
    return torch.where(bad[..., None], FP16.canonical_nan, p), bad
