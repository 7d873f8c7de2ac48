"""The k largest and k smallest words of a token, in the order in which two trees pop them.

``pop_order`` gives the popped positions, ``pop_token`` the hardware's results for one token.
``golden.kllm.trees`` has the pair of trees itself.
"""

import dataclasses

import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.fp16.ops import is_nan, total_order_key
from golden.kllm.format import OrizuruStatus, beats

_MAGNITUDE = FP16.sign_bit - 1


def pop_order(x: Tensor, k_max: int, k_min: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions popped from the max and from the min tree: (T, k_max), (T, k_min); NaN flag (T,).

    Both trees use one strict total order on (key, -position), key = sign-magnitude integer with -0
    below +0. The max tree pops it downwards (equal values: lowest position first), the min tree
    upwards (equal values: highest position first). So the two sets are disjoint.
    x: (T, K) FP16 words. Positions of a token with a NaN are of no use: its flag is set.
    ValueError: a negative count, or k_max + k_min >= K. Source: KLLM, section IV-C.
    """
    order = _downwards(x, k_max, k_min)
    smallest = order.flip(-1)[..., :k_min]
    return order[..., :k_max], smallest, is_nan(x, FP16).any(dim=-1)


def _downwards(x: Tensor, k_max: int, k_min: int) -> Tensor:
    """All positions from the largest word to the smallest, (T, K), once the counts are sound."""
    length = x.shape[-1]
    if k_max < 0 or k_min < 0:
        raise ValueError(f"k_max and k_min must be at least 0, not {k_max} and {k_min}")
    if k_max + k_min >= length:
        raise ValueError(f"k_max + k_min must be below the length {length}, not {k_max + k_min}")
    # A stable descending sort keeps equal keys in ascending position.
    return torch.sort(total_order_key(x, FP16), dim=-1, descending=True, stable=True).indices


def extremes(x: Tensor, k_max: int, k_min: int) -> tuple[Tensor, Tensor, Tensor]:
    """Shows both roots once the outliers are popped: (largest, smallest, scale), (T,) words.

    largest, smallest: the ends of the inliers in the order of ``pop_order``; scale = the larger
    of their magnitudes, which is s_A. All three are the canonical NaN for a token with a NaN.
    x: (T, K) FP16 words. ValueError: as ``pop_order``.
    """
    order = _downwards(x, k_max, k_min)
    ends = torch.stack([order[..., k_max], order[..., x.shape[-1] - 1 - k_min]], dim=-1)
    words = x.long().gather(-1, ends)
    scale = (words & _MAGNITUDE).amax(dim=-1)
    nan = is_nan(x, FP16).any(dim=-1)
    largest, smallest, scale = (
        torch.where(nan, FP16.canonical_nan, word) for word in (words[..., 0], words[..., 1], scale)
    )
    return largest, smallest, scale


@dataclasses.dataclass(frozen=True)
class PoppedToken:
    """The results of kllm_orizuru for one token: pops as (position, word), then the done words."""

    largest_pops: list[tuple[int, int]]
    smallest_pops: list[tuple[int, int]]
    largest: int
    smallest: int
    scale: int
    status: OrizuruStatus


def pop_token(
    words: Tensor, length: int, k_max: int, k_min: int, *, n_max: int, elements: int
) -> PoppedToken:
    """One token as the hardware treats it, faults included.

    words: all FP16 words of the packet in order, whole beats up to ``last``; none if length is 0.
    Only those before ``length`` count. A token with any fault has no pops, and the canonical NaN
    as largest, smallest and scale.
    """
    status = OrizuruStatus(0)
    if length == 0:
        status = OrizuruStatus.LENGTH_ZERO
    else:
        if length > n_max:
            status |= OrizuruStatus.LENGTH_TOO_LONG
        if k_max + k_min >= length:
            status |= OrizuruStatus.OUTLIER_COUNT
        if len(words) != beats(length, elements) * elements:
            status |= OrizuruStatus.LAST_MISPLACED
        if bool(is_nan(words[:length], FP16).any()):
            status |= OrizuruStatus.NAN
    if status:
        nan = FP16.canonical_nan
        return PoppedToken([], [], nan, nan, nan, status)
    x = words[None, :length].long()
    largest, smallest, _ = pop_order(x, k_max, k_min)
    pops = [
        list(zip(position[0].tolist(), x[0, position[0]].tolist(), strict=True))
        for position in (largest, smallest)
    ]
    ends = [int(word) for word in extremes(x, k_max, k_min)]
    return PoppedToken(pops[0], pops[1], ends[0], ends[1], ends[2], status)


def select_unit(key: Tensor, valid: Tensor, smallest: bool = False) -> tuple[Tensor, Tensor]:
    """Winner of each row of leaves: (index, valid), (T,) each; the index of a row without one is 0.

    The largest key, the lowest index among equals; ``smallest``: the smallest key, the highest
    index among equals. key: (T, leaves) unsigned integers; valid: (T, leaves) bool.
    """
    leaves = key.shape[-1]
    # (key, -index) as one integer; an absent leaf loses to every present one in either tree.
    place = key.long() * leaves + (leaves - 1 - torch.arange(leaves, device=key.device))
    place = torch.where(valid, -place if smallest else place, torch.iinfo(torch.int64).min)
    present = valid.any(dim=-1)
    return torch.where(present, place.argmax(dim=-1), 0), present


def comparison_bound(length: int, k_max: int, k_min: int) -> int:
    """``2 (N - 1) - floor(N / 2) + (k_max - 1 + k_min - 1) (ceil(log2 N) - 1)``, N = length >= 1.

    A difference k - 1 and the depth count as 0 where they are negative. The bound holds for every
    N; of a power of two it is ``1.5 N - 2 + (k_max - 1 + k_min - 1) (log2 N - 1)``.

    A tree joins N leaves in N - 1 comparisons; both trees share the floor(N / 2) of the leaves. A
    pop is repaired by at most ceil(log2 N) - 1 comparisons, because the sibling of a popped leaf
    wins without one. Nothing is repaired after the last pop. The roots' next words (``extremes``)
    cost one repair more in each tree.
    """
    repair = max((length - 1).bit_length() - 1, 0)
    built = 2 * (length - 1) - length // 2
    return built + (max(k_max - 1, 0) + max(k_min - 1, 0)) * repair
