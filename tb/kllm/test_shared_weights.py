"""Products of several tokens on the same weights, on the whole accelerator, norms folded.

There are as many tokens as slots, and groups have as many beats as the weight buffers. So the
supply can give the last replays only while the lanes take weights. Without the queue of factors in
kllm_matmul, lanes and supply wait for each other for ever. This was first seen in a simulation of
the supply with lanes that take 8 beats.
"""

import pytest

from hdl.kllm.accelerator import KllmAccelerator
from hdl.kllm.room import BLOCKS
from tb.kllm.support.products import product_parts
from tb.simulate.run import simulate

SMALL = BLOCKS["kllm_accelerator"].configs["small"]


@pytest.mark.parametrize("norm", [False, True])
def test_shared_weights(norm, seed):
    cases = [(4, 4, "online"), (4, 2, "online"), (3, 3, "offline"), (1, 1, "online")]
    data, ports, parts = product_parts(SMALL.machine, SMALL.machine.slot.elements, cases, norm)
    simulate(
        KllmAccelerator(SMALL),
        "tb.kllm.tb_layer",
        params={"data": data, "ports": ports, "parts": parts, "latency": 3},
        seed=seed,
    )
