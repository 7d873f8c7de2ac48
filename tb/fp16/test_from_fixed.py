"""FixedToFloat in Verilator against golden.fp16.ops.from_fixed."""

from golden.fp16 import vectors
from golden.fp16.format import FP16, FP32
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from tb.fp16.support.bank import at_all_depths, at_depths, check

_SHAPES = (
    (2, (0,), FP16),
    (9, (-30,), FP16),
    (16, (-24, 3), FP16),
    (40, (-24, 0, 7), FP16),
    (40, (-48,), FP32),
    (72, (-48,), FP32),
    (41, tuple(range(-52, 9)), FP32),
    (96, (-149, -48, 20, 60), FP32),
)


def test_from_fixed(seed):
    columns = vectors.from_fixed_vectors(seed, 64, (-48,), FP32)
    cases = at_all_depths(FixedToFloatConfig(grid_exponents=(-48,)), columns, seed)
    for width, grids, o in _SHAPES:
        columns = vectors.from_fixed_vectors(seed, width, grids, o, count=2000)
        if width == 2:
            columns = {name: column.repeat(8) for name, column in columns.items()}
        config = FixedToFloatConfig(width=width, grid_exponents=grids, o=o)
        cases += at_depths(config, columns, [(3, 0)])
    check(FixedToFloat, cases, seed)
