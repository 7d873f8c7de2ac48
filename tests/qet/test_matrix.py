"""golden.qet.matrix against Algorithms 1 and 2 in exact fractions, and claims that need no data.

Shown to fail:

- a residual that is off by 2**-20;
- the exponent with the other sign;
- padding by zeros;
- codes of the centroids as they were trained;
- the seed of the caller ignored;
- parts in the order of all S before all L;
- equal distances never decided by integers, or without the first least one;
- FP32 without its last bits, or towards zero.
"""

import dataclasses
import itertools
from fractions import Fraction

import pytest
import torch

from golden.fp16.format import FP32
from golden.index.lloyd import Training
from golden.qet.config import FORMATS, Budget, QetShape, Stage
from golden.qet.matrix import QetMatrix, encode, quantize, residual, words_of
from golden.qet.nearest import nearest
from golden.qet.tiling import tiles_of
from tests.exact import exact, rounded


def fp16_matrix(rows, columns, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=generator) * scale).half()


def places(levels, columns):
    """Column of X* -> what Algorithm 1 puts there, by following positions alone."""
    parts = [list(range(columns))]
    for _ in range(levels):
        parts = [part[side::2] for part in parts for side in (0, 1)]
    return parts


def decoded_by_hand(made, row):
    """Algorithm 2 for one row, with fractions: the sum over stages, before its rounding.

    Without the exponent, as the entries are stored.
    """
    shape, total = made.shape, [Fraction(0)] * made.shape.padded
    format = FORMATS[shape.element_bits]
    for stage in made.stages:
        flat = []
        for group in range(shape.groups):
            for code in stage.entries[group, int(stage.codes[row, group])].tolist():
                if shape.entry_bits:
                    low, step = stage.ranges[group if shape.by_group else 0].tolist()
                    flat.append(Fraction(low + step * code, 1 << 24))
                else:
                    flat.append(exact(code, format))
        width = shape.padded >> stage.stage.levels
        parts = [flat[at : at + width] for at in range(0, len(flat), width)]
        for level in reversed(range(stage.stage.levels)):
            merged = []
            for number, (small, large) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
                pairs = stage.maps[level][row, number].tolist()
                merged.append(
                    list(
                        itertools.chain.from_iterable(
                            (b, a) if exchanged else (a, b)
                            for a, b, exchanged in zip(small, large, pairs, strict=True)
                        )
                    )
                )
            parts = merged
        total = [a + b for a, b in zip(total, parts[0], strict=True)]
    return total


@pytest.mark.parametrize(("entry_bits", "by_group"), [(6, False), (6, True), (0, False)])
@pytest.mark.parametrize("scale", [1.0, 0.01, 300.0])
@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (9, 63), (5, 65)])
def test_decoding_equals_exact_fractions(rows, columns, scale, entry_bits, by_group):
    stages = (Stage(levels=3, entries=4), Stage(levels=1, entries=3), Stage(levels=0, entries=2))
    shape = QetShape(
        rows=rows, columns=columns, element_bits=16, stages=stages,
        entry_bits=entry_bits, by_group=by_group,
    )  # fmt: skip
    matrix = fp16_matrix(rows, columns, scale=scale)
    made = quantize(matrix, shape)
    most = max(1 / 256, float(matrix.abs().max()))
    assert 2.0 ** (made.exponent - 1) < most <= 2.0**made.exponent
    words, scaled = made.words(), made.dequantized()
    for row in range(rows):
        expected = [rounded(value) for value in decoded_by_hand(made, row)]
        assert [word & 0xFFFF for word in words[row].tolist()] == expected
        real = [exact(word) * Fraction(2) ** made.exponent for word in expected[:columns]]
        assert [word & 0xFFFF for word in scaled[row].tolist()] == list(map(rounded, real))


def test_tiles_hold_the_words_of_exact_fractions():
    """Each tile has its own columns, padding too. Shown to fail: the last tile first."""
    stages = (Stage(levels=3, entries=4), Stage(levels=0, entries=2))
    shape = QetShape(rows=6, columns=130, element_bits=16, stages=stages, entry_bits=6)
    made = quantize(fp16_matrix(6, 130), shape)
    tiles = tiles_of(made)
    assert [tile.first for tile in tiles] == [0, 64, 128]
    for row in range(6):
        expected = [rounded(value) for value in decoded_by_hand(made, row)]
        for tile in tiles:
            found = [word & 0xFFFF for word in tile.words[row].tolist()]
            assert found == expected[tile.first : tile.first + 64]


@pytest.mark.parametrize("exponent", [0, -126, 90])
def test_fp32_is_rounded_as_fp16_is(exponent):
    """Two stages of many bits each: their sum has more than FP32 keeps, and is rounded once."""
    shape = QetShape(
        rows=40, columns=16, group=4, entry_bits=16,
        stages=(Stage(levels=1, entries=9), Stage(levels=0, entries=9)),
    )  # fmt: skip
    made = quantize(fp16_matrix(40, 16).float() * 1.7, shape)
    assert made.exponent > 0
    first, second = made.stages
    ranges = torch.tensor([[-(1 << 25) + 3, 1023]])
    first = dataclasses.replace(first, ranges=ranges)
    made = QetMatrix(shape, (first, second), exponent)
    words, scaled = made.words(), made.dequantized()
    ties = 0
    for row in range(40):
        sums = decoded_by_hand(made, row)
        ties += sum((value * (1 << 24)).numerator.bit_length() > 24 for value in sums)
        expected = [rounded(value, FP32) for value in sums]
        assert words[row].tolist() == expected
        real = [exact(word, FP32) * Fraction(2) ** exponent for word in expected]
        assert scaled[row].tolist() == [rounded(value, FP32) for value in real]
        assert made.real()[row].tolist() == [float(exact(w, FP32)) for w in scaled[row].tolist()]
    assert ties > 100


def test_a_residual_is_what_the_stage_before_leaves_rounded_once():
    shape = QetShape(
        rows=40, columns=32, element_bits=16, group=4, entry_bits=8,
        stages=(Stage(levels=2, entries=5), Stage(levels=1, entries=4)),
    )  # fmt: skip
    matrix = fp16_matrix(40, 32, scale=3.0)
    made = quantize(matrix, shape)
    first = made.stages[0]
    scale, words = Fraction(2) ** made.exponent, words_of(matrix, 16)
    found = residual(words, made.exponent, first, shape)
    for row in range(40):
        decoded = decoded_by_hand(QetMatrix(shape, (first,), made.exponent), row)
        pairs = zip(words[row].tolist(), decoded, strict=True)
        left = [
            rounded((Fraction(int(exact(word) / scale * 2**24), 1 << 24) - value) * scale)
            for word, value in pairs
        ]
        assert [word & 0x7FFF or 0 for word in left] == [w & 0x7FFF for w in found[row].tolist()]
        keys = [word ^ 0xFFFF if word >> 15 else word | 0x8000 for word in found[row].tolist()]
        swaps = [a > b for a, b in zip(keys[::2], keys[1::2], strict=True)]
        assert made.stages[1].maps[0][row, 0].tolist() == swaps


def test_columns_that_fill_a_tile_repeat_the_last_one():
    """No level exchanges equal neighbours, so a pair with padding has a map bit of 0."""
    shape = QetShape(rows=200, columns=65, stages=(Stage(levels=3, entries=4),))
    (stage,) = quantize(fp16_matrix(200, 65).float(), shape).stages
    assert not stage.maps[0][:, 0, 32:].any()
    assert stage.maps[0][:, 0, :32].any()


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("entry_bits", [0, 2, 4])
def test_codes_are_the_nearest_of_the_stored_entries(bits, entry_bits):
    """Counting in whole numbers finds the codes; two bits per element make many distances equal."""
    matrix = (fp16_matrix(60, 32, scale=0.4) * 16).round() / 16
    shape = QetShape(
        rows=60, columns=32, element_bits=bits, group=4, entry_bits=entry_bits,
        stages=(Stage(levels=2, entries=7),),
    )  # fmt: skip
    made = quantize(matrix.float(), shape)
    check_nearest(matrix, made)
    again = encode(matrix[:9].float(), made)
    assert torch.equal(again.stages[0].codes, made.stages[0].codes[:9])
    assert torch.equal(again.dequantized(), made.dequantized()[:9])
    check_nearest(matrix * 90, encode(matrix.float() * 90, made))  # far beyond the entries


def check_nearest(matrix, made):
    entries = made.stages[0].values(made.shape).tolist()
    for row, codes in zip(matrix.tolist(), made.stages[0].codes.tolist(), strict=True):
        most = 2**26 - 1
        whole = [int(value * 2.0 ** (24 - made.exponent)) for value in row]
        whole = sorted_parts([min(max(value, -most), most) for value in whole], 2)
        for group, code in enumerate(codes):
            x = whole[4 * group : 4 * group + 4]
            distances = [
                sum((a - b) ** 2 for a, b in zip(x, each, strict=True)) for each in entries[group]
            ]
            assert code == distances.index(min(distances))


@pytest.mark.parametrize("spread", [1, 1 << 20])
def test_equal_distances_give_the_first_entry(spread):
    """Entries around x, by which float64 cannot tell the nearest of large ones."""
    generator = torch.Generator().manual_seed(spread)
    x = torch.randint(-(1 << 26), 1 << 26, (3, 50, 8), generator=generator)
    entries = torch.randint(-spread, spread + 1, (3, 40, 8), generator=generator) + x[:, :1]
    entries[:, 20:] = entries[:, :20]
    found = nearest(x, entries)
    distance = (x[:, :, None] - entries[:, None]).square().sum(3)
    assert torch.equal(found, (distance == distance.amin(2, True)).byte().argmax(2))
    assert int(found.max()) < 20


def sorted_parts(values, levels):
    """X* of a row, by the text of section 3.2."""
    parts = [values]
    for _ in range(levels):
        split = []
        for part in parts:
            pairs = list(zip(part[::2], part[1::2], strict=True))
            split += [[min(pair) for pair in pairs], [max(pair) for pair in pairs]]
        parts = split
    return list(itertools.chain.from_iterable(parts))


def test_places_of_a_value_that_no_level_exchanges():
    """An ascending row: the parts hold the columns by their lowest bits, the first level first."""
    assert places(2, 8) == [[0, 4], [2, 6], [1, 5], [3, 7]]
    assert sorted_parts(list(range(8)), 2) == [0, 4, 2, 6, 1, 5, 3, 7]


def test_theorem_2_at_equal_entries():
    """One level of a normal matrix: 0.682 of the error of product quantization at the same k."""
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(20_000, 2, generator=generator)
    found = {}
    for levels in (0, 1):
        stage = Stage(levels=levels, entries=16)
        shape = QetShape(rows=20_000, columns=2, group=1, stages=(stage,), entry_bits=0)
        found[levels] = float(((quantize(matrix, shape).real() - matrix) ** 2).mean())
    assert found[1] / found[0] == pytest.approx(0.682, abs=0.03)


def test_more_stages_and_smaller_entries_are_better_on_normal_data():
    """The trends of Figures 3 and 5 at ratio 4; figures belong to the claims' own table."""
    generator = torch.Generator().manual_seed(0)
    matrix = 0.5 + 0.16 * torch.randn(512, 128, generator=generator)

    def error(levels, entry_bits):
        stages = tuple(Stage(levels=each) for each in levels)
        shares = (Fraction(1),) if len(stages) == 1 else (Fraction(7, 10), Fraction(3, 10))
        shape = QetShape(rows=512, columns=128, stages=stages, entry_bits=entry_bits)
        made = quantize(matrix, Budget(shares=shares).solve(shape))
        return float(((made.real() - matrix) ** 2).mean())

    product, vanilla, qet = error((0,), 0), error((3,), 0), error((3, 0), 10)
    assert qet < vanilla < product


def test_a_constant_matrix_and_one_entry_are_exact():
    for value in (0.0, -2.5):
        shape = QetShape(rows=3, columns=70, element_bits=16, stages=(Stage(entries=1),))
        made = quantize(torch.full((3, 70), value), shape)
        assert bool((made.real() == value).all())
        assert made.stages[0].stage.code_bits == 0


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    shape = QetShape(rows=50, columns=64, stages=(Stage(entries=4),))
    matrix = fp16_matrix(50, 64).float()

    def codes(seed):
        return quantize(matrix, shape, Training(seed=seed, few=True)).stages[0].codes

    assert torch.equal(codes(3), codes(3))
    assert not torch.equal(codes(3), codes(4))


@pytest.mark.parametrize(
    ("matrix", "bits", "line"),
    [
        (torch.tensor([[0.0, 1.0], [float("nan"), 2.0]]), 32,
         "matrix[1][0] must be a finite FP32 number, not nan"),
        (torch.tensor([[0.0, 1.0, -1e6]]), 16,
         "matrix[0][2] must be a finite FP16 number, not -1000000.0"),
        (torch.zeros(0, 4), 32, "matrix must have rows and columns, not the shape (0, 4)"),
        (torch.zeros(4), 32, "matrix must have rows and columns, not the shape (4,)"),
    ],
)  # fmt: skip
def test_a_matrix_that_is_refused(matrix, bits, line):
    with pytest.raises(ValueError, match="matrix") as error:
        words_of(matrix, bits)
    assert str(error.value) == line


def test_another_size_is_refused():
    with pytest.raises(ValueError, match=r"matrix must be \(3, 4\)"):
        quantize(torch.zeros(3, 5), QetShape(rows=3, columns=4))


def test_the_largest_and_the_smallest_matrix():
    for value, exponent in (65504.0, 15), (2.0**-24, -8), (1.0, 0), (1.0009765625, 1):
        shape = QetShape(rows=2, columns=64, element_bits=16, stages=(Stage(entries=1),))
        made = quantize(torch.full((2, 64), value), shape)
        assert made.exponent == exponent
        assert bool((made.real() == value).all())


@pytest.mark.parametrize("entry_bits", [2, 16])
def test_entries_stay_within_their_bounds(entry_bits):
    """A residual of a single entry may be twice as large as the matrix."""
    matrix = torch.full((4, 64), -65504.0)
    matrix[0] = 65504.0
    stages = (Stage(levels=0, entries=1), Stage(levels=0, entries=2))
    shape = QetShape(rows=4, columns=64, element_bits=16, stages=stages, entry_bits=entry_bits)
    made = quantize(matrix, shape)
    for stage in made.stages:
        assert int(stage.values(shape).abs().max()) <= 1 << 25
        assert int(stage.ranges[:, 1].min()) >= 0
