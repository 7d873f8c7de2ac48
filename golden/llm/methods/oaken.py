"""Oaken's K and V: three groups by offline thresholds (Oaken, sections 4.2 to 4.4)."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from golden.config import ConfigError, bounded, choice, flag
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.fake.oaken import fake_artifact, fake_restore
from golden.llm.eval.method import Method, Site, State
from golden.oaken.groups import Ratios, restore, restore_artifact
from golden.oaken.thresholds import intervals_of, window_bounds

_BLOCK = 64  # most elements of a head that share a count byte


def count_block(head_dim: int) -> int:
    """Elements that share a count byte: the head in equal parts, as few as there may be.

    ConfigError: a head that has no such parts.
    """
    parts = -(-head_dim // _BLOCK)
    if head_dim % parts:
        raise ConfigError(f"head_dim must be a multiple of {parts}, not {head_dim}")
    return head_dim // parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Oaken(Method):
    """K and V in 2 to 5 groups by offline thresholds: dense 4 bits, sparse outliers.

    ratios: percent, outermost group first
    mode: ``decodable``, what the hardware stores; ``artifact``, one scale for both sides and the
        side known to the decoder; ``artifact-window``, the same with one scale for a whole window
    outlier_bits: 5, or 4 to compare
    pre_rope: K before RoPE
    per_head: scales per head, not per token

    Bits: stored bits with the outliers that occurred, counts and scales included.
    """

    relative_time: ClassVar[float] = 1.1
    pattern: ClassVar[str] = "oaken"
    spellings: ClassVar[tuple[str, ...]] = ("oaken",)
    calibrated: ClassVar[bool] = True
    caches: ClassVar[bool] = True

    ratios: str = "4/90/6"
    mode: str = choice("decodable", ("decodable", "artifact", "artifact-window"))
    outlier_bits: int = bounded(5, 4, 5)
    pre_rope: bool = flag(False)
    per_head: bool = flag(False)

    def __post_init__(self) -> None:
        Ratios.parse(self.ratios)

    def calibration_fields(self) -> dict[str, object]:
        return {"ratios": str(Ratios.parse(self.ratios)), "pre_rope": self.pre_rope}

    def calibrate(self, data: CalibrationData) -> State:
        """{"intervals": (layers, 2, B, 2) FP16 words}, as golden.llm.oaken.profile finds them."""
        ratios = Ratios.parse(self.ratios)
        bounds = []
        for i, ids in data.track(list(enumerate(data.windows)), "K and V"):

            def make(ids: Tensor = ids) -> State:
                return {"bounds": window_bounds(data.kv(ids, self.pre_rope), ratios)}

            found = data.steps.once(f"oaken-{ratios}-{self.pre_rope}-{i}", make)
            bounds.append(found["bounds"])
        return {"intervals": intervals_of(bounds, ratios)}

    def install(self, site: Site, state: State) -> None:
        ratios = Ratios.parse(self.ratios)
        intervals = state["intervals"].cpu()
        head_dim = int(site.attentions[0].head_dim)  # type: ignore[arg-type]
        block = count_block(head_dim)
        counters = site.kv_counters()

        exact = [f"{name}.self_attn" in site.exact for name in site.layer_names]
        middle = ratios.middle_index

        def tap(layer: int, kv: int, x: Tensor) -> Tensor:
            vectors = x.unflatten(-1, (-1, head_dim)) if self.per_head else x
            restored, outlier = self._fast(vectors, intervals[layer, kv], middle)
            if exact[layer]:
                fast, restored = restored, self._exact(vectors, intervals[layer, kv], middle)
                site.compare(f"{site.layer_names[layer]}.self_attn", fast, restored)
            f = float(outlier.float().mean())
            bits = ratios.stored_bits(f, vectors.shape[-1], block, self.outlier_bits)
            counters[layer][kv](x.numel(), bits)
            return restored.reshape(x.shape)

        site.kv(tap, self.pre_rope)

    def _exact(self, x: Tensor, intervals: Tensor, middle: int) -> Tensor:
        """x' of (B, T, [heads,] D) values by the integer functions that equal the hardware.

        The artifact's forms, which no hardware has, are those of float64.
        """
        words = bits_from_float(x)
        if self.mode == "decodable":
            back = restore(words.flatten(0, -2), intervals, middle, self.outlier_bits)
        else:  # a window, or a window of a head, at a time
            parts = (words.transpose(1, 2) if self.per_head else words).flatten(0, -3)
            whole = self.mode == "artifact-window"
            back = torch.stack(
                [
                    restore_artifact(part, intervals, middle, self.outlier_bits, whole)
                    for part in parts
                ]
            )
            if self.per_head:
                back = back.reshape(words.transpose(1, 2).shape).transpose(1, 2)
        return float_from_bits(back).to(x.dtype).reshape(x.shape)

    def _fast(self, x: Tensor, intervals: Tensor, middle: int) -> tuple[Tensor, Tensor]:
        """(x', outlier mask) of (B, T, [heads,] D) values."""
        if self.mode == "decodable":
            return fake_restore(x, intervals, middle, self.outlier_bits)
        whole = self.mode == "artifact-window"
        if self.per_head:  # tokens next to the elements: a window of a head has one scale
            back, outlier = fake_artifact(
                x.transpose(1, 2), intervals, middle, self.outlier_bits, whole
            )
            return back.transpose(1, 2), outlier
        return fake_artifact(x, intervals, middle, self.outlier_bits, whole)
