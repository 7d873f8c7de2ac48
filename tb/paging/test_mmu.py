"""PagingMmu against golden.paging.mmu, and READs against the bandwidth of memory.

Shown to fail:

- bursts requested without room;
- a commit or a rollback before the writes are answered;
- a FREE that does not wait for READs and APPENDs;
- requests that do not wait for a TRIM;
- a page followed before its number is known;
- the errors of one channel alone in a READ's status;
- the error of the latest head in place of the worst;
- a status of an APPEND before the last word of its records;
- a bit of ``base`` of the writer stuck at 0, or of a reader at 1 (each test has another base).
"""

import dataclasses

import pytest

import golden.paging.config as paging
from golden.config import ConfigError
from golden.oaken.config import CacheConfig, KvShape
from golden.paging.config import RecordKind, VectorRecords
from hdl.oaken.mmu import PagingMmuConfig
from hdl.paging import mmu
from hdl.paging.mmu import PagingMmu
from hdl.paging.room import BLOCKS
from tb.paging.support.rates import ONE_HEAD, TARGET, measure
from tb.simulate.run import simulate

CONFIGS = {
    "soak": BLOCKS["paging_mmu"].configs["soak"],
    # Sequences share pages.
    "forks": BLOCKS["paging_mmu"].configs["forks"],
    # Four words to a page, and queues longer than that: chains are walked as fast as they can be.
    "short_pages": PagingMmuConfig(
        cache=CacheConfig(
            kv=KvShape(heads=3, head_dim=48, block=16),
            sequences=3,
            layers=1,
            pages=301,
            page_bytes=256,
            max_tokens=40,
        ),
        data_bits=512,
        address_bits=64,
        burst_beats=3,
        outstanding=16,
        reads=5,
        appends=3,
        dense_beats=40,
        sparse_beats=64,
        scale_beats=33,
    ),
    "one_of_each": PagingMmuConfig(
        cache=CacheConfig(
            kv=KvShape(heads=1, head_dim=32, block=32),
            sequences=1,
            layers=1,
            pages=17,
            page_bytes=256,
            max_tokens=32,
        ),
        data_bits=1024,
        burst_beats=1,
        outstanding=1,
        reads=1,
        appends=1,
        dense_beats=4,
        sparse_beats=4,
        scale_beats=4,
    ),
}


def _shape(pages: int, heads: int, per_head, per_vector=(), **numbers) -> mmu.PagingMmuConfig:
    """A small MMU of these kinds of records: (name, least, most)."""
    kinds = [
        tuple(RecordKind(name=name, least=least, most=most) for name, least, most in each)
        for each in (per_head, per_vector)
    ]
    return mmu.PagingMmuConfig(
        cache=paging.CacheConfig(
            kv=VectorRecords(heads=heads, per_head=kinds[0], per_vector=kinds[1]),
            sequences=4, layers=2, pages=pages, page_bytes=256, max_tokens=64,
        ),
        data_bits=64, burst_beats=8, outstanding=3, reads=3, appends=2, **numbers,
    )  # fmt: skip


SHAPES = {
    # MILLION: a head has one record of code words, 32 of 12 bits, and no scale.
    "million": _shape(96, 3, [("codes", 48, 48)], beats=(12,)),
    "two_fixed": _shape(96, 2, [("codes", 24, 24), ("norm", 3, 3)], beats=(8, 40)),
    # No kind tells how many tokens a READ has.
    "variable": _shape(60, 2, [("a", 2, 50)], beats=(8,)),
    # The order of kinds, skips of three streams, one of them of the whole vector.
    "kinds": _shape(
        160, 2, [("a", 1, 40), ("b", 16, 16), ("c", 9, 9), ("d", 3, 100)],
        [("e", 5, 30), ("f", 12, 12)], beats=(8, 8, 33, 4, 40, 4),
    ),
    # K and V on streams of their own.
    "apart": _shape(96, 3, [("codes", 48, 48)], beats=(12,), kv_apart=True),
    "kinds_apart": _shape(
        120, 2, [("a", 1, 40), ("b", 16, 16)], [("e", 5, 30)], beats=(8, 33, 4), kv_apart=True
    ),
}  # fmt: skip

TRAFFIC = [f"traffic/flow={flow}/chance=0.001" for flow in ("calm", "rough")]
# Other tests want three sequences, or fill them.
CASES = {
    "one_of_each": [
        *TRAFFIC, "length_limit", "trims", "reset_in_mid_traffic", "ready_when_the_tables_stand",
    ]
}  # fmt: skip


@pytest.mark.telling("short_pages", "one_of_each", "forks")
@pytest.mark.parametrize("name", CONFIGS)
def test_mmu(name, seed):
    simulate(
        PagingMmu(CONFIGS[name]),
        "tb.paging.tb_mmu",
        params={"requests": 1200 if name == "soak" else 600},
        seed=seed,
        testcase=CASES.get(name),
    )


@pytest.mark.telling("variable", "apart")
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, seed):
    """All checks, with records of other kinds than Oaken's."""
    simulate(
        PagingMmu(SHAPES[name]),
        "tb.paging.tb_mmu",
        params={"requests": 900},
        seed=seed,
    )


def test_smollm2(seed):
    config = BLOCKS["paging_mmu"].configs["smollm2"]
    cases = [*TRAFFIC, "changes_wait_in_every_place"]  # places that traffic leaves to chance
    simulate(
        PagingMmu(config), "tb.paging.tb_mmu", params={"requests": 300}, seed=seed, testcase=cases
    )


@pytest.mark.parametrize("page_bytes", [1024, 4096])
def test_a_prompt_is_forked(page_bytes, seed):
    """Three layers of SmolLM2-135M and 400 tokens: the log has the figures of the MMU's page."""
    cache = CacheConfig(
        kv=KvShape(heads=3, head_dim=64, order="token"),
        sequences=9, layers=3, pages=1024, page_bytes=page_bytes, forks=True,
    )  # fmt: skip
    simulate(
        PagingMmu(PagingMmuConfig(cache=cache, data_bits=512)),
        "tb.paging.tb_mmu_forks",
        params={"tokens": 400},
        seed=seed,
    )


def test_reads_use_the_bandwidth(seed):
    """32 READs of 256 tokens: at least 0.90 of the words that memory can give."""
    (found,) = measure(ONE_HEAD, [TARGET], seed)["reads"]
    assert found["words"] / found["cycles"] >= 0.90


def test_rejects_pages_beyond_the_address_space():
    cache = CacheConfig(pages=1 << 20, page_bytes=65536)
    with pytest.raises(ValueError, match="address_bits must be at least 36"):
        PagingMmuConfig(cache=cache, address_bits=32)
    assert dataclasses.replace(PagingMmuConfig(), cache=cache, address_bits=36).cache == cache


def test_rejects_a_shape_of_one_record_per_head():
    """The reader requests two slots per head: such a READ would get another stream's records."""
    kinds = VectorRecords().kinds
    cache = paging.CacheConfig(kv=VectorRecords(per_head=kinds[:1], per_vector=kinds[1:]))
    with pytest.raises(ConfigError, match=r"cache must be of two records per head, dense and"):
        PagingMmuConfig(cache=cache)


@pytest.mark.parametrize(
    "name", ["config", "texts", "kinds", "commands", "request", "timing", "elaborate", "axi__ar"]
)
def test_rejects_a_kind_of_a_taken_name(name):
    """Each would be a port of that name, next to the block's own or its attribute."""
    with pytest.raises(ConfigError, match=r"cache must be of kinds .*" + name):
        _shape(96, 2, [(name, 24, 24)], beats=(8,))
