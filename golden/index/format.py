"""Limits and grids that index-based products share. Pure Python."""

__all__ = [
    "CODEBOOK_BITS_MAX",
    "CODEBOOK_BITS_MIN",
    "GRID_PRODUCT_EXACT",
    "GRID_PRODUCT_ROUNDED",
    "INT_BITS",
    "K_MAX",
    "TABLE_ROW",
]

CODEBOOK_BITS_MIN = 2  # bits of an index
CODEBOOK_BITS_MAX = 4
INT_BITS = (4, 8)  # widths of the unsigned integers of score x V
K_MAX = 16383  # longest reduction: keeps a dense sum on the 2**-48 grid inside int64
TABLE_ROW = 16  # indices of a row of a look-up table

# Every sum is an integer times 2**grid.
GRID_PRODUCT_ROUNDED = -24  # P = rne16(C_A * C_B); also C_V of the integer mode
GRID_PRODUCT_EXACT = -48  # P = C_A * C_B
