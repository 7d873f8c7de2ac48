"""Paged memory management of the KV cache (docs/blocks/oaken_mmu.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Module
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from golden.axi.format import PAGE_BYTES as AXI_BOUNDARY
from golden.config import Config
from golden.oaken.config import CacheConfig
from hdl.axi.signature import Axi4, axi4
from hdl.block import Block
from hdl.oaken.layouts import REQUEST_LAYOUT, STATUS_LAYOUT, TOKEN_BITS, word_layout

__all__ = ["BYTES_BITS", "INFO_LAYOUT", "OakenMmu", "OakenMmuConfig"]

BYTES_BITS = 12  # of a record's number of bytes

# What the dense and the sparse transfer of one head are.
INFO_LAYOUT = data.StructLayout(
    {
        "tag": 8,  # of the READ
        "head": 8,
        "tokens": TOKEN_BITS,  # records of the dense transfer
        "skip": TOKEN_BITS,  # records of the sparse transfer that stand before the first token
        "first": 1,  # head of the READ
        "last": 1,
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenMmuConfig(Config):
    """Capacity of the cache, and widths and queues between memory and the engines."""

    cache: CacheConfig = CacheConfig()
    data_bits: int = 256  # bits of a memory word, a power of two in 64..1024
    address_bits: int = 40  # bits of a byte address, 32..64
    burst_beats: int = 64  # words of the longest burst, 1..256
    outstanding: int = 8  # bursts read ahead, 1..16
    reads: int = 8  # READs under way, 1..16
    appends: int = 4  # APPENDs accepted and not yet complete, 1..16
    dense_beats: int = 256  # words of the queue in front of dense, 4..4096
    sparse_beats: int = 128  # words of the queue in front of sparse, 4..4096
    scale_beats: int = 64  # words of the queue in front of scale, 4..4096

    def __post_init__(self) -> None:
        self._check_power_of_two("data_bits", 64, 1024)
        self._check_range("address_bits", 32, 64)
        self._check_range("burst_beats", 1, 256)
        self._check_range("outstanding", 1, 16)
        self._check_range("reads", 1, 16)
        self._check_range("appends", 1, 16)
        for field in ("dense_beats", "sparse_beats", "scale_beats"):
            self._check_range(field, 4, 4096)
        if self.cache.pages * self.cache.page_bytes > 1 << self.address_bits:
            bits = (self.cache.pages * self.cache.page_bytes - 1).bit_length()
            self._refuse("address_bits", f"at least {bits} for the cache's pages")

    @property
    def word_bytes(self) -> int:
        return self.data_bits // 8

    @property
    def boundary_words(self) -> int:
        """Words between two addresses that no burst crosses: a page, 4 KiB at most."""
        return min(self.cache.page_bytes, AXI_BOUNDARY) // self.word_bytes

    @property
    def page_words(self) -> int:
        return self.cache.page_bytes // self.word_bytes

    @property
    def axi_signature(self) -> Axi4:
        return axi4(self.address_bits, self.data_bits)

    @property
    def word_layout(self) -> data.StructLayout:
        return word_layout(self.data_bits)

    @property
    def record_layout(self) -> data.StructLayout:
        return data.StructLayout({"bytes": BYTES_BITS})

    @property
    def w_layout(self) -> data.StructLayout:
        return data.StructLayout({"data": self.data_bits, "last": 1})


class OakenMmu(Block):
    """A paged cache of records behind one AXI4 port: requests in, statuses and words out.

    Members
    -------
    request : In(stream)   REQUEST_LAYOUT
    status : Out(stream)   STATUS_LAYOUT: one per request
    base : In              byte address of page 0, a multiple of page_bytes, constant
    free_pages : Out       pages that no stream owns
    idle : Out             nothing is under way
    record : In(stream)    bytes: 1..record_bytes_max; 2 heads + 1 per APPEND, in order of slots
    w : In(stream)         the records' bytes, packed; last on each record's final word
    info : Out(stream)     INFO_LAYOUT: one per READ and head
    dense, sparse : Out(stream)  word_layout: one transfer per info
    scale : Out(stream)    word_layout: one transfer per READ that has an info
    axi : Out(axi4)        the memory
    """

    meaning: ClassVar[dict[str, str]] = {
        "request": "What to do; fields as in hdl.oaken.layouts.REQUEST_LAYOUT.",
        "status": "How a request ended; requests of one kind end in order.",
        "base": "Byte address of page 0, a multiple of page_bytes; constant while running.",
        "free_pages": "Pages that no stream owns.",
        "idle": "Nothing is under way.",
        "record": "Size of the next record of an APPEND, in order of slots.",
        "w": "The records' bytes, packed; last on each record's final word.",
        "info": "What the next dense and sparse transfers are.",
        "dense": "Dense records of one head: bytes first..end - 1 of data.",
        "sparse": "Sparse records of one head, of every token from skip before on.",
        "scale": "Scale records of a READ.",
        "axi": "AXI4 manager: the memory that holds the pages.",
    }

    def __init__(self, config: OakenMmuConfig):
        word = stream.Signature(config.word_layout)
        super().__init__(
            config,
            {
                "request": In(stream.Signature(REQUEST_LAYOUT)),
                "status": Out(stream.Signature(STATUS_LAYOUT)),
                "base": In(config.address_bits),
                "free_pages": Out(range(config.cache.pages + 1)),
                "idle": Out(1),
                "record": In(stream.Signature(config.record_layout)),
                "w": In(stream.Signature(config.w_layout)),
                "info": Out(stream.Signature(INFO_LAYOUT)),
                "dense": Out(word),
                "sparse": Out(word),
                "scale": Out(word),
                "axi": Out(config.axi_signature),
            },
        )

    def elaborate(self, platform) -> Module:
        raise NotImplementedError
