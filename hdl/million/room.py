"""Blocks of product-quantized attention by name."""

from golden.million.config import NAMED, HeadShape, MillionConfig, PqShape, RateShape, WindowShape
from hdl.million.attend_control import MillionAttendControl, MillionAttendControlConfig
from hdl.million.attention import MillionAttention, MillionAttentionConfig
from hdl.million.code_reader import MillionCodeReader, MillionCodeReaderConfig
from hdl.million.control import MillionControl, MillionControlConfig
from hdl.million.decode_engine import MillionDecodeEngine, MillionDecodeEngineConfig
from hdl.million.decode_keys import MillionDecodeKeys, MillionDecodeKeysConfig
from hdl.million.decode_values import MillionDecodeValues, MillionDecodeValuesConfig
from hdl.million.encode_control import MillionEncodeControl, MillionEncodeControlConfig
from hdl.million.kv_writer import MillionKvWriter, MillionKvWriterConfig
from hdl.million.loader import MillionLoader, MillionLoaderConfig
from hdl.million.output import MillionOutput, MillionOutputConfig
from hdl.million.pq_encoder import MillionPqEncoder, MillionPqEncoderConfig
from hdl.million.query_splitter import MillionQuerySplitter, MillionQuerySplitterConfig
from hdl.million.record_writer import MillionRecordWriter, MillionRecordWriterConfig
from hdl.million.restorer import MillionRestorer, MillionRestorerConfig
from hdl.million.score_engine import MillionScoreEngine, MillionScoreEngineConfig
from hdl.million.table_builder import MillionTableBuilder, MillionTableBuilderConfig
from hdl.million.value_engine import MillionValueEngine, MillionValueEngineConfig
from hdl.million.verdict import MillionVerdict, MillionVerdictConfig
from hdl.million.window import MillionWindow, MillionWindowConfig
from hdl.registry import Registered, Room, Tier

_SMALL = PqShape(head_dim=16, subspaces=4, bits=4)
_SMALL_RATE = RateShape(macs=8, keys=2, queries=2, window_macs=8, lanes=8)
_SMOLLM2_RATE = RateShape(queries=3)
_SMALL_CACHE = MillionConfig(
    pq=_SMALL,
    head=HeadShape(heads=2, group=2),
    window=WindowShape(sinks=2, keep=3, block=4),
    layers=2,
)
_SMALL_ATTENTION = MillionConfig(
    pq=_SMALL,
    head=HeadShape(heads=2, group=3),
    window=WindowShape(sinks=2, keep=3, block=4),
    sequences=2,
    layers=2,
    max_tokens=48,
    pages=40,
    page_bytes=256,
)
_SMOLLM2_CACHE = MillionConfig(pq=NAMED["4b_64"], head=HeadShape(heads=3, group=3), layers=30)

BLOCKS: dict[str, Registered] = {
    "million_code_reader": Registered(
        component=MillionCodeReader,
        tier=Tier.PART,
        config=MillionCodeReaderConfig(),
        configs={
            "3b": MillionCodeReaderConfig(pq=NAMED["3b"]),
            "smollm2": MillionCodeReaderConfig(pq=NAMED["4b_64"]),
            "small": MillionCodeReaderConfig(
                pq=_SMALL, rate=RateShape(macs=8, keys=2, queries=2, window_macs=8, lanes=8),
                data_bits=64,
            ),
        },
        golden="golden.million.records:code_beats",
    ),
    "million_decode_engine": Registered(
        component=MillionDecodeEngine,
        config=MillionDecodeEngineConfig(),
        configs={
            "smollm2": MillionDecodeEngineConfig(pq=NAMED["4b_64"], rate=_SMOLLM2_RATE),
            "small": MillionDecodeEngineConfig(pq=_SMALL, rate=_SMALL_RATE, max_keys=64),
        },
        golden="golden.million.decode:decode_scores",
        checked="small",
    ),
    "million_decode_keys": Registered(
        component=MillionDecodeKeys,
        config=MillionDecodeKeysConfig(),
        configs={
            "smollm2": MillionDecodeKeysConfig(pq=NAMED["4b_64"], rate=_SMOLLM2_RATE),
            "small": MillionDecodeKeysConfig(pq=_SMALL, rate=_SMALL_RATE, max_keys=64),
        },
        golden="golden.million.decode:decode_scores",
        checked="small",
    ),
    "million_decode_values": Registered(
        component=MillionDecodeValues,
        tier=Tier.PART,
        config=MillionDecodeValuesConfig(),
        configs={
            "smollm2": MillionDecodeValuesConfig(pq=NAMED["4b_64"], rate=_SMOLLM2_RATE),
            "small": MillionDecodeValuesConfig(pq=_SMALL, rate=_SMALL_RATE, max_keys=64),
        },
        golden="golden.million.decode:decode_sums",
        checked="small",
    ),
    "million_score_engine": Registered(
        component=MillionScoreEngine,
        config=MillionScoreEngineConfig(),
        configs={
            "smollm2": MillionScoreEngineConfig(pq=NAMED["4b_64"], rate=_SMOLLM2_RATE),
            "small": MillionScoreEngineConfig(pq=_SMALL, rate=_SMALL_RATE, max_keys=64),
        },
        golden="golden.million.scores:past_scores",
    ),
    "million_pq_encoder": Registered(
        component=MillionPqEncoder,
        config=MillionPqEncoderConfig(),
        configs={
            "smollm2": MillionPqEncoderConfig(pq=NAMED["4b_64"], rate=_SMOLLM2_RATE),
            "small": MillionPqEncoderConfig(pq=_SMALL, rate=_SMALL_RATE, books=2),
        },
        golden="golden.index.pq:exact_codes",
    ),
    "million_query_splitter": Registered(
        component=MillionQuerySplitter,
        tier=Tier.PART,
        config=MillionQuerySplitterConfig(),
        configs={
            "smollm2": MillionQuerySplitterConfig(pq=NAMED["4b_64"], rate=RateShape(queries=3)),
            "small": MillionQuerySplitterConfig(pq=_SMALL, rate=_SMALL_RATE),
        },
        golden="golden.million.split:groups",
    ),
    "million_value_engine": Registered(
        component=MillionValueEngine,
        tier=Tier.PART,
        config=MillionValueEngineConfig(),
        configs={
            "3b": MillionValueEngineConfig(pq=NAMED["3b"]),
            "smollm2": MillionValueEngineConfig(pq=NAMED["4b_64"], rate=_SMOLLM2_RATE),
            "small": MillionValueEngineConfig(pq=_SMALL, rate=_SMALL_RATE, max_keys=64, books=2),
        },
        golden="golden.million.value:value_sums",
    ),
    "million_output": Registered(
        component=MillionOutput,
        config=MillionOutputConfig(),
        configs={
            "smollm2": MillionOutputConfig(cache=_SMOLLM2_CACHE, rate=_SMOLLM2_RATE),
            "small": MillionOutputConfig(cache=_SMALL_CACHE, rate=_SMALL_RATE),
        },
        golden="golden.million.output:outputs",
    ),
    "million_window": Registered(
        component=MillionWindow,
        tier=Tier.PART,
        config=MillionWindowConfig(),
        configs={
            "smollm2": MillionWindowConfig(cache=_SMOLLM2_CACHE, rate=_SMOLLM2_RATE),
            "small": MillionWindowConfig(cache=_SMALL_CACHE, rate=_SMALL_RATE),
        },
        golden="golden.million.window:window_scores",
    ),
    "million_table_builder": Registered(
        component=MillionTableBuilder,
        tier=Tier.PART,
        config=MillionTableBuilderConfig(),
        configs={
            "smollm2": MillionTableBuilderConfig(pq=NAMED["4b_64"], rate=_SMOLLM2_RATE),
            "small": MillionTableBuilderConfig(pq=_SMALL, rate=_SMALL_RATE, books=2),
        },
        golden="golden.index.tables:tables",
    ),
    "million_record_writer": Registered(
        component=MillionRecordWriter,
        tier=Tier.PART,
        config=MillionRecordWriterConfig(),
        configs={
            "3b": MillionRecordWriterConfig(pq=NAMED["3b"]),
            "smollm2": MillionRecordWriterConfig(pq=NAMED["4b_64"]),
            "small": MillionRecordWriterConfig(pq=_SMALL, data_bits=64),
        },
        golden="golden.index.codes:pack",
    ),
    "million_restorer": Registered(
        component=MillionRestorer,
        tier=Tier.PART,
        config=MillionRestorerConfig(),
        configs={
            "smollm2": MillionRestorerConfig(
                writer=MillionRecordWriterConfig(pq=NAMED["4b_64"]), heads=3
            ),
            "small": MillionRestorerConfig(
                writer=MillionRecordWriterConfig(pq=_SMALL, data_bits=64), heads=2
            ),
        },
        golden="golden.million.records:passed_words",
    ),
    "million_kv_writer": Registered(
        component=MillionKvWriter,
        tier=Tier.PART,
        config=MillionKvWriterConfig(),
        configs={
            "smollm2": MillionKvWriterConfig(cache=_SMOLLM2_CACHE),
            "small": MillionKvWriterConfig(cache=_SMALL_CACHE, rate=_SMALL_RATE),
        },
        golden="golden.million.split:rows",
    ),
    "million_attend_control": Registered(
        component=MillionAttendControl,
        tier=Tier.PART,
        config=MillionAttendControlConfig(),
        configs={
            "smollm2": MillionAttendControlConfig(cache=_SMOLLM2_CACHE, rate=_SMOLLM2_RATE),
            "small": MillionAttendControlConfig(cache=_SMALL_CACHE, rate=_SMALL_RATE),
        },
        golden="golden.million.groups:groups",
    ),
    "million_loader": Registered(
        component=MillionLoader,
        tier=Tier.PART,
        config=MillionLoaderConfig(),
        configs={
            "smollm2": MillionLoaderConfig(cache=_SMOLLM2_CACHE),
            "small": MillionLoaderConfig(cache=_SMALL_CACHE, rate=_SMALL_RATE),
        },
        golden="golden.index.store:store_words",
    ),
    "million_verdict": Registered(
        component=MillionVerdict,
        tier=Tier.PART,
        config=MillionVerdictConfig(),
        configs={
            "smollm2": MillionVerdictConfig(cache=_SMOLLM2_CACHE, rate=_SMOLLM2_RATE),
            "small": MillionVerdictConfig(cache=_SMALL_CACHE, rate=_SMALL_RATE),
        },
        golden="golden.million.verdicts:attend_status",
    ),
    "million_control": Registered(
        component=MillionControl,
        tier=Tier.PART,
        config=MillionControlConfig(),
        configs={
            "smollm2": MillionControlConfig(cache=_SMOLLM2_CACHE, rate=_SMOLLM2_RATE),
            "small": MillionControlConfig(cache=_SMALL_CACHE, rate=_SMALL_RATE),
        },
        golden="golden.million.requests:Requests",
    ),
    "million_attention": Registered(
        component=MillionAttention,
        config=MillionAttentionConfig(),
        configs={
            "smollm2": MillionAttentionConfig(cache=_SMOLLM2_CACHE, rate=_SMOLLM2_RATE),
            "llama": MillionAttentionConfig(
                cache=MillionConfig(head=HeadShape(heads=2, group=4), layers=32)
            ),
            "small": MillionAttentionConfig(
                cache=_SMALL_ATTENTION, rate=_SMALL_RATE, data_bits=64, burst_beats=4,
                outstanding=4, reads=4, beats=16,
            ),
        },
        golden="golden.million.cache:Cache",
        checked="small",
    ),
    "million_encode_control": Registered(
        component=MillionEncodeControl,
        tier=Tier.PART,
        config=MillionEncodeControlConfig(),
        configs={
            "smollm2": MillionEncodeControlConfig(cache=_SMOLLM2_CACHE),
            "small": MillionEncodeControlConfig(cache=_SMALL_CACHE),
        },
        golden="golden.million.encode:Encoding",
    ),
}  # fmt: skip

ROOM = Room(
    blocks=BLOCKS,
    tables=("libraries", "million", "million_entries", "million_parts", "million_storage"),
    fault_weight=2,
)
