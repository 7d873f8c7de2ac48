"""``sim.svg``: numbers on axes, the same bytes for the same data, well-formed whatever the data.

Seen to fail with: texts that are not escaped; a logarithmic axis that keeps 0.
"""

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.svg import Axis, Line, LineChart, StackedBars, amount, page, ticks


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (12, "12"), (1500, "1.5k"), (3e6, "3M"), (2e-6, "2e-6"),
     (-40, "-40"), (1e12, "1T"), (2.5e9, "2.5G")],
)  # fmt: skip
def test_amount(value, text):
    assert amount(value) == text


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks(low, width):
    high = low + width
    found = ticks(low, high)
    assert 1 <= len(found) <= 7
    slack = 1e-6 * width + 1e-9 * abs(low)
    assert all(low - slack <= each <= high + slack for each in found)


def test_ticks_of_plain_ranges():
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(3, 3) == [3]
    assert ticks(0.0, 5e-324) == [0.0]


def parse(text):
    return ElementTree.fromstring(text)


def texts(text):
    return [each.text for each in parse(text).iter("{http://www.w3.org/2000/svg}text")]


FLOATS = st.sampled_from([math.nan, math.inf, -math.inf, 0.0]) | st.floats(-1e30, 1e30)


@settings(max_examples=60, deadline=None)
@given(
    points=st.lists(st.lists(st.tuples(FLOATS, FLOATS), max_size=6), max_size=3),
    is_log=st.booleans(),
    name=st.text("<>&\"' ab", max_size=5),
)
def test_any_data_is_drawn(points, is_log, name):
    lines = [Line(name, each, has_marks=True) for each in points]
    chart = LineChart(name, Axis(name, is_log), Axis(name, is_log), lines)
    text = page([chart])
    parse(text)
    assert "nan" not in text
    assert "inf" not in text


def test_charts():
    line = LineChart(
        "A & B", Axis("s", is_log=True), Axis("%", low=0, high=100),
        [Line("one", [(0, 3), (1, 10), (10, 60)]), Line("two", [(2, 5)], is_dashed=True)],
    )  # fmt: skip
    bars = StackedBars("Time", Axis("ms"), ["x", "y"], {"read": [1, 2], "<add>": [3, 0.5]})
    text = page([line, bars])
    assert text == page([line, bars])
    found = texts(text)
    assert {"A & B", "one", "two", "1", "10", "100", "<add>", "4", "2.5", "ms"} <= set(found)
    points = [each.get("points") for each in parse(text).iter() if each.get("points")]
    assert len(points[0].split()) == 2  # 0 has no place on a logarithmic axis
    heights = [float(each.get("height")) for each in parse(text).iter() if each.get("fill")]
    one, two = heights[-6], heights[-5]  # "read" of x, "<add>" of x
    assert two == pytest.approx(3 * one, abs=0.3)


def test_a_long_line_keeps_its_peak():
    points = [(n, math.sin(n / 5000)) for n in range(100_000)]
    points[50_001] = (50_001, 9.0)
    text = page([LineChart("", Axis(""), Axis(""), [Line("", points)])])
    assert len(text) < 60_000
    (drawn,) = [each.get("points") for each in parse(text).iter() if each.get("points")]
    assert min(float(each.split(",")[1]) for each in drawn.split()) == 34.0
