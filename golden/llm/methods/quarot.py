"""Rotations that spread outliers over all channels, after QuaRot."""

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from golden.config import bounded, choice, flag, real
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.method import Method, Site, State
from golden.llm.methods.gptq import gptq, layer_by_layer, restored
from golden.llm.methods.rtn import best_clip, rtn_symmetric
from golden.llm.patch import Patch
from golden.llm.structure import READERS, block_of
from golden.rotation import Rotation, small_matrix

_SALT = 0x514A  # of the random signs and matrices


def random_state(data: CalibrationData, widths: Iterable[int]) -> State:
    """signs (hidden,) int8 and small.K (m, m) float64 of ``Rotation`` for each of ``widths``."""
    generator = data.generator(_SALT)
    hidden = data.model.get_input_embeddings().embedding_dim  # type: ignore[operator]
    signs = torch.randint(0, 2, (hidden,), generator=generator) * 2 - 1
    state: State = {"signs": signs.to(torch.int8)}
    for width in sorted({hidden, *widths}):
        state[f"small.{width}"] = small_matrix(width, generator)
    return state


def rotate(patch: Patch, state: State, inputs: bool = True) -> None:
    """The same model in other coordinates; folded in float64. Norm weights become 1.

    state: ``signs`` (hidden,) and ``small.hidden`` of the residual's rotation
    inputs: o and down read rotated inputs, by ``small.K`` of the state
    """
    model: Any = patch.model
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    final = model.base_model.norm
    hidden = embedding.embedding_dim
    residual = Rotation(hidden, state[f"small.{hidden}"], state["signs"])
    online: dict[int, Rotation] = {}

    def into(module: Any, name: str, value: Tensor) -> None:
        patch.parameter(module, name, value.float())

    into(embedding, "weight", residual(embedding.weight.detach().double()))
    into(head, "weight", residual(head.weight.detach().double() * final.weight.double()))
    into(final, "weight", torch.ones_like(final.weight))
    for prefix, layer in zip(patch.layer_names, patch.layers, strict=True):
        block = block_of(layer)
        for place, kinds in READERS.items():
            gamma = 1.0
            if place in block.before:
                norm: Any = layer.get_submodule(block.before[place])
                gamma = norm.weight.detach().double()
                into(norm, "weight", torch.ones_like(norm.weight))
            names = [f"{prefix}.{block.linears[name]}" for name in block.of_kind(*kinds)]
            readers: list[Any] = [patch.linears[name] for name in names]
            if place == "network" and block.router is not None:
                readers.append(layer.get_submodule(block.router))
            for module in readers:
                into(module, "weight", residual(module.weight.detach().double() * gamma))
        for name in block.of_kind("o", "down"):
            linear = patch.linears[f"{prefix}.{block.linears[name]}"]
            weight, bias = linear.weight.detach().double(), linear.bias
            if inputs:
                width = linear.in_features
                rotation = online.setdefault(width, Rotation(width, state[f"small.{width}"]))
                weight = rotation(weight)
                patch.input(linear, rotation)
            if not block.after:
                weight = residual(weight.t()).t()
                if bias is not None:
                    into(linear, "bias", residual(bias.detach().double()))
            into(linear, "weight", weight)
        for after in block.after:
            patch.output(layer.get_submodule(after), residual)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuaRot(Method):
    """``quarot-wNaM``: randomised Hadamard rotations, then W per output channel, A per token.

    After QuaRot (Ashkboos et al. 2024, sections 3 and 4), in three steps:

    1. Norm weights go into the layers that read them.
    2. R rotates the residual stream, h' = h R, folded into the embedding, all linear layers and
       the head.
    3. The inputs of o_proj and down_proj are rotated while running, and the inverse is folded into
       their weights.

    Where norms follow attention and network, R of what they give is computed while running: their
    weights come between R and the matrices.

    Alone this changes nothing, as R R^T = I and |h R| = |h|. R is of class Rotation, with signs in
    the residual's only. QuaRot's rotation of the heads of V is part of o_proj's here, and that of K
    is left out. So K and V are those of the model and combine with any cache.

    activations: symmetric, clipped at ``clip`` of the largest magnitude (QuaRot: 0.9)
    weights: symmetric, per row the clipping that loses least (``search``)
    rounding: ``rtn`` or ``gptq``, which golden.llm.methods.gptq does on the rotated model

    FP16 scales are counted.
    """

    pattern: ClassVar[str] = r"quarot-w(?P<weight_bits>\d{1,3})a(?P<activation_bits>\d{1,3})"
    spellings: ClassVar[tuple[str, ...]] = ("quarot-w4a4",)
    calibrated: ClassVar[bool] = True
    folds: ClassVar[bool] = True

    weight_bits: int = bounded(4, 2, 16)
    activation_bits: int = bounded(4, 2, 16)
    clip: float = real(0.9, 0.1, 1.0)
    search: bool = flag(True)
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
        return {
            "rounding": "gptq", "weight_bits": self.weight_bits, "search": self.search
        }  # fmt: skip

    def calibrate(self, data: CalibrationData) -> State:
        """signs (hidden,) int8; small.K (m, m) float64 for inputs of K; gptq: as layer_by_layer."""
        state = random_state(data, (linear.in_features for linear in data.linears.values()))
        if self.rounding == "rtn":
            return state
        device = data.windows[0].device
        with Patch(data.model) as patch, torch.no_grad():
            rotate(patch, {name: value.to(device) for name, value in state.items()})
            key = f"quarot gptq {self.weight_bits}-{self.search}"
            return state | layer_by_layer(data, patch, key, self._gptq)

    def _gptq(self, name: str, weight: Tensor, hessian: Tensor) -> State:
        clip = None if self.search else 1.0
        return gptq(
            weight, hessian, [weight.shape[1]], [self.weight_bits], symmetric=True, clip=clip
        ).parts

    def install(self, site: Site, state: State) -> None:
        rotate(site, state)
        for name, linear in site.linears.items():
            n, k = linear.weight.shape
            if self.weight_bits < 16:
                if self.rounding == "gptq":
                    weight = restored(state, name)
                else:
                    weight = linear.weight.detach()
                    clip = best_clip(weight, self.weight_bits) if self.search else 1.0
                    weight = rtn_symmetric(weight, self.weight_bits, clip)
                site.weight(name, weight)
                site.bits.add("weights", name, n * k, self.weight_bits + 16 / k)
            if self.activation_bits < 16:
                site.input(linear, self._activation)
                site.bits.add("activations", name, k, self.activation_bits + 16 / k)

    def _activation(self, x: Tensor) -> Tensor:
        return rtn_symmetric(x, self.activation_bits, self.clip)
