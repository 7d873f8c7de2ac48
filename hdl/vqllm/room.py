"""Blocks of VQ-LLM by name."""

from golden.vqllm.config import NAMED, VqShape
from hdl.registry import Registered, Room
from hdl.vqllm.cache_config import VqCodebookCacheConfig
from hdl.vqllm.codebook_cache import VqCodebookCache
from hdl.vqllm.dequantizer import VqDequantizer, VqDequantizerConfig

__all__ = ["BLOCKS", "ROOM"]

BLOCKS = {
    "vq_codebook_cache": Registered(
        component=VqCodebookCache,
        config=VqCodebookCacheConfig(),
        configs={
            "aqlm3": VqCodebookCacheConfig(vq=NAMED["aqlm3"], shared=4096, banks=16),
            "gptvq2": VqCodebookCacheConfig(vq=NAMED["gptvq2"], lookups=16, banks=16),
            "small": VqCodebookCacheConfig(
                vq=VqShape(size=2, entries=16), lookups=4, registers=2, shared=8, banks=2,
                beats=8, data_bits=64,
            ),
        },
        golden="golden.vqllm.cache:LookUps",
    ),
    "vq_dequantizer": Registered(
        component=VqDequantizer,
        config=VqDequantizerConfig(),
        configs={
            "aqlm3": VqDequantizerConfig(vq=NAMED["aqlm3"]),
            "small": VqDequantizerConfig(vq=VqShape(size=2, stages=3)),
        },
        golden="golden.vqllm.matrix:summed",
    ),
}  # fmt: skip

ROOM = Room(blocks=BLOCKS)
