"""The table of the decoder layer: exact attention and fake attention of lanes follow it."""

import pytest
import torch
from torch import Tensor

import golden.kllm.flow
from golden.fp16.ops import bits_from_float
from golden.kllm import attention as exact
from golden.kllm.flow import ATTENTION, SCORES, attention_steps, follow, readers, sites
from golden.llm.eval.fake.kllm import FakeCodebook, fake_attention

BOOK = bits_from_float(torch.linspace(-1, 1, 16).double())


def exact_attention(scores: str) -> Tensor:
    q, k, v = (x.double() for x in operands())
    query = BOOK if scores == "index" else None
    books = exact.AttentionBooks(BOOK, BOOK, query)
    return exact.attention(*(bits_from_float(x) for x in (q, k, v)), books)


def fast_attention(scores: str) -> Tensor:
    q, k, v = (x[None] for x in operands())
    query = FakeCodebook.of(BOOK) if scores == "index" else None
    scale = v.abs().amax(-1, keepdim=True)
    return fake_attention(q, k, (v, scale), 8, query, rows=4)


def operands() -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(heads, 7, 16, generator=generator) for heads in (4, 2, 2)]


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("reader", [exact_attention, fast_attention])
@pytest.mark.parametrize("step", ["mask", "weight"])
def test_a_step_that_leaves_the_table_leaves_every_reader(
    scores: str, reader, step: str, monkeypatch
) -> None:
    """A reader with a sequence of its own passes this only while the table has all steps."""
    before = reader(scores)
    shorter = tuple(each for each in ATTENTION if each.name != step)
    monkeypatch.setattr(golden.kllm.flow, "ATTENTION", shorter)
    assert not torch.equal(before, reader(scores))


def test_steps_in_order_by_codebook() -> None:
    assert attention_steps("direct") == {
        "scores": ("scores", "mask", "softmax", "weight", "integers"),
        "cached_v": ("values",),
    }
    assert attention_steps("index")["scores"][0] == "query"
    with pytest.raises(KeyError, match="second"):
        follow(("first", "second"), {"first": lambda x: x}, 0)


def test_switches_decide_what_is_quantized() -> None:
    every = {"x", "attention", "post", "h", "k", "v"}
    assert set(sites(glu="exact", scores="direct")) == every
    assert set(sites(glu="index", scores="direct")) == every | {"gate", "up"}
    assert set(sites(glu="exact", scores="index")) == every | {"q"}
    assert readers("x") == ("q", "k", "v")
    assert readers("gate") == ()
