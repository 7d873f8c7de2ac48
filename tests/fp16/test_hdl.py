"""The floating-point blocks as structure: configurations refused, registers placed, lint clean."""

import subprocess
import sys

import pytest

from golden.config import ConfigError
from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.fp16.from_fixed import FixedToFloatConfig
from hdl.fp16.mul import FpMulConfig
from hdl.fp16.pipeline import registers_after
from hdl.fp16.room import BLOCKS
from tb.simulate.run import emitted, lint

_ALL = [
    pytest.param(block.component, config, id=f"{name}-{named}")
    for name, block in BLOCKS.items()
    for named, config in {"default": block.config, **block.configs}.items()
]


@pytest.mark.parametrize(("component", "config"), _ALL)
def test_verilog_is_lint_clean(component, config):
    lint(emitted(component(config)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FpMulConfig(b=16), "FpMulConfig.b must be a FloatFormat, not 16"),
        (
            lambda: FixedToFloatConfig(grid_exponents=()),
            "FixedToFloatConfig.grid_exponents must be 1 to 64 integers in -1024..1024, not ()",
        ),
        (
            lambda: FloatFormat(exp_bits=2, frac_bits=10),
            "FloatFormat.exp_bits must be 3..8, not 2",
        ),
    ],
)
def test_configuration_refuses(make, message):
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == message


@pytest.mark.parametrize("phases", range(2, 8))
@pytest.mark.parametrize("stages", range(9))
def test_registers_are_spread_and_the_last_is_at_the_output(phases, stages):
    counts = registers_after(phases, stages)
    assert len(counts) == phases
    assert sum(counts) == stages
    assert stages == 0 or counts[-1] >= 1
    assert max(counts) - min(counts) <= 1


def test_formats_have_the_constants_of_ieee_754():
    assert (FP16.bits, FP16.bias, FP16.grid_exponent) == (16, 15, -24)
    assert (FP16.infinity, FP16.canonical_nan, FP16.largest_grid_exponent) == (0x7C00, 0x7E00, 5)
    assert (FP32.bits, FP32.bias, FP32.grid_exponent) == (32, 127, -149)
    assert (FP32.infinity, FP32.canonical_nan) == (0x7F800000, 0x7FC00000)
    assert FP32.largest_grid_exponent == 104


def test_hardware_does_not_load_torch():
    code = "import sys, hdl.fp16.room; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
