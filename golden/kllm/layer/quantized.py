"""Codebooks and weight indices of a layer, and the thresholds of its K and V."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.ops import add, bits_from_float, float_from_bits
from golden.kllm import conditioning
from golden.kllm.flow import LINEARS, SITES, matmuls
from golden.kllm.layer.layout import USED_SITES
from golden.kllm.layer.shape import LayerOptions, LayerShape
from golden.kllm.layer.weights import LayerWeights
from golden.kllm.norms import fold
from golden.kllm.quantize import (
    QuantizedWeight,
    Training,
    quantize_weight,
    train_activation_codebook,
    train_weight_codebook,
)
from golden.oaken.groups import Ratios, thresholds_of
from golden.oaken.thresholds import intervals_of, window_bounds


@dataclasses.dataclass(frozen=True)
class QuantizedLayer:
    """weight: by matmul (fused or not); codebook: of each activation in ``USED_SITES``.

    thresholds: (2, 4) FP16 words, Oaken's for K and for V.
    offset: (kv_heads, head_size) FP16 words that K gets after RoPE, with ``options.center``.
    """

    shape: LayerShape
    options: LayerOptions
    weight: Mapping[str, QuantizedWeight]
    codebook: Mapping[str, Tensor]
    thresholds: Tensor
    offset: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.offset is not None) != self.options.center:
            raise ConfigError(
                f"offset must be given with center=true alone, not center={self.options.center}"
            )

    def save(self, path: Path) -> None:
        """Saves the layer as one .npz file."""
        arrays: dict[str, Any] = {f"codebook.{n}": c.numpy() for n, c in self.codebook.items()}
        for name, weight in self.weight.items():
            for field in ("index", "scale", "codebook"):
                arrays[f"weight.{name}.{field}"] = getattr(weight, field).numpy()
        if self.offset is not None:
            arrays["offset"] = self.offset.numpy()
        arrays["thresholds"] = self.thresholds.numpy()
        for name, config in (("shape", self.shape), ("options", self.options)):
            for field, value in config.describe().items():
                arrays[f"{name}.{field}"] = np.array(value)
        np.savez(path, **arrays)

    @classmethod
    def load(cls, path: Path) -> "QuantizedLayer":
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        parts: dict[str, dict[str, Any]] = {"shape": {}, "options": {}}
        codebook: dict[str, Tensor] = {}
        weight: dict[str, dict[str, Tensor]] = {}
        thresholds, offset = arrays.pop("thresholds"), arrays.pop("offset", None)
        for name, array in arrays.items():
            kind, _, rest = name.partition(".")
            if kind in parts:
                parts[kind][rest] = array.item()
            elif kind == "codebook":
                codebook[rest] = torch.from_numpy(array)
            else:
                matmul, _, field = rest.partition(".")
                weight.setdefault(matmul, {})[field] = torch.from_numpy(array)
        return cls(
            shape=LayerShape(**parts["shape"]),
            options=LayerOptions(**parts["options"]),
            weight={name: QuantizedWeight(**fields) for name, fields in weight.items()},
            codebook=codebook,
            thresholds=torch.from_numpy(thresholds),
            offset=None if offset is None else torch.from_numpy(offset),
        )


def quantize_layer(
    weights: LayerWeights,
    seen: Mapping[str, Tensor],
    bits_a: int = 4,
    bits_b: int = 4,
    options: LayerOptions | None = None,
    antisymmetric: bool = False,
) -> QuantizedLayer:
    """Codebooks and weight indices; ``seen``: what ``reference`` gives on calibration tokens.

    antisymmetric: codebooks of weights have ``c[i] = -c[last - i]``.
    """
    options = options or LayerOptions()
    shape = weights.shape
    w = {name: tensor.double() for name, tensor in weights.linear.items()}
    w["q"] = w["q"] * shape.head_size**-0.5
    gamma = {"input_layernorm": weights.input_norm, "post_attention_layernorm": weights.post_norm}
    for name, linear in LINEARS.items():
        if linear.norm is not None:
            w[name] = fold(w[name].t(), gamma[linear.norm]).weight.t()
    made = matmuls(options.fuse, shape.intermediate)
    half = Training(antisymmetric=antisymmetric)
    weight = {}
    for name in sorted(made, key=lambda name: len(made[name]) > 1):  # single layers come first
        real = torch.cat([w[each] for each in made[name]])
        codebook_b = train_weight_codebook(real, bits_b, training=half)
        weight[name] = quantize_weight(real, codebook=codebook_b)
    offset = conditioning.offset(seen["k"]) if options.center else None
    codebook = {}
    for name in USED_SITES:
        words = bits_from_float(seen[name].double())
        share = options.share if SITES[name].outliers else 0
        codebook[name] = train_activation_codebook(words, bits_a, share=share)
    keys, values = cached_words(seen["k"], seen["v"], offset)
    ratios = Ratios()
    window = window_bounds([(float_from_bits(keys), float_from_bits(values))], ratios)
    thresholds = torch.stack([thresholds_of(each) for each in intervals_of([window], ratios)[0]])
    return QuantizedLayer(shape, options, weight, codebook, thresholds, offset)


def cached_words(k: Tensor, v: Tensor, offset: Tensor | None) -> tuple[Tensor, Tensor]:
    """FP16 words of real keys, rotated, and values as APPEND gets them: K with its offset."""
    keys, values = (bits_from_float(real.double()) for real in (k, v))
    return (keys if offset is None else add(keys, offset)), values
