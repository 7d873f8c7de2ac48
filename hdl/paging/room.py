"""Blocks of the paged memory by name."""

from golden.paging.config import CacheConfig, RecordKind, VectorRecords
from hdl.paging.mmu import PagingMmu, PagingMmuConfig
from hdl.paging.page_table import PagingPageTable
from hdl.registry import Registered, Room


def _records(heads: int, dense: int, sparse: tuple[int, int]) -> VectorRecords:
    """A fixed and a variable record per head, a fixed one per vector; sizes in bytes."""
    return VectorRecords(
        heads=heads,
        per_head=(
            RecordKind(name="dense", least=dense, most=dense),
            RecordKind(name="sparse", least=sparse[0], most=sparse[1]),
        ),
    )


_CACHES = {
    "smollm2": CacheConfig(kv=_records(3, 32, (1, 65)), layers=30, pages=8192),
    "small": CacheConfig(
        kv=_records(1, 8, (1, 17)),
        sequences=3,
        layers=1,
        pages=8,
        page_bytes=256,
        max_tokens=40,
    ),
}

BLOCKS: dict[str, Registered] = {
    "paging_mmu": Registered(
        component=PagingMmu,
        config=PagingMmuConfig(),
        configs={
            # Few pages and short queues: everything that can run out or full does so often.
            "soak": PagingMmuConfig(
                cache=CacheConfig(
                    kv=_records(2, 8, (1, 17)),
                    sequences=6,
                    layers=2,
                    pages=96,
                    page_bytes=256,
                    max_tokens=64,
                ),
                data_bits=64,
                address_bits=32,
                burst_beats=8,
                outstanding=3,
                reads=3,
                appends=2,
                beats=(8, 8, 4),
            ),
            "smollm2": PagingMmuConfig(cache=_CACHES["smollm2"]),
            # Llama-2-7B in MILLION's codes, 4 bits of each element: no kind but one.
            "million": PagingMmuConfig(
                cache=CacheConfig(
                    kv=VectorRecords(
                        heads=32,
                        per_head=(RecordKind(name="codes", least=64, most=64),),
                        per_vector=(),
                    ),
                ),
                beats=(256,),
            ),
        },
        golden="golden.paging.mmu:Mmu",
    ),
    "paging_page_table": Registered(
        component=PagingPageTable,
        config=CacheConfig(),
        configs=_CACHES,
        golden="golden.paging.pages:PageTable",
    ),
}

ROOM = Room(blocks=BLOCKS)
