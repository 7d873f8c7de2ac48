"""A model on the golden machine: the host's part, pass by pass."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from golden.kllm.cache import Place
from golden.kllm.config import MachineConfig
from golden.kllm.engines import Sampling
from golden.kllm.isa import ROW_ELEMENTS, Unit, row_count
from golden.kllm.layer.host import run_commands
from golden.kllm.machine import Machine
from golden.kllm.model.compiler import ModelImage
from golden.kllm.model.program import PassProgram, StepProgram, pieces
from golden.kllm.records import Weight
from golden.oaken.kv_engine import Request
from golden.paging.format import Op


@dataclasses.dataclass(frozen=True)
class PassRun:
    """status: a word per command; readback: what READ gave."""

    status: list[int]
    readback: list[int]
    logits: Tensor  # (tokens, vocabulary) FP16 words
    ids: list[int]  # of the tokens with logits, where the program chooses


@dataclasses.dataclass(frozen=True)
class StepRun:
    """status: a word per command; ids: of the next token of each place that chooses."""

    status: list[int]
    ids: list[int]


class ModelMachine(Machine):
    """Keeps the weights of the images, which no host writes, decoded: golden runs are repeated."""

    def __init__(self, config: MachineConfig, data: np.ndarray, ports: list[np.ndarray]) -> None:
        super().__init__(config, data, ports)
        self._decoded: dict[tuple[int, int, int], Weight] = {}

    def _weights(self, address: int, length: int, outputs: int) -> Weight | None:
        key = (address, length, outputs)
        if any(memory.faults for memory in self.weights):
            return super()._weights(address, length, outputs)
        if key not in self._decoded:
            found = super()._weights(address, length, outputs)
            assert found is not None
            index = found.index.to(torch.uint8)
            self._decoded[key] = dataclasses.replace(found, index=index)
        return self._decoded[key]


class ModelHost:
    """The golden machine with a model's memories, and one sequence in its pages."""

    def __init__(self, image: ModelImage) -> None:
        self.layout = image.layout
        self.machine = ModelMachine(self.layout.config, image.data, image.ports)
        self.context = 0  # cached tokens of the sequence that passes take
        assert self.machine.cache is not None
        self.machine.cache.begin(image.thresholds)
        self.sequence = self.machine.cache.request(Request(Op.OPEN)).sequence

    def run(
        self, program: PassProgram, tokens: list[int], sampling: Sampling | None = None
    ) -> PassRun:
        """A pass. ArithmeticError: a command failed, named with its status.

        sampling: of every token.
        """
        job, machine = program.job, self.machine
        if job.context != self.context:
            raise ValueError(f"a cache of {job.context} tokens needed, not {self.context}")
        self._set_batch(
            [
                Place(self.sequence, job.context + t, tokens[t], sampling)
                for t in range(job.tokens)
            ]
        )
        machine.issued = dict.fromkeys(Unit, 0)
        status = self._run(program.with_tokens(tokens))
        self.context += job.tokens
        found = machine.readback
        wide = sum(row_count(each) for each in pieces(self.layout, program.logits or 1))
        ids = found[program.logits * wide * ROW_ELEMENTS // 2 :] if program.logits else []
        return PassRun(status, found, logits_of(program, found), ids)

    def step(self, program: StepProgram, places: Sequence[Place | None]) -> StepRun:
        """A step of the sequences of ``places``, one for each token of the program.

        None: a place without a token. ArithmeticError: a command failed, named with its status.
        """
        if len(places) != program.tokens:
            raise ValueError(f"{program.tokens} places needed, not {len(places)}")
        machine = self.machine
        self._set_batch(places)
        machine.issued = dict.fromkeys(Unit, 0)
        return StepRun(self._run(program.words), machine.readback)

    def _set_batch(self, places: Sequence[Place | None]) -> None:
        """Places beyond these have no token."""
        assert self.machine.cache is not None
        rest = self.layout.config.batch - len(places)
        self.machine.cache.batch = [*places, *(None for _ in range(rest))]

    def _run(self, words: Sequence[int]) -> list[int]:
        """Status words; ArithmeticError as ``run``."""
        return [result.word for result in run_commands(self.machine, words)]


def logits_of(program: PassProgram, words: list[int] | np.ndarray) -> Tensor:
    """(tokens, vocabulary) FP16 words of what a pass reads back."""
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
