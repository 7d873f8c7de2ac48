"""Requests, commands and statuses of the paged cache. Pure Python.

Some codes belong to the engine that makes and reads the records, as the comments say.
"""

import enum


class Op(enum.IntEnum):
    """The kinds of requests."""

    OPEN = 0  # a new sequence; the status carries its number
    APPEND = 1  # one token's K or V vector, at position ``token``
    READ = 2  # tokens start..token - 1 of ``heads`` heads from ``head`` on
    TRIM = 3  # forget the tokens before ``token``, all layers
    FREE = 4  # the sequence and all its pages
    THRESHOLDS = 5  # of (layer, K or V)
    FORK = 6  # a new sequence with the tokens of another; the status carries its number

    @property
    def operands(self) -> tuple[str, ...]:
        """Fields of a request that the op uses, in addition to ``op`` and ``tag``."""
        return _OPERANDS[self]


class Kv(enum.IntEnum):
    """The vector of a token that a request names."""

    K = 0  # key
    V = 1  # value


class PageOp(enum.IntEnum):
    """Commands of the page table; golden.paging.pages says what each does."""

    OPEN = 0  # a vacant sequence is open, without tokens
    CLOSE = 1  # the sequence is closing
    FREE_STREAM = 2  # all pages of a stream go back
    VACATE = 3  # a closing sequence without pages is vacant
    TRIM_CHECK = 4  # whether the vector has ``token`` tokens
    SET_START = 5  # tokens below ``token`` are forgotten
    TRIM_STREAM = 6  # pages of a stream in which no record of ``token`` or later starts go back
    BEGIN = 7  # the transaction that appends record ``token`` to all slots of a vector
    EXTEND = 8  # room for the record of ``slot``
    COMMIT = 9  # the records of all slots belong to the vector
    ABORT = 10  # the pages that the transaction has taken go back
    READ = 11  # where the records of a stream up to ``token`` - 1 are
    NEXT = 12  # the page after ``page`` in its chain
    FORK = 13  # a vacant sequence begins as the child of another
    FORK_STREAM = 14  # the child's next stream: it shares full pages, and has the last one anew
    FORK_END = 15  # the child is open

    @property
    def operands(self) -> tuple[str, ...]:
        """Fields of a command that the op uses, in addition to ``op``."""
        return _PAGE_OPERANDS[self]


class Status(enum.IntEnum):
    """The end of a request; the first that applies, in this order."""

    OK = 0
    # Unknown op; layer, head or heads beyond the configuration; no heads. FORK of a child, at last.
    BAD_REQUEST = 1
    TABLE_FULL = 2  # OPEN: all sequences are open. FORK: the same, after SEQUENCE_UNKNOWN
    SEQUENCE_UNKNOWN = 3  # never opened, or already free
    THRESHOLDS = 4  # not finite, not in order, missing, or changed while a sequence is open
    TOKEN_ORDER = 5  # APPEND: ``token`` is not the next position. FORK: some vector is longer
    LENGTH_LIMIT = 6  # APPEND: beyond the configuration's max_tokens
    BEYOND_LENGTH = 7  # READ, TRIM, FORK: beyond what is written
    EMPTY = 8  # READ: no token left between the trimmed start and ``token``
    VECTOR_LENGTH = 9  # APPEND: the vector has another length than the request says
    NONFINITE = 10  # APPEND: NaN or infinity in the vector
    OUT_OF_PAGES = 11  # APPEND, FORK: rolled back
    SLAVE_ERROR = 12  # some beat was answered SLVERR
    DECODE_ERROR = 13  # some beat was answered DECERR
    MALFORMED = 14  # READ: what memory gave is no record


_OPERANDS: dict[Op, tuple[str, ...]] = {
    Op.OPEN: (),
    Op.APPEND: ("sequence", "layer", "kv", "token"),
    Op.READ: ("sequence", "layer", "kv", "head", "heads", "token"),
    Op.TRIM: ("sequence", "token"),
    Op.FREE: ("sequence",),
    Op.THRESHOLDS: ("layer", "kv", "thresholds"),
    Op.FORK: ("sequence", "token"),
}
_PAGE_OPERANDS: dict[PageOp, tuple[str, ...]] = {
    PageOp.OPEN: (),
    PageOp.CLOSE: ("sequence",),
    PageOp.FREE_STREAM: ("sequence", "layer", "kv", "slot"),
    PageOp.VACATE: ("sequence",),
    PageOp.TRIM_CHECK: ("sequence", "layer", "kv", "token"),
    PageOp.SET_START: ("sequence", "token"),
    PageOp.TRIM_STREAM: ("sequence", "layer", "kv", "slot", "token"),
    PageOp.BEGIN: ("sequence", "layer", "kv", "token"),
    PageOp.EXTEND: ("slot", "bytes"),
    PageOp.COMMIT: (),
    PageOp.ABORT: (),
    PageOp.READ: ("sequence", "layer", "kv", "slot", "token"),
    PageOp.NEXT: ("sequence", "layer", "kv", "slot", "page"),  # without forks only ``page``
    PageOp.FORK: ("sequence", "token"),
    PageOp.FORK_STREAM: (),
    PageOp.FORK_END: (),
}
