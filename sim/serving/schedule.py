"""The rules of the schedules, and runs of all requests.

They know no chip. ``StepTimes`` says how long a pass lasts, ``Pages`` how much memory there is.

| schedule | a pass |
|---|---|
| continuous | whole prompts of ``tokens`` in all, or of one request; without any, a decode step |
| chunked | a step of decoding, and pieces of prompts that fill the pass up to ``tokens`` |
| v1 | the same, but pieces take pages as they are computed, and no page stays free |
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

The schedule v1 follows the scheduler of vLLM's V1 engine. A step has three parts:

| part | what it does |
|---|---|
| running | each request that decodes has a token; the one whose prompt is begun has a piece |
| want of a page | the last one that entered gives its pages back, be it the one that wants it |
| waiting | requests enter while tokens, places and pages for their first piece are there |

No request enters in a step in which one gave its pages back.

A prefill makes the first word. Each step of decoding caches a word and makes the next. The last
word is not cached. With ``drafts``, a step takes these tokens more of each sequence, and pages for
them. It makes a word more for each draft before the first that is refused.

An advance is many steps of decoding at once. It ends at the next arrival that may enter, at the
next end of a request, or before a step that lacks a page. Times are those of the single steps. The
mean of occupied pages within an advance is that of its two ends.
"""

import dataclasses
from collections.abc import Callable, Sequence

from golden.config import ConfigError
from sim.serving.apart import Site, run_apart, run_site
from sim.serving.fleet import Fleet
from sim.serving.outcome import Outcome, Served
from sim.serving.pages import Pages
from sim.serving.parallel import Link
from sim.serving.policy import Policy
from sim.serving.times import StepTimes
from sim.serving.trace import Request


def _refusal(
    request: Request, pages: Pages, policy: Policy, check: Callable[[int], None]
) -> str:
    """Why a request can never run; empty: it can."""
    tokens = request.prompt + request.output
    if policy.positions and tokens > policy.positions:
        return "longer than the model's positions"
    # A step takes pages for its drafts too. A request of one word has no step.
    drafts = policy.drafts if request.output > 1 else 0
    if pages.of(tokens - 1 + drafts) > pages.total:
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
    fleet: Fleet | None = None,
    window: int = 0,
    check: Callable[[int], None] = lambda tokens: None,
    watch: Callable[[int, float], None] = lambda ended, now: None,
) -> Outcome:
    """Run all requests to their end; each is finished or refused.

    make_times : the StepTimes for contexts up to a number of tokens
    fleet : the chips, one if None; ``pages`` are those of each
    window : tokens that a token of the model attends, itself included; 0: all
    check : ConfigError if the chip cannot run a sequence of so many tokens
    watch : is called with the requests that have ended and the time
    """
    served = [Served(request) for request in requests]
    for each in served:
        each.refused = _refusal(each.request, pages, policy, check)
    kept = [each for each in served if not each.refused]
    longest = _longest(kept, policy)
    site = Site(policy, pages, make_times(longest), fleet or Fleet(), window)
    outcome = run_site(site, kept, longest, watch)
    outcome.served = served
    return outcome


def serve_apart(
    requests: Sequence[Request],
    first: tuple[Pages, Callable[[int], StepTimes], Fleet],
    second: tuple[Pages, Callable[[int], StepTimes], Fleet],
    policy: Policy,
    link: Link,
    amount: Callable[[int], float],
    *,
    window: int = 0,
    check: Callable[[int], None] = lambda tokens: None,
    watch: Callable[[int, float], None] = lambda ended, now: None,
) -> tuple[Outcome, Outcome]:
    """Run all requests to their end on chips that prefill, and on others that decode.

    first, second : the chips, as of ``serve``; amount : bytes of K and V of so many tokens
    The second Outcome has the requests.
    """
    served = [Served(request) for request in requests]
    for each in served:
        request = each.request
        each.refused = _refusal(request, second[0], policy, check)
        if not each.refused and first[0].of(request.prompt) > first[0].total:
            each.refused = "larger than all pages"
    kept = [each for each in served if not each.refused]
    longest = _longest(kept, policy)
    # Blocks stay where prompts are computed.
    decoding = dataclasses.replace(policy, prefix_block=0)
    sites = [
        Site(each, pages, make_times(longest), fleet, window)
        for each, (pages, make_times, fleet) in ((policy, first), (decoding, second))
    ]
    before, after = run_apart(sites[0], sites[1], link, kept, longest, amount, watch)
    after.served, after.seconds = served, max(before.seconds, after.seconds)
    after.left += before.left
    after.words += sum(each.request.output for each in kept if each.moved is None)
    return before, after


def _longest(kept: Sequence[Served], policy: Policy) -> int:
    """Tokens of the longest request, those of its drafts included."""
    lengths = (each.request.prompt + each.request.output for each in kept)
    return max(lengths, default=1) + policy.drafts
