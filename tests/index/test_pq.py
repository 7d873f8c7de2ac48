"""Product and residual quantizers, and exact codes against rational arithmetic."""

from fractions import Fraction

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.lloyd import Training
from golden.index.packet import denormalised, normalised
from golden.index.pq import ProductQuantizer, ProductShape, ResidualQuantizer, exact_codes

SHAPE = ProductShape(dim=12, subspaces=4, bits=4)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _vectors(count: int, dim: int = 12, seed: int = 0) -> torch.Tensor:
    mix = torch.randn(dim, dim, generator=_generator(99))
    return torch.randn(count, dim, generator=_generator(seed)) @ mix


@pytest.fixture(scope="module")
def trained() -> ProductQuantizer:
    return ProductQuantizer.train(_vectors(39 * 16), SHAPE)


def test_codes_are_the_nearest(trained: ProductQuantizer) -> None:
    x = _vectors(50, seed=1).reshape(5, 10, 12)
    codes = trained.encode(x)
    assert codes.shape == (5, 10, 4)
    parts = x.double().unflatten(-1, (4, 3))
    distance = ((parts[..., None, :] - trained.codebook.double()) ** 2).sum(-1)
    assert torch.equal(codes, distance.argmin(-1))


def test_decode_and_tables(trained: ProductQuantizer) -> None:
    x, q = _vectors(20, seed=1), _vectors(3, seed=2)
    codes = trained.encode(x)
    back = trained.decode(codes)
    expected = torch.cat([trained.codebook[m, codes[:, m]] for m in range(4)], -1)
    assert torch.equal(back, expected)
    table = trained.tables(q)
    assert table.shape == (3, 4, 16)
    sums = torch.stack([table[:, m, codes[:, m]] for m in range(4)]).sum(0)
    torch.testing.assert_close(sums, q @ back.T)


def test_more_bits_less_error() -> None:
    x = _vectors(2600)
    errors = []
    for bits in (2, 4, 6):
        one = ProductQuantizer.train(x, ProductShape(dim=12, subspaces=4, bits=bits))
        errors.append(float(((one.decode(one.encode(x)) - x) ** 2).mean()))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_weights_of_elements() -> None:
    x = _vectors(700)
    weight = torch.rand(700, 12, generator=_generator(3))
    one = ProductQuantizer.train(x, SHAPE, weight)
    parts = weight.unflatten(1, (4, 3)).mean(-1)
    by_hand = ProductQuantizer.train(
        x[:, :3], ProductShape(dim=3, subspaces=1, bits=4), parts[:, 0]
    )

    # Seeds of the sets differ, so only the costs are close.
    def cost(book: torch.Tensor) -> float:
        return float((parts[:, 0] * ((x[:, None, :3] - book) ** 2).sum(-1).min(1).values).sum())

    assert cost(one.codebook[0]) == pytest.approx(cost(by_hand.codebook[0]), rel=0.1)


def test_residual_quantizer() -> None:
    x = _vectors(700)
    shape = ProductShape(dim=12, subspaces=2, bits=4)
    two = ResidualQuantizer.train(x, shape, 2)
    codes = two.encode(x)
    assert codes.shape == (700, 2, 2)
    assert torch.equal(codes[:, 0], two.stages[0].encode(x))
    left = x - two.stages[0].decode(codes[:, 0])
    assert torch.equal(codes[:, 1], two.stages[1].encode(left))
    one_error = float((left**2).mean())
    assert float(((x - two.decode(codes)) ** 2).mean()) < one_error / 2
    q = _vectors(3, seed=2)
    table = two.tables(q)
    assert table.shape == (3, 2, 2, 16)
    sums = sum(table[:, s, m, codes[:, s, m]] for s in range(2) for m in range(2))
    torch.testing.assert_close(sums, q @ two.decode(codes).T, rtol=1e-4, atol=1e-3)


def test_rejects() -> None:
    with pytest.raises(
        ConfigError, match=r"^ProductShape\.dim must be a multiple of subspaces = 5"
    ):
        ProductShape(dim=12, subspaces=5)
    with pytest.raises(ConfigError, match=r"^ProductShape\.bits must be 2\.\.16, not 1$"):
        ProductShape(dim=12, subspaces=4, bits=1)
    x = _vectors(623)
    few = Training(few=True)
    message = r"^training vectors must be at least 624 for 16 entries, not 623$"
    with pytest.raises(ConfigError, match=message):
        ProductQuantizer.train(x, SHAPE)
    assert ProductQuantizer.train(x, SHAPE, training=Training(few=True)).codebook.shape == (
        4,
        16,
        3,
    )
    with pytest.raises(ConfigError, match=r"^training vectors must be at least 1 for"):
        ProductQuantizer.train(x[:0], SHAPE, training=few)
    with pytest.raises(ConfigError, match=r"^vectors must have 12 elements$"):
        ProductQuantizer.train(x[:, :6], SHAPE)
    with pytest.raises(ConfigError, match=r"^stages must be at least 1, not 0$"):
        ResidualQuantizer.train(x, SHAPE, 0)


# ---- exact codes


def _oracle(x: torch.Tensor, words: torch.Tensor, exponent: int) -> list[list[int]]:
    subspaces, _, sub = words.shape
    real = denormalised(words, exponent).tolist()
    result = []
    for row in float_from_bits(x).reshape(-1, subspaces, sub).tolist():
        codes = []
        for m in range(subspaces):
            distance = [
                sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(row[m], entry, strict=True))
                for entry in real[m]
            ]
            codes.append(distance.index(min(distance)))
        result.append(codes)
    return result


def _check(x: torch.Tensor, words: torch.Tensor, exponent: int, bits: int = 8) -> None:
    codes = exact_codes(x, words, exponent, bits)
    assert codes.tolist() == _oracle(x, words, exponent)


def _any_words(shape: tuple[int, ...], largest: int, seed: int) -> torch.Tensor:
    magnitude = torch.randint(0, largest + 1, shape, generator=_generator(seed))
    return magnitude | torch.randint(0, 2, shape, generator=_generator(seed + 1)) << 15


@pytest.mark.parametrize("exponent", [-8, 0, 15])
def test_exact_on_any_words(exponent: int) -> None:
    _check(_any_words((40, 6), 0x7BFF, 1), _any_words((3, 20, 2), 0x3C00, 3), exponent)


@pytest.mark.parametrize("exponent", [-8, -3, 7, 15])
def test_exact_where_entries_are_close(exponent: int) -> None:
    """Entries differ in their last bits, so that float64 cannot decide next to a large x."""
    words = 0x3C00 - _any_words((2, 16, 2), 3, 5) % 4
    words[:, :4] = _any_words((2, 4, 2), 2, 7)  # and subnormals
    x = _any_words((60, 4), 0x7BFF, 9)
    x[:20] = (x[:20] | 0x7800) & ~0x0400  # the largest ones
    x[20:40] &= 0x83FF  # subnormals
    _check(x, words, exponent)


def test_float64_alone_would_be_wrong() -> None:
    """One x of 65504 and one of 2**-24: the small one decides between the entries."""
    words = torch.tensor([[[0x3C00, 0x0000], [0x3C00, 0x0001], [0x3C00, 0x0002]]])
    for small, expected in ((0x0003, 2), (0x0000, 0), (0x8003, 0)):
        x = torch.tensor([[0x7BFF, small]])
        assert exact_codes(x, words, 0, 4).tolist() == [[expected]] == _oracle(x, words, 0)


def test_exact_ties_to_the_lowest_index() -> None:
    one, zero, minus = 0x3C00, 0, 0xBC00
    words = torch.tensor([[[one], [minus], [one], [zero], [zero]]])
    x = bits_from_float(torch.tensor([[0.0], [0.5], [-0.5], [1.0], [-7.0], [-0.0]]))
    assert exact_codes(x, words, 0, 3).flatten().tolist() == [3, 0, 1, 0, 1, 3]
    _check(x, words, 0)


def test_exact_follows_trained_codes(trained: ProductQuantizer) -> None:
    words, exponent = normalised(trained.codebook)
    x = _vectors(60, seed=4).half()
    codes = exact_codes(bits_from_float(x).reshape(6, 10, 12), words, exponent, 4)
    assert codes.shape == (6, 10, 4)
    stored = ProductQuantizer(denormalised(words, exponent))
    assert torch.equal(codes.reshape(60, 4), stored.encode(x.double()))


def test_exact_codes_reject() -> None:
    words = torch.zeros(2, 5, 2, dtype=torch.int64)
    x = torch.zeros(1, 4, dtype=torch.int64)
    assert exact_codes(x, words, 0, 3).tolist() == [[0, 0]]
    for bad in (0x7C00, 0xFC00, 0x7E00):
        with pytest.raises(ValueError, match=r"^x must be finite$"):
            exact_codes(x + bad, words, 0, 3)
    with pytest.raises(ConfigError, match=r"^codebook must have at most 4 entries, not 5$"):
        exact_codes(x, words, 0, 2)
    with pytest.raises(ConfigError, match=r"^codebook\[0\]\[0\]\[0\] must be an FP16 word"):
        exact_codes(x, words + 0x3C01, 0, 3)
    with pytest.raises(ConfigError, match=r"^exponent must be -8\.\.15, not 16$"):
        exact_codes(x, words, 16, 3)
    with pytest.raises(ConfigError, match=r"^vectors must have 4 elements, not 6$"):
        exact_codes(torch.zeros(1, 6, dtype=torch.int64), words, 0, 3)
