"""KllmAccelerator against golden.kllm.machine: whole programs, every status and word read back."""

import pytest

from golden.kllm.programs import random_program
from hdl.kllm.accelerator import KllmAccelerator
from hdl.kllm.blocks import BLOCKS
from tb.run import simulate

SMALL = BLOCKS["kllm_accelerator"].configs["small"]


def as_vectors(program) -> dict:
    """A golden program as the bench takes it: no golden types cross into the simulator."""
    return {
        "words": [int(word) for word in program.words],
        "data": program.data.tobytes(),
        "weights": [memory.tobytes() for memory in program.weights],
        "data_faults": sorted(program.data_faults),
        "weight_faults": [sorted(faults) for faults in program.weight_faults],
        "results": [
            (result.tag, int(result.unit), int(result.status)) for result in program.results
        ],
        "readback": [int(word) for word in program.readback],
    }


@pytest.mark.parametrize("faults", [False, True])
def test_programs(seed, faults):
    programs = [
        as_vectors(random_program(SMALL.machine, seed=10 * seed + n, commands=40, faults=faults))
        for n in range(4)
    ]
    simulate(
        KllmAccelerator(SMALL), "tb.kllm.tb_accelerator", params={"programs": programs}, seed=seed
    )
