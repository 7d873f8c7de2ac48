"""Matrices whose both sides are rotated before the lattice quantizes them, after QuiP#.

``W = 2**exponent * U diag(scale) Q V^T``, with Q of points of the lattice. U and V are rotations of
``golden.rotation``, with random signs. An engine has ``scale``, exponent and Q. It multiplies
``x V``, and its results times ``U^T`` are those of W. The host rotates both vectors.
Source: Tseng et al., QuiP#, 2024, sections 3 and 4. No part of a model is trained.
"""

import dataclasses

import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.rotation import Rotation, factors, paley, small_matrix
from golden.vqllm import lattice
from golden.vqllm.config import LATTICE_EXPONENT, NAMED, MatrixShape
from golden.vqllm.matrix import VqMatrix
from golden.vqllm.product import by_dequantizing

# Scale of a row over its root mean square, by stages: it loses least of Gaussian values.
SPREAD = {1: 0.96, 2: 1.15}


def rotation(width: int, generator: torch.Generator) -> Rotation:
    """Draws a rotation with random signs."""
    small = small_matrix(width, generator)
    signs = torch.randint(0, 2, (width,), generator=generator) * 2 - 1
    return Rotation(width, small, signs)


@dataclasses.dataclass(frozen=True)
class RotatedMatrix:
    """A matrix (rows, columns) as codes; ``matrix`` has columns of 0 up to a multiple of 8."""

    matrix: VqMatrix
    inputs: Rotation  # V
    outputs: Rotation  # U

    @property
    def columns(self) -> int:
        return self.inputs.width

    @property
    def stored_bits(self) -> int:
        """Codes, codebooks, a scale per row, and signs of the rotations.

        A rotation without a Hadamard matrix counts its small one with 16 bits per element.
        """
        shape = self.matrix.shape
        bits = shape.code_bits + shape.codebook_bits + FP16.bits * shape.rows
        for width in (shape.rows, self.columns):
            bits += width + FP16.bits * drawn(width)
        return bits

    @property
    def bits_per_element(self) -> float:
        """Bits of an element of the matrix as it is, without columns of 0."""
        return self.stored_bits / (self.matrix.shape.rows * self.columns)

    def real(self) -> Tensor:
        """The quantized matrix: (rows, columns) float64."""
        inner = self.matrix.real()[:, : self.columns]
        return self.outputs.inverse(self.inputs.inverse(inner).T).T

    def turned(self, x: Tensor) -> Tensor:
        """Makes an engine's words of x: (batch, columns) numbers to FP16, 0 beyond the columns."""
        words = bits_from_float(self.inputs(x.double()))
        return torch.nn.functional.pad(words, (0, self.matrix.shape.columns - self.columns))

    def product(self, x: Tensor) -> Tensor:
        """``x W^T`` as host and engine compute it: (batch, columns) to (batch, rows) float64."""
        words, _ = by_dequantizing(self.turned(x), self.matrix)
        return self.outputs.inverse(float_from_bits(words, FP16))


def drawn(width: int) -> int:
    """Elements of the small matrix of a rotation that are drawn, not known by construction."""
    first, _ = factors(width)
    return 0 if first == 1 or paley(first) is not None else first * first


def quantize(
    weight: Tensor,
    inputs: Rotation,
    outputs: Rotation,
    stages: int = 2,
    upper: Tensor | None = None,
) -> RotatedMatrix:
    """``weight`` (rows, columns) as points of the lattice, each row with a scale.

    upper: (columns, columns), U with ``U^T U = (V^T H V)^-1``, H the sum of x x^T. The error of a
    vector of 8 then moves the columns after it, as in GPTQ with blocks of 8: QuiP#'s BlockLDLQ.
    Without it each vector takes its nearest points.
    ValueError: the weight is not finite.
    """
    if not bool(torch.isfinite(weight).all()):
        raise ValueError("weight must be finite")
    columns = weight.shape[1]
    padding = -columns % lattice.SIZE
    inner = outputs(inputs(weight.double()).T).T.float()
    root = inner.double().square().mean(1).sqrt() * SPREAD[stages]
    scales = bits_from_float(torch.where(root > 0, root, 1.0))
    scale = float_from_bits(scales, FP16).float()[:, None]
    left = torch.nn.functional.pad(inner / scale, (0, padding))
    if upper is None:
        codes = lattice.encode(left.unflatten(1, (-1, lattice.SIZE)), stages)
    else:
        grown = torch.eye(columns + padding, device=upper.device)
        grown[:columns, :columns] = upper
        codes = _fed_back(left, grown, stages)
    return of_codes(codes, scales, inputs, outputs)


def of_codes(codes: Tensor, scales: Tensor, inputs: Rotation, outputs: Rotation) -> RotatedMatrix:
    """codes: (rows, vectors, stages); scales: (rows,) FP16 words."""
    rows, vectors, stages = codes.shape
    vq = dataclasses.replace(NAMED["quip4"], stages=stages)
    shape = MatrixShape(rows=rows, columns=vectors * lattice.SIZE, vq=vq)
    books = lattice.codebook(stages)[None].to(codes.device)
    matrix = VqMatrix(shape, books, LATTICE_EXPONENT, codes, scales)
    return RotatedMatrix(matrix, inputs, outputs)


def _fed_back(left: Tensor, upper: Tensor, stages: int) -> Tensor:
    """Codes of vector after vector; ``left`` (rows, columns) changes."""
    codes = []
    for begin in range(0, left.shape[1], lattice.SIZE):
        now, after = slice(begin, begin + lattice.SIZE), slice(begin + lattice.SIZE, None)
        codes.append(lattice.encode(left[:, now], stages))
        error = left[:, now] - lattice.decode(codes[-1]).float()
        left[:, after] -= torch.linalg.solve(upper[now, now], error, left=False) @ upper[now, after]
    return torch.stack(codes, 1)
