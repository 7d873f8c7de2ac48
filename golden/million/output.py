"""The outputs of queries from their exact sums.

Words are int64 tensors of bit patterns, any device. Each rounding is to nearest even.
"""

from torch import Tensor

from golden.attention.exact import quotients
from golden.fp16.limbs import Limbs, from_shifted
from golden.million.format import EXPONENT_MIN, PRODUCT_GRID


def outputs(
    past: Limbs | Tensor, exponent: int, window: Limbs | Tensor, total: Tensor, bad: Tensor
) -> Tensor:
    """``o = rne16(rne32(2**e * N + W) * rne32(1 / rne32(S)))``: (L, d) words.

    past : (L, d) N in units of 2**-48; window : (L, d) W in units of 2**-48, in limbs or int64
    exponent : e, the codebook's scale; total : (L,) S in units of 2**-24, 0 only where bad
    bad : (L,) queries without a result, canonical NaN in all elements

    ``2**e * N + W`` is exact, on the grid of the smallest scale.
    """
    n, w = (
        sums if isinstance(sums, Limbs) else from_shifted([(sums, 0)]) for sums in (past, window)
    )
    merged = n.shifted(exponent - EXPONENT_MIN).plus(w.shifted(-EXPONENT_MIN))
    return quotients(merged, PRODUCT_GRID + EXPONENT_MIN, total, bad)
