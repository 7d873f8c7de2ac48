"""golden.llm.reports.attention_nmse: each error against one computed without its functions.

Shown to fail:

- keys that end a token early;
- a scale of fixed point that is half as large: its largest entry overflows;
- V decoded where only K should be;
- queries that are not scaled.
"""

import itertools

import pytest
import torch

from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.packet import normalised
from golden.llm.patch import Patch
from golden.llm.reports import attention_error, attention_nmse
from golden.llm.reports.attention_nmse import (
    WIDTHS,
    Layer,
    captured,
    layer_errors,
    nmse,
    sections,
    width_errors,
)
from golden.million.attention import Codebook

BITS, SUB = 4, 4


@pytest.fixture(scope="module")
def layer() -> Layer:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(24, heads, 16, generator=generator).double() for heads in (4, 2, 2))
    return Layer(*(bits_from_float(x) for x in (q, k, v)))


@pytest.fixture(scope="module")
def books() -> tuple[Codebook, Codebook]:
    generator = torch.Generator().manual_seed(2)
    books = torch.randn(2, 16 // SUB, 1 << BITS, SUB, generator=generator)
    return tuple(Codebook(*normalised(book)) for book in books)


@pytest.fixture(scope="module")
def cases(layer, books):
    return attention_nmse._cases(layer, books, BITS, 3)


def _nearest(x: torch.Tensor, book: Codebook) -> torch.Tensor:
    entries = float_from_bits(book.words) * 2.0**book.exponent
    parts = x.unflatten(-1, (len(entries), -1))
    index = ((parts[..., None, :] - entries) ** 2).sum(-1).argmin(-1)
    return torch.stack([entries[m, index[..., m]] for m in range(len(entries))], -2).flatten(-2)


def test_codes(layer, books, cases):
    """The errors equal those computed from the words alone, one query at a time."""
    q, k, v = (float_from_bits(each) for each in (layer.q, layer.k, layer.v))
    errors = layer_errors(cases, books)
    for name, is_k, is_v in (
        ("codes of K", True, False), ("codes of V", False, True), ("codes of both", True, True)
    ):  # fmt: skip
        found, reference = [], []
        for token in range(21, 24):
            for head in range(4):
                key, value = k[: token + 1, head // 2], v[: token + 1, head // 2]
                weight = torch.softmax(key @ q[token, head], 0)
                reference.append(weight @ value)
                key = _nearest(key, books[0]) if is_k else key
                value = _nearest(value, books[1]) if is_v else value
                found.append(torch.softmax(key @ q[token, head], 0) @ value)
        expected = nmse(torch.stack(found), torch.stack(reference))
        assert errors[name] == pytest.approx(expected, rel=1e-9)
    assert errors["table entries in FP16"] < errors["codes of K"] / 1000
    assert 0 < errors["all roundings"] < 1e-5


def test_widths(books, cases):
    """A bit more halves the error of a score; the guaranteed scale is never the better one."""
    errors = width_errors(cases, books[0])
    for few, more in itertools.pairwise(WIDTHS[:-1]):
        for scale in ("entries", "query"):
            ratio = (
                errors[f"{few} bits, scale of the {scale}", "score"]
                / errors[f"{more} bits, scale of the {scale}", "score"]
            )
            assert 1.5 < ratio < 2.7
    for bits in WIDTHS:
        names = [(f"{bits} bits, scale of the {which}", "score") for which in ("entries", "query")]
        assert errors[names[0]] <= errors[names[1]]


def test_fixed_point_holds_every_entry():
    entries = torch.tensor([[[0.9, -1.0]], [[3.0, 0.1]]])
    fixed = attention_nmse._fixed(entries, torch.tensor([1.0, 3.0]), 8)
    assert torch.equal(fixed, torch.tensor([[[58 / 64, -1.0]], [[3.0, 3 / 32]]]))


def test_captured(tiny):
    """Attention of the captured words is what the output projection of the model reads."""
    ids = torch.arange(40) * 7 % 64
    found = captured(tiny.model, ids, [1])[1]
    seen = []
    with Patch(tiny.model) as patch, torch.no_grad():
        projection = tiny.model.get_submodule("model.layers.1.self_attn.o_proj")
        patch.watch(projection, before=lambda arguments, _: seen.append(arguments[0]))
        tiny.model(ids[None], use_cache=False)
    q, k, v = (float_from_bits(x).transpose(0, 1) for x in (found.q, found.k, found.v))
    k, v = (x.repeat_interleave(3, 0) for x in (k, v))
    later = torch.ones(40, 40).triu(1).bool()
    own = (q @ k.mT).masked_fill(later, -torch.inf).softmax(-1) @ v
    assert torch.allclose(own.transpose(0, 1).flatten(1), seen[0][0].double(), atol=0.02)


def test_sections():
    errors = {"(32, 8), layer 0": {"codes of K": 1e-3}}
    made = sections(errors, {("FP16", "score"): 1e-4, ("FP16", "output"): 2e-7})
    assert made["million_errors"].endswith("| (32, 8), layer 0 | 1.00e-03 |\n")
    assert made["million_widths"].endswith("| FP16 | 1.00e-04 | 2.00e-07 |\n")


def test_a_model_that_is_missing(capsys):
    assert attention_error.main(["--model", "/no/such/model"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
