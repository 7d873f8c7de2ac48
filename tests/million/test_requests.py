"""golden.million.requests against the whole cache: random requests of both, status by status.

Shown to fail:

- a flush that is forgotten where its token is refused;
- NO_CODEBOOK before SEQUENCE_UNKNOWN;
- codebooks of another layer;
- a RESTORE whose place in the ring stays;
- a RESTORE before the sinks are full.
"""

import numpy as np
import pytest
import torch

from golden.million.attention import Codebook
from golden.million.cache import Cache, Codebooks
from golden.million.config import HeadShape, MillionConfig, PqShape, WindowShape
from golden.million.format import Op, Status
from golden.million.requests import Book, Requests

REFUSED = (
    Status.BAD_REQUEST, Status.SEQUENCE_UNKNOWN, Status.NO_CODEBOOK, Status.TOKEN_ORDER,
    Status.LENGTH_LIMIT,
)  # fmt: skip


@pytest.mark.parametrize("window", [(0, 0, 0), (2, 1, 2), (1, 0, 3)])
@pytest.mark.parametrize("scope_layers", [True, False])
def test_the_cache_gives_the_same_statuses(window, scope_layers, monkeypatch):
    sinks, keep, block = window
    config = MillionConfig(
        pq=PqShape(head_dim=16, subspaces=16, bits=12), head=HeadShape(heads=1, group=1),
        window=WindowShape(sinks=sinks, keep=keep, block=block), sequences=2, layers=2,
        max_tokens=26, pages=16, page_bytes=256, scope_layers=scope_layers,
    )  # fmt: skip
    cache, rng = Cache(config), np.random.default_rng([6, *window])
    encodes: list[Status] = []
    told: dict = {}

    def encode(*each):
        encodes.append(plain(*each))
        return encodes[-1]

    def ask(what, **fields):
        if what == "page":
            return told["status"], told["sequence"]
        if what == "encode" and fields["job"].restored:
            assert fields["job"].discard == (told["restored"] in REFUSED)
            return Status.OK if fields["job"].discard else told["restored"]
        if what == "encode":
            return Status.OK if fields["job"].clear else encodes.pop(0)
        if what == "attend":
            told["refused"] = fields["refused"]
        return what == "load" or told.get("nonfinite")

    plain = cache._encode
    monkeypatch.setattr(cache, "_encode", encode)
    mine = Requests(config, ask)
    word = torch.zeros(16, 2, 1, dtype=torch.int64)
    books = Codebooks((Codebook(word, 0),), (Codebook(word, 0),))
    ops = [*[Op.APPEND] * 12, Op.PREFILL, *[Op.RESTORE] * 3, Op.ATTEND, Op.OPEN, Op.FREE, Op.LOAD]
    seen, restores = set(), set()
    sequence = layer = 0
    for _ in range(240):
        op = ops[int(rng.integers(len(ops)))]
        if rng.random() < 0.15:
            sequence, layer = int(rng.integers(3)), int(rng.integers(3))
        told.clear()
        encodes.clear()
        match op:
            case Op.OPEN:
                told["status"], told["sequence"] = cache.open()
                status = told["status"]
            case Op.FREE:
                status = told["status"] = cache.free(sequence)
                told["sequence"] = sequence
            case Op.LOAD:
                status = cache.load(layer, books)
            case Op.ATTEND:
                status, _ = cache.attend(sequence, layer, torch.zeros(1, 1, 16, dtype=torch.int64))
            case Op.RESTORE:
                codes = torch.tensor(rng.integers(0, 2, (2, 1, 16)))
                status = told["restored"] = cache.restore(sequence, layer, *codes)
                restores.add(status)
            case _:
                token = torch.tensor(rng.integers(0, 0x3C00, (2, 1, 16)))
                told["nonfinite"] = bool(rng.random() < 0.15)
                token[0, 0, 3] = 0x7C00 if told["nonfinite"] else 0
                add = cache.append if op == Op.APPEND else cache.prefill
                status = add(sequence, layer, *token)
        found, _ = mine.run(op, sequence, layer, Book(layer, 2, 0, 0))
        if found is None:
            found = told.get("refused", Status.OK)
        assert found == status, op
        assert not encodes
        seen.add(status)
        if (sequence, layer) in mine.layers and sequence in mine.open:
            state, own = cache.layers[sequence, layer], mine.layers[sequence, layer]
            assert (own.tokens, own.past) == (state.tokens, state.past)
            assert own.start == own.past % mine.places
    assert {Status.OK, *[Status.TOKEN_ORDER] * any(window)} <= restores
    assert {Status.OK, Status.NONFINITE, Status.BAD_REQUEST, Status.SEQUENCE_UNKNOWN} <= seen
