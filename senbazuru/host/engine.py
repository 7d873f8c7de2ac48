"""The host's library in Python: a chip, and an engine that serves many requests on it.

    with VerilatedChip(library, folder, latency) as chip, Engine(chip, image) as engine:
        number = engine.submit(prompt, max_tokens=20)
        while engine.is_busy:
            engine.step()
            for event in engine.poll():
                ...

One thread steps. Others may call all but ``step``, ``reset`` and ``close`` meanwhile, and none of
these calls waits for the chip.
"""

import array
import ctypes
import dataclasses
import enum
import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from senbazuru.host.build import CHIP_HEADER, HEADER, build_host_library
from senbazuru.host.header import Header

_TEXT = 512  # bytes of a line
_EVENTS = 256  # that one call takes
_ACCESSES = 4096  # the same
_WORD = (1 << 32) - 1

header = Header().read(HEADER)
_chip_header = Header(structures=dict(header.structures)).read(CHIP_HEADER)


@functools.cache
def _library() -> ctypes.CDLL:
    return header.load(build_host_library())


class HostError(RuntimeError):
    """The library refused a call; ``name`` is that of the error without its prefix."""

    def __init__(self, code: int, why: str = "") -> None:
        self.name = _library().szr_error_name(code).decode().removeprefix("SZR_")
        super().__init__(f"{self.name}: {why}" if why else self.name)


class Policy(enum.IntEnum):
    """The order of requests where there are fewer places than tokens."""

    FIRST_COME = header.constants["SZR_FIRST_COME"]
    SHORTEST = header.constants["SZR_SHORTEST"]
    FAIR = header.constants["SZR_FAIR"]


class Reason(enum.IntEnum):
    """The end of a request."""

    RUNS = header.constants["SZR_RUNS"]
    STOP = header.constants["SZR_STOP"]
    LENGTH = header.constants["SZR_LENGTH"]
    CANCELLED = header.constants["SZR_CANCELLED"]
    FAULT = header.constants["SZR_FAULT"]


@dataclasses.dataclass(frozen=True)
class Token:
    """A chosen token."""

    request: int
    token: int


@dataclasses.dataclass(frozen=True)
class End:
    """The last event of a request; fault: the chip's words, "" where there was none."""

    request: int
    reason: Reason
    fault: str = ""


class Chip:
    """A backend for an engine: ``backend`` is a filled ``szr_backend``."""

    backend: Any

    @property
    def why(self) -> str:
        """One line on the last error of the chip, or ""."""
        return ""


class VerilatedChip(Chip):
    """A Verilated accelerator with a model in its memories; use it in a ``with``."""

    def __init__(self, library: Path, folder: Path, latency: int = 40) -> None:
        """library: of ``build_chip``; HostError: a file cannot be read."""
        self._library = _chip_header.load(library)
        self.backend = header.structures["szr_backend"]()
        why = ctypes.create_string_buffer(_TEXT)
        code = self._library.szr_verilated_open(
            str(folder).encode(), latency, ctypes.byref(self.backend), why, _TEXT
        )
        if code:
            raise HostError(code, why.value.decode(errors="replace"))

    def __enter__(self) -> "VerilatedChip":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._library.szr_verilated_close(ctypes.byref(self.backend))

    @property
    def why(self) -> str:
        found = self._library.szr_verilated_why(ctypes.byref(self.backend))
        return found.decode(errors="replace")

    def set_error(self, port: int, word: int, is_set: bool = True) -> None:
        """Reads of a word of a port's memory fail; of the last ports, writes."""
        backend = ctypes.byref(self.backend)
        _check(self._library.szr_verilated_set_error(backend, port, word, is_set))

    def watch(self, engine: int = 0, is_on: bool = True) -> None:
        """Keeps the accesses to an engine's pages for ``accesses``."""
        _check(self._library.szr_verilated_watch(ctypes.byref(self.backend), engine, is_on))

    def accesses(self) -> list[Any]:
        """The ``szr_access`` since the last call."""
        room, count = (_chip_header.structures["szr_access"] * _ACCESSES)(), ctypes.c_size_t(1)
        found: list[Any] = []
        while count.value:
            backend = ctypes.byref(self.backend)
            call = self._library.szr_verilated_accesses
            _check(call(backend, room, _ACCESSES, ctypes.byref(count)))
            found += [type(each).from_buffer_copy(each) for each in room[: count.value]]
        return found

    def pages(self, address: int, size: int, engine: int = 0) -> bytes:
        """Bytes of an engine's pages, read past the chip."""
        made = ctypes.create_string_buffer(size)
        backend = ctypes.byref(self.backend)
        _check(self._library.szr_verilated_pages(backend, engine, address, made, size, 0))
        return made.raw

    def set_pages(self, address: int, data: bytes, engine: int = 0) -> None:
        """Writes bytes of an engine's pages past the chip."""
        made = ctypes.create_string_buffer(data, len(data))
        backend = ctypes.byref(self.backend)
        _check(self._library.szr_verilated_pages(backend, engine, address, made, len(data), 1))


class Engine:
    """Requests that share the steps of a chip; use it in a ``with``."""

    def __init__(
        self,
        chip: Chip,
        image: bytes,
        *,
        policy: Policy = Policy.FIRST_COME,
        places: int = 0,
        sequences: int = 0,
        requests: int = 0,
    ) -> None:
        """image: of ``golden.kllm.model.host_image``; the others as ``szr_options``.

        HostError: the library refuses them, or the chip does not answer.
        """
        self._chip = chip  # its backend is used as long as the engine
        self._library = _library()
        self._handle = ctypes.c_void_p()
        self._stepping = threading.Lock()
        options = header.structures["szr_options"](policy, places, sequences, requests)
        code = self._library.szr_open(
            ctypes.byref(chip.backend), image, len(image), ctypes.byref(options),
            ctypes.byref(self._handle),
        )  # fmt: skip
        if code:
            raise HostError(code, chip.why)
        self.facts = self._filled("szr_facts_of", "szr_facts")

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the end of a step that is under way. The engine cannot be used any more."""
        with self._stepping:
            self._library.szr_close(self._handle)
            self._handle = ctypes.c_void_p()

    # Requests.

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        temperature: float = 0.0,
        top_k: int = 1,
        seed: int = 0,
        stops: Sequence[int] = (),
        user: int = 0,
        prefix: int = 0,
    ) -> int:
        """The number of a new request. HostError: its name says what is wrong.

        prefix: what the prompt follows, a number that ``prefix`` gave; 0: nothing.
        """
        tokens, ends = _tokens(prompt), _tokens(stops)
        if not all(0 <= word <= _WORD for word in (top_k, seed, user)):
            raise HostError(header.constants["SZR_BAD_ARGUMENT"])
        pointers = [ctypes.cast(each, ctypes.POINTER(ctypes.c_uint32)) for each in (tokens, ends)]
        made = header.structures["szr_prompt"](
            prompt=pointers[0], prompt_tokens=len(tokens), stops=pointers[1],
            stop_tokens=len(ends), max_tokens=min(max(max_tokens, 0), _WORD), top_k=top_k,
            temperature=temperature, seed=seed, user=user, prefix=_number(prefix),
        )  # fmt: skip
        number = ctypes.c_uint64()
        self._call("szr_submit", ctypes.byref(made), ctypes.byref(number))
        return number.value

    def prefix(self, prompt: Sequence[int], *, user: int = 0) -> int:
        """The number of a new prefix, with which requests can begin until ``cancel``.

        HostError: its name says what is wrong; NO_FORKS: the chip has none.
        """
        tokens = _tokens(prompt)
        if not 0 <= user <= _WORD:
            raise HostError(header.constants["SZR_BAD_ARGUMENT"])
        number = ctypes.c_uint64()
        self._call("szr_prefix", tokens, len(tokens), user, ctypes.byref(number))
        return number.value

    def cancel(self, request: int) -> None:
        """HostError ENDED, UNKNOWN."""
        self._call("szr_cancel", _number(request))

    def free(self, request: int) -> None:
        """Forgets an ended request. HostError ACTIVE, UNKNOWN."""
        self._call("szr_free", _number(request))

    def usage(self, request: int) -> dict[str, int]:
        """The fields of ``szr_usage``. HostError UNKNOWN."""
        return self._filled("szr_usage_of", "szr_usage", _number(request))

    def poll(self) -> list[Token | End]:
        """All events that have come, the oldest first."""
        events: list[Token | End] = []
        room = (header.structures["szr_event"] * _EVENTS)()
        count = ctypes.c_size_t(_EVENTS)
        while count.value == _EVENTS:
            self._call("szr_poll", room, _EVENTS, ctypes.byref(count))
            events += map(self._event, room[: count.value])
        return events

    # Steps.

    def step(self) -> dict[str, Any]:
        """One step of the chip; the fields of ``szr_report``. HostError: the chip is lost."""
        with self._stepping:
            return self._filled("szr_step", "szr_report")

    def reset(self) -> None:
        """Resets the chip. Requests that have not ended go through again."""
        with self._stepping:
            self._call("szr_reset")

    @property
    def is_busy(self) -> bool:
        """Whether a step has something to do."""
        stats = self.stats()
        return bool(stats["waiting"] + stats["running"] + stats["leaving"])

    # Figures.

    def stats(self) -> dict[str, Any]:
        """The fields of ``szr_stats``; ``last`` has those of ``szr_report``."""
        return self._filled("szr_stats_of", "szr_stats")

    def slots(self) -> list[dict[str, int]]:
        """The fields of ``szr_slot`` of each sequence."""
        room = (header.structures["szr_slot"] * self.facts["sequences"])()
        count = ctypes.c_size_t()
        self._call("szr_slots_of", room, len(room), ctypes.byref(count))
        return [_fields(each) for each in room[: count.value]]

    # Calls.

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(self._handle, *arguments)
        if code:
            raise HostError(code, self._chip.why if name in ("szr_step", "szr_reset") else "")

    def _filled(self, name: str, structure: str, *arguments: Any) -> dict[str, Any]:
        made = header.structures[structure]()
        self._call(name, *arguments, ctypes.byref(made))
        return _fields(made)

    def _event(self, event: Any) -> Token | End:
        if event.kind == header.constants["SZR_TOKEN"]:
            return Token(event.request, event.token)
        reason = Reason(event.reason)
        fault = result_text(event.fault) if reason == Reason.FAULT else ""
        return End(event.request, reason, fault)


def result_text(result: int) -> str:
    """The text of a word RESULT."""
    text = ctypes.create_string_buffer(_TEXT)
    _check(_library().szr_result_text(result, text, _TEXT))
    return text.value.decode()


def _check(code: int) -> None:
    if code:
        raise HostError(code)


def _number(request: int) -> int:
    """HostError UNKNOWN: no request can have it."""
    if not 0 <= request < 1 << 64:
        raise HostError(header.constants["SZR_UNKNOWN"])
    return request


def _tokens(values: Sequence[int]) -> Any:
    """The words of tokens. HostError BAD_TOKEN: some is no word."""
    try:
        words = array.array("I", values)
    except (OverflowError, TypeError):
        raise HostError(header.constants["SZR_BAD_TOKEN"]) from None
    return (ctypes.c_uint32 * len(words)).from_buffer_copy(words)


def _fields(made: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, ctypes.Array):
            return list(value)
        return _fields(value) if isinstance(value, ctypes.Structure) else value

    return {name: plain(getattr(made, name)) for name, _ in made._fields_}
