"""Python's side of main.cpp: requests to the host's program, and its answers.

| request | words after the letter | answer |
|---|---|---|
| ``L`` | heads, head_size, layers, then of each head K's word, V's word, row of V's scales | |
| ``W`` | row, rows, their bytes: the host writes data memory | |
| ``K`` | layer, context, tokens, count, slots: K and V of tokens go to the images | |
| ``E`` | port (the last: data), word address, 0 or 1: reads of it give SLVERR | |
| ``R`` | the accelerator is reset | ``r`` |
| ``P`` | layer or -1, context, tokens, abort_at, stop_at, count, words of a program | ``p`` |
| ``S`` | temperature, top_p, draw, tokens, pieces: the next token | ``s`` |
| ``G`` | a pass begins: its waits count from here, and nothing of it has failed | |

Words are 32 bits, little-endian; addresses and cycles 64, floating point 64. A program that fails
leaves out those that follow, and the choice of a token. All programs of a pass are sent at once, so
the loop of cycles has no Python in it.
"""

import contextlib
import dataclasses
import fcntl
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from golden.kllm.isa import FAILED, CommandStatus, Unit
from golden.kllm.layer.layout import Job
from golden.kllm.model.host import mask_rows
from golden.kllm.model.layout import ModelLayout
from golden.kllm.model.program import PassProgram, pieces
from senbazuru.talk.sampling import Sampling

_PIPE = 1 << 20  # bytes that a pipe holds, so that a pass is sent before its first answer
_STATUS_BITS = (1 << 13) - 1
NEVER = -1


class DriverError(RuntimeError):
    """The host's program has ended, or reports that hardware breaks a rule; one line."""


class CommandFailed(DriverError):
    """A command of a pass failed, or was aborted: its part, number and status."""


@dataclasses.dataclass(frozen=True)
class PartRun:
    """A part as hardware ran it.

    status: words in the order in which they came; at: the cycle of each, from the part's start
    cycles: until the host had everything; words: that each memory gave, data memory last
    """

    failed: bool
    cycles: int
    status: np.ndarray
    at: np.ndarray
    readback: np.ndarray
    words: np.ndarray


class Driver:
    """A running host; use it in a ``with``."""

    def __init__(self, executable: Path, folder: Path, layout: ModelLayout, latency: int) -> None:
        self.layout = layout
        command = [str(executable), str(folder), str(latency)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        for pipe in (self._in, self._out):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)

    def __enter__(self) -> "Driver":
        try:
            self._send(self._place())
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

    def append(self, layer: int, job: Job, slots: np.ndarray) -> None:
        """K and V of a job's tokens, as a part reads them back, go to the images."""
        words = np.asarray(slots, dtype="<u4")
        head = struct.pack("<IIII", layer, job.context, job.tokens, len(words))
        self._send(b"K" + head + words.tobytes())

    def set_error(self, port: int, word: int, is_set: bool = True) -> None:
        """Reads of a word of a port's memory fail; port: as many as there are for data memory."""
        self._send(b"E" + struct.pack("<IQB", port, word, is_set))

    def reset(self) -> None:
        """Resets the accelerator; the memories keep what they hold."""
        self._send(b"GR")
        self._answer(b"r")

    def run(self, words: Sequence[int], *, abort_at: int = NEVER, stop_at: int = NEVER) -> PartRun:
        """A program that is no part of a pass, counted from the state after reset.

        abort_at: the cycle in which the host writes CONTROL and sends no further word; stop_at: the
        cycle in which the host stops looking, as one that is about to reset.
        """
        self._send(b"G" + _program(words, NEVER, Job(), abort_at, stop_at))
        return self._part()

    def run_pass(
        self,
        program: PassProgram,
        tokens: list[int],
        sampling: Sampling,
        draw: float = 0.0,
        *,
        abort: tuple[int, int] | None = None,
    ) -> Iterator[PartRun | int]:
        """The parts of a pass as they end, then the chosen token if the pass has logits.

        abort: part, and the cycle in it. CommandFailed: a command failed, after its part is given.
        """
        job, layers = program.job, self.layout.shape.layers
        made = [b"G"]
        for row, rows in mask_rows(program).items():
            made.append(b"W" + struct.pack("<II", row, len(rows)) + rows.tobytes())
        parts = program.with_tokens(tokens)
        for number, words in enumerate(parts):
            abort_at = abort[1] if abort is not None and abort[0] == number else NEVER
            layer = number if number < layers else NEVER
            made.append(_program(words, layer, job, abort_at, NEVER))
        if program.logits:
            outputs = pieces(self.layout, program.logits)
            head = (sampling.temperature, sampling.top_p, draw, program.logits, len(outputs))
            made.append(b"S" + struct.pack("<dddII", *head))
            made.append(np.array(outputs, dtype="<u4").tobytes())
        self._send(b"".join(made))
        for number in range(len(parts)):
            part = self._part()
            yield part
            if part.failed:
                raise CommandFailed(f"part {number}: {_named(part)}")
        if program.logits:
            yield struct.unpack("<I", self._answer(b"s"))[0]

    # Words.

    def _place(self) -> bytes:
        shape, room = self.layout.shape, Job(context=self.layout.shape.context - 1)
        made = struct.pack("<III", shape.layer.kv_heads, shape.layer.head_size, shape.layers)
        for layer in self.layout.layers:
            for head in range(shape.layer.kv_heads):
                k, v = (layer.image[room.cached(name, 0, head)][0] for name in ("k", "v"))
                row = layer.place[room.cached("v_scale", 0, head)][0]
                made += struct.pack("<III", k, v, row)
        return b"L" + made

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

    def _part(self) -> PartRun:
        frame = self._answer(b"p")
        head = struct.calcsize("<BQII")
        failed, cycles, statuses, words = struct.unpack("<BQII", frame[:head])
        numbers = np.frombuffer(frame, "<u4", 2 * statuses + words, head)
        status, at, readback = np.split(numbers, (statuses, 2 * statuses))
        given = np.frombuffer(frame, "<u8", offset=head + 4 * len(numbers))
        return PartRun(bool(failed), cycles, status, at, readback, given)


def _program(words: Sequence[int], layer: int, job: Job, abort_at: int, stop_at: int) -> bytes:
    head = struct.pack("<iIIqqI", layer, job.context, job.tokens, abort_at, stop_at, len(words))
    return b"P" + head + np.array(words, dtype="<u4").tobytes()


def _named(part: PartRun) -> str:
    """The first status of a failed command."""
    for word in part.status.tolist():
        status = CommandStatus(word & _STATUS_BITS)
        if status & FAILED:
            unit = Unit(word >> 13 & 7)
            return f"command {word >> 16} ({unit.name}): {status.name}"
    return "stopped before its last status"
