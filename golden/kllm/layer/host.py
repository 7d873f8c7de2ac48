"""The host's part of a layer: memories, requests, the batch, and a run on the golden machine."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.kllm.assembler import Assembler
from golden.kllm.cache import Place
from golden.kllm.engines import (
    answer_word,
    batch_table,
    moved,
    place_words,
    request_of,
    request_words,
)
from golden.kllm.isa import COMMAND_WORDS, FAILED, ROW_BYTES, ROW_ELEMENTS, Opcode, row_count
from golden.kllm.layer.compiler import CompiledLayer
from golden.kllm.layer.quantized import QuantizedLayer, cached_words
from golden.kllm.machine import Machine, Result
from golden.oaken.kv_engine import Request
from golden.paging.format import Kv, Op


@dataclasses.dataclass(frozen=True)
class History:
    """K, with its offset, and V of a sequence before the new tokens: (tokens, elements) words."""

    k: Tensor
    v: Tensor

    def __len__(self) -> int:
        return len(self.k)


def history_of(quantized: QuantizedLayer, k: Tensor, v: Tensor) -> History:
    """Real (tokens, kv_heads, head_size) keys, rotated, and values as the pages take them."""
    return History(*(words.flatten(1) for words in cached_words(k, v, quantized.offset)))


@dataclasses.dataclass(frozen=True)
class Part:
    """A program as the host gives it, and what golden makes of it.

    batch : words that the host writes to BATCH before; words : of the program
    status : a word per command, in order; readback : words of READ
    """

    batch: list[int]
    words: list[int]
    status: list[int]
    readback: list[int]


@dataclasses.dataclass(frozen=True)
class LayerRun:
    """A layer as the host runs it, from reset on.

    data, weights : memories before the first part
    requests : words of REQUEST, and the word of ANSWER; they come before the first part
    parts : those that append the histories, then the layer itself
    y : (tokens, hidden) FP16 words
    """

    data: np.ndarray
    weights: list[np.ndarray]
    requests: list[tuple[list[int], int]]
    parts: list[Part]
    y: Tensor

    @property
    def value(self) -> Tensor:
        """y as float64."""
        return float_from_bits(self.y, FP16)


def _write_vector(
    compiled: CompiledLayer, data: np.ndarray, name: str, words: Tensor, token: int = 0
) -> None:
    row = compiled.place[name][0] + token * row_count(len(words))
    raw = words.numpy().astype("<u2").view(np.uint8)
    data[row * ROW_BYTES : row * ROW_BYTES + len(raw)] = raw


def memories(
    compiled: CompiledLayer, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Data and weight memories before a run: tokens (tokens, hidden), real, and their angles."""
    data, weights = compiled.data.copy(), [port.copy() for port in compiled.weights]
    for t, words in enumerate(bits_from_float(x.double())):
        _write_vector(compiled, data, "x", words, t)
    for name, angles in (("cos", cos), ("sin", sin)):
        for t, words in enumerate(bits_from_float(angles.double())):
            _write_vector(compiled, data, f"{name}{t}", words)
    return data, weights


def request(machine: Machine, words: Sequence[int]) -> int:
    """A request of the host; the word of its answer. ArithmeticError: the cache refuses it."""
    assert machine.cache is not None
    fields = request_of(words)
    tag = fields.pop("tag")
    answer = machine.cache.request(Request(**fields))
    if answer.status:
        raise ArithmeticError(f"{Op(fields['op']).name} of the cache: {answer.status!r}")
    return answer_word(tag, answer.status, answer.sequence)


def set_batch(machine: Machine, words: Sequence[int]) -> None:
    """Sets the batch of a machine by all words that the host has written to BATCH."""
    assert machine.cache is not None
    table = batch_table(words, machine.config.batch)
    machine.cache.batch = [None if each is None else Place(*each) for each in table]


def run_part(machine: Machine, batch: Sequence[int], words: Sequence[int]) -> list[Result]:
    """Runs a program with a batch. ArithmeticError: a command failed, named with its status."""
    set_batch(machine, batch)
    return run_commands(machine, words)


def run_commands(machine: Machine, words: Sequence[int]) -> list[Result]:
    """Runs a program. ArithmeticError: a command failed, named with its status."""
    results = machine.run(words)
    for result in results:
        if result.status & FAILED:
            where = f"command {result.tag} ({result.unit.name})"
            raise ArithmeticError(f"{where}: {result.status!r}")
    return results


class _Runner:
    """A golden machine after reset, whose host keeps what it has given and got."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.config = machine, machine.config
        self.requests: list[tuple[list[int], int]] = []
        self.parts: list[Part] = []

    def request(self, op: Op, **fields: object) -> None:
        words = request_words(op, tag=len(self.requests), **fields)  # type: ignore[arg-type]
        self.requests.append((words, request(self.machine, words)))

    def part(self, words: list[int], batch: Sequence[Place | None]) -> Part:
        """The next part; ``words`` are counted from the state after reset."""
        places = [*batch, *[None] * (self.config.batch - len(batch))]
        given = [word for n, place in enumerate(places) for word in _place_words(n, place)]
        words = counted_after(words, [self.machine.issued[unit] for unit in self.machine.issued])
        results = run_part(self.machine, given, words)
        status = [result.word for result in results]
        self.parts.append(Part(given, words, status, self.machine.readback))
        return self.parts[-1]

    def append(self, sequence: int, count: int, first: Sequence[int], size: int) -> None:
        """APPENDs of a history, as many tokens at a time as the batch and the rows hold.

        first: rows of K and of V in the data memory; size: rows of a vector
        """
        most = min(self.config.batch, self.config.vector_rows // size)
        for token in range(0, count, most):
            tokens = min(most, count - token)
            program = Assembler(self.config)
            for kv in Kv:
                program.load(address=first[kv] + token * size, rows=tokens * size, dst=0)
                operands = {"src": 0, "stride": size, "tokens": tokens, "layer": 0, "kv": int(kv)}
                program.emit(Opcode.APPEND, operands)
            self.part(program.words(), [Place(sequence, token + n) for n in range(tokens)])


def _place_words(number: int, place: Place | None) -> list[int]:
    if place is None:
        return place_words(number)
    return place_words(number, place.sequence, place.position, place.token)


def counted_after(words: Sequence[int], base: Sequence[int]) -> list[int]:
    """A program whose waits count from ``base[unit]`` commands of each unit; tags stay."""
    made: list[int] = []
    for first in range(0, len(words), COMMAND_WORDS):
        command = list(words[first : first + COMMAND_WORDS])
        made += moved(command, command[0] >> 16, base)
    return made


def _tokens(words: Sequence[int], tokens: int, length: int) -> Tensor:
    """(tokens, length) words of what READ gave."""
    rows = torch.tensor(words)
    y = torch.stack((rows & 0xFFFF, rows >> 16), dim=1).reshape(tokens, -1)
    return y[:, :length]


def run_layer(
    compiled: CompiledLayer,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    histories: Sequence[History],
    batch: Sequence[Place | None] | None = None,
) -> LayerRun:
    """The layer on a golden machine, after the histories of its sequences.

    x: (tokens, hidden) real; cos, sin: (tokens, head_size / 2), of each token's position
    histories: of sequences 0 and on; layer 0 of the cache is the layer's
    batch: of the new tokens; None: they follow each other in sequence 0
    ArithmeticError: a command failed, named with its status.
    """
    config = compiled.config
    data, weights = memories(compiled, x, cos, sin)
    stored = [words for each in histories for words in (each.k, each.v)]
    at = len(data) // ROW_BYTES
    if stored:
        size = row_count(config.cache.kv.elements)
        rows = np.zeros((sum(map(len, stored)), size * ROW_ELEMENTS), dtype="<u2")
        rows[:, : config.cache.kv.elements] = torch.cat(stored).numpy()
        data = np.concatenate((data, rows.view(np.uint8).reshape(-1)))
    runner = _Runner(Machine(config, data, weights))
    for kv in Kv:
        thresholds = compiled.quantized.thresholds[kv].tolist()
        runner.request(Op.THRESHOLDS, kv=kv, thresholds=thresholds)
    for _ in histories:
        runner.request(Op.OPEN)
    for sequence, each in enumerate(histories):
        runner.append(sequence, len(each), (at, at + len(each) * size), size)
        at += 2 * len(each) * size
    if batch is None:
        first = len(histories[0])
        batch = [Place(0, first + t) for t in range(compiled.tokens)]
    part = runner.part(compiled.program.words, batch)
    y = _tokens(part.readback, compiled.tokens, compiled.quantized.shape.hidden)
    return LayerRun(data, weights, runner.requests, runner.parts, y)


def replay(
    machine: Machine, requests: Sequence[tuple[list[int], int]], parts: Sequence[Part]
) -> None:
    """Repeats on a machine after reset what a host has recorded. AssertionError: other words."""
    for words, answer in requests:
        assert request(machine, words) == answer
    for number, part in enumerate(parts):
        status = [result.word for result in run_part(machine, part.batch, part.words)]
        assert status == part.status, f"part {number}"
        assert machine.readback == part.readback, f"part {number}"
