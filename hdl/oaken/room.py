"""Blocks of Oaken by name."""

from golden.oaken.config import CacheConfig, KvShape
from hdl.oaken.decomposer import OakenDecomposer, OakenDecomposerConfig
from hdl.oaken.dequant_engine import OakenDequantEngine, OakenDequantEngineConfig
from hdl.oaken.inlier_dequantizer import OakenInlierDequantizer, OakenInlierDequantizerConfig
from hdl.oaken.inlier_quantizer import OakenInlierQuantizer, OakenInlierQuantizerConfig
from hdl.oaken.kv_engine import OakenKvEngine, OakenKvEngineConfig
from hdl.oaken.mmu import PagingMmuConfig
from hdl.oaken.outlier_dequantizer import OakenOutlierDequantizer, OakenOutlierDequantizerConfig
from hdl.oaken.outlier_quantizer import OakenOutlierQuantizer, OakenOutlierQuantizerConfig
from hdl.oaken.quant_engine import OakenQuantEngine, OakenQuantEngineConfig
from hdl.oaken.scale_buffer import OakenScaleBuffer, OakenScaleBufferConfig
from hdl.oaken.sparse_chunks import OakenSparseChunks, OakenSparseChunksConfig
from hdl.oaken.token_parameters import OakenTokenParameters, OakenTokenParametersConfig
from hdl.oaken.zero_insert import OakenZeroInsert, OakenZeroInsertConfig
from hdl.oaken.zero_remove import OakenZeroRemove, OakenZeroRemoveConfig
from hdl.registry import Registered, Room, Tier

_CACHES = {
    "smollm2": CacheConfig(kv=KvShape(heads=3, head_dim=64), layers=30, pages=8192),
    "small": CacheConfig(
        kv=KvShape(heads=1, head_dim=16, block=16),
        sequences=3,
        layers=1,
        pages=8,
        page_bytes=256,
        max_tokens=40,
    ),
}

BLOCKS: dict[str, Registered] = {
    "oaken_decomposer": Registered(
        component=OakenDecomposer,
        tier=Tier.PART,
        config=OakenDecomposerConfig(),
        configs={"small": OakenDecomposerConfig(lanes=8)},
        golden="golden.oaken.quantize:decompose",
    ),
    "oaken_inlier_quantizer": Registered(
        component=OakenInlierQuantizer,
        tier=Tier.PART,
        config=OakenInlierQuantizerConfig(),
        configs={"small": OakenInlierQuantizerConfig(lanes=8)},
        golden="golden.oaken.quantize:codes",
    ),
    "oaken_outlier_quantizer": Registered(
        component=OakenOutlierQuantizer,
        tier=Tier.PART,
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
        tier=Tier.PART,
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
        tier=Tier.PART,
        config=OakenInlierDequantizerConfig(),
        configs={
            "small": OakenInlierDequantizerConfig(lanes=8, stages=1),
        },
        golden="golden.oaken.dequantize:inliers",
    ),
    "oaken_kv_engine": Registered(
        component=OakenKvEngine,
        config=OakenKvEngineConfig(),
        configs={
            "smollm2": OakenKvEngineConfig(mmu=PagingMmuConfig(cache=_CACHES["smollm2"]), lanes=16),
            "small": OakenKvEngineConfig(
                mmu=PagingMmuConfig(
                    cache=_CACHES["small"],
                    data_bits=64,
                    burst_beats=4,
                    outstanding=2,
                    reads=2,
                    appends=1,
                    dense_beats=8,
                    sparse_beats=8,
                    scale_beats=8,
                ),
                lanes=8,
                scale_tokens=4,
                queue=2,
            ),
        },
        golden="golden.oaken.kv_engine:KvEngine",
    ),
    "oaken_outlier_dequantizer": Registered(
        component=OakenOutlierDequantizer,
        tier=Tier.PART,
        config=OakenOutlierDequantizerConfig(),
        configs={
            "small": OakenOutlierDequantizerConfig(lanes=8, stages=1),
        },
        golden="golden.oaken.dequantize:outliers",
    ),
    "oaken_scale_buffer": Registered(
        component=OakenScaleBuffer,
        tier=Tier.PART,
        config=OakenScaleBufferConfig(),
        configs={
            "small": OakenScaleBufferConfig(depth=16),
        },
        golden="golden.oaken.dequantize:repeat_scales",
    ),
    "oaken_sparse_chunks": Registered(
        component=OakenSparseChunks,
        tier=Tier.PART,
        config=OakenSparseChunksConfig(),
        configs={
            "widest": OakenSparseChunksConfig(data_bits=1024, chunk_bytes=128),
            "small": OakenSparseChunksConfig(data_bits=64, chunk_bytes=8),
        },
        golden="golden.oaken.dequantize:sparse_chunks",
    ),
    "oaken_token_parameters": Registered(
        component=OakenTokenParameters,
        tier=Tier.PART,
        config=OakenTokenParametersConfig(),
        configs={"small": OakenTokenParametersConfig(stages=1)},
        golden="golden.oaken.dequantize:token_parameters",
    ),
    "oaken_zero_insert": Registered(
        component=OakenZeroInsert,
        tier=Tier.PART,
        config=OakenZeroInsertConfig(),
        configs={
            "widest": OakenZeroInsertConfig(lanes=64, data_bits=1024),
            "small": OakenZeroInsertConfig(lanes=8, block=16, data_bits=64, blocks_max=4),
        },
        golden="golden.oaken.dequantize:insert_zeros",
    ),
}

ROOM = Room(blocks=BLOCKS, tables=("oaken",))
