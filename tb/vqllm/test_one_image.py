"""One image of a KV head through VqAttention, MillionAttention and MillionDecodeEngine.

What ``senbazuru.runs.vq_attention`` does, at a small size. All bytes that an engine reads are the
image's, and all results golden's.

Shown to fail:

- of the image that reads are compared with: a byte changed, a word too few or too many, V for K;
- a codebook in the order of subspaces; passes moved by a word; records of V before K;
- values of the keys in another order: outputs beyond the roundings.
"""

import dataclasses

import pytest
import torch

from golden.million.config import HeadShape, MillionConfig, PqShape, WindowShape
from golden.million.vectors.decode_jobs import SHAPES
from golden.vqllm.attention import attend
from golden.vqllm.config import AttendShape
from hdl.million.decode_engine import MillionDecodeEngineConfig
from hdl.million.room import BLOCKS
from tb.simulate.run import build_model
from tb.vqllm import test_attention
from tb.vqllm.support import attention_engines
from tb.vqllm.support.heads import shape_of
from tb.vqllm.support.one_image import OneImage, Softmax, differences

PQ = PqShape(head_dim=16, subspaces=4, bits=4)
TOKENS = (4, 16)
SMALL = BLOCKS["million_attention"].configs["small"]
CACHE = MillionConfig(
    pq=PQ, head=HeadShape(heads=1, group=2), window=WindowShape(sinks=0, keep=0, block=0),
    layers=1, max_tokens=TOKENS[-1], pages=40, page_bytes=256, scope_heads=True,
)  # fmt: skip
# By name, and the numbers of tokens. All but the tables are also built by other tests.
ENGINES = {
    "four passes": (test_attention.CONFIGS["four_passes"], (8, 32)),
    "one pass": (test_attention.CONFIGS["one_pass"], (4, 9)),
    "tables": (dataclasses.replace(SMALL, cache=CACHE), TOKENS),
    "decoding": (MillionDecodeEngineConfig(**SHAPES["small"]), (3, 40)),
}


def images(seed: int, pq: PqShape = PQ, queries: int = 2, sizes=TOKENS) -> list[OneImage]:
    whole = OneImage.random(pq, queries, sizes[-1], seed)
    return [whole.first(tokens) for tokens in sizes]


@pytest.mark.telling("decoding", "four passes", "one pass")
@pytest.mark.parametrize("name", ENGINES)
def test_one_image(name, seed, monkeypatch):
    monkeypatch.setattr(
        attention_engines, "build_model", lambda block, long_run: build_model(block)
    )
    config, sizes = ENGINES[name]
    pq, queries = shape_of(config)
    spent = attention_engines.measure(config, images(seed, pq, queries, sizes), 7)
    assert [each.tokens for each in spent] == list(sizes)
    assert all(each.others[0] > 0 for each in spent)


def test_outputs_agree(seed):
    for image in images(seed):
        _, first = attend(image.q, *image.codes, *image.books)
        assert torch.equal(first, Softmax.decoded(image).outputs(image))
        second = Softmax.looked_up(image)[0].outputs(image)
        found = differences(image, first, second)
        assert found.most <= found.bound
        assert max(found.errors) < 0.01


def test_outputs_that_differ_are_found(seed):
    """An output of one key's value instead of the sum is outside the bound of roundings."""
    image = images(seed)[-1]
    _, first = attend(image.q, *image.codes, *image.books)
    _, other = attend(image.q, image.codes[0], image.codes[1].flip(0), *image.books)
    with pytest.raises(AssertionError, match="an output differs by more than its roundings"):
        differences(image, first, other)


def test_the_image_in_passes(seed):
    """The bytes are the image's with all groups in a pass; with fewer they are moved."""
    image = images(seed, PqShape(head_dim=32, subspaces=16, bits=4))[-1]
    shape = AttendShape(pq=image.pq, groups=16, data_bits=64)
    assert image.in_passes(shape) == image.image()
    assert image.in_passes(dataclasses.replace(shape, groups=8)) != image.image()
