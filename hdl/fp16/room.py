"""The floating-point blocks by name."""

from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.fp16.add import FpAdd
from hdl.fp16.compare import FpCompare
from hdl.fp16.convert import FpConvert, FpConvertConfig, FpFromInt, FpToInt
from hdl.fp16.divide import FpDivide, FpReciprocal
from hdl.fp16.exp import FpExp
from hdl.fp16.fma import FpFma
from hdl.fp16.from_fixed import FixedToFloat
from hdl.fp16.mul import FpMul
from hdl.fp16.pipeline import operator_configs
from hdl.fp16.rsqrt import FpRsqrt
from hdl.fp16.sqrt import FpSqrt
from hdl.registry import Registered, Room, registered


def _conversion(i: FloatFormat, o: FloatFormat, golden: str, test: str) -> Registered:
    config = FpConvertConfig(stages=1, i=i, o=o)
    return Registered(
        component=FpConvert,
        config=config,
        configs=operator_configs(config),
        golden=f"golden.fp16.ops:{golden}",
        reference=f"tests/fp16/test_golden.py: {test}",
    )


# Two blocks are one class: modules of Verilog have the names of classes.
_CONVERSIONS = {
    "fp16_from_fp32": _conversion(FP32, FP16, "fp32_to_fp16", "test_fp32_to_fp16_equals_softfloat"),
    "fp16_to_fp32": _conversion(FP16, FP32, "fp16_to_fp32", "test_every_word_to_fp32_and_back"),
}
BLOCKS = (
    registered(FpAdd, FpMul, FpFma, FpCompare, FpFromInt, FpToInt)
    | _CONVERSIONS
    | registered(FpDivide, FpReciprocal, FpSqrt, FpRsqrt, FpExp, FixedToFloat)
)

# Operators inside other blocks have their faults here.
ROOM = Room(blocks=BLOCKS, tables=("fp16", "hardfloat"), fault_weight=2)
