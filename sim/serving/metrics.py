"""The figures that a chip's users see: rates, latencies, goodput, energy. Pure Python.

A percentile lies between two neighbours in order of size, in proportion. Rates are per second from
the first arrival to the last word. Energy is of passes only: a chip that waits is not counted.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sim.serving.outcome import Outcome, Served
from sim.serving.pages import Pages


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a good request, in seconds; None: no limit. token: per word after the first."""

    first: float | None = None
    token: float | None = None

    def meets(self, served: Served) -> bool:
        if served.end is None or served.to_first is None:
            return False
        token = served.per_token
        return (self.first is None or served.to_first <= self.first) and (
            self.token is None or token is None or token <= self.token
        )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Interpolates in values in ascending order; share: 0..1."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Mean, p50, p90, p99 and the largest of those that are not None; None: there are none."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    made = {"mean": math.fsum(ordered) / len(ordered)}
    made |= {f"p{share}": percentile(ordered, share / 100) for share in (50, 90, 99)}
    return made | {"max": ordered[-1]}


def _rate(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds else None


def summary(
    outcome: Outcome,
    pages: Pages,
    limits: Limits,
    has_energy: bool,
    replicas: int = 1,
    before: Outcome | None = None,
) -> dict[str, Any]:
    """All figures of a run as JSON values. Seconds, bytes, joules and tokens.

    replicas : whose sums the outcome has
    before : of the chips that prefill, where others decode: their joules, bytes and passes count
    """
    ended = [each for each in outcome.served if each.end is not None]
    refused = [each for each in outcome.served if each.refused]
    good = sum(limits.meets(each) for each in outcome.served)
    seconds, words = outcome.seconds, outcome.words
    every = [outcome] if before is None else [before, outcome]
    passes = Counter[str]()
    for each_site in every:
        passes.update(each_site.passes)
    joules = None
    if has_energy and words:
        joules = {
            name: sum(each.amount[at] for each in every) / words for name, at in _JOULES.items()
        }
    return {
        "requests": len(outcome.served),
        "finished": len(ended),
        "refused": dict(Counter(each.refused for each in refused)),
        "refused_requests": [each.request.number for each in refused],
        "prompt_tokens": sum(each.request.prompt for each in ended),
        "output_tokens": words,
        "seconds": seconds,
        "busy_share": _rate(outcome.busy / replicas, seconds),
        "tokens_per_second": _rate(words, seconds),
        "requests_per_second": _rate(len(ended), seconds),
        "to_first": spread(each.to_first for each in ended),
        "per_token": spread(each.per_token for each in ended),
        "latency": spread(each.latency for each in ended),
        "goodput": {
            "limit_to_first": limits.first,
            "limit_per_token": limits.token,
            "share": good / len(outcome.served),
            "requests_per_second": _rate(good, seconds),
        },
        "joules_per_token": joules,
        "memory_bytes": sum(each.amount[1] for each in every),
        "batch": {
            "mean_busy": _rate(outcome.batch_seconds, outcome.busy),
            "peak": outcome.peak_batch,
        },
        "kv": {
            "capacity_bytes": pages.capacity,
            "page_bytes": pages.size,
            "page_tokens": pages.tokens,
            "pages": pages.total,
            "mean_busy_share": _rate(outcome.page_seconds, outcome.busy * pages.total),
            "peak_share": outcome.peak_pages / pages.total,
        },
        "preemptions": sum(each.preempted for each in outcome.served),
        "recomputed_tokens": sum(each.again for each in every),
        "prefilled_tokens": sum(each.prefilled for each in every),
        "prefix": {
            "hit_requests": sum(each.hit > 0 for each in ended),
            "hit_tokens": sum(each.hit for each in ended),
        },
        "words_per_step": _rate(outcome.decoded + outcome.accepted, outcome.decoded),
        "passes": dict(sorted(passes.items())),
    }


_JOULES = {"low": 2, "value": 3, "high": 4}
