"""Blocks of indices and codebooks by name."""

from hdl.index.codebook_store import IndexCodebookStore
from hdl.index.histogram_parallel import IndexHistogramParallel
from hdl.index.histogram_ram import IndexHistogramRam
from hdl.index.nearest import IndexNearest
from hdl.index.reducer import IndexReducer
from hdl.index.table import IndexTable
from hdl.registry import Room, registered

BLOCKS = registered(
    IndexCodebookStore,
    IndexHistogramParallel,
    IndexHistogramRam,
    IndexNearest,
    IndexReducer,
    IndexTable,
)

ROOM = Room(blocks=BLOCKS, tables=("libraries", "index"), fault_weight=2)
