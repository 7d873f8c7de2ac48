"""Layers, embedding, head and angles of a checkpoint, quantized."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from golden.fp16.ops import bits_from_float
from golden.kllm.config import MachineConfig
from golden.kllm.layer.shape import LayerShape, served_heads
from golden.kllm.layer.weights import LayerWeights, layer_weights
from golden.kllm.model.layout import HEAD_SHARE, ModelShape
from golden.kllm.model.quantized import Head
from golden.kllm.norms import fold
from golden.kllm.quantize import (
    Training,
    quantize_weight,
    train_activation_codebook,
    train_weight_codebook,
)
from golden.llm.checkpoint import check_tokens
from golden.llm.kllm.reference import angles_of_pairs, layer_inputs
from golden.llm.patch import Patch


def real_layer(model: Any, number: int, config: MachineConfig | None = None) -> LayerWeights:
    """The real weights of a layer, with the KV heads of a machine where they may be so many."""
    own, layer = model.config, model.model.layers[number]
    if config is None:
        return layer_weights(layer, own)
    heads = served_heads(own.num_attention_heads, own.num_key_value_heads, config.cache.kv.heads)
    return layer_weights(layer, own, heads)


def model_shape(
    model: Any, layers: int, context: int, layer: LayerShape, unrotated: Iterable[int] = (),
    windows: Iterable[int] = (),
) -> ModelShape:
    """Sizes of the first ``layers`` layers with ``context`` tokens."""
    vocabulary = model.lm_head.weight.shape[0]
    return ModelShape(
        layer=layer, layers=layers, vocabulary=vocabulary, context=context,
        unrotated=tuple(unrotated),
        windows=tuple(windows),
    )  # fmt: skip


def angles(model: Any, context: int, local: bool = False) -> tuple[Tensor, Tensor]:
    """FP16 words of cosines and sines, (context, head_size / 2).

    local: those of the layers with a window, where a model has others for these.
    """
    positions, rotary = torch.arange(context)[None], model.model.rotary_emb
    types = getattr(rotary, "layer_types", ())
    wanted = "sliding_attention" if local else "full_attention"
    kind = {"layer_type": wanted if wanted in types else types[0]} if types else {}
    made = angles_of_pairs(model, *rotary(torch.zeros(1, context, 1), positions, **kind))
    cos, sin = (bits_from_float(each.double()) for each in made)
    return cos, sin


def _before_norm(model: Any, windows: list[Tensor], after: int) -> Tensor:
    """(T, hidden) hidden states after ``after`` layers of the model as it is now."""
    if after < len(model.model.layers):
        return torch.cat([layer_inputs(model, ids, after).x for ids in windows])
    seen: list[Tensor] = []

    def see(x: Tensor) -> Tensor:
        seen.append(x[0])
        return x

    with Patch(model) as patch, torch.no_grad():
        patch.input(model.model.norm, see)
        for ids in windows:
            check_tokens(model, ids)
            model(ids[None], use_cache=False)
    return torch.cat(seen)


def head_of(
    model: Any,
    windows: list[Tensor],
    bits: tuple[int, int],
    after: int,
    antisymmetric: bool = False,
    scale: float = 1.0,
) -> Head:
    """The head for what the model, as it is now, gives on some windows of token ids.

    bits: of activations and of weights; after: layers before the head. antisymmetric: the codebook
    of the weights has ``c[i] = -c[last - i]``. scale: of the logits
    """
    words = bits_from_float(_before_norm(model, windows, after).double())
    codebook = train_activation_codebook(words, bits[0], share=HEAD_SHARE)
    gamma = model.model.norm.weight.detach().double()
    real = fold(model.lm_head.weight.detach().double().t(), gamma).weight.t()
    real = real * scale
    training = Training(antisymmetric=antisymmetric)
    weight = quantize_weight(real, codebook=train_weight_codebook(real, bits[1], training=training))
    left = real - weight.dequantize().t()
    return Head(codebook, weight, quantize_weight(left, codebook=weight.codebook))
