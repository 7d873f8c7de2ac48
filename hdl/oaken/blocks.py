"""Blocks of Oaken by name."""

from hdl.oaken.decomposer import OakenDecomposer, OakenDecomposerConfig
from hdl.oaken.dequant_engine import OakenDequantEngine, OakenDequantEngineConfig
from hdl.oaken.inlier_dequantizer import OakenInlierDequantizer, OakenInlierDequantizerConfig
from hdl.oaken.inlier_quantizer import OakenInlierQuantizer, OakenInlierQuantizerConfig
from hdl.oaken.outlier_dequantizer import OakenOutlierDequantizer, OakenOutlierDequantizerConfig
from hdl.oaken.outlier_quantizer import OakenOutlierQuantizer, OakenOutlierQuantizerConfig
from hdl.oaken.quant_engine import OakenQuantEngine, OakenQuantEngineConfig
from hdl.oaken.scale_buffer import OakenScaleBuffer, OakenScaleBufferConfig
from hdl.oaken.zero_insert import OakenZeroInsert, OakenZeroInsertConfig
from hdl.oaken.zero_remove import OakenZeroRemove, OakenZeroRemoveConfig
from hdl.registry import Registered

__all__ = ["BLOCKS"]

BLOCKS: dict[str, Registered] = {
    "oaken_decomposer": Registered(
        component=OakenDecomposer,
        config=OakenDecomposerConfig(),
        configs={"small": OakenDecomposerConfig(lanes=8)},
        golden="golden.oaken.quantize:decompose",
    ),
    "oaken_inlier_quantizer": Registered(
        component=OakenInlierQuantizer,
        config=OakenInlierQuantizerConfig(),
        configs={"small": OakenInlierQuantizerConfig(lanes=8)},
        golden="golden.oaken.quantize:codes",
    ),
    "oaken_outlier_quantizer": Registered(
        component=OakenOutlierQuantizer,
        config=OakenOutlierQuantizerConfig(),
        configs={"small": OakenOutlierQuantizerConfig(lanes=8)},
        golden="golden.oaken.quantize:codes",
    ),
    "oaken_quant_engine": Registered(
        component=OakenQuantEngine,
        config=OakenQuantEngineConfig(),
        configs={
            "lanes_8": OakenQuantEngineConfig(lanes=8),
            "lanes_32": OakenQuantEngineConfig(lanes=32),
            "lanes_64": OakenQuantEngineConfig(lanes=64),
            "small": OakenQuantEngineConfig(lanes=8, block=16, elements_max=80),
        },
        golden="golden.oaken.quantize:encode",
    ),
    "oaken_zero_remove": Registered(
        component=OakenZeroRemove,
        config=OakenZeroRemoveConfig(),
        configs={"small": OakenZeroRemoveConfig(lanes=8, block=16)},
        golden="golden.oaken.quantize:sparse_records",
    ),
    "oaken_dequant_engine": Registered(
        component=OakenDequantEngine,
        config=OakenDequantEngineConfig(),
        configs={
            "widest": OakenDequantEngineConfig(lanes=64, data_bits=1024),
            "small": OakenDequantEngineConfig(lanes=8, block=16, data_bits=64, blocks_max=4),
        },
        golden="golden.oaken.quantize:decode",
    ),
    "oaken_inlier_dequantizer": Registered(
        component=OakenInlierDequantizer,
        config=OakenInlierDequantizerConfig(),
        configs={
            "small": OakenInlierDequantizerConfig(lanes=8, stages=1),
        },
        golden="golden.oaken.dequantize:inliers",
    ),
    "oaken_outlier_dequantizer": Registered(
        component=OakenOutlierDequantizer,
        config=OakenOutlierDequantizerConfig(),
        configs={
            "small": OakenOutlierDequantizerConfig(lanes=8, stages=1),
        },
        golden="golden.oaken.dequantize:outliers",
    ),
    "oaken_scale_buffer": Registered(
        component=OakenScaleBuffer,
        config=OakenScaleBufferConfig(),
        configs={
            "small": OakenScaleBufferConfig(depth=16),
        },
        golden="golden.oaken.dequantize:repeat_scales",
    ),
    "oaken_zero_insert": Registered(
        component=OakenZeroInsert,
        config=OakenZeroInsertConfig(),
        configs={
            "widest": OakenZeroInsertConfig(lanes=64, data_bits=1024),
            "small": OakenZeroInsertConfig(lanes=8, block=16, data_bits=64, blocks_max=4),
        },
        golden="golden.oaken.dequantize:insert_zeros",
    ),
}
