"""Weights as codes of trained codebooks: the shapes of AQLM and GPTVQ (VQ-LLM, Table II)."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from golden.config import bounded, flag, real
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.lloyd import Training
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.method import Method, Site, State
from golden.llm.methods.gptq import layer_by_layer
from golden.llm.patch import Patch
from golden.vqllm.config import MatrixShape, VqShape
from golden.vqllm.gptvq import quantize_with_feedback
from golden.vqllm.matrix import VqMatrix, quantize
from golden.vqllm.product import by_dequantizing

_SALTS = 16  # seeds of a layer, more than it has stages


def matrix_of(state: State, name: str, vq: VqShape) -> VqMatrix:
    """The quantized matrix of a layer in the state that ``calibrate`` made."""
    codes = state[f"{name}.codes"].long() & 0xFFFF
    shape = MatrixShape(rows=codes.shape[0], columns=codes.shape[1] * vq.size, vq=vq)
    scales = state.get(f"{name}.scales")
    return VqMatrix(
        shape,
        state[f"{name}.words"].long() & 0xFFFF,
        int(state[f"{name}.exponent"]),
        codes,
        None if scales is None else scales.long() & 0xFFFF,
    )


def _state_of(matrix: VqMatrix) -> State:
    """Returns the tensors that ``matrix_of`` reads; words are stored as int16."""
    found = {
        "codes": matrix.codes.to(torch.int16),
        "words": matrix.codebooks.to(torch.int16),
        "exponent": torch.tensor(matrix.exponent),
    }
    if matrix.scales is not None:
        found["scales"] = matrix.scales.to(torch.int16)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqWeights(Method):
    """Base of methods whose weights are a ``VqMatrix``.

    A width that is no multiple of the vector size gets columns of zeros, whose codes are counted.
    """

    calibrated: ClassVar[bool] = True

    scaled: bool = flag(False)
    beam: int = bounded(1, 1, 64)
    iterations: int = bounded(12, 0, 1 << 20)
    damping: float = real(0.01, 1e-6, 1.0)

    @property
    def vq(self) -> VqShape:
        """Shape of the codes; ConfigError: there is no such shape."""
        raise NotImplementedError

    @property
    def replaces_weights(self) -> bool:
        return True

    def _matrix(self, weight: Tensor, hessian: Tensor, shape: MatrixShape, seed: int) -> VqMatrix:
        """Quantizes a weight by a Hessian; their width is a multiple of the vector size."""
        raise NotImplementedError

    def matrix(self, weight: Tensor, hessian: Tensor, seed: int = 0) -> VqMatrix:
        """The weight (N, K) of a layer with codebooks of its own; hessian: (K, K), sum of x x^T."""
        padding = -weight.shape[1] % self.vq.size
        weight = torch.nn.functional.pad(weight.float(), (0, padding))
        hessian = torch.nn.functional.pad(hessian, (0, padding, 0, padding))
        shape = MatrixShape(rows=weight.shape[0], columns=weight.shape[1], vq=self.vq)
        return self._matrix(weight, hessian, shape, seed)

    def calibrate(self, data: CalibrationData) -> State:
        """Makes the tensors that ``matrix_of`` reads, by the names of the layers."""
        order = {name: i for i, name in enumerate(data.linears)}

        def quantize_one(name: str, weight: Tensor, hessian: Tensor) -> State:
            seed = data.seed_of(order[name] * _SALTS)
            return _state_of(self.matrix(weight, hessian, seed))

        def restore(state: State, name: str) -> Tensor:
            return self._restored(state, name, data.linears[name].in_features)

        label = "-".join(map(str, self.calibration_fields().values()))
        with Patch(data.model) as patch:
            return layer_by_layer(
                data, patch, f"{type(self).__name__} {label}", quantize_one, restore
            )

    def _restored(self, state: State, name: str, width: int) -> Tensor:
        return matrix_of(state, name, self.vq).real()[:, :width].float()

    def install(self, site: Site, state: State) -> None:
        for name, linear in site.linears.items():
            n, k = linear.weight.shape
            matrix = matrix_of(state, name, self.vq)
            site.weight(name, matrix.real()[:, :k].float())
            site.bits.add("weights", name, n * k, matrix.stored_bits / (n * k))

    def bit_true(self, site: Site, state: State, name: str) -> Callable[[Tensor], Tensor] | None:
        """FP16 inputs, exact sums with one rounding to FP16; the layer's bias is added to that."""
        matrix = matrix_of(state, name, self.vq)
        bias = site.linears[name].bias

        def function(x: Tensor) -> Tensor:
            x = torch.nn.functional.pad(x, (0, matrix.shape.columns - x.shape[-1]))
            words, _ = by_dequantizing(bits_from_float(x), matrix)
            y = float_from_bits(words, FP16).float()
            return y if bias is None else y + bias

        return function


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gptvq(VqWeights):
    """``gptvq2``: a codebook per tile of weights, codes chosen with error feedback; after GPTVQ.

    rate: bits of the codes per weight, 1 to 4
    size: weights of a vector, 0: 8 / rate; a code has rate * size bits
    tile: rows and columns that share a codebook, a multiple of the size of a vector
    scaled: rows are divided by their root mean square in FP16
    beam, iterations: of the search over stages, and of k-means
    damping: of the Hessian, as in ``gptq-like``

    The Hessian weighs the k-means of a tile, and the error of a vector of columns feeds back to the
    columns after it (``golden.vqllm.gptvq``). The paper also updates the codebooks by gradients
    after the codes are chosen, and quantizes them. Here neither is done.
    """

    pattern: ClassVar[str] = r"gptvq(?P<rate>\d)"
    spellings: ClassVar[tuple[str, ...]] = ("gptvq2",)

    rate: int = bounded(2, 1, 4)
    size: int = bounded(0, 0, 16)
    tile: int = bounded(256, 0, 1 << 20)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.rate * self._size <= 16:
            self._refuse("size", f"such that a code of rate * size has 2..16 bits at {self.rate}")
        if self.tile % self._size:
            self._refuse("tile", f"a multiple of size = {self._size}")

    @property
    def _size(self) -> int:
        return self.size or 8 // self.rate

    @property
    def vq(self) -> VqShape:
        return VqShape(
            size=self._size,
            entries=1 << self.rate * self._size,
            stages=1,
            tile_rows=self.tile,
            tile_columns=self.tile,
        )

    def _matrix(self, weight: Tensor, hessian: Tensor, shape: MatrixShape, seed: int) -> VqMatrix:
        training = Training(seed=seed, iterations=self.iterations)
        return quantize_with_feedback(
            weight, shape, hessian, training, self.beam, self.scaled, self.damping
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aqlm(VqWeights):
    """``aqlm3``, ``aqlm2x8``, ``aqlm1x16``: sums of entries of codebooks of a matrix; after AQLM.

    ``aqlmZxB`` has Z codebooks with codes of B bits for vectors of 8 weights. ``aqlm3`` is
    ``aqlm2x12``, which takes 3 bits per weight and its codebooks.

    weighted: mean squares of a vector's inputs weigh it in k-means
    feedback: codes by the error feedback of ``gptvq2`` in place of a plain search
    scaled: rows are divided by their root mean square in FP16, as AQLM's published layout has them
    beam: sums that the search of a vector's codes keeps from stage to stage
    iterations: of k-means, whose seeds are random vectors
    damping: of the Hessian, where there is feedback

    Codebooks come from residual k-means, and codes from a beam search. AQLM goes on: it updates
    codes and codebooks in turn, and tunes them and other parameters by gradients, block by block.
    Here nothing is tuned.
    """

    pattern: ClassVar[str] = r"aqlm(?:3|(?P<codebooks>\d)x(?P<bits>\d{1,2}))"
    spellings: ClassVar[tuple[str, ...]] = ("aqlm3", "aqlm2x8", "aqlm1x16")

    codebooks: int = bounded(2, 1, 4)
    bits: int = bounded(12, 2, 16)
    weighted: bool = flag(True)
    feedback: bool = flag(False)
    scaled: bool = True
    beam: int = 2
    iterations: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feedback and not self.weighted:
            self._refuse("weighted", "true with feedback=true, whose errors have their own weights")
        if not (self.feedback or self.weighted) and self.damping != type(self).damping:
            self._refuse("damping", f"{type(self).damping} with weighted=false, which has none")

    @property
    def vq(self) -> VqShape:
        return VqShape(size=8, entries=1 << self.bits, stages=self.codebooks)

    def _matrix(self, weight: Tensor, hessian: Tensor, shape: MatrixShape, seed: int) -> VqMatrix:
        training = Training(seed=seed, seeds="random", iterations=self.iterations)
        if self.feedback:
            return quantize_with_feedback(
                weight, shape, hessian, training, self.beam, self.scaled, self.damping
            )
        # Inputs that are always 0 leave a weight to every vector.
        squares = hessian.diagonal() + self.damping * hessian.diagonal().mean()
        known = squares if self.weighted and bool((squares > 0).all()) else None
        return quantize(weight, shape, known, training, self.beam, self.scaled)
