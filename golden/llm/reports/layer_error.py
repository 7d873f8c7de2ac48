"""The error of a linear layer under KLLM quantization, and its parts."""

import dataclasses

from torch import Tensor

from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.nearest import mismatch
from golden.kllm.quantize import (
    linear,
    quantize_tokens,
    quantize_weight,
    train_activation_codebook,
)
from golden.llm.capture import Captured


@dataclasses.dataclass(frozen=True)
class LayerError:
    """``|y - y_fp32| / |y_fp32|`` (Frobenius, over tokens and outputs) and its parts.

    total: bit-true product of quantized weights and tokens; weight: only weights quantized;
    tokens: only tokens quantized; arithmetic: total against the same quantized operands in
    float64, the cost of FP16 products and the final roundings. mismatch: share of inliers whose
    index by thresholds is not that of the nearest centroid.
    """

    total: float
    weight: float
    tokens: float
    arithmetic: float
    mismatch: float


def _relative(y: Tensor, reference: Tensor) -> float:
    return float((y - reference).norm() / reference.norm())


def layer_error(
    calibration: Captured,
    evaluation: Captured,
    bits_a: int,
    bits_b: int = 4,
    share: float = 0.005,
    product: str = "rounded",
) -> LayerError:
    """Error of one linear layer; Fisher weights from ``calibration.gradient`` if it is there."""
    codebook = train_activation_codebook(
        bits_from_float(calibration.x), bits_a, calibration.fisher, share
    )
    weight = quantize_weight(evaluation.weight, bits_b)
    x = bits_from_float(evaluation.x)
    quantized = quantize_tokens(x, codebook, share)
    y = float_from_bits(linear(quantized, weight, product).y)
    real_x, real_w = evaluation.x.double(), evaluation.weight.double().t()
    reference = real_x @ real_w
    same = quantized.dequantize() @ weight.dequantize()
    return LayerError(
        total=_relative(y, reference),
        weight=_relative(real_x @ weight.dequantize(), reference),
        tokens=_relative(quantized.dequantize() @ real_w, reference),
        arithmetic=_relative(y, same),
        mismatch=mismatch(x, quantized.scale, codebook, ~quantized.outlier),
    )
