"""The floating-point blocks by name."""

import dataclasses

from golden.fp16.format import FP16, FP32
from hdl.fp16.add import FpAdd, FpAddConfig
from hdl.fp16.compare import FpCompare, FpCompareConfig
from hdl.fp16.convert import (
    FpConvert,
    FpConvertConfig,
    FpFromInt,
    FpFromIntConfig,
    FpToInt,
    FpToIntConfig,
)
from hdl.fp16.divide import FpDivide, FpDivideConfig, FpReciprocal, FpReciprocalConfig
from hdl.fp16.exp import FpExp, FpExpConfig
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.fp16.pipeline import OperatorConfig
from hdl.fp16.rsqrt import FpRsqrt, FpRsqrtConfig
from hdl.fp16.sqrt import FpSqrt, FpSqrtConfig
from hdl.registry import Registered, Room


def _block(component: type, config: OperatorConfig, golden: str, **more) -> Registered:
    """Every block also without registers, and with four stages and a tag."""
    configs = {
        "combinational": dataclasses.replace(config, stages=0),
        "pipelined": dataclasses.replace(config, stages=4, tag_bits=8),
    }
    return Registered(
        component=component,
        config=config,
        configs=configs | more,
        golden=f"golden.fp16.{golden if ':' in golden else f'ops:{golden}'}",
    )


BLOCKS = {
    "fp16_add": _block(FpAdd, FpAddConfig(), "add", fp32=FpAddConfig(format=FP32)),
    "fp16_mul": _block(
        FpMul, FpMulConfig(), "mul", fp32_by_fp16=FpMulConfig(a=FP32, b=FP16, o=FP16)
    ),
    "fp16_fma": _block(
        FpFma, FpFmaConfig(), "fma", fp32_sum=FpFmaConfig(a=FP16, b=FP32, c=FP32, o=FP32)
    ),
    "fp16_compare": _block(FpCompare, FpCompareConfig(stages=1), "less"),
    "fp16_from_int": _block(
        FpFromInt, FpFromIntConfig(stages=1), "from_int", int4=FpFromIntConfig(stages=1, width=4)
    ),
    "fp16_to_int": _block(
        FpToInt, FpToIntConfig(stages=1), "to_int", int8=FpToIntConfig(stages=1, width=8)
    ),
    "fp16_from_fp32": _block(FpConvert, FpConvertConfig(stages=1, i=FP32, o=FP16), "fp32_to_fp16"),
    "fp16_to_fp32": _block(FpConvert, FpConvertConfig(stages=1, i=FP16, o=FP32), "fp16_to_fp32"),
    "fp16_divide": _block(
        FpDivide,
        FpDivideConfig(),
        "functions:divide",
        fp32=FpDivideConfig(a=FP32, b=FP32, o=FP32, stages=14),
        fp16_by_fp32=FpDivideConfig(b=FP32),
    ),
    "fp16_reciprocal": _block(
        FpReciprocal,
        FpReciprocalConfig(),
        "functions:reciprocal",
        fp32=FpReciprocalConfig(a=FP32, o=FP32, stages=14),
    ),
    "fp16_sqrt": _block(
        FpSqrt,
        FpSqrtConfig(),
        "functions:sqrt",
        fp32=FpSqrtConfig(a=FP32, o=FP32, stages=12),
    ),
    "fp16_rsqrt": _block(
        FpRsqrt,
        FpRsqrtConfig(),
        "functions:rsqrt",
        fp32=FpRsqrtConfig(a=FP32, o=FP32, stages=14),
    ),
    "fp16_exp": _block(FpExp, FpExpConfig(), "functions:exp", unrounded=FpExpConfig(o=FP32)),
    "fp_from_fixed": _block(
        FixedToFloat,
        FixedToFloatConfig(width=64, grid_exponents=(-48,)),
        "from_fixed",
        grids=FixedToFloatConfig(width=40, grid_exponents=(-24, 0, 7), o=FP16),
    ),
}

# Operators inside other blocks have their faults here.
ROOM = Room(blocks=BLOCKS, tables=("fp16", "hardfloat"), fault_weight=2)
