"""READs and trains of APPENDs on the Verilated MMU, measured by tb_mmu_rates."""

import json
from collections.abc import Sequence

from golden.oaken.config import CacheConfig, KvShape
from hdl.oaken.mmu import PagingMmuConfig
from hdl.paging.mmu import PagingMmu
from tb.simulate.run import build_model, run_model

ONE_HEAD = PagingMmuConfig(
    cache=CacheConfig(
        kv=KvShape(heads=1, head_dim=128, block=64),
        sequences=4,
        layers=4,
        pages=256,
        max_tokens=1024,
    )
)
TARGET = {"reads": 32, "tokens": 256, "heads": 1}  # at least 0.90 of the bandwidth
LATENCY = 100  # cycles from AR to the first beat
OUTLIERS = 0.1  # of the elements
APPENDS = 8  # of a train, one after the other


def measure(
    config: PagingMmuConfig,
    runs: list[dict],
    seed: int = 1,
    latencies: Sequence[int] = (LATENCY,),
    append_latencies: Sequence[int] = (1, LATENCY),
) -> dict:
    """The figures that tb_mmu_rates measured."""
    work = run_model(
        build_model(PagingMmu(config)),
        "tb.paging.tb_mmu_rates",
        config=config,
        params={
            "runs": runs,
            "latencies": list(latencies),
            "outliers": OUTLIERS,
            "appends": APPENDS,
            "append_latencies": list(append_latencies),
        },
        seed=seed,
    )
    return json.loads((work / "rates.json").read_text())
