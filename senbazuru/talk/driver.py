"""Python's side of main.cpp: requests to the host's program, and its answers.

| request | words after the letter | answer |
|---|---|---|
| ``I`` | size, bytes of golden.kllm.model.host_image: once, before all others | ``i`` |
| ``Q`` | words of a request to the cache | ``q`` |
| ``B`` | count, words of the batch | |
| ``W`` | size, bytes of rows: the host writes data memory | ``w`` |
| ``N`` | tokens, ids, abort_at, count, words of the batch: a step | ``n`` |
| ``E`` | port, word address, 0 or 1: reads or writes of it give SLVERR | |
| ``R`` | the accelerator is reset | ``r`` |
| ``P`` | abort_at, stop_at, count, words of a program | ``p`` |
| ``G`` | a pass begins: its waits count from here, and nothing of it has failed | |

Ports are those of the weights, then the data memory, each engine's reads of pages, and each one's
writes. Words are 32 bits, little-endian; addresses and cycles 64. After a program that fails the
others of its pass are left out. A pass is sent at once, so the loop of cycles has no Python in it.
"""

import contextlib
import dataclasses
import fcntl
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from golden.kllm.engines import Sampling, place_words, request_words
from golden.kllm.isa import FAILED, RUN_UNIT, CommandStatus, RunStatus, Unit
from golden.kllm.layer.layout import Job
from golden.kllm.model.host_image import host_image
from golden.kllm.model.program import PassProgram
from golden.llm.kllm.pack import ModelPack
from golden.oaken.kv_engine import Request
from golden.paging.format import Op, Status

_PIPE = 1 << 20  # bytes that a pipe holds, so that a pass is sent before its first answer
_STATUS_BITS = (1 << 13) - 1
NEVER = -1


class DriverError(RuntimeError):
    """The host's program has ended, or reports that hardware breaks a rule; one line."""


class CacheRefused(DriverError):
    """The cache refused a request of the host."""


class CommandFailed(DriverError):
    """A command of a pass failed, or was aborted: its number and status."""


@dataclasses.dataclass(frozen=True)
class ProgramRun:
    """A program as hardware ran it.

    status: words in the order in which they came; at: the cycle of each, from its start
    cycles: until the host had everything; words: that each memory gave, data memory last
    """

    failed: bool
    cycles: int
    status: np.ndarray
    at: np.ndarray
    readback: np.ndarray
    words: np.ndarray


@dataclasses.dataclass(frozen=True)
class StepRun:
    """A step as hardware ran it.

    cycles: from the host's first word to its last id; written: words that the host wrote
    checked: the program was read once more before, to compare its check word
    units: name to cycles that it was at work, as the chip counts
    """

    cycles: int
    written: int
    ids: list[int]
    checked: bool
    units: dict[str, int]


class Driver:
    """A running host, with one open sequence; use it in a ``with``.

    most: places of a step that choose, at most
    """

    def __init__(self, executable: Path, pack: ModelPack, latency: int, most: int = 1) -> None:
        self._programs = pack.step_programs
        self._image = host_image(self._programs, pack.thresholds.tolist(), most)
        self.sequence = 0
        command = [str(executable), str(pack.folder), str(latency)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        for pipe in (self._in, self._out):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)

    def __enter__(self) -> "Driver":
        try:
            self._send(b"I" + struct.pack("<I", len(self._image)) + self._image)
            self._answer(b"i")
            self.sequence = self.open()
        except DriverError:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the program."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._in.close()
        self._out.close()

    # Requests.

    def request(self, request: Request) -> int:
        """A request to the cache; the sequence of its answer. CacheRefused: its status."""
        words = request_words(
            request.op, sequence=request.sequence, layer=request.layer, kv=request.kv,
            token=request.token, thresholds=request.thresholds,
        )  # fmt: skip
        self._send(b"Q" + np.array(words, dtype="<u4").tobytes())
        answer = struct.unpack("<I", self._answer(b"q"))[0]
        status, sequence = Status(answer >> 8 & 0xF), answer >> 16
        if status:
            raise CacheRefused(f"{Op(request.op).name} of the cache: {status.name}")
        return sequence

    def open(self) -> int:
        """Opens one more sequence; its number."""
        return self.request(Request(Op.OPEN))

    def begin_sequence(self) -> None:
        """K and V of all tokens are forgotten, and the next pass has no context."""
        self.request(Request(Op.FREE, self.sequence))
        self.sequence = self.open()

    def set_batch(self, job: Job) -> None:
        """The batch of a job's tokens."""
        self._send(b"B" + self._batch(job))

    def set_error(self, port: int, word: int, is_set: bool = True) -> None:
        """Reads of a word of a port's memory fail; of the last ports, writes."""
        self._send(b"E" + struct.pack("<IQB", port, word, is_set))

    def reset(self) -> None:
        """Resets the accelerator, which forgets K and V; the other memories keep what they hold."""
        self._send(b"GR")
        self._answer(b"r")
        self.sequence = self.open()

    def run(
        self, words: Sequence[int], *, abort_at: int = NEVER, stop_at: int = NEVER
    ) -> ProgramRun:
        """A program that is not of a pass, counted from the state after reset.

        abort_at: the cycle in which the host writes CONTROL and sends no further word; stop_at: the
        cycle in which the host stops looking, as one that is about to reset.
        """
        self._send(b"G" + _program(words, abort_at, stop_at))
        return self._ran()

    def run_pass(
        self,
        program: PassProgram,
        tokens: list[int],
        sampling: Sampling | None = None,
        *,
        abort_at: int = NEVER,
    ) -> ProgramRun:
        """A pass. CommandFailed: a command failed."""
        words = program.with_tokens(tokens)
        batch = self._batch(program.job, tokens, sampling)
        self._send(b"".join([b"GB", batch, _program(words, abort_at, NEVER)]))
        run = self._ran()
        if run.failed:
            raise CommandFailed(_named(run))
        return run

    def run_step(
        self,
        job: Job,
        tokens: list[int],
        ids: int,
        sampling: Sampling | None = None,
        *,
        abort_at: int = NEVER,
    ) -> StepRun:
        """A step of the sequence; its last ``ids`` tokens choose. CommandFailed: its answer.

        The program is in the data memory. The host writes the batch, and which program.
        """
        return self._step(self._batch(job, tokens, sampling), job.tokens, ids, abort_at)

    def run_users(self, sequences: list[int], position: int, tokens: list[int]) -> StepRun:
        """A step with one token of each sequence, all at ``position``; each of them chooses."""
        words = [
            word
            for place, (sequence, token) in enumerate(zip(sequences, tokens, strict=True))
            for word in place_words(place, sequence, position, token)
        ]
        return self._step(_batch_of(words), len(sequences), len(sequences), NEVER)

    def _step(self, batch: bytes, tokens: int, ids: int, abort_at: int) -> StepRun:
        self._send(b"N" + struct.pack("<IIq", tokens, ids, abort_at) + batch)
        frame = self._answer(b"n")
        form = f"<QIII{len(Unit)}I"
        size = struct.calcsize(form)
        cycles, written, answer, checked, *counts = struct.unpack(form, frame[:size])
        status, unit, number = answer & _STATUS_BITS, answer >> 13 & 7, answer >> 16
        if unit != RUN_UNIT:
            name = f"command {number} ({Unit(unit).name}): {CommandStatus(status).name}"
            raise CommandFailed(f"a step: {name}")
        if status & ~(RunStatus.OVERFLOW | RunStatus.SCALE_NONFINITE):
            raise CommandFailed(f"a step: {RunStatus(status).name}")
        chosen = list(struct.unpack(f"<{ids}I", frame[size:]))
        units = {unit.name: counts[unit] for unit in Unit}
        return StepRun(cycles, written, chosen, bool(checked), units)

    def step_words(self, tokens: int, ids: int) -> list[int]:
        """The words of a step's program."""
        return self._programs.words(tokens, ids)

    def store(self, rows: bytes) -> int:
        """The first row of ``rows`` in the data memory, where nothing else is."""
        self._send(b"W" + struct.pack("<I", len(rows)) + rows)
        return int(struct.unpack("<Q", self._answer(b"w"))[0])

    # Words.

    def _batch(
        self, job: Job, tokens: Sequence[int] = (), sampling: Sampling | None = None
    ) -> bytes:
        ids = tokens or [0] * job.tokens
        words = [
            word
            for t in range(job.tokens)
            for word in place_words(t, self.sequence, job.context + t, ids[t], sampling)
        ]
        return _batch_of(words)

    def _send(self, request: bytes) -> None:
        try:
            self._in.write(request)
            self._in.flush()
        except BrokenPipeError:
            self._answer(b"")

    def _answer(self, kind: bytes) -> bytes:
        head = self._out.read(4)
        if len(head) < 4:
            raise DriverError(f"the host's program ended with {self._process.wait()}")
        frame = self._out.read(struct.unpack("<I", head)[0])
        if frame[:1] == b"X":
            raise DriverError(frame[1:].decode())
        if frame[:1] != kind:
            raise DriverError(f"an answer {kind!r} was due, not {frame[:1]!r}")
        return frame[1:]

    def _ran(self) -> ProgramRun:
        frame = self._answer(b"p")
        head = struct.calcsize("<BQII")
        failed, cycles, statuses, words = struct.unpack("<BQII", frame[:head])
        numbers = np.frombuffer(frame, "<u4", 2 * statuses + words, head)
        status, at, readback = np.split(numbers, (statuses, 2 * statuses))
        given = np.frombuffer(frame, "<u8", offset=head + 4 * len(numbers))
        return ProgramRun(bool(failed), cycles, status, at, readback, given)


def _batch_of(words: Sequence[int]) -> bytes:
    """Their count, and the words of the batch."""
    return struct.pack("<I", len(words)) + np.array(words, dtype="<u4").tobytes()


def _program(words: Sequence[int], abort_at: int, stop_at: int) -> bytes:
    head = struct.pack("<qqI", abort_at, stop_at, len(words))
    return b"P" + head + np.array(words, dtype="<u4").tobytes()


def _named(run: ProgramRun) -> str:
    """The first status of a failed command."""
    for word in run.status.tolist():
        status = CommandStatus(word & _STATUS_BITS)
        if status & FAILED:
            unit = Unit(word >> 13 & 7)
            return f"command {word >> 16} ({unit.name}): {status.name}"
    return "stopped before its last status"
