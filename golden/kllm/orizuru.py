"""The k largest and k smallest words of a token, in the order in which two trees pop them."""

import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.fp16.ops import is_nan, total_order_key

__all__ = ["outlier_count", "pop_order"]


def outlier_count(length: int, share: float = 0.005) -> int:
    """``k = max(1, round(share * length))``, ties to even: outliers on each side of a token.

    ValueError: share outside 0..0.5.
    """
    if not 0 <= share < 0.5:
        raise ValueError(f"share must be in 0..0.5, not {share}")
    return max(1, round(share * length))


def pop_order(x: Tensor, k_max: int, k_min: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions popped from the max and from the min tree: (T, k_max), (T, k_min); NaN flag (T,).

    One strict total order on (key, -position), key = sign-magnitude integer with -0 below +0: the
    max tree pops it downwards (equal values: lowest position first), the min tree upwards (equal
    values: highest position first), so the two sets are disjoint.
    x: (T, K) FP16 words. Positions of a token with a NaN are of no use: its flag is set.
    ValueError: a negative count, or k_max + k_min >= K. Source: KLLM, section IV-C.
    """
    length = x.shape[-1]
    if k_max < 0 or k_min < 0:
        raise ValueError(f"k_max and k_min must be at least 0, not {k_max} and {k_min}")
    if k_max + k_min >= length:
        raise ValueError(f"k_max + k_min must be below the length {length}, not {k_max + k_min}")
    # A stable descending sort keeps equal keys in ascending position.
    order = torch.sort(total_order_key(x, FP16), dim=-1, descending=True, stable=True).indices
    smallest = order.flip(-1)[..., :k_min]
    return order[..., :k_max], smallest, is_nan(x, FP16).any(dim=-1)
