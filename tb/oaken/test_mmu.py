"""OakenMmu against golden.oaken.mmu."""

import pytest

from golden.oaken.config import CacheConfig, KvShape
from hdl.oaken.mmu import OakenMmu, OakenMmuConfig
from tb.run import simulate

SOAK = OakenMmuConfig(
    cache=CacheConfig(
        kv=KvShape(heads=2, head_dim=16, block=16),
        sequences=6,
        layers=2,
        pages=96,
        page_bytes=256,
        max_tokens=64,
    ),
    data_bits=64,
    address_bits=32,
    burst_beats=8,
    outstanding=3,
    reads=3,
    appends=2,
    dense_beats=8,
    sparse_beats=8,
    scale_beats=4,
)


def test_mmu(seed):
    simulate(OakenMmu(SOAK), "tb.oaken.tb_mmu", params={"requests": 1200}, seed=seed)
