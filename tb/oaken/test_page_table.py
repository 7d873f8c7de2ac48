"""OakenPageTable against golden.oaken.pages: every answer, and the cycle of every answer."""

import pytest

from golden.config import ConfigError
from golden.oaken.config import CacheConfig, KvShape
from hdl.oaken.page_table import OakenPageTable
from tb.run import simulate

CONFIGS = {
    "default": CacheConfig(),
    "smollm2": CacheConfig(kv=KvShape(heads=3, head_dim=64), layers=30, pages=8192),
    "small": CacheConfig(
        kv=KvShape(heads=1, head_dim=16, block=16), sequences=3, layers=1, pages=8, page_bytes=256,
        max_tokens=40,
    ),
    "odd": CacheConfig(
        kv=KvShape(heads=3, head_dim=48, block=16), sequences=5, layers=3, pages=77,
        page_bytes=256, max_tokens=50,
    ),
    # Offsets and sizes of the full width.
    "large_pages": CacheConfig(
        kv=KvShape(heads=1, head_dim=1024), sequences=2, layers=1, pages=20, page_bytes=65536,
        max_tokens=1 << 20,
    ),
    # One token fills the cache.
    "smallest": CacheConfig(
        kv=KvShape(heads=1, head_dim=16, block=16), sequences=1, layers=1, pages=3,
        page_bytes=256, max_tokens=1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_page_table(name, seed):
    simulate(OakenPageTable(CONFIGS[name]), "tb.oaken.tb_page_table", seed=seed)


def test_rejects():
    """A table of streams larger than a RAM: 257 * 2 * 256 streams for each sequence."""
    with pytest.raises(ConfigError, match="must be at most 7 of as many streams, not 8"):
        CacheConfig(kv=KvShape(heads=128), sequences=8, layers=256)
