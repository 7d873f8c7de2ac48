"""Products of vectors with a matrix quantized by QET, bit-true."""

import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.fp16.ops import is_special
from golden.index.format import GRID_PRODUCT_EXACT
from golden.qet.matrix import QetMatrix
from golden.vqllm.product import exact_sums, rounded


def product(x: Tensor, matrix: QetMatrix) -> tuple[Tensor, Tensor]:
    """``y[b][n] = rne16(2**exponent * sum over columns k of x[b][k] * W[n][k])``, the sum exact.

    W: the words of ``matrix`` without its exponent, FP16. x: (batch, columns) words. Returns y
    (batch, rows) words, and (batch,) booleans: x has a NaN or an infinity, and its y is NaN.
    """
    weight = matrix.words()[:, : matrix.shape.columns]
    words = rounded(exact_sums(x, weight), GRID_PRODUCT_EXACT + matrix.exponent, None)
    bad = is_special(x.long()).any(-1)
    return torch.where(bad[:, None], FP16.canonical_nan, words), bad
