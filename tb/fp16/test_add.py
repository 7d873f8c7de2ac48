"""FpAdd in Verilator against golden.fp16.ops.add."""

import pytest

from golden.fp16.format import FP32
from golden.fp16.vectors import columns as vectors
from hdl.fp16.add import FpAdd
from tb.fp16.support.bank import at_all_depths, at_depths, check
from tb.fp16.support.formats import COMPLETE, MIXED


def test_add(seed):
    cases = at_all_depths(COMPLETE[FpAdd][0], vectors.add_vectors(seed), seed)
    for config in MIXED[FpAdd]:
        columns = vectors.add_vectors(seed, config.format, count=2000)
        cases += at_depths(config, columns, [(2, 0)])
    check(FpAdd, cases, seed)


def test_one_wrong_word_is_found(seed):
    # The same hardware as above, a few vectors, the last expected word off by one.
    columns = {name: column[-50:] for name, column in vectors.add_vectors(seed).items()}
    single = {name: column[-50:] for name, column in vectors.add_vectors(seed, FP32).items()}
    single["y"][-1] ^= 1
    cases = at_all_depths(COMPLETE[FpAdd][0], columns, seed)
    cases += at_depths(MIXED[FpAdd][0], single, [(2, 0)])
    with pytest.raises((AssertionError, SystemExit)):
        check(FpAdd, cases, seed)
