"""Numbers, requests and statuses of product-quantized attention. Pure Python."""

import enum

from golden.paging.format import Status as PagingStatus

EXPONENT_MIN = -8  # a codebook's scale is 2**exponent, so that no sum is rounded by it
EXPONENT_MAX = 15
EXPONENTS = tuple(range(EXPONENT_MIN, EXPONENT_MAX + 1))
DISTANCE_BITS = 17  # of a distance between two tokens

# Every sum is an integer times 2**grid.
WEIGHT_GRID = -24  # softmax weights, entries of tables, codebook entries
BIN_GRID = WEIGHT_GRID  # sums of weights
PRODUCT_GRID = -48  # products of two FP16 words


class Op(enum.IntEnum):
    """The kinds of requests."""

    OPEN = 0  # a new sequence; the status carries its number
    PREFILL = 1  # one token's K and V of a layer: to the sinks, or encoded at once
    APPEND = 2  # one token's K and V of a layer: to the sinks or the window
    ATTEND = 3  # the outputs of all query heads of a layer
    FREE = 4  # the sequence and all its pages
    LOAD = 5  # the codebooks of a layer, K and V, into the buffer that is not in use
    RESTORE = 6  # one token's codes of K and V of a layer, from the host: no encoding


class Status(enum.IntEnum):
    """The end of a request; the first that applies, in this order."""

    OK = 0
    BAD_REQUEST = 1  # unknown op; sequence or layer beyond the configuration
    TABLE_FULL = 2  # OPEN: all sequences are open
    SEQUENCE_UNKNOWN = 3  # never opened, or already free
    NO_CODEBOOK = 4  # the codebooks of this layer are not loaded
    TOKEN_ORDER = 5  # PREFILL, RESTORE: recent tokens; RESTORE: the sinks are not full
    LENGTH_LIMIT = 6  # PREFILL, APPEND, RESTORE: beyond the configuration's max_tokens
    EMPTY = 7  # ATTEND: the layer has no token
    NONFINITE = 8  # NaN or infinity in q, K or V, or in a codebook
    OUT_OF_PAGES = 9  # PREFILL, APPEND, RESTORE: the codes found no room
    SLAVE_ERROR = 10  # some beat was answered SLVERR
    DECODE_ERROR = 11  # some beat was answered DECERR
    BAD_CODE = 12  # ATTEND: a code beyond the entries of the codebook
    OVERFLOW = 13  # ATTEND: a table entry beyond FP16, a score above it, or all scores below it


# How a request to the paged memory ended -> how the request ends that needed it.
PAGED: dict[int, Status] = {
    PagingStatus.OK: Status.OK,
    PagingStatus.TABLE_FULL: Status.TABLE_FULL,
    PagingStatus.SEQUENCE_UNKNOWN: Status.SEQUENCE_UNKNOWN,
    PagingStatus.LENGTH_LIMIT: Status.LENGTH_LIMIT,
    PagingStatus.OUT_OF_PAGES: Status.OUT_OF_PAGES,
    PagingStatus.SLAVE_ERROR: Status.SLAVE_ERROR,
    PagingStatus.DECODE_ERROR: Status.DECODE_ERROR,
}


def paged(status: int) -> Status:
    """Translates a status of the paged memory; BAD_REQUEST: one that no request should have."""
    return PAGED.get(status, Status.BAD_REQUEST)
