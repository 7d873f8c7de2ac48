"""FixedToFloat in Verilator against golden.fp16.ops.from_fixed."""

from golden.fp16.format import FP32
from golden.fp16.vectors import columns as vectors
from hdl.fp16.from_fixed import FixedToFloat
from tb.fp16.support.bank import at_all_depths, at_depths, check
from tb.fp16.support.formats import COMPLETE, MIXED


def test_from_fixed(seed):
    columns = vectors.from_fixed_vectors(seed, 64, (-48,), FP32)
    cases = at_all_depths(COMPLETE[FixedToFloat][0], columns, seed)
    for config in MIXED[FixedToFloat]:
        shape = (config.width, config.grid_exponents, config.o)
        columns = vectors.from_fixed_vectors(seed, *shape, count=2000)
        if config.width == 2:
            columns = {name: column.repeat(8) for name, column in columns.items()}
        cases += at_depths(config, columns, [(3, 0)])
    check(FixedToFloat, cases, seed)
