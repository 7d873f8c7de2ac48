"""golden.words: every packing raises for a value that its field cannot hold."""

import numpy as np
import pytest
from amaranth import signed
from amaranth.lib import data

from golden.words import join, layout_word, layout_words, pack, unpack_ints, wide_fields


@pytest.mark.parametrize(
    ("value", "bits", "line"),
    [
        (8, 3, "a field of 3 bits must be -4..7, not 8"),
        (-5, 3, "a field of 3 bits must be -4..7, not -5"),
        (1, 0, "a field of 0 bits must be 0..0, not 1"),
        (1 << 62, 62, f"a field of 62 bits must be -{1 << 61}..{(1 << 62) - 1}, not {1 << 62}"),
    ],
)
def test_values_beyond_their_field(value, bits, line) -> None:
    with pytest.raises(ValueError, match="must be") as error:
        pack(([0, value], bits))
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("value", "bits", "line"),
    [
        (8, 3, "a field of 3 bits must be 0..7, not 8"),
        (-1, 3, "a field of 3 bits must be 0..7, not -1"),
        (1, 0, "a field of 0 bits must be 0..0, not 1"),
        (1 << 62, 62, f"a field of 62 bits must be 0..{(1 << 62) - 1}, not {1 << 62}"),
    ],
)
def test_join_is_unsigned(value, bits, line) -> None:
    with pytest.raises(ValueError, match="must be") as error:
        join((value, bits))
    assert str(error.value) == line


def test_what_is_not_an_integer() -> None:
    with pytest.raises(ValueError, match="integers of 64 bits, not float64"):
        pack((np.array([0.5]), 16))
    with pytest.raises(ValueError, match="integers of 64 bits, not uint64"):
        pack((np.array([1 << 63], dtype=np.uint64), 64))


@pytest.mark.parametrize("bits", [1, 47, 48, 49, 72, 96, 97])
def test_wide_integers(bits) -> None:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    values = [low, -1, 0, high] if high else [low, -1, 0]
    words = unpack_ints(pack(*wide_fields(values, bits)))
    assert words == [value & (1 << bits) - 1 for value in values]
    for value in (low - 1, high + 1):
        with pytest.raises(ValueError, match=f"a field of {bits} bits must be {low}..{high}, not"):
            wide_fields([0, value], bits)


def test_words_of_a_layout() -> None:
    layout = data.StructLayout(
        {
            "plain": 3,
            "sum": signed(4),
            "rows": data.ArrayLayout(data.ArrayLayout(2, 2), 2),
            "sums": data.ArrayLayout(signed(3), 2),
            "pair": data.StructLayout({"low": 1, "high": signed(2)}),
        }
    )
    word = layout_word(layout, sum=-8, plain=7, rows=[[1, 2], [3, 0]])
    assert word == 7 | 8 << 3 | 0b00111001 << 7
    assert layout_word(layout, sums=[-4, 3]) == 0b011100 << 15
    assert layout_word(layout, sums=0b011100) == 0b011100 << 15
    assert layout_word(layout, pair=5) == 5 << 21
    for wrong, line in (
        ({"plain": 8}, "a field of 3 bits must be 0..7, not 8"),
        ({"plain": -1}, "a field of 3 bits must be 0..7, not -1"),
        ({"sum": 8}, "a field of 4 bits must be -8..7, not 8"),
        ({"rows": [[1, 2], [4, 0]]}, "a field of 2 bits must be 0..3, not 4"),
        ({"rows": [[1, -2], [3, 0]]}, "a field of 2 bits must be 0..3, not -2"),
        ({"sums": [4, 0]}, "a field of 3 bits must be -4..3, not 4"),
        ({"sums": -1}, "a field of 6 bits must be 0..63, not -1"),
        ({"pair": -1}, "a field of 3 bits must be 0..7, not -1"),
        ({"rows": [1, 2, 3]}, "rows must fill 8 bits, not 3 elements"),
        ({"rows": []}, "rows must fill 8 bits, not 0 elements"),
        ({"plain": 1.9}, "plain must hold integers, not 1.9"),
        ({"plain": np.float64(2.5)}, "plain must hold integers, not np.float64(2.5)"),
        ({"plain": "1"}, "plain must hold integers, not '1'"),
        ({"plain": None}, "plain must hold integers, not None"),
        ({"sums": [1, 2.0]}, "sums must hold integers, not [1, 2.0]"),
        ({"pair": {"low": 1}}, "pair must hold integers, not {'low': 1}"),
    ):
        with pytest.raises(ValueError, match="must") as error:
            layout_word(layout, **wrong)
        assert str(error.value) == line


def test_many_words_of_a_layout() -> None:
    layout = data.StructLayout({"sum": signed(4), "rows": data.ArrayLayout(3, 2), "last": 1})
    fields = {"last": [0, 1], "sum": np.array([-8, 7]), "rows": np.array([[1, 2], [7, 0]])}
    single = [{name: values[n] for name, values in fields.items()} for n in range(2)]
    expected = [layout_word(layout, **each) for each in single]
    assert unpack_ints(layout_words(layout, **fields)) == expected
    for wrong, line in (
        ({"last": [0, -1]}, "a field of 1 bits must be 0..1, not -1"),
        ({"sum": [0, 8]}, "a field of 4 bits must be -8..7, not 8"),
        ({"rows": [[8, 0], [0, 0]]}, "a field of 3 bits must be 0..7, not 8"),
        ({"rows": [[1, 2, 3, 4], [1, 2, 3, 4]]}, "rows must fill 6 bits, not 4 elements"),
        ({"first": [0, 0]}, "first: not of the layout, or left out"),
    ):
        with pytest.raises(ValueError, match=r"must|not of") as error:
            layout_words(layout, **{**fields, **wrong})
        assert str(error.value) == line


def test_parts_of_a_field_by_name() -> None:
    slots = data.StructLayout({"0": signed(5), "1": 3})
    entry = data.StructLayout({"present": 1, "code": 4})
    layout = data.StructLayout({"count": slots, "row": data.ArrayLayout(entry, 2), "last": 1})
    fields = {
        "last": [0, 1],
        "count": {"1": [7, 2], "0": [-16, 15]},
        "row": {"code": [[1, 2], [3, 15]], "present": [[1, 0], [0, 1]]},
    }
    expected = [
        1 << 4 & 31 | 7 << 5 | (1 | 1 << 1) << 8 | (2 << 1) << 13,
        15 | 2 << 5 | (3 << 1) << 8 | (1 | 15 << 1) << 13 | 1 << 18,
    ]
    assert unpack_ints(layout_words(layout, **fields)) == expected
    for wrong, line in (
        ({"count": {"0": [0, 0]}}, "1: not of the layout, or left out"),
        ({"count": {"0": [16, 0], "1": [0, 0]}}, "a field of 5 bits must be -16..15, not 16"),
        (
            {"row": {"code": [[1], [2]], "present": [[1], [0]]}},
            "row must have 2 elements, not (1,)",
        ),
    ):
        with pytest.raises(ValueError, match=r"must|not of") as error:
            layout_words(layout, **{**fields, **wrong})
        assert str(error.value) == line


def test_wide_fields_of_a_layout() -> None:
    layout = data.StructLayout(
        {"sum": signed(70), "rows": data.ArrayLayout(64, 2), "scale": data.ArrayLayout(16, 6)}
    )
    fields = {
        "sum": [-1, 1 << 63],  # numpy makes floats of these
        "rows": [[1, (1 << 64) - 1], [0, 5]],
        "scale": [(1 << 96) - 1, 0],
    }
    expected = [
        layout_word(layout, **{name: values[n] for name, values in fields.items()})
        for n in range(2)
    ]
    assert unpack_ints(layout_words(layout, **fields)) == expected
    for wrong, line in (
        ({"sum": [0, 1 << 69]}, f"a field of 70 bits must be {-(1 << 69)}..{(1 << 69) - 1}, not "),
        ({"rows": [[0, 0], [0, 1 << 64]]}, f"a field of 64 bits must be 0..{(1 << 64) - 1}, not "),
        ({"scale": [-1, 0]}, f"a field of 96 bits must be 0..{(1 << 96) - 1}, not -1"),
    ):
        with pytest.raises(ValueError, match="must be") as error:
            layout_words(layout, **{**fields, **wrong})
        assert str(error.value).startswith(line)
