"""Operands of KLLM's operations as records: quantized tokens, weights and codebooks.

FP16 and FP32 values are integer bit patterns, int64. T tokens of K elements, N outputs.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol, Self

import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits

ONE = FP16.bias << FP16.frac_bits  # the FP16 word 1.0


class Token(Protocol):
    """One token: ``Tokens`` without the axis T; ``scale`` is an int."""

    @property
    def index(self) -> Tensor: ...
    @property
    def outlier(self) -> Tensor: ...
    @property
    def words(self) -> Tensor: ...
    @property
    def scale(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Quantized tokens: ``scale_t * C[index_tk]``, or the word itself where ``outlier_tk``.

    index: (T, K) centroid indices, or unsigned integers for an integer product; ignored at
    outliers. outlier: (T, K) bool. words: (T, K) FP16 words, read at outliers only. scale: (T,)
    FP16 words.
    """

    index: Tensor
    outlier: Tensor
    words: Tensor
    scale: Tensor

    @classmethod
    def direct(cls, words: Tensor) -> "Tokens":
        """FP16 words as they are: every element is an outlier, every scale 1.0."""
        ones = torch.full_like(words[:, 0], ONE)
        everywhere = torch.ones_like(words, dtype=torch.bool)
        return Tokens(torch.zeros_like(words), everywhere, words, ones)

    @classmethod
    def integers(cls, value: Tensor, scale: Tensor) -> "Tokens":
        """Unsigned integers (T, K) and their scales; no outliers."""
        nowhere = torch.zeros_like(value, dtype=torch.bool)
        return Tokens(value, nowhere, torch.zeros_like(value), scale)

    @classmethod
    def stack(cls, each: Sequence[Token]) -> "Tokens":
        """Tokens of one length, one after the other."""
        return Tokens(
            torch.stack([token.index for token in each]),
            torch.stack([token.outlier for token in each]),
            torch.stack([token.words for token in each]),
            torch.tensor([token.scale for token in each]),
        )

    @property
    def plain(self) -> "Tokens":
        """Returns the tokens without the fields of a derived class."""
        return Tokens(self.index, self.outlier, self.words, self.scale)

    def replace(self, **fields: Tensor) -> Self:
        """A copy with other fields."""
        return dataclasses.replace(self, **fields)

    def value(self, codebook: Tensor) -> Tensor:
        """``scale_t * C[index_tk]``, or the outlier itself: (T, K) float64, exact."""
        index = torch.where(self.outlier, 0, self.index.long())
        inlier = float_from_bits(codebook)[index] * float_from_bits(self.scale)[:, None]
        return torch.where(self.outlier, float_from_bits(self.words), inlier)


@dataclasses.dataclass(frozen=True)
class Weight:
    """Quantized weights ``scale_n * C[index_kn]``.

    index: (K, N) centroid indices. scale: (N,) FP16 words, or (T, N) where each token has scales
    of its own.
    """

    index: Tensor
    scale: Tensor


@dataclasses.dataclass(frozen=True)
class Codebooks:
    """Codebooks of a matrix product: FP16 words of magnitude at most 1.

    a: (2**bits_a,) of the tokens; b: (2**bits_b,) of the weights. product: how the product of two
    entries is stored. It is rounded once, from the exact product, to nearest even:

        =========================  ==========================================
        product                    P of entries a, b
        =========================  ==========================================
        ``rounded``                ``rne16(a * b)``, an FP16 word
        ``exact``                  ``a * b``, on the grid 2**-48
        ``fixed16``, ``fixed12``   on the grid 2**-14, 2**-10: two's complement
        =========================  ==========================================
    """

    a: Tensor
    b: Tensor
    product: str = "rounded"


@dataclasses.dataclass(frozen=True)
class Packet:
    """The words of a codebook packet, whatever made them (golden.kllm.products).

    words: golden.kllm.format.kmeans_packet_length words, or integer_packet_length of an Integer
    packet; magnitudes at most 1.
    """

    words: Tensor
    bits_a: int
    bits_b: int
    product: str = "rounded"
    antisymmetric: bool = False

    @property
    def stored_bits_b(self) -> int:
        """Bits of the weight indices that the packet has words for: without the mirrored half."""
        return self.bits_b - int(self.antisymmetric)
