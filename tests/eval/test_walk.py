"""Layers one by one: what they give is what the model computes.

Shown to fail:

- windows that all get the positions of the first;
- a second half without the norm;
- a layer that runs on after its tap.
"""

import pytest
import torch

from golden.llm.eval.walk import LayerWalk
from golden.llm.patch import Patch
from tests.tiny import uneven_llama


@pytest.fixture(scope="module")
def model():
    return uneven_llama().model


WINDOWS = [torch.arange(20) % 61, torch.arange(7, 20) % 5]


def hidden_states(model, ids):
    with torch.no_grad():
        return model(ids[None], output_hidden_states=True, use_cache=False).hidden_states


def test_a_walk_gives_the_hidden_states(model) -> None:
    walk = LayerWalk(model, WINDOWS)
    assert torch.equal(walk.hidden[1], hidden_states(model, WINDOWS[1])[0])
    wanted = [hidden_states(model, ids)[1] for ids in WINDOWS]
    for found, each in zip(walk.run(0, walk.hidden), wanted, strict=True):
        torch.testing.assert_close(found, each)


def test_a_tap_sees_and_stops(model) -> None:
    walk, layer = LayerWalk(model, WINDOWS), model.model.layers[1]
    with Patch(model) as patch, torch.no_grad():
        whole: list[torch.Tensor] = []
        patch.watch(layer.mlp.down_proj, lambda args, _: whole.append(args[0]))
        walk.run(1, walk.hidden)
        post: list[torch.Tensor] = []
        patch.watch(layer.post_attention_layernorm, lambda args, _: post.append(args[0]))
        walk.run(1, walk.hidden)
        after: list[object] = []
        patch.watch(layer.mlp.down_proj, after=after.append)

        def put(patch, tap):
            patch.input(layer.mlp.down_proj, tap)

        first = walk.seen(1, walk.hidden, put)
        second = walk.seen_after_attention(1, post[:2], put)
    assert not after
    for one, two, each in zip(first, second, whole[:2], strict=True):
        assert torch.equal(one, each)
        torch.testing.assert_close(two, each)


def test_changes_of_an_open_patch_are_part_of_it(model) -> None:
    walk = LayerWalk(model, WINDOWS)
    plain = walk.run(0, walk.hidden)
    with Patch(model) as patch:
        patch.output(patch.layers[0].mlp, lambda y: y * 0)
        changed = walk.run(0, walk.hidden)
    assert not torch.allclose(plain[0], changed[0])
    assert torch.equal(walk.run(0, walk.hidden)[0], plain[0])
