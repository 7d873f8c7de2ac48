"""Requests, commands and statuses of the paged cache. Pure Python.

Some codes belong to the engine that makes and reads the records, as the comments say.
"""

import enum

__all__ = ["Kv", "Op", "PageOp", "Status"]


class Op(enum.IntEnum):
    """The kinds of requests."""

    OPEN = 0  # a new sequence; the status carries its number
    APPEND = 1  # one token's K or V vector, at position ``token``
    READ = 2  # tokens start..token - 1 of ``heads`` heads from ``head`` on
    TRIM = 3  # forget the tokens before ``token``, all layers
    FREE = 4  # the sequence and all its pages
    THRESHOLDS = 5  # of (layer, K or V)


class Kv(enum.IntEnum):
    """Which vector of a token."""

    K = 0  # key
    V = 1  # value


class PageOp(enum.IntEnum):
    """Commands of the page table; golden.paging.pages says what each does."""

    OPEN = 0
    CLOSE = 1
    FREE_STREAM = 2
    VACATE = 3
    TRIM_CHECK = 4
    SET_START = 5
    TRIM_STREAM = 6
    BEGIN = 7
    EXTEND = 8
    COMMIT = 9
    ABORT = 10
    READ = 11
    NEXT = 12


class Status(enum.IntEnum):
    """How a request ended; the first that applies, in this order."""

    OK = 0
    BAD_REQUEST = 1  # unknown op; layer, head or heads beyond the configuration; no heads
    TABLE_FULL = 2  # OPEN: all sequences are open
    SEQUENCE_UNKNOWN = 3  # never opened, or already free
    THRESHOLDS = 4  # not finite, not in order, missing, or changed while a sequence is open
    TOKEN_ORDER = 5  # APPEND: ``token`` is not the next position
    LENGTH_LIMIT = 6  # APPEND: beyond the configuration's max_tokens
    BEYOND_LENGTH = 7  # READ, TRIM: beyond what is written
    EMPTY = 8  # READ: no token left between the trimmed start and ``token``
    VECTOR_LENGTH = 9  # APPEND: the vector has another length than the request says
    NONFINITE = 10  # APPEND: NaN or infinity in the vector
    OUT_OF_PAGES = 11  # APPEND: rolled back
    SLAVE_ERROR = 12  # some beat was answered SLVERR
    DECODE_ERROR = 13  # some beat was answered DECERR
    MALFORMED = 14  # READ: what memory gave is no record
