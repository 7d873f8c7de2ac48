"""Real weights of a decoder layer."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from golden.kllm.flow import LINEARS
from golden.kllm.layer.shape import LayerShape


@dataclasses.dataclass(frozen=True)
class LayerWeights:
    """Real tensors of a layer. linear: (N, K) of q, k, v, o, gate, up, down, as torch.nn.Linear."""

    shape: LayerShape
    input_norm: Tensor
    post_norm: Tensor
    linear: Mapping[str, Tensor]


def layer_weights(layer: Any, config: Any) -> LayerWeights:
    """Takes the weights of a transformers LlamaDecoderLayer and its model's configuration.

    ValueError: the layer has biases.
    """
    modules = {name: layer.get_submodule(each.module) for name, each in LINEARS.items()}
    for name, module in modules.items():
        if module.bias is not None:
            raise ValueError(f"{name} has a bias: such a layer is not supported")
    shape = LayerShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=modules["q"].weight.shape[0] // config.num_attention_heads,
        intermediate=config.intermediate_size,
        epsilon=config.rms_norm_eps,
    )
    return LayerWeights(
        shape=shape,
        input_norm=layer.input_layernorm.weight.detach().double(),
        post_norm=layer.post_attention_layernorm.weight.detach().double(),
        linear={name: module.weight.detach().double() for name, module in modules.items()},
    )
