"""Blocks of VQ-LLM by name."""

from hdl.registry import Room, registered
from hdl.vqllm.attend.attention import VqAttention
from hdl.vqllm.cache.cache import VqCodebookCache
from hdl.vqllm.dequantizer import VqDequantizer
from hdl.vqllm.exchange import VqExchange
from hdl.vqllm.gemv.core import VqGemvCore
from hdl.vqllm.gemv.gemm import VqGemm
from hdl.vqllm.gemv.gemv import VqGemv
from hdl.vqllm.kv_encoder import VqKvEncoder
from hdl.vqllm.layout_buffer import VqLayoutBuffer
from hdl.vqllm.reduce import VqReduce
from hdl.vqllm.row.finish import VqRowFinish
from hdl.vqllm.row.sums import VqRowSums
from hdl.vqllm.table.gemv import VqTableGemv

BLOCKS = registered(
    VqAttention,
    VqCodebookCache,
    VqDequantizer,
    VqExchange,
    VqGemm,
    VqGemv,
    VqGemvCore,
    VqReduce,
    VqLayoutBuffer,
    VqKvEncoder,
    VqRowFinish,
    VqRowSums,
    VqTableGemv,
)

ROOM = Room(blocks=BLOCKS, tables=("vqllm",))
