"""Blocks of attention by name."""

from hdl.attention.softmax import AttentionSoftmax
from hdl.attention.weights import AttentionWeights
from hdl.registry import Room, registered

BLOCKS = registered(
    AttentionSoftmax,
    AttentionWeights,
)

ROOM = Room(blocks=BLOCKS, tables=("libraries",), fault_weight=2)
