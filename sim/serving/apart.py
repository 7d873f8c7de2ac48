"""Chips that prefill, and others that decode. Pure Python.

A request is prefilled on a chip of the first kind, which makes its first word. K and V of its
prompt then move over the link of that chip, one request after the other. The pages there are free
when the last byte has left. ``latency`` later a chip of the second kind has the request and decodes
it. A chip that decodes and lacks pages gives up its youngest request, and prefills it anew itself.
The first word is the user's at once. Nothing waits for room on the chips that decode.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sim.serving.fleet import Fleet, merged
from sim.serving.loop import Loop
from sim.serving.outcome import Outcome, Served
from sim.serving.pages import Pages
from sim.serving.parallel import Link
from sim.serving.policy import Policy
from sim.serving.prefix import check_blocks
from sim.serving.times import StepTimes


class Site(NamedTuple):
    """Equal chips. ``policy``, ``pages`` and ``times`` are those of each."""

    policy: Policy
    pages: Pages
    times: StepTimes
    fleet: Fleet
    window: int = 0


def _loops(
    site: Site, longest: int, watch: Callable[[float], None],
    hand_over: Sequence[Callable[[Served, float], float] | None],
) -> list[Loop]:  # fmt: skip
    table = site.pages.table(longest)
    if site.policy.prefix_block:
        check_blocks(table, site.policy.prefix_block)
    return [
        Loop(
            site.policy, table, site.pages.total, site.times, site.window,
            strict=site.fleet.strict, hand_over=each, watch=watch,
        )
        for each in hand_over
    ]  # fmt: skip


def _outcome(loops: Sequence[Loop]) -> Outcome:
    made = merged([loop.outcome for loop in loops])
    made.seconds = max(loop.now for loop in loops)
    made.left = sum(loop.used for loop in loops)
    return made


def run_site(
    site: Site, kept: Sequence[Served], longest: int, watch: Callable[[int, float], None]
) -> Outcome:
    """The outcome of chips that do both, without the requests."""
    loops: list[Loop] = []

    def tell(now: float) -> None:
        watch(sum(loop.ended for loop in loops), now)

    loops += _loops(site, longest, tell, [None] * site.fleet.replicas)
    site.fleet.run(loops, ((each.request.arrival, each) for each in kept))
    return _outcome(loops)


def run_apart(
    first: Site,
    second: Site,
    link: Link,
    kept: Sequence[Served],
    longest: int,
    amount: Callable[[int], float],
    watch: Callable[[int, float], None],
) -> tuple[Outcome, Outcome]:
    """The outcomes of the chips that prefill and of those that decode, without the requests.

    amount : bytes of K and V of a prompt of so many tokens
    """
    handed: list[Served] = []

    def sender() -> Callable[[Served, float], float]:
        free = 0.0

        def send(served: Served, now: float) -> float:
            nonlocal free
            free = max(free, now) + amount(served.request.prompt) / link.bandwidth
            served.moved = free + link.latency
            handed.append(served)
            return free

        return send

    senders = [sender() for _ in range(first.fleet.replicas)]
    before = _loops(first, longest, lambda now: watch(0, now), senders)
    first.fleet.run(before, ((each.request.arrival, each) for each in kept))
    after: list[Loop] = []

    def tell(now: float) -> None:
        watch(sum(loop.ended for loop in after), now)

    after += _loops(second, longest, tell, [None] * second.fleet.replicas)
    handed.sort(key=lambda each: (each.moved or 0.0, each.request.number))
    second.fleet.run(after, ((each.moved or 0.0, each) for each in handed))
    return _outcome(before), _outcome(after)
