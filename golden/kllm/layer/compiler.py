"""A quantized layer as programs and memories of the accelerator."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.index.nearest import midpoints
from golden.kllm.config import MachineConfig
from golden.kllm.flow import site_of
from golden.kllm.image import weight_image
from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.layer.layout import Job, used_sites
from golden.kllm.layer.program import LayerProgram, check_widths, layer_program
from golden.kllm.layer.quantized import QuantizedLayer
from golden.kllm.vectors.requests import codebook_packet, integer_packet

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

    def cached(self, name: str, sequence: int, head: int) -> str:
        """The name of k, v or v_scale of a KV head of a sequence."""
        return self.program.cached(name, sequence, head)


def _padded(codebook: Tensor, config: MachineConfig) -> Tensor:
    """A codebook of K or V with as many entries as one of weights.

    The last centroid is repeated. Half packets take any codebook of fewer entries: no index of K
    or V reaches the upper half, which is then the lower one negated.
    """
    whole = 1 << config.bits_b
    if len(codebook) == whole:
        return codebook
    size = 1 << config.packet_bits_b
    padded = torch.cat((codebook, codebook[-1:].expand(size - len(codebook))))
    return torch.cat((padded, padded.flip(0) ^ FP16.sign_bit))[:whole]


def write_weights(
    memory: list[np.ndarray],
    config: MachineConfig,
    image: Mapping[str, tuple[int, int, int]],
    quantized: QuantizedLayer,
) -> None:
    """The images of a layer's linear layers, into the memories of the ports."""
    for name, weight in quantized.weight.items():
        address, *shape = image[name]
        assert tuple(shape) == tuple(weight.index.shape), name
        write_image(memory, config, address, weight.index, weight.scale)


def constants(quantized: QuantizedLayer, config: MachineConfig) -> dict[str, list[Any]]:
    """Vectors of words by their place in the data memory: what no program's sizes change.

    ConfigError: a machine with half packets, and a codebook that is not antisymmetric.
    """
    words = config.product, config.antisymmetric
    made: dict[str, list[Any]] = {}
    for name in used_sites(quantized.options):
        codebook = quantized.codebook[name]
        made[f"codebook.{name}"] = [codebook, midpoints(codebook)]
    for name, weight in quantized.weight.items():
        a = quantized.codebook[site_of(name).name]
        made[f"packet.{name}"] = [codebook_packet(a, weight.codebook, *words)]
    if quantized.options.lanes_attend:
        k, v = (_padded(quantized.codebook[name], config) for name in "kv")
        made["packet.scores"] = [codebook_packet(quantized.codebook["q"], k, *words)]
        made["packet.cached_v"] = [integer_packet(v, config.bits_a, *words)]
    if quantized.offset is not None:
        made["key_offset"] = [quantized.offset.flatten()]
    return made


def masks(job: Job) -> dict[str, list[Any]]:
    """Returns what is added to the scores of each new token that has later ones in its sequence."""
    tokens = np.arange(job.attended)
    return {
        f"mask{t}": [np.where(tokens > job.context + t, _MINUS_INFINITY, 0)]
        for t in range(job.masks)
    }


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
    caches: int = 1,
) -> CompiledLayer:
    """Programs and memories: ``layer_program`` of the layer's sizes, and what it names.

    ConfigError: a layer that the machine has no room for, or of other widths; AssemblyError: no
    rows or slots left.
    """
    check_layer_widths(quantized, config)
    program = layer_program(quantized.shape, quantized.options, config, tokens, context, caches)
    rows = max(first + count for first, count in program.place.values())
    data = np.zeros((rows, ROW_ELEMENTS), dtype="<u2")
    job = Job(tokens, context, caches)
    vectors = constants(quantized, config)
    if quantized.options.lanes_attend:
        vectors |= masks(job)
    write_vectors(data, program.place, vectors)
    size = program.words * config.port_bits // 8
    weights = [np.zeros(size, np.uint8) for _ in range(config.ports.ports)]
    write_weights(weights, config, program.image, quantized)
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
