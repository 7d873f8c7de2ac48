"""Limits and grids that index-based products share. Pure Python."""

import enum

CODEBOOK_BITS_MIN = 2  # bits of an index
CODEBOOK_BITS_MAX = 4
CODE_BITS_MIN = 2  # bits of the code of a vector
CODE_BITS_MAX = 16
SCALE_EXPONENT_MIN = -8  # a codebook of vectors has the scale 2**exponent
SCALE_EXPONENT_MAX = 15
SCALE_EXPONENTS = tuple(range(SCALE_EXPONENT_MIN, SCALE_EXPONENT_MAX + 1))
INT_BITS = (4, 8)  # widths of the unsigned integers of score x V
K_MAX = 16383  # longest reduction: keeps a dense sum on the 2**-48 grid inside int64
TABLE_ROW = 16  # indices of a row of a look-up table

# Every sum is an integer times 2**grid.
GRID_PRODUCT_ROUNDED = -24  # P = rne16(C_A * C_B); also C_V of the integer mode
GRID_PRODUCT_EXACT = -48  # P = C_A * C_B


class CodebookFault(enum.IntFlag):
    """Why a codebook that was loaded is not used."""

    NONFINITE = 1  # an entry is NaN or infinite
    MAGNITUDE = 2  # an entry is finite and above 1 in magnitude
    SHAPE = 4  # entries or exponent out of range, or not as many words as they say
