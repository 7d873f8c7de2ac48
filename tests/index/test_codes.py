"""Packed codes against the integer that they spell."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.config import ConfigError
from golden.index.codes import pack, packed_bytes, unpack


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 16), st.data())
def test_as_one_integer(bits: int, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, (1 << bits) - 1), min_size=1, max_size=40))
    number = sum(code << (bits * m) for m, code in enumerate(codes))
    packed = pack(torch.tensor(codes), bits)
    size = -(-len(codes) * bits // 8)
    assert bytes(packed.tolist()) == number.to_bytes(size, "little")
    assert unpack(packed, len(codes), bits).tolist() == codes


@pytest.mark.parametrize("bits", range(2, 17))
def test_every_width_and_many_vectors(bits: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (3, 5, 13), generator=generator)
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (3, 5, packed_bytes(13, bits))
    assert torch.equal(unpack(packed, 13, bits), codes)


def test_example() -> None:
    assert pack(torch.tensor([0x123, 0x456, 0x789]), 12).tolist() == [0x23, 0x61, 0x45, 0x89, 0x07]


def test_filling_bits_are_not_read() -> None:
    assert unpack(torch.tensor([0xF5], dtype=torch.uint8), 2, 2).tolist() == [1, 1]


def test_rejects() -> None:
    with pytest.raises(ConfigError, match=r"^bits must be 2\.\.16, not 17$"):
        pack(torch.tensor([1]), 17)
    with pytest.raises(ValueError, match=r"^codes must hold 0\.\.15$"):
        pack(torch.tensor([16]), 4)
    with pytest.raises(ValueError, match=r"^data must have 3 bytes per vector, not 2$"):
        unpack(torch.zeros(2, dtype=torch.uint8), 2, 12)
