"""A model whose host attends: the golden machine without a unit CACHE.

Shown to fail:

- keys of another layer;
- a query head with the KV head of another group;
- the oldest tokens in place of those of a window.
"""

import math

import pytest
import torch

from golden.config import ConfigError
from golden.kllm.config import MACHINES
from golden.kllm.layer.layout import Job
from golden.kllm.layer.shape import LayerOptions, LayerShape
from golden.kllm.model.hosted import HostedModel, attend
from golden.kllm.model.program import pass_program
from golden.llm.checkpoint import Checkpoint
from golden.llm.kllm import pack
from golden.llm.kllm.example import hosted_model

MACHINE = MACHINES["narrow"]


@pytest.mark.parametrize(("window", "cap"), [(0, 0.0), (5, 0.0), (0, 3.0)])
def test_attend_is_softmax(window, cap):
    """One head and one token after the other, in Python's floats."""
    shape = LayerShape(hidden=64, heads=6, kv_heads=2, head_size=32, intermediate=64,
                       window=window, cap=cap)  # fmt: skip
    draw = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(*size, 32, generator=draw).half() for size in ((6,), (9, 2), (9, 2)))
    found = attend(shape, q, k, v)
    for head in range(6):
        first = 9 - window if window else 0
        keys, values = k[first:, head // 3].double(), v[first:, head // 3].double()
        own = q[head].tolist()
        scores = [sum(a * b for a, b in zip(own, key.tolist(), strict=True)) for key in keys]
        if cap:
            scores = [cap * math.tanh(score / cap) for score in scores]
        shares = [math.exp(score - max(scores)) for score in scores]
        for d in range(32):
            exact = sum(s * float(x[d]) for s, x in zip(shares, values, strict=True)) / sum(shares)
            assert abs(float(found[head, d]) - exact) <= 2**-11 * abs(exact) + 2**-24


@pytest.fixture(scope="module")
def model():
    return hosted_model(MACHINE)


def test_logits_are_those_of_the_model(model):
    made, image = model
    hosted = HostedModel(image)
    ids = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = made(ids[None]).logits[0].double()
    errors = []
    for number, token in enumerate(ids.tolist()):
        assert hosted.context == number
        logits = hosted.step(token).logits.numpy().astype("<u2").view("<f2")
        found = torch.tensor(logits.astype("float64"))
        errors.append(float((found - wanted[number]).norm() / wanted[number].norm()))
    assert sum(errors) / len(errors) < 0.11, errors
    # Of another history they are not.
    other = HostedModel(image)
    for token in [1, 2, 3, *ids[3:].tolist()]:
        last = other.step(token).logits
    assert not torch.equal(last, hosted.step(int(ids[0])).logits)


def test_a_pass_of_one_machine_is_that_of_its_words(model):
    """The words and the data memory at the end of a pass give the same answers in one run."""
    _, image = model
    hosted = HostedModel(image)
    hosted.step(5)
    made = hosted.step(7)
    fresh = HostedModel(image).machine
    fresh.data.data = made.data
    assert fresh.run(made.words) == made.results
    assert fresh.readback == made.readback


def test_what_a_host_attends_is_one_token(model):
    _, image = model
    with pytest.raises(ConfigError, match="tokens must be 1 where the host attends, not 2"):
        pass_program(image.layout, Job(2, 0))
    with pytest.raises(ConfigError, match="batch must be 1 for this layer, not 0"):
        pack.checked_layout(Checkpoint(model[0], None, ""), LayerOptions(), MACHINE, None, 24)
