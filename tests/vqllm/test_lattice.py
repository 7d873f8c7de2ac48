"""E8P against its definition, all 65,536 points as integers, and searches of all of them.

Shown to fail with:

- bit 7 of a code read as the sign of element 7; a shift that is not scaled with its stage
- element 7 of an entry positive where the sum of the magnitudes is odd
- padding from the end of its shell; one entry of norm 10 left out
- an encoder that keeps a wrong parity, that changes the last sign, or that prefers the upper shift
- the vector rounded to a grid that stage 2 leaves; a kind of magnitudes left out
- of equal elements the earlier one with the larger magnitude
- look-ups of the lower bits of codes; signs and shifts that a new order loses
"""

import itertools
import math
from fractions import Fraction

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.llm.reports.lattice import PAGE, main
from golden.vqllm import lattice
from golden.vqllm.access import look_ups, reordered
from golden.vqllm.config import NAMED, MatrixShape, VqShape
from golden.vqllm.matrix import VqMatrix, quantize
from golden.vqllm.product import by_dequantizing, by_tables
from tests.exact import rounded

CODES = torch.arange(1 << 16)
POINTS = lattice.points(CODES)  # in quarters
UNIT = 1 << 10  # a quarter, of the encoder's grid 2**-12


def test_entries_are_the_short_vectors():
    """Element by element in halves: signs, order, and how many there are of each norm."""
    found = [tuple(each) for each in lattice.entries().tolist()]
    assert len(set(found)) == 256
    for each in found:
        assert all(k > 0 for k in each[:7])
        assert all(k % 2 for k in each)
        assert sum(each) % 4 == 0  # in halves: the sum is even
    norms = [sum(k * k for k in each) // 4 for each in found]
    assert norms == sorted(norms)
    # Of 8 elements, some are 3/2 and some 5/2 in place of 1/2.
    whole = {
        norm: sum(
            math.comb(8, few) * math.comb(8 - few, many)
            for few, many in itertools.product(range(3), range(9))
            if 2 + 6 * few + 2 * many == norm and few + many <= 8
        )
        for norm in (2, 4, 6, 8, 10)
    }
    assert {norm: norms.count(norm) for norm in set(norms)} == whole | {12: 29}
    padding = [tuple(map(abs, each)) for each in found[227:]]
    shell = sorted(each for each in itertools.product((1, 3), repeat=8) if sum(each) == 18)
    assert padding == shell[:29]


def test_points_are_of_the_shifted_lattice():
    """All are different, and a quarter below each lies in E8: whole or half numbers, even sum."""
    assert len(POINTS.unique(dim=0)) == 1 << 16
    below = POINTS - 1
    halves = below // 2
    assert bool((below == 2 * halves).all())
    assert bool(((halves % 2).amin(1) == (halves % 2).amax(1)).all())
    assert bool((halves.sum(1) % 4 == 0).all())


def test_codes_bit_by_bit():
    assert POINTS[0x01C5].tolist() == [-1, 3, -1, 3, 3, 3, -1, 7]  # the example of the page
    for code in torch.randint(0, 1 << 16, (200,), generator=_generator()).tolist():
        entry = lattice.entries()[code >> 8].tolist()
        signs = [code >> i & 1 for i in range(7)]
        signs.append(sum(signs) % 2)
        shift = Fraction(1, 4) if code >> 7 & 1 else -Fraction(1, 4)
        point = [Fraction(k, 2) * (-1) ** s + shift for k, s in zip(entry, signs, strict=True)]
        assert [4 * each for each in point] == POINTS[code].tolist()
        assert lattice.decode(torch.tensor([code])).tolist() == [float(each) for each in point]


def _generator(seed: int = 11) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _vectors(kind: str) -> torch.Tensor:
    generator = _generator()
    if kind == "normal":
        return torch.randn(80, 8, generator=generator)
    if kind == "large":
        return 20 * torch.randn(30, 8, generator=generator)
    if kind == "ties":  # on a grid as coarse as the points'
        return torch.randint(-12, 13, (120, 8), generator=generator) / 8
    if kind == "equal elements":
        return torch.randint(-8, 9, (30, 1), generator=generator) / 8 * torch.ones(8)
    return torch.cat((torch.zeros(1, 8), torch.full((1, 8), -0.0), 0.75 * torch.eye(8)))


def _search(units: torch.Tensor) -> torch.Tensor:
    """Codes of vectors (n, 8) in units of 2**-12: the first of the least exact distances."""
    points = POINTS.double() * UNIT
    found = []
    for vector in units.double():
        distance = ((vector - points) ** 2).sum(1)  # below 2**53
        found.append(int((distance == distance.min()).nonzero()[0]))
    return torch.tensor(found)


@pytest.mark.parametrize("kind", ["normal", "large", "ties", "equal elements", "zeros"])
def test_encoder_finds_the_nearest_of_all_points(kind):
    vectors = _vectors(kind)
    codes = lattice.encode(vectors)
    units = (vectors.double() * 4 * UNIT).round().clamp(-32 * 4 * UNIT, 32 * 4 * UNIT)
    assert torch.equal(codes[:, 0], _search(units))
    left = 4 * (units - POINTS[codes[:, 0]] * UNIT)
    assert torch.equal(codes[:, 1], _search(left.clamp(-32 * 4 * UNIT, 32 * 4 * UNIT)))
    assert torch.equal(lattice.encode(vectors, 1), codes[:, :1])


def test_points_encode_to_themselves():
    some = CODES[torch.randperm(1 << 16, generator=_generator())[:20000]]
    assert torch.equal(lattice.encode(POINTS[some] / 4, 1)[:, 0], some)


@pytest.mark.parametrize("stages", [1, 2])
def test_words_of_the_codebook_are_exact(stages):
    codes = torch.randint(0, 1 << 16, (2000, stages), generator=_generator())
    stored = lattice.codebook(stages)[torch.arange(stages), codes >> 8]
    words = lattice.summed(stored, codes)
    assert torch.equal(float_from_bits(words, FP16) * 4, lattice.decode(codes))
    assert bool((words & 0x7FFF <= 0x3C00).all())


def _random_matrix(seed: int = 3) -> VqMatrix:
    """Any words of at most 1 as codebooks, so that sums round."""
    shape = MatrixShape(rows=5, columns=24, vq=NAMED["quip4"])
    generator = _generator(seed)
    books = bits_from_float(torch.rand(1, 2, 256, 8, generator=generator) * 2 - 1)
    codes = torch.randint(0, 1 << 16, (5, 3, 2), generator=generator)
    return VqMatrix(shape, books, 0, codes)


def test_dequantized_is_one_rounding_of_entries_with_signs_and_shifts():
    matrix = _random_matrix()
    words = matrix.dequantized()
    for row, vector in itertools.product(range(5), range(3)):
        total = [Fraction(0)] * 8
        for stage, code in enumerate(matrix.codes[row, vector].tolist()):
            entry = float_from_bits(matrix.codebooks[0, stage, code >> 8], FP16).tolist()
            signs = [code >> i & 1 for i in range(7)]
            signs.append(sum(signs) % 2)
            step = Fraction(1 if code & 0x80 else -1, 1 << 4 + 2 * stage)
            for i in range(8):
                total[i] += Fraction(entry[i]) * (-1) ** signs[i] + step
        expected = [rounded(each, FP16) for each in total]
        assert words[row, 8 * vector : 8 * vector + 8].tolist() == expected


def test_product():
    matrix = _random_matrix()
    x = bits_from_float(torch.randn(2, 24, generator=_generator()))
    y, _ = by_dequantizing(x, matrix)
    weights = float_from_bits(matrix.dequantized(), FP16).tolist()
    for n, row in itertools.product(range(2), range(5)):
        pairs = zip(float_from_bits(x[n], FP16).tolist(), weights[row], strict=True)
        assert int(y[n, row]) == rounded(sum(Fraction(a) * Fraction(b) for a, b in pairs), FP16)


def test_look_ups_are_of_the_upper_bits():
    matrix = _random_matrix()
    counts = look_ups(matrix)
    assert counts.shape == (1, 2, 256)
    assert counts[0, 1, int(matrix.codes[2, 1, 1]) >> 8] >= 1
    assert int(counts.sum()) == 5 * 3 * 2
    found = reordered(matrix)
    assert torch.equal(found.dequantized(), matrix.dequantized())
    assert bool((look_ups(found).diff(dim=-1) <= 0).all())


def test_refused():
    matrix = _random_matrix()
    with pytest.raises(ConfigError, match=r"^tables must be of entries as they are stored, not of"):
        by_tables(torch.zeros(1, 24, dtype=torch.int64), matrix)
    with pytest.raises(ConfigError, match=r"^vq must not be a lattice, whose codebook is not"):
        quantize(torch.zeros(5, 24), matrix.shape)
    with pytest.raises(ConfigError, match=r"^vectors must have 8 elements, not 7$"):
        lattice.encode(torch.zeros(2, 7))
    with pytest.raises(ConfigError, match=r"^stages must be 1\.\.2, not 3$"):
        lattice.encode(torch.zeros(2, 8), 3)
    for fields, message in (
        ({"stages": 3}, r"VqShape\.stages must be 1\.\.2 with lattice, not 3"),
        ({"size": 4}, r"VqShape\.size must be 8 with lattice, not 4"),
        ({"entries": 256}, r"VqShape\.entries must be 65536 with lattice, not 256"),
        ({"lattice": 1}, r"VqShape\.lattice must be true or false, not 1"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}$"):
            VqShape(**{"entries": 1 << 16, "lattice": True, **fields})


def test_page_has_the_entries(capsys):
    """The report prints all tables; that of the entries is the page's."""
    assert main(["--vectors", "40"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("lattice_") == 4
    first, last = printed.index("| squared norm"), printed.index("\n\n\nlattice_padding")
    assert printed[first:last] in PAGE.read_text()
    with pytest.raises(SystemExit):
        main(["--vectors", "0"])
