"""Tables of a query, and scores of the past keys from codes (docs/blocks/million_score_engine.md).

Words are int64 tensors of FP16 bit patterns, any device. Every sum is an exact integer, so the
order of keys and of subspaces never matters. Each rounding is to nearest even, written rne16.
"""

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import LIMB_BITS, fixed_point, from_fixed, is_special
from golden.million.format import EXPONENT_MAX, EXPONENT_MIN, PRODUCT_GRID, WEIGHT_GRID

__all__ = ["past_scores", "tables"]

_HALF = 20  # bits of the low part of a query's element: products of both parts fit 62 bits
_CHUNK = 1 << 23  # looked-up entries that a step holds at a time


def tables(q: Tensor, codebook: Tensor, exponent: int) -> tuple[Tensor, Tensor]:
    """``T[m][j] = rne16(2**exponent * sum_i q[m][i] * C[m][j][i])`` and which queries are bad.

    q: (L, d) words; codebook: (M, E, d / M) words of magnitude at most 1. Returns (L, M, E) words
    and (L,) booleans. A query is bad if an entry of its is infinite, or an element of its is NaN
    or infinite. The sum is exact, on the grid 2**-48.

    ConfigError: the exponent is out of range, or the sizes differ.
    """
    if not EXPONENT_MIN <= exponent <= EXPONENT_MAX:
        raise ConfigError(f"exponent must be {EXPONENT_MIN}..{EXPONENT_MAX}, not {exponent}")
    subspaces, _, sub = codebook.shape
    if q.shape[-1] != subspaces * sub:
        raise ConfigError(f"a query must have {subspaces * sub} elements, not {q.shape[-1]}")
    parts = fixed_point(q).reshape(len(q), subspaces, 1, sub)
    entries = fixed_point(codebook)
    upper = ((parts >> _HALF) * entries).sum(-1)  # below 2**(21 + 24 + 6)
    lower = ((parts & ((1 << _HALF) - 1)) * entries).sum(-1)
    # upper * 2**20 + lower as two limbs of 62 bits
    rest = LIMB_BITS - _HALF
    high, low = upper >> rest, ((upper & ((1 << rest) - 1)) << _HALF) + lower
    words = from_fixed(low, PRODUCT_GRID + exponent, FP16, high=high)
    bad = is_special(words).flatten(1).any(-1) | is_special(q.to(torch.int64)).any(-1)
    return words, bad


def past_scores(
    table: Tensor, codes: Tensor, slope: Tensor, distance: int, bad: Tensor | None = None
) -> Tensor:
    """``s = rne16(sum_m T[m][code_m] + slope * distance)`` of n keys, oldest first: (n, L) words.

    table: (L, M, E) words; codes: (n, M) integers; slope: (L,) words. distance: tokens from the
    first key to the query's token; each further key has one less. bad: (L,) booleans of
    ``tables``, further queries without a score. The sum is exact, on the grid 2**-24.

    NaN (0x7E00) is the score of a key with a code beyond the table, and of a bad query. A query is
    also bad if its table or its slope has a NaN or an infinity.
    ConfigError: a key would come after the query.
    """
    keys, entries = len(codes), table.shape[-1]
    if keys and distance < keys - 1:
        raise ConfigError(f"distance must be {keys - 1} or more for {keys} keys, not {distance}")
    rows = fixed_point(table).permute(1, 2, 0).flatten(0, 1).contiguous()  # (M * E, L)
    base = torch.arange(table.shape[1], device=table.device) * entries
    place = codes.long().clamp(0, entries - 1) + base
    steps = place.split(max(1, _CHUNK // (rows.shape[1] * len(base))))
    looked_up = [rows[step].sum(1) for step in steps if len(step)]
    total = torch.cat([*looked_up, rows[:0]])
    ahead = distance - torch.arange(keys, device=table.device)
    total = total + ahead[:, None] * fixed_point(slope)
    words = from_fixed(total, WEIGHT_GRID, FP16)
    beyond = ((codes < 0) | (codes >= entries)).any(1)
    no_score = is_special(table).flatten(1).any(1) | is_special(slope.to(torch.int64))
    no_score = no_score if bad is None else no_score | bad
    return torch.where(beyond[:, None] | no_score, FP16.canonical_nan, words)
