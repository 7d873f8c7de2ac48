"""The lane of fixed-point entries, whose area is compared, computes what it should.

Shown to fail: a scale of one place less; a slope that is not added; a sum one bit too narrow.
"""

import random

import pytest
import torch
from amaranth.sim import Simulator

from golden.fp16.format import FP16
from golden.fp16.ops import fixed_point, from_fixed
from golden.index.timing import adder_levels
from golden.million.format import WEIGHT_GRID
from golden.million.timing import SCORE_ROUNDING
from hdl.million.fixed_lane import MillionFixedLane, MillionFixedLaneConfig


@pytest.mark.parametrize(("subspaces", "bits"), [(4, 16), (9, 8), (64, 12)])
def test_scores(subspaces, bits):
    config = MillionFixedLaneConfig(subspaces=subspaces, bits=bits)
    lane = MillionFixedLane(config)
    rng = random.Random(subspaces)
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    rows = []
    for number in range(40):
        choices = [low, high] if number % 4 == 0 else range(low, high + 1)
        words = [rng.choice(choices) for _ in range(subspaces)]
        if number in (0, 4):
            words = [(low, high)[number // 4]] * subspaces
        slope = rng.choice([0, 0x8000, 0x7BFF, 0xFBFF, 0x0001, rng.getrandbits(16) & 0xBBFF])
        scale = (0, config.scale_max, rng.randint(0, config.scale_max))[number % 3]
        distance = rng.choice([0, 1, (1 << 17) - 1, rng.randrange(1 << 17)])
        rows.append((words, scale, slope, distance))
    found = []
    latency = 1 + adder_levels(subspaces) + 3 + SCORE_ROUNDING
    ahead = adder_levels(subspaces) + 2

    async def bench(ctx):
        for cycle in range(len(rows) + latency):
            if cycle < len(rows):
                for k, word in enumerate(rows[cycle][0]):
                    ctx.set(lane.word[k], word)
            if 0 <= cycle - ahead < len(rows):
                _, scale, slope, distance = rows[cycle - ahead]
                ctx.set(lane.scale, scale)
                ctx.set(lane.slope, slope)
                ctx.set(lane.distance, distance)
            await ctx.tick()
            found.append(ctx.get(lane.y))

    simulator = Simulator(lane)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    for (words, scale, slope, distance), y in zip(rows, found[latency - 1 :], strict=False):
        total = (sum(words) << scale) + distance * int(fixed_point(torch.tensor(slope)))
        limbs = torch.tensor(total >> 62), torch.tensor(total & (1 << 62) - 1)
        expected = int(from_fixed(limbs[1], WEIGHT_GRID, FP16, high=limbs[0]))
        assert y == expected, (words, scale, slope, distance)
