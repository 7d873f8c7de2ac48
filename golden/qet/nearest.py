"""Nearest entries of whole numbers, exact."""

import torch
from torch import Tensor

from golden.index.lloyd import argmin

_BATCH = {"cpu": 1 << 16, "cuda": 1 << 24}  # distances at a time; those of a CPU stay in its cache


def nearest(x: Tensor, entries: Tensor) -> Tensor:
    """``argmin over j of sum_i (x[g][n][i] - entries[g][j][i])**2``: (groups, n) int64.

    x: (groups, n, size) and entries: (groups, k, size), int64 with differences below 2**27. Equal
    distances give the lowest j. float64 finds the entries that may be nearest. Integers decide
    between them.
    """
    real_x, real = x.double(), entries.double()
    square = real.square().sum(2)
    size = x.shape[2]
    # Twice the rounding errors of any order of the sum, for every entry of a codebook.
    reach = real.abs().amax((1, 2))
    longest = real_x.abs().amax(2) + reach[:, None]
    margin = 4 * size * (size + 2) * 2.0**-52 * longest.square()
    codes = torch.empty(x.shape[:2], dtype=torch.int64, device=x.device)
    step = max(1, _BATCH[x.device.type] // entries.shape[1])
    for group in range(len(x)):
        for first in range(0, x.shape[1], step):
            some = slice(first, first + step)
            distance = torch.addmm(square[group], real_x[group, some], real[group].T, alpha=-2)
            index = argmin(distance)[:, None]
            most = distance.gather(1, index) + margin[group, some, None]
            distance.scatter_(1, index, torch.inf)  # what is left is not the first of the least
            tied = (distance.amin(1, keepdim=True) <= most).flatten().nonzero().flatten()
            if len(tied):
                may = (distance[tied] <= most[tied]).scatter_(1, index[tied], True)
                index[tied] = _decide(x[group, some][tied], entries[group], may)[:, None]
            codes[group, some] = index[:, 0]
    return codes


def _decide(x: Tensor, entries: Tensor, may: Tensor) -> Tensor:
    """The first of the nearest among the entries that ``may`` be it: (n,)."""
    row, column = may.nonzero().unbind(1)
    distance = torch.full(may.shape, torch.iinfo(torch.int64).max, device=x.device)
    distance[row, column] = (x[row] - entries[column]).square().sum(1)
    return (distance == distance.amin(1, keepdim=True)).byte().argmax(1)
