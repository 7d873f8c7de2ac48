"""KllmWeightStripe against golden.kllm.image.stripe: every port's words in the slots' order.

Shown to fail:

- rotations that do not start again at a job's end;
- a slot that takes a word whose port points elsewhere;
- ``done`` after the first port that ends;
- an ``error`` that is kept for the next job;
- a latency of 1 in ``timing`` (full_rate).
"""

import numpy as np
import pytest

from golden.kllm.format import weight_port_words
from golden.kllm.image import stripe
from golden.words import join
from hdl.kllm.weights.stripe import KllmWeightStripe, KllmWeightStripeConfig
from tb.simulate.run import simulate

CONFIGS = {
    "small": KllmWeightStripeConfig(slots=4, ports=6, port_bits=16),
    "fewer_ports": KllmWeightStripeConfig(slots=8, ports=6, port_bits=8),
    "coprime": KllmWeightStripeConfig(slots=5, ports=3, port_bits=9),
    "equal": KllmWeightStripeConfig(slots=4, ports=4, port_bits=12),
    "one_port": KllmWeightStripeConfig(slots=3, ports=1, port_bits=8),
    "one_slot": KllmWeightStripeConfig(slots=1, ports=4, port_bits=8),
    "far_more_ports": KllmWeightStripeConfig(slots=2, ports=7, port_bits=8),
    "table1_shape": KllmWeightStripeConfig(slots=32, ports=24, port_bits=8),
}


def stripe_words(config, array_beats, seed):
    """Words of every stream for jobs of so many array beats, all that the bench needs."""
    rng = np.random.default_rng([seed, 40])
    slots, ports, bits = config.slots, config.ports, config.port_bits
    words = {f"data_{p}": [] for p in range(ports)} | {f"slot_{s}": [] for s in range(slots)}
    words |= {"job": [], "done": []}
    for number, count in enumerate(array_beats):
        held = []
        faulty = int(rng.integers(0, ports)) if number % 2 else None
        any_error = False
        for port in range(ports):
            length = weight_port_words(count, slots, ports, port)
            own = [int(word) for word in rng.integers(0, 1 << bits, length)]
            # Every other job has an error, so that one must not stay for the next.
            errors = np.zeros(length, dtype=bool)
            if port == faulty and length:
                errors[rng.integers(0, length)] = True
            any_error |= bool(errors.any())
            words[f"data_{port}"] += [
                join((word, bits), (at == length - 1, 1), (errors[at], 1))
                for at, word in enumerate(own)
            ]
            held.append(own)
        for slot, own in enumerate(stripe(held, slots)):
            words[f"slot_{slot}"] += own
        words["job"].append(sum(map(bool, held)))
        words["done"].append(int(any_error))
    return words


@pytest.mark.parametrize("name", CONFIGS)
def test_weight_stripe(name, seed):
    config = CONFIGS[name]
    beats = [2, 3, 5, 2, 8, 4, 2, 2, 3, 7]
    # As long as the rotations, and not: a job ends with its ports anywhere.
    params = {
        "words": stripe_words(config, beats, seed),
        "long_beats": 60,
        "long": stripe_words(config, [60], seed),
    }
    assert {0, 1} <= set(params["words"]["done"])
    simulate(KllmWeightStripe(config), "tb.kllm.tb_weight_stripe", params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"slots": 0}, "slots must be 1..1022, not 0"),
        ({"slots": 1025, "port_bits": 64}, "slots must be 1..1024, not 1025"),
        ({"slots": 256, "port_bits": 4096}, "slots must be 1..255, not 256"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        KllmWeightStripeConfig(**wrong)
    assert str(error.value) == f"KllmWeightStripeConfig.{message}"
