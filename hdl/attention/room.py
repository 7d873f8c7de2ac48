"""Blocks of attention by name."""

from hdl.attention.softmax import AttentionSoftmax, AttentionSoftmaxConfig
from hdl.registry import Registered, Room

__all__ = ["BLOCKS", "ROOM"]

BLOCKS = {
    "attention_softmax": Registered(
        component=AttentionSoftmax,
        config=AttentionSoftmaxConfig(),
        configs={
            "table1": AttentionSoftmaxConfig(),
            "small": AttentionSoftmaxConfig(width=4, elements=256),
        },
        golden="golden.attention.softmax:partial",
    ),
}

ROOM = Room(blocks=BLOCKS, tables=("libraries",), fault_weight=2)
