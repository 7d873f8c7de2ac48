"""Scales moved from activations to weights, channel by channel, after SmoothQuant."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from golden.config import bounded, choice, real
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.method import Method, Site, State
from golden.llm.methods.rtn import install_rtn


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

    q, k and v share one s, and gate and up share one. Their 1 / s goes into the weight of the norm
    before them, so it costs nothing. Scope ``all`` adds o_proj and down_proj, beyond the paper's
    ``norms``. down_proj's 1 / s goes into the rows of up_proj, where the rounding per row does not
    feel it. o_proj's 1 / s stays a product at its input, so that the cached V does not change. It
    counts 16 bits per channel. Symmetric round to nearest as ``rtn-wNaM``; 16 bits leave weights or
    activations as they are.
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
        for prefix, layer in zip(site.layer_names, site.layers, strict=True):
            for norm, readers in (
                ("input_layernorm", [f"self_attn.{each}_proj" for each in "qkv"]),
                ("post_attention_layernorm", ["mlp.gate_proj", "mlp.up_proj"]),
            ):
                s = self._smooth(site, state, [f"{prefix}.{each}" for each in readers])
                module = layer.get_submodule(norm)
                site.parameter(module, "weight", module.weight.detach() / s)  # type: ignore[operator]
            if self.scope == "all":
                s = self._smooth(site, state, [f"{prefix}.mlp.down_proj"])
                up = site.linears[f"{prefix}.mlp.up_proj"]
                site.weight(f"{prefix}.mlp.up_proj", up.weight.detach() / s[:, None])
                if up.bias is not None:
                    site.parameter(up, "bias", up.bias.detach() / s)
                self._at_input(site, state, f"{prefix}.self_attn.o_proj")

        def inverse_scales(name: str) -> float:
            at_input = self.scope == "all" and name.endswith(".o_proj")
            return 16 / site.linears[name].out_features if at_input else 0.0

        install_rtn(site, self.weight_bits, self.activation_bits, inverse_scales)

    def _smooth(self, site: Site, state: State, names: list[str]) -> Tensor:
        """s of layers with the same input, which is in their weights from then on."""
        weights = [site.linears[name].weight.detach() for name in names]
        s = migration(state[names[0]], weights, self.alpha)
        for name, weight in zip(names, weights, strict=True):
            site.weight(name, weight * s)
        return s

    def _at_input(self, site: Site, state: State, name: str) -> None:
        inverse = 1 / self._smooth(site, state, [name])
        site.input(site.linears[name], lambda x: x * inverse)
