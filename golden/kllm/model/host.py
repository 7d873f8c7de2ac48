"""A model on the golden machine: the host's part, pass by pass."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from golden.kllm.cache import Place
from golden.kllm.config import MachineConfig
from golden.kllm.engines import Sampling
from golden.kllm.isa import FAILED, ROW_ELEMENTS, Unit, row_count
from golden.kllm.layer.compiler import masks, write_vectors
from golden.kllm.layer.host import append_host, appended
from golden.kllm.layer.layout import Job, LayerLayout
from golden.kllm.layer.quantized import Cache
from golden.kllm.machine import Machine
from golden.kllm.model.compiler import ModelImage
from golden.kllm.model.program import PassProgram, StepProgram, pieces
from golden.kllm.records import Weight
from golden.oaken.kv_engine import Request
from golden.paging.format import Op


@dataclasses.dataclass(frozen=True)
class PassRun:
    """status: a word per command, readback: what READ and READ_SLOT gave; of each part."""

    status: list[list[int]]
    readback: list[list[int]]
    logits: Tensor  # (tokens, vocabulary) FP16 words
    ids: list[int]  # of the tokens with logits, where the program chooses


@dataclasses.dataclass(frozen=True)
class StepRun:
    """status: a word per command; ids: of the next token of each place that chooses."""

    status: list[int]
    ids: list[int]


@dataclasses.dataclass(frozen=True)
class _Memory:
    """A layer's layout as ``append_host`` takes it."""

    config: MachineConfig
    layout: LayerLayout
    job: Job

    @property
    def place(self) -> Mapping[str, tuple[int, int]]:
        return self.layout.place

    @property
    def image(self) -> Mapping[str, tuple[int, int, int]]:
        return self.layout.image

    def cached(self, name: str, sequence: int, head: int) -> str:
        return self.job.cached(name, sequence, head)


class _Machine(Machine):
    """Keeps the weights of the images that no host writes, decoded: golden runs are repeated."""

    def __init__(self, config: MachineConfig, image: ModelImage, constant: set[int]) -> None:
        super().__init__(config, image.data, image.ports)
        self._constant = constant
        self._decoded: dict[tuple[int, int, int], Weight] = {}

    def _weights(self, address: int, length: int, outputs: int) -> Weight | None:
        key = (address, length, outputs)
        if address not in self._constant or any(memory.faults for memory in self.weights):
            return super()._weights(address, length, outputs)
        if key not in self._decoded:
            found = super()._weights(address, length, outputs)
            assert found is not None
            index = found.index.to(torch.uint8)
            self._decoded[key] = dataclasses.replace(found, index=index)
        return self._decoded[key]


class ModelHost:
    """The golden machine with a model's memories, and the cached tokens of every layer."""

    def __init__(self, image: ModelImage) -> None:
        self.layout = image.layout
        config, shape = self.layout.config, self.layout.shape.layer
        cached = {f"{name}{head}" for name in ("k", "v") for head in range(shape.kv_heads)}
        written = [
            (place[0], place[0] + config.image_words(*place[1:]))
            for layer in self.layout.layers
            for name, place in layer.image.items()
            if name in cached
        ]
        self.machine = _Machine(config, image, _outside(written, self.layout.words))
        self.caches: list[Cache] = []  # of each layer, where the lanes attend
        self._paged = 0  # cached tokens, where the unit CACHE attends
        if image.thresholds is None:
            none = torch.zeros(shape.kv_heads, 0, shape.head_size, dtype=torch.int64)
            scale = torch.zeros(shape.kv_heads, 0, dtype=torch.int64)
            self.caches = [Cache(none, scale, none, scale) for _ in self.layout.layers]
            return
        assert self.machine.cache is not None
        self.machine.cache.begin(image.thresholds)
        self.sequence = self.machine.cache.request(Request(Op.OPEN)).sequence

    @property
    def context(self) -> int:
        """Cached tokens."""
        return self.caches[0].tokens if self.caches else self._paged

    def append(self, number: int, words: list[int], job: Job) -> None:
        """K and V of new tokens of a layer, as part ``number`` reads them back."""
        shape = self.layout.shape.layer
        cache = appended(self.caches[number], words, shape.kv_heads, job.tokens)
        self.caches[number] = cache
        memory = _Memory(self.layout.config, self.layout.of_layer(number, job), job)
        weights = [port.data for port in self.machine.weights]
        append_host(memory, self.machine.data.data, weights, cache)

    def run(
        self, program: PassProgram, tokens: list[int], sampling: Sampling | None = None
    ) -> PassRun:
        """A pass. ArithmeticError: a command failed, named with its status.

        sampling: of every token.
        """
        job, machine = program.job, self.machine
        if job.context != self.context:
            raise ValueError(f"a cache of {job.context} tokens needed, not {self.context}")
        for first, rows in mask_rows(program).items():
            machine.data.write(first, rows.reshape(-1).view(np.uint8))
        if machine.cache is not None:
            machine.cache.batch = [None] * self.layout.config.batch
            for t in range(job.tokens):
                machine.cache.batch[t] = Place(self.sequence, job.context + t, tokens[t], sampling)
        machine.issued = dict.fromkeys(Unit, 0)
        status, readback = [], []
        for number, words in enumerate(program.with_tokens(tokens)):
            status.append(self._part(words, f"part {number}, "))
            readback.append(machine.readback)
            if number < len(self.caches):
                self.append(number, machine.readback, job)
        self._paged += job.tokens
        wide = sum(row_count(each) for each in pieces(self.layout, program.logits or 1))
        ids = readback[-1][program.logits * wide * ROW_ELEMENTS // 2 :] if program.logits else []
        return PassRun(status, readback, logits_of(program, readback[-1]), ids)

    def step(self, program: StepProgram, places: Sequence[Place | None]) -> StepRun:
        """A step of the sequences of ``places``, one for each token of the program.

        None: a place without a token. ArithmeticError: a command failed, named with its status.
        """
        if len(places) != program.tokens:
            raise ValueError(f"{program.tokens} places needed, not {len(places)}")
        machine = self.machine
        assert machine.cache is not None
        rest = self.layout.config.batch - program.tokens
        machine.cache.batch = [*places, *(None for _ in range(rest))]
        machine.issued = dict.fromkeys(Unit, 0)
        return StepRun(self._part(program.words), machine.readback)

    def _part(self, words: Sequence[int], where: str = "") -> list[int]:
        """Status words; ArithmeticError as ``run``."""
        results = self.machine.run(words)
        for result in results:
            if result.status & FAILED:
                where += f"command {result.tag} ({result.unit.name})"
                raise ArithmeticError(f"{where}: {result.status!r}")
        return [result.word for result in results]


def _outside(written: list[tuple[int, int]], end: int) -> set[int]:
    """Word addresses where an image may begin that no host writes."""
    inside: set[int] = set()
    for first, after in written:
        inside.update(range(first, after))
    return set(range(end)) - inside


def mask_rows(program: PassProgram) -> dict[int, np.ndarray]:
    """First row of each mask of a pass, and its (rows, 16) words."""
    place = program.layout.masks(program.job)
    if not place:
        return {}
    first = min(row for row, _ in place.values())
    rows = np.zeros((sum(count for _, count in place.values()), ROW_ELEMENTS), dtype="<u2")
    local = {name: (row - first, count) for name, (row, count) in place.items()}
    write_vectors(rows, local, masks(program.job))
    return {first: rows}


def logits_of(program: PassProgram, words: list[int] | np.ndarray) -> Tensor:
    """(tokens, vocabulary) FP16 words of what the last part reads back."""
    pairs = np.asarray(words, dtype=np.int64)
    flat = np.stack((pairs & 0xFFFF, pairs >> 16), axis=1).reshape(-1)
    count, at, made = program.logits, 0, []
    if not count:
        return torch.zeros(0, program.layout.shape.vocabulary, dtype=torch.int64)
    for outputs in pieces(program.layout, count):
        wide = row_count(outputs) * ROW_ELEMENTS
        made.append(flat[at : at + count * wide].reshape(count, wide)[:, :outputs])
        at += count * wide
    return torch.from_numpy(np.concatenate(made, axis=1))
