"""A quantized layer as programs and memories of the accelerator."""

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.index.nearest import midpoints
from golden.kllm.config import MachineConfig
from golden.kllm.flow import site_of
from golden.kllm.image import weight_image
from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.layer.program import LayerProgram, layer_program
from golden.kllm.layer.quantized import QuantizedLayer
from golden.kllm.vectors import codebook_packet, integer_packet

__all__ = ["CompiledLayer", "compile_layer", "write_image"]

_MINUS_INFINITY = FP16.sign_bit | FP16.infinity


@dataclasses.dataclass(frozen=True)
class CompiledLayer:
    """A program with its memories, but for the tokens and the cache.

    data: the data memory, zeros where the host writes. weights: one memory per port, zeros where
    the caches go.
    """

    quantized: QuantizedLayer
    program: LayerProgram
    data: np.ndarray
    weights: list[np.ndarray]

    @property
    def config(self) -> MachineConfig:
        return self.program.config

    @property
    def tokens(self) -> int:
        """New tokens."""
        return self.program.tokens

    @property
    def context(self) -> int:
        """Cached tokens."""
        return self.program.context

    @property
    def parts(self) -> list[list[int]]:
        """Words of part 0 and part 1."""
        return self.program.parts

    @property
    def place(self) -> Mapping[str, tuple[int, int]]:
        """First row and rows of each vector of the data memory."""
        return self.program.place

    @property
    def image(self) -> Mapping[str, tuple[int, int, int]]:
        """Word address and shape (K, N) of each weight image."""
        return self.program.image


def _padded(codebook: Tensor, bits: int) -> Tensor:
    """The last centroid repeated up to 2**bits entries."""
    extra = (1 << bits) - len(codebook)
    return torch.cat((codebook, codebook[-1:].expand(extra)))


def _weights(quantized: QuantizedLayer, program: LayerProgram) -> list[np.ndarray]:
    config = program.config
    size, count = program.words * config.port_bits // 8, config.ports.ports
    memory = [np.zeros(size, np.uint8) for _ in range(count)]
    for name, weight in quantized.weight.items():
        address, *shape = program.image[name]
        assert tuple(shape) == tuple(weight.index.shape), name
        write_image(memory, config, address, weight.index, weight.scale)
    return memory


def _constants(quantized: QuantizedLayer, program: LayerProgram) -> dict[str, list[Any]]:
    """Vectors of words by their place in the data memory."""
    config = program.config
    made: dict[str, list[Any]] = {}
    for name, codebook in quantized.codebook.items():
        made[f"codebook.{name}"] = [codebook, midpoints(codebook)]
    for name, weight in quantized.weight.items():
        a = quantized.codebook[site_of(name).name]
        made[f"packet.{name}"] = [codebook_packet(a, weight.codebook, config.product)]
    k = _padded(quantized.codebook["k"], config.bits_b)
    v = _padded(quantized.codebook["v"], config.bits_b)
    made["packet.scores"] = [codebook_packet(quantized.codebook["q"], k, config.product)]
    made["packet.cached_v"] = [integer_packet(v, config.bits_a, config.product)]
    if quantized.offset is not None:
        made["key_offset"] = [quantized.offset.flatten()]
    tokens = np.arange(program.context + program.tokens)
    for t in range(program.tokens - 1 if program.caches == 1 else 0):
        made[f"mask{t}"] = [np.where(tokens > program.context + t, _MINUS_INFINITY, 0)]
    return made


def _data(quantized: QuantizedLayer, program: LayerProgram) -> np.ndarray:
    """The data memory as bytes: each vector begins with a row."""
    rows = max(first + count for first, count in program.place.values())
    memory = np.zeros((rows, ROW_ELEMENTS), dtype="<u2")
    for name, vectors in _constants(quantized, program).items():
        first, count = program.place[name]
        flat = memory[first : first + count].reshape(len(vectors), -1)
        for row, vector in zip(flat, vectors, strict=True):
            words = np.asarray(vector, dtype=np.int64)
            row[: len(words)] = words
    return memory.reshape(-1).view(np.uint8)


def compile_layer(
    quantized: QuantizedLayer,
    config: MachineConfig,
    tokens: int = 1,
    context: int = 0,
    caches: int = 1,
) -> CompiledLayer:
    """Programs and memories: ``layer_program`` of the layer's sizes, and what it names.

    ConfigError: a layer that the machine has no room for, or of other widths; AssemblyError: no
    rows or slots left.
    """
    widths = {
        "slot.bits_a": max(len(c) for c in quantized.codebook.values()).bit_length() - 1,
        "lane.bits_b": max(w.bits for w in quantized.weight.values()),
    }
    for field, needed in widths.items():
        found = operator.attrgetter(field)(config)
        if found != needed:
            raise ConfigError(f"MachineConfig.{field} must be {needed} for this layer, not {found}")
    program = layer_program(quantized.shape, quantized.options, config, tokens, context, caches)
    return CompiledLayer(
        quantized, program, _data(quantized, program), _weights(quantized, program)
    )


def write_image(
    memory: list[np.ndarray],
    config: MachineConfig,
    address: int,
    index: Tensor,
    scale: Tensor,
) -> None:
    made = weight_image(index.numpy(), scale.numpy(), config.layout)
    first = address * config.port_bits // 8
    for port, data in zip(memory, made, strict=True):
        port[first : first + len(data)] = data
