"""What KLLM quantization costs on a real model: ``python -m golden.eval.reports.kllm``.

Codebooks are trained on the calibration text, errors are measured on the evaluation text.
"""

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from torch import Tensor

from golden import command, text
from golden.capture import Captured, capture_inputs
from golden.checkpoint import CheckpointError, load, tokens
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.nearest import mismatch
from golden.kllm.quantize import (
    linear,
    quantize_tokens,
    quantize_weight,
    train_activation_codebook,
)

__all__ = ["LayerError", "layer_error", "main"]


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


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m golden.eval.reports.kllm", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", type=Path, help="GGUF file or transformers folder")
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 1, 15, 29])
    parser.add_argument("--calibration", type=int, default=256, help="tokens")
    parser.add_argument("--evaluation", type=int, default=64, help="tokens")
    parser.add_argument("--share", type=float, default=0.005, help="outliers on each side")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    try:
        checkpoint = load(options.model)
        names = [
            f"model.layers.{layer}.{linear_name}"
            for layer in options.layers
            for linear_name in ("self_attn.q_proj", "mlp.down_proj")
        ]
        print(f"loaded in {time.monotonic() - start:.1f} s")
        ids = tokens(checkpoint, text.CALIBRATION, options.calibration)
        calibration = capture_inputs(checkpoint.model, ids, names, gradients=True)
        ids = tokens(checkpoint, text.EVALUATION, options.evaluation)
        evaluation = capture_inputs(checkpoint.model, ids, names)
        print(f"captured after {time.monotonic() - start:.1f} s")
        print("layer | setting | Fisher | error | weights | tokens | arithmetic | not nearest")
        print("--- | --- | --- | --- | --- | --- | --- | ---")
        for name in names:
            for bits_a in (4, 3):
                for fisher in (False, True):
                    trained = dataclasses.replace(
                        calibration[name],
                        gradient=calibration[name].gradient if fisher else None,
                    )
                    error = layer_error(trained, evaluation[name], bits_a, share=options.share)
                    print(
                        f"{name.removeprefix('model.layers.')} | W4A{bits_a} | "
                        f"{'yes' if fisher else 'no'} | {error.total:.4f} | {error.weight:.4f} | "
                        f"{error.tokens:.4f} | {error.arithmetic:.1e} | {error.mismatch:.2e}"
                    )
    except (CheckpointError, ValueError) as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return 2
    print(f"done in {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    command.run("golden.eval.reports.kllm", main)
