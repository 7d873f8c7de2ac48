"""The golden machine in a process of its own, next to the simulation."""

import dataclasses
import hashlib
import json
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from golden.files import kept_json, replacing
from golden.kllm.assembler import Assembler
from golden.kllm.config import MachineConfig
from golden.kllm.engines import Sampling
from golden.kllm.layer.layout import Job
from golden.kllm.model.layout import ModelLayout

# Modules, with all of golden that they import, whose code decides golden's tokens.
_CODE = ("golden.kllm.model.host", "golden.llm.kllm.pack", "senbazuru.talk.sampling")


class GoldenFailed(RuntimeError):
    """The golden machine's process ended; one line."""


@dataclasses.dataclass(frozen=True)
class GoldenRun:
    """status : a word per command, in order of the program; readback : words"""

    status: np.ndarray
    readback: np.ndarray


def fill_program(layout: ModelLayout) -> list[int]:
    """Words of the embedding in all rows of the vector memory: what no command writes shows."""
    asm = Assembler(layout.config)
    asm.load(address=layout.embedding, dst=0, rows=layout.config.vector_rows)
    return asm.words()


def state_program(config: MachineConfig) -> list[int]:
    """READ of all rows and READ_SLOT of all slots."""
    asm = Assembler(config)
    asm.read(src=0, rows=config.vector_rows)
    for slot in range(config.slots):
        asm.read_slot(slot=slot)
    return asm.words()


class _Server:
    """The part that runs in the other process."""

    def __init__(self, folder: Path, config: MachineConfig) -> None:
        from golden.kllm.model.host import ModelHost
        from golden.llm.kllm.pack import load

        self.pack = load(folder, config)
        self.host = ModelHost(self.pack.image())

    def program(self, words: list[int]) -> GoldenRun:
        """A program that is not of a pass, from the state after reset."""
        machine = self.host.machine
        machine.issued = dict.fromkeys(machine.issued, 0)
        status = [result.word for result in machine.run(words)]
        return GoldenRun(np.array(status), np.array(machine.readback))

    def run(
        self, job: Job, logits: int, tokens: list[int], sampling: Sampling | None = None
    ) -> GoldenRun:
        from golden.kllm.model.program import pass_program

        program = pass_program(self.pack.layout, job, logits, chooses=True)
        made = self.host.run(program, tokens, sampling)
        return GoldenRun(np.array(made.status), np.array(made.readback))


def _serve(connection: Connection, folder: Path, config: MachineConfig) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    try:
        server = _Server(folder, config)
        while True:
            name, *arguments = connection.recv()
            connection.send(getattr(server, name)(*arguments))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass
    except Exception as error:
        traceback.print_exc()
        connection.send(error)


class Golden:
    """Sends passes ahead; ``result`` gives what came of the oldest one. Use it in a ``with``."""

    def __init__(self, folder: Path, config: MachineConfig) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, folder, config), daemon=True)
        self._process.start()
        other.close()

    def __enter__(self) -> "Golden":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.join()

    def send(self, name: str, *arguments: Any) -> None:
        """A call of ``_Server``; as many ``result`` calls must follow."""
        try:
            self._connection.send((name, *arguments))
        except BrokenPipeError:
            raise GoldenFailed("the golden machine's process has ended") from None

    def result(self) -> Any:
        """GoldenFailed: the golden machine refused, in its words."""
        try:
            found = self._connection.recv()
        except EOFError:
            raise GoldenFailed("the golden machine's process has ended") from None
        if isinstance(found, Exception):
            raise GoldenFailed(f"golden: {found}")
        return found


def kept_file(folder: Path, made_for: dict[str, Any]) -> Path:
    """The file that keeps golden's tokens of a run: those of other code are not read."""
    from golden.llm.eval.accuracy.bench import code_version

    said = json.dumps([made_for, code_version(_CODE)], sort_keys=True)
    return folder / f"{hashlib.sha256(said.encode()).hexdigest()[:20]}.json"


def _kept_tokens(kept: object) -> dict[int, int]:
    """None of a file that is damaged."""
    if not isinstance(kept, dict):
        return {}
    if not all(place.isdecimal() and type(token) is int for place, token in kept.items()):
        return {}
    return {int(place): token for place, token in kept.items()}


class KeptTokens:
    """Golden's tokens of one run by their place, each computed once."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.tokens = _kept_tokens(kept_json(file))

    def get(self, place: int, make: Callable[[], int]) -> int:
        """The token at a place of the sequence; ``make`` is called where none is known."""
        if place not in self.tokens:
            self.tokens[place] = make()
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.file) as part:
                part.write_text(json.dumps(self.tokens))
        return self.tokens[place]
