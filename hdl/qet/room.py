"""Blocks of QET by name."""

from golden.qet.config import Stage, TileShape
from hdl.qet.decoder import QetDecoder, QetDecoderConfig
from hdl.qet.dequant_gemv import QetDequantGemv
from hdl.qet.encoder import QetEncoder, QetEncoderConfig
from hdl.qet.gemv_config import QetDequantGemvConfig
from hdl.qet.swap import QetSwap, QetSwapConfig
from hdl.qet.unswap import QetUnswap, QetUnswapConfig
from hdl.registry import Registered, Room


def _tiles(first: int, residual: int) -> TileShape:
    """The paper's: three levels, groups of 8, a residual without levels, 10 bits."""
    return TileShape(stages=(Stage(levels=3, entries=first), Stage(levels=0, entries=residual)))


# Entries at ratio 4: of 1536 x 576 FP16, and of 11008 x 4096 FP32
_SMOLLM2, _LLAMA = _tiles(128, 19), _tiles(3357, 770)
_PRODUCT = TileShape(stages=(Stage(levels=0, entries=256),), entry_bits=0)
_SMALL = TileShape(
    group=2, stages=(Stage(levels=2, entries=5), Stage(levels=0, entries=3)), entry_bits=4
)

BLOCKS = {
    "qet_decoder": Registered(
        component=QetDecoder,
        config=QetDecoderConfig(),
        configs={
            "smollm2": QetDecoderConfig(shape=_SMOLLM2),
            "llama": QetDecoderConfig(shape=_LLAMA),
            "product": QetDecoderConfig(shape=_PRODUCT),
            "small": QetDecoderConfig(shape=_SMALL),
        },
        golden="golden.qet.tiling:tiles_of",
    ),
    "qet_dequant_gemv": Registered(
        component=QetDequantGemv,
        config=QetDequantGemvConfig(),
        configs={
            "smollm2": QetDequantGemvConfig(shape=_SMOLLM2, columns=1536, rows=1536),
            "llama": QetDequantGemvConfig(shape=_LLAMA, rows=11008),
            "small": QetDequantGemvConfig(shape=_SMALL, columns=32, rows=16, data_bits=64, ahead=8),
        },
        golden="golden.qet.product:product",
    ),
    "qet_encoder": Registered(
        component=QetEncoder,
        config=QetEncoderConfig(),
        configs={
            "smollm2": QetEncoderConfig(shape=_SMOLLM2),
            "product": QetEncoderConfig(shape=_PRODUCT),
            "small": QetEncoderConfig(shape=_SMALL),
        },
        golden="golden.qet.matrix:encode",
    ),
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

ROOM = Room(blocks=BLOCKS, tables=("qet",))
