"""golden.million.cache.Cache.restore: the codes of one cache in another one, and its refusals.

Shown to fail:

- K stored as V;
- V that is stored after its K has failed;
- a K that is stored twice;
- a token that counts though it has failed;
- a RESTORE before the sinks are full, or between recent tokens.
"""

import numpy as np
import torch

from golden.million.attention import Codebook
from golden.million.cache import Cache, Codebooks
from golden.million.config import HeadShape, MillionConfig, PqShape, WindowShape
from golden.million.format import Status


def config_of(**fields):
    return MillionConfig(
        pq=PqShape(head_dim=16, subspaces=4, bits=4), head=HeadShape(heads=2, group=2),
        window=WindowShape(sinks=2, keep=1, block=2), sequences=2, layers=1,
        **{"max_tokens": 64, **fields},
    )  # fmt: skip


def books_of(rng, entries=16):
    return Codebooks(*(
        (Codebook(torch.tensor(rng.integers(0, 0x3800, (4, entries, 4))), 0),) for _ in range(2)
    ))  # fmt: skip


def begun(config, books, **options):
    cache = Cache(config, **options)
    assert cache.open() == (Status.OK, 0)
    assert cache.load(0, books) == Status.OK
    return cache


def token(rng):
    return torch.tensor(rng.integers(0, 0x3C00, (2, 2, 16)))


def test_the_same_outputs():
    """A cache whose codes are restored attends as the one that has encoded them."""
    rng = np.random.default_rng(7)
    books = books_of(rng)
    one, other = begun(config_of(), books), begun(config_of(), books)
    tokens = [token(rng) for _ in range(30)]
    for kv in tokens:
        assert one.prefill(0, 0, *kv) == Status.OK
    codes, status = one._codes(0, 0, 28)
    assert status == Status.OK
    assert other.restore(0, 0, codes[0, :, 0], codes[1, :, 0]) == Status.TOKEN_ORDER
    for kv in tokens[:2]:
        assert other.prefill(0, 0, *kv) == Status.OK
    for n in range(28):
        assert other.restore(0, 0, codes[0, :, n], codes[1, :, n]) == Status.OK
    for _ in range(3):
        kv, q = token(rng), token(rng)
        for cache in (one, other):
            assert cache.append(0, 0, *kv) == Status.OK
        (status, first), (_, second) = (cache.attend(0, 0, q) for cache in (one, other))
        assert status == Status.OK
        assert torch.equal(first, second)
    assert other.restore(0, 0, codes[0, :, 0], codes[1, :, 0]) == Status.TOKEN_ORDER


def test_after_a_failure():
    """V, then K, that memory refuses: the next RESTORE or PREFILL goes on where it ended."""
    rng = np.random.default_rng(8)
    refuses = []

    def respond(address, is_write):
        return 2 if is_write and refuses and refuses.pop(0) else 0

    cache = begun(config_of(), books_of(rng), respond=respond)
    for _ in range(2):
        cache.prefill(0, 0, *token(rng))
    given = torch.tensor(rng.integers(0, 16, (4, 2, 2, 4)))
    state = cache.layers[0, 0]
    refuses[:] = [0, 0, 1]  # a word per head
    assert cache.restore(0, 0, *given[0]) == Status.SLAVE_ERROR
    assert (state.tokens, state.past, state.coded, state.has_k) == (2, 0, 0, True)
    refuses.clear()
    assert cache.restore(0, 0, *given[1]) == Status.OK
    refuses[:] = [1]
    assert cache.restore(0, 0, *given[2]) == Status.SLAVE_ERROR
    assert (state.tokens, state.past, state.coded, state.has_k) == (3, 1, 1, False)
    assert cache.restore(0, 0, *given[3]) == Status.OK
    codes, _ = cache._codes(0, 0, 2)
    assert torch.equal(codes[0].transpose(0, 1), given[[0, 3], 0])
    assert torch.equal(codes[1].transpose(0, 1), given[[1, 3], 1])


def test_refusals():
    rng = np.random.default_rng(9)
    codes = torch.zeros(2, 2, 4, dtype=torch.int64)
    cache = Cache(config_of(max_tokens=4))
    assert cache.restore(2, 0, *codes) == Status.BAD_REQUEST
    assert cache.restore(0, 1, *codes) == Status.BAD_REQUEST
    assert cache.restore(0, 0, *codes) == Status.SEQUENCE_UNKNOWN
    cache.open()
    assert cache.restore(0, 0, *codes) == Status.NO_CODEBOOK
    cache.load(0, books_of(rng, entries=3))
    for _ in range(2):
        assert cache.restore(0, 0, *codes) == Status.TOKEN_ORDER
        assert cache.append(0, 0, *token(rng)) == Status.OK
    for _ in range(2):
        assert cache.restore(0, 0, codes[0] + 3, codes[1]) == Status.OK
    assert cache.restore(0, 0, *codes) == Status.LENGTH_LIMIT
    assert cache.attend(0, 0, token(rng))[0] == Status.BAD_CODE
