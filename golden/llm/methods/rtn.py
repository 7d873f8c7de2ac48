"""Round to nearest: no calibration, the baseline of every table; and the formats it starts from."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from golden.config import bounded
from golden.llm.eval.method import Method, Site, State


def rtn_symmetric(x: Tensor, bits: int, clip: float | Tensor = 1.0) -> Tensor:
    """s * clamp(rne(x / s), -m, m), m = 2**(bits - 1) - 1, s = clip * max |x| / m, last axis.

    clip: 1 for all rows, or (..., 1) of each. In the type of x; a row of zeros stays.
    """
    top = (1 << (bits - 1)) - 1
    scale = x.abs().amax(dim=-1, keepdim=True).div_(top)
    clipped = isinstance(clip, Tensor) or clip < 1
    if clipped:
        scale.mul_(clip)
    # Of a row of zeros every quotient is 0 / tiny = 0.
    safe = scale.clamp(min=torch.finfo(x.dtype).tiny)
    code = torch.div(x, safe).round_()
    if clipped:  # else nothing lies outside
        code.clamp_(-top, top)
    return code.mul_(scale)


def best_clip(x: Tensor, bits: int) -> Tensor:
    """(..., 1): of 1, 0.975, ... 0.3 what loses least of each row in sum of squares."""
    best = torch.ones_like(x[..., :1])
    least = (rtn_symmetric(x, bits) - x).square_().sum(-1, keepdim=True)
    for ratio in torch.arange(0.975, 0.29, -0.025).tolist():
        loss = rtn_symmetric(x, bits, ratio).sub_(x).square_().sum(-1, keepdim=True)
        better = loss < least
        least = torch.where(better, loss, least)
        best.masked_fill_(better, ratio)
    return best


def install_rtn(
    site: Site,
    weight_bits: int,
    activation_bits: int,
    extra: Callable[[str], float] = lambda name: 0.0,
) -> None:
    """Weights per output channel, inputs per token, FP16 scales counted; 16 bits: as they are.

    extra(name): further bits per weight of a layer that the method stores.
    """

    def activation(x: Tensor) -> Tensor:
        return rtn_symmetric(x, activation_bits)

    for name, linear in site.linears.items():
        n, k = linear.weight.shape
        if weight_bits < 16:
            site.weight(name, rtn_symmetric(linear.weight.detach(), weight_bits))
            site.bits.add("weights", name, n * k, weight_bits + 16 / k + extra(name))
        if activation_bits < 16:
            site.input(linear, activation)
            site.bits.add("activations", name, k, activation_bits + 16 / k)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fp32(Method):
    """The model as it is."""

    pattern: ClassVar[str] = "fp32"
    spellings: ClassVar[tuple[str, ...]] = ("fp32",)

    def install(self, site: Site, state: State) -> None:
        pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fp16(Method):
    """Weights, inputs and outputs of linear layers, and K and V rounded to FP16; float32 sums."""

    pattern: ClassVar[str] = "fp16"
    spellings: ClassVar[tuple[str, ...]] = ("fp16",)

    def install(self, site: Site, state: State) -> None:
        for name, linear in site.linears.items():
            site.weight(name, _half(linear.weight))
            site.input(linear, _half)
            site.output(linear, _half)
            site.bits.add("weights", name, linear.weight.numel(), 16)
            site.bits.add("activations", name, linear.in_features, 16)
        # After RoPE once more: that is what is cached.
        site.kv(lambda _layer, _kv, x: _half(x))
        for counters in site.kv_counters():
            for count in counters:
                count(1, 16)


def _half(x: Tensor) -> Tensor:
    return x.half().to(x.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rtn(Method):
    """``rtn-wNaM``: weights per output channel, activations per token, symmetric, scale in FP16.

    16 bits leave weights or activations as they are. FP16 scales are counted, not rounded.
    """

    relative_time: ClassVar[float] = 1.3
    pattern: ClassVar[str] = r"rtn-w(?P<weight_bits>\d{1,3})a(?P<activation_bits>\d{1,3})"
    spellings: ClassVar[tuple[str, ...]] = ("rtn-w4a4",)

    weight_bits: int = bounded(4, 2, 16)
    activation_bits: int = bounded(4, 2, 16)

    def install(self, site: Site, state: State) -> None:
        install_rtn(site, self.weight_bits, self.activation_bits)
