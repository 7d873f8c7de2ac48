"""Oaken's quantization and back in one step, in float32: ``golden.oaken.groups`` for whole models.

The same roundings at the same places, by conversions to FP16 and back instead of integers. A result
differs from the bit-true one only where float32 rounds a sum or quotient of FP16 numbers onto a
tie. Tests bound how often. Any leading dimensions; overflow of FP16 becomes infinite.
"""

from typing import Any

import torch
from torch import Tensor

from golden.fp16.ops import float_from_bits
from golden.oaken.groups import check_intervals
from golden.oaken.quantize import MIDDLE_TOP

_LARGEST, _TINY = 65504.0, 2.0**-24


def _half(x: Tensor) -> Tensor:
    return x.half().float()


def _step(value_range: Tensor, n: int) -> Tensor:
    return torch.where(value_range > 0, _half(value_range / n).clamp(min=_TINY), 0)


def _inverse(step: Tensor) -> Tensor:
    """Returns the divisor of a step: infinite for 0, so that codes are 0."""
    return torch.where(step > 0, step, torch.inf)


def _extremes(y: Tensor) -> tuple[Tensor, Tensor]:
    """(hi, lo) over the last axis of values with zeros where they are not of the group."""
    return y.amax(-1, keepdim=True).clamp(min=0), (-y).amax(-1, keepdim=True).clamp(min=0)


def _three(x: Tensor, bounds: tuple[float, float, float, float], outlier_bits: int) -> Tensor:
    """x' of FP16 values by the four thresholds: golden.oaken.quantize.decode of encode."""
    outer_low, inner_low, inner_high, outer_high = bounds
    inner_top, outer_top = (1 << outlier_bits) - 1, (1 << (outlier_bits - 1)) - 1
    upper = x > 0
    outer = (x < outer_low) | (x > outer_high)
    inner = (x >= inner_low) & (x <= inner_high)

    edge = torch.where(upper, inner_high, inner_low)
    y = _half(x - edge)
    hi, lo = _extremes(y.masked_fill(outer | inner, 0))
    step = _step(_half(hi + lo), MIDDLE_TOP + 1)
    safe = _inverse(step)
    z0 = torch.round(lo / safe).clamp_(1, MIDDLE_TOP)
    minimum = -_half((z0 - 0.5) * step)
    zc = (torch.floor(-minimum / safe) + 1).clamp_(1, MIDDLE_TOP)
    q = torch.round(_half(y - minimum) / safe).clamp_(0, MIDDLE_TOP)
    q = torch.where(upper, torch.maximum(q, zc), torch.minimum(q, zc - 1))
    restored = q.mul_(step).add_(edge + minimum)

    hi, lo = _extremes(x.masked_fill(~inner, 0))
    step = _step(_half(hi + lo), inner_top)
    q = torch.round(_half(x + lo) / _inverse(step)).clamp_(0, inner_top)
    restored = torch.where(inner, q.mul_(step).sub_(lo), restored)

    edge = torch.where(upper, outer_high, outer_low)
    y = _half(x - edge).masked_fill_(~outer, 0)
    hi, lo = _extremes(y)
    step = torch.where(upper, _step(hi, outer_top), _step(lo, outer_top))
    q = torch.round(y / _inverse(step)).clamp_(-outer_top, outer_top)
    restored = torch.where(outer, q.mul_(step).add_(edge), restored)
    return _half(restored.clamp_(-_LARGEST, _LARGEST))


def group_values(x: Tensor, intervals: Any) -> tuple[Tensor, list[tuple[float, float]]]:
    """(group of every value, 0 the outermost; the bounds as numbers) of intervals (B, 2) words."""
    bounds = [(low, high) for low, high in float_from_bits(check_intervals(intervals)).tolist()]
    outside = torch.zeros(x.shape, dtype=torch.int8, device=x.device)
    for low, high in bounds:
        outside += (x < low) | (x > high)
    return len(bounds) - outside, bounds


def fake_restore(
    x: Tensor, intervals: Any, middle_index: int = 1, outlier_bits: int = 5
) -> tuple[Tensor, Tensor]:
    """(x', outlier mask) of (..., D) values: groups.restore; of three groups in one pass."""
    x = _half(x)
    group, bounds = group_values(x, intervals)
    outlier = group != middle_index
    if len(bounds) == 2:
        (outer_low, outer_high), (low, high) = bounds
        return _three(x, (outer_low, low, high, outer_high), outlier_bits), outlier
    restored = torch.zeros_like(x)
    for index in range(len(bounds) + 1):
        if index == len(bounds):
            low, high = bounds[-1]
            four = (-_LARGEST, low, high, _LARGEST)
        elif index == middle_index:
            (outer_low, outer_high), (low, high) = bounds[index - 1 : index + 1]
            four = (outer_low, low, high, outer_high)
        else:
            low, high = bounds[index]
            four = (low, 0.0, 0.0, high)
        mine = group == index
        back = _three(x.masked_fill(~mine, 0), four, outlier_bits)
        restored = torch.where(mine, back, restored)
    return restored, outlier


def fake_artifact(
    x: Tensor, intervals: Any, middle_index: int = 1, outlier_bits: int = 5, whole: bool = False
) -> tuple[Tensor, Tensor]:
    """(x', outlier mask) of (..., T, D) values: groups.restore_artifact in float32."""
    x = _half(x)
    group, bounds = group_values(x, intervals)
    restored = torch.zeros_like(x)
    for index in range(len(bounds) + 1):
        mine = group == index
        last = index == len(bounds)
        bits = 4 if index == middle_index else outlier_bits
        shift: Tensor | float = 0.0
        if not last:
            low, high = bounds[index]
            shift = torch.where(x > 0, high, low)
        shifted = (x - shift).masked_fill_(~mine, 0)
        dims = (-2, -1) if whole and not last else (-1,)
        least, most = shifted.amin(dims, keepdim=True), shifted.amax(dims, keepdim=True)
        step = (most - least) / ((1 << bits) - 1)
        back = torch.round((shifted - least) / _inverse(step)) * step + least + shift
        restored = torch.where(mine, back, restored)
    return _half(restored.clamp_(-_LARGEST, _LARGEST)), group != middle_index
