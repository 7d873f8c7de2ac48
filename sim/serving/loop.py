"""The event loop of one chip: which requests share a pass, and when pages are given and taken back.

``sim.serving.schedule`` states the rules.
"""

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sim.serving.batch import Batch, Live
from sim.serving.outcome import Outcome, Served
from sim.serving.policy import Policy
from sim.serving.prefix import Prefixes
from sim.serving.times import Amount, StepTimes
from sim.work import Shape


class _Waiting(NamedTuple):
    """made : words so far; ready: K and V of its prompt have come from another chip."""

    served: Served
    made: int
    ready: bool


class Loop:
    """A chip with its queue.

    strict : a pass of many steps ends at each arrival at any chip, so that a router sees its time
    hand_over : where another chip decodes: takes a request and the time at which its prompt is
        cached, and says when its pages are free
    watch : is called with the time, now and then
    """

    def __init__(
        self,
        policy: Policy,
        table: Sequence[int],
        total: int,
        times: StepTimes,
        window: int = 0,
        *,
        strict: bool = False,
        hand_over: Callable[[Served, float], float] | None = None,
        watch: Callable[[float], None] = lambda now: None,
    ):
        self.policy, self.times, self.total, self.table = policy, times, total, table
        self.static, self.mixes = policy.schedule == "static", policy.mixes
        self._is_v1 = policy.schedule == "v1"
        self.strict, self.hand_over, self.watch = strict, hand_over, watch
        self._turns = 0
        self.now, self.horizon = 0.0, math.inf
        self.waiting: deque[_Waiting] = deque()
        self.filling: deque[Live] = deque()
        self.filling_pages = 0
        self.leaving: list[tuple[float, int, Live]] = []
        self.leaving_pages = 0
        self.running = Batch(table, window - 1 if window else None, self.static)
        self.outcome = Outcome(pages=total)
        self.prefixes: Prefixes | None = None
        if policy.prefix_block:
            pages = table[policy.prefix_block] if policy.prefix_block < len(table) else 1
            self.prefixes = Prefixes(policy.prefix_block, pages)
        self.shared = 0  # pages of the prefixes in use, less what requests count of them
        self.drafts = policy.drafts
        self._random = random.Random(policy.seed)
        self.taken = self.ended = 0
        self._ends: deque[float] = deque()

    # Requests come

    @property
    def busy(self) -> bool:
        return bool(self.running or self.filling or self.waiting or self.leaving)

    @property
    def used(self) -> int:
        """Pages of all requests."""
        return self.filling_pages + self.running.pages + self.leaving_pages + self.shared

    def push(self, served: Served, at: float) -> None:
        """A request comes; ``run`` has come to this time."""
        if not self.busy:
            self.now = max(self.now, at)
        ready = served.moved is not None
        self.waiting.append(_Waiting(served, 1 if ready else 0, ready))
        self.taken += 1

    def load(self, at: float) -> int:
        """Requests that have come and have not ended at a time."""
        while self._ends and self._ends[0] <= at:
            self._ends.popleft()
        return self.taken - self.ended + len(self._ends)

    def known(self, served: Served) -> int:
        """Blocks of a prompt that are in the cache."""
        if self.prefixes is None:
            return 0
        request = served.request
        return self.prefixes.known(request.hashes, request.prompt - 1)

    def run(self, until: float) -> None:
        """Passes begin until a time, the next arrival at any chip."""
        self.horizon = until
        while self.now < until and self.busy:
            self.turn()
            self._turns += 1
            if not self._turns % 256:
                self.watch(self.now)

    def turn(self) -> None:
        """One pass or one advance, or a wait for pages."""
        while self.leaving and self.leaving[0][0] <= self.now:
            self._left()
        if self._is_v1:
            self._step()
            return
        if self.waiting:
            self._enter()
        if self.filling and self.mixes:
            self._mix()
        elif self.filling:
            self._fill()
        elif self.running:
            self._decode()
        else:
            self._wait()

    def _wait(self) -> None:
        """Nothing can run before pages leave, or a request comes."""
        if self.leaving:
            self.now = max(self.now, min(self.leaving[0][0], self.horizon))

    # Pages

    def _enter(self) -> None:
        live = self._live
        if live and self.static:
            return
        while self.waiting and live < self.policy.max_batch:
            served, made, ready = self.waiting[0]
            request = served.request
            tokens = request.prompt + made
            if self.static:
                tokens = request.prompt + request.output - 1
            elif ready:
                tokens = request.prompt
            spare = self.total // 100 if live else 0
            if not self._admit(self.table[tokens], self.total - spare, math.inf):
                return
            live += 1

    def _admit(self, pages: int, total: int, room: float) -> bool:
        """The first that waits gets pages, if all then have ``total`` at most.

        room : prompt tokens for which ``pages`` are, those of known blocks left out
        """
        served, made, ready = self.waiting[0]
        if self.prefixes is None or ready:
            if self.used + pages > total:
                return False
            live = Live(served, made, pages)
        else:
            prefixes, request = self.prefixes, served.request
            hits = prefixes.known(request.hashes, request.prompt + made - 1)
            hashes = request.hashes[:hits]
            cached = hits * prefixes.block
            if room < math.inf:
                pages = self.table[cached + min(int(room), request.prompt + made - cached)]
            whole = hits * prefixes.pages
            if self.used + pages - whole + prefixes.idle(hashes) > total:
                return False
            live = Live(served, made, pages)
            self.shared -= prefixes.used + whole
            prefixes.take(hashes)
            self.shared += prefixes.used
            live.blocks, live.shared, live.seen = list(hashes), whole, hits
            live.cached, live.left = cached, live.left - cached
            self._found(served, cached)
        self.waiting.popleft()
        if ready:
            live.cached, live.left = served.request.prompt, 0
            self.running.add(live)
        else:
            self.filling.append(live)
            self.filling_pages += pages
            if served.entered is None:
                served.entered = self.now
        if self.prefixes is not None:
            self.prefixes.trim(self.total - self.used)
        return True

    def _found(self, served: Served, tokens: int) -> None:
        if served.preempted:
            self.outcome.again -= tokens
        else:
            served.hit = tokens

    def _remember(self, live: Live) -> None:
        """Blocks of a prompt that are filled now are known."""
        prefixes, request = self.prefixes, live.served.request
        if prefixes is None:
            return
        most = min(len(request.hashes), min(live.cached, request.prompt) // prefixes.block)
        for hash_ in request.hashes[live.seen : most]:
            if prefixes.fill(hash_):
                live.blocks.append(hash_)
                live.shared += prefixes.pages  # the pages are the cache's, not the request's
        live.seen = max(live.seen, most)

    def _forget(self, live: Live) -> None:
        """A request gives its pages back; its blocks stay while there is room."""
        if self.prefixes is not None:
            self.shared -= self.prefixes.used - live.shared
            self.prefixes.release(live.blocks)
            self.shared += self.prefixes.used

    def _left(self) -> None:
        _, _, live = heapq.heappop(self.leaving)
        self.leaving_pages -= live.pages
        self._forget(live)

    def _demand(self, steps: int) -> int:
        """Pages of all requests after ``steps`` words more of each that decodes."""
        return (
            self.filling_pages + self.running.demand(steps) + self.leaving_pages + self.shared
        )

    def _preempt(self) -> None:
        """The youngest request gives its pages back."""
        if self.filling:
            live = self.filling.pop()
            self.filling_pages -= live.pages
        else:
            live = self.running.youngest()
        live.served.preempted += 1
        self.outcome.again += live.cached
        self._forget(live)
        self.waiting.appendleft(_Waiting(live.served, live.made, False))

    def _room(self, most: int) -> int:
        """The steps, 1..most, for which there are pages; requests leave until one step has."""
        while self._demand(1 + self.drafts) > self.total and (self.running or self.filling):
            self._preempt()
        if self.drafts or most == 1 or self._demand(most) <= self.total:
            return 1 if self.drafts else most
        low, high = 1, most - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._demand(middle) <= self.total:
                low = middle
            else:
                high = middle - 1
        return low

    # Passes

    def _spend(self, kind: str, steps: int, amount: Amount, used: int) -> None:
        """used: pages at the end of the passes."""
        batch = self._live
        at = self.now
        self.now += amount[0]
        self.outcome.add(kind, steps, amount, at, batch, len(self.waiting), self.used, used)
        if self.prefixes is not None:
            self.prefixes.trim(self.total - used)

    def _filled(self) -> None:
        """The prefill of the first request has ended, and has made a word."""
        live = self.filling.popleft()
        self.filling_pages -= live.pages
        live.made += 1
        if live.served.first is None:
            live.served.first = self.now
        if live.made >= live.served.request.output:
            self._end(live)
        elif self.hand_over is not None:
            free = self.hand_over(live.served, self.now)
            heapq.heappush(self.leaving, (free, live.served.request.number, live))
            self.leaving_pages += live.pages
            self._gone()
        else:
            self.running.add(live)

    def _end(self, live: Live) -> None:
        live.served.end = self.now
        self.outcome.words += live.made
        self._forget(live)
        self._gone()

    def _gone(self) -> None:
        self.ended += 1
        if self.strict:
            self._ends.append(self.now)

    def _fill(self) -> None:
        taken, tokens = 0, 0
        for live in self.filling:
            if taken and tokens + live.left > self.policy.tokens:
                break
            taken, tokens = taken + 1, tokens + live.left
        sizes = sorted((live.left, live.cached) for live in itertools.islice(self.filling, taken))
        parts = [(len(list(same)), *size) for size, same in itertools.groupby(sizes)]
        self._spend("prefill", 1, self.times.exact(parts, taken), self.used)
        self.outcome.prefilled += tokens
        for _ in range(taken):
            live = self.filling[0]
            live.cached, live.left = live.cached + live.left, 0
            self._remember(live)
            self._filled()

    def _mix(self) -> None:
        self._room(1)
        room = self.policy.prompt_tokens(len(self.running))
        if not self.filling or not room:
            self._decode()
            return
        parts: list[Shape] = []
        for live in self.filling:
            new = min(room, live.left)
            if not new:
                break
            parts.append((1, new, live.cached))
            room -= new
        self._mixed(parts)

    def _step(self) -> None:
        """A step of the schedule v1."""
        while self.waiting and self.waiting[0].ready and self._live < self.policy.max_batch:
            pages = self.table[self.waiting[0].served.request.prompt + 1 + self.drafts]
            if not self._admit(pages, self.total, math.inf):
                break
        before = len(self.waiting)
        self._room(1)
        room = self.policy.prompt_tokens(len(self.running))
        parts: list[Shape] = []
        for live in tuple(self.filling):
            new = min(room, live.left)
            more = self.table[live.cached + new] - live.pages
            if self._demand(1 + self.drafts) + more > self.total:
                self._preempt()
                break
            live.pages += more
            self.filling_pages += more
            if new:
                parts.append((1, new, live.cached))
                room -= new
        calm = len(self.waiting) == before
        if calm:
            self._take_in(room, parts)
        if parts:
            self._mixed(parts)
        elif self.running:
            # A request that has lost its pages may be back in the next step.
            self._decode(math.inf if calm else 1)
        else:
            self._wait()

    @property
    def _live(self) -> int:
        return len(self.filling) + len(self.running)

    def _take_in(self, room: int, parts: list[Shape]) -> None:
        """Requests enter while the step has tokens for them, and pages for these tokens."""
        grow = self._demand(1 + self.drafts) - self.used
        while self.waiting and room > 0 and self._live < self.policy.max_batch:
            served, made, ready = self.waiting[0]
            pages = self.table[min(room, served.request.prompt + made)]
            if ready or not self._admit(pages, self.total - grow, room):
                return
            live = self.filling[-1]
            new = min(room, live.left)
            parts.append((1, new, live.cached))
            room -= new

    def _mixed(self, parts: list[Shape]) -> None:
        """A pass of the prompt tokens ``parts`` of the first requests, and a step of decoding."""
        batch, filling = len(self.running), self.filling
        words = batch * (1 + self.drafts)
        for live, (_, new, _) in zip(filling, parts, strict=False):
            if live.left == new:
                words += 1
        mean = self.running.read / batch if batch else 0.0
        amount = self.times.mixed(batch, mean, parts, words)
        self._spend("mixed", 1, amount, self._demand(1 + self.drafts))
        self._advance(1)
        outcome, has_prefixes = self.outcome, self.prefixes is not None
        for _, new, _ in parts:
            live = filling[0]
            outcome.prefilled += new
            live.cached += new
            live.left -= new
            if has_prefixes:
                self._remember(live)
            if not live.left:
                self._filled()

    def _decode(self, most: float = math.inf) -> None:
        """Steps without prompts, ``most`` at most."""
        running = self.running
        steps = self._room(int(min(running.left, most)))
        batch = len(running)
        # The mean rises evenly until the next sequence fills its window.
        rising, filled = running.rising
        steps = min(steps, filled)
        wait = math.inf
        may_enter = not self.static and not self.waiting and self._live < self.policy.max_batch
        if may_enter or self.strict:
            wait = self.horizon - self.now
        if self.leaving:
            wait = min(wait, self.leaving[0][0] - self.now)
        mean = running.read / batch
        steps, amount = self.times.advance(batch, mean, rising / batch, steps, wait)
        self._spend("decode", steps, amount, self._demand(steps + self.drafts))
        self._advance(steps)

    def _advance(self, steps: int) -> None:
        """``steps`` words more of each request that runs; those that end leave."""
        running = self.running
        self.outcome.decoded += steps * len(running)
        accepted = []
        if self.drafts and running:
            accepted = [(live, self._accepted()) for live in running]
            self.outcome.drafted += self.drafts * len(running)
        ended = running.advance(steps)
        for live, words in accepted:
            left = live.ends - running.step
            if left:
                words = min(words, left)
                self.outcome.accepted += words
                running.more(live, words)
        if accepted:
            ended += running.ended()
        for live in ended:
            self._end(live)

    def _accepted(self) -> int:
        """Drafts of a sequence before the first that is refused."""
        draw, share = self._random.random, self.policy.acceptance
        for n in range(self.drafts):
            if draw() >= share:
                return n
        return self.drafts
