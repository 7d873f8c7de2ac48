"""Tiles that several blocks of the room have by name."""

from golden.qet.config import Stage, TileShape


def _tiles(first: int, residual: int) -> TileShape:
    """The paper's: three levels, groups of 8, a residual without levels, 10 bits."""
    return TileShape(stages=(Stage(levels=3, entries=first), Stage(levels=0, entries=residual)))


# Entries at ratio 4: of 1536 x 576 FP16, and of 11008 x 4096 FP32
SMOLLM2, LLAMA = _tiles(128, 19), _tiles(3357, 770)
PRODUCT = TileShape(stages=(Stage(levels=0, entries=256),), entry_bits=0)
SMALL = TileShape(
    group=2, stages=(Stage(levels=2, entries=5), Stage(levels=0, entries=3)), entry_bits=4
)
