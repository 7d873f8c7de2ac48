"""KllmCacheHost against golden.kllm.engines: requests of words, and words of statuses.

Shown to fail:

- words of a request that are exchanged;
- an op of 16 that becomes OPEN;
- bit 21 or bit 30 of the second word unseen;
- a request that is lost where the next words come at once;
- a status and a sequence that are exchanged in an answer;
- words before a reset that count after it.
"""

import numpy as np

from golden.kllm.engines import answer_word, request_of, request_words
from golden.kllm.format import NO_OP
from golden.paging.format import Op
from golden.words import layout_word
from hdl.kllm.cache.host import KllmCacheHost, KllmCacheHostConfig
from hdl.oaken.layouts import KV_REQUEST_LAYOUT
from hdl.paging.layouts import STATUS_LAYOUT
from tb.simulate.run import simulate


def drawn(rng) -> list[int]:
    """The words of a request: a right one, one with a bit too many, or any bits."""
    words = request_words(
        int(rng.choice(list(Op))), tag=int(rng.integers(256)), sequence=int(rng.integers(256)),
        layer=int(rng.integers(256)), kv=int(rng.integers(2)), token=int(rng.integers(1 << 21)),
        thresholds=rng.integers(0, 1 << 16, 4).tolist(),
    )  # fmt: skip
    kind = rng.random()
    if kind < 0.2:
        words[0] ^= 1 << int(rng.integers(4, 8))
    elif kind < 0.4:
        words[1] ^= 1 << int(rng.integers(21, 31))
    elif kind < 0.5:
        words = rng.integers(0, 1 << 32, 4).tolist()
    return words


def test_cache_host(seed):
    rng = np.random.default_rng([seed, 53])
    requests = [drawn(rng) for _ in range(120)]
    statuses = [
        {
            "tag": int(rng.integers(256)), "op": int(rng.integers(16)),
            "status": int(rng.integers(16)), "sequence": int(rng.integers(256)),
        }
        for _ in requests
    ]  # fmt: skip
    words = {
        "word": [word for request in requests for word in request],
        "request": [layout_word(KV_REQUEST_LAYOUT, **request_of(each)) for each in requests],
        "status": [layout_word(STATUS_LAYOUT, **each) for each in statuses],
        "answer": [
            answer_word(each["tag"], each["status"], each["sequence"]) for each in statuses
        ],
    }  # fmt: skip
    block = KllmCacheHost(KllmCacheHostConfig())
    simulate(block, "tb.kllm.tb_cache_host", params={"words": words}, seed=seed)


def test_words_by_hand():
    """A request with every field, one of each width too wide, and an answer."""
    words = request_words(3, tag=2, sequence=1, layer=4, kv=1, token=5, thresholds=(6, 7, 8, 9))
    assert words == [0x0401_0203, 0x8000_0005, 0x0007_0006, 0x0009_0008]
    fields = request_of(words)
    assert fields == {
        "op": 3, "tag": 2, "sequence": 1, "layer": 4, "kv": 1, "token": 5,
        "thresholds": [6, 7, 8, 9],
    }  # fmt: skip
    assert request_of([0x10, *words[1:]])["op"] == NO_OP
    assert request_of([words[0], 1 << 21, *words[2:]])["op"] == NO_OP
    assert request_of([words[0], 1 << 20, *words[2:]])["op"] == 3
    assert answer_word(0x12, 3, 0x45) == 0x0045_0312
