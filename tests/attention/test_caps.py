"""golden.attention.caps against tanh in float64, and its steps against fractions.

Shown to fail:

- the sign of z, or of y, left out;
- 1 / c in the place of 2 / c, or 2 / c of the cap before it is rounded;
- a cap of -0 taken as none;
- c - c * e rounded to FP16.
"""

import pytest
import torch

from golden.attention.caps import cap_scores
from golden.attention.format import CAP_RANGE, cap_operand
from golden.fp16 import functions
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import bits_from_float, float_from_bits
from tests.exact import exact, rounded

ALL = torch.arange(1 << 16)
FINITE = ALL[ALL & FP16.infinity != FP16.infinity]
CAPS = (50.0, 30.0, 20.0, 10.0, 64.0, 1.0, 1.13, 127.3, 1000.0, *CAP_RANGE)


@pytest.mark.parametrize("cap", CAPS)
def test_within_its_bound_of_tanh(cap: float) -> None:
    """All 63,488 finite words; the bounds are those of the docstring, and not twice too wide."""
    s = float_from_bits(FINITE)
    c = float(torch.tensor(cap).half())
    off = (float_from_bits(cap_scores(FINITE, cap_operand(cap))) - c * torch.tanh(s / c)).abs() / c
    assert off.max() < 2**-10.5
    assert off[s.abs() < c / 16].max() < 2**-13.9
    if cap == 50:
        assert off.max() > 2**-11.5
        assert off[s.abs() < c / 16].max() > 2**-14.9


def test_the_ends() -> None:
    cap = cap_operand(50)
    words = torch.tensor([0, 0x8000, 0x7C00, 0xFC00, 0x7BFF, 0xFBFF])
    c = cap & 0xFFFF
    wanted = [0, 0x8000, c, c | 0x8000, c, c | 0x8000]
    assert cap_scores(words, cap).tolist() == wanted
    assert float_from_bits(torch.tensor(c)) == 50
    assert torch.equal(cap_scores(ALL, 0), ALL)
    assert torch.equal(cap_scores(ALL, 0x3C00 << 16), ALL)  # a factor alone is no cap
    assert not torch.equal(cap_scores(ALL, 0x3C00 << 16 | 0x8000), ALL)  # -0 is a cap


def test_each_step_rounds_once() -> None:
    words = FINITE[torch.randperm(len(FINITE), generator=torch.Generator().manual_seed(1))[:400]]
    for cap in (cap_operand(50), cap_operand(0.7), 0x3801_4A35, 0x2C00_C900):
        c, f = exact(cap & 0xFFFF), exact(cap >> 16)
        for word, found in zip(words.tolist(), cap_scores(words, cap).tolist(), strict=True):
            z = rounded(abs(exact(word)) * f)
            e = exact(int(functions.exp(z ^ FP16.sign_bit, FP32)), FP32)
            above = exact(rounded(c - c * e, FP32), FP32)
            y = rounded(above / exact(rounded(1 + e, FP32), FP32))
            # A quotient of 0 has the sign of c, of which the fraction knows nothing.
            sign = FP16.sign_bit if above == 0 and c < 0 else 0
            assert found in (y ^ (word & FP16.sign_bit), y ^ sign ^ (word & FP16.sign_bit))


@pytest.mark.parametrize("cap", CAPS)
def test_operand(cap: float) -> None:
    c, f = (float_from_bits(torch.tensor(word)) for word in
            (cap_operand(cap) & 0xFFFF, cap_operand(cap) >> 16))  # fmt: skip
    assert c == float(torch.tensor(cap, dtype=torch.float64).half())
    assert int(bits_from_float(2 / c)) == int(bits_from_float(f))
    assert f >= 2.0**-14


@pytest.mark.parametrize("cap", [-50.0, 2.0**-11, 2.0**15, float("inf"), float("nan")])
def test_no_such_cap(cap: float) -> None:
    with pytest.raises(ValueError, match=r"cap must be 0 or 0\.000976562\.\.16384, not"):
        cap_operand(cap)
