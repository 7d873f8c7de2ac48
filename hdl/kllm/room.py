"""Blocks of KLLM by name."""

from hdl.kllm.accelerator import KllmAccelerator
from hdl.kllm.activity import KllmActivity
from hdl.kllm.batch import KllmBatch
from hdl.kllm.cache.engine import KllmCache
from hdl.kllm.cache.host import KllmCacheHost
from hdl.kllm.dispatcher import KllmDispatcher
from hdl.kllm.documents import DOCUMENTS
from hdl.kllm.fetch import KllmFetch
from hdl.kllm.function.control import KllmFunctionControl
from hdl.kllm.function.decode import KllmFunctionDecode
from hdl.kllm.function.norm_finish import KllmNormFinish
from hdl.kllm.function.norm_stats import KllmNormStats
from hdl.kllm.function.norm_sums import KllmNormSums
from hdl.kllm.function.pipeline import KllmFunctionPipeline
from hdl.kllm.function.result_rows import KllmResultRows
from hdl.kllm.function.row_reader import KllmRowReader
from hdl.kllm.function.slot_fetch import KllmSlotFetch
from hdl.kllm.function.slot_rows import KllmSlotRows
from hdl.kllm.function.tabled import KllmTabled
from hdl.kllm.function.unit import KllmFunctionalUnit
from hdl.kllm.function.vector_lanes import KllmVectorLanes
from hdl.kllm.lane.array import KllmLaneArray
from hdl.kllm.lane.codebook import KllmLaneCodebook
from hdl.kllm.lane.codebook_rows import KllmLaneCodebookRows
from hdl.kllm.lane.concat import KllmConcat
from hdl.kllm.lane.control import KllmLaneControl
from hdl.kllm.lane.dense import KllmLaneDense
from hdl.kllm.lane.engine import KllmPeLane
from hdl.kllm.lane.finish import KllmLaneFinish
from hdl.kllm.lane.row_lookup import KllmRowLookup
from hdl.kllm.lane.scaler import KllmScaler
from hdl.kllm.lane.select import KllmLaneSelect
from hdl.kllm.lane.select_column import KllmSelectColumn
from hdl.kllm.lane.sparse import KllmLaneSparse
from hdl.kllm.matmul.check import KllmMatmulCheck
from hdl.kllm.matmul.collect import KllmMatmulCollect
from hdl.kllm.matmul.descriptors import KllmDescriptorWalk
from hdl.kllm.matmul.engine import KllmMatmul
from hdl.kllm.matmul.entries import KllmEntryWalk
from hdl.kllm.matmul.gather import KllmRowGather
from hdl.kllm.matmul.issue import KllmMatmulIssue
from hdl.kllm.matmul.jobs import KllmJobWalk
from hdl.kllm.matmul.outliers import KllmOutlierWalk
from hdl.kllm.matmul.rows import KllmRowWalk
from hdl.kllm.outliers.orizuru import KllmOrizuru
from hdl.kllm.outliers.orizuru_unit import KllmOrizuruUnit
from hdl.kllm.outliers.outlier import KllmOutlier
from hdl.kllm.quantize.bounds import KllmOutlierBounds
from hdl.kllm.quantize.compare import KllmRowCompare
from hdl.kllm.quantize.decode import KllmQuantizeDecode
from hdl.kllm.quantize.descriptors import KllmDescriptorWriter
from hdl.kllm.quantize.entries import KllmEntryWriter
from hdl.kllm.quantize.first_pass import KllmFirstPass
from hdl.kllm.quantize.integer_quantizer import KllmIntegerQuantizer
from hdl.kllm.quantize.maximum import KllmTokenMaximum
from hdl.kllm.quantize.quantizer import KllmQuantizer
from hdl.kllm.quantize.scheduler import KllmTokenScheduler
from hdl.kllm.quantize.splitter import KllmRowSplitter
from hdl.kllm.quantize.tokens import KllmTokenWalk
from hdl.kllm.row_guard import KllmRowGuard
from hdl.kllm.slots.choices import KllmChoices
from hdl.kllm.slots.draw import KllmDraw
from hdl.kllm.slots.load import KllmLoad
from hdl.kllm.slots.load_at import KllmLoadAt
from hdl.kllm.slots.memory import KllmSlotMemory
from hdl.kllm.slots.read_share import KllmReadShare
from hdl.kllm.slots.readback import KllmReadback
from hdl.kllm.slots.top_k import KllmTopK
from hdl.kllm.weights.buffer import KllmWeightBuffer
from hdl.kllm.weights.stripe import KllmWeightStripe
from hdl.kllm.weights.supply import KllmWeightSupply
from hdl.registry import Room, registered

BLOCKS = registered(
    KllmAccelerator,
    KllmActivity,
    KllmLoad,
    KllmLoadAt,
    KllmReadShare,
    KllmMatmul,
    KllmRowGather,
    KllmRowGuard,
    KllmRowWalk,
    KllmOutlierWalk,
    KllmDescriptorWalk,
    KllmEntryWalk,
    KllmJobWalk,
    KllmMatmulCollect,
    KllmMatmulCheck,
    KllmMatmulIssue,
    KllmNormSums,
    KllmNormFinish,
    KllmNormStats,
    KllmConcat,
    KllmTabled,
    KllmFunctionPipeline,
    KllmRowReader,
    KllmVectorLanes,
    KllmResultRows,
    KllmSlotFetch,
    KllmSlotRows,
    KllmFunctionControl,
    KllmFunctionDecode,
    KllmFunctionalUnit,
    KllmBatch,
    KllmCache,
    KllmCacheHost,
    KllmDispatcher,
    KllmFetch,
    KllmReadback,
    KllmTopK,
    KllmChoices,
    KllmDraw,
    KllmOutlier,
    KllmScaler,
    KllmPeLane,
    KllmLaneCodebook,
    KllmLaneCodebookRows,
    KllmLaneControl,
    KllmLaneDense,
    KllmLaneSelect,
    KllmLaneSparse,
    KllmLaneFinish,
    KllmRowLookup,
    KllmSelectColumn,
    KllmLaneArray,
    KllmWeightStripe,
    KllmSlotMemory,
    KllmWeightBuffer,
    KllmWeightSupply,
    KllmOrizuru,
    KllmOrizuruUnit,
    KllmIntegerQuantizer,
    KllmQuantizeDecode,
    KllmFirstPass,
    KllmOutlierBounds,
    KllmTokenMaximum,
    KllmTokenWalk,
    KllmTokenScheduler,
    KllmRowCompare,
    KllmRowSplitter,
    KllmEntryWriter,
    KllmDescriptorWriter,
    KllmQuantizer,
)

ROOM = Room(
    blocks=BLOCKS,
    documents=DOCUMENTS,
    tables=("kllm", "kllm_users"),
    fault_weight=2,
    chip=("kllm_accelerator", "table1"),
)
