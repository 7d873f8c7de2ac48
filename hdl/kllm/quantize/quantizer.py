"""The engine of Unit.QUANTIZE: vectors to activation slots (docs/blocks/kllm_quantizer.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice, nested, power_of_two
from golden.index.timing import multipliers_max
from golden.kllm.config import SlotShape, VectorShape
from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.timing import QuantizerCycles, orizuru
from golden.timing import Timing
from hdl.block import Block
from hdl.children import add
from hdl.index.nearest import IndexNearest, IndexNearestConfig
from hdl.kllm.engine import (
    command_stream,
    entry_write_layout,
    row_read,
    status_stream,
)
from hdl.kllm.function.norm_stats import KllmNormStats, KllmNormStatsConfig
from hdl.kllm.outliers.orizuru import KllmOrizuru, KllmOrizuruConfig
from hdl.kllm.quantize.bounds import KllmOutlierBounds
from hdl.kllm.quantize.compare import KllmRowCompare, KllmRowCompareConfig
from hdl.kllm.quantize.decode import KllmQuantizeDecode, KllmQuantizeDecodeConfig
from hdl.kllm.quantize.descriptors import TOKENS_IN_FLIGHT, KllmDescriptorWriter
from hdl.kllm.quantize.entries import KllmEntryWriter, KllmEntryWriterConfig
from hdl.kllm.quantize.first_pass import KllmFirstPass
from hdl.kllm.quantize.integer_quantizer import KllmIntegerQuantizer, KllmIntegerQuantizerConfig
from hdl.kllm.quantize.maximum import KllmTokenMaximum
from hdl.kllm.quantize.payloads import (
    KllmQuantizePhaseConfig,
    finish_layout,
    first_pass_layout,
    tag_layout,
    token_layout,
)
from hdl.kllm.quantize.scheduler import KllmTokenScheduler
from hdl.kllm.quantize.splitter import KllmRowSplitter, KllmRowSplitterConfig
from hdl.kllm.quantize.tokens import KllmTokenWalk
from hdl.kllm.slots.memory import slot_ends
from hdl.ports import Out
from hdl.stream.link import StreamView, link
from hdl.stream.queue import queue

_TOKENS_AHEAD = 2  # tokens whose first pass may be ahead of the second


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmQuantizerConfig(Config):
    """Sizes of the quantizer. Slots without integers leave QUANTIZE_INTEGER out."""

    conditional_parts: ClassVar[tuple[str, ...]] = ("integer_config",)

    vectors: VectorShape = nested(VectorShape, "the vector memory")
    slot: SlotShape = nested(SlotShape, "the slots")
    orizuru: str = choice(
        KllmOrizuruConfig.architecture, ("parallel", "shared"), "of the two trees"
    )
    orizuru_stages: int = bounded(1, 1, 4, "cycles of a tournament of 16; parallel: 1")
    integer_lanes: int = power_of_two(4, 1, ROW_ELEMENTS, "dividers of QUANTIZE_INTEGER")
    threshold_multipliers: int = bounded(5, 1, 5, "thresholds scaled per cycle, at most")
    clustering_parts: int = power_of_two(1, 1, ROW_ELEMENTS, "cycles of a row in the clustering")

    @property
    def centroids(self) -> int:
        return 2**self.slot.bits_a

    @property
    def decode(self) -> KllmQuantizeDecodeConfig:
        return KllmQuantizeDecodeConfig(vectors=self.vectors, slot=self.slot)

    @property
    def compare(self) -> KllmRowCompareConfig:
        return KllmRowCompareConfig(bits_a=self.slot.bits_a)

    @property
    def splitter(self) -> KllmRowSplitterConfig:
        return KllmRowSplitterConfig(outliers_max=self.slot.outliers_max)

    @property
    def writer(self) -> KllmEntryWriterConfig:
        return KllmEntryWriterConfig(bits_a=self.slot.bits_a, integer_bits=self.slot.integer_bits)

    @property
    def orizuru_config(self) -> KllmOrizuruConfig:
        return KllmOrizuruConfig(
            n_max=self.slot.elements, elements=ROW_ELEMENTS, architecture=self.orizuru,
            stages=self.orizuru_stages,
        )  # fmt: skip

    @property
    def clustering_config(self) -> IndexNearestConfig:
        return IndexNearestConfig(
            bits_a=self.slot.bits_a,
            elements=ROW_ELEMENTS,
            tag_bits=tag_layout.size,
            multipliers=min(self.threshold_multipliers, multipliers_max(self.slot.bits_a)),
            parts=self.clustering_parts,
        )

    @property
    def norm_config(self) -> KllmNormStatsConfig:
        return KllmNormStatsConfig(
            bits_a=self.slot.bits_a, elements=ROW_ELEMENTS, k_max=self.slot.elements
        )

    @property
    def integer_config(self) -> KllmIntegerQuantizerConfig:
        return KllmIntegerQuantizerConfig(
            int_bits=self.slot.integer_bits,
            elements=ROW_ELEMENTS,
            lanes=self.integer_lanes,
            tag_bits=tag_layout.size,
        )

    @property
    def entries_layout(self) -> data.StructLayout:
        return entry_write_layout(self.slot.bits_a, self.slot.integer_bits)

    @property
    def cycles(self) -> QuantizerCycles:
        """Cycles of each command."""
        integers = self.integer_config if self.slot.integer_bits else KllmIntegerQuantizerConfig()
        levels = self.orizuru_config.trees_config.levels
        return QuantizerCycles(
            thresholds=self.centroids - 1,
            scaling=self.clustering_config.scaling_cycles,
            trees=orizuru(levels, self.orizuru, self.orizuru_stages),
            row=self.clustering_parts,
            norms=self.norm_config.timing,
            parts=integers.parts,
            scale=integers.timing.delay("from largest to scale"),
        )

    def bound(self, length: int, online: bool) -> int:
        """Rows read for one token: both passes, or the second alone."""
        return (2 if online else 1) * -(-length // ROW_ELEMENTS)


class KllmQuantizer(Block):
    """Runs ACTIVATION_CODEBOOK, QUANTIZE and QUANTIZE_INTEGER of golden.kllm.isa.

    A K-Means token has outliers, a scale s and indices:

        ONLINE    outliers = k_max largest and k_min smallest words; s = largest inlier magnitude
        OFFLINE   outliers = x > upper or x < lower; s = larger magnitude of the thresholds
        both      index_e = number of i with x_e > rne16(s * midpoint_i), 0 at outliers

    An ONLINE token is read twice. In the first pass Orizuru finds the words and s. The order of its
    trees is strict. So the last word of either tree, with its position, distinguishes every
    outlier from every inlier, and no mask is kept. In the second pass the engine compares
    each row with these two bounds. It clusters the inliers, stores the outliers in ascending
    position and counts the norm statistics. OFFLINE has no first pass: the thresholds are the
    bounds. QUANTIZE_INTEGER finds the maximum in the first pass. In the second pass it divides by
    the scale. The roundings are those of the blocks that this one joins.

    A row with o outliers takes max(clustering_parts, o) cycles of the second pass. An integer row
    takes ``16 / integer_lanes`` cycles. The first pass of a token overlaps the second pass of those
    before it, across commands too. Statistics of a token overlap the next one. A codebook, or a
    change between QUANTIZE and QUANTIZE_INTEGER, waits until the tokens before it are in their
    slots.

    The first four statuses concern a command. Nothing is read for it and no slot changes, but a
    codebook is read before its RANGE. The others concern one token: its slot becomes not valid, and
    the other tokens are quantized. The status of a command is that of all its tokens together.

        ================  ==================================================================
        status            condition
        ================  ==================================================================
        MALFORMED         not an opcode of this unit
        RANGE             an operand out of range; a codebook with a word beyond -1..1
        CAPACITY          ONLINE and k_max + k_min >= length; set together with RANGE
        CODEBOOK_MISSING  no codebook, or the latest one was refused
        NONFINITE         a NaN or an infinity in the token
        NEGATIVE          QUANTIZE_INTEGER: a negative element
        CAPACITY          more than ``outliers_max`` outliers
        ================  ==================================================================

    Entries and outliers of a token that fails may have been written.

    Cycles: golden.kllm.timing.QuantizerCycles gives the most of each command. The phases are blocks
    of hdl.kllm.quantize; this block joins them. Source: KLLM, sections III-A, III-C2, IV-A, IV-C.
    Golden: golden.kllm.quantizer.
    """

    golden = "golden.kllm.quantizer:quantize_command"
    reference = "tests/kllm/test_quantizer.py: test_online_outliers_are_those_of_a_sort"
    default = KllmQuantizerConfig()
    configs: ClassVar = {
        "table1": KllmQuantizerConfig(),
        "parallel": KllmQuantizerConfig(orizuru="parallel"),
        "smollm2": KllmQuantizerConfig(
            vectors=VectorShape(rows=2048), slot=SlotShape(elements=1536)
        ),
        "small": KllmQuantizerConfig(
            vectors=VectorShape(rows=64),
            slot=SlotShape(slots=4, elements=64, outliers_max=5, bits_a=2, integer_bits=4),
        ),
    }

    def __init__(self, config: KllmQuantizerConfig):
        super().__init__(
            config,
            {
                "command": command_stream(),
                **row_read("first", "rows of the first pass"),
                **row_read("second", "rows of the second pass and of codebooks"),
                "entries": Out(
                    stream.Signature(config.entries_layout),
                    "Indices or integers of 16 elements, and which are outliers.",
                ),
                **slot_ends(),
                "status": status_stream(),
            },
        )

    # Of a command that is refused; QuantizerCycles has the others.
    timing = Timing(latency=6, start="command", end="status", unit="row of either pass")

    def elaborate(self, platform) -> Module:
        m, config, none = Module(), self.config, KllmQuantizePhaseConfig()
        decode = add(m, "decode", KllmQuantizeDecode(config.decode))
        walk = add(m, "walk", KllmTokenWalk(none))
        tokens = queue(m, "tokens", token_layout, _TOKENS_AHEAD)
        contexts = queue(m, "contexts", first_pass_layout, _TOKENS_AHEAD)
        first = add(m, "first", KllmFirstPass(none))
        trees = add(m, "orizuru", KllmOrizuru(config.orizuru_config))
        bounds = add(m, "bounds", KllmOutlierBounds(none))
        scheduler = add(m, "scheduler", KllmTokenScheduler(none))
        finish = queue(m, "finish", finish_layout, TOKENS_IN_FLIGHT)
        compare = add(m, "compare", KllmRowCompare(config.compare))
        splitter = add(m, "splitter", KllmRowSplitter(config.splitter))
        clustering = add(m, "clustering", IndexNearest(config.clustering_config))
        norms = add(m, "norms", KllmNormStats(config.norm_config))
        writer = add(m, "writer", KllmEntryWriter(config.writer))
        descriptors = add(m, "descriptors", KllmDescriptorWriter(none))
        for source, sink in (
            # Commands to tokens, and the first pass.
            (self.command, decode.command),
            (decode.job, walk.job),
            (walk.token, tokens.i),
            (walk.first, contexts.i),
            (walk.tree, trees.job),
            (walk.request, self.first_request),
            (contexts.o, first.token),
            (self.first_row, first.row),
            (first.x, trees.x),
            (trees.pop_max, bounds.pop_max),
            (trees.pop_min, bounds.pop_min),
            (trees.done, bounds.done),
            # The second pass.
            (tokens.o, scheduler.token),
            (bounds.o, scheduler.found),
            (scheduler.finish, finish.i),
            (scheduler.second, compare.token),
            (scheduler.request, self.second_request),
            (scheduler.threshold, clustering.scale),
            (scheduler.job, norms.job),
            (self.second_row, compare.row),
            (compare.o, splitter.i),
            (splitter.x, norms.x),
            (splitter.centroids, norms.codebook),
            (splitter.midpoints, clustering.midpoints),
            # What is written.
            (writer.beat, norms.i),
            (writer.entries, self.entries),
            (finish.o, descriptors.finish),
            (splitter.outlier, descriptors.i),
            (norms.o, descriptors.norms),
            (descriptors.outlier, self.outlier),
            (descriptors.descriptor, self.descriptor),
            (descriptors.status, self.status),
        ):
            link(m, source, sink)
        m.d.comb += [
            scheduler.settled.eq(finish.level == 0),
            scheduler.codebook_ok.eq(splitter.codebook_ok),
            descriptors.token_done.eq(writer.token_done),
        ]

        # Rows to clustering, integer rows to the dividers; indices or integers to their slots.
        beat = splitter.beat
        cluster_ready = Signal()
        divide_ready = Signal()
        m.d.comb += beat.ready.eq(Mux(beat.p.integer, divide_ready, cluster_ready))
        rows = StreamView(beat.p, beat.valid & ~beat.p.integer, cluster_ready)
        link(m, rows, clustering.x, discard=("integer", "s"))
        link(m, clustering.o, writer.index, discard=("fault", "last"))
        if config.slot.integer_bits:
            integers = add(m, "integers", KllmIntegerQuantizer(config.integer_config))
            maximum = add(m, "maximum", KllmTokenMaximum(none))
            rows = StreamView(beat.p, beat.valid & beat.p.integer, divide_ready)
            link(m, rows, integers.i, discard=("integer", "last"))
            for source, sink in (
                (first.integer, maximum.i),
                (maximum.largest, integers.largest),
                (integers.scale, scheduler.scale),
                (maximum.status, scheduler.fault),
                (integers.o, writer.value),
            ):
                link(m, source, sink)
        return m
