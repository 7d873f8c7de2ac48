"""FpFromInt in Verilator against golden.fp16.ops.from_int: all integers up to 16 bits."""

from golden.fp16.vectors import columns as vectors
from hdl.fp16.convert import FpFromInt
from tb.fp16.support.bank import at_all_depths, at_depths, check, some
from tb.fp16.support.formats import COMPLETE, MIXED


def test_from_int(seed):
    cases = at_all_depths(COMPLETE[FpFromInt][0], vectors.from_int_vectors(seed, 16), seed, (4,))
    for config in MIXED[FpFromInt]:
        columns = vectors.from_int_vectors(seed, config.width, config.signed, count=3000)
        columns = some(columns, seed, 6000)
        if config.width == 2:
            columns = {name: column.repeat(8) for name, column in columns.items()}
        cases += at_depths(config, columns, [(2, 0)])
    check(FpFromInt, cases, seed)
