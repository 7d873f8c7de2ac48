"""The KV cache's functional model against the arithmetic alone, and its order of statuses."""

import dataclasses
import random

import pytest
import torch

from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.format import SCALE_BYTES, bits_read
from golden.oaken.kv_engine import KvEngine, Request
from golden.oaken.quantize import decode, encode
from golden.oaken.vectors.kv_script import THRESHOLDS, vector
from golden.paging.format import Op, Status

KV = KvShape(heads=2, head_dim=32, block=16)
CACHE = CacheConfig(kv=KV, sequences=2, layers=2, pages=80, page_bytes=256, max_tokens=30)


def engine(**more) -> KvEngine:
    """Thresholds everywhere but for V of layer 1; sequence 0 open."""
    found = KvEngine(CACHE, **more)
    for layer, kv in ((0, 0), (0, 1), (1, 0)):
        request = Request(Op.THRESHOLDS, layer=layer, kv=kv, thresholds=THRESHOLDS)
        assert found.request(request).status == Status.OK
    assert found.request(Request(Op.OPEN)).sequence == 0
    return found


def fill(cache: KvEngine, tokens: int, seed: int = 1) -> torch.Tensor:
    """(tokens, D) words appended to K of layer 0."""
    rng = random.Random(seed)
    x = [vector(rng, KV.elements) for _ in range(tokens)]
    for token, words in enumerate(x):
        assert cache.request(Request(Op.APPEND, token=token, vector=words)).status == Status.OK
    return torch.tensor(x)


def test_what_is_read_is_what_the_arithmetic_gives():
    cache = engine()
    x = fill(cache, 20)
    expected = decode(encode(x, THRESHOLDS, KV.block), THRESHOLDS).reshape(20, 2, 32)
    answer = cache.request(Request(Op.READ, heads=2, token=20))
    assert torch.equal(torch.tensor(answer.words), expected.transpose(0, 1))
    answer = cache.request(Request(Op.READ, head=1, heads=1, token=7))
    assert torch.equal(torch.tensor(answer.words), expected[:7, 1:].transpose(0, 1))


def test_bytes_are_those_of_the_records():
    cache = engine()
    x = fill(cache, 12)
    f = encode(x, THRESHOLDS, KV.block).sparse_fraction
    whole = bits_read(f, 2, 32, KV.block) / 8 * x.numel()
    assert cache.bytes_stored() == pytest.approx(whole)
    assert cache.request(Request(Op.READ, heads=2, token=12)).bytes_read == pytest.approx(whole)
    split = engine(scale_tokens=11)
    fill(split, 12)
    answer = split.request(Request(Op.READ, heads=2, token=12))
    assert answer.bytes_read == pytest.approx(whole + 12 * SCALE_BYTES)


def test_trimmed_tokens_are_gone_and_pages_come_back():
    cache = engine()
    fill(cache, 20)
    trim = Request(Op.TRIM, token=9)
    assert cache.request(trim).status == Status.BEYOND_LENGTH  # the other vectors have no tokens
    one = KvEngine(CacheConfig(kv=KV, sequences=1, layers=1, pages=80, page_bytes=256))
    for kv in (0, 1):
        one.request(Request(Op.THRESHOLDS, kv=kv, thresholds=THRESHOLDS))
    one.request(Request(Op.OPEN))
    x = fill(one, 20)
    for token in range(20):
        one.request(Request(Op.APPEND, kv=1, token=token, vector=[0] * 64))
    used = one.config.pages - one.free_pages
    assert one.request(trim).status == Status.OK
    assert one.config.pages - one.free_pages < used
    expected = decode(encode(x, THRESHOLDS, KV.block), THRESHOLDS).reshape(20, 2, 32)[9:]
    answer = one.request(Request(Op.READ, heads=2, token=20))
    assert torch.equal(torch.tensor(answer.words), expected.transpose(0, 1))
    assert one.request(Request(Op.READ, heads=2, token=9)).status == Status.EMPTY
    assert one.request(Request(Op.FREE)).status == Status.OK
    assert one.free_pages == one.config.pages


def test_the_first_status_of_several():
    """All faults of an APPEND at once, then one less each time."""
    cache = engine()
    nan = [0x7E00] * KV.elements
    bad = Request(Op.APPEND, sequence=1, layer=2, kv=1, token=5, vector=nan[:8])
    fill(cache, 3)
    for less, status in (
        ({}, Status.BAD_REQUEST),
        ({"layer": 1}, Status.SEQUENCE_UNKNOWN),
        ({"sequence": 0}, Status.THRESHOLDS),
        ({"layer": 0, "kv": 0}, Status.TOKEN_ORDER),
        ({"token": 3}, Status.VECTOR_LENGTH),
        ({"vector": nan}, Status.NONFINITE),
        ({"vector": [0] * KV.elements, "memory": Status.SLAVE_ERROR}, Status.SLAVE_ERROR),
        ({"memory": Status.OK}, Status.OK),
    ):
        bad = bad._replace(**less)
        before = cache.free_pages
        assert cache.request(bad).status == status
        if status != Status.OK:
            assert cache.free_pages == before
            assert cache.request(Request(Op.READ, heads=1, token=4)).status == Status.BEYOND_LENGTH


def test_a_child_reads_what_its_parent_had():
    """The words are shared up to the FORK; each goes on alone, and outlives the other."""
    config = dataclasses.replace(CACHE, layers=1, sequences=3, forks=True)
    cache = KvEngine(config)
    for kv in (0, 1):
        cache.request(Request(Op.THRESHOLDS, kv=kv, thresholds=THRESHOLDS))
    cache.request(Request(Op.OPEN))

    def append(sequence: int, kv: int, token: int, seed: int) -> None:
        words = vector(random.Random(seed), KV.elements)
        request = Request(Op.APPEND, sequence, kv=kv, token=token, vector=words)
        assert cache.request(request).status == Status.OK

    def words(sequence: int, kv: int, token: int):
        return cache.request(Request(Op.READ, sequence, kv=kv, heads=2, token=token)).words

    fork = Request(Op.FORK, token=25)
    for token in range(25):
        for kv in (0, 1):
            append(0, kv, token, 2 * token + kv)
    cache.request(Request(Op.TRIM, token=2))
    free = cache.free_pages
    assert cache.request(fork._replace(memory=Status.SLAVE_ERROR)).status == Status.SLAVE_ERROR
    assert cache.free_pages == free
    for token, status in ((26, Status.BEYOND_LENGTH), (24, Status.TOKEN_ORDER)):
        assert cache.request(fork._replace(token=token)).status == status
    before = [words(0, kv, 25) for kv in (0, 1)]
    used = config.pages - free
    assert cache.request(fork).sequence == 1
    assert 0 < free - cache.free_pages < used  # the full pages are shared
    assert cache.request(fork._replace(sequence=1)).status == Status.BAD_REQUEST
    for sequence in (0, 1):
        for kv in (0, 1):
            append(sequence, kv, 25, 100 + sequence)
    assert words(0, 0, 26) != words(1, 0, 26)
    cache.request(Request(Op.FREE))
    assert [words(1, kv, 25) for kv in (0, 1)] == before
    assert cache.request(Request(Op.FREE, 1)).status == Status.OK
    assert cache.free_pages == config.pages
    assert engine().request(fork).status == Status.BAD_REQUEST


def test_thresholds_stay_while_something_is_open():
    cache = engine()
    request = Request(Op.THRESHOLDS, thresholds=THRESHOLDS)
    assert cache.request(request).status == Status.THRESHOLDS
    assert cache.request(Request(Op.FREE)).status == Status.OK
    assert cache.request(request).status == Status.OK
    assert cache.request(Request(6)).status == Status.BAD_REQUEST
