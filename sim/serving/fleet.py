"""Several equal chips, each with its queue, and the router before them. Pure Python.

| router | a request goes to |
|---|---|
| round-robin | the chips in turn |
| least-loaded | the chip with the fewest requests that have not ended |
| prefix | the chip that knows most blocks of its prompt; of equal ones, the least loaded |

Of equal chips, the first. A router knows the state of all chips at the time of an arrival. A pass
that is under way then has its pages and blocks already, and ends no request.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from golden.config import Config, bounded, choice
from sim.serving.loop import Loop
from sim.serving.outcome import Outcome, Served

ROUTERS = ("round-robin", "least-loaded", "prefix")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fleet(Config):
    """Equal chips and their router."""

    replicas: int = bounded(1, 1, 1024)
    router: str = choice("round-robin", ROUTERS)

    @property
    def strict(self) -> bool:
        """Whether the router reads the state of the chips."""
        return self.replicas > 1 and self.router != "round-robin"

    def pick(self, loops: Sequence[Loop], served: Served, number: int, at: float) -> int:
        """The chip of a request: ``number`` requests have come before."""
        if not self.strict:
            return number % self.replicas
        hits = [0] * self.replicas
        if self.router == "prefix":
            hits = [loop.known(served) for loop in loops]
        order = [(-hit, loop.load(at)) for hit, loop in zip(hits, loops, strict=True)]
        return order.index(min(order))

    def run(self, loops: Sequence[Loop], arrivals: Iterable[tuple[float, Served]]) -> None:
        """Runs all requests to their end. arrivals: in order of time."""
        for number, (at, served) in enumerate(arrivals):
            for loop in loops:
                loop.run(at)
            chip = self.pick(loops, served, number, at)
            served.chip = chip
            loops[chip].push(served, at)
        for loop in loops:
            loop.run(math.inf)


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """The sums of several chips; peaks are of one chip, samples those of the first."""
    made = dataclasses.replace(outcomes[0], passes=dict(outcomes[0].passes))
    for each in outcomes[1:]:
        made.amount = tuple(a + b for a, b in zip(made.amount, each.amount, strict=True))  # type: ignore[assignment]
        for kind, steps in each.passes.items():
            made.passes[kind] = made.passes.get(kind, 0) + steps
        for name in _SUMS:
            setattr(made, name, getattr(made, name) + getattr(each, name))
        made.peak_batch = max(made.peak_batch, each.peak_batch)
        made.peak_pages = max(made.peak_pages, each.peak_pages)
    return made


_SUMS = (
    "words", "again", "prefilled", "decoded", "drafted", "accepted", "left", "batch_seconds",
    "page_seconds",
)  # fmt: skip
