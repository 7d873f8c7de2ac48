"""FpFromInt in Verilator against golden.fp16.ops.from_int: all integers up to 16 bits."""

from golden.fp16 import vectors
from hdl.fp16.convert import FpFromInt, FpFromIntConfig
from tb.fp16.support.bank import at_all_depths, at_depths, check, some


def test_from_int(seed):
    cases = at_all_depths(FpFromIntConfig(width=16), vectors.from_int_vectors(seed, 16), seed, (4,))
    for width, signed in ((2, True), (8, False), (16, False), (17, True), (32, True), (32, False)):
        columns = some(vectors.from_int_vectors(seed, width, signed, count=3000), seed, 6000)
        if width == 2:
            columns = {name: column.repeat(8) for name, column in columns.items()}
        cases += at_depths(FpFromIntConfig(width=width, signed=signed), columns, [(2, 0)])
    check(FpFromInt, cases, seed)
