"""A request of a test, and what came of it."""

import dataclasses
from collections.abc import Sequence

from golden.kllm import engines
from senbazuru.host.engine import End, Engine, Reason, Token
from senbazuru.host.strict import Sizes, alone


@dataclasses.dataclass
class Wanted:
    """sampling: temperature, top_k, seed. The last three fields are what came of it.

    prefix: what the prompt follows, once it is submitted
    """

    prompt: list[int]
    most: int
    sampling: tuple[float, int, int] = (0.0, 1, 0)
    stops: tuple[int, ...] = ()
    user: int = 0
    prefix: "Prefix | None" = None
    number: int = 0
    tokens: list[int] = dataclasses.field(default_factory=list)
    end: End | None = None

    def submit(self, engine: Engine) -> "Wanted":
        temperature, top_k, seed = self.sampling
        self.number = engine.submit(
            self.prompt, self.most, temperature=temperature, top_k=top_k, seed=seed,
            stops=self.stops, user=self.user, prefix=self.prefix.number if self.prefix else 0,
        )  # fmt: skip
        return self

    @property
    def whole(self) -> list[int]:
        """The prompt with its prefix."""
        return [*(self.prefix.prompt if self.prefix else ()), *self.prompt]

    def alone(self, sizes: Sizes) -> list[int]:
        """The tokens that a ``StrictChip`` gives the request alone."""
        temperature, top_k, seed = self.sampling
        drawn = temperature > 0 and top_k > 1
        sampling = engines.Sampling.at(temperature, top_k, seed) if drawn else None
        return alone(sizes, self.whole, self.most, sampling, self.stops)

    def check(self, sizes: Sizes) -> int:
        """Compares the tokens with those of the request alone; their number."""
        wanted = self.alone(sizes)
        assert self.end is not None
        if self.end.reason in (Reason.CANCELLED, Reason.FAULT):
            wanted = wanted[: len(self.tokens)]
        else:
            is_stop = wanted[-1] in self.stops
            assert self.end.reason == (Reason.STOP if is_stop else Reason.LENGTH)
        assert self.tokens == wanted
        return len(wanted)


@dataclasses.dataclass
class Prefix:
    """Tokens that several requests begin with."""

    prompt: list[int]
    user: int = 0
    number: int = 0
    tokens: list[int] = dataclasses.field(default_factory=list)
    end: End | None = None

    def submit(self, engine: Engine) -> "Prefix":
        self.number = engine.prefix(self.prompt, user=self.user)
        return self


def take(engine: Engine, requests: Sequence[Wanted | Prefix]) -> None:
    """Gives the events to their requests; nothing follows an END."""
    by_number = {each.number: each for each in requests}
    for event in engine.poll():
        request = by_number[event.request]
        assert request.end is None
        if isinstance(event, Token):
            request.tokens.append(event.token)
        else:
            request.end = event
