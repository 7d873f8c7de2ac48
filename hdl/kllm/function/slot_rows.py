"""Activation slots to rows of words, by tables."""

import dataclasses

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice, nested
from golden.fp16.format import FP16
from golden.index.timing import table as table_rows
from golden.kllm.config import FunctionShape
from golden.kllm.isa import ROW_ELEMENTS, Function
from golden.kllm.timing import function_cycles
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.children import add
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.index.table import IndexTable, IndexTableConfig
from hdl.kinds import NUMBER, index_of, mask_of
from hdl.kllm.engine import ROW
from hdl.kllm.function.pipeline import (
    FUNCTION_BITS,
    FUNCTIONS,
    KllmFunctionPipeline,
    KllmFunctionPipelineConfig,
)
from hdl.ports import In, Out, Payload
from hdl.stream.link import link


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmSlotRowsConfig(Config):
    """Tables, and the longest token."""

    table: IndexTableConfig = nested(
        IndexTableConfig, "bits of an index, integers, look-ups per cycle"
    )
    rows: int = bounded(256, 1, 1024, "most rows of a slot")
    functions: int = choice(1, FUNCTIONS, "function pipelines, words per transfer of element")
    extra: FunctionShape = nested(FunctionShape, "functions beyond the first eight")

    @property
    def pipeline(self) -> KllmFunctionPipelineConfig:
        return KllmFunctionPipelineConfig(extra=self.extra)

    @property
    def shape_layout(self) -> data.StructLayout:
        return Payload(
            slots=(1, "words are of slots, not of element"),
            function=(FUNCTION_BITS, "golden.kllm.isa.Function", Function),
            two=(1, "two slots are in use"),
            rows=(range(self.rows + 1), "rows of each slot in use"),
            tail=(4, "elements of the last row, 0: 16", NUMBER),
        )


class KllmSlotRows(Block):
    """``rows[k]`` = the words of slot k, row by row; and ``y = function(x)`` of single words.

        rows[0] = f(rne16(scale[0] * codebook[0][entry])), or f(x) where the mask says outlier
        rows[1] =   rne16(scale[1] * codebook[1][entry]),  or   x

    The first function pipeline serves the entries of table 0, then the outliers of slot 0. Without
    ``shape.slots``, ``functions`` pipelines serve the words of ``element`` side by side. They
    always move together. The parent keeps ``shape`` constant in a command.

    ``load`` and ``row`` transfer together: the first 2**bits_a words of the row become a codebook.
    ``fill`` stays offered while the tables are filled, which ends with its transfer. No row of the
    slots may be inside then. Rows of entries follow, ``shape.rows`` of each slot in use. Ones in
    the mask of elements after the last, from ``shape.tail`` on in the last row, do not count.

    Rates are those of IndexTable and KllmFunctionPipeline: max(16 / width, outliers) cycles per
    row. Rounding: rne16 of the product, and that of the function. IDENTITY keeps each NaN.
    ``rows[k].valid`` and ``entries[k].ready`` depend combinationally on ``outliers``, the ready of
    what comes in on the ready of what goes out. Source: KLLM, section III-C. Golden:
    golden.kllm.phases.slot_rows.

    Decision 0033 says why GLU comes after the look-ups.
    """

    tier = Tier.PART
    golden = "golden.kllm.phases:slot_rows"
    configs = FieldOf("kllm_functional_unit", "slot_words")

    def __init__(self, config: KllmSlotRowsConfig):
        row = stream.Signature(Payload(word=(ROW, "16 FP16 words, element 0 first", FP16)))
        word = stream.Signature(Payload(word=(FP16.bits, "FP16 word", FP16)))
        scales = Payload(scale=(data.ArrayLayout(FP16.bits, 2), "FP16 scale of each slot", FP16))
        single = data.ArrayLayout(FP16.bits, config.functions)
        text = "FP16 words, the first element first"
        super().__init__(
            config,
            {
                "shape": In(config.shape_layout, "What the words are, constant in a command."),
                "load": In(
                    stream.Signature(
                        Payload(table=(1, "number of the codebook", index_of("codebooks")))
                    ),
                    "The row is a codebook.",
                ),
                "row": In(row, "A row of the vector memory."),
                "loaded": Out(2, "One bit per codebook that was loaded.", mask_of("codebooks")),
                "fill": In(
                    stream.Signature(scales),
                    "Scales of the slots; transferred when the tables are full.",
                ),
                "entries": In(stream.Signature(config.table.i_layout), "Rows of each slot.").array(
                    2
                ),
                "outliers": In(word, "Outliers of each slot.").array(2),
                "rows": Out(row, "Words of each slot.").array(2),
                "element": In(
                    stream.Signature(Payload(x=(single, text, FP16))), "Words of no slot."
                ),
                "y": Out(stream.Signature(Payload(y=(single, text, FP16))), "Their functions."),
            },
        )

    @property
    def timing(self) -> Timing:
        """Rows of slot 1, and single words: rows of slot 0 wait for their outliers' function."""
        cycles = function_cycles(self.config.pipeline.stages).values()
        return dataclasses.replace(
            table_rows(self.config.table.width, ROW_ELEMENTS),
            start="entries_1",
            end="rows_1",
            delays=(
                ("from element to y, the least", min(cycles)),
                ("from element to y, the most", max(cycles)),
            ),
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        shape = self.shape
        entries = 1 << config.table.bits_a
        tables = [add(m, f"table_{k}", IndexTable(config.table)) for k in "ab"]
        pipeline = add(m, "functions", KllmFunctionPipeline(config.pipeline))
        scale = add(m, "scale", FpMul(FpMulConfig(stages=1, tag_bits=1)))
        for k, table in enumerate(tables):
            self._mask(m, k, table)
            link(m, table.o, self.rows[k])

        # Codebooks, and their entries times the scales: those of table 0, then those of table 1.
        codebook = _codebooks(m, self, entries)
        entry = Signal(config.table.bits_a + 1)
        filled = Signal(config.table.bits_a + 2)
        issued = Signal()
        full = Signal()
        m.d.comb += [
            scale.i.valid.eq(self.fill.valid & ~issued),
            scale.i.p.a.eq(Mux(entry[-1], self.fill.p.scale[1], self.fill.p.scale[0])),
            scale.i.p.b.eq(Array(codebook)[entry]),
            scale.i.p.tag.eq(entry[-1]),
            full.eq(filled == entries << shape.two),
            self.fill.ready.eq(full),
        ]
        with m.If(scale.i.valid & scale.i.ready):
            last_entry = entry == (shape.two << config.table.bits_a) + (entries - 1)
            m.d.sync += [entry.eq(entry + 1), issued.eq(last_entry)]
        puts = [table.table.valid & table.table.ready for table in tables]
        m.d.sync += filled.eq(filled + puts[0] + puts[1])
        with m.If(self.fill.valid & full):
            m.d.sync += [entry.eq(0), issued.eq(0), filled.eq(0)]

        # Table 1 has no function.
        m.d.comb += [
            tables[1].table.valid.eq(scale.o.valid & scale.o.p.tag),
            tables[1].table.p.word.eq(scale.o.p.y),
            scale.o.ready.eq(Mux(scale.o.p.tag, tables[1].table.ready, pipeline.i.ready)),
            pipeline.i.p.function.eq(shape.function),
            tables[0].table.p.word.eq(pipeline.o.p.y),
            tables[0].outlier.p.word.eq(pipeline.o.p.y),
        ]
        link(m, self.outliers[1], tables[1].outlier)
        self._functions(m, pipeline)

        # What the pipeline works on.
        source, sink = self.outliers[0], tables[0].outlier
        with m.If(self.fill.valid):
            m.d.comb += [
                pipeline.i.valid.eq(scale.o.valid & ~scale.o.p.tag),
                pipeline.i.p.x.eq(scale.o.p.y),
                tables[0].table.valid.eq(pipeline.o.valid),
                pipeline.o.ready.eq(tables[0].table.ready),
            ]
        with m.Elif(shape.slots):
            m.d.comb += [
                pipeline.i.valid.eq(source.valid),
                pipeline.i.p.x.eq(source.p.word),
                source.ready.eq(pipeline.i.ready),
                sink.valid.eq(pipeline.o.valid),
                pipeline.o.ready.eq(sink.ready),
            ]
        with m.Else():
            m.d.comb += [
                pipeline.i.valid.eq(self.element.valid),
                pipeline.i.p.x.eq(self.element.p.x[0]),
                self.element.ready.eq(pipeline.i.ready),
                self.y.valid.eq(pipeline.o.valid),
                pipeline.o.ready.eq(self.y.ready),
            ]
        return m

    def _functions(self, m: Module, first: KllmFunctionPipeline) -> None:
        """Adds the other pipelines. Their valid and ready are the first one's.

        So their words leave with its words. Only those of ``element`` are used.
        """
        m.d.comb += self.y.p.y[0].eq(first.o.p.y)
        for k in range(1, self.config.functions):
            pipeline = add(m, f"functions_{k}", KllmFunctionPipeline(self.config.pipeline))
            m.d.comb += [
                pipeline.i.valid.eq(first.i.valid),
                pipeline.i.p.function.eq(first.i.p.function),
                pipeline.i.p.x.eq(self.element.p.x[k]),
                pipeline.o.ready.eq(first.o.ready),
                self.y.p.y[k].eq(pipeline.o.p.y),
            ]

    def _mask(self, m: Module, k: int, table: IndexTable) -> None:
        """``entries[k]`` to the table, with the mask of elements after the last cleared."""
        source, shape = self.entries[k], self.shape
        at = Signal(range(self.config.rows + 1), name=f"at_{k}")
        last = Signal(name=f"last_{k}")
        m.d.comb += last.eq(at == shape.rows - 1)
        inside = [~last | (shape.tail == 0) | (shape.tail > e) for e in range(ROW_ELEMENTS - 1)]
        inside.append(~last | (shape.tail == 0))  # position 15 is never before a tail
        m.d.comb += [
            table.i.valid.eq(source.valid),
            source.ready.eq(table.i.ready),
            table.i.p.value.eq(source.p.value),
            table.i.p.outlier.eq(source.p.outlier & Cat(inside)),
        ]
        with m.If(source.valid & source.ready):
            m.d.sync += at.eq(Mux(last, 0, at + 1))


def _codebooks(m: Module, block: KllmSlotRows, entries: int) -> list[Signal]:
    """The words of codebook 0, then those of codebook 1, and ``loaded``."""
    words = []
    loaded = Signal(2)
    m.d.comb += [
        block.loaded.eq(loaded),
        block.load.ready.eq(block.row.valid),
        block.row.ready.eq(block.load.valid),
    ]
    for k in range(2):
        centroids = [Signal(16, name=f"codebook_{k}_{j}", reset_less=True) for j in range(entries)]
        with m.If(block.load.valid & block.row.valid & (block.load.p.table == k)):
            m.d.sync += [word.eq(block.row.p.word[j]) for j, word in enumerate(centroids)]
            m.d.sync += loaded[k].eq(1)
        words += centroids
    return words
