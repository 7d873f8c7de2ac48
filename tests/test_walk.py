"""Walk against Python's nested loops (pysim).

Seen to fail with:

- ``inner`` not passed outwards;
- ``start`` that leaves a position;
- a step that is taken after ``done`` or with ``start``;
- the last position compared with the count itself.
"""

import itertools
import random

import pytest
from amaranth import Module, Signal
from amaranth.sim import Simulator

from hdl.walk import Walk


def used(m):
    """``m``, which stays without elaboration, without Amaranth's warning about that."""
    m._MustUse__silence = True
    return m


def visited(counts, as_values, rng, p_step, walks=3):
    """Positions that a walk visits, walk by walk, with steps at random and offered after done."""
    m = Module()
    inputs = {name: Signal(8, name=name) for name in counts}
    loops = {
        name: inputs[name] if name in as_values else count for name, count in counts.items()
    }
    walk = Walk(m, "walk", **loops)
    found, checks = [], []

    async def bench(ctx):
        for name, count in counts.items():
            ctx.set(inputs[name], count)
        assert ctx.get(walk.done)
        for _ in range(walks):
            for cut in (rng.randrange(12), 0):  # the first walk is cut off by the second's start
                ctx.set(walk.start, 1)
                ctx.set(walk.step, 1)
                await ctx.tick()
                ctx.set(walk.start, 0)
                if cut:
                    await ctx.tick().repeat(cut)
            path = []
            while not ctx.get(walk.done):
                step = rng.random() < p_step
                ctx.set(walk.step, step)
                at = tuple(ctx.get(getattr(walk.at, name)) for name in counts)
                last = [at[n] == count - 1 for n, count in enumerate(counts.values())]
                for n, name in enumerate(counts):
                    assert ctx.get(getattr(walk.last, name)) == last[n]
                    assert ctx.get(getattr(walk.wraps, name)) == all(last[n:])
                assert ctx.get(walk.is_last) == all(last)
                if step:
                    path.append(at)
                await ctx.tick()
            for _ in range(3):  # a step after the end moves nothing
                ctx.set(walk.step, 1)
                await ctx.tick()
                checks.append(ctx.get(walk.done))
                checks.append(all(ctx.get(getattr(walk.at, name)) == 0 for name in counts))
            found.append(path)

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert all(checks)
    return found


@pytest.mark.parametrize(
    "counts",
    [
        {"only": 1},
        {"only": 7},
        {"groups": 3, "tokens": 1, "beats": 4},
        {"groups": 1, "tokens": 5, "beats": 1},
        {"a": 2, "b": 3, "c": 2, "d": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("values", ["none", "all", "first"])
@pytest.mark.parametrize("p_step", [1.0, 0.4])
def test_visits_every_position_in_order(counts, values, p_step, seed):
    as_values = {"none": set(), "all": set(counts), "first": {next(iter(counts))}}[values]
    expected = list(itertools.product(*map(range, counts.values())))
    rng = random.Random(f"{seed} {counts} {values}")
    assert visited(counts, as_values, rng, p_step) == [expected] * 3


def test_widest_count_of_a_value():
    assert len(visited({"a": 255, "b": 2}, {"a", "b"}, random.Random(1), 1.0, walks=1)[0]) == 510


@pytest.mark.parametrize("count", [0, -1])
def test_refuses_a_count_below_one(count):
    with pytest.raises(ValueError, match=rf"^walk: beats must be 1 or more, not {count}$"):
        Walk(used(Module()), "walk", groups=2, beats=count)


def test_refuses_no_loops():
    with pytest.raises(TypeError, match="at least one loop"):
        Walk(used(Module()), "walk")
