"""Deployments: cached prefixes, replicas, chips apart, links, drafts, the host.

Shown to fail:

- a prefix cache that keeps free blocks beyond the pages that are left;
- blocks of a request that stay in use after its end; a block that is known before it is filled;
- hits that prefill again, or whose pages count for each request;
- a router that takes the load without the requests of the pass under way;
- chips that prefill whose pages are free before the link has sent them; a link of two at once;
- words that a step drafts beyond the end of the output; draws that go on after a refusal;
- an advance without its host seconds; one ring of each layer, not two.
"""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.config import ConfigError
from sim.engine import engine_of
from sim.model import find_model
from sim.serving.fleet import ROUTERS, Fleet
from sim.serving.loop import Loop
from sim.serving.outcome import Served
from sim.serving.pages import Page, Pages
from sim.serving.parallel import Link, Parallel, Split, part_of
from sim.serving.policy import SCHEDULES, Policy
from sim.serving.prefix import Prefixes, check_blocks
from sim.serving.schedule import serve, serve_apart
from sim.serving.times import StepTimes
from sim.serving.trace import Request
from tests.sim.serving_cases import MODEL, FakeEngine
from tests.sim.test_serve import check_conserved, load

BLOCK = 8


def run(requests, policy, memory=1000, fleet=None, engine=None, host=0.0):
    engine = engine or FakeEngine(memory)
    pages = Pages(engine, MODEL, Page(size=4))
    new = policy.drafts + 1
    return serve(
        requests, pages,
        lambda longest: StepTimes(engine, MODEL, longest, new=new, host=host), policy, fleet=fleet,
    )  # fmt: skip


def sessions(seed, count=40, users=4, rate=2.0):
    """Requests whose prompts begin with blocks of a few users' texts."""
    random_ = random.Random(seed)
    made, at = [], 0.0
    for number in range(1, count + 1):
        user = random_.randrange(users)
        prompt = random_.randint(1, 60)
        shared = random_.randint(0, prompt // BLOCK)
        hashes = [1000 * user + n for n in range(shared)]
        hashes += [10**6 * number + n for n in range(-(-prompt // BLOCK) - shared)]
        made.append(Request(number, at, prompt, random_.randint(1, 30), tuple(hashes)))
        at += random_.expovariate(rate)
    return made


class Checked(Loop):
    """Counts the pages of all requests anew after each pass."""

    def turn(self) -> None:
        super().turn()
        lives = [*self.filling, *self.running, *(live for _, _, live in self.leaving)]
        assert self.running.pages + self.filling_pages + self.leaving_pages >= 0
        if self.prefixes is not None:
            held = {each for live in lives for each in live.blocks}
            assert self.prefixes.used == len(held) * self.prefixes.pages
            own = self.running.pages + self.filling_pages + self.leaving_pages
            own -= sum(live.shared for live in lives)
            assert self.used == own + self.prefixes.used
            free = len(self.prefixes._free) * self.prefixes.pages
            assert self.used + free <= self.total or not free


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("memory", [100, 200, 4000])
def test_cached_prefixes(schedule, memory, monkeypatch):
    """Nothing is lost, hits save their tokens, and pages are those of the requests and blocks."""
    monkeypatch.setattr("sim.serving.apart.Loop", Checked)
    policy = Policy(schedule=schedule, max_batch=8, tokens=64, prefix_block=BLOCK)
    hits = 0
    for seed in range(4):
        requests = sessions(seed)
        outcome = run(requests, policy, memory)
        check_conserved(requests, outcome)
        hits += sum(each.hit for each in outcome.served)
        if memory == 4000:
            plain = run(requests, dataclasses.replace(policy, prefix_block=0), memory)
            assert outcome.prefilled == plain.prefilled - sum(e.hit for e in outcome.served)
    assert hits > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_hit_is_no_cache(schedule):
    """Hashes that never come back, or none, change no field."""
    policy = Policy(schedule=schedule, max_batch=8, tokens=64)
    cached = dataclasses.replace(policy, prefix_block=BLOCK)
    requests = sessions(1)
    own = [
        dataclasses.replace(each, hashes=tuple(hash((each.number, n)) for n in each.hashes))
        for each in requests
    ]
    assert run(own, cached, 200) == run(own, policy, 200)
    bare = [dataclasses.replace(each, hashes=()) for each in requests]
    assert run(bare, cached, 200) == run(bare, policy, 200)


def test_a_hit_by_hand():
    """The second request finds two of its three blocks, and prefills the last alone."""
    engine = FakeEngine()
    requests = [Request(1, 0.0, 24, 1, (1, 2, 3)), Request(2, 9.0, 24, 1, (1, 2, 4)),
                Request(3, 18.0, 16, 1, (1, 2))]  # fmt: skip
    outcome = run(requests, Policy(prefix_block=BLOCK), engine=engine)
    first, second, third = outcome.served
    assert [each.hit for each in outcome.served] == [0, 16, 8]  # a prompt's last token is computed
    assert first.latency == pytest.approx(engine.seconds(24, 0))
    assert second.latency == pytest.approx(engine.seconds(8, 16))
    assert third.latency == pytest.approx(engine.seconds(8, 8))


def test_oldest_blocks_leave_first():
    prefixes = Prefixes(BLOCK, 2)
    for hashes in ((1, 2, 3), (4, 5)):
        assert all(prefixes.fill(each) for each in hashes)
    assert not prefixes.fill(3)
    assert prefixes.used == 10
    prefixes.release((1, 2, 3))
    prefixes.release((4, 5))
    assert (prefixes.used, prefixes.known((1, 2, 3, 9), 100)) == (0, 3)
    prefixes.take((1,))
    prefixes.trim(6)
    assert [prefixes.known((each,), 8) for each in (1, 2, 3, 4, 5)] == [1, 1, 0, 1, 1]
    prefixes.trim(2)
    assert [prefixes.known((each,), 8) for each in (1, 2, 3, 4, 5)] == [1, 0, 0, 1, 0]


def test_blocks_fill_whole_pages():
    check_blocks([-(-n // 4) for n in range(100)], 8)
    for table in ([-(-n // 3) for n in range(100)], [-(-min(n, 20) // 4) for n in range(100)]):
        with pytest.raises(ConfigError, match="--page must be pages that blocks of 8 tokens fill"):
            check_blocks(table, 8)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("router", ROUTERS)
def test_one_replica_is_no_router(schedule, router):
    policy = Policy(schedule=schedule, max_batch=8, tokens=64, prefix_block=BLOCK)
    one = run(sessions(2), policy, 200, Fleet(replicas=1, router=router))
    assert one == run(sessions(2), policy, 200)


@pytest.mark.parametrize("router", ROUTERS)
def test_replicas(router):
    """Requests are conserved; two chips are no slower than one, and no faster than half."""
    policy = Policy(schedule="v1", max_batch=8, tokens=64, prefix_block=BLOCK)
    requests = sessions(3, 120, rate=20.0)
    ends = []
    for replicas in (1, 2, 5):
        outcome = run(requests, policy, 400, Fleet(replicas=replicas, router=router))
        check_conserved(requests, outcome)
        assert {each.chip for each in outcome.served} == set(range(replicas))
        ends.append(outcome.seconds)
        if router == "round-robin":
            assert [each.chip for each in outcome.served] == [n % replicas for n in range(120)]
    assert ends[0] > ends[1] > ends[2] > ends[0] / 10


def test_routers():
    """The least loaded chip, by hand; and prefixes that come back to their chip."""
    requests = [Request(1, 0.0, 4, 30), Request(2, 0.0, 4, 2), Request(3, 0.001, 4, 2),
                Request(4, 5.0, 4, 2)]  # fmt: skip
    outcome = run(requests, Policy(), fleet=Fleet(replicas=2, router="least-loaded"))
    assert [each.chip for each in outcome.served] == [0, 1, 0, 0]
    first = outcome.served[0].end
    requests[3] = Request(4, first - 0.001, 4, 2)
    outcome = run(requests, Policy(), fleet=Fleet(replicas=2, router="least-loaded"))
    assert [each.chip for each in outcome.served] == [0, 1, 0, 1]
    policy = Policy(schedule="v1", prefix_block=BLOCK, tokens=512)
    found = {
        router: sum(e.hit for e in run(
            sessions(5, 100, users=5, rate=1.0), policy, 4000, Fleet(replicas=5, router=router),
        ).served)
        for router in ROUTERS
    }  # fmt: skip
    assert found["prefix"] > found["least-loaded"]
    assert found["prefix"] > found["round-robin"]


def apart(requests, policy, bandwidth, latency=0.0, memory=1000, replicas=(1, 1)):
    sites = []
    for each in replicas:
        engine = FakeEngine(memory)
        pages = Pages(engine, MODEL, Page(size=4))
        new = policy.drafts + 1

        def times(longest, engine=engine, new=new):
            return StepTimes(engine, MODEL, longest, new=new)

        sites.append((pages, times, Fleet(replicas=each, router="least-loaded")))
    link = Link(bandwidth=bandwidth, latency=latency)
    return serve_apart(requests, *sites, policy, link, lambda tokens: 8.0 * tokens)


def test_apart_by_hand():
    """Two prompts of one pass: the second moves after the first, and each decodes alone."""
    engine = FakeEngine()
    requests = [Request(1, 0.0, 10, 2), Request(2, 0.0, 10, 2), Request(3, 0.0, 10, 1)]
    before, after = apart(requests, Policy(), 80.0, latency=0.25)
    prefill = engine.seconds(30, 0)
    first, second, third = after.served
    assert first.first == second.first == third.first == third.end == pytest.approx(prefill)
    assert first.moved == pytest.approx(prefill + 1.25)
    assert second.moved == pytest.approx(prefill + 2.25)
    assert first.end == pytest.approx(first.moved + engine.seconds(1, 10))
    assert second.end == pytest.approx(second.moved + engine.seconds(1, 10))
    assert (before.prefilled, after.prefilled, after.decoded, after.words) == (30, 0, 2, 5)


def test_pages_wait_for_the_link():
    """A prompt that finds no page enters as soon as the link has sent the one before it."""
    requests = [Request(1, 0.0, 40, 2), Request(2, 0.0, 40, 2)]
    _, after = apart(requests, Policy(), 80.0, memory=60)
    first, second = after.served
    assert second.entered == pytest.approx(first.moved)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    schedule=st.sampled_from(sorted(SCHEDULES)),
    memory=st.integers(100, 400),
    bandwidth=st.sampled_from([500.0, 1e4, 1e12]),
    replicas=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_apart_loses_nothing(seed, schedule, memory, bandwidth, replicas):
    requests = sessions(seed, 25, rate=10.0)
    policy = Policy(schedule=schedule, max_batch=6, tokens=64, prefix_block=BLOCK)
    before, after = apart(requests, policy, bandwidth, 0.001, memory, replicas)
    assert after.left == 0
    for each in after.served:
        assert (each.end is None) == bool(each.refused)
        if each.end is not None:
            assert each.request.arrival <= each.entered < each.first <= each.end
            assert each.moved is None or each.first < each.moved < each.end
    ended = [each.request for each in after.served if each.end is not None]
    assert after.words == sum(each.output for each in ended)
    cached = sum(each.prompt + each.output - 1 for each in ended)
    cached -= sum(each.hit for each in after.served)
    found = sum(each.prefilled + each.decoded - each.again for each in (before, after))
    assert found == cached


def test_an_instant_link_costs_nothing():
    """One request at a time: chips apart are one chip, if the link takes no time."""
    requests = [Request(n, 100.0 * n, 20, 7) for n in range(1, 6)]
    _, after = apart(requests, Policy(), 1e18)
    whole = run(requests, Policy())
    for one, other in zip(after.served, whole.served, strict=True):
        assert one.end == pytest.approx(other.end, rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("memory", [130, 1000])
def test_drafts(schedule, memory):
    """Words are conserved; the same seed gives the same run; no drafts are no speculation."""
    requests = load(40)
    plain = Policy(schedule=schedule, max_batch=8, tokens=64)
    policy = dataclasses.replace(plain, drafts=3, acceptance=0.6)
    outcome = run(requests, policy, memory)
    check_conserved(requests, outcome)
    assert outcome == run(requests, policy, memory)
    assert outcome != run(requests, dataclasses.replace(policy, seed=1), memory)
    none = dataclasses.replace(plain, drafts=0, acceptance=0.9, seed=5)
    assert run(requests, none, memory) == run(requests, plain, memory)


class FreeDrafts(FakeEngine):
    """A pass takes as long as its sequences, whatever they draft."""

    def seconds(self, new: int, read: float) -> float:
        return 0.25


def test_no_acceptance_is_no_speculation():
    """Drafts that cost no time, and of which none is accepted, change no time of a request."""
    requests = load(60)
    for schedule in ("continuous", "static"):
        policy = Policy(schedule=schedule, max_batch=8, tokens=64)
        drafted = dataclasses.replace(policy, drafts=4)
        found, wanted = (run(requests, each, engine=FreeDrafts()) for each in (drafted, policy))
        assert found.decoded == wanted.decoded
        assert found.accepted == 0
        for one, other in zip(found.served, wanted.served, strict=True):
            assert one.end == pytest.approx(other.end, rel=1e-9)


@pytest.mark.parametrize("acceptance", [0.3, 0.8])
def test_expected_words(acceptance):
    """A long output has the words per step that the formula says, within four deviations."""
    policy = Policy(drafts=4, acceptance=acceptance)
    outcome = run([Request(1, 0.0, 4, 20_000)], policy, 30_000)
    mean = (outcome.decoded + outcome.accepted) / outcome.decoded
    expected = (1 - acceptance**5) / (1 - acceptance)
    assert policy.words_per_step == pytest.approx(expected)
    assert abs(mean - expected) < 4 * 2 / outcome.decoded**0.5
    sure = run([Request(1, 0.0, 4, 1001)], Policy(drafts=4, acceptance=1.0), 30_000)
    assert sure.passes["decode"] == 200


def test_host_seconds():
    """Each pass is longer by them, in an advance too; none change nothing."""
    requests = load(40, arrivals="burst")
    policy = Policy(max_batch=8)
    found, wanted = run(requests, policy, host=0.5), run(requests, policy)
    assert found.passes == wanted.passes
    more = 0.5 * sum(wanted.passes.values())
    assert found.seconds == pytest.approx(wanted.seconds + more, rel=1e-9)
    assert run(requests, policy, host=0.0) == wanted


LLAMA = find_model("llama-2-7b")
LINK = Link(bandwidth=100e9, latency=1e-5)


def test_one_chip_is_not_parallel():
    engine = engine_of("a100-vllm")
    alone = Parallel(engine, Split(), LINK)
    parts = [(8, 1, 300), (1, 200, 64)]
    assert alone.totals(LLAMA, parts, 9) == engine.totals(LLAMA, parts, 9)
    assert alone.weight_bytes(LLAMA) == engine.weight_bytes(LLAMA)
    assert alone.kv_bytes(LLAMA, 77) == engine.kv_bytes(LLAMA, 77)


def test_tensor_parallel_by_hand():
    """Half the model, and the messages of two rings of each layer and of the logits."""
    engine = engine_of("a100-vllm")
    both = Parallel(engine, Split(tensor=2), LINK)
    half = part_of(LLAMA, Split(tensor=2))
    assert (half.heads, half.intermediate, half.layers) == (16, 5504, 32)
    parts = [(8, 1, 300)]
    alone = engine.totals(half, parts, 8)
    vectors = 8 * 4096 * 2
    rings = 64 * (vectors / 100e9 + 2e-5)
    logits = 0.5 * 8 * 32000 * 2 / 100e9 + 1e-5
    found = both.totals(LLAMA, parts, 8)
    assert found.seconds == pytest.approx(alone.seconds + rings + logits, rel=1e-12)
    assert found.bytes == pytest.approx(2 * alone.bytes)
    assert both.kv_bytes(LLAMA, 512) * 2 == engine.kv_bytes(LLAMA, 512)
    assert both.area["paper"] == 2 * engine.area["paper"]


def test_pipeline_by_hand():
    """Ten sequences in groups of 3, 3, 2 and 2: four times the stage of the largest."""
    engine = engine_of("a100-vllm")
    stages = Parallel(engine, Split(pipeline=4), LINK)
    parts = [(6, 1, 300), (4, 1, 500)]
    groups = stages.groups(parts, 10)
    assert [sum(count for count, _, _ in group) for group, _ in groups] == [3, 3, 2, 2]
    quarter = dataclasses.replace(LLAMA, layers=8)
    slowest = max(engine.totals(quarter, group, words).seconds for group, words in groups)
    send = 3 * 4096 * 2 / 100e9 + 1e-5
    found = stages.totals(LLAMA, parts, 10)
    assert found.seconds == pytest.approx(4 * (slowest + send), rel=1e-12)


@pytest.mark.parametrize(
    ("split", "line"),
    [
        ({"tensor": 3}, "--tensor must divide the 32 heads of llama-2-7b, not 3"),
        ({"pipeline": 5}, "--pipeline must divide the 32 layers of llama-2-7b, not 5"),
    ],
)
def test_what_chips_cannot_share(split, line):
    with pytest.raises(ConfigError, match=line):
        part_of(LLAMA, Split(**split))


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [(Fleet, "replicas", 0), (Fleet, "router", "best"), (Split, "tensor", 0),
     (Split, "pipeline", 0), (Link, "bandwidth", 0.0), (Link, "latency", -1.0)],
)  # fmt: skip
def test_deployment_refuses(kind, field, value):
    with pytest.raises(ConfigError, match=f"{kind.__name__}.{field} must be"):
        kind(**{field: value})


def test_load_of_a_chip():
    """Requests that end after a time have not ended at it."""
    engine = FakeEngine()
    loop = Loop(
        Policy(), Pages(engine, MODEL, Page(size=4)).table(50), 100,
        StepTimes(engine, MODEL, 50), strict=True,
    )  # fmt: skip
    loop.push(Served(Request(1, 0.0, 4, 1)), 0.0)
    loop.run(1e-6)
    assert loop.now > 1e-6
    assert (loop.load(1e-6), loop.load(loop.now)) == (1, 0)
