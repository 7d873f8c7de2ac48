"""A vector-quantized matrix times vectors by tables (docs/blocks/vq_table_gemv.md)."""

from typing import ClassVar

from amaranth import Module
from amaranth.lib import stream

from golden.index.format import CodebookFault
from golden.timing import Timing
from golden.vqllm import timing
from golden.vqllm.config import NAMED, VqShape
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.vqllm.row.finish import VqRowFinish
from hdl.vqllm.table.build import VqTableBuild
from hdl.vqllm.table.config import VqTableGemvConfig
from hdl.vqllm.table.sums import VqTableSums


class VqTableGemv(Block):
    """``y[n][b] = rne16(sum over vectors v and stages z of T[b][z][v][code[n][v][z]])``.

    ``T[b][z][v][j] = rne16(2**exponent * sum_i x[b][v][i] * C[z][j][i])``. With scales of the rows:
    ``rne16(scale[n] * rne32(sum))``. Both sums are exact. The exponent comes with the load.

    A slice is the vectors of one beat of ``code``: lookups / stages neighbours. The engine builds
    the tables of a slice, each entry once, and looks up all rows of the job. Meanwhile it builds
    the tables of the next slice. So the codes come slice by slice: for each slice of a job, for
    each row, its beat. Lanes beyond the end of a row are not used.

    A job covers ``rows`` rows and ``beats`` slices of x from word ``offset`` on. The jobs of the
    same rows follow each other: ``first`` begins with 0, and the sums of ``final`` leave.
    ``switch`` waits for the codebooks that are loaded, and ``next_x`` for vectors. The first job
    has both. x comes as for VqRowSums.

    | wrong | effect |
    |---|---|
    | NaN or infinity in x | the vector's results are NaN (0x7E00) |
    | an entry of a table beyond FP16 | NaN for the results that look it up |
    | a code beyond the entries of the load | the row's results are NaN |
    | a load with faults | ``load_fault``; a ``switch`` waits for another load |

    Cycles of a job: golden.vqllm.timing.table_cycles. Latency golden.vqllm.timing.table_gemv, from
    a beat of the final slice. ``load_info`` waits while a load waits for its switch.
    Contract: |C| <= 1; offset + beats and rows within the configuration, both at least 1.
    Source: VQ-LLM, section II; MILLION, section IV. Golden: golden.vqllm.product.by_tables.
    """

    golden = "golden.vqllm.product:by_tables"
    reference = "tests/vqllm/test_product.py: test_by_tables"
    default = VqTableGemvConfig()
    configs: ClassVar = {
        "aqlm2x8": VqTableGemvConfig(rows=11264),
        "aqlm3": VqTableGemvConfig(vq=NAMED["aqlm3"], rows=11264),
        "gptvq2": VqTableGemvConfig(vq=NAMED["gptvq2"], lookups=16, lanes=16, rows=256),
        "small": VqTableGemvConfig(
            vq=VqShape(size=2, entries=16),
            lookups=4,
            lanes=1,
            batch=2,
            columns=32,
            rows=8,
            scaled=True,
        ),
    }

    def __init__(self, config: VqTableGemvConfig):
        store, finish = config.store, config.finish
        scale = {"scale": In(stream.Signature(finish.scale_layout), "Scales, row by row.")}
        super().__init__(
            config,
            {
                "load_info": In(stream.Signature(store.info_layout), "Begins a load."),
                "load": In(stream.Signature(store.load_layout), "Entries, stage by stage."),
                "loaded": Out(1, "A complete load without faults waits for a switch."),
                "load_fault": Out(len(CodebookFault), "Faults of the load.", CodebookFault),
                "x": In(stream.Signature(config.operands.x_layout), "Vectors, one after another."),
                "job": In(stream.Signature(config.job_layout), "Rows and columns of the tiles."),
                "code": In(stream.Signature(config.code_layout), "Codes, slice by slice."),
                **(scale if config.scaled else {}),
                "y": Out(stream.Signature(finish.y_layout), "Results, row by row."),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.table_gemv(self.config.lookups, self.config.scaled)

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        build = add(m, "build", VqTableBuild(config))
        sums = add(m, "sums", VqTableSums(config))
        finish = add(m, "finish", VqRowFinish(config.finish))
        for name in ("load_info", "load", "x", "job"):
            link(m, getattr(self, name), getattr(build, name))
        for name in ("begins", "slice", "write", "place", "word", "built"):
            m.d.comb += getattr(sums, name).eq(getattr(build, name))
        m.d.comb += [
            build.free.eq(sums.free),
            self.loaded.eq(build.loaded),
            self.load_fault.eq(build.load_fault),
        ]
        link(m, self.code, sums.code)
        link(m, sums.sum, finish.sum)
        if config.scaled:
            link(m, self.scale, finish.scale)
        link(m, finish.y, self.y)
        return m
