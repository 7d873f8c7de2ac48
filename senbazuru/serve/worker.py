"""The one thread that steps the engine, and gives each request what belongs to it.

Other threads submit and cancel. Neither call waits for the chip.
"""

import contextlib
import dataclasses
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from senbazuru.host.engine import End, Engine, HostError, Reason, Token
from senbazuru.serve.protocol import ApiError, Usage
from senbazuru.serve.text import Written

RESETS = 3  # of the chip without a step in between that succeeds


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some text of an answer."""

    text: str


@dataclasses.dataclass(frozen=True)
class Done:
    """The end of an answer; reason: the API's word."""

    reason: str
    usage: Usage


@dataclasses.dataclass(frozen=True)
class Failed:
    """The end of an answer that cannot be given."""

    error: ApiError


Item = Piece | Done | Failed
Emit = Callable[[Item], None]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The arguments of ``Engine.submit``."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 0.0
    top_k: int = 1
    seed: int = 0
    stops: Sequence[int] = ()
    user: int = 0


class _Job:
    """A request in the engine. ``emit`` gets pieces, then one Done or Failed, and nothing after."""

    def __init__(self, wanted: Wanted, written: Written, emit: Emit) -> None:
        self._wanted, self._written, self._emit = wanted, written, emit
        self._chosen = 0
        self.is_over = False

    def take(self, token: int) -> None:
        self._chosen += 1
        self._piece(self._written.add(token))
        if self._written.is_stopped:
            self._done("stop")

    def end(self, event: End) -> None:
        if event.reason == Reason.FAULT:
            self.fail(ApiError(500, f"the chip refuses the request: {event.fault}", "chip_fault"))
        elif not self.is_over:
            self._piece(self._written.end())
            is_stop = event.reason == Reason.STOP or self._written.is_stopped
            self._done("stop" if is_stop else "length")

    def fail(self, error: ApiError) -> None:
        if not self.is_over:
            self.is_over = True
            self._emit(Failed(error))

    def _piece(self, text: str) -> None:
        if text and not self.is_over:
            self._emit(Piece(text))

    def _done(self, reason: str) -> None:
        self.is_over = True
        self._emit(Done(reason, Usage(len(self._wanted.prompt), self._chosen)))


@dataclasses.dataclass(frozen=True)
class Pace:
    """Wall-clock time of the simulation: of the last step, of all, and when the last one ended."""

    seconds: float = 0.0
    total: float = 0.0
    ended: float = 0.0


class Worker:
    """Steps an engine in a thread of its own, from ``start`` to ``close``.

    ``queue`` is the most requests that wait for a sequence. The engine must permit one more request
    than ``queue`` and its sequences together.
    """

    def __init__(self, engine: Engine, queue: int, sequences: int = 0) -> None:
        """sequences: most open at a time, as the engine has it; 0: all of the chip."""
        self.engine, self.queue = engine, queue
        self.most = queue + (sequences or engine.facts["sequences"])
        self.pace, self.resets, self.refused = Pace(), 0, 0
        self.broken = ""  # why no step is possible any more
        self._failures = 0  # of the chip, without a step that succeeds
        self._jobs: dict[int, _Job] = {}
        # Events are given out in their order, and a number is known before its events are.
        self._lock = threading.Lock()
        self._work, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="steps", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, patience: float = 5.0) -> bool:
        """Ends all requests, and the thread after its step; False: the step is still under way."""
        self.shut()
        if self._thread.is_alive():
            self._thread.join(patience)
        return not self._thread.is_alive()

    def shut(self) -> None:
        """Ends all requests with an error, and takes no more."""
        self._closing.set()
        self._fail_all(ApiError(503, "the server shuts down", "shutting_down"))
        self._work.set()

    # Requests.

    def submit(self, wanted: Wanted, written: Written, emit: Emit) -> int:
        """The number of a new request. ``emit`` is called in any thread.

        ApiError: there are too many requests, or the chip is lost.
        """
        with self._lock:
            if self.broken:
                raise ApiError(503, f"the chip is lost: {self.broken}", "chip_lost")
            if self._closing.is_set():
                raise ApiError(503, "the server shuts down", "shutting_down")
            if len(self._jobs) >= self.most:
                self.refused += 1
                wait = max(1, math.ceil(self.pace.seconds))
                raise ApiError(
                    429, f"{self.queue} requests wait already", "queue_full", retry_after=wait
                )
            number = self.engine.submit(**dataclasses.asdict(wanted))
            self._jobs[number] = _Job(wanted, written, emit)
        self._work.set()
        return number

    def cancel(self, number: int) -> None:
        """Ends a request, without an answer, if it has not ended; the next step frees its pages."""
        with self._lock:
            job = self._jobs.get(number)
            if job is None:
                return
            job.is_over = True
            self._end(number)
        self._deliver()
        self._work.set()

    @property
    def is_alive(self) -> bool:
        return not self.broken and not self._closing.is_set() and self._thread.is_alive()

    # The thread.

    def _run(self) -> None:
        try:
            while not self._closing.is_set() and not self.broken:
                self._work.clear()
                if self.engine.is_busy:
                    self._step()
                else:
                    self._work.wait()
        except Exception:
            traceback.print_exc()
            self._lose("an error of the server")

    def _step(self) -> None:
        began = time.monotonic()
        try:
            self.engine.step()
        except HostError as error:
            self._recover(error)
        else:
            self._failures = 0
            now = time.monotonic()
            self.pace = Pace(now - began, self.pace.total + now - began, time.time())
        self._deliver()

    def _recover(self, error: HostError) -> None:
        """Resets the chip, a few times; requests that have not ended go through again."""
        while True:
            print(f"senbazuru.serve: {error}", file=sys.stderr)
            if self._failures == RESETS:
                return self._lose(f"{error}")
            self._failures += 1
            self.resets += 1
            try:
                return self.engine.reset()
            except HostError as again:
                error = again

    def _lose(self, why: str) -> None:
        self.broken = why
        self._fail_all(ApiError(503, f"the chip is lost: {why}", "chip_lost"))

    def _fail_all(self, error: ApiError) -> None:
        with self._lock:
            for number, job in self._jobs.items():
                job.fail(error)
                self._end(number)
        self._deliver()

    def _end(self, number: int) -> None:
        with contextlib.suppress(HostError):  # it has ended, and its END has not been taken yet
            self.engine.cancel(number)

    def _deliver(self) -> None:
        """Gives all events that have come to their requests."""
        with self._lock:
            while events := self.engine.poll():
                for event in events:
                    self._take(event)

    def _take(self, event: Token | End) -> None:
        job = self._jobs[event.request]
        if isinstance(event, End):
            job.end(event)
            del self._jobs[event.request]
            self.engine.free(event.request)
        elif not job.is_over:
            job.take(event.token)
            if job.is_over:
                self._end(event.request)

    # Figures.

    def status(self) -> dict[str, Any]:
        """Figures of the batch, of the queue and of the simulation. No text of a user."""
        stats = self.engine.stats()
        return {
            "slots": self.engine.slots(),
            "stats": stats,
            "queue": {"waiting": stats["waiting"], "most": self.queue, "refused": self.refused},
            "pace": dataclasses.asdict(self.pace),
            "chip": {"resets": self.resets, "broken": self.broken},
        }
