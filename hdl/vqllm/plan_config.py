"""The engine that a plan names, as a configuration that its generator has accepted."""

import dataclasses
import math

from golden.config import Config
from golden.million.config import PqShape
from golden.vqllm.config import AttendShape, Budget, Plan, Work
from hdl.vqllm.attend.config import VqAttentionConfig
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from hdl.vqllm.gemv.config import VqGemvConfig
from hdl.vqllm.gemv.core import VqGemvCoreConfig
from hdl.vqllm.gemv.gemm import VqGemmConfig
from hdl.vqllm.table.config import VqTableGemvConfig


@dataclasses.dataclass(frozen=True)
class Engine:
    """A block of the registry, its configuration, and what does not come by its memory port."""

    block: str
    config: Config
    streams: str = ""

    @property
    def text(self) -> str:
        return f"{self.block}, {self.streams} from streams" if self.streams else self.block


def engine(work: Work, plan: Plan, budget: Budget) -> Engine:
    """The engine of a plan, as large as the work.

    ConfigError: no engine does this work, or its generator refuses the plan.
    """
    if work.operation == "attention":
        return Engine("vq_attention", _attention(work, plan, budget))
    vq = work.matrix.vq
    if plan.method == "tables":
        lanes = plan.lookups // vq.stages
        return Engine(
            "vq_table_gemv",
            VqTableGemvConfig(
                vq=vq, lookups=plan.lookups, lanes=plan.builders, batch=plan.side,
                columns=_columns(work, lanes * vq.size), rows=plan.rows,
            ),
            streams="codes and codebooks",
        )  # fmt: skip
    cache = VqCodebookCacheConfig(
        vq=vq, lookups=plan.lookups, registers=plan.registers, shared=plan.shared,
        banks=plan.banks, data_bits=budget.data_bits,
    )  # fmt: skip
    columns = _columns(work, plan.lookups // vq.stages * vq.size)
    if work.operation == "gemm":
        config = VqGemmConfig(
            cache=cache, batch=plan.side, tokens=plan.side * plan.groups, columns=columns,
            rows=plan.rows, fusion=plan.fusion, need=plan.need,
        )  # fmt: skip
        return Engine("vq_gemm", config, streams="codes and codebooks")
    core = VqGemvCoreConfig(
        cache=cache, batch=plan.side, columns=columns, rows=plan.rows, fusion=plan.fusion,
        need=plan.need,
    )  # fmt: skip
    return Engine("vq_gemv", VqGemvConfig(core=core, cores=plan.cores, lanes=plan.lanes))


def _columns(work: Work, beat: int) -> int:
    """Whole beats of a row."""
    return math.ceil(work.matrix.columns / beat) * beat


def _attention(work: Work, plan: Plan, budget: Budget) -> VqAttentionConfig:
    matrix = work.matrix
    pq = PqShape(
        head_dim=matrix.columns, subspaces=matrix.vectors, bits=matrix.vq.code_bits
    )  # fmt: skip
    shape = AttendShape(
        pq=pq, groups=plan.lookups, queries=plan.side, data_bits=budget.data_bits,
        max_tokens=matrix.rows,
    )  # fmt: skip
    return VqAttentionConfig(shape=shape)
