"""Attention on the cache against the arithmetic of its parts, and its order of statuses."""

import random

import pytest
import torch

from golden.attention.format import Status as JobStatus
from golden.attention.stream import attend
from golden.fp16.format import FP16
from golden.oaken.attention import Attention, Rules
from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.kv_engine import Request
from golden.oaken.quantize import decode, encode
from golden.oaken.vectors.kv_script import THRESHOLDS, fp16
from golden.paging.format import Kv, Op, Status

HEADS, DIM, QUERIES, MOST = 4, 16, 2, 20


def filled(groups: int, tokens: int = 9, **more) -> tuple[Attention, dict[Kv, torch.Tensor]]:
    """A cache with one sequence, and the vectors that were appended to its K and V."""
    kv = KvShape(heads=HEADS, head_dim=DIM, block=16, order="token", groups=groups)
    config = CacheConfig(
        kv=kv, sequences=2, layers=1, pages=80, page_bytes=512, max_tokens=MOST, **more
    )
    cache, rng, vectors = Attention(config), random.Random(5), {}
    for side in Kv:
        cache.request(Request(Op.THRESHOLDS, kv=side, thresholds=THRESHOLDS))
    assert cache.request(Request(Op.OPEN)).sequence == 0
    for side in Kv:
        x = [fp16([rng.gauss(0, 1) for _ in range(HEADS * DIM)]) for _ in range(tokens)]
        for token, words in enumerate(x):
            request = Request(Op.APPEND, kv=side, token=token, vector=words)
            assert cache.request(request).status == Status.OK
        vectors[side] = torch.tensor(x)
    return cache, vectors


def queries(spread: float = 0.25) -> torch.Tensor:
    rng = random.Random(7)
    words = [rng.gauss(0, spread) for _ in range(HEADS * QUERIES * DIM)]
    return torch.tensor(fp16(words)).reshape(HEADS, QUERIES, DIM)


def test_children_attend_as_their_parent():
    """Two children of one prompt and the prompt itself: equal words, then each its own."""
    cache, _ = filled(2, forks=True)
    q = queries()
    alone = cache.attend(q, 0, 0, 9)
    child = cache.request(Request(Op.FORK, token=9)).sequence
    assert torch.equal(cache.attend(q, child, 0, 9).words, alone.words)
    for side in Kv:
        request = Request(Op.APPEND, child, kv=side, token=9, vector=fp16([1.0] * HEADS * DIM))
        assert cache.request(request).status == Status.OK
    assert not torch.equal(cache.attend(q, child, 0, 10).words, alone.words)
    assert torch.equal(cache.attend(q, 0, 0, 9).words, alone.words)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attention_follows_its_definition(groups):
    """Each head alone, on what the quantizer's arithmetic gives of each vector."""
    cache, vectors = filled(groups)
    rows = {
        side: decode(encode(x, THRESHOLDS, 16), THRESHOLDS).reshape(-1, HEADS, DIM)
        for side, x in vectors.items()
    }
    q = queries()
    # After a TRIM, and in a window: the later of both begins the tokens that count.
    for trimmed, token, window in (
        (0, 9, 0), (0, 4, 0), (0, 9, 9), (0, 9, 5), (0, 4, 1), (0, 4, 7), (3, 9, 0), (3, 9, 2),
        (3, 9, 8), (8, 9, 0),
    ):  # fmt: skip
        if trimmed:
            cache.request(Request(Op.TRIM, token=trimmed))
        start = max(trimmed, token - window) if window else trimmed
        found = cache.attend(q, 0, 0, token, rules=Rules(window))
        assert (found.status, found.result) == (Status.OK, JobStatus.OK)
        assert not found.void.any()
        for head in range(HEADS):
            k, v = (rows[side][start:token, head : head + 1] for side in Kv)
            assert torch.equal(
                found.words[head : head + 1], attend(q[head, None], k, v, MOST).words
            )
        weight = torch.softmax(_real(q) @ _real(rows[Kv.K][start:token]).permute(1, 2, 0), dim=-1)
        real = weight @ _real(rows[Kv.V][start:token]).transpose(0, 1)
        assert (_real(found.words) - real).abs().max() <= 0.01  # of the roundings of one score


def _real(words: torch.Tensor) -> torch.Tensor:
    return words.to(torch.int16).view(torch.float16).to(torch.float64)


def test_reads_of_the_user_are_refused():
    cache, _ = filled(1)
    assert cache.request(Request(Op.READ, heads=HEADS, token=1)).status == Status.BAD_REQUEST


def test_the_first_status_decides():
    """K of all groups before V; a refusal makes a group void, an error of memory NaN."""
    cache, _ = filled(2)
    nan = torch.full((HEADS, QUERIES, DIM), FP16.canonical_nan)
    sound = cache.attend(queries(), 0, 0, 9)

    def ends(memory, token=9):
        found = cache.attend(queries(), 0, 0, token, memory)
        assert found.result == (JobStatus.OK if found.status else sound.result)
        return found

    found = ends({(Kv.V, 0): Status.SLAVE_ERROR, (Kv.K, 1): Status.MALFORMED})
    assert found.status == Status.MALFORMED
    assert torch.equal(found.words, nan)
    assert not found.void.any()
    found = ends({(Kv.V, 1): Status.DECODE_ERROR})
    assert found.status == Status.DECODE_ERROR
    assert torch.equal(found.words[:2], sound.words[:2])
    assert torch.equal(found.words[2:], nan[2:])
    found = ends({}, 10)
    assert found.status == Status.BEYOND_LENGTH
    assert found.void.all()
    request = Request(Op.APPEND, kv=Kv.K, token=9, vector=[0] * HEADS * DIM)
    assert cache.request(request).status == Status.OK
    assert ends({}, 10).void.all()  # V alone is refused
    found = ends({(Kv.K, 0): Status.SLAVE_ERROR}, 10)
    assert found.status == Status.SLAVE_ERROR
    assert found.void.tolist() == [False, True]


def test_another_number_of_rows_is_bad_data():
    """A TRIM between the READ of K and that of V, of the last group."""
    cache, _ = filled(2)
    begun = cache.begin(queries(), 0, 0, 9)
    cache.request(Request(Op.TRIM, token=2))
    found = cache.finish(begun)
    assert (found.status, found.result) == (Status.OK, JobStatus.DATA)
    assert torch.equal(found.words[:2] == FP16.canonical_nan, torch.zeros(2, QUERIES, DIM) == 1)
    assert (found.words[2:] == FP16.canonical_nan).all()


def test_results_of_queries():
    cache, _ = filled(2)
    q = queries()
    q[0, 0, 0] = FP16.infinity
    assert cache.attend(q, 0, 0, 9).result == JobStatus.NONFINITE
    q[3, 1] = 0x7BFF
    assert cache.attend(q, 0, 0, 9).result == JobStatus.NONFINITE
    q[0, 0, 0] = 0
    assert cache.attend(q, 0, 0, 9).result == JobStatus.OVERFLOW
