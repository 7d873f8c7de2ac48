"""Blocks of QET by name."""

from hdl.qet.swap import QetSwap, QetSwapConfig
from hdl.qet.unswap import QetUnswap, QetUnswapConfig
from hdl.registry import Registered, Room

__all__ = ["BLOCKS", "ROOM"]

BLOCKS = {
    "qet_swap": Registered(
        component=QetSwap,
        config=QetSwapConfig(),
        configs={
            "fp32": QetSwapConfig(bits=32),
            "widest": QetSwapConfig(levels=5, bits=32),
            "small": QetSwapConfig(levels=2, networks=2),
        },
        golden="golden.qet.swap:swap",
    ),
    "qet_unswap": Registered(
        component=QetUnswap,
        config=QetUnswapConfig(),
        configs={
            "fp32": QetUnswapConfig(bits=32),
            "widest": QetUnswapConfig(levels=5, bits=32),
            "small": QetUnswapConfig(levels=2, networks=2, bits=5),
        },
        golden="golden.qet.swap:unswap",
    ),
}

ROOM = Room(blocks=BLOCKS)
