"""Blocks of KLLM by name."""

import dataclasses

from golden.kllm.config import MACHINES, LaneShape, PortShape, SlotShape, VectorShape
from hdl.kllm.accelerator import KllmAccelerator, KllmAcceleratorConfig, KllmLaneBuild
from hdl.kllm.dispatcher import KllmDispatcher, KllmDispatcherConfig
from hdl.kllm.documents import DOCUMENTS
from hdl.kllm.function.control import KllmFunctionControl, KllmFunctionControlConfig
from hdl.kllm.function.decode import KllmFunctionDecode, KllmFunctionDecodeConfig
from hdl.kllm.function.norm_finish import KllmNormFinish, KllmNormFinishConfig
from hdl.kllm.function.norm_stats import KllmNormStats, KllmNormStatsConfig
from hdl.kllm.function.norm_sums import KllmNormSums, KllmNormSumsConfig
from hdl.kllm.function.pipeline import KllmFunctionPipeline, KllmFunctionPipelineConfig
from hdl.kllm.function.result_rows import KllmResultRows, KllmResultRowsConfig
from hdl.kllm.function.row_reader import KllmRowReader, KllmRowReaderConfig
from hdl.kllm.function.slot_fetch import KllmSlotFetch, KllmSlotFetchConfig
from hdl.kllm.function.slot_rows import KllmSlotRows, KllmSlotRowsConfig
from hdl.kllm.function.unit import KllmFunctionalUnit, KllmFunctionalUnitConfig
from hdl.kllm.function.vector_lanes import KllmVectorLanes, KllmVectorLanesConfig
from hdl.kllm.lane.array import KllmLaneArray, KllmLaneArrayConfig
from hdl.kllm.lane.codebook import KllmLaneCodebook
from hdl.kllm.lane.concat import KllmConcat, KllmConcatConfig
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.lane.control import KllmLaneControl
from hdl.kllm.lane.dense import KllmLaneDense
from hdl.kllm.lane.engine import KllmPeLane
from hdl.kllm.lane.finish import KllmLaneFinish
from hdl.kllm.lane.row_lookup import KllmRowLookup
from hdl.kllm.lane.scaler import KllmScaler, KllmScalerConfig
from hdl.kllm.lane.select import KllmLaneSelect
from hdl.kllm.lane.select_column import KllmSelectColumn
from hdl.kllm.lane.select_config import KllmSelectConfig
from hdl.kllm.lane.sparse import KllmLaneSparse
from hdl.kllm.matmul.check import KllmMatmulCheck
from hdl.kllm.matmul.collect import KllmMatmulCollect
from hdl.kllm.matmul.config import KllmMatmulPhaseConfig
from hdl.kllm.matmul.descriptors import KllmDescriptorWalk
from hdl.kllm.matmul.engine import KllmMatmul
from hdl.kllm.matmul.entries import KllmEntryWalk
from hdl.kllm.matmul.gather import KllmRowGather
from hdl.kllm.matmul.issue import KllmMatmulIssue
from hdl.kllm.matmul.jobs import KllmJobWalk
from hdl.kllm.matmul.outliers import KllmOutlierWalk
from hdl.kllm.matmul.rows import KllmRowWalk
from hdl.kllm.outliers.orizuru import KllmOrizuru, KllmOrizuruConfig
from hdl.kllm.outliers.orizuru_unit import KllmOrizuruUnit, KllmOrizuruUnitConfig
from hdl.kllm.outliers.outlier import KllmOutlier, KllmOutlierConfig
from hdl.kllm.quantize.bounds import KllmOutlierBounds
from hdl.kllm.quantize.compare import KllmRowCompare, KllmRowCompareConfig
from hdl.kllm.quantize.decode import KllmQuantizeDecode, KllmQuantizeDecodeConfig
from hdl.kllm.quantize.descriptors import KllmDescriptorWriter
from hdl.kllm.quantize.entries import KllmEntryWriter, KllmEntryWriterConfig
from hdl.kllm.quantize.first_pass import KllmFirstPass
from hdl.kllm.quantize.integer_quantizer import KllmIntegerQuantizer, KllmIntegerQuantizerConfig
from hdl.kllm.quantize.maximum import KllmTokenMaximum
from hdl.kllm.quantize.payloads import KllmQuantizePhaseConfig
from hdl.kllm.quantize.quantizer import KllmQuantizer, KllmQuantizerConfig
from hdl.kllm.quantize.scheduler import KllmTokenScheduler
from hdl.kllm.quantize.splitter import KllmRowSplitter, KllmRowSplitterConfig
from hdl.kllm.quantize.tokens import KllmTokenWalk
from hdl.kllm.slots.load import KllmLoad, KllmLoadConfig
from hdl.kllm.slots.memory import KllmSlotMemory
from hdl.kllm.slots.readback import KllmReadback, KllmReadbackConfig
from hdl.kllm.weights.buffer import KllmWeightBuffer, KllmWeightBufferConfig
from hdl.kllm.weights.stripe import KllmWeightStripe, KllmWeightStripeConfig
from hdl.kllm.weights.supply import KllmWeightSupply, KllmWeightSupplyConfig
from hdl.registry import Registered, Room, Tier

_TABLE1 = KllmPeLaneConfig()
_SMALL = KllmPeLaneConfig(
    bits_a=2, bits_b=3, elements=4, columns=3, k_max=100, integer_bits=4, macs=8, outliers_max=9,
    weight_buffer_beats=4,
)  # fmt: skip
# Sizes of Table I. The paper's lane counts in flip-flops.
_SELECTING = {
    "table1": _TABLE1,
    "table1_w4a3": KllmPeLaneConfig(bits_a=3),
    "small": _SMALL,
}
_COUNTING = {
    "table1_flipflop": KllmPeLaneConfig(counter="flipflop"),
    "small_flipflop": dataclasses.replace(_SMALL, counter="flipflop"),
}
_LANES = _SELECTING | _COUNTING
# Rows and columns of the selecting lane.
_SELECTS = {
    "table1": KllmSelectConfig(),
    "table1_w4a3": KllmSelectConfig(bits_a=3),
    "no_integer": KllmSelectConfig(integer_bits=0),
    "small": KllmSelectConfig(
        bits_a=2, bits_b=3, elements=4, columns=3, k_max=100, integer_bits=4, tag_bits=5
    ),
}
_SMALL_QUANTIZER = KllmQuantizerConfig(
    vectors=VectorShape(rows=64),
    slot=SlotShape(slots=4, elements=64, outliers_max=5, bits_a=2, integer_bits=4),
)
_QUANTIZERS = {"table1": KllmQuantizerConfig(), "small": _SMALL_QUANTIZER}
_SMALL_SUPPLY = KllmWeightSupplyConfig(
    lane=LaneShape(lanes=2, columns=3, elements=4, bits_b=3),
    ports=PortShape(ports=3, bits=16),
    buffer_beats=5,
    length_bits=6,
)
_BUILDS = {"small": KllmLaneBuild(macs=16, weight_buffer_beats=4)}
_ALL_ACCELERATORS = {
    name: KllmAcceleratorConfig(machine=machine, build=_BUILDS.get(name, KllmLaneBuild()))
    for name, machine in MACHINES.items()
}
_ACCELERATORS = {name: _ALL_ACCELERATORS[name] for name in ("table1", "small")}

_SMALL_FUNCTIONAL_UNIT = KllmFunctionalUnitConfig(
    vectors=VectorShape(rows=256),
    slot=SlotShape(slots=4, elements=256, bits_a=2, integer_bits=4),
    width=4,
    softmax_elements=256,
)
_FUNCTIONAL_UNITS = {"table1": KllmFunctionalUnitConfig(), "small": _SMALL_FUNCTIONAL_UNIT}

_NORMS = {
    "table1": KllmNormStatsConfig(),
    "table1_w4a3": KllmNormStatsConfig(bits_a=3),
    "small": KllmNormStatsConfig(bits_a=2, elements=4, k_max=100),
}

BLOCKS = {
    "kllm_accelerator": Registered(
        component=KllmAccelerator,
        config=KllmAcceleratorConfig(),
        configs=_ALL_ACCELERATORS,
        golden="golden.kllm.machine:Machine",
        checked="small",
    ),
    "kllm_load": Registered(
        component=KllmLoad,
        tier=Tier.PART,
        config=KllmLoadConfig(),
        configs={
            "table1": KllmLoadConfig(),
            "small": KllmLoadConfig(vectors=VectorShape(rows=256)),
        },
        golden="golden.kllm.machine:Machine",
    ),
    "kllm_matmul": Registered(
        component=KllmMatmul,
        config=KllmAcceleratorConfig().matmul_config,
        configs={name: config.matmul_config for name, config in _ACCELERATORS.items()},
        golden="golden.kllm.machine:Machine",
    ),
    "kllm_row_gather": Registered(
        component=KllmRowGather,
        tier=Tier.PART,
        config=KllmMatmulPhaseConfig(),
        golden="golden.kllm.walks:gathered_rows",
    ),
    "kllm_row_walk": Registered(
        component=KllmRowWalk,
        tier=Tier.PART,
        config=KllmMatmulPhaseConfig(),
        golden="golden.kllm.walks:row_words",
    ),
    "kllm_outlier_walk": Registered(
        component=KllmOutlierWalk,
        tier=Tier.PART,
        config=KllmMatmulPhaseConfig(),
        golden="golden.kllm.walks:outlier_places",
    ),
    "kllm_descriptor_walk": Registered(
        component=KllmDescriptorWalk,
        tier=Tier.PART,
        config=KllmMatmulPhaseConfig(),
        golden="golden.kllm.walks:walk_slots",
    ),
    "kllm_entry_walk": Registered(
        component=KllmEntryWalk,
        tier=Tier.PART,
        config=KllmAcceleratorConfig().lane,
        configs={name: config.lane for name, config in _ACCELERATORS.items()},
        golden="golden.kllm.walks:entry_beats",
    ),
    "kllm_job_walk": Registered(
        component=KllmJobWalk,
        tier=Tier.PART,
        config=KllmAcceleratorConfig().lane,
        configs={name: config.lane for name, config in _ACCELERATORS.items()},
        golden="golden.kllm.walks:job_words",
    ),
    "kllm_matmul_collect": Registered(
        component=KllmMatmulCollect,
        tier=Tier.PART,
        config=KllmAcceleratorConfig().matmul_config,
        configs={name: config.matmul_config for name, config in _ACCELERATORS.items()},
        golden="golden.kllm.collect:collect",
        checked="small",
    ),
    "kllm_matmul_check": Registered(
        component=KllmMatmulCheck,
        tier=Tier.PART,
        config=KllmAcceleratorConfig().matmul_config,
        configs={name: config.matmul_config for name, config in _ACCELERATORS.items()},
        golden="golden.kllm.issue:is_outside",
    ),
    "kllm_matmul_issue": Registered(
        component=KllmMatmulIssue,
        tier=Tier.PART,
        config=KllmAcceleratorConfig().matmul_config,
        configs={name: config.matmul_config for name, config in _ACCELERATORS.items()},
        golden="golden.kllm.issue:issue",
        checked="small",
    ),
    "kllm_norm_sums": Registered(
        component=KllmNormSums,
        tier=Tier.PART,
        config=KllmNormSumsConfig(),
        configs={name: config.sums for name, config in _NORMS.items()},
        golden="golden.kllm.norms:exact_sums",
    ),
    "kllm_norm_finish": Registered(
        component=KllmNormFinish,
        tier=Tier.PART,
        config=KllmNormFinishConfig(),
        configs={name: config.finish for name, config in _NORMS.items()},
        golden="golden.kllm.norms:finish_statistics",
    ),
    "kllm_norm_stats": Registered(
        component=KllmNormStats,
        tier=Tier.PART,
        config=KllmNormStatsConfig(),
        configs=_NORMS,
        golden="golden.kllm.norms:norm_statistics",
    ),
    "kllm_concat": Registered(
        component=KllmConcat,
        tier=Tier.PART,
        config=KllmConcatConfig(),
        configs={"table1": _TABLE1.concat_config, "small": _SMALL.concat_config},
        golden="golden.kllm.blocks:concatenate",
    ),
    "kllm_function_pipeline": Registered(
        component=KllmFunctionPipeline,
        tier=Tier.PART,
        config=KllmFunctionPipelineConfig(),
        configs={"table1": KllmFunctionPipelineConfig()},
        golden="golden.kllm.functional:function",
    ),
    "kllm_row_reader": Registered(
        component=KllmRowReader,
        tier=Tier.PART,
        config=KllmRowReaderConfig(),
        configs={name: unit.reader for name, unit in _FUNCTIONAL_UNITS.items()},
        golden="golden.kllm.phases:walk_rows",
    ),
    "kllm_vector_lanes": Registered(
        component=KllmVectorLanes,
        tier=Tier.PART,
        config=KllmVectorLanesConfig(),
        configs={name: unit.lanes for name, unit in _FUNCTIONAL_UNITS.items()},
        golden="golden.kllm.phases:lanes",
    ),
    "kllm_result_rows": Registered(
        component=KllmResultRows,
        tier=Tier.PART,
        config=KllmResultRowsConfig(),
        configs={name: unit.results for name, unit in _FUNCTIONAL_UNITS.items()},
        golden="golden.kllm.phases:result_rows",
    ),
    "kllm_slot_fetch": Registered(
        component=KllmSlotFetch,
        tier=Tier.PART,
        config=KllmSlotFetchConfig(),
        configs={name: unit.outliers for name, unit in _FUNCTIONAL_UNITS.items()},
        golden="golden.kllm.phases:fetched",
    ),
    "kllm_slot_rows": Registered(
        component=KllmSlotRows,
        tier=Tier.PART,
        config=KllmSlotRowsConfig(),
        configs={name: unit.slot_words for name, unit in _FUNCTIONAL_UNITS.items()},
        golden="golden.kllm.phases:slot_rows",
    ),
    "kllm_function_control": Registered(
        component=KllmFunctionControl,
        tier=Tier.PART,
        config=KllmFunctionControlConfig(),
        configs={name: unit.control for name, unit in _FUNCTIONAL_UNITS.items()},
        golden="golden.kllm.functional:execute",
    ),
    "kllm_function_decode": Registered(
        component=KllmFunctionDecode,
        tier=Tier.PART,
        config=KllmFunctionDecodeConfig(),
        configs={name: unit.decode for name, unit in _FUNCTIONAL_UNITS.items()},
        golden="golden.kllm.functional:execute",
    ),
    "kllm_functional_unit": Registered(
        component=KllmFunctionalUnit,
        config=KllmFunctionalUnitConfig(),
        configs=_FUNCTIONAL_UNITS,
        golden="golden.kllm.functional:execute",
    ),
    "kllm_dispatcher": Registered(
        component=KllmDispatcher,
        tier=Tier.PART,
        config=KllmDispatcherConfig(),
        configs={
            "table1": KllmDispatcherConfig(),
            "smallest": KllmDispatcherConfig(queue=3, running=1),
        },
        golden="golden.kllm.engines:screen",
    ),
    "kllm_readback": Registered(
        component=KllmReadback,
        tier=Tier.PART,
        config=KllmReadbackConfig(),
        configs={
            "table1": KllmReadbackConfig(),
            "small": KllmReadbackConfig(vectors=VectorShape(rows=256), slot=SlotShape(slots=4)),
        },
        golden="golden.kllm.machine:slot_words",
    ),
    "kllm_outlier": Registered(
        component=KllmOutlier,
        tier=Tier.PART,
        config=KllmOutlierConfig(),
        configs={"table1": _TABLE1.outlier_config, "small": _SMALL.outlier_config},
        golden="golden.kllm.blocks:sparse_sums",
    ),
    "kllm_scaler": Registered(
        component=KllmScaler,
        tier=Tier.PART,
        config=KllmScalerConfig(),
        configs={"table1": _TABLE1.scaler_config, "small": _SMALL.scaler_config},
        golden="golden.kllm.blocks:scale_outputs",
    ),
    "kllm_pe_lane": Registered(
        component=KllmPeLane,
        config=_TABLE1,
        configs=_LANES,
        golden="golden.kllm.matmul:matmul",
    ),
    "kllm_lane_codebook": Registered(
        component=KllmLaneCodebook,
        tier=Tier.PART,
        config=_TABLE1,
        configs=_LANES,
        golden="golden.kllm.lane:codebook_mode",
    ),
    "kllm_lane_control": Registered(
        component=KllmLaneControl,
        tier=Tier.PART,
        config=_TABLE1,
        configs=_LANES,
        golden="golden.kllm.lane:job_steps",
    ),
    "kllm_lane_dense": Registered(
        component=KllmLaneDense,
        tier=Tier.PART,
        config=_COUNTING["table1_flipflop"],
        configs=_COUNTING,
        golden="golden.kllm.blocks:dense_sums",
    ),
    "kllm_lane_select": Registered(
        component=KllmLaneSelect,
        tier=Tier.PART,
        config=_TABLE1,
        configs=_SELECTING,
        golden="golden.kllm.blocks:dense_sums",
    ),
    "kllm_lane_sparse": Registered(
        component=KllmLaneSparse,
        tier=Tier.PART,
        config=_TABLE1,
        configs={"table1": _TABLE1, "small": _SMALL},
        golden="golden.kllm.blocks:sparse_sums",
    ),
    "kllm_lane_finish": Registered(
        component=KllmLaneFinish,
        tier=Tier.PART,
        config=_TABLE1,
        configs={"table1": _TABLE1, "small": _SMALL},
        golden="golden.kllm.blocks:finish_job",
    ),
    "kllm_row_lookup": Registered(
        component=KllmRowLookup,
        tier=Tier.PART,
        config=KllmSelectConfig(),
        configs=_SELECTS,
        golden="golden.kllm.select:look_up_rows",
    ),
    "kllm_select_column": Registered(
        component=KllmSelectColumn,
        tier=Tier.PART,
        config=KllmSelectConfig(),
        configs=_SELECTS,
        golden="golden.kllm.select:column_sum",
    ),
    "kllm_lane_array": Registered(
        component=KllmLaneArray,
        tier=Tier.PART,
        config=KllmLaneArrayConfig(),
        configs={
            "table1": KllmLaneArrayConfig(),
            "small": KllmLaneArrayConfig(lanes=2, lane=_SMALL),
        },
        golden="golden.kllm.matmul:matmul",
    ),
    "kllm_weight_stripe": Registered(
        component=KllmWeightStripe,
        tier=Tier.PART,
        config=KllmWeightStripeConfig(),
        configs={
            "table1": KllmWeightStripeConfig(),
            "small": _SMALL_SUPPLY.stripe_config,
        },
        golden="golden.kllm.image:stripe",
    ),
    "kllm_slot_memory": Registered(
        component=KllmSlotMemory,
        tier=Tier.PART,
        config=KllmAcceleratorConfig().slot_config,
        configs={name: config.slot_config for name, config in _ACCELERATORS.items()},
        golden="golden.memory.reference:memory_shared",
    ),
    "kllm_weight_buffer": Registered(
        component=KllmWeightBuffer,
        tier=Tier.PART,
        config=KllmWeightBufferConfig(),
        configs={
            "table1": KllmWeightBufferConfig(),
            "small": _SMALL_SUPPLY.buffer_config,
        },
        golden="golden.kllm.image:replay",
    ),
    "kllm_weight_supply": Registered(
        component=KllmWeightSupply,
        config=KllmWeightSupplyConfig(),
        configs={"table1": KllmWeightSupplyConfig(), "small": _SMALL_SUPPLY},
        golden="golden.kllm.image:supply",
    ),
    "kllm_orizuru": Registered(
        component=KllmOrizuru,
        config=KllmOrizuruConfig(),
        configs={
            "table1": KllmOrizuruConfig(architecture="parallel"),
            "table1_shared": KllmOrizuruConfig(),
            "small": KllmOrizuruConfig(n_max=256, elements=8),
            "small_parallel": KllmOrizuruConfig(n_max=256, architecture="parallel"),
        },
        golden="golden.kllm.orizuru:pop_token",
    ),
    "kllm_orizuru_unit": Registered(
        component=KllmOrizuruUnit,
        tier=Tier.PART,
        config=KllmOrizuruUnitConfig(),
        configs={
            "leaf": KllmOrizuruUnitConfig(),
            "inner": KllmOrizuruUnitConfig(shared=False, carry_bits=8),
        },
        golden="golden.kllm.orizuru:select_unit",
    ),
    "kllm_integer_quantizer": Registered(
        component=KllmIntegerQuantizer,
        tier=Tier.PART,
        config=KllmIntegerQuantizerConfig(),
        configs={
            "table1": KllmQuantizerConfig().integer_config,
            "small": _SMALL_QUANTIZER.integer_config,
        },
        golden="golden.kllm.quantize:unsigned_quotient",
    ),
    "kllm_quantize_decode": Registered(
        component=KllmQuantizeDecode,
        tier=Tier.PART,
        config=KllmQuantizeDecodeConfig(),
        configs={name: quantizer.decode for name, quantizer in _QUANTIZERS.items()},
        golden="golden.kllm.quantizer:faults",
    ),
    "kllm_first_pass": Registered(
        component=KllmFirstPass,
        tier=Tier.PART,
        config=KllmQuantizePhaseConfig(),
        golden="golden.kllm.quantizer_phases:first_pass",
    ),
    "kllm_outlier_bounds": Registered(
        component=KllmOutlierBounds,
        tier=Tier.PART,
        config=KllmQuantizePhaseConfig(),
        golden="golden.kllm.quantizer_phases:outlier_bound",
    ),
    "kllm_token_maximum": Registered(
        component=KllmTokenMaximum,
        tier=Tier.PART,
        config=KllmQuantizePhaseConfig(),
        golden="golden.kllm.quantizer_phases:token_maximum",
    ),
    "kllm_token_walk": Registered(
        component=KllmTokenWalk,
        tier=Tier.PART,
        config=KllmQuantizePhaseConfig(),
        golden="golden.kllm.quantizer_phases:walk_tokens",
    ),
    "kllm_token_scheduler": Registered(
        component=KllmTokenScheduler,
        tier=Tier.PART,
        config=KllmQuantizePhaseConfig(),
        golden="golden.kllm.quantizer_phases:schedule",
    ),
    "kllm_row_compare": Registered(
        component=KllmRowCompare,
        tier=Tier.PART,
        config=KllmRowCompareConfig(),
        configs={name: quantizer.compare for name, quantizer in _QUANTIZERS.items()},
        golden="golden.kllm.quantizer_phases:compare_row",
    ),
    "kllm_row_splitter": Registered(
        component=KllmRowSplitter,
        tier=Tier.PART,
        config=KllmRowSplitterConfig(),
        configs={name: quantizer.splitter for name, quantizer in _QUANTIZERS.items()},
        golden="golden.kllm.quantizer_phases:split_rows",
    ),
    "kllm_entry_writer": Registered(
        component=KllmEntryWriter,
        tier=Tier.PART,
        config=KllmEntryWriterConfig(),
        configs={name: quantizer.writer for name, quantizer in _QUANTIZERS.items()},
        golden="golden.kllm.quantizer_phases:entry_row",
    ),
    "kllm_descriptor_writer": Registered(
        component=KllmDescriptorWriter,
        tier=Tier.PART,
        config=KllmQuantizePhaseConfig(),
        golden="golden.kllm.quantizer_phases:descriptors",
    ),
    "kllm_quantizer": Registered(
        component=KllmQuantizer,
        config=KllmQuantizerConfig(),
        configs={
            "table1": KllmQuantizerConfig(),
            "parallel": KllmQuantizerConfig(orizuru="parallel"),
            "smollm2": KllmQuantizerConfig(
                vectors=VectorShape(rows=2048), slot=SlotShape(elements=1536)
            ),
            "small": _SMALL_QUANTIZER,
        },
        golden="golden.kllm.quantizer:quantize_command",
    ),
}

ROOM = Room(
    blocks=BLOCKS,
    documents=DOCUMENTS,
    tables=("kllm",),
    fault_weight=2,
    chip=("kllm_accelerator", "table1"),
)
