"""Payloads that the paging blocks share. Fixed widths: out-of-range values must arrive."""

from amaranth.lib import data

from golden.paging.config import RecordShape
from hdl.ports import Payload

__all__ = [
    "BYTES_BITS",
    "REQUEST_LAYOUT",
    "STATUS_LAYOUT",
    "TOKEN_BITS",
    "info_layout",
    "word_layout",
]

TOKEN_BITS = 21  # positions 0..2**20
BYTES_BITS = 12  # of the number of bytes of a record

# One request to the cache; fields that an op does not use are ignored.
REQUEST_LAYOUT = Payload(
    op=(4, "golden.paging.format.Op"),
    tag=(8, "comes back with the status"),
    sequence=(8, "number of the sequence"),
    layer=(8, "layer of the model"),
    kv=(1, "0: K, 1: V"),
    head=(8, "READ: first head"),
    heads=(8, "READ: number of heads"),
    token=(TOKEN_BITS, "position; READ: one past the last"),
)
STATUS_LAYOUT = Payload(
    tag=(8, "tag of the request"),
    op=(4, "golden.paging.format.Op of the request"),
    status=(4, "golden.paging.format.Status"),
    sequence=(8, "OPEN: the new sequence; else the request's"),
)


def info_layout(shape: RecordShape) -> Payload:
    """What the transfers of one head of a READ are."""
    skips = {
        field: (TOKEN_BITS, f"records of the {name} transfer that precede the first token")
        for name, field in shape.skips.items()
    }
    return Payload(
        tag=(8, "tag of the READ"),
        head=(8, "the head"),
        tokens=(TOKEN_BITS, "records of each transfer of fixed size"),
        **skips,
        first=(1, "first head of the READ"),
        last=(1, "last head of the READ"),
    )


def word_layout(data_bits: int) -> data.StructLayout:
    """One word of a transfer from memory: bytes ``first``..``end - 1`` of ``data`` count."""
    size = data_bits // 8
    return Payload(
        data=(data_bits, "bytes of memory, the lowest address in the low bits"),
        first=(range(size), "first byte that counts, 0 but in the first word"),
        end=(range(size + 1), "one past the last byte that counts, all bytes but in the last word"),
        error=(2, "the worst RRESP so far in this transfer: 0, 2 (SLVERR) or 3 (DECERR)"),
        last=(1, "final word of the transfer"),
    )
