"""Scores of the past keys from codes and tables (docs/blocks/million_score_engine.md).

Words are int64 tensors of FP16 bit patterns, any device. Every sum is an exact integer, so the
order of keys and of subspaces never matters. Each rounding is to nearest even, written rne16.
"""

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import fixed_point, from_fixed, is_special
from golden.million.format import WEIGHT_GRID

_CHUNK = 1 << 23  # looked-up entries that a step holds at a time


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
