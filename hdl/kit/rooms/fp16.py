"""Kits of the floating-point room."""

import numpy as np

from golden.fp16.vectors import columns as vectors
from golden.fp16.vectors.beats import flow_rows, pack
from golden.words import unpack_ints
from hdl.kit.episodes import Vectors
from hdl.kit.words import SEED, Kit, plain

_COUNT = 300  # words, half of them with a corner word as an operand

_COLUMNS = {
    "fp16_add": lambda c: vectors.add_vectors(SEED, c.format),
    "fp16_mul": lambda c: vectors.mul_vectors(SEED, c.a, c.b, c.o),
    "fp16_fma": lambda c: vectors.fma_vectors(SEED, c.a, c.b, c.c, c.o),
    "fp16_compare": lambda c: vectors.compare_vectors(SEED, c.format),
    "fp16_from_int": lambda c: vectors.from_int_vectors(SEED, c.width, c.signed, c.o),
    "fp16_to_int": lambda c: vectors.to_int_vectors(SEED, c.width, c.signed, c.i),
    "fp16_from_fp32": lambda c: vectors.convert_vectors(SEED, c.i, c.o),
    "fp16_to_fp32": lambda c: vectors.convert_vectors(SEED, c.i, c.o),
    "fp16_divide": lambda c: vectors.divide_vectors(SEED, c.a, c.b, c.o),
    "fp16_reciprocal": lambda c: vectors.function_vectors(SEED, "reciprocal", c.a, c.o),
    "fp16_sqrt": lambda c: vectors.function_vectors(SEED, "sqrt", c.a, c.o),
    "fp16_rsqrt": lambda c: vectors.function_vectors(SEED, "rsqrt", c.a, c.o),
    "fp16_exp": lambda c: vectors.function_vectors(SEED, "exp", o=c.o),
    "fp_from_fixed": lambda c: vectors.from_fixed_vectors(SEED, c.width, c.grid_exponents, c.o),
}


def _operator(columns_of):
    def vectors_of(config) -> Vectors:
        columns = columns_of(config)
        chosen = flow_rows(config, columns, np.random.default_rng([SEED, 17]), _COUNT)
        some = {name: column[chosen] for name, column in columns.items()}
        words = {
            name: unpack_ints(pack(layout, some))
            for name, layout in (("i", config.i_layout), ("o", config.o_layout))
        }
        covers = "any words, and zeros, subnormals, infinities and NaN where the operator has them"
        return Vectors(episodes=[plain(covers, words)])

    return vectors_of


KITS = {name: Kit(vectors=_operator(columns)) for name, columns in _COLUMNS.items()}
