"""A vector-quantized matrix times many vectors (docs/blocks/vq_gemm.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Module
from amaranth.lib import data, stream

from golden.config import Config, bounded, flag, nested
from golden.index.format import SCALE_EXPONENT_MAX, SCALE_EXPONENT_MIN
from golden.timing import Timing
from golden.vqllm.config import ExchangeShape
from golden.vqllm.timing import row_finish
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.stream.link import link, link_members
from hdl.vqllm.cache.config import CACHES, VqCodebookCacheConfig
from hdl.vqllm.gemv.core import VqGemvCore, VqGemvCoreConfig, core_members
from hdl.vqllm.row.config import VqRowSumsConfig
from hdl.vqllm.row.finish import VqRowFinish, VqRowFinishConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqGemmConfig(Config):
    """Codebooks and look-ups, the largest matrix, and the most tokens."""

    conditional_parts: ClassVar[tuple[str, ...]] = ("exchange",)

    cache: VqCodebookCacheConfig = nested(VqCodebookCacheConfig)
    batch: int = bounded(1, 1, 64, "tokens side by side")
    tokens: int = 64  # most tokens on chip, batch times a power of two in 2..64
    columns: int = 1536  # most of the matrix, a multiple of the elements of a beat
    rows: int = 256  # most rows of a job, 1..65,536
    scaled: bool = flag(False, "each row has an FP16 scale")
    fusion: str = "none"  # what brings elements to other lanes: exchange, buffer, or none
    need: int = 0  # elements that a lane multiplies at a time, 1..8; 0, all, without fusion

    def __post_init__(self) -> None:
        if self.tokens not in (self.batch << n for n in range(1, 7)):
            powers = f"batch = {self.batch} times a power of two in 2..64"
            self._refuse("tokens", powers)
        self.check_parts()

    @property
    def core(self) -> VqGemvCoreConfig:
        return VqGemvCoreConfig(
            cache=self.cache,
            batch=self.batch,
            groups=self.tokens // self.batch,
            columns=self.columns,
            rows=self.rows,
            fusion=self.fusion,
            need=self.need,
        )

    @property
    def vectors(self) -> int:
        """Vectors of the matrix in a beat."""
        return self.core.vectors

    @property
    def pieces(self) -> int:
        """Words of a token that a beat of codes meets."""
        return self.core.pieces

    @property
    def exchange(self) -> ExchangeShape:
        """ConfigError: vectors of the beat and ``need`` do not fit each other."""
        return self.core.exchange

    @property
    def code_layout(self) -> data.StructLayout:
        return self.core.code_layout

    @property
    def sums(self) -> VqRowSumsConfig:
        return self.core.sums

    @property
    def finish(self) -> VqRowFinishConfig:
        return VqRowFinishConfig(sums=self.sums, scaled=self.scaled)


class VqGemm(Block):
    """``Y[t][n] = rne16(2**exponent * sum over columns k of W[n][k] * X[t][k])``, W from codes.

    With scales of the rows: ``rne16(scale[n] * rne32(2**exponent * ...))``. An element of W is
    ``rne16`` of the sum of its entries, one of each stage. The sum over the columns is exact.

    Codes, loads, jobs and switches are those of VqGemvCore. X comes as a buffer of up to ``tokens``
    vectors, and ``batch`` neighbours are a group. A job says which groups pass each beat.

    | dataflow | jobs | results |
    |---|---|---|
    | stationary | each tile once, with all groups | row by row, the groups of a row in turn |
    | streamed | each tile again for each group | group by group, row by row |

    | wrong | effect |
    |---|---|
    | NaN or infinity in a token | the token's results are NaN (0x7E00) |
    | tokens of another length than ``words`` of their job, or too many | all results are NaN |
    | an entry that memory refuses, or that is above 1 or not finite | the row's results are NaN |
    | a load with faults | ``load_fault``; a ``switch`` waits for another load |

    ``worst`` is the largest response of memory, ``bad`` an entry that was wrong, and ``uneven``
    tokens of another length, until ``clear``.

    A group per cycle: a beat takes as many cycles as groups pass, or as its look-ups need. Latency
    ``timing``, from the last beat of a row to its last group.
    Source: VQ-LLM, sections II and V. Golden: golden.vqllm.product.by_dequantizing.
    """

    golden = "golden.vqllm.product:by_dequantizing"
    reference = "tests/vqllm/test_product.py: test_by_dequantizing"
    default = VqGemmConfig()
    configs: ClassVar = {
        **{name: VqGemmConfig(cache=CACHES[name]) for name in ("aqlm3", "gptvq2")},
        "small": VqGemmConfig(
            cache=CACHES["small"], batch=2, tokens=8, columns=32, rows=8, scaled=True
        ),
    }

    def __init__(self, config: VqGemmConfig):
        members, finish = core_members(config.core), config.finish
        del members["sum"]
        if config.scaled:
            scale = stream.Signature(finish.scale_layout)
            members["scale"] = In(scale, "Scales, row by row; again for each job of a row.")
        exponents = range(SCALE_EXPONENT_MIN, SCALE_EXPONENT_MAX + 1)
        members["exponent"] = In(exponents, "log2 of the scale of the codebooks, -8..15.")
        members["y"] = Out(stream.Signature(finish.y_layout), "Results, group by group of a row.")
        super().__init__(config, members)

    @property
    def timing(self) -> Timing:
        """A row's last beat leads to its last group: exact sums of the core, rounding."""
        core = self.config.core.timing
        latency = core.latency + row_finish(self.config.scaled).latency
        return Timing(latency=latency, interval=core.interval, start="code", end="y", unit="beat")

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        core = add(m, "core", VqGemvCore(config.core))
        finish = add(m, "finish", VqRowFinish(config.finish))
        link_members(m, self, core, ("load_info", "load", "code", "x", "job"))
        link(m, core.axi.ar, self.axi.ar)
        link(m, self.axi.r, core.axi.r)
        link(m, core.sum, finish.sum)
        if config.scaled:
            link(m, self.scale, finish.scale)
        link(m, finish.y, self.y)
        m.d.comb += [
            self.loaded.eq(core.loaded),
            self.load_fault.eq(core.load_fault),
            self.worst.eq(core.worst),
            self.bad.eq(core.bad),
            self.uneven.eq(core.uneven),
            self.counts.eq(core.counts),
            core.clear.eq(self.clear),
            finish.exponent.eq(self.exponent),
        ]
        return m
