"""golden.million.encode against the whole cache, and against lists written by hand.

Shown to fail:

- K of a token again after its V has failed;
- a token that counts with its K;
- the codes of V that are not taken after K has failed.
"""

import numpy as np
import pytest
import torch

from golden.million.attention import Codebook
from golden.million.cache import Cache, Codebooks
from golden.million.config import HeadShape, MillionConfig, PqShape, WindowShape
from golden.million.encode import Encoding, Job
from golden.million.format import Status
from golden.paging.format import Op

FULL, BROKEN = 11, 12  # OUT_OF_PAGES, SLAVE_ERROR of the paged memory


def test_jobs_by_hand():
    it = Encoding()
    assert it.run(Job(vector=3, clear=True), []).appends == []
    first = it.run(Job(vector=3, until=2), [0, 0, 0, FULL])
    assert (first.status, first.appends) == (
        Status.OUT_OF_PAGES, [(0, 0), (1, 0), (0, 1), (1, 1)]
    )  # fmt: skip
    assert it.run(Job(vector=3, until=1), []).appends == []
    assert it.run(Job(vector=3, until=3), [0, 0, 0]).appends == [(1, 1), (0, 2), (1, 2)]
    it.run(Job(vector=0, clear=True), [])
    assert it.run(Job(vector=0, until=1), [BROKEN]).status == Status.SLAVE_ERROR
    assert it.run(Job(vector=0, until=1), [0, 0]).appends == [(0, 0), (1, 0)]


def test_restores_by_hand():
    it = Encoding()
    it.run(Job(vector=1, clear=True), [])
    job = Job(vector=1, until=1, restored=True)
    assert it.run(job, [FULL]).takes == [False, True]
    again = it.run(job, [0, FULL])
    assert (again.takes, again.appends) == ([False, False], [(0, 0), (1, 0)])
    third = it.run(job, [0])
    assert (third.takes, third.appends, third.status) == ([True, False], [(1, 0)], Status.OK)
    refused = it.run(Job(vector=1, restored=True, discard=True), [])
    assert (refused.takes, refused.appends) == ([True, True], [])
    assert it.run(Job(vector=1, until=2), [0, 0]).appends == [(0, 1), (1, 1)]


@pytest.mark.parametrize("window", [(0, 0, 0), (1, 0, 2), (2, 1, 2)])
def test_the_cache_makes_the_same_appends(window, monkeypatch):
    """Random tokens of two sequences until pages are short, some freed, and again."""
    sinks, keep, block = window
    config = MillionConfig(
        pq=PqShape(head_dim=16, subspaces=16, bits=12), head=HeadShape(heads=2, group=1),
        window=WindowShape(sinks=sinks, keep=keep, block=block), sequences=2, layers=2,
        max_tokens=400, pages=20, page_bytes=256,
    )  # fmt: skip
    cache, mine, rng = Cache(config), Encoding(), np.random.default_rng(5)
    appends: list[tuple[int, int]] = []
    answers: list[int] = []
    seen: list[tuple[Status, int]] = []

    def request(each, *rest):
        answer = plain_request(each, *rest)
        if each.op == Op.APPEND:
            appends.append((each.kv, each.token))
            answers.append(int(answer.status))
        return answer

    def encode(sequence, layer, books, until):
        appends.clear()
        answers.clear()
        status = plain_encode(sequence, layer, books, until)
        job = Job(vector=2 * sequence + layer, until=until)
        done = mine.run(job, answers)
        assert (done.status, done.appends) == (status, appends)
        seen.append((status, len(appends)))
        return status

    plain_request, plain_encode = cache.mmu.request, cache._encode
    monkeypatch.setattr(cache.mmu, "request", request)
    monkeypatch.setattr(cache, "_encode", encode)
    word = torch.zeros(16, 2, 1, dtype=torch.int64)
    books = Codebooks((Codebook(word, 0),), (Codebook(word, 0),))
    for _ in range(2):
        for n in range(2):
            assert cache.open()[0] == Status.OK
            for layer in range(2):
                mine.run(Job(vector=2 * n + layer, clear=True), [])
        for _ in range(70):
            sequence, layer = int(rng.integers(2)), int(rng.integers(2))
            cache.load(layer, books)
            add = cache.prefill if rng.random() < 0.1 else cache.append
            token = torch.tensor(rng.integers(0, 0x3C00, (2, 2, 16)))
            add(sequence, layer, *token)
        for sequence in range(2):
            cache.free(sequence)
    assert {Status.OK, Status.OUT_OF_PAGES} <= {status for status, _ in seen}
    assert max(count for _, count in seen) >= 2
