"""Blocks of product-quantized attention by name."""

from hdl.million.attend_control import MillionAttendControl
from hdl.million.attention import MillionAttention
from hdl.million.code_reader import MillionCodeReader
from hdl.million.control import MillionControl
from hdl.million.decode_engine import MillionDecodeEngine
from hdl.million.decode_keys import MillionDecodeKeys
from hdl.million.decode_values import MillionDecodeValues
from hdl.million.encode_control import MillionEncodeControl
from hdl.million.kv_writer import MillionKvWriter
from hdl.million.loader import MillionLoader
from hdl.million.output import MillionOutput
from hdl.million.pq_encoder import MillionPqEncoder
from hdl.million.query_splitter import MillionQuerySplitter
from hdl.million.record_writer import MillionRecordWriter
from hdl.million.restorer import MillionRestorer
from hdl.million.score_engine import MillionScoreEngine
from hdl.million.table_builder import MillionTableBuilder
from hdl.million.value_engine import MillionValueEngine
from hdl.million.verdict import MillionVerdict
from hdl.million.window import MillionWindow
from hdl.registry import Room, registered

BLOCKS = registered(
    MillionCodeReader,
    MillionDecodeEngine,
    MillionDecodeKeys,
    MillionDecodeValues,
    MillionScoreEngine,
    MillionPqEncoder,
    MillionQuerySplitter,
    MillionValueEngine,
    MillionOutput,
    MillionWindow,
    MillionTableBuilder,
    MillionRecordWriter,
    MillionRestorer,
    MillionKvWriter,
    MillionAttendControl,
    MillionLoader,
    MillionVerdict,
    MillionControl,
    MillionAttention,
    MillionEncodeControl,
)

ROOM = Room(
    blocks=BLOCKS,
    tables=("libraries", "million", "million_entries", "million_parts", "million_storage"),
    fault_weight=2,
)
