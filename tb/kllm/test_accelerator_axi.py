"""KllmAccelerator under AXI's port names, with cocotbext-axi's models as its host and memories."""

import pytest

from hdl.kllm.accelerator import KllmAccelerator
from tb.kllm.test_accelerator import SMALL, as_vectors, programs
from tb.simulate.run import simulate


@pytest.mark.telling
def test_programs_under_axi_names(seed):
    """One with faults and bus errors, then one without."""
    made = [
        as_vectors(program)
        for faults in (True, False)
        for program in programs(seed + 40, 1, 30, faults, least=1)
    ]
    simulate(
        KllmAccelerator(SMALL),
        "tb.kllm.tb_accelerator_axi",
        params={"programs": made},
        seed=seed,
        wrap="axi",
    )
