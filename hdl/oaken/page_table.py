"""The page table of the KV cache (docs/blocks/oaken_page_table.md)."""

from amaranth.lib import data

from hdl.oaken.layouts import TOKEN_BITS

__all__ = ["PAGE_COMMAND_LAYOUT", "PAGE_RESPONSE_LAYOUT"]

PAGE_BITS = 20  # pages 0..2**20 - 1

# Fixed widths: out-of-range values must arrive. Fields in the order of golden.oaken.pages.
PAGE_COMMAND_LAYOUT = data.StructLayout(
    {
        "op": 4,  # golden.oaken.format.PageOp
        "sequence": 8,
        "layer": 8,
        "kv": 1,  # 0: K, 1: V
        "slot": 9,
        "token": TOKEN_BITS,
        "bytes": 12,  # EXTEND: of the record
        "page": PAGE_BITS,  # NEXT
    }
)
PAGE_RESPONSE_LAYOUT = data.StructLayout(
    {
        "status": 4,  # golden.oaken.format.Status
        "page": PAGE_BITS,
        "page2": PAGE_BITS,  # EXTEND: where the record goes on
        "offset": 17,  # bytes
        "bytes": 32,  # EXTEND: in ``page``; READ: in all
        "skip": TOKEN_BITS,  # READ of a sparse slot: records before the first that counts
        "sequence": 8,  # OPEN
    }
)
