"""Jobs of VqGemv: sound ones of all splits, and one of each fault."""

import itertools
from collections.abc import Callable

from golden.vqllm.config import MatrixShape
from golden.vqllm.format import Plan
from golden.vqllm.vectors.engine import SPOILS, beyond_x, engine_job, random_x
from golden.vqllm.vectors.matrices import random_matrix


def jobs_of(
    config, rng, shapes, long=None, most_cycles: Callable | None = None
) -> tuple[list[dict], list[dict]]:
    """Sound jobs of all shapes and splits, then jobs with a fault each; long jobs of all splits.

    most_cycles: of a job, for its ``most``.
    """
    cache = config.core.cache
    most = Plan(registers=cache.registers, shared=cache.shared)
    least = Plan(registers=0, shared=max(1, cache.shared // 3))
    splits = [1 << n for n in range(config.cores.bit_length())]
    found: list[dict] = []
    rates: list[dict] = []
    base = 0x10_0000

    def add(size, plan, split, spoil=None, into=found):
        nonlocal base
        shape = MatrixShape(rows=size[0], columns=size[1], vq=cache.vq)
        matrix = random_matrix(rng, shape, int(rng.integers(-3, 4)), config.scaled)
        x = random_x(rng, int(rng.integers(1, config.core.batch + 1)), size[1])
        plan = Plan(registers=plan.registers, shared=plan.shared, split=split)
        job = engine_job(config, matrix, plan, x, tensor=int(rng.integers(1 << 24)), base=base)
        base = job.after(64)
        if spoil is None or spoil(job, rng) is not False:
            into.append(job.params() | ({"most": most_cycles(job)} if most_cycles else {}))

    for size, split in itertools.product(shapes, splits):
        add(size, (most, least)[len(found) % 2], split)
    for spoil in SPOILS:
        add(shapes[0], least, int(rng.choice(splits)), spoil)
    for size in shapes[1:]:
        add(size, least, int(rng.choice(splits)), beyond_x)
    add(shapes[0], most, splits[-1])
    for split in splits if long else ():
        add(long, most, split, into=rates)
    return found, rates
