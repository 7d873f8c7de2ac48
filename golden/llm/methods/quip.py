"""Weights rotated on both sides, as points of a lattice, after QuiP#."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from golden.config import choice, flag, real
from golden.index.hessian import inverse_root
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.method import Method, Site, State
from golden.llm.methods.gptq import layer_by_layer
from golden.llm.patch import Patch
from golden.rotation import Rotation, small_matrix
from golden.vqllm.quip import RotatedMatrix, of_codes, quantize, rotation

_SALT = 0xE8  # of the random signs and matrices
_SIDES = ("outputs", "inputs")  # of a weight (N, K)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quip(Method):
    """``quip4``: weights as sums of two points of the lattice E8P, activations untouched.

    After QuiP# (Tseng et al. 2024, sections 3 and 4). Both sides of a weight are rotated by
    Hadamard matrices with random signs. ``quip2`` has one point for 8 weights, ``quip4`` two. Rows
    have FP16 scales. QuiP# goes on: it tunes signs, norms and other parameters by gradients. Here
    nothing is tuned. 11 of our 29 entries of norm 12 are not QuiP#'s, and our second stage has
    units of 1/4, not 1/3.45. So this is no measurement of QuiP#'s codebook.

    feedback: the error of a vector of 8 columns moves the columns after it, by the Hessian of
        the rotated inputs (BlockLDLQ). Without it each vector takes its nearest points
    damping: of the Hessian, as in ``gptq-like``

    Codes, codebooks of a layer, scales, signs, and random factors of rotations are counted. The
    installed weight is the quantized one in the coordinates of the layer. So the fast path rotates
    nothing while running. The exact path does, in float64.
    """

    pattern: ClassVar[str] = r"quip(?P<rate>\d)"
    spellings: ClassVar[tuple[str, ...]] = ("quip4", "quip2")
    calibrated: ClassVar[bool] = True

    rate: int = choice(4, (2, 4))
    feedback: bool = flag(True)
    damping: float = real(0.01, 1e-6, 1.0)

    def __post_init__(self) -> None:
        if not self.feedback and self.damping != type(self).damping:
            self._refuse("damping", f"{type(self).damping} without feedback, which alone has it")

    @property
    def replaces_weights(self) -> bool:
        return True

    def calibrate(self, data: CalibrationData) -> State:
        """Makes for each layer codes (N, K / 8, points), scales (N,) int16, signs (N,), (K,) int8.

        small.W (m, m) float64: a factor of the rotations of width W.
        """
        generator = data.generator(_SALT)
        shapes = {name: tuple(each.weight.shape) for name, each in data.linears.items()}
        widths = sorted({width for shape in shapes.values() for width in shape})
        small = {f"small.{width}": small_matrix(width, generator) for width in widths}
        signs: State = {}
        for name, shape in shapes.items():
            for side, width in zip(_SIDES, shape, strict=True):
                drawn = torch.randint(0, 2, (width,), generator=generator) * 2 - 1
                signs[f"{name}.{side}"] = drawn.to(torch.int8)

        def quantize_one(name: str, weight: Tensor, hessian: Tensor) -> State:
            found = self._matrix(weight, hessian, *_rotations(small | signs, name)).matrix
            assert found.scales is not None
            own = {side: signs[f"{name}.{side}"] for side in _SIDES}
            return own | {
                "codes": found.codes.to(torch.int16), "scales": found.scales.to(torch.int16)
            }  # fmt: skip

        def restore(state: State, name: str) -> Tensor:
            return matrix_of(small | state, name).real().float()

        fields = "-".join(map(str, self.calibration_fields().values()))
        with Patch(data.model) as patch:
            return small | layer_by_layer(data, patch, f"quip {fields}", quantize_one, restore)

    def _matrix(
        self, weight: Tensor, hessian: Tensor, outputs: Rotation, inputs: Rotation
    ) -> RotatedMatrix:
        upper = None
        if self.feedback:
            upper = inverse_root(inputs(inputs(hessian.double()).T), self.damping)
        return quantize(weight, inputs, outputs, self.rate // 2, upper)

    def matrix(self, weight: Tensor, hessian: Tensor, seed: int = 0) -> RotatedMatrix:
        """The weight (N, K) of a layer; hessian: (K, K), sum of x x^T."""
        generator = torch.Generator().manual_seed(seed)
        outputs, inputs = (rotation(width, generator) for width in weight.shape)
        return self._matrix(weight, hessian, outputs, inputs)

    def install(self, site: Site, state: State) -> None:
        for name, linear in site.linears.items():
            matrix = matrix_of(state, name)
            site.weight(name, matrix.real().float())
            site.bits.add("weights", name, linear.weight.numel(), matrix.bits_per_element)

    def bit_true(self, site: Site, state: State, name: str) -> Callable[[Tensor], Tensor] | None:
        """Rotated inputs in FP16, exact sums with one rounding to FP16, results rotated back."""
        matrix, bias = matrix_of(state, name), site.linears[name].bias

        def function(x: Tensor) -> Tensor:
            y = matrix.product(x).float()
            return y if bias is None else y + bias

        return function


def matrix_of(state: State, name: str) -> RotatedMatrix:
    """The quantized matrix of a layer in the state that ``calibrate`` made."""
    codes, scales = (state[f"{name}.{part}"].long() & 0xFFFF for part in ("codes", "scales"))
    outputs, inputs = _rotations(state, name)
    return of_codes(codes, scales, inputs, outputs)


def _rotations(state: State, name: str) -> list[Rotation]:
    """Returns the rotations of the results and of the inputs."""
    found = []
    for side in _SIDES:
        signs = state[f"{name}.{side}"]
        found.append(Rotation(len(signs), state[f"small.{len(signs)}"], signs))
    return found
