"""Scales moved from activations to weights, channel by channel, after SmoothQuant."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from golden.config import bounded, choice, real
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.method import Method, Site, State
from golden.llm.folding import readers, scale_columns, scale_norm, scale_rows, writers
from golden.llm.methods.rtn import install_rtn
from golden.llm.structure import READERS, Block, block_of


def migration(activation: Tensor, weights: list[Tensor], alpha: float) -> Tensor:
    """(K,) s = max |x_k|**alpha / max |w_k|**(1 - alpha), the weights' maximum over all layers.

    activation (K,): largest magnitudes; weights: (N, K) each. 1 where either is 0.
    """
    w = torch.stack([weight.detach().abs().amax(0) for weight in weights]).amax(0)
    s = activation**alpha / w ** (1 - alpha)
    return torch.where((activation > 0) & (w > 0) & torch.isfinite(s), s, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmoothQuant(Method):
    """``smoothquant-wNaM``: x / s into W * s, then weights per output channel, inputs per token.

    After SmoothQuant (Xiao et al. 2023, sections 4 and 4.1), with the largest magnitudes of the
    calibration text:

        y = (x / s)(W * s)^T,    s_k = max |x_k|**alpha / max |w_k|**(1 - alpha)

    q, k and v share one s, and so do gate and up of all experts. Their 1 / s goes into the weight
    of the norm before them, so it costs nothing. Without such a norm they are left as they are.
    Scope ``all`` adds o_proj and down_proj, beyond the paper's ``norms``. down_proj's 1 / s goes
    into the rows of up_proj, where the rounding per row does not feel it. o_proj's 1 / s stays a
    product at its input, so that the cached V does not change. So does down_proj's where its input
    is not proportional to up_proj's outputs. It counts 16 bits per channel. Symmetric round to
    nearest as ``rtn-wNaM``; 16 bits leave weights or activations as they are.
    """

    pattern: ClassVar[str] = r"smoothquant-w(?P<weight_bits>\d{1,3})a(?P<activation_bits>\d{1,3})"
    spellings: ClassVar[tuple[str, ...]] = ("smoothquant-w4a4",)
    calibrated: ClassVar[bool] = True
    folds: ClassVar[bool] = True

    weight_bits: int = bounded(4, 2, 16)
    activation_bits: int = bounded(4, 2, 16)
    alpha: float = real(0.5, 0.0, 1.0)
    scope: str = choice("norms", ("norms", "all"))

    def calibration_fields(self) -> dict[str, object]:
        return {}

    def calibrate(self, data: CalibrationData) -> State:
        """{name: (K,) float32 largest magnitude of each channel of the layer's input}."""
        found = data.accumulate("maximum", lambda x: x.abs().amax(0), torch.maximum)
        return {name: value.float() for name, value in found.items()}

    def install(self, site: Site, state: State) -> None:
        at_input: set[str] = set()
        for prefix, layer in zip(site.layer_names, site.layers, strict=True):
            block = block_of(layer)
            for place in READERS:
                if place in block.before:
                    s = self._smooth(site, state, readers(prefix, block, place))
                    scale_norm(site, layer, block, place, s)
            if self.scope == "all":
                at_input |= self._others(site, state, prefix, block)

        def inverse_scales(name: str) -> float:
            return 16 / site.linears[name].out_features if name in at_input else 0.0

        install_rtn(site, self.weight_bits, self.activation_bits, inverse_scales)

    def _others(self, site: Site, state: State, prefix: str, block: Block) -> set[str]:
        """o and down; returns the names of those whose 1 / s stays a product at the input."""
        before = writers(prefix, block)
        own: set[str] = set()
        for kind in block.of_kind("o", "down"):
            name = f"{prefix}.{block.linears[kind]}"
            if kind == "o" or name not in before:
                own.add(name)
                continue
            scale_rows(site, before[name], self._smooth(site, state, [name]))
        for name in sorted(own):
            self._at_input(site, state, name)
        return own

    def _smooth(self, site: Site, state: State, names: list[str]) -> Tensor:
        """s of layers with the same input, which is in their weights from then on."""
        weights = [site.linears[name].weight for name in names]
        largest = torch.stack([state[name] for name in names]).amax(0)
        s = migration(largest, weights, self.alpha)
        for name in names:
            scale_columns(site, name, s)
        return s

    def _at_input(self, site: Site, state: State, name: str) -> None:
        inverse = 1 / self._smooth(site, state, [name])
        site.input(site.linears[name], lambda x: x * inverse)
