"""The event loop: which requests share a pass, and when pages are given and taken back.

It knows no chip. ``StepTimes`` says how long a pass lasts, ``Pages`` how much memory there is.

| schedule | a pass |
|---|---|
| continuous | whole prompts of ``tokens`` in all, or of one request; without any, a decode step |
| chunked | a step of decoding, and pieces of prompts that fill the pass up to ``tokens`` |
| token-level | a step of decoding, and pieces of prompts for the cores that it leaves idle |
| static | as continuous, but a wave enters when the whole wave before it has ended |

Token-level is section 5.3 of the Oaken paper. In prefill the tokens of a request are spread over
the cores. In decoding a core has one token of one request. ``tokens`` are the cores. A pass with
more tokens than cores takes further rounds. Prompts get the cores that the last round leaves idle,
or a round of their own if it leaves none.

Requests enter in the order of arrival. A request enters when the batch has room and pages for its
whole prompt are free. One page in a hundred stays free unless the chip has no request. In a static
wave a request takes the pages of its whole output at once. Otherwise a sequence takes a page when
its next token needs one. If none is free, the youngest request gives all its pages back and returns
to the head of the queue. Later its prompt and its words so far are prefilled again.

A prefill makes the first word. Each step of decoding caches a word and makes the next. The last
word is not cached.

An advance is many steps of decoding at once. It ends at the next arrival that may enter, at the
next end of a request, or before a step that lacks a page. Times are those of the single steps. The
mean of occupied pages within an advance is that of its two ends.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence

from golden.config import ConfigError
from sim.serving.batch import Batch, Live
from sim.serving.outcome import Outcome, Served
from sim.serving.pages import Pages
from sim.serving.policy import Policy
from sim.serving.times import Amount, StepTimes
from sim.serving.trace import Request


class _Loop:
    def __init__(self, policy: Policy, pages: Pages, times: StepTimes, longest: int, window: int):
        self.policy, self.times, self.total = policy, times, pages.total
        self.static, self.mixes = policy.schedule == "static", policy.mixes
        self.table = pages.table(longest)
        self.now = 0.0
        self.arriving: deque[Served] = deque()
        self.waiting: deque[tuple[Served, int]] = deque()  # and its words so far
        self.filling: deque[Live] = deque()
        self.filling_pages = 0
        self.running = Batch(self.table, window - 1 if window else None, self.static)
        self.outcome = Outcome(pages=pages.total)

    @property
    def used(self) -> int:
        """Pages of all requests."""
        return self.filling_pages + self.running.pages

    def turn(self) -> None:
        """One pass or one advance, or a wait for the next arrival."""
        while self.arriving and self.arriving[0].request.arrival <= self.now:
            self.waiting.append((self.arriving.popleft(), 0))
        if self.waiting:
            self._enter()
        if self.filling and self.mixes:
            self._mix()
        elif self.filling:
            self._fill()
        elif self.running:
            self._decode()
        else:
            self.now = max(self.now, self.arriving[0].request.arrival)

    def _enter(self) -> None:
        live = len(self.filling) + len(self.running)
        if live and self.static:
            return
        while self.waiting and live < self.policy.max_batch:
            served, made = self.waiting[0]
            request = served.request
            tokens = request.prompt + made
            if self.static:
                tokens = request.prompt + request.output - 1
            pages = self.table[tokens]
            if self.used + pages > self.total - (self.total // 100 if live else 0):
                return
            self.waiting.popleft()
            self.filling.append(Live(served, made, pages))
            self.filling_pages += pages
            live += 1
            if served.entered is None:
                served.entered = self.now

    def _spend(self, kind: str, steps: int, amount: Amount, used: int) -> None:
        """used: pages at the end of the passes."""
        batch = len(self.filling) + len(self.running)
        at = self.now
        self.now += amount[0]
        self.outcome.add(kind, steps, amount, at, batch, len(self.waiting), self.used, used)

    def _filled(self) -> None:
        """The prefill of the first request has ended, and has made a word."""
        live = self.filling.popleft()
        self.filling_pages -= live.pages
        live.made += 1
        if live.served.first is None:
            live.served.first = self.now
        if live.made < live.served.request.output:
            self.running.add(live)
        else:
            self._end(live)

    def _end(self, live: Live) -> None:
        live.served.end = self.now
        self.outcome.words += live.made

    def _fill(self) -> None:
        taken, tokens = 0, 0
        for live in self.filling:
            if taken and tokens + live.left > self.policy.tokens:
                break
            taken, tokens = taken + 1, tokens + live.left
        sizes = sorted(live.left for live in itertools.islice(self.filling, taken))
        parts = [(len(list(same)), size, 0) for size, same in itertools.groupby(sizes)]
        self._spend("prefill", 1, self.times.exact(parts, taken), self.used)
        for _ in range(taken):
            live = self.filling[0]
            live.cached, live.left = live.left, 0
            self._filled()

    def _mix(self) -> None:
        self._room(1)
        room = self.policy.prompt_tokens(len(self.running))
        if not self.filling or not room:
            self._decode()
            return
        parts, words = [], len(self.running)
        for live in self.filling:
            new = min(room, live.left)
            if not new:
                break
            parts.append((1, new, live.cached))
            room -= new
            words += new == live.left
        batch = len(self.running)
        mean = self.running.read / batch if batch else 0.0
        amount = self.times.mixed(batch, mean, parts, words)
        self._spend("mixed", 1, amount, self._demand(1))
        self._advance(1)
        for _, new, _ in parts:
            live = self.filling[0]
            live.cached, live.left = live.cached + new, live.left - new
            if not live.left:
                self._filled()

    def _decode(self) -> None:
        running = self.running
        most = self._room(running.left)
        batch = len(running)
        # The mean rises evenly until the next sequence fills its window.
        rising, filled = running.rising
        most = min(most, filled)
        wait = math.inf
        may_enter = not self.static and not self.waiting
        if self.arriving and may_enter and batch + len(self.filling) < self.policy.max_batch:
            wait = self.arriving[0].request.arrival - self.now
        mean = running.read / batch
        steps, amount = self.times.advance(batch, mean, rising / batch, most, wait)
        self._spend("decode", steps, amount, self._demand(steps))
        self._advance(steps)

    def _advance(self, steps: int) -> None:
        """``steps`` words more of each request that runs; those that end leave."""
        for live in self.running.advance(steps):
            self._end(live)

    def _demand(self, steps: int) -> int:
        """Pages of all requests after ``steps`` steps of decoding."""
        return self.filling_pages + self.running.demand(steps)

    def _preempt(self) -> None:
        """The youngest request gives its pages back."""
        if self.filling:
            live = self.filling.pop()
            self.filling_pages -= live.pages
        else:
            live = self.running.youngest()
        live.served.preempted += 1
        self.outcome.again += live.cached
        self.waiting.appendleft((live.served, live.made))

    def _room(self, most: int) -> int:
        """The steps, 1..most, for which there are pages; requests leave until one step has."""
        while self._demand(1) > self.total:
            self._preempt()
        if most == 1 or self._demand(most) <= self.total:
            return most
        low, high = 1, most - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._demand(middle) <= self.total:
                low = middle
            else:
                high = middle - 1
        return low


def _refusal(request: Request, pages: Pages, longest: int, check: Callable[[int], None]) -> str:
    """Why a request can never run; empty: it can. longest: tokens of the model; 0: no limit."""
    tokens = request.prompt + request.output
    if longest and tokens > longest:
        return "longer than the model's positions"
    if pages.of(tokens - 1) > pages.total:
        return "larger than all pages"
    try:
        check(tokens)
    except ConfigError:
        return "refused by the chip"
    return ""


def serve(
    requests: Sequence[Request],
    pages: Pages,
    make_times: Callable[[int], StepTimes],
    policy: Policy,
    *,
    window: int = 0,
    check: Callable[[int], None] = lambda tokens: None,
    watch: Callable[[int, float], None] = lambda ended, now: None,
) -> Outcome:
    """Run all requests to their end; each is finished or refused.

    make_times : the StepTimes for contexts up to a number of tokens
    window : tokens that a token of the model attends, itself included; 0: all
    check : ConfigError if the chip cannot run a sequence of so many tokens
    watch : is called with the requests that have ended and the time
    """
    served = [Served(request) for request in requests]
    for each in served:
        each.refused = _refusal(each.request, pages, policy.positions, check)
    kept = [each for each in served if not each.refused]
    longest = max((each.request.prompt + each.request.output for each in kept), default=1)
    loop = _Loop(policy, pages, make_times(longest), longest, window)
    loop.arriving.extend(kept)
    turns = 0
    while loop.arriving or loop.waiting or loop.filling or loop.running:
        loop.turn()
        turns += 1
        if not turns % 256:
            live = len(loop.filling) + len(loop.running)
            watch(len(kept) - len(loop.arriving) - len(loop.waiting) - live, loop.now)
    loop.outcome.served, loop.outcome.seconds = served, loop.now
    loop.outcome.left = loop.used
    return loop.outcome
