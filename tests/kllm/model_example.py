"""A random LLaMA of four layers, odd sizes and heads in groups, packed for the small machine."""

import dataclasses
import functools
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.layer.shape import LayerOptions
from golden.kllm.model.compiler import ModelImage, compile_model
from golden.kllm.model.layout import ModelLayout, model_layout
from golden.kllm.model.quantized import QuantizedModel
from golden.llm.checkpoint import Checkpoint
from golden.llm.kllm import pack
from golden.llm.kllm.model import model_shape

LAYERS, VOCABULARY, CONTEXT = 4, 150, 40
# Of the small machine with a unit CACHE.
PAGED = (
    "batch=4", f"cache.layers={LAYERS}", "cache.pages=512", "cache.page_bytes=512",
    f"cache.max_tokens={CONTEXT}",
)  # fmt: skip


@functools.cache
def checkpoint(head_dim: int = 32) -> Checkpoint:
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=80, intermediate_size=100, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=head_dim, vocab_size=VOCABULARY, initializer_range=0.2,
        max_position_embeddings=64,
    )  # fmt: skip
    return Checkpoint(LlamaForCausalLM(config).eval(), None, "random")


def paged(head_dim: int = 32, engines: int = 1, **sizes: Any) -> MachineConfig:
    """The small machine with a unit CACHE for the heads of ``checkpoint``; sizes: of its cache."""
    machine = MachineConfig.parse(MACHINES["small_cache"], PAGED)
    assert isinstance(machine, MachineConfig)
    kv = dataclasses.replace(machine.cache.kv, head_dim=head_dim)
    cache = dataclasses.replace(machine.cache, kv=kv, **sizes)
    return dataclasses.replace(machine, cache=cache, engines=engines)


def quantized(
    machine: MachineConfig, head_dim: int = 32, layers: int = LAYERS
) -> tuple[QuantizedModel, ModelLayout]:
    """The model for a machine, and its layout."""
    loaded = checkpoint(head_dim)
    ids = torch.randint(0, VOCABULARY, (256,), generator=torch.Generator().manual_seed(2))
    options = LayerOptions(glu="exact", center=True)
    source = pack.trained(loaded, ids, options, machine)
    shape = model_shape(loaded.model, layers, CONTEXT, source.shape)
    layout = model_layout(shape, options, machine)
    return pack.quantize_model(loaded, source, layout, [ids], lambda _line: None), layout


@functools.cache
def image(head_dim: int = 32, layers: int = LAYERS, engines: int = 1, **sizes: Any) -> ModelImage:
    """The image of the small machine with a unit CACHE for these heads; sizes: of its cache.

    Where sequences share pages, the cache has the layers of the model: FORK wants tokens in all.
    """
    if sizes.get("forks"):
        sizes |= {"layers": layers}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile_model(*quantized(paged(head_dim, engines, **sizes), head_dim, layers))


@functools.cache
def tokenizer() -> Tokenizer:
    """A token is a byte: those from VOCABULARY on are none of the model."""
    # ByteLevel writes each byte as a character: itself, or for the others one from 256 on.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    vocabulary = {chr(byte): byte for byte in plain}
    vocabulary |= {chr(256 + n): byte for n, byte in enumerate(others)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def packed(
    folder: Path, head_dim: int = 32, end: Sequence[int] = (), speaks: bool = False,
    engines: int = 1, layers: int = LAYERS, **sizes: Any,
) -> pack.ModelPack:  # fmt: skip
    """Written to a folder and read back; end: tokens that end a text; speaks: has a tokenizer.

    sizes: of the machine's cache.
    """
    model = {"name": "random", "end": list(end)}
    given = types.SimpleNamespace(backend_tokenizer=tokenizer()) if speaks else None
    made = image(head_dim, layers, engines, **sizes)
    pack.write(folder, made, model, {"tool": "test"}, given)
    return pack.load(folder, made.layout.config)
