"""Words of products in KLLM's fast path: a lane adds up words of fixed point, not float32 products.

    sum over k of s_A T[i_k, j_k] s_B = x @ W + sum over j of (s_A E[i_k, j]) @ (1[j_k = j] s_B)

T is the table that a packet fills the lane with (golden.kllm.products), and E what its words differ
from the products of centroids. So a matrix product per weight centroid is added, or per pair of
opposite ones where the codebook is antisymmetric. E is a few thousandths of the products at most,
so bfloat16 is near enough. It rounds far less of a result than a lane, whose results are FP16.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from golden.fp16.ops import float_from_bits
from golden.index.format import GRID_PRODUCT_EXACT
from golden.kllm.format import integer_grid, product_grid
from golden.kllm.products import exact_products, integer_words, product_words, word_values
from golden.kllm.quantize import QuantizedWeight
from golden.llm.eval.fake.kllm import FakeCodebook, FakeTokens


@dataclasses.dataclass(frozen=True)
class ProductError:
    """table: E by index of a token and of a weight, bfloat16; its last row is of outliers, 0."""

    table: Tensor

    @classmethod
    def of(cls, codebook_a: Tensor, codebook_b: Tensor, product: str) -> "ProductError":
        """Takes FP16 words of both codebooks, and a product in fixed point."""
        a, b = codebook_a.long(), codebook_b.long()
        words = word_values(product_words(a, b, product), product).reshape(len(a), len(b))
        exact = exact_products(a, b)
        places = product_grid(product) - GRID_PRODUCT_EXACT
        error = ((words << places) - exact).double() * 2.0**GRID_PRODUCT_EXACT
        return cls(torch.cat((error, torch.zeros_like(error[:1]))).bfloat16())

    def sums(self, tokens: FakeTokens, weight: QuantizedWeight) -> Tensor:
        """Sums of words less those of products: (..., N) float32 of tokens (..., K)."""
        places = tokens.index.reshape(-1, tokens.index.shape[-1]).int()
        last = self.table.shape[1] - 1
        mirrors = torch.equal(self.table, -self.table.flip(1))
        made = torch.zeros(len(places), weight.index.shape[1], device=places.device)
        for j in range((last + 1) // 2 if mirrors else last + 1):
            chosen = (weight.index == j).to(self.table.dtype)
            if mirrors:
                chosen -= (weight.index == last - j).to(self.table.dtype)
            row = self.table[:, j].index_select(0, places.flatten()).reshape(places.shape)
            made += row @ chosen
        made *= float_from_bits(weight.scale.long()).float()
        return made.reshape(*tokens.index.shape[:-1], -1) * tokens.scale


class Inputs:
    """Tokens of a site as the linear layers read them, kept from where they are quantized.

    quantize: QUANTIZE of a tensor; epsilon: of the RMSNorm between it and the layers, None: none.
    ``hold`` comes before the quantizer that changes the tensor: it changes nothing itself.
    """

    def __init__(self, quantize: Callable[[Tensor], FakeTokens], epsilon: float | None) -> None:
        self.quantize, self.epsilon = quantize, epsilon
        self.tokens: FakeTokens | None = None

    def hold(self, x: Tensor) -> Tensor:
        tokens = self.quantize(x)
        if self.epsilon is not None:
            square = tokens.value.square().mean(-1, keepdim=True)
            scale = tokens.scale * torch.rsqrt(square + self.epsilon)
            tokens = dataclasses.replace(tokens, scale=scale)
        self.tokens = tokens
        return x

    def add(self, error: ProductError, weight: QuantizedWeight, factor: float, y: Tensor) -> Tensor:
        """Returns a linear layer's output with words of products; factor: in the stored weight."""
        assert self.tokens is not None
        return y + error.sums(self.tokens, weight) / factor


def integer_centroids(codebook: FakeCodebook, words: Tensor, product: str, bits_a: int) -> Tensor:
    """Centroids of V as a lane of fixed point adds them up; words: FP16, of the codebook."""
    found = word_values(integer_words(words.long(), bits_a, product), product)
    return (found.double() * 2.0 ** integer_grid(product, bits_a)).to(codebook.centroids)
