"""Words of a lane's codebook packets: products of centroids, and centroids C_V (docs/kllm.md).

==========  ======================================  =====================================
word        ``rounded``                             ``fixed16``, ``fixed12``
==========  ======================================  =====================================
a product   FP16: ``rne16(a * b)``                  two's complement on 2**product_grid
C_V         FP16                                    two's complement on 2**integer_grid
C_B         FP16                                    FP16
==========  ======================================  =====================================

A word has 16 bits; one of ``fixed12`` is sign-extended. Fixed point rounds the exact value once, to
nearest even. Magnitudes are at most 1.
"""

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import fixed_point, mul
from golden.index.codebook import product_codebook
from golden.index.format import GRID_PRODUCT_EXACT, GRID_PRODUCT_ROUNDED
from golden.kllm.format import (
    ALL_PRODUCTS,
    FIXED_PRODUCTS,
    PRODUCTS,
    integer_grid,
    product_grid,
)

_MASK = (1 << FP16.bits) - 1


def check_product(product: str, *, in_packet: bool = True) -> None:
    """ConfigError: golden does not know ``product``, or no packet has it."""
    known = PRODUCTS if in_packet else ALL_PRODUCTS
    if product not in known:
        raise ConfigError(f"product must be {' or '.join(known)}, not {product!r}")


def exact_products(codebook_a: Tensor, codebook_b: Tensor) -> Tensor:
    """``a * b`` as integers on the grid 2**-48: (2**nA, 2**nB)."""
    return fixed_point(codebook_a)[:, None] * fixed_point(codebook_b)[None, :]


def product_words(codebook_a: Tensor, codebook_b: Tensor, product: str = "rounded") -> Tensor:
    """The products of two codebooks of FP16 words, in the order of ``product_index``."""
    check_product(product)
    if product not in FIXED_PRODUCTS:
        return product_codebook(codebook_a, codebook_b)
    return _fixed_products(codebook_a, codebook_b, product)


def _fixed_products(codebook_a: Tensor, codebook_b: Tensor, product: str) -> Tensor:
    exact = exact_products(codebook_a, codebook_b)
    return _to_grid(exact, product_grid(product) - GRID_PRODUCT_EXACT).reshape(-1) & _MASK


def codebook_words(
    codebook_a: Tensor, codebook_b: Tensor, product: str = "rounded", antisymmetric: bool = False
) -> Tensor:
    """The words of a K-Means packet: the products, then C_B; antisymmetric: of half of C_B.

    ConfigError: ``antisymmetric``, but the codebook is not.
    """
    if antisymmetric:
        codebook_b = _lower_half(codebook_b, "codebook_b")
        words = (
            _fixed_products(codebook_a, codebook_b, product)
            if product in FIXED_PRODUCTS
            else mul(codebook_a.long()[:, None], codebook_b.long()[None, :]).reshape(-1)
        )
        return torch.cat([words, codebook_b])
    return torch.cat([product_words(codebook_a, codebook_b, product), codebook_b])


def _lower_half(codebook: Tensor, name: str) -> Tensor:
    """ConfigError: ``c[i] = -c[last - i]`` does not hold."""
    value = fixed_point(codebook)
    if not torch.equal(value, -value.flip(0)):
        raise ConfigError(f"{name} must be antisymmetric: c[i] = -c[{len(codebook) - 1} - i]")
    return codebook[: len(codebook) // 2]


def mirrored(value: Tensor) -> Tensor:
    """A codebook, or rows of one, from the lower half: integers."""
    return torch.cat([value, -value.flip(-1)], -1)


def integer_words(
    codebook_v: Tensor, bits_a: int, product: str = "rounded", antisymmetric: bool = False
) -> Tensor:
    """The words of an Integer packet, from FP16 words; bits_a: bits of a digit.

    antisymmetric: as ``codebook_words``.
    """
    check_product(product)
    if antisymmetric:
        codebook_v = _lower_half(codebook_v, "codebook_v")
    if product not in FIXED_PRODUCTS:
        return codebook_v
    shift = integer_grid(product, bits_a) - GRID_PRODUCT_ROUNDED
    return _to_grid(fixed_point(codebook_v), shift) & _MASK


def word_values(words: Tensor, product: str = "rounded") -> Tensor:
    """Words of products or of C_V as integers on their grid."""
    check_product(product)
    return fixed_values(words) if product in FIXED_PRODUCTS else fixed_point(words)


def fixed_values(words: Tensor) -> Tensor:
    """16-bit words of two's complement as integers."""
    return (words.long() ^ FP16.sign_bit) - FP16.sign_bit


def _to_grid(value: Tensor, shift: int) -> Tensor:
    """``rne(value * 2**-shift)``: integers to a grid ``shift`` (at least 1) places coarser."""
    down = value >> shift
    left, half = value - (down << shift), 1 << shift - 1
    return down + ((left > half) | ((left == half) & (down & 1 == 1))).long()
