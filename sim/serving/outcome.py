"""The outcome of a run: what became of each request, and sums over the passes. Pure Python."""

import dataclasses
from typing import NamedTuple

from sim.serving.times import NOTHING, Amount
from sim.serving.trace import Request

_MOST_SAMPLES = 4096


@dataclasses.dataclass(slots=True)
class Served:
    """A request and its times in seconds; ``refused``: why it could never run, empty if it ran."""

    request: Request
    entered: float | None = None
    first: float | None = None  # end of the pass that makes its first word
    end: float | None = None
    preempted: int = 0
    refused: str = ""
    hit: int = 0  # tokens of the prompt that were cached as it entered
    moved: float | None = None  # when K and V of its prompt have come to the chip that decodes
    chip: int = 0  # the replica that takes it

    @property
    def to_first(self) -> float | None:
        """Seconds from arrival to the first word."""
        return None if self.first is None else self.first - self.request.arrival

    @property
    def per_token(self) -> float | None:
        """Seconds per word after the first; None: it has no second word."""
        if self.end is None or self.first is None or self.request.output < 2:
            return None
        return (self.end - self.first) / (self.request.output - 1)

    @property
    def latency(self) -> float | None:
        """Seconds from arrival to the last word."""
        return None if self.end is None else self.end - self.request.arrival


class Sample(NamedTuple):
    """The state as a pass begins."""

    at: float
    batch: int
    waiting: int
    pages: int


@dataclasses.dataclass
class Outcome:
    """Sums of a run.

    pages : of the chip
    busy : seconds in which a pass ran
    amount : seconds, bytes and joules of all passes
    passes : number of passes by their kind
    words : made by requests that have ended
    again : tokens that were cached and given up by preemption, and are not found again
    prefilled : tokens of prompts, and of words after a preemption, that passes took
    decoded : sequences of all steps of decoding
    drafted, accepted : words that were drafted; and those that requests got of them
    left : pages that are in use after the last request
    """

    pages: int
    served: list[Served] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    amount: Amount = NOTHING
    passes: dict[str, int] = dataclasses.field(default_factory=dict)
    samples: list[Sample] = dataclasses.field(default_factory=list)
    words: int = 0
    again: int = 0
    prefilled: int = 0
    decoded: int = 0
    drafted: int = 0
    accepted: int = 0
    left: int = 0
    peak_batch: int = 0
    peak_pages: int = 0
    batch_seconds: float = 0.0
    page_seconds: float = 0.0
    _every: int = 1  # passes per sample
    _adds: int = 0

    @property
    def busy(self) -> float:
        return self.amount[0]

    def add(
        self, kind: str, steps: int, amount: Amount, at: float, batch: int, waiting: int,
        pages: int, used: int,
    ) -> None:  # fmt: skip
        """``steps`` passes from time ``at`` on, with the state of a Sample; used: pages after."""
        seconds, bytes_, low, value, high = self.amount
        spent = amount[0]
        self.amount = (
            seconds + spent, bytes_ + amount[1], low + amount[2], value + amount[3],
            high + amount[4],
        )  # fmt: skip
        self.passes[kind] = self.passes.get(kind, 0) + steps
        self.peak_batch = max(self.peak_batch, batch)
        self.peak_pages = max(self.peak_pages, pages, used)
        self.batch_seconds += batch * spent
        self.page_seconds += (pages + used) / 2 * spent
        if not self._adds % self._every:
            self.samples.append(Sample(at, batch, waiting, pages))
            if len(self.samples) >= _MOST_SAMPLES:
                # Every second sample leaves, so a long run keeps few and a short one all.
                self.samples = self.samples[::2]
                self._every *= 2
        self._adds += 1
