"""The activation slots after the commands of Unit.QUANTIZE, bit-true.

One row of a tensor is one token of a command. A token that fails has a status and no slot. The
tokens before and after it are unharmed. ``faults`` gives the faults known before any read.
"""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from golden.fp16.format import FP16, FP32
from golden.fp16.ops import float_from_bits
from golden.index.nearest import cluster_by_midpoints
from golden.index.nearest import midpoints as midpoints_of
from golden.kllm.isa import (
    ROW_ELEMENTS,
    CommandStatus,
    Norm,
    Opcode,
    OutlierMode,
    Outliers,
    Statistics,
)
from golden.kllm.norms import norm_statistics
from golden.kllm.orizuru import pop_order
from golden.kllm.quantize import quantize_unsigned
from golden.kllm.records import Tokens

_MAGNITUDE = FP16.sign_bit - 1
_ONE = FP32.bias << FP32.frac_bits
_NO_STATISTICS = Statistics()


@dataclasses.dataclass(frozen=True)
class SlotTokens(Tokens):
    """T tokens of L elements as slots hold them; all 0 where not ``valid``.

    index: int64, indices (0 at outliers) or unsigned integers; words: 0 where not an outlier;
    rms_reciprocal, mean: (T,) FP32 words; status: (T,) CommandStatus bits; valid: (T,) bool.
    """

    rms_reciprocal: Tensor
    mean: Tensor
    status: Tensor
    valid: Tensor

    @property
    def command_status(self) -> CommandStatus:
        """Bits of all tokens together."""
        total = CommandStatus(0)
        for bits in self.status.tolist():
            total |= CommandStatus(bits)
        return total


def faults(
    opcode: Opcode,
    operands: Mapping[str, int],
    *,
    vector_rows: int,
    slots: int,
    slot_elements: int,
) -> CommandStatus:
    """RANGE and CAPACITY of a command, known before anything is read; no slot is touched.

    CAPACITY: ONLINE with k_max + k_min >= length. It is set together with RANGE if both apply.
    """
    status = CommandStatus(0)
    if opcode == Opcode.ACTIVATION_CODEBOOK:
        return CommandStatus.RANGE if operands["src"] + 2 > vector_rows else status
    tokens, length = operands["tokens"], operands["length"]
    last_row = operands["src"] + operands["stride"] * (tokens - 1) + -(-length // ROW_ELEMENTS)
    in_range = (
        tokens >= 1
        and 1 <= length <= slot_elements
        and last_row <= vector_rows
        and operands["slot"] + tokens <= slots
    )
    if opcode == Opcode.QUANTIZE:
        in_range = in_range and operands["norm"] in tuple(Norm)
        if operands["mode"] == OutlierMode.OFFLINE:
            for word in (operands["thresholds"] >> 16, operands["thresholds"] & 0xFFFF):
                in_range = in_range and word & _MAGNITUDE < FP16.infinity
        elif operands["k_max"] + operands["k_min"] >= length:
            status |= CommandStatus.CAPACITY
    return status if in_range else status | CommandStatus.RANGE


def codebook_fault(centroids: Tensor, midpoints: Tensor) -> CommandStatus:
    """RANGE if ACTIVATION_CODEBOOK reads a word that is not in -1..1: then none is loaded.

    centroids: (2**n,) and midpoints: (2**n - 1,) FP16 words, in any order.
    """
    words = torch.cat([torch.as_tensor(centroids), torch.as_tensor(midpoints)])
    bad = bool((words & _MAGNITUDE > FP16.bias << FP16.frac_bits).any())
    return CommandStatus.RANGE if bad else CommandStatus(0)


def _slots(tokens: Tokens, rms_reciprocal: Tensor, mean: Tensor, status: Tensor) -> SlotTokens:
    """Makes the slots, with everything of a failed token at 0."""
    valid = status == 0
    outlier = tokens.outlier & valid[:, None]
    return SlotTokens(
        index=torch.where(valid[:, None], tokens.index, 0),
        outlier=outlier,
        words=torch.where(outlier, tokens.words, 0),
        scale=torch.where(valid, tokens.scale, 0),
        rms_reciprocal=torch.where(valid, rms_reciprocal, 0),
        mean=torch.where(valid, mean, 0),
        status=status,
        valid=valid,
    )


def _bit(flag: Tensor, bit: CommandStatus) -> Tensor:
    return torch.where(flag, int(bit), 0)


def quantize_command(
    x: Tensor,
    codebook: Tensor,
    outliers: Outliers,
    outliers_max: int,
    statistics: Statistics = _NO_STATISTICS,
    midpoints: Tensor | None = None,
) -> SlotTokens:
    """QUANTIZE of (T, L) FP16 words.

    ONLINE: outliers = the k_max largest and k_min smallest (golden.kllm.orizuru.pop_order), scale
    = largest magnitude word of the others. OFFLINE: outliers = x > upper or x < lower (IEEE 754),
    scale = larger magnitude word of the two.

    golden.index.nearest.cluster_by_midpoints gives the indices of the inliers. ``midpoints`` is by
    default what golden.index.nearest.midpoints makes of the codebook. With a norm,
    golden.kllm.norms.norm_statistics gives the statistics. Without one rms_reciprocal is 1.0 and
    mean +0.

    NONFINITE: an element is NaN or infinite. (An infinity is an outlier that may not be stored,
    or it makes the scale infinite.) CAPACITY: more outliers than ``outliers_max``; ONLINE
    then examines no element. With an epsilon that is not finite the statistics are NaN, and
    the command has no status for it.
    ValueError: what ``faults`` finds beforehand, ONLINE with k_max + k_min >= L.
    ConfigError: what ``codebook_fault`` finds, a codebook that is not ascending.
    """
    x = torch.as_tensor(x).to(torch.int64)
    tokens = len(x)
    magnitude = x & _MAGNITUDE
    nonfinite = (magnitude >= FP16.infinity).any(dim=1)
    k_max, k_min = outliers.k_max, outliers.k_min
    if outliers.mode == OutlierMode.ONLINE:
        largest, smallest, _ = pop_order(x, k_max, k_min)
        outlier = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
        outlier.scatter_(1, largest, True).scatter_(1, smallest, True)
        scale = torch.where(outlier, 0, magnitude).amax(dim=1)
        too_many = torch.full((tokens,), k_max + k_min > outliers_max, device=x.device)
        nonfinite = nonfinite & ~too_many
    else:
        upper, lower = outliers.upper, outliers.lower
        value = float_from_bits(x, FP16)
        bounds = float_from_bits(torch.tensor([upper, lower], device=x.device), FP16)
        outlier = (value > bounds[0]) | (value < bounds[1])
        scale = torch.full((tokens,), max(upper & _MAGNITUDE, lower & _MAGNITUDE), device=x.device)
        too_many = outlier.sum(dim=1) > outliers_max
    status = _bit(nonfinite, CommandStatus.NONFINITE) | _bit(too_many, CommandStatus.CAPACITY)
    # A failed token counts as zeros, so that nothing below meets a NaN.
    x = torch.where((status == 0)[:, None], x, 0)
    scale = torch.where(status == 0, scale, 0)
    if midpoints is None:
        midpoints = midpoints_of(codebook)
    index = torch.where(outlier, 0, cluster_by_midpoints(x, scale, midpoints))
    rms_reciprocal = torch.full((tokens,), _ONE, device=x.device)
    mean = torch.zeros_like(rms_reciprocal)
    made = Tokens(index, outlier, x, scale)
    if statistics.norm != Norm.NONE:
        mean, rms_reciprocal, _ = norm_statistics(
            made, codebook, statistics.epsilon, statistics.norm == Norm.LAYER
        )
    return _slots(made, rms_reciprocal, mean, status)


def quantize_integer_command(x: Tensor, int_bits: int) -> SlotTokens:
    """QUANTIZE_INTEGER of (T, L) FP16 words: golden.kllm.quantize.quantize_unsigned.

    NONFINITE: an element is NaN or infinite. NEGATIVE: a sign bit on anything but a zero; -0
    counts as 0. No outliers; rms_reciprocal is 1.0, mean +0.
    """
    x = torch.as_tensor(x).to(torch.int64)
    magnitude = x & _MAGNITUDE
    nonfinite = (magnitude >= FP16.infinity).any(dim=1)
    negative = ((x != magnitude) & (magnitude != 0)).any(dim=1)
    status = _bit(nonfinite, CommandStatus.NONFINITE) | _bit(negative, CommandStatus.NEGATIVE)
    entry, scale = quantize_unsigned(torch.where((status == 0)[:, None], magnitude, 0), int_bits)
    ones = torch.full_like(scale, _ONE)
    return _slots(Tokens.integers(entry, scale), ones, torch.zeros_like(ones), status)
