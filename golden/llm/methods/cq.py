"""K and V as codes of groups of channels, after CQ: MILLION's codes, a codebook for each head."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from golden.config import bounded, choice, flag
from golden.index.lloyd import Training
from golden.llm.eval.calibration import CalibrationData
from golden.llm.methods.kv import kv_gradients
from golden.llm.methods.million import Million


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoupledQuantization(Million):
    """``cq4``, ``cq2``: a codebook per layer, KV head and group of channels, of 256 entries.

    After "KV Cache is 1 Bit Per Channel" (Zhang et al. 2024): 2 channels share a code of 8 bits in
    ``cq4``, 4 in ``cq2``. The other fields are those of ``million-4b``. The window, sinks and
    outliers of that method are no part of CQ.

    fisher: squared gradients of the loss weigh the training vectors, as the paper does
    iterations: of k-means
    pre_rope: K before RoPE, for accuracy only
    few: train with fewer than 39 vectors per entry; a head has one vector for each token

    CQ's layout is MILLION's with ``scope=head``. So its codes fit MILLION's engines.
    """

    pattern: ClassVar[str] = r"cq(?P<rate>\d)"
    spellings: ClassVar[tuple[str, ...]] = ("cq4", "cq2")

    scope: str = choice("head", ("head",))
    fisher: bool = flag(False)
    iterations: int = bounded(10, 0, 1 << 20)

    def calibration_fields(self) -> dict[str, object]:
        own = {"fisher": self.fisher, "iterations": self.iterations}
        return {**super().calibration_fields(), **own}

    def _training(self, seed: int) -> Training:
        return Training(seed=seed, iterations=self.iterations, few=self.few)

    def _importance(self, data: CalibrationData, head_dim: int) -> Tensor | None:
        if not self.fisher:
            return None
        windows = [
            torch.stack([each["gk"], each["gv"]], 1) ** 2
            for each in kv_gradients(data, self.pre_rope)
        ]
        return torch.cat(windows, 2).unflatten(-1, (-1, head_dim))
