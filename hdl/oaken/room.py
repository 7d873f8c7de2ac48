"""Blocks of Oaken by name."""

from hdl.oaken.attention import OakenAttention
from hdl.oaken.attention_array import OakenAttentionArray
from hdl.oaken.decomposer import OakenDecomposer
from hdl.oaken.dequant_engine import OakenDequantEngine
from hdl.oaken.inlier_dequantizer import OakenInlierDequantizer
from hdl.oaken.inlier_quantizer import OakenInlierQuantizer
from hdl.oaken.kv_engine import OakenKvEngine
from hdl.oaken.outlier_dequantizer import OakenOutlierDequantizer
from hdl.oaken.outlier_quantizer import OakenOutlierQuantizer
from hdl.oaken.quant_engine import OakenQuantEngine
from hdl.oaken.scale_buffer import OakenScaleBuffer
from hdl.oaken.sparse_chunks import OakenSparseChunks
from hdl.oaken.token_parameters import OakenTokenParameters
from hdl.oaken.token_split import OakenTokenSplit
from hdl.oaken.token_writer import OakenTokenWriter
from hdl.oaken.zero_insert import OakenZeroInsert
from hdl.oaken.zero_remove import OakenZeroRemove
from hdl.registry import Room, registered

BLOCKS = registered(
    OakenDecomposer,
    OakenInlierQuantizer,
    OakenOutlierQuantizer,
    OakenQuantEngine,
    OakenZeroRemove,
    OakenDequantEngine,
    OakenInlierDequantizer,
    OakenKvEngine,
    OakenAttention,
    OakenAttentionArray,
    OakenOutlierDequantizer,
    OakenScaleBuffer,
    OakenSparseChunks,
    OakenTokenParameters,
    OakenTokenSplit,
    OakenTokenWriter,
    OakenZeroInsert,
)

ROOM = Room(blocks=BLOCKS, tables=("oaken",))
