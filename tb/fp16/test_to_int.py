"""FpToInt in Verilator against golden.fp16.ops.to_int: all 65,536 words."""

from golden.fp16.format import FP16
from golden.fp16.vectors import columns as vectors
from hdl.fp16.convert import FpToInt
from tb.fp16.support.bank import at_all_depths, at_depths, check, some
from tb.fp16.support.formats import COMPLETE, MIXED


def test_to_int(seed):
    cases = at_all_depths(COMPLETE[FpToInt][0], vectors.to_int_vectors(seed), seed, (4,))
    for config in MIXED[FpToInt]:
        columns = vectors.to_int_vectors(seed, config.width, config.signed, config.i, count=5000)
        if config.i == FP16:  # all words
            columns = some(columns, seed, 6000)
        cases += at_depths(config, columns, [(3, 0)])
    check(FpToInt, cases, seed)
