"""Codebooks, weight indices and cached tokens of a layer, and the images of weights."""

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
from golden.kllm.functional import Slot
from golden.kllm.isa import Outliers
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
from golden.kllm.quantizer import quantize_command
from golden.oaken.groups import Ratios, thresholds_of
from golden.oaken.thresholds import intervals_of, window_bounds


@dataclasses.dataclass(frozen=True)
class QuantizedLayer:
    """weight: by matmul (fused or not); codebook: of each activation, k and v of the caches.

    offset: (kv_heads, head_size) FP16 words that K gets after RoPE, with ``options.center``.
    thresholds: (2, 4) FP16 words, Oaken's for K and for V, with ``options.cache`` of ``oaken``.
    """

    shape: LayerShape
    options: LayerOptions
    weight: Mapping[str, QuantizedWeight]
    codebook: Mapping[str, Tensor]
    offset: Tensor | None = None
    thresholds: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.offset is not None) != self.options.center:
            raise ConfigError(
                f"offset must be given with center=true alone, not center={self.options.center}"
            )
        if (self.thresholds is None) != self.options.lanes_attend:
            raise ConfigError(
                f"thresholds must be given with cache=oaken alone, not cache={self.options.cache}"
            )

    def save(self, path: Path) -> None:
        """Saves the layer as one .npz file."""
        arrays: dict[str, Any] = {f"codebook.{n}": c.numpy() for n, c in self.codebook.items()}
        for name, weight in self.weight.items():
            for field in ("index", "scale", "codebook"):
                arrays[f"weight.{name}.{field}"] = getattr(weight, field).numpy()
        if self.offset is not None:
            arrays["offset"] = self.offset.numpy()
        if self.thresholds is not None:
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
        offset, thresholds = (arrays.pop(name, None) for name in ("offset", "thresholds"))
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
            offset=None if offset is None else torch.from_numpy(offset),
            thresholds=None if thresholds is None else torch.from_numpy(thresholds),
        )


def _words(name: str, real: Tensor, offset: Tensor | None) -> Tensor:
    """FP16 words of an activation, as QUANTIZE gets them: K with its offset."""
    words = bits_from_float(real.double())
    return words if name != "k" or offset is None else add(words, offset)


def quantize_layer(
    weights: LayerWeights,
    seen: Mapping[str, Tensor],
    bits_a: int = 4,
    bits_b: int = 4,
    options: LayerOptions | None = None,
    antisymmetric: bool = False,
) -> QuantizedLayer:
    """Codebooks and weight indices; ``seen``: what ``reference`` gives on calibration tokens.

    antisymmetric: codebooks of weights, K and V have ``c[i] = -c[last - i]``.

    ConfigError: bits_a above bits_b, as cached K and V are clustered with bits_a and used with
    bits_b.
    """
    options = options or LayerOptions()
    if bits_a > bits_b:
        raise ConfigError(f"bits_a must be at most bits_b = {bits_b}, not {bits_a}")
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
    for name, site in SITES.items():
        words = _words(name, seen[name], offset)
        if site.heads:
            words = words.reshape(-1, shape.head_size)
        share = options.share if site.outliers else 0
        training = half if name in ("k", "v") else Training()
        codebook[name] = train_activation_codebook(words, bits_a, share=share, training=training)
    thresholds = None
    if not options.lanes_attend:
        keys, values = (float_from_bits(_words(name, seen[name], offset)) for name in ("k", "v"))
        ratios = Ratios()
        intervals = intervals_of([window_bounds([(keys, values)], ratios)], ratios)
        thresholds = torch.stack([thresholds_of(each) for each in intervals[0]])
    return QuantizedLayer(shape, options, weight, codebook, offset, thresholds)


@dataclasses.dataclass(frozen=True)
class Cache:
    """Cached tokens. index: (kv_heads, T, head_size), scale: (kv_heads, T) FP16 words; int64."""

    k_index: Tensor
    k_scale: Tensor
    v_index: Tensor
    v_scale: Tensor

    @property
    def tokens(self) -> int:
        return self.k_scale.shape[1]

    def append(self, k: list[list[Slot]], v: list[list[Slot]]) -> "Cache":
        """Returns the cache with the slots of new tokens, k[token][head]."""

        def index(old: Tensor, new: list[list[Slot]]) -> Tensor:
            rows = [torch.stack([slot.index for slot in token]) for token in new]
            return torch.cat((old, torch.stack(rows, dim=1)), dim=1)

        def scale(old: Tensor, new: list[list[Slot]]) -> Tensor:
            rows = [torch.tensor([slot.scale for slot in token]) for token in new]
            return torch.cat((old, torch.stack(rows, dim=1)), dim=1)

        return Cache(
            index(self.k_index, k), scale(self.k_scale, k),
            index(self.v_index, v), scale(self.v_scale, v),
        )  # fmt: skip


def quantize_cache(quantized: QuantizedLayer, k: Tensor, v: Tensor) -> Cache:
    """Real (T, kv_heads, head_size) keys, rotated, and values as the accelerator stores them."""
    made = []
    for name, real in (("k", k), ("v", v)):
        words = _words(name, real, quantized.offset).permute(1, 0, 2)
        heads, tokens, size = words.shape
        codebook = quantized.codebook[name]
        slots = quantize_command(words.reshape(-1, size), codebook, Outliers(), 0)
        if slots.command_status:
            raise ValueError(f"{name} is not finite in FP16")
        made += [slots.index.reshape(heads, tokens, size), slots.scale.reshape(heads, tokens)]
    return Cache(*made)
