"""Groups of channels with scales of their own, outlier channels in INT8, after Atom."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from golden.config import bounded, choice, real
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.method import Method, Site, State
from golden.llm.methods.gptq import gptq, layer_by_layer, ragged, restored
from golden.llm.methods.rtn import rtn_symmetric
from golden.llm.patch import Patch

_OUTLIER_BITS = 8
_SCALE = 16  # bits of an FP16 word
_INDEX = 16  # bits of a channel's index


@dataclasses.dataclass(frozen=True)
class Groups:
    """Reordered channels: first the inliers in groups of ``size``, then the outliers likewise.

    The last group of either may be ragged; size 0: one group each.
    """

    width: int
    outliers: int
    size: int
    bits: int

    @property
    def sizes(self) -> list[int]:
        return [*self._parts(self.width - self.outliers), *self._parts(self.outliers)]

    def _parts(self, channels: int) -> list[int]:
        return ragged(channels, self.size) if channels else []

    def of_each(self, inlier: float, outlier: float) -> list[float]:
        """One value for every group of inliers, another for every group of outliers."""
        inliers = len(self._parts(self.width - self.outliers))
        return [inlier] * inliers + [outlier] * (len(self.sizes) - inliers)

    @property
    def mean_bits(self) -> float:
        """Stored per element, scales counted."""
        dense = (self.width - self.outliers) * self.bits + self.outliers * _OUTLIER_BITS
        return (dense + _SCALE * len(self.sizes)) / self.width

    def round(self, x: Tensor, clip: float) -> Tensor:
        """``rtn_symmetric`` of every group of (..., width); outliers are not clipped."""
        size = self.size or self.width
        inliers = self.width - self.outliers
        whole = inliers // size * size
        parts = []
        if whole:
            groups = x[..., :whole].unflatten(-1, (-1, size))
            parts.append(rtn_symmetric(groups, self.bits, clip).flatten(-2))
        if inliers > whole:
            parts.append(rtn_symmetric(x[..., whole:inliers], self.bits, clip))
        if self.outliers:
            rest = x[..., inliers:].split(size, -1)
            parts += [rtn_symmetric(part, _OUTLIER_BITS) for part in rest]
        return torch.cat(parts, -1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtomLike(Method):
    """``atom-like-wNaM``: group-wise scales on both sides, outlier channels in INT8.

    After Atom (Zhao et al. 2024, sections 4.1 to 4.3). The channels of a linear layer's input are
    put in order of their sum of squares on the calibration text, the weight's columns likewise.

    channels: the last ones, a ``share`` of them (128 of 4096 in the paper; 0: none), are rounded to
        8 bits on both sides, the others to N and M bits
    rounding: symmetric to nearest, with a scale per token (or output channel) and ``group`` of
        channels, the last one ragged; 0: one group
    clipping: to ``activation_clip`` and ``weight_clip`` of the largest
        magnitude (0.9 and 0.85 in the paper, good at 4 bits, a loss at 8)
    weights: ``rtn``, or ``gptq`` as in the paper; each layer sees the outputs of the quantized
        layers before it

    Scales count 16 bits each. Layers with the same input share an order. Each layer's order counts
    16 bits per channel. K and V stay as they are: combine with a cache.
    """

    relative_time: ClassVar[float] = 1.5
    pattern: ClassVar[str] = r"atom-like-w(?P<weight_bits>\d{1,3})a(?P<activation_bits>\d{1,3})"
    spellings: ClassVar[tuple[str, ...]] = ("atom-like-w4a4",)
    calibrated: ClassVar[bool] = True
    reorders: ClassVar[bool] = True

    weight_bits: int = bounded(4, 2, 16)
    activation_bits: int = bounded(4, 2, 16)
    group: int = bounded(128, 0, 1 << 20)
    share: float = real(0.03125, 0.0, 1.0)
    activation_clip: float = real(0.9, 0.1, 1.0)
    weight_clip: float = real(0.85, 0.1, 1.0)
    rounding: str = choice("rtn", ("rtn", "gptq"))

    def __post_init__(self) -> None:
        if self.rounding == "gptq":
            self._check_range("weight_bits", 2, 8)

    @property
    def replaces_weights(self) -> bool:
        return self.rounding == "gptq"

    def calibration_fields(self) -> dict[str, object]:
        if self.rounding == "rtn":
            return {"rounding": "rtn"}
        fields = ("rounding", "weight_bits", "group", "share", "weight_clip")
        return {name: getattr(self, name) for name in fields}

    def groups(self, width: int, bits: int) -> Groups:
        return Groups(width, round(self.share * width), self.group, bits)

    def calibrate(self, data: CalibrationData) -> State:
        """{name}.reorder (K,) int32, smallest sum of squares first; gptq: as layer_by_layer."""
        squares = data.accumulate("squares", lambda x: x.double().square().sum(0))
        state = {
            f"{name}.reorder": value.argsort(stable=True).to(torch.int32)
            for name, value in squares.items()
        }
        if self.rounding == "rtn":
            return state

        def quantize(name: str, weight: Tensor, hessian: Tensor) -> State:
            order = state[f"{name}.reorder"].long().to(weight.device)
            groups = self.groups(weight.shape[1], self.weight_bits)
            return dataclasses.replace(
                gptq(
                    weight[:, order],
                    hessian[order][:, order],
                    groups.sizes,
                    [int(bits) for bits in groups.of_each(groups.bits, _OUTLIER_BITS)],
                    symmetric=True,
                    clip=groups.of_each(self.weight_clip, 1.0),
                ),
                order=order,
            ).parts

        key = f"atom gptq {self.weight_bits}-{self.group}-{self.share}-{self.weight_clip}"
        with Patch(data.model) as patch:
            return state | layer_by_layer(data, patch, key, quantize)

    def install(self, site: Site, state: State) -> None:
        functions: dict[bytes, Callable[[Tensor], Tensor]] = {}
        for name, linear in site.linears.items():
            n, k = linear.weight.shape
            order = state[f"{name}.reorder"].long()
            weight = linear.weight.detach()[:, order]
            if self.weight_bits < 16:
                groups = self.groups(k, self.weight_bits)
                if self.rounding == "gptq":
                    weight = restored(state, name)[:, order]
                else:
                    weight = groups.round(weight, self.weight_clip)
                site.bits.add("weights", name, n * k, groups.mean_bits + _INDEX / n)
            site.weight(name, weight)
            # One function object for layers with the same order, so that it runs once for them.
            key = state[f"{name}.reorder"].cpu().numpy().tobytes()
            site.input(linear, functions.setdefault(key, self._activation(order)))
            if self.activation_bits < 16:
                bits = self.groups(k, self.activation_bits).mean_bits
                site.bits.add("activations", name, k, bits)

    def _activation(self, order: Tensor) -> Callable[[Tensor], Tensor]:
        groups = self.groups(len(order), self.activation_bits)

        def function(x: Tensor) -> Tensor:
            x = x[..., order]
            if self.activation_bits < 16:
                x = groups.round(x, self.activation_clip)
            return x

        return function
