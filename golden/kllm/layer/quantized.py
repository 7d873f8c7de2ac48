"""Codebooks and weight indices of a layer, and the thresholds of its K and V."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.ops import add, bits_from_float, float_from_bits
from golden.kllm import conditioning
from golden.kllm.flow import FUSED, ROUTER, SITES, kind_of, norm_of
from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.layer.layout import (
    LIMITS,
    ROUTER_IMAGES,
    layer_matmuls,
    linear_sizes,
    router_image,
    used_sites,
    vector_lengths,
)
from golden.kllm.layer.shape import PARTED, LayerOptions, LayerShape, network_parts
from golden.kllm.layer.vector_norm import vector_norms
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
    """weight: by matmul (fused or not), and by image of the router.

    codebook: of each activation in ``used_sites``.
    thresholds: (2, 4) FP16 words, Oaken's for K and for V.
    offset: (kv_heads, head_size) FP16 words that K gets after RoPE, with ``options.center``; +0
        where a cap or sinks of the scores would see it.
    vector: FP16 words of the other vectors of ``vector_lengths``, by their names.
    """

    shape: LayerShape
    options: LayerOptions
    weight: Mapping[str, QuantizedWeight]
    codebook: Mapping[str, Tensor]
    thresholds: Tensor
    offset: Tensor | None = None
    vector: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.offset is not None) != self.options.center:
            raise ConfigError(
                f"offset must be given with center=true alone, not center={self.options.center}"
            )
        if self.offset is not None and not self.shape.may_shift_keys and self.offset.any():
            raise ConfigError("offset must be 0 for a layer with a cap of scores or with sinks")
        names = set(layer_matmuls(self.shape, self.options)) - {ROUTER}
        names |= {router_image(n) for n in range(ROUTER_IMAGES if self.shape.experts else 0)}
        if names != set(self.weight):
            found_names = ", ".join(sorted(self.weight))
            raise ConfigError(
                f"weight must have {', '.join(sorted(names))} for this layer, not {found_names}"
            )
        wanted = vector_lengths(self.shape, self.options)
        wanted.pop("key_offset", None)
        found = {name: len(words) for name, words in self.vector.items()}
        if found != wanted:
            raise ConfigError(f"vector must have the lengths {wanted} for this layer, not {found}")

    def save(self, path: Path) -> None:
        """Saves the layer as one .npz file."""
        arrays: dict[str, Any] = {f"codebook.{n}": c.numpy() for n, c in self.codebook.items()}
        for name, weight in self.weight.items():
            for field in ("index", "scale", "codebook"):
                arrays[f"weight.{name}.{field}"] = getattr(weight, field).numpy()
        if self.offset is not None:
            arrays["offset"] = self.offset.numpy()
        arrays |= {f"vector.{name}": words.numpy() for name, words in self.vector.items()}
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
        vector: dict[str, Tensor] = {}
        weight: dict[str, dict[str, Tensor]] = {}
        thresholds, offset = arrays.pop("thresholds"), arrays.pop("offset", None)
        for name, array in arrays.items():
            kind, _, rest = name.partition(".")
            if kind in parts:
                parts[kind][rest] = array.tolist()
            elif kind in ("codebook", "vector"):
                (codebook if kind == "codebook" else vector)[rest] = torch.from_numpy(array)
            else:
                matmul, _, field = rest.rpartition(".")
                weight.setdefault(matmul, {})[field] = torch.from_numpy(array)
        return cls(
            shape=LayerShape(**parts["shape"]),
            options=LayerOptions(**parts["options"]),
            weight={name: QuantizedWeight(**fields) for name, fields in weight.items()},
            codebook=codebook,
            thresholds=torch.from_numpy(thresholds),
            offset=None if offset is None else torch.from_numpy(offset),
            vector=vector,
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
    factor = norm_factors(weights, options, seen)
    w = {name: tensor.double() for name, tensor in weights.linear.items()}
    if "q" not in weights.norm:
        w["q"] = w["q"] * weights.scaling
    gamma = {"input_layernorm": weights.input_norm, "post_attention_layernorm": weights.post_norm}
    for name in w:
        norm = norm_of(name)
        if norm is not None:
            w[name] = fold(w[name].t(), gamma[norm]).weight.t()
    made = layer_matmuls(shape, options)
    half = Training(antisymmetric=antisymmetric)
    weight = {}
    made.pop(ROUTER, None)
    for name in sorted(made, key=lambda name: len(made[name]) > 1):  # single layers come first
        real = torch.cat([w[each] for each in made[name]])
        codebook_b = train_weight_codebook(real, bits_b, training=half)
        quantized = quantize_weight(real, codebook=codebook_b)
        weight[name] = multiplied(quantized, made[name], shape, factor)
    if shape.experts:
        weight |= router_images(weights, bits_b, antisymmetric)
    offset = conditioning.offset(seen["k"]) if options.center else None
    if offset is not None and not shape.may_shift_keys:
        offset = torch.zeros_like(offset)
    codebook = {}
    for name in used_sites(shape):
        words = bits_from_float(in_parts(name, seen[name].double(), options.parts))
        share = options.share if SITES[name].outliers else 0
        codebook[name] = train_activation_codebook(words, bits_a, share=share)
    keys, values = cached_words(seen["k"], seen["v"], offset)
    ratios = Ratios()
    window = window_bounds([(float_from_bits(keys), float_from_bits(values))], ratios)
    thresholds = torch.stack([thresholds_of(each) for each in intervals_of([window], ratios)[0]])
    return QuantizedLayer(
        shape, options, weight, codebook, thresholds, offset,
        constant_vectors(weights, options, factor),
    )  # fmt: skip


def router_images(
    weights: LayerWeights, bits: int, antisymmetric: bool = False
) -> dict[str, QuantizedWeight]:
    """The images of a layer's router: each, of one codebook, is what those before it leave.

    A choice of experts has no tolerance, so they are as near to the weights as FP16 logits are.
    """
    left = fold(weights.linear[ROUTER].double().t(), weights.post_norm).weight.t()
    half, made = Training(antisymmetric=antisymmetric), {}
    codebook = train_weight_codebook(left, bits, training=half)
    for number in range(ROUTER_IMAGES):
        each = quantize_weight(left, codebook=codebook)
        made[router_image(number)], left = each, left - each.dequantize().t()
    return made


def in_parts(site: str, x: Tensor, wanted: int = 0) -> Tensor:
    """(T, K) of a site as vectors of the network's parts, where these are quantized."""
    if site not in PARTED:
        return x
    return x.unflatten(-1, (network_parts(x.shape[-1], wanted), -1)).flatten(0, -2)


def norm_factors(
    weights: LayerWeights, options: LayerOptions, seen: Mapping[str, Tensor]
) -> dict[str, float]:
    """The factor of each linear layer whose outputs a norm takes: the norm does not see it.

    A power of two, by which the largest of what ``reference`` gives comes to 4..8. The squares of
    such vectors are far from both ends of FP16.
    """
    factors: dict[str, float] = {}
    for norm in vector_norms(weights.shape, options.fuse).values():
        largest = max(float(seen[f"{name}.raw"].abs().max()) for name in norm.linears)
        exponent = 3 - math.frexp(largest)[1] if largest else 0
        factors |= dict.fromkeys(norm.linears, 2.0**exponent)
    return factors


def multiplied(
    weight: QuantizedWeight, linears: Sequence[str], shape: LayerShape, factor: Mapping[str, float]
) -> QuantizedWeight:
    """The scales of some linear layers' channels, one layer after the other, times their factors.

    Codebook and indices stay, so a factor makes no channel more important than another.
    """
    if not factor.keys() & {kind_of(name) for name in linears}:
        return weight
    sizes = linear_sizes(shape)
    by = [
        torch.full((sizes[kind][1],), factor.get(kind, 1.0)) for kind in map(kind_of, linears)
    ]
    scale = bits_from_float(float_from_bits(weight.scale) * torch.cat(by).double())
    return dataclasses.replace(weight, scale=scale)


def constant_vectors(
    weights: LayerWeights, options: LayerOptions, factor: Mapping[str, float]
) -> dict[str, Tensor]:
    """``QuantizedLayer.vector``; factor: of ``norm_factors``."""
    shape, sizes = weights.shape, linear_sizes(weights.shape)
    scale = {name: factor.get(name, 1.0) for name in shape.linears}
    gamma = dict(weights.norm)
    if "q" in gamma:
        gamma["q"] = gamma["q"] * weights.scaling
    else:
        scale["q"] = weights.scaling
    own = [each for name in shape.linears for each in shape.layers_of(name)]
    zeros = {name: torch.zeros(sizes[kind_of(name)][1]) for name in own}
    bias = {name: (zeros | dict(weights.bias))[name] * scale[kind_of(name)] for name in own}
    bias["qkv"] = torch.cat([bias[name] for name in FUSED["qkv"]])
    norms, words = vector_norms(shape, options.fuse), {}
    for place in vector_lengths(shape, options):
        kind, _, name = place.partition(".")
        if kind == "bias":
            real = bias[name]
        elif kind == "sinks":
            assert weights.sinks is not None
            real = weights.sinks
        elif kind == "gamma":
            parts = [gamma[of].repeat(sizes[of][1] // len(gamma[of])) for of in norms[name].linears]
            real = torch.cat(parts)
        elif kind == "epsilon":
            real = torch.full((ROW_ELEMENTS,), shape.epsilon * scale[norms[name].linears[-1]] ** 2)
        elif kind == "limits":
            real = torch.tensor(LIMITS).repeat_interleave(ROW_ELEMENTS)
        else:
            continue
        words[place] = bits_from_float(real.double())
        if kind == "epsilon":  # a vector of zeros times 1 / sqrt(0) is NaN
            words[place] = words[place].clamp(min=1)
    return words


def cached_words(k: Tensor, v: Tensor, offset: Tensor | None) -> tuple[Tensor, Tensor]:
    """FP16 words of real keys, rotated, and values as APPEND gets them: K with its offset."""
    keys, values = (bits_from_float(real.double()) for real in (k, v))
    return (keys if offset is None else add(keys, offset)), values
