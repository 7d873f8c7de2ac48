"""Round to nearest: no calibration, the baseline of every table; and the formats it starts from."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from golden.eval.method import Method, Site, State

__all__ = ["Fp16", "Fp32", "Rtn", "rtn_symmetric"]


def rtn_symmetric(x: Tensor, bits: int) -> Tensor:
    """s * clamp(rne(x / s), -m, m), m = 2**(bits - 1) - 1, s = max |x| / m over the last axis.

    In the type of x; a row of zeros stays.
    """
    top = (1 << (bits - 1)) - 1
    scale = x.abs().amax(dim=-1, keepdim=True).div_(top)
    # Of a row of zeros every quotient is 0 / tiny = 0.
    safe = scale.clamp(min=torch.finfo(x.dtype).tiny)
    return torch.div(x, safe).round_().mul_(scale)


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
        site.bits.add("kv", "all layers", 1, 16)


def _half(x: Tensor) -> Tensor:
    return x.half().to(x.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rtn(Method):
    """``rtn-wNaM``: weights per output channel, activations per token, symmetric, scale in FP16.

    16 bits leave weights or activations as they are. FP16 scales are counted, not rounded.
    """

    pattern: ClassVar[str] = r"rtn-w(?P<weight_bits>\d+)a(?P<activation_bits>\d+)"
    spellings: ClassVar[tuple[str, ...]] = ("rtn-w4a4",)

    weight_bits: int = 4
    activation_bits: int = 4

    def __post_init__(self) -> None:
        self._check_range("weight_bits", 2, 16)
        self._check_range("activation_bits", 2, 16)

    def install(self, site: Site, state: State) -> None:
        for name, linear in site.linears.items():
            n, k = linear.weight.shape
            if self.weight_bits < 16:
                site.weight(name, rtn_symmetric(linear.weight.detach(), self.weight_bits))
                site.bits.add("weights", name, n * k, self.weight_bits + 16 / k)
            if self.activation_bits < 16:
                site.input(linear, self._activation)
                site.bits.add("activations", name, k, self.activation_bits + 16 / k)

    def _activation(self, x: Tensor) -> Tensor:
        return rtn_symmetric(x, self.activation_bits)
