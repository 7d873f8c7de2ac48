"""Blocks of attention by name."""

from hdl.attention.softmax import AttentionSoftmax, AttentionSoftmaxConfig
from hdl.attention.weights import AttentionWeights, AttentionWeightsConfig
from hdl.registry import Registered, Room

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
    "attention_weights": Registered(
        component=AttentionWeights,
        config=AttentionWeightsConfig(),
        configs={
            "smollm2": AttentionWeightsConfig(queries=3),
            "small": AttentionWeightsConfig(keys=2, queries=2, past=256, window=8),
        },
        golden="golden.attention.softmax:row_weights",
    ),
}

ROOM = Room(blocks=BLOCKS, tables=("libraries",), fault_weight=2)
