"""The rival of tables and bins: decode each key and value, then multiply.

Words are int64 tensors of FP16 bit patterns, any device. Every sum is an exact integer. The scores
differ from golden.million.scores in one thing: no entry of a table is rounded. The sums of values
are those of bins times the codebook, bit for bit.
"""

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.limbs import Limbs, from_shifted
from golden.fp16.ops import fixed_point, from_fixed, is_special
from golden.million.format import EXPONENT_MAX, EXPONENT_MIN, PRODUCT_GRID, WEIGHT_GRID

_HALF = 20  # bits of the low part of a query's element: sums of both parts fit 63 bits
_QUARTER = 12  # of a weight


def _decoded(codebook: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """((n, d) elements in units of 2**-24, (n, M) which codes lie beyond the entries)."""
    entries, sub = codebook.shape[1:]
    beyond = (codes < 0) | (codes >= entries)
    subspaces = torch.arange(codes.shape[1], device=codes.device)
    found = fixed_point(codebook)[subspaces, codes.long().clamp(0, entries - 1)]
    found = torch.where(beyond[..., None], 0, found)
    return found.reshape(len(codes), len(subspaces) * sub), beyond


def decode_scores(
    q: Tensor, codebook: Tensor, exponent: int, codes: Tensor, slope: Tensor, distance: int
) -> Tensor:
    """``s = rne16(2**exponent * sum_i q_i * c_i + slope * distance)`` of n keys: (n, L) words.

    q : (L, d) words; codebook : (M, E, d / M) words of magnitude at most 1; codes : (n, M)
    slope : (L,) words; distance : tokens from the first key to the query's token; the next key has
        one less

    The sum is exact, on the grid 2**(exponent - 48). NaN (0x7E00) is the score of a key with a code
    beyond the entries. It is also that of a query with a NaN or an infinity, its slope included.
    ConfigError: the exponent is out of range, or a key would come after the query.
    """
    if not EXPONENT_MIN <= exponent <= EXPONENT_MAX:
        raise ConfigError(f"exponent must be {EXPONENT_MIN}..{EXPONENT_MAX}, not {exponent}")
    keys = len(codes)
    if keys and distance < keys - 1:
        raise ConfigError(f"distance must be {keys - 1} or more for {keys} keys, not {distance}")
    elements, beyond = _decoded(codebook, codes)
    query = fixed_point(q).T
    upper = elements @ (query >> _HALF)  # below 2**(24 + 21 + 8)
    lower = elements @ (query & ((1 << _HALF) - 1))
    ahead = distance - torch.arange(keys, device=codes.device)
    bias = ahead[:, None] * fixed_point(slope)  # below 2**58
    grid = PRODUCT_GRID + exponent
    total = from_shifted([(upper, _HALF), (lower, 0), (bias, WEIGHT_GRID - grid)])
    words = from_fixed(total.low, grid, FP16, high=total.high)
    bad = is_special(q.to(torch.int64)).any(1) | is_special(slope.to(torch.int64))
    return torch.where(beyond.any(1)[:, None] | bad, FP16.canonical_nan, words)


def decode_sums(weight: Tensor, codebook: Tensor, codes: Tensor) -> Limbs:
    """``N_i = sum over keys of weight * c_i``, exact in units of 2**-48: (L, d).

    weight : (n, L) words of 0..1; codebook : (M, E, d / M) words of magnitude at most 1
    codes : (n, M) integers; one beyond the entries adds nothing to its part of the vector
    """
    elements, _ = _decoded(codebook, codes)
    weights = fixed_point(weight).T
    upper = (weights >> _QUARTER) @ elements  # below 2**(13 + 24 + 15)
    lower = (weights & ((1 << _QUARTER) - 1)) @ elements
    return from_shifted([(upper, _QUARTER), (lower, 0)])
