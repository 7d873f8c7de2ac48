"""Turns of the groups of a step's tokens.

Shown to fail: a group that begins a layer before the one ahead of it; a group of no token.
"""

import itertools

import pytest

from golden.kllm.layer.program import STAGES
from golden.kllm.model.order import group_sizes, stage_order
from tests.kllm import model_example as example

LAYOUT = example.image().layout


@pytest.mark.parametrize("tokens", range(1, 65))
def test_groups_are_all_tokens(tokens: int) -> None:
    sizes = group_sizes(tokens)
    assert sum(sizes) == tokens
    assert 0 <= max(sizes) - min(sizes) <= 1
    assert min(sizes) > 0


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7, 8, 16])
def test_every_stage_has_its_turn_in_the_order_of_places(tokens: int) -> None:
    """Places of one sequence are appended in their order, in each layer."""
    sizes = group_sizes(tokens)
    order = stage_order(LAYOUT.shape, LAYOUT.config, sizes)
    total = STAGES * LAYOUT.shape.layers
    assert [order.count(group) for group in range(len(sizes))] == [total] * len(sizes)
    done = [0] * len(sizes)
    for group in order:
        done[group] += 1
        if done[group] % STAGES == 1:  # has begun a layer
            for before, after in itertools.pairwise(done[: group + 1]):
                assert before >= after


def test_the_lanes_have_work_while_a_group_attends() -> None:
    """Stages of other groups come between the first stage of a group and its second one."""
    sizes = group_sizes(6)
    assert len(sizes) == 3
    order = stage_order(LAYOUT.shape, LAYOUT.config, sizes)
    for group in range(len(sizes)):
        turns = [at for at, each in enumerate(order) if each == group]
        pairs = zip(turns[::STAGES], turns[1::STAGES], strict=True)
        assert all(second > first + 1 for first, second in pairs)
