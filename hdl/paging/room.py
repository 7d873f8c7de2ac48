"""Blocks of the paged memory by name."""

from hdl.paging.mmu import PagingMmu
from hdl.paging.page_table import PagingPageTable
from hdl.registry import Room, registered

BLOCKS = registered(
    PagingMmu,
    PagingPageTable,
)

ROOM = Room(blocks=BLOCKS)
