"""Requests of the cache, one after another: what each asks of the parts. Pure Python."""

import dataclasses
from collections.abc import Callable
from typing import Any

from golden.million.config import MillionConfig
from golden.million.format import EXPONENT_MIN, Op, Status

Ask = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Book:
    """The codebooks of a LOAD."""

    layer: int
    entries: int
    exponent_k: int
    exponent_v: int


@dataclasses.dataclass
class Tokens:
    """The tokens of a (sequence, layer)."""

    tokens: int = 0
    past: int = 0  # that are attended as codes
    start: int = 0  # place of the oldest recent token


@dataclasses.dataclass(frozen=True)
class EncodeJob:
    """Tokens of a (sequence, layer) that get codes, or the start of a sequence without any."""

    sequence: int
    layer: int
    until: int = 0  # tokens that have codes afterwards
    clear: bool = False  # a new sequence
    restored: bool = False  # the codes come with the request
    discard: bool = False  # the request is refused, and its codes with it


class Requests:
    """``ask(what, **fields)`` has a part do something and returns how it ended.

    what       fields                                   answer
    page       op, sequence                             (status, sequence)
    load       the request's                            whether the codebooks are sound
    write      discard, slot, row                       an element is NaN or infinite
    encode     job, an EncodeJob; book; waits            status; of no use without ``waits``
    attend     the request's tokens, or ``refused``     -
    """

    def __init__(self, config: MillionConfig, ask: Ask):
        self.config, self.ask = config, ask
        self.places = config.window.places
        self.open: set[int] = set()
        self.layers: dict[tuple[int, int], Tokens] = {}
        self.present: Book | None = None
        self.waiting: tuple[Book, bool] | None = None  # and whether it is sound

    def run(self, op: int, sequence: int, layer: int, book: Book) -> tuple[Status | None, int]:
        """(status, its sequence); None where another part ends the request."""
        match op:
            case Op.OPEN | Op.FREE:
                return self._page(op, sequence)
            case Op.LOAD:
                return self._load(book), sequence
            case Op.PREFILL | Op.APPEND:
                return self._add(op, sequence, layer), sequence
            case Op.RESTORE:
                return self._restore(sequence, layer), sequence
            case Op.ATTEND:
                self._attend(sequence, layer)
                return None, sequence
        return Status.BAD_REQUEST, sequence

    def _page(self, op: int, sequence: int) -> tuple[Status, int]:
        if op == Op.FREE and not 0 <= sequence < self.config.sequences:
            return Status.BAD_REQUEST, sequence
        if op == Op.FREE and sequence not in self.open:
            return Status.SEQUENCE_UNKNOWN, sequence
        status, found = self.ask("page", op=op, sequence=sequence)
        if status == Status.OK and op == Op.FREE:
            self.open.discard(found)
        elif status == Status.OK:
            self.open.add(found)
            for layer in range(self.config.layers):
                self.layers[found, layer] = Tokens()
                self._encode(EncodeJob(found, layer, clear=True), waits=False)
            return status, found
        return status, sequence

    def _load(self, book: Book) -> Status | None:
        low, entries = EXPONENT_MIN, self.config.pq.entries
        exponents = min(book.exponent_k, book.exponent_v)
        if not (book.layer < self.config.layers and 1 <= book.entries <= entries) or (
            exponents < low
        ):
            return Status.BAD_REQUEST
        self.waiting = (book, self.ask("load", book=book))
        return None

    def _refusal(self, sequence: int, layer: int) -> Status:
        """Codebooks that wait are used from the first request on that they serve."""
        if sequence >= self.config.sequences or layer >= self.config.layers:
            return Status.BAD_REQUEST
        if sequence not in self.open:
            return Status.SEQUENCE_UNKNOWN
        if self.waiting and self._serves(self.waiting[0], layer):
            self.present = self.waiting[0] if self.waiting[1] else self.present
            self.waiting = None
        if self.present and self._serves(self.present, layer):
            return Status.OK
        return Status.NO_CODEBOOK

    def _serves(self, book: Book, layer: int) -> bool:
        return book.layer == layer or not self.config.scope_layers

    def _sinks(self, state: Tokens) -> int:
        return min(state.tokens, self.config.window.sinks)

    def _add(self, op: int, sequence: int, layer: int) -> Status:
        window, status = self.config.window, self._refusal(sequence, layer)
        state = Tokens() if status else self.layers[sequence, layer]
        recent = state.tokens - self._sinks(state) - state.past
        if not status and op == Op.PREFILL and recent:
            status = Status.TOKEN_ORDER
        elif not status and state.tokens == self.config.max_tokens:
            status = Status.LENGTH_LIMIT
        elif not status and op == Op.APPEND and window.recent and recent == window.recent:
            status = self._encode(EncodeJob(sequence, layer, state.past + window.block))
            if not status:
                state.past += window.block
                state.start = (state.start + window.block) % self.places
                recent -= window.block
        is_sink = state.tokens < window.sinks
        place = (state.start + recent) % self.places
        row = state.tokens if is_sink else window.sinks + place
        nonfinite = self.ask("write", sequence=sequence, layer=layer, row=row, refused=status)
        if status or nonfinite:
            return status or Status.NONFINITE
        if is_sink:
            state.tokens += 1
        elif op == Op.PREFILL or not window.recent:
            status = self._encode(EncodeJob(sequence, layer, state.past + 1))
            if not status:
                self._pass(state)
        else:
            state.tokens += 1
            self._encode(EncodeJob(sequence, layer, state.tokens - window.sinks), waits=False)
        return status

    def _restore(self, sequence: int, layer: int) -> Status:
        """The codes of a request that is refused are discarded."""
        window, status = self.config.window, self._refusal(sequence, layer)
        state = Tokens() if status else self.layers[sequence, layer]
        recent = state.tokens - self._sinks(state) - state.past
        if not status and (recent or state.tokens < window.sinks):
            status = Status.TOKEN_ORDER
        elif not status and state.tokens == self.config.max_tokens:
            status = Status.LENGTH_LIMIT
        job = EncodeJob(sequence, layer, state.past + 1, restored=True, discard=bool(status))
        found = self._encode(job)
        if not status and not found:
            self._pass(state)
        return status or found

    def _pass(self, state: Tokens) -> None:
        """A token that has codes at once."""
        state.tokens += 1
        state.past += 1
        state.start = (state.start + 1) % self.places

    def _encode(self, job: EncodeJob, waits: bool = True) -> Status:
        return self.ask("encode", job=job, book=self.present, waits=waits)

    def _attend(self, sequence: int, layer: int) -> None:
        status = self._refusal(sequence, layer)
        state = Tokens() if status else self.layers[sequence, layer]
        if not status and not state.tokens:
            status = Status.EMPTY
        sinks = self._sinks(state)
        self.ask(
            "attend", sequence=sequence, layer=layer, keys=state.past, sinks=sinks,
            start=state.start, recent=state.tokens - sinks - state.past,
            distance=max(state.tokens - 1, 0), book=self.present, refused=status,
        )  # fmt: skip
