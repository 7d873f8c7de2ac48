"""``sim.serving``: its loop equals one that runs a pass at a time, and loses nothing.

Seen to fail with each of:

- a request that ends and keeps one of its pages;
- an advance one step beyond the next end of a request;
- an advance that does not end at an arrival that may enter;
- an advance beyond the token at which a sequence fills its window;
- the oldest request preempted in place of the youngest;
- a preempted request that is lost, that forgets its words, or that goes to the tail of the queue;
- v1: a request that enters in a step in which one lost its pages;
- v1: a piece that takes the pages of its whole prompt;
- v1: a begun prompt that keeps its pages when its next piece finds none;
- v1: pages of a new prompt that leave none for the steps of others;
- TOLERANCE 0.1.
"""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.config import ConfigError
from sim.serving.arrivals import Load, requests_of
from sim.serving.metrics import Limits, percentile, spread, summary
from sim.serving.pages import Page, Pages, page_of
from sim.serving.policy import SCHEDULES, Policy
from sim.serving.schedule import serve
from sim.serving.times import StepTimes
from sim.serving.trace import Request
from sim.work import Pass
from tests.sim.serving_cases import MODEL, WINDOWED, FakeEngine, Reference


def run(requests, policy, engine=None, model=MODEL, page=4):
    engine = engine or FakeEngine()
    pages = Pages(engine, model, Page(size=page))
    return serve(
        requests, pages, lambda longest: StepTimes(engine, model, longest), policy,
        window=model.window,
    )  # fmt: skip


def check_conserved(requests, outcome):
    """Each request ends once, every word is made, every page comes back."""
    assert [each.request for each in outcome.served] == list(requests)
    for each in outcome.served:
        assert (each.end is None) == bool(each.refused)
        if each.end is not None:
            assert each.request.arrival <= each.entered < each.first <= each.end
    ended = [each.request.output for each in outcome.served if each.end is not None]
    assert outcome.words == sum(ended)
    cached = sum(
        each.request.prompt + each.request.output - 1 - each.hit
        for each in outcome.served
        if each.end is not None
    )
    assert outcome.prefilled + outcome.decoded + outcome.accepted == cached + outcome.again
    assert outcome.left == 0
    assert outcome.peak_pages <= outcome.pages
    assert all(0 <= each.pages <= outcome.pages for each in outcome.samples)


# Odd times: an arrival that falls on the end of a pass may go either way in floats.
REQUESTS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 25), st.integers(1, 20)), min_size=1, max_size=14
).map(
    lambda rows: [
        Request(number + 1, at * 0.0023171, prompt, output)
        for number, (at, prompt, output) in enumerate(sorted(rows))
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    requests=REQUESTS,
    schedule=st.sampled_from(sorted(SCHEDULES)),
    max_batch=st.integers(1, 8),
    tokens=st.integers(1, 40),
    page=st.integers(1, 7),
    memory=st.integers(20, 120),
    model=st.sampled_from([MODEL, WINDOWED]),
)
def test_like_one_pass_at_a_time(requests, schedule, max_batch, tokens, page, memory, model):
    if schedule == "v1":
        tokens += max_batch - 1
    policy = Policy(schedule=schedule, max_batch=max_batch, tokens=tokens)
    check_like_reference(requests, policy, memory, page, model)


def check_like_reference(requests, policy, memory, page, model=MODEL):
    engine = FakeEngine(memory)
    outcome = run(requests, policy, engine, model, page)
    check_conserved(requests, outcome)
    reference = Reference(engine, policy, page, memory // page, model.window)
    expected = reference.run(requests)
    assert outcome.seconds == pytest.approx(reference.now, rel=1e-9)
    assert outcome.peak_pages >= reference.most_used
    for found, wanted in zip(outcome.served, expected, strict=True):
        assert bool(found.refused) == ("end" not in wanted)
        if not found.refused:
            assert found.first == pytest.approx(wanted["first"], rel=1e-9)
            assert found.end == pytest.approx(wanted["end"], rel=1e-9)
        assert found.preempted == wanted["preempted"]


@pytest.mark.parametrize("tokens", [2, 4, 8])
def test_v1_lets_none_in_where_one_lost_its_pages(tokens):
    """The pages that a request gave back would do for its first piece in the same step."""
    requests = [Request(1, 0.0, 4, 13), Request(2, 0.0, 4, 13)]
    check_like_reference(requests, Policy(schedule="v1", max_batch=2, tokens=tokens), 20, 4)


def load(count=60, **fields):
    made = {"arrivals": "poisson", "rate": 3.0, "prompt": 30, "output": 40, "spread": 0.7}
    return requests_of(Load(requests=count, **(made | fields)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_slower_chip_is_not_faster(schedule):
    policy = Policy(schedule=schedule, max_batch=16, tokens=64)
    ends = []
    for slow in (0.5, 1.0, 1.3, 4.0):
        outcome = run(load(), policy, FakeEngine(slow=slow))
        check_conserved(load(), outcome)
        ends.append(outcome.seconds)
    assert ends == sorted(ends)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_same_twice(schedule):
    policy = Policy(schedule=schedule, max_batch=8, tokens=64)
    assert run(load(), policy, FakeEngine(300)) == run(load(), policy, FakeEngine(300))


def test_seeds():
    assert load(seed=3) == load(seed=3)
    assert load(seed=3) != load(seed=4)
    fixed = load(4, arrivals="fixed", rate=2.0, spread=0.0)
    assert [each.arrival for each in fixed] == [0.0, 0.5, 1.0, 1.5]
    assert {(each.prompt, each.output) for each in fixed} == {(30, 40)}
    assert {each.arrival for each in load(4, arrivals="burst")} == {0.0}
    many = load(20_000, rate=5.0)
    assert many[-1].arrival == pytest.approx(4000, rel=0.05)
    assert sum(each.prompt for each in many) == pytest.approx(30 * 20_000, rel=0.05)


def test_preemption():
    """Two requests whose outputs do not fit together: the younger one waits, and is redone."""
    requests = [Request(1, 0.0, 4, 13), Request(2, 0.0, 4, 13)]
    outcome = run(requests, Policy(), FakeEngine(24))
    check_conserved(requests, outcome)
    first, second = outcome.served
    assert (first.preempted, second.preempted) == (0, 1)
    assert outcome.again == 12  # three of six pages each
    assert first.end < second.end
    # A wave that would lack pages is not begun.
    outcome = run(requests, Policy(schedule="static"), FakeEngine(24))
    check_conserved(requests, outcome)
    assert sum(each.preempted for each in outcome.served) == 0
    assert outcome.served[1].entered == outcome.served[0].end


def test_refused():
    requests = [Request(1, 0.0, 4, 4), Request(2, 0.0, 90, 12), Request(3, 1.0, 30, 3)]

    def check(tokens):
        if tokens > 32:
            raise ConfigError("no")

    engine = FakeEngine(100)
    outcome = serve(
        requests, Pages(engine, MODEL, Page(size=4)),
        lambda longest: StepTimes(engine, MODEL, longest), Policy(positions=0), check=check,
    )  # fmt: skip
    check_conserved(requests, outcome)
    whys = [each.refused for each in outcome.served]
    assert whys == ["", "larger than all pages", "refused by the chip"]
    outcome = run(requests, Policy(positions=32), engine)
    assert [each.refused for each in outcome.served][2] == "longer than the model's positions"
    found = summary(outcome, Pages(engine, MODEL, Page(size=4)), Limits(), True)
    assert found["finished"] + sum(found["refused"].values()) == found["requests"] == 3
    assert found["refused_requests"] == [2, 3]
    only = run(requests[1:2], Policy(), engine)
    figures = summary(only, Pages(engine, MODEL, Page(size=4)), Limits(), True)
    assert (figures["finished"], figures["tokens_per_second"]) == (0, None)


def test_a_wave_waits_for_the_wave_before():
    requests = [Request(1, 0.0, 5, 30), Request(2, 0.0, 5, 9), Request(3, 0.1, 5, 3)]
    waves = run(requests, Policy(schedule="static", max_batch=2)).served
    assert waves[2].entered == waves[0].end
    free = run(requests, Policy(max_batch=2)).served
    assert free[2].entered == free[1].end < free[0].end


def test_static_is_not_faster_than_continuous():
    requests = load(arrivals="burst")
    ends = {
        schedule: run(requests, Policy(schedule=schedule, max_batch=8)).seconds
        for schedule in ("static", "continuous")
    }
    assert ends["continuous"] < ends["static"]


@pytest.mark.parametrize("bend", [0, 17, 100, 333])
def test_interpolation(bend):
    """Below 1 % of ``Engine.cost`` also where the cost has a kink."""
    engine = FakeEngine(bend=bend)
    times = StepTimes(engine, MODEL, 1000)
    for batch in (1, 7, 40):
        for context in range(0, 1001, 7):
            cost = engine.cost(MODEL, Pass.decode(batch, context))
            found = times.step(batch, context)
            wanted = (cost.seconds, cost.bytes, *dataclasses.astuple(cost.joules))
            assert found == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("bend", [0, 100])
def test_an_advance_is_the_sum_of_its_steps(bend):
    times = StepTimes(FakeEngine(bend=bend), MODEL, 1000)
    random_ = random.Random(1)
    for _ in range(100):
        batch, mean = random_.randint(1, 9), random_.uniform(1, 300)
        growth, most = random_.choice([0.0, 1.0, random_.random()]), random_.randint(1, 600)
        steps = [times.step(batch, mean + n * growth)[0] for n in range(most)]
        done, amount = times.advance(batch, mean, growth, most)
        assert (done, amount[0]) == (most, pytest.approx(sum(steps), rel=1e-9))
        wait = random_.uniform(0, 1.2) * sum(steps)
        done, amount = times.advance(batch, mean, growth, most, wait)
        before, wanted = 0.0, 0
        while wanted < most and (not wanted or before < wait):
            before += steps[wanted]
            wanted += 1
        assert (done, amount[0]) == (wanted, pytest.approx(before, rel=1e-9))


def test_a_long_run_makes_few_calls():
    """200,000 words: some hundred calls of ``Engine.cost`` for decoding."""
    requests = requests_of(
        Load(arrivals="poisson", requests=1000, prompt=200, output=200, rate=1.0, spread=0.5)
    )
    made = []
    engine = FakeEngine(100_000, slow=0.1)

    def times(longest):
        made.append(StepTimes(engine, MODEL, longest))
        return made[0]

    outcome = serve(requests, Pages(engine, MODEL, Page(size=16)), times, Policy(max_batch=64))
    check_conserved(requests, outcome)
    assert outcome.passes["decode"] > 10_000
    assert made[0].calls - outcome.passes["prefill"] < 64 * 30


def test_pages():
    assert page_of("16") == Page(size=16)
    assert page_of("4KiB") == Page(size=4096, is_bytes=True)
    engine = FakeEngine(100)
    pages = Pages(engine, MODEL, Page(size=16))
    assert (pages.size, pages.total, pages.capacity) == (128.0, 6, 768.0)
    assert pages.table(33) == [pages.of(each) for each in range(34)]
    assert [pages.of(each) for each in (0, 1, 16, 17, 32, 33)] == [0, 1, 1, 2, 2, 3]
    # Two layers of two KV heads: eight streams.
    assert Pages(engine, MODEL, Page(size=16, is_bytes=True)).size == 128.0
    for text in ("", "0", "-1", "4 kb", "x", "1.5"):
        with pytest.raises(ConfigError, match=r"[pP]age"):
            page_of(text)
    with pytest.raises(ConfigError, match=r"lacks .* GB"):
        Pages(FakeEngine(0), MODEL, Page(size=16))


def test_figures():
    assert percentile([1.0, 2.0, 4.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 4.0], 0.75) == 3.0
    assert spread([None]) is None
    assert spread([3.0, None, 1.0])["mean"] == 2.0
    engine = FakeEngine()
    outcome = run([Request(1, 0.0, 10, 3), Request(2, 5.0, 10, 1)], Policy(), engine)
    prefill = engine.seconds(10, 0)
    steps = engine.seconds(1, 10) + engine.seconds(1, 11)
    first, second = outcome.served
    assert first.to_first == pytest.approx(prefill)
    assert first.per_token == pytest.approx(steps / 2)
    assert first.latency == pytest.approx(prefill + steps)
    assert (second.to_first, second.per_token) == (pytest.approx(prefill), None)
    pages = Pages(engine, MODEL, Page(size=4))
    found = summary(outcome, pages, Limits(prefill * 1.01, steps / 2 * 0.99), True)
    assert found["goodput"]["share"] == 0.5  # the second has one word only
    assert found["seconds"] == pytest.approx(5 + prefill)
    assert found["tokens_per_second"] == pytest.approx(4 / (5 + prefill))
    busy = 2 * prefill + steps
    assert found["busy_share"] == pytest.approx(busy / (5 + prefill))
    assert found["joules_per_token"]["value"] == pytest.approx(2 * busy / 4)
    assert found["batch"]["mean_busy"] == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(4))
def test_v1_with_tokens_without_end_is_chunked_with_them(seed):
    """The two differ in nothing while all pages are free; so does a budget that never fills."""
    requests = load(200, seed=seed)
    found = [
        run(requests, Policy(schedule=schedule, max_batch=16, tokens=tokens), FakeEngine(10**6))
        for schedule in ("v1", "chunked")
        for tokens in (1 << 24, 1 << 20)
    ]
    assert found[0] == found[1] == found[2] == found[3]


def test_v1_mixes_prompts_and_steps():
    """A prompt of three pieces next to a request that decodes, by hand; 8 tokens in a step."""
    engine = FakeEngine()
    requests = [Request(1, 0.0, 4, 6), Request(2, 0.0, 20, 2)]
    first, second = run(requests, Policy(schedule="v1", max_batch=2, tokens=8), engine).served
    steps = [
        engine.seconds(8, 0),  # the first prompt, and 4 tokens of the second
        engine.seconds(8, 4 + 4), engine.seconds(8, 5 + 11),
        engine.seconds(1 + 2, 6 + 18),
        engine.seconds(2, 7 + 20),
    ]  # fmt: skip
    assert first.first == pytest.approx(steps[0])
    assert second.first == pytest.approx(sum(steps[:4]))
    assert second.end == pytest.approx(sum(steps))


def test_v1_needs_a_token_for_each_request():
    with pytest.raises(ConfigError, match=r"Policy.tokens must be 32\.\.16777216, not 31"):
        Policy(schedule="v1", max_batch=32, tokens=31)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_faster_than_the_memory(schedule):
    """Every pass reads the weights once, and each decoded word the tokens before it."""
    engine = FakeEngine(10**5)  # none is preempted, whose prefill makes words without a step
    outcome = run(load(), Policy(schedule=schedule, max_batch=8, tokens=64), engine)
    passes = sum(outcome.passes.values())
    words = [(each.request.prompt, each.request.output) for each in outcome.served]
    read = sum(sum(range(prompt, prompt + output - 1)) for prompt, output in words)
    least = 0.0101 * passes + 0.000113 * read * (1 - 1e-9)
    assert outcome.busy >= least
    assert outcome.amount[1] >= 1000.0 * passes + 8.0 * read * (1 - 1e-9)


@pytest.mark.parametrize(
    ("field", "value"),
    [("schedule", "best"), ("max_batch", 0), ("tokens", 0), ("positions", -1),
     ("prefix_block", -1), ("drafts", 65), ("acceptance", 1.5), ("seed", -1)],
)  # fmt: skip
def test_policy_refuses(field, value):
    with pytest.raises(ConfigError, match=f"Policy.{field} must be"):
        Policy(**{field: value})
