"""Blocks of attention by name."""

from hdl.attention.cap import AttentionCap
from hdl.attention.softmax import AttentionSoftmax
from hdl.attention.stream import AttentionStream
from hdl.attention.weights import AttentionWeights
from hdl.registry import Room, registered

BLOCKS = registered(
    AttentionSoftmax,
    AttentionCap,
    AttentionWeights,
    AttentionStream,
)

ROOM = Room(blocks=BLOCKS, tables=("libraries",), fault_weight=2)
