"""Blocks of QET by name."""

from hdl.qet.decoder import QetDecoder
from hdl.qet.dequant_gemv import QetDequantGemv
from hdl.qet.encoder import QetEncoder
from hdl.qet.swap import QetSwap
from hdl.qet.unswap import QetUnswap
from hdl.registry import Room, registered

BLOCKS = registered(
    QetDecoder,
    QetDequantGemv,
    QetEncoder,
    QetSwap,
    QetUnswap,
)

ROOM = Room(blocks=BLOCKS, tables=("qet",))
