"""Formats and widths at which the benches of this room run each operator.

tb/test_registered.py looks at every operator inside the smallest configuration of each registered
block. Its arithmetic must be one of these.
"""

import dataclasses

from golden.config import Config
from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.block import Block
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
from hdl.fp16.pipeline import Operator, OperatorConfig
from hdl.fp16.rsqrt import FpRsqrt, FpRsqrtConfig
from hdl.fp16.sqrt import FpSqrt, FpSqrtConfig

_BF16 = FloatFormat(exp_bits=8, frac_bits=7)
_FP8 = FloatFormat(exp_bits=4, frac_bits=3)
_UNARY = ((FP32, FP32), (FP32, FP16), (FP16, FP32), (_BF16, FP16), (FP16, _FP8))

# Operator -> the configurations that its bench runs with every vector, at several depths.
COMPLETE: dict[type[Operator], tuple[OperatorConfig, ...]] = {
    FpAdd: (FpAddConfig(),),
    FpCompare: (FpCompareConfig(),),
    FpConvert: (FpConvertConfig(i=FP32, o=FP16), FpConvertConfig(i=FP16, o=FP32)),
    FpDivide: (FpDivideConfig(),),
    FpExp: (FpExpConfig(),),
    FpFma: (FpFmaConfig(),),
    FpFromInt: (FpFromIntConfig(width=16),),
    FpMul: (FpMulConfig(),),
    FpReciprocal: (FpReciprocalConfig(),),
    FpToInt: (FpToIntConfig(),),
    FpRsqrt: (FpRsqrtConfig(),),
    FpSqrt: (FpSqrtConfig(),),
    FixedToFloat: (FixedToFloatConfig(grid_exponents=(-48,)),),
}

# Operator -> those that it runs at one depth.
MIXED: dict[type[Operator], tuple[OperatorConfig, ...]] = {
    FpAdd: (FpAddConfig(format=FP32),),
    FpDivide: tuple(
        FpDivideConfig(a=a, b=b, o=o)
        for a, b, o in (
            (FP32, FP32, FP32),
            (FP32, FP16, FP16),
            (FP16, FP32, FP16),
            (FP16, FP16, FP32),
            (FP32, FP32, _FP8),
        )
    ),
    FpExp: (FpExpConfig(o=FP32),),
    FpFma: tuple(
        FpFmaConfig(a=a, b=b, c=c, o=o)
        for a, b, c, o in (
            (FP16, FP32, FP32, FP32),
            (FP16, FP32, FP32, FP16),
            (FP16, FP16, FP32, FP32),
            (FP16, FP16, FP32, FP16),
            (FP32, FP32, FP16, FP32),
            (FP32, FP32, FP32, FP32),
        )
    ),
    FpFromInt: tuple(
        FpFromIntConfig(width=width, signed=signed)
        for width, signed in (
            (2, True),
            (4, True),
            (8, False),
            (16, False),
            (17, True),
            (32, True),
            (32, False),
        )
    ),
    FpMul: tuple(
        FpMulConfig(a=a, b=b, o=o)
        for a, b, o in (
            (FP32, FP16, FP16),
            (FP16, FP32, FP16),
            (FP32, FP32, FP16),
            (FP32, FP32, FP32),
            (FP16, FP16, FP32),
        )
    ),
    FpToInt: (
        *(
            FpToIntConfig(width=width, signed=signed)
            for width, signed in ((4, True), (8, True), (8, False), (16, True))
        ),
        FpToIntConfig(i=FP32),
    ),
    FpReciprocal: tuple(FpReciprocalConfig(a=a, o=o) for a, o in _UNARY),
    FpRsqrt: tuple(FpRsqrtConfig(a=a, o=o) for a, o in _UNARY),
    FpSqrt: tuple(FpSqrtConfig(a=a, o=o) for a, o in _UNARY),
    FixedToFloat: tuple(
        FixedToFloatConfig(width=width, grid_exponents=grids, o=o)
        for width, grids, o in (
            (2, (0,), FP16),
            (9, (-30,), FP16),
            (16, (-24, 3), FP16),
            (40, (-24, 0, 7), FP16),
            (40, (-48,), FP32),
            (72, (-48,), FP32),
            (96, (-149, -48, 20, 60), FP32),
            # Of the blocks of the other rooms: as wide as the widest, and exact or rounded as they.
            (13, (0,), FP32),
            (24, (0,), FP32),
            (40, (0,), FP32),
            (24, (-14,), FP32),
            (24, (-10, -9), FP32),
            (24, (-14, -13), FP32),
            (32, (-14, -13), FP32),
            (32, (-14, -11), FP32),
            (59, (-24,), FP16),
            (80, (-24,), FP32),
            (28, tuple(range(-32, -8)), FP16),
            (92, tuple(range(-56, -32)), FP16),
            (96, tuple(range(-56, -32)), FP32),
            (92, (-56,), FP32),
            (92, (-48,), FP16),
            (96, (-48,), FP32),
            (96, (-24, -48, 0), FP32),
            (41, tuple(range(-48, 13)), FP32),
            (41, tuple(range(-49, 12)), FP32),
            (41, tuple(range(-52, 9)), FP32),
            (70, tuple(range(-88, -27)), FP32),
        )
    ),
}


def _arithmetic(config: OperatorConfig) -> OperatorConfig:
    """``config`` without its depth and its tag. FixedToFloat: without its width too."""
    plain = dataclasses.replace(config, stages=0, tag_bits=0)
    if isinstance(plain, FixedToFloatConfig):
        return dataclasses.replace(plain, width=2)
    return plain


def has_bench(kind: type[Block], config: Config) -> bool:
    """True where ``kind`` is an operator, and a bench of this room runs its arithmetic.

    Depth and tag do not count. A FixedToFloat needs one of its grids and format, as wide or wider.
    Both round, or both are exact.
    """
    if kind not in COMPLETE:
        return False
    same = [
        each
        for each in (*COMPLETE[kind], *MIXED.get(kind, ()))
        if _arithmetic(each) == _arithmetic(config)
    ]
    if kind is not FixedToFloat:
        return bool(same)
    exact = config.o.precision + 1  # bits of a signed word that is never rounded
    return any(
        each.width >= config.width and (each.width > exact) == (config.width > exact)
        for each in same
    )
