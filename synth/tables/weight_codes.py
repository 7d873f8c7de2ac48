"""A weight of SmolLM2 as QET and as VQ have it, and its errors; loads torch."""

import functools

import torch

from golden.llm.methods.qet import Qet
from golden.qet.matrix import QetMatrix
from golden.vqllm import quip
from golden.vqllm.config import MatrixShape, VqShape
from golden.vqllm.matrix import VqMatrix, quantize
from synth.tables.look_ups import up_projection


@functools.lru_cache(maxsize=1)
def weight() -> torch.Tensor:
    return up_projection(15)


def qet(bits: int) -> QetMatrix:
    return Qet(rate=bits).matrix(weight())


def error_of(restored: torch.Tensor) -> float:
    """Mean squared error by the variance."""
    exact = weight().double()
    return float((exact - restored).square().mean() / exact.var(correction=0))


def vq(shape: VqShape) -> tuple[VqMatrix, float, float]:
    """(matrix, bits per weight, relative error) of the weight."""
    exact = weight()
    if shape.lattice:
        generator = torch.Generator().manual_seed(0)
        outputs, inputs = (quip.rotation(width, generator) for width in exact.shape)
        made = quip.quantize(exact, inputs, outputs, shape.stages)
        return made.matrix, made.bits_per_element, error_of(made.real())
    size = MatrixShape(rows=exact.shape[0], columns=exact.shape[1], vq=shape)
    matrix = quantize(exact, size, scaled=True)
    bits = size.code_bits + size.codebook_bits + 16 * size.rows
    return matrix, bits / exact.numel(), error_of(matrix.real())
