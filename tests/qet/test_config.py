"""golden.qet.config: bits of every part, and the largest codebooks that fit.

Shown to fail:

- ``floor(log2 k)`` bits for a code;
- one range for all groups;
- a search that ends one entry early;
- maps of columns without padding;
- a budget that does not subtract the maps.
"""

from fractions import Fraction

import pytest

from golden.config import ConfigError
from golden.qet.config import Budget, QetShape, Stage, swap_bits

PAPER = (Stage(levels=3), Stage(levels=0))


def shape(rows=1024, columns=512, stages=PAPER, **fields):
    return QetShape(rows=rows, columns=columns, stages=stages, **fields)


def entries(found):
    return [stage.entries for stage in found.stages]


@pytest.mark.parametrize(
    ("rows", "columns", "bits", "ratio", "expected"),
    [
        (11008, 4096, 32, 4, [3357, 770]),
        (1024, 512, 32, 4, [350, 110]),
        (1024, 512, 32, 16, [4, 2]),
        (4096, 4096, 16, 9, [2, 1]),
        (4096, 4096, 16, 10, [1, 1]),
    ],
)
def test_sizes_of_the_paper(rows, columns, bits, ratio, expected):
    found = Budget(ratio=Fraction(ratio)).solve(shape(rows, columns, element_bits=bits))
    assert entries(found) == expected
    assert found.ratio >= ratio


def by_hand(asked, ratio, share):
    """The largest k by counting up, from the sizes and the constraint of section 4.1 alone."""
    rows, columns, bits, group = asked.rows, asked.columns, asked.element_bits, asked.group
    entry_bits, by_group = asked.entry_bits, asked.by_group
    levels = [stage.levels for stage in asked.stages]
    tile = group * 2 ** max(levels)
    padded = (columns + tile - 1) // tile * tile
    maps = sum(rows * padded * level for level in levels)  # in halves of a bit
    free = Fraction(rows * columns * bits) / ratio - Fraction(maps, 2) - 8  # the exponent
    ranges = 0
    if entry_bits:
        ranges = 64 * (padded // group if by_group else 1)
    k = 0
    while k < rows:
        code = len(bin(k)) - 2 if k else 0  # ceil(log2(k + 1)), in binary digits of k
        need = (k + 1) * padded * (entry_bits or bits) + ranges + rows * padded // group * code
        if need > free * share:
            break
        k += 1
    return k


@pytest.mark.parametrize("ratio", [Fraction(2), Fraction(7, 2), Fraction(6), Fraction(9)])
@pytest.mark.parametrize("entry_bits", [0, 10])
@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("columns", [63, 64, 65, 512])
def test_budget_equals_counting(columns, by_group, entry_bits, ratio):
    shares = (Fraction(3, 5), Fraction(2, 5))
    asked = shape(300, columns, entry_bits=entry_bits, by_group=by_group)
    expected = [by_hand(asked, ratio, share) for share in shares]
    if 0 in expected:
        with pytest.raises(ConfigError, match="ratio must be at most"):
            Budget(ratio=ratio, shares=shares).solve(asked)
        return
    found = Budget(ratio=ratio, shares=shares).solve(asked)
    assert entries(found) == expected
    assert found.ratio >= ratio


def test_the_largest_ratio_can_be_reached_and_no_larger_one():
    asked = shape(200, 65)
    most = Budget().largest_ratio(asked)
    assert entries(Budget(ratio=most).solve(asked))[1] == 1
    with pytest.raises(ConfigError):
        Budget(ratio=most + Fraction(1, 1000)).solve(asked)


@pytest.mark.parametrize(
    ("ratio", "bits", "line"),
    [
        (11, 16, "ratio must be at most 10.6, not 11: the maps take 1.5 of 1.455 bits per element"),
        (21, 32, ("ratio must be at most 20.87, not 21: one entry per codebook of stage 1 takes "
                  "0.009888 of 0.007138 bits per element")),
    ],
)  # fmt: skip
def test_a_ratio_out_of_reach_says_what_takes_the_memory(ratio, bits, line):
    columns = 4096 if bits == 16 else 512
    rows = 4096 if bits == 16 else 1024
    with pytest.raises(ConfigError) as error:
        Budget(ratio=Fraction(ratio)).solve(shape(rows, columns, element_bits=bits))
    assert str(error.value) == line


def test_bits_of_a_tile():
    """A tile of 64 columns at three levels: 8 codes of each stage and 96 bits of maps per row."""
    found = shape(10, 576)
    assert (found.tile, found.tiles, found.padded) == (64, 9, 576)
    assert found.map_bits(found.stages[0]) == 10 * 9 * 96
    assert found.groups == 9 * 8
    assert [swap_bits(levels) for levels in range(6)] == [0, 1, 4, 12, 32, 80]
    assert shape(10, 577).padded == 640


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: shape(stages=()), "QetShape.stages must be 1..4 of them, not ()"),
        (lambda: shape(entry_bits=1), "QetShape.entry_bits must be 2..16, not 1"),
        (lambda: Budget(ratio=Fraction(0)), "Budget.ratio must be above 0, not 0"),
        (lambda: Budget(shares=(Fraction(1), Fraction(1, 2))),
         "Budget.shares must be above 0 and at most 1 together, not 1,1/2"),
        (lambda: Budget(shares=(Fraction(1),)).solve(shape()),
         "Budget.shares must be 2, one for each stage, not 1"),
    ],
)  # fmt: skip
def test_rejects(make, line):
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == line
