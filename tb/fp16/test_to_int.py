"""FpToInt in Verilator against golden.fp16.ops.to_int: all 65,536 words."""

from golden.fp16 import vectors
from golden.fp16.format import FP32
from hdl.fp16.convert import FpToInt, FpToIntConfig
from tb.fp16.support.bank import at_all_depths, at_depths, check, some


def test_to_int(seed):
    cases = at_all_depths(FpToIntConfig(), vectors.to_int_vectors(seed), seed, (4,))
    for width, signed in ((4, True), (8, False), (16, True)):
        columns = some(vectors.to_int_vectors(seed, width, signed), seed, 6000)
        cases += at_depths(FpToIntConfig(width=width, signed=signed), columns, [(3, 0)])
    columns = vectors.to_int_vectors(seed, 32, True, FP32, count=5000)
    cases += at_depths(FpToIntConfig(i=FP32), columns, [(2, 0)])
    check(FpToInt, cases, seed)
