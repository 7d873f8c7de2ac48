"""Soft caps of scores: y = c * tanh(s / c), in the steps of a pipeline without a table of tanh.

Words are int64 tensors of FP16 bit patterns, any device. Each rounding is to nearest even.
"""

import torch
from torch import Tensor

from golden.fp16 import functions
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import add, fma, mul, negate

_ONE = FP32.bias << FP32.frac_bits
_MAGNITUDE = FP16.sign_bit - 1


def cap_scores(scores: Tensor, cap: int) -> Tensor:
    """``c * tanh(s / c)`` of each score; cap: of ``golden.attention.format.cap_operand``, 0: none.

        z = rne16(|s| * f);  e = exp32(-z)
        y = sign(s) * rne16(rne32(c - c * e) / rne32(1 + e))

    c is the lower half of ``cap``, f the upper one. c = 0 leaves all scores as they are. Any words
    are legal: others than c above 0 and f = rne16(2 / c) give what the steps give. An infinity
    becomes c with its sign: a score beyond FP16 is capped too. -s gives -y.

    Over all finite s, y is within 2**-10.5 * c of c * tanh(s / c). For |s| < c / 16 it is within
    2**-13.9 * c. tests/attention/test_caps.py measures both for caps of ``CAP_RANGE``. The last
    rounding alone may be 2**-11 * c.
    """
    s = torch.as_tensor(scores).to(torch.int64) & 0xFFFF
    c, f = (torch.tensor(word, device=s.device) for word in (cap & 0xFFFF, cap >> 16))
    if not int(c):
        return s
    e = functions.exp(negate(mul(s & _MAGNITUDE, f)), FP32)
    above = fma(e, negate(c), c, FP32, FP16, FP16, FP32)
    below = add(e, torch.tensor(_ONE, device=s.device), FP32)
    return functions.divide(above, below, FP32, FP32, FP16) ^ (s & FP16.sign_bit)
