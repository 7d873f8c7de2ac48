"""golden.million.operations: the figures that the method's authors and the task state."""

import math

import pytest

from golden.million.config import NAMED, PqShape
from golden.million.operations import SCHEMES, Work, crossing, once


@pytest.mark.parametrize(("name", "keys"), [("4b", 512), ("3b", 5461), ("4b_64", 512)])
def test_crossing(name, keys):
    """2**nbits * d / (d - M): from there on the operations of both schemes are equal or fewer."""
    pq = NAMED[name]
    found = crossing(pq)
    assert math.floor(found) == keys
    for count in (keys - 1, keys, keys + 1, 2 * keys):
        tables = once(pq) + count * SCHEMES["K", "tables"](pq, 1).additions
        decoded = count * SCHEMES["K", "decoded"](pq, 1).products
        assert (tables <= decoded) == (count >= found)


def test_no_crossing():
    """A look-up saves nothing with one element per code."""
    assert crossing(PqShape(head_dim=64, subspaces=64)) is None


def test_of_a_key():
    work = {scheme: of(NAMED["4b"], 1) for scheme, of in SCHEMES.items()}
    assert work == {
        ("K", "tables"): Work(64, 64 * 16, 64, 0),
        ("K", "decoded"): Work(64, 64 * 32, 128, 128),
        ("V", "bins"): Work(64, 5120, 64, 0),
        ("V", "decoded"): Work(64, 2048, 128, 128),
    }
    four = {scheme: of(NAMED["4b"], 4).sram_bits for scheme, of in SCHEMES.items()}
    assert list(four.values()) == [4096, 2048, 20480, 2048]
