"""Two to five groups, the literal Eq. 4 and the baselines, against rationals written out here.

Shown to fail:

- shift of a group by its other boundary;
- middle and last group exchanged;
- group values not masked in a pass;
- entry bits not padded;
- Min without the zeros of the other groups.
"""

import random
from fractions import Fraction

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.llm.eval.fake.grids import kivi_keys, kivi_values, uniform_grid
from golden.oaken.format import effective_bits
from golden.oaken.groups import (
    Ratios,
    check_intervals,
    group_index,
    restore,
    restore_artifact,
    thresholds_of,
)
from golden.oaken.quantize import ThresholdsError, decode, encode
from golden.oaken.thresholds import ordered

INTERVALS = {  # lower, upper, outermost first
    "4/90/6": [[0xBC00, 0x3C00], [0xA000, 0x2000]],
    "2/2/90/6": [[0xC000, 0x4100], [0xBC00, 0x3C00], [0xA000, 0x2000]],
    "4/90/3/3": [[0xBC00, 0x3C00], [0xA800, 0x2800], [0x8001, 0x2000]],
    "2/2/90/3/3": [[0xC000, 0x4100], [0xBC00, 0x3C00], [0xA800, 0x2800], [0xA000, 0x2000]],
    "90/10": [[0xFBFF, 0x7BFF], [0xA000, 0x2000]],
    "10/90": [[0xBC00, 0x3C00], [0, 0]],
}


def words(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return bits_from_float(torch.randn(shape, generator=g, dtype=torch.float64) * scale)


def literal(x: list[Fraction], intervals: list, middle: int, bits: int) -> list[Fraction]:
    """Eq. 1 to 4 on one vector, exactly; the side of x is known when it comes back."""
    group = [sum(lo <= v <= hi for lo, hi in intervals) for v in x]
    back = [Fraction(0)] * len(x)
    for g in range(len(intervals) + 1):
        shift = [Fraction(0) if g == len(intervals) else intervals[g][v > 0] for v in x]
        shifted = [
            v - s if h == g else Fraction(0) for v, s, h in zip(x, shift, group, strict=True)
        ]
        low, high = min(shifted), max(shifted)
        top = 2 ** (4 if g == middle else bits) - 1
        for i, h in enumerate(group):
            if h == g:
                q = round((shifted[i] - low) * top / (high - low)) if high > low else 0
                back[i] = q * (high - low) / top + low + shift[i]
    return back


@pytest.mark.parametrize("ratios", INTERVALS)
def test_groups_of_every_value(ratios: str, seed: int) -> None:
    on = torch.tensor(INTERVALS[ratios]).flatten()  # values at a boundary, and next to it
    x = torch.cat([words((4, 64), seed).flatten(), on, on ^ 1])[None]
    x = x[:, (x[0] & 0x7FFF) < 0x7C00]
    bounds = float_from_bits(torch.tensor(INTERVALS[ratios])).tolist()
    index = group_index(x, INTERVALS[ratios])
    for row, got in zip(float_from_bits(x).tolist(), index.tolist(), strict=True):
        assert got == [sum(lo <= v <= hi for lo, hi in bounds) for v in row]
    assert len(bounds) == Ratios.parse(ratios).intervals


@pytest.mark.parametrize("ratios", ["4/90/6", "90/10", "10/90"])
@pytest.mark.parametrize("scale", [0.02, 1.0, 3000.0])
def test_up_to_three_groups_equal_the_records(ratios: str, scale: float, seed: int) -> None:
    x = words((20, 64), seed, scale)
    intervals = INTERVALS[ratios]
    t = thresholds_of(intervals)
    assert torch.equal(restore(x, intervals, 1), decode(encode(x, t), t))


def test_a_group_is_not_moved_by_the_others(seed: int) -> None:
    """Values of one group come back alike, whatever their neighbours are."""
    rng = random.Random(seed)
    intervals = INTERVALS["2/2/90/3/3"]
    x = words((1, 64), seed)
    whole, index = restore(x, intervals, 2), group_index(x, intervals)
    for group in range(5):
        mine = index == group
        other = torch.where(mine, x, words((1, 64), rng.randrange(1 << 30), 0.3))
        moved = (group_index(other, intervals) == group) & ~mine
        other = torch.where(moved, 0x3800 if group != 2 else 0x0000, other)
        assert torch.equal(restore(other, intervals, 2)[mine], whole[mine])


@pytest.mark.parametrize("ratios", ["2/2/90/6", "4/90/3/3", "2/2/90/3/3"])
@pytest.mark.parametrize("bits", [4, 5])
def test_more_groups_are_coded_as_the_outer_one(ratios: str, bits: int, seed: int) -> None:
    """Distance from the boundary towards zero, in steps of its largest over 2**(bits - 1) - 1."""
    x = words((6, 64), seed)
    parsed = Ratios.parse(ratios)
    bounds = float_from_bits(torch.tensor(INTERVALS[ratios]))
    back = float_from_bits(restore(x, INTERVALS[ratios], parsed.middle_index, bits))
    index, value = group_index(x, INTERVALS[ratios]), float_from_bits(x)
    for row in range(len(x)):
        for group in range(len(bounds)):
            if group == parsed.middle_index:
                continue
            for side, sign in ((0, -1), (1, 1)):
                mine = (index[row] == group) & (value[row] * sign > 0)
                if mine.any():
                    distance = (value[row][mine] - bounds[group, side]).abs()
                    step = distance.max() / (2 ** (bits - 1) - 1)
                    ulp = value[row][mine].abs().max() / 1024
                    found = (back[row][mine] - bounds[group, side]).abs()
                    assert ((found / step).round() * step - found).abs().max() <= ulp + step / 50
                    assert (found - distance).abs().max() <= 0.53 * step + ulp


@pytest.mark.parametrize("ratios", INTERVALS)
def test_literal_equations(ratios: str, seed: int) -> None:
    x = words((5, 32), seed)
    middle = Ratios.parse(ratios).middle_index
    bounds = [
        tuple(map(Fraction, pair))
        for pair in float_from_bits(torch.tensor(INTERVALS[ratios])).tolist()
    ]
    got = float_from_bits(restore_artifact(x, INTERVALS[ratios], middle))
    for row in range(5):
        exact = literal([Fraction(v) for v in float_from_bits(x[row]).tolist()], bounds, middle, 5)
        for mine, theirs in zip(got[row].tolist(), exact, strict=True):
            assert abs(Fraction(mine) - theirs) <= abs(theirs) / 2000 + Fraction(1, 1 << 24)


def test_scale_of_the_whole_window(seed: int) -> None:
    """One token twice: the same with either scale. Two sizes of tokens: not the same."""
    x = words((1, 64), seed).repeat(2, 1)
    once = restore_artifact(x, INTERVALS["4/90/6"])
    assert torch.equal(restore_artifact(x, INTERVALS["4/90/6"], whole=True), once)
    x = torch.cat([x, words((1, 64), seed + 1, 10.0)])
    both = restore_artifact(x, INTERVALS["4/90/6"], whole=True)
    assert not torch.equal(both[:2], once)


def test_ratios() -> None:
    ratios = Ratios.parse("2/2/90/6")
    assert ratios.outer == (Fraction(1, 50), Fraction(1, 50))
    assert ratios.inner == (Fraction(3, 50),)
    assert (ratios.groups, ratios.intervals, ratios.middle_index) == (4, 3, 2)
    assert str(ratios) == "2/2/90/6"
    assert Ratios.parse("10/90").middle_index == Ratios.parse("90/10").middle_index == 1
    assert str(Ratios()) == "4/90/6"
    assert str(Ratios.parse("2.5/91/6.5")) == "2.5/91/6.5"


@pytest.mark.parametrize(
    "text", ["", "100", "50/60", "4/90", "a/b", "1/1/1/97", "90/4/3/3", "0/94/6", "-4/98/6"]
)
def test_ratios_that_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^(ratios|every group)[^\n]*$"):
        Ratios.parse(text)


@pytest.mark.parametrize(
    ("text", "outlier_bits", "entry", "paper"),
    [
        ("4/90/6", 5, 8, 4.8),
        ("90/10", 5, 8, 4.8),
        ("10/90", 5, 8, 4.8),
        ("4/90/3/3", 5, 16, 5.6),
        ("2/2/90/6", 5, 16, 5.6),
        ("2/2/90/3/3", 5, 16, 5.6),
        ("4/90/3/3", 4, 8, 4.8),
        ("2/2/90/6", 4, 8, 4.8),
        ("2/2/90/3/3", 4, 8, 4.8),
    ],
)
def test_bits_of_table_3(text: str, outlier_bits: int, entry: int, paper: float) -> None:
    ratios = Ratios.parse(text)
    assert ratios.entry_bits(outlier_bits) == entry
    assert ratios.paper_bits(outlier_bits) == pytest.approx(paper)
    stored = ratios.stored_bits(Fraction(1, 10), 4096, 64, outlier_bits)
    assert stored == pytest.approx(paper + 8 / 64 + 32 * max(3, ratios.groups) / 4096)
    if ratios.groups <= 3:
        assert stored == effective_bits(Fraction(1, 10), 4096)


@pytest.mark.parametrize(
    "intervals",
    [
        [[0xBC00, 0x3C00]],
        [[0xA000, 0x2000], [0xBC00, 0x3C00]],
        [[0xBC00, 0x3C00], [0, 0], [0, 0]],
        [[0xBC00, 0x3C00, 0], [0, 0, 0]],
    ],
)
def test_intervals_that_are_refused(intervals: list) -> None:
    with pytest.raises(ThresholdsError):
        check_intervals(intervals)


def test_an_inner_group_is_never_shifted_by_zero(seed: int) -> None:
    x = words((1, 64), seed)
    with pytest.raises(ThresholdsError):
        restore(x, [[0xBC00, 0x3C00], [0xA800, 0x2800], [0, 0x2000]], 1)
    zeros = torch.zeros(4, 2, dtype=torch.float64)
    assert ordered(zeros, Ratios.parse("2/2/90/3/3"))[-1].tolist() == [0x8001, 0x0001]


def test_four_thresholds_only_of_three_groups() -> None:
    assert thresholds_of(INTERVALS["4/90/6"]).tolist() == [0xBC00, 0xA000, 0x2000, 0x3C00]
    with pytest.raises(ThresholdsError, match="three groups at most"):
        thresholds_of(INTERVALS["2/2/90/6"])


# ---- baselines


def test_uniform_per_token() -> None:
    x = torch.tensor([[0.0, 1.0, 2.0, 15.0], [7.0, 7.0, 7.0, 7.0]])
    assert torch.equal(uniform_grid(x, 4, -1), x)
    y = torch.tensor([[0.0, 0.6, 2.4, 15.0]])
    assert uniform_grid(y, 4, -1).tolist() == [[0.0, 1.0, 2.0, 15.0]]


def test_kivi_groups(seed: int) -> None:
    """A channel of constant sign and size costs K nothing, however large it is."""
    x = float_from_bits(words((70, 64), seed))
    x[:, 5] = 3000.0
    (k,), bits = kivi_keys(x[None], 4, 32)
    k = float_from_bits(bits_from_float(k))
    assert (k[:, 5] == 3000.0).all()
    step = (x[:32].amax(0) - x[:32].amin(0)) / 15
    error = (k[:32] - x[:32]).abs().amax(0)
    assert (error <= 0.51 * step + 1e-2).all()
    assert torch.equal(k[64:], x[64:])  # six tokens wait for their group
    assert bits == pytest.approx((64 * 5 + 6 * 16) / 70)
    (v,), bits = kivi_values(x[None], 4, 32)
    v = float_from_bits(bits_from_float(v))
    assert bits == 5
    error = (v - x)[:, 32:].abs().amax(-1)
    step = (x[:, 32:].amax(-1) - x[:, 32:].amin(-1)) / 15
    assert (error <= 0.51 * step + 1e-2).all()
