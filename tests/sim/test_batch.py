"""The sums of a batch equal sums taken anew, and ``Engine.totals`` equals ``Engine.cost``.

Shown to fail:

- ``Even.demand`` without the part of the page that wraps around;
- ``Uneven.advance`` that places a request by its length before the steps;
- a preempted request whose length leaves the sum, and not its offset;
- a window's request that is counted as filled a step late;
- GPU totals without ``kv_recent``; totals of ``sim.matrix`` without ``on_chip``;
- GPU totals with the sums of the model before; without tiles of attention.
"""

import random

import pytest

from sim.cost import totals_of
from sim.engine import check_fits, engine_of
from sim.engines import gpu
from sim.hardware import known
from sim.model import find_model
from sim.serving.batch import Batch, Even, Live, Uneven, growth_of
from sim.serving.outcome import Served
from sim.serving.trace import Request
from sim.work import Pass

LONGEST = 200
EVEN = {size: [-(-n // size) for n in range(LONGEST + 1)] for size in (1, 3, 16, 300)}
UNEVEN = {
    "steps of two sizes": [n // 7 + n // 5 + (n > 0) for n in range(LONGEST + 1)],
    "a window": [-(-min(n, 60) // 4) for n in range(LONGEST + 1)],
    "three pages at once": [3 * -(-n // 16) for n in range(LONGEST + 1)],
}
TABLES = [*EVEN.values(), *UNEVEN.values()]


def test_which_tables_are_even():
    assert all(isinstance(growth_of(table), Even) for table in EVEN.values())
    assert all(isinstance(growth_of(table), Uneven) for table in UNEVEN.values())


@pytest.mark.parametrize("most", [None, 0, 25])
@pytest.mark.parametrize("table", TABLES, ids=range(len(TABLES)))
def test_like_sums_taken_anew(table, most):
    """Requests come, make words, end and are preempted at random."""
    for seed in range(15):
        random_ = random.Random(seed)
        batch, plain = Batch(table, most, False), []  # [live, cached, made]
        for number in range(1, 60):
            act = random_.random()
            if act < 0.5 or not plain:
                request = Request(number, 0.0, random_.randint(1, 60), random_.randint(2, 60))
                live = Live(Served(request), 0, 0)
                live.cached, live.made = request.prompt, 1
                batch.add(live)
                plain.append([live, live.cached, 1])
            elif act < 0.6:
                live, cached, made = plain.pop()
                assert batch.youngest() is live
                assert (live.cached, live.made) == (cached, made)
            elif act < 0.7:
                each = random_.choice(plain)
                words = min(random_.randint(0, 3), each[0].served.request.output - each[2] - 1)
                batch.more(each[0], words)
                each[1] += words
                each[2] += words
            else:
                steps = random_.randint(1, batch.left)
                ended = batch.advance(steps)
                for each in plain:
                    each[1] += steps
                    each[2] += steps
                over = [each for each in plain if each[2] == each[0].served.request.output]
                plain = [each for each in plain if each not in over]
                assert set(ended) == {each[0] for each in over}
                assert all((each[0].cached, each[0].made) == (each[1], each[2]) for each in over)
            assert list(batch) == [each[0] for each in plain]
            assert batch.pages == sum(table[each[1]] for each in plain)
            limit = LONGEST if most is None else most
            assert batch.read == sum(min(each[1], limit) for each in plain)
            if not plain:
                continue
            assert batch.left == min(each[0].served.request.output - each[2] for each in plain)
            for steps in {1, 2, batch.left}:
                assert batch.demand(steps) == sum(table[each[1] + steps] for each in plain)
            if most is not None:
                short = [most - each[1] for each in plain if each[1] < most]
                rising, filled = batch.rising
                assert rising == len(short)
                assert not short or filled == min(short)


PARTS = [
    ((1, 1, 0),),
    ((1, 700, 0),),
    ((1, 30, 0), (2, 64, 0)),
    ((5, 1, 300), (1, 200, 0), (1, 100, 512)),
    ((64, 1, 129), (1, 448, 64)),
]


RECENT = {"settings.kv_bits": 4, "settings.kv_recent": 64, "settings.concatenate": True}


@pytest.mark.parametrize("name", [*known(), "recent"])
def test_totals_are_those_of_the_cost(name):
    """Each sum has the same bits, on every chip, with and without a window."""
    engine = engine_of("a100-vllm", RECENT) if name == "recent" else engine_of(name)
    tried = 0
    for model in map(find_model, ("llama-2-7b", "mistral-7b", "mixtral-8x7b")):
        try:
            check_fits(engine, model, 1, 1024)
        except ValueError:
            continue
        for parts in PARTS[:2] if "kllm" in name else PARTS:
            words = sum(count for count, _, _ in parts)
            for logits in {1, words}:
                cost = engine.cost(model, Pass.of(parts, logits))
                assert engine.totals(model, parts, logits) == totals_of(cost)
                tried += 1
    assert tried or name not in ("a100-80gb", "a100-kivi", "oaken-hbm", "million-4b")


def test_totals_of_two_models_in_turns(monkeypatch):
    """The sums that are kept are those of the model at hand, and may be given up at any time."""
    engine = engine_of("a100-vllm")
    models = [find_model(name) for name in ("llama-2-7b", "llama-2-13b")]
    monkeypatch.setattr(gpu, "_MOST_SUMS", 2)
    for model in models * 2:
        for parts in PARTS * 2:
            words = sum(count for count, _, _ in parts)
            expected = totals_of(engine.cost(model, Pass.of(parts, words)))
            assert engine.totals(model, parts, words) == expected
