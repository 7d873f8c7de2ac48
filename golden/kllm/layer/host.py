"""The host's part of a layer: memories, cache images, and runs on the golden machine."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.kllm.cache import CacheUnit
from golden.kllm.config import MachineConfig
from golden.kllm.isa import FAILED, ROW_BYTES, ROW_ELEMENTS
from golden.kllm.layer.compiler import CompiledLayer, write_image
from golden.kllm.layer.quantized import Cache
from golden.kllm.machine import Machine, Result, slot_of_words
from golden.kllm.records import ONE


class Compiled(Protocol):
    """A layer as the host must know it: a ``LayerProgram``, a ``CompiledLayer`` or alike."""

    @property
    def config(self) -> MachineConfig: ...
    @property
    def place(self) -> Mapping[str, tuple[int, int]]: ...
    @property
    def image(self) -> Mapping[str, tuple[int, int, int]]: ...
    def cached(self, name: str, sequence: int, head: int) -> str: ...


def append_host(
    compiled: Compiled,
    data: np.ndarray,
    weights: list[np.ndarray],
    cache: Cache,
    sequence: int = 0,
) -> None:
    """Write the cache images and V's scales into the memories, as the host does before part 1.

    sequence: whose cache it is, of several.
    """
    size, of = cache.k_index.shape[-1], compiled.cached
    for head in range(len(cache.k_scale)):
        k, v = (compiled.image[of(name, sequence, head)] for name in "kv")
        write_image(weights, compiled.config, k[0], cache.k_index[head].t(), cache.k_scale[head])
        ones = torch.full((size,), ONE)
        write_image(weights, compiled.config, v[0], cache.v_index[head], ones)
        _write_vector(compiled, data, of("v_scale", sequence, head), cache.v_scale[head])


def appended(cache: Cache, words: list[int], heads: int, tokens: int) -> Cache:
    """A cache with the new tokens that part 0 read back: V, token by token, then K."""
    slots = []
    while words:
        slot, taken = slot_of_words(words)
        slots.append(slot)
        words = words[taken:]
    by_token = [slots[n : n + heads] for n in range(0, len(slots), heads)]
    return cache.append(by_token[tokens:], by_token[:tokens])


def _write_vector(
    compiled: Compiled, data: np.ndarray, name: str, words: Tensor, token: int = 0
) -> None:
    row = compiled.place[name][0] + token * -(-len(words) // ROW_ELEMENTS)
    raw = words.numpy().astype("<u2").view(np.uint8)
    data[row * ROW_BYTES : row * ROW_BYTES + len(raw)] = raw


def memories(
    compiled: CompiledLayer, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Data and weight memories before part 0: tokens (tokens, hidden), real, and their angles."""
    data, weights = compiled.data.copy(), [port.copy() for port in compiled.weights]
    for t, words in enumerate(bits_from_float(x.double())):
        _write_vector(compiled, data, "x", words, t)
    for name, angles in (("cos", cos), ("sin", sin)):
        for t, words in enumerate(bits_from_float(angles.double())):
            _write_vector(compiled, data, f"{name}{t}", words)
    return data, weights


@dataclasses.dataclass(frozen=True)
class PartRun:
    """A part of the program, the memories that it began with, and what came of it."""

    words: list[int]
    data: np.ndarray
    weights: list[np.ndarray]
    results: list[Result]
    readback: list[int]


@dataclasses.dataclass(frozen=True)
class LayerRun:
    """y: (tokens, hidden) FP16 words; cache: with the new tokens."""

    y: Tensor
    cache: Cache
    parts: list[PartRun]

    @property
    def value(self) -> Tensor:
        """y as float64."""
        return float_from_bits(self.y, FP16)


class _Runner:
    """A golden machine that runs parts and keeps what each began with."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.parts: list[PartRun] = []

    def run(self, words: list[int]) -> list[int]:
        """Runs a part; its readback. ArithmeticError: a command failed, named with its status."""
        machine = self.machine
        before = machine.data.data.copy(), [memory.data.copy() for memory in machine.weights]
        results = machine.run(words)
        for result in results:
            if result.status & FAILED:
                where = f"command {result.tag} ({result.unit.name})"
                raise ArithmeticError(f"{where}: {result.status!r}")
        self.parts.append(PartRun(words, *before, results, machine.readback))
        return machine.readback


def _tokens(words: list[int], tokens: int, length: int) -> Tensor:
    """(tokens, length) words of what READ gave."""
    rows = torch.tensor(words)
    y = torch.stack((rows & 0xFFFF, rows >> 16), dim=1).reshape(tokens, -1)
    return y[:, :length]


def run_layer(
    compiled: CompiledLayer, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache
) -> LayerRun:
    """Both parts on the golden machine, the host's work in between.

    x: (tokens, hidden) real; cos, sin: (tokens, head_size / 2); cache: the context.
    ArithmeticError: a command failed, named with its status.
    """
    shape = compiled.quantized.shape
    if cache.tokens != compiled.context:
        raise ValueError(f"a cache of {compiled.context} tokens needed, not {cache.tokens}")
    data, weights = memories(compiled, x, cos, sin)
    machine = Machine(compiled.config, data, weights)
    runner = _Runner(machine)
    words = runner.run(compiled.parts[0])
    cache = appended(cache, words, shape.kv_heads, compiled.tokens)
    append_host(compiled, machine.data.data, [m.data for m in machine.weights], cache)
    y = _tokens(runner.run(compiled.parts[1]), compiled.tokens, shape.hidden)
    return LayerRun(y=y, cache=cache, parts=runner.parts)


def run_paged_layer(
    compiled: CompiledLayer, x: Tensor, cos: Tensor, sin: Tensor, unit: CacheUnit
) -> Tensor:
    """The program on the golden machine, with ``unit`` as its cache: (tokens, hidden) words.

    The batch of ``unit`` names the sequence and the position of each token. ArithmeticError: a
    command failed, named with its status.
    """
    data, weights = memories(compiled, x, cos, sin)
    machine = Machine(compiled.config, data, weights)
    machine.cache = unit
    words = _Runner(machine).run(compiled.parts[0])
    return _tokens(words, compiled.tokens, compiled.quantized.shape.hidden)
