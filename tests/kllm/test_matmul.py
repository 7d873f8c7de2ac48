"""matmul and integer_matmul against rational arithmetic, bit for bit."""

import dataclasses
import random
from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.ops import bits_from_float, fixed_point
from golden.index.codebook import product_codebook
from golden.index.histogram import counts, integer_counts
from golden.kllm import matmul as matmul_module
from golden.kllm.format import Status, product_index
from golden.kllm.matmul import (
    dequantized_matmul,
    integer_matmul,
    matmul,
)
from golden.kllm.products import codebook_words, integer_words
from golden.kllm.records import Codebooks, Packet, Tokens, Weight

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
NAN = 0x7E00
NONFINITE = (0x7C00, 0xFC00, 0x7E00, 0x7C01)
# zero, smallest and largest subnormal, smallest normal, 1, largest finite
CORNERS = (0x0000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Thousands of tiny products: waking a second thread would cost more than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def value(word: int, frac_bits: int = 10, bias: int = 15, bits: int = 16) -> Fraction:
    """The rational that a finite binary16 or binary32 word represents."""
    sign = -1 if word >> (bits - 1) else 1
    exp = word >> frac_bits & (2 * bias + 1)
    frac = word & (2**frac_bits - 1)
    if exp == 0:
        return sign * frac * Fraction(2) ** (1 - bias - frac_bits)
    return sign * (2**frac_bits + frac) * Fraction(2) ** (exp - bias - frac_bits)


def nearest(x: Fraction, precision: int, exp_low: int, exp_high: int) -> Fraction | None:
    """``x`` rounded to nearest even at ``precision`` bits; None beyond the largest finite."""
    if x == 0:
        return Fraction(0)
    # Denominators are powers of two, so lengths give the exponent.
    exp = max(exp_low, abs(x.numerator).bit_length() - x.denominator.bit_length())
    place = Fraction(2) ** (exp - precision + 1)
    rounded = round(x / place) * place
    return None if abs(rounded) >= Fraction(2) ** (exp_high + 1) else rounded


def rne16(x: Fraction) -> Fraction | None:
    return nearest(x, 11, -14, 15)


def rne32(x: Fraction) -> Fraction:
    rounded = nearest(x, 24, -126, 127)
    assert rounded is not None
    return rounded


def word16(x: Fraction | None, negative: bool) -> int:
    """Word of a value that binary16 holds exactly; None is infinity."""
    sign = 0x8000 if negative else 0
    if x is None:
        return sign | 0x7C00
    magnitude = abs(x)
    if magnitude < Fraction(2) ** -14:
        return sign | int(magnitude * 2**24)
    exp = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    magnitude /= Fraction(2) ** exp
    return sign | (exp + 15) << 10 | int((magnitude - 1) * 1024)


def reference(d: Fraction, s: Fraction, s_a: int, s_b: int) -> tuple[int, int]:
    """Y word and status of one output from the exact sums."""
    if s_a & 0x7C00 == 0x7C00:
        return NAN, int(Status.NONFINITE)
    # Neither sum is -0 and x + (+0) is never -0, so a zero t is +0.
    t = rne32(value(s_a) * rne32(d) + rne32(s))
    negative = (t < 0) != bool(s_b >> 15)
    if s_b & 0x7C00 == 0x7C00:
        special = NAN if s_b & 0x03FF or t == 0 else 0x7C00 | negative << 15
        return special, int(Status.SCALE_NONFINITE)
    y = rne16(t * value(s_b))
    return word16(y, negative), int(Status.OVERFLOW) if y is None else 0


def finite(rng: random.Random) -> int:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(CORNERS) | rng.getrandbits(1) << 15
    if kind == 1:  # around 1: sums neither vanish nor overflow
        return rng.randrange(0x3000, 0x4400) | rng.getrandbits(1) << 15
    return rng.randrange(0x7C00) | rng.getrandbits(1) << 15


def scale(rng: random.Random) -> int:
    return rng.choice(NONFINITE) if rng.random() < 0.03 else finite(rng)


def codebook(rng: random.Random, bits: int) -> list[int]:
    kind = rng.randrange(3)
    span = (0x0400, 0x3C01, 0x3C01)[kind]  # all subnormal, or anything up to 1
    low = 0x3000 if kind == 2 else 0
    return [rng.randrange(low, span) | rng.getrandbits(1) << 15 for _ in range(1 << bits)]


def length(rng: random.Random) -> int:
    return rng.choice((1, 1, 2, 3, 15, 16, 17, rng.randrange(1, 24)))


def tensor(values: list, device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def stored(entry: Fraction, product: str) -> Fraction:
    """A product of two centroids as ``product`` stores it; ``round`` is to nearest even."""
    if product in ("fixed16", "fixed12"):
        ones = 1 << int(product.removeprefix("fixed")) - 2
        return Fraction(round(entry * ones), ones)
    return entry if product == "exact" else rne16(entry)


@pytest.mark.parametrize(
    ("product", "word", "message"),
    [
        ("exact", 0, "product must be rounded or fixed16 or fixed12, not 'exact'"),
        ("rounded", 0x3C01, "packet must have words in -1..1"),
        ("fixed16", 0x4001, "packet must have words in -1..1"),
        ("fixed16", 0xBFFF, "packet must have words in -1..1"),
        ("fixed12", 0x0401, "packet must have words in -1..1"),
    ],
)
def test_a_packet_refuses(product: str, word: int, message: str) -> None:
    """Exact products, and a product that its word cannot hold. Shown to fail: no such check."""
    packet = Packet(torch.zeros(16 + 4, dtype=torch.int64), 2, 2, product)
    packet.words[3] = word
    one = torch.tensor([0x3C00])
    zeros = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ConfigError) as error:
        matmul(Tokens(zeros, zeros.bool(), zeros, one), Weight(zeros, one), packet)
    assert str(error.value) == message


@pytest.mark.parametrize("antisymmetric", [False, True])
@pytest.mark.parametrize("product", ["rounded", "fixed16", "fixed12"])
def test_a_packet_has_the_products_of_its_codebooks(product: str, antisymmetric: bool) -> None:
    """Shown to fail: words of another grid; an upper half that is not mirrored."""
    rng = random.Random(f"packet {product}")
    for _ in range(20):
        a, b = tensor(codebook(rng, 3), "cpu"), tensor(codebook(rng, 4), "cpu")
        if antisymmetric:
            b = torch.cat([b[8:].flip(0) ^ 0x8000, b[8:]])
        ia = tensor([[rng.randrange(8) for _ in range(9)]], "cpu")
        ib = tensor([[rng.randrange(16) for _ in range(5)] for _ in range(9)], "cpu")
        tokens = Tokens(ia, ia > 5, torch.full_like(ia, 0x4100), tensor([0x3800], "cpu"))
        weight = Weight(ib, tensor([finite(rng) for _ in range(5)], "cpu"))
        words = codebook_words(a, b, product, antisymmetric)
        assert len(words) == 9 * (8 if antisymmetric else 16)
        packet = Packet(words, 3, 4, product, antisymmetric)
        of_packet, of_books = (
            matmul(tokens, weight, books) for books in (packet, Codebooks(a, b, product))
        )
        assert torch.equal(of_packet.y, of_books.y)
        assert torch.equal(of_packet.d, of_books.d)
        v = Packet(integer_words(b, 3, product, antisymmetric), 3, 4, product, antisymmetric)
        whole = Packet(integer_words(b, 3, product), 3, 4, product)
        integers = Tokens.integers(ia * 30, tokens.scale)
        made, expected = (integer_matmul(integers, weight, each) for each in (v, whole))
        assert torch.equal(made.y, expected.y)
        assert torch.equal(made.d, expected.d)


def test_a_packet_of_half_a_codebook_needs_an_antisymmetric_one() -> None:
    book = tensor([0xBC00, 0xB800, 0x3800, 0x3BFF], "cpu")
    with pytest.raises(ConfigError) as error:
        codebook_words(book, book, "fixed16", antisymmetric=True)
    assert str(error.value) == "codebook_b must be antisymmetric: c[i] = -c[3 - i]"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("product", ["rounded", "exact", "fixed16", "fixed12"])
def test_kmeans_equals_rational_arithmetic(product: str, device: str) -> None:
    """4,000 outputs a product; K = 1, K % 16 != 0, outliers only, extreme values.

    Shown to fail: fixed products rounded down, and ties away from zero.
    """
    rng = random.Random(f"kmeans {product}")
    seen = 0
    outputs = 8
    for _ in range(500):
        bits_a, bits_b, k = rng.randint(2, 4), rng.randint(2, 4), length(rng)
        c_a, c_b = codebook(rng, bits_a), codebook(rng, bits_b)
        ia = [rng.randrange(1 << bits_a) for _ in range(k)]
        share = rng.choice((0.0, 0.1, 0.5, 1.0))
        out = [rng.random() < share for _ in range(k)]
        x = [finite(rng) for _ in range(k)]
        ib = [[rng.randrange(1 << bits_b) for _ in range(outputs)] for _ in range(k)]
        s_a = scale(rng)
        s_b = [finite(rng) for _ in range(outputs)]
        if rng.random() < 0.05:
            s_b[rng.randrange(outputs)] = rng.choice(NONFINITE)
        result = matmul(
            Tokens(
                tensor([ia], device),
                tensor([out], device).bool(),
                tensor([x], device),
                tensor([s_a], device),
            ),
            Weight(tensor(ib, device), tensor(s_b, device)),
            Codebooks(tensor(c_a, device), tensor(c_b, device), product),
        )
        table = [[value(a) * value(b) for b in c_b] for a in c_a]
        if product != "exact":
            table = [[stored(p, product) for p in row] for row in table]
        status = 0
        for n in range(outputs):
            d = sum((table[ia[i]][ib[i][n]] for i in range(k) if not out[i]), Fraction(0))
            s = sum((value(x[i]) * value(c_b[ib[i][n]]) for i in range(k) if out[i]), Fraction(0))
            y, bit = reference(d, s, s_a, s_b[n])
            assert int(result.y[0, n]) == y, f"{ia} {out} {x} {ib} {s_a:#x} {s_b[n]:#x}"
            assert int(result.d[0, n]) * Fraction(2) ** result.d_grid == d
            assert (int(result.s_hi[0, n]) * 2**62 + int(result.s_lo[0, n])) == s * 2**48
            status |= bit
            seen += 1
        if status & int(Status.NONFINITE):
            status = int(Status.NONFINITE)
        assert int(result.status[0]) == status
    assert seen == 4000


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("product", [None, "rounded", "fixed16", "fixed12"])
def test_integer_equals_rational_arithmetic(product: str | None, device: str) -> None:
    """C_V as FP16 words, and as the words of a packet.

    Shown to fail: the grid of products in place of that of C_V.
    """
    rng = random.Random("integer")
    outputs = 8
    for _ in range(250):
        int_bits, bits_b, k = rng.choice((4, 8)), rng.randint(2, 4), length(rng)
        c_v = codebook(rng, bits_b)
        top = rng.choice((0, 1, (1 << int_bits) - 1))
        a = [rng.choice((top, rng.randrange(1 << int_bits))) for _ in range(k)]
        ib = [[rng.randrange(1 << bits_b) for _ in range(outputs)] for _ in range(k)]
        s_a, s_b = scale(rng), [finite(rng) for _ in range(outputs)]
        book, bits_a = tensor(c_v, device), rng.randint(2, 4)
        centroid = [value(word) for word in c_v]
        if product in ("fixed16", "fixed12"):
            ones = 1 << int(product.removeprefix("fixed")) - 1 - bits_a
            centroid = [Fraction(round(each * ones), ones) for each in centroid]
        result = integer_matmul(
            Tokens.integers(tensor([a], device), tensor([s_a], device)),
            Weight(tensor(ib, device), tensor(s_b, device)),
            book
            if product is None
            else Packet(integer_words(book, bits_a, product), bits_a, bits_b, product),
            int_bits,
        )
        for n in range(outputs):
            d = sum((a[i] * centroid[ib[i][n]] for i in range(k)), Fraction(0))
            assert int(result.d[0, n]) * Fraction(2) ** result.d_grid == d
            assert int(result.y[0, n]) == reference(d, Fraction(0), s_a, s_b[n])[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("centroid", [0x3C00, 0xBC00, 0x0001, 0x8001, 0x03FF])
@pytest.mark.parametrize("product", ["rounded", "exact", "fixed16"])
def test_longest_request_is_exact(centroid: int, product: str, device: str) -> None:
    """All-largest, all-smallest and all-subnormal operands at K = 16383: no sum overflows."""
    k = 16383
    book = tensor([centroid] * 4, device)
    zeros = torch.zeros(1, k, dtype=torch.int64, device=device)
    for outlier, x in (False, 0), (True, 0x7BFF), (True, 0xFBFF), (True, 0x0001):
        one = tensor([0x3C00], device)
        result = matmul(
            Tokens(zeros, torch.full_like(zeros, outlier).bool(), zeros + x, one),
            Weight(zeros.reshape(k, 1), one),
            Codebooks(book, book, product),
        )
        entry = value(centroid) ** 2
        d = k * stored(entry, product) * (not outlier)
        s = k * value(x) * value(centroid) * outlier
        assert int(result.d) * Fraction(2) ** result.d_grid == d
        assert int(result.s_hi) * 2**62 + int(result.s_lo) == s * 2**48
        assert int(result.y) == reference(d, s, 0x3C00, 0x3C00)[0]


@pytest.mark.parametrize("product", ["rounded", "fixed16", "fixed12"])
def test_short_cuts_change_no_bit(product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in float32, and outliers one by one, against one sum in float64 for all of them.

    Tokens have 0, 1, 2 .. outliers. Shown to fail: float32 beyond 2**24, an outlier left out.
    """
    rng = random.Random(f"short cuts {product}")
    tokens, k, n = 9, 1536, 20
    a, b = (bits_from_float(tensor(range(-8, 8), "cpu") / each) for each in (9.1, 8.3))
    books = Codebooks(a, b, product)
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(0, 16, (tokens, k), generator=generator)
    places = torch.rand(tokens, k, generator=generator).argsort()
    outlier = places < torch.arange(tokens)[:, None]
    words = tensor([[finite(rng) for _ in range(k)] for _ in range(tokens)], "cpu")
    scale = tensor([0x3C00] * tokens, "cpu")
    weight = Weight(torch.randint(0, 16, (k, n), generator=generator), tensor([0x3C00] * n, "cpu"))
    found = matmul(Tokens(index, outlier, words, scale), weight, books)
    monkeypatch.setattr(matmul_module, "_FLOAT32_EXACT", 0)
    monkeypatch.setattr(matmul_module, "_FEW", 0)
    plain = matmul(Tokens(index, outlier, words, scale), weight, books)
    for field in ("d", "s_hi", "s_lo", "t", "y", "status"):
        assert torch.equal(getattr(found, field), getattr(plain, field)), field


Operands = tuple[Tokens, Weight, Codebooks]


def _case(tokens: int, k: int, n: int, seed: int = 0) -> Operands:
    g = torch.Generator().manual_seed(seed)

    def words(*shape: int) -> torch.Tensor:
        return (torch.rand(shape, generator=g) * 2 - 1).half().view(torch.int16).long() & 0xFFFF

    return (
        Tokens(
            torch.randint(0, 16, (tokens, k), generator=g),
            torch.rand(tokens, k, generator=g) < 0.02,
            words(tokens, k),
            words(tokens),
        ),
        Weight(torch.randint(0, 8, (k, n), generator=g), words(n)),
        Codebooks(words(16), words(8)),
    )


def test_histogram_times_products_is_the_dense_sum() -> None:
    tokens, weight, books = _case(3, 77, 19)
    bins = counts(tokens.index, tokens.outlier, weight.index, 4, 3)
    for t in range(3):
        for n in range(19):
            expected = [0] * 128
            for i in range(77):
                if not tokens.outlier[t, i]:
                    a, b = int(tokens.index[t, i]), int(weight.index[i, n])
                    expected[product_index(a, b, 3)] += 1
            assert bins[t, n].tolist() == expected
    products = fixed_point(product_codebook(books.a, books.b))
    assert torch.equal((bins * products).sum(-1), matmul(tokens, weight, books).d)


def test_integer_counts_are_weighted() -> None:
    a = torch.tensor([[5, 250, 7]])
    idx_b = torch.tensor([[0, 3], [0, 3], [2, 1]])
    assert integer_counts(a, idx_b, 2).tolist() == [[[255, 0, 7, 0], [0, 7, 0, 255]]]


def test_plain_reference_is_near() -> None:
    case = _case(4, 300, 40)
    y = matmul(*case).y.to(torch.int16).view(torch.float16).double()
    reference_y = dequantized_matmul(*case)
    assert (y - reference_y).norm() <= 1e-2 * reference_y.norm()


@pytest.mark.parametrize(("k", "status"), [(0, Status.LENGTH_ZERO), (5, Status.LENGTH_TOO_LONG)])
def test_impossible_length_has_status_and_no_output(k: int, status: Status) -> None:
    result = matmul(*_case(2, k, 3), k_max=4)
    assert result.status.tolist() == [int(status)] * 2
    assert not bool(result.has_output.any())


def test_nonfinite_outlier_silences_its_token_alone() -> None:
    tokens, weight, books = _case(3, 8, 2)
    tokens.outlier[:] = False
    tokens.outlier[1, 4] = True
    tokens.words[1, 4] = 0x7C00
    tokens.words[0, 0] = 0x7C00  # not an outlier: never read
    result = matmul(tokens, weight, books)
    assert result.status.tolist() == [0, int(Status.NONFINITE), 0]
    assert result.y[1].tolist() == [NAN, NAN]


def test_rejects_codebook_entry_beyond_one() -> None:
    tokens, weight, books = _case(1, 4, 2)
    books.b[5] = 0x3C01
    with pytest.raises(
        ConfigError, match=r"^codebook_b\[5\] must be an FP16 word in -1..1, not 0x3c01$"
    ):
        matmul(tokens, weight, books)
    books = dataclasses.replace(books, b=books.b[:7])
    with pytest.raises(ConfigError, match=r"^codebook_b must have 4 or 8 or 16 entries, not 7$"):
        matmul(tokens, weight, books)
