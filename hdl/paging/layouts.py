"""Payloads that the paging blocks share. Fixed widths: out-of-range values must arrive."""

from amaranth.lib import data

from golden.axi.format import Resp
from golden.paging.config import RecordShape
from golden.paging.format import Kv, Op, Status
from hdl.kinds import BITS, BYTES, NUMBER, index_of
from hdl.ports import Payload

TOKEN_BITS = 21  # positions 0..2**20
BYTES_BITS = 12  # of the number of bytes of a record

# States of a sequence of the page table.
VACANT, OPEN, CLOSING, FORKING = range(4)

# One request to the cache; fields that an op does not use are ignored.
REQUEST_LAYOUT = Payload(
    op=(4, "golden.paging.format.Op", Op),
    tag=(8, "comes back with the status", BITS),
    sequence=(8, "number of the sequence", index_of("sequences")),
    layer=(8, "layer of the model", index_of("layers")),
    kv=(1, "0: K, 1: V", Kv),
    head=(8, "READ: first head", index_of("heads")),
    heads=(8, "READ: number of heads", NUMBER),
    token=(TOKEN_BITS, "position; READ: one past the last", NUMBER),
)
STATUS_LAYOUT = Payload(
    tag=(8, "tag of the request", BITS),
    op=(4, "golden.paging.format.Op of the request", Op),
    status=(4, "golden.paging.format.Status", Status),
    sequence=(8, "OPEN: the new sequence; else the request's", index_of("sequences")),
)


def info_layout(shape: RecordShape) -> Payload:
    """The description of the transfers of one head of a READ."""
    skips = {
        field: (TOKEN_BITS, f"records of the {name} transfer that precede the first token", NUMBER)
        for name, field in shape.skips.items()
    }
    return Payload(
        tag=(8, "tag of the READ", BITS),
        head=(8, "the head", index_of("heads")),
        tokens=(TOKEN_BITS, "records of each transfer of fixed size", NUMBER),
        **skips,
        first=(1, "first head of the READ"),
        last=(1, "last head of the READ"),
    )


def word_layout(data_bits: int) -> data.StructLayout:
    """One word of a transfer from memory: bytes ``first``..``end - 1`` of ``data`` count."""
    size = data_bits // 8
    return Payload(
        data=(data_bits, "bytes of memory, the lowest address in the low bits", BYTES),
        first=(range(size), "first byte that counts, 0 but in the first word"),
        end=(range(size + 1), "one past the last byte that counts, all bytes but in the last word"),
        error=(2, "the worst RRESP so far in this transfer: 0, 2 (SLVERR) or 3 (DECERR)", Resp),
        last=(1, "final word of the transfer"),
    )
