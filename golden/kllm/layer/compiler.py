"""A quantized layer as programs and memories of the accelerator."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.nearest import midpoints
from golden.kllm.config import MachineConfig
from golden.kllm.flow import FUSED, site_of
from golden.kllm.image import weight_image
from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.layer.layout import (
    BASE,
    MEAN,
    expert_bases,
    packet_of,
    part_name,
    parts_of,
    used_sites,
)
from golden.kllm.layer.program import LayerProgram, check_widths, layer_program
from golden.kllm.layer.quantized import QuantizedLayer
from golden.kllm.layer.shape import network_parts
from golden.kllm.layer.vector_norm import vector_norms
from golden.kllm.quantize import QuantizedWeight
from golden.kllm.vectors.requests import codebook_packet


@dataclasses.dataclass(frozen=True)
class CompiledLayer:
    """A program with its memories, but for the tokens and the pages.

    data: the data memory, zeros where the host writes. weights: one memory per port.
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
    def place(self) -> Mapping[str, tuple[int, int]]:
        """First row and rows of each vector of the data memory."""
        return self.program.layout.place

    @property
    def image(self) -> Mapping[str, tuple[int, int, int]]:
        """Word address and shape (K, N) of each weight image."""
        return self.program.layout.image


def write_weights(
    memory: list[np.ndarray],
    config: MachineConfig,
    image: Mapping[str, tuple[int, int, int]],
    quantized: QuantizedLayer,
) -> None:
    """The images of a layer's linear layers, into the memories of the ports."""
    shape, options = quantized.shape, quantized.options
    parts = network_parts(shape.intermediate, options.parts)
    for name, weight in {**quantized.weight, **mean_weights(quantized)}.items():
        count = parts_of(name, parts)
        for part in range(count):
            own = part_name(name, part, count)
            address, *size = image[own]
            index, scale = _part(weight, name, part, count)
            assert tuple(size) == tuple(index.shape), own
            write_image(memory, config, address, index, scale)


def _part(weight: QuantizedWeight, name: str, part: int, parts: int) -> tuple[Tensor, Tensor]:
    """Indices (K, N) and scales of a part of a matmul."""
    if name == "down":
        return weight.index.chunk(parts)[part], weight.scale
    joined = FUSED.get(name, (name,))
    columns = [each.chunk(parts, 1)[part] for each in weight.index.chunk(len(joined), 1)]
    scales = [each.chunk(parts)[part] for each in weight.scale.chunk(len(joined))]
    return torch.cat(columns, 1), torch.cat(scales)


def mean_weights(quantized: QuantizedLayer) -> dict[str, QuantizedWeight]:
    """The weights of what sums a row for a norm: one index, the mean's divisor in the scale."""
    made = {}
    for name, norm in vector_norms(quantized.shape, quantized.options.fuse).items():
        codebook = quantized.weight[norm.held].codebook
        largest = int(float_from_bits(codebook).abs().argmax())
        index = torch.full((ROW_ELEMENTS, ROW_ELEMENTS), largest, dtype=torch.uint8)
        scale = 1 / (norm.size * float_from_bits(codebook)[largest])
        words = bits_from_float(scale.expand(ROW_ELEMENTS))
        made[MEAN + name] = QuantizedWeight(index, words, codebook)
    return made


def constants(quantized: QuantizedLayer, config: MachineConfig) -> dict[str, list[Any]]:
    """Vectors of words by their place in the data memory: what no program's sizes change.

    ConfigError: a machine with half packets, and a codebook that is not antisymmetric.
    """
    words = config.product, config.antisymmetric
    made: dict[str, list[Any]] = {}
    for name in used_sites(quantized.shape):
        codebook = quantized.codebook[name]
        made[f"codebook.{name}"] = [codebook, midpoints(codebook)]
    for name, weight in quantized.weight.items():
        own = packet_of(name, quantized.shape)
        a = quantized.codebook[site_of(name).name]
        made[f"packet.{own}"] = [codebook_packet(a, weight.codebook, *words)]
    for expert, base in enumerate(expert_bases(quantized.shape, quantized.options, config)):
        made[f"{BASE}.{expert}"] = [[base & 0xFFFF, base >> 16]]
    if quantized.offset is not None:
        made["key_offset"] = [quantized.offset.flatten()]
    made |= {name: [words] for name, words in quantized.vector.items()}
    if "sinks" in made:
        made["sinks"] = [sink_rows(quantized.vector["sinks"], config)]
    return made


def sink_rows(sinks: Tensor, config: MachineConfig) -> Tensor:
    """The rows that ATTEND reads of (heads,) words: those of each job begin with a row."""
    by_job = sinks.reshape(config.jobs, -1)
    rows = by_job.new_zeros(config.jobs, ROW_ELEMENTS * config.sink_rows(len(sinks)) // config.jobs)
    rows[:, : by_job.shape[1]] = by_job
    return rows.flatten()


def write_vectors(
    rows: np.ndarray, place: Mapping[str, tuple[int, int]], vectors: Mapping[str, list[Any]]
) -> None:
    """Writes into the (rows, 16) words of a data memory: each vector begins with a row."""
    for name, each in vectors.items():
        first, count = place[name]
        flat = rows[first : first + count].reshape(len(each), -1)
        for row, vector in zip(flat, each, strict=True):
            words = np.asarray(vector, dtype=np.int64)
            row[: len(words)] = words


def check_layer_widths(quantized: QuantizedLayer, config: MachineConfig) -> None:
    """ConfigError: a layer of other widths than the machine."""
    bits_a = max(len(c) for c in quantized.codebook.values()).bit_length() - 1
    check_widths(config, bits_a, max(w.bits for w in quantized.weight.values()))


def compile_layer(
    quantized: QuantizedLayer,
    config: MachineConfig,
    tokens: int = 1,
    context: int = 0,
) -> CompiledLayer:
    """Program and memories: ``layer_program`` of the layer's sizes, and what it names.

    ConfigError: a layer that the machine has no room for, or of other widths; AssemblyError: no
    rows or slots left.
    """
    check_layer_widths(quantized, config)
    program = layer_program(quantized.shape, quantized.options, config, tokens, context)
    layout = program.layout
    rows = max(first + count for first, count in layout.place.values())
    data = np.zeros((rows, ROW_ELEMENTS), dtype="<u2")
    write_vectors(data, layout.place, constants(quantized, config))
    size = layout.words * config.port_bits // 8
    weights = [np.zeros(size, np.uint8) for _ in range(config.ports.ports)]
    write_weights(weights, config, layout.image, quantized)
    return CompiledLayer(quantized, program, data.reshape(-1).view(np.uint8), weights)


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
