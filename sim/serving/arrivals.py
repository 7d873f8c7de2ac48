"""Requests of no trace: seeded arrivals and lengths. The same seed gives the same requests."""

import dataclasses
import math
import random

from golden.config import Choice, Config, Range, bounded, declared, real
from sim.serving.trace import MOST_TOKENS, Request

ARRIVALS = ("poisson", "fixed", "burst")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load(Config):
    """Requests to make.

    arrivals : ``poisson`` and ``fixed`` have a rate; ``burst`` has all requests at time 0
    rate : requests per second
    prompt, output : tokens, on average
    spread : standard deviation of the logarithm of a length (log-normal); 0: all lengths are equal
    """

    arrivals: str = dataclasses.field(metadata=declared(Choice(ARRIVALS)))
    requests: int = dataclasses.field(metadata=declared(Range(1, 10_000_000)))
    prompt: int = dataclasses.field(metadata=declared(Range(1, MOST_TOKENS)))
    output: int = dataclasses.field(metadata=declared(Range(1, MOST_TOKENS)))
    rate: float = real(1.0, 1e-9, 1e9)
    spread: float = real(0.0, 0.0, 4.0)
    seed: int = bounded(0, 0, (1 << 63) - 1)


def _length(random_: random.Random, mean: int, spread: float) -> int:
    # The mean of a log-normal is above its median by exp(spread^2 / 2).
    middle = math.log(mean) - spread * spread / 2
    drawn = round(random_.lognormvariate(middle, spread)) if spread else mean
    return min(max(drawn, 1), MOST_TOKENS)


def requests_of(load: Load) -> list[Request]:
    """The requests in order of arrival, the first at time 0."""
    random_ = random.Random(load.seed)
    made, at = [], 0.0
    same: dict[int, int] = {}  # one object for all lengths that are equal: requests are many
    for number in range(1, load.requests + 1):
        prompt = _length(random_, load.prompt, load.spread)
        output = _length(random_, load.output, load.spread)
        prompt, output = same.setdefault(prompt, prompt), same.setdefault(output, output)
        made.append(Request(number, at, prompt, output))
        if load.arrivals == "poisson":
            at += random_.expovariate(load.rate)
        elif load.arrivals == "fixed":
            at = number / load.rate
    return made
