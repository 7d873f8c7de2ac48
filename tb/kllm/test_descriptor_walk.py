"""KllmDescriptorWalk against golden.kllm.walks.walk_slots.

Shown to fail with:

- a walk that is done with its last request
- the first slot requested for each token
"""

import numpy as np

from golden.kllm.walks import walk_slots
from hdl.kllm.engine import descriptor_layout
from hdl.kllm.matmul.config import KllmMatmulPhaseConfig
from hdl.kllm.matmul.descriptors import KllmDescriptorWalk
from tb.kllm.support.walks import Bench, rate, walk

SLOTS, DELAY = 256, 4
WALKS = ((0, 1), (7, 2), (100, 30), (255, 1), (0, 255), (3, 5))


def test_descriptor_walk(seed):
    rng = np.random.default_rng([seed, 93])
    mask = (1 << descriptor_layout.size) - 1
    words = [int.from_bytes(rng.bytes(16), "little") & mask for _ in range(SLOTS)]
    walks = [
        walk({"first": first, "tokens": tokens}, {"slot": slots, "o": [words[n] for n in slots]})
        for first, tokens in WALKS
        for slots in [walk_slots(first, tokens)]
    ]
    start = KllmDescriptorWalk.timing.delay("from start to the first request") - 1
    first = start + DELAY + KllmDescriptorWalk.timing.latency
    Bench(
        clients={"slot": "descriptor"},
        answers={"slot": dict(enumerate(words))},
        walks=walks,
        rates=[rate(4, DELAY, {"slot": range(start, start + 255), "o": range(first, first + 255)})],
    ).run(KllmDescriptorWalk(KllmMatmulPhaseConfig()), seed)
