"""VqAttention against golden.vqllm.attention.attend: passes, heads, statuses, cycles.

Shown to fail:

- scores that begin anew in each pass; a weight read in the cycle in which it is written
- the end of a request seen one pass early; the codes of the next pass at another stride
- a word of codes kept beyond the end of its pass; a burst requested without room for it
- the response of a word of codes left out; outputs of a failed request that are not NaN
- an exponent of V out of range accepted; a query that is not finite remembered for the next request
"""

import numpy as np
import pytest

from golden.axi.format import RESP_DECERR, RESP_SLVERR
from golden.config import ConfigError
from golden.million.config import PqShape
from golden.million.format import Status
from golden.vqllm import timing
from golden.vqllm.config import AttendShape
from hdl.vqllm.attend.attention import VqAttention, VqAttentionConfig
from tb.simulate.run import simulate
from tb.vqllm.support.attention import Script, random_head

NAN, INFINITY, MOST, LARGE = 0x7E00, 0x7C00, 0x7BFF, 0x3C01


def small(tokens, queries, size=4, subspaces=8, groups=4, bits=4, data_bits=64):
    return AttendShape(
        pq=PqShape(head_dim=size * subspaces, subspaces=subspaces, bits=bits),
        groups=groups, queries=queries, data_bits=data_bits, max_tokens=tokens,
    )  # fmt: skip


CONFIGS = {
    "two_passes": VqAttentionConfig(shape=small(40, 2), books=3, burst_beats=4, words=16),
    "four_passes": VqAttentionConfig(
        shape=small(33, 3, size=2, subspaces=32, groups=8, bits=4, data_bits=256),
        books=8, burst_beats=16, words=16, outstanding=2,
    ),
    "one_pass": VqAttentionConfig(
        shape=small(9, 1, size=1, subspaces=32, groups=32), books=1, burst_beats=1, words=32
    ),
}  # fmt: skip


def script_of(config, rng) -> Script:
    """Requests of every length and every status; a sound one after each that fails."""
    shape, script = config.shape, Script(rng, config)
    entries = shape.pq.entries
    last = config.books - 1

    def sound(tokens=None, **fields):
        tokens = int(rng.integers(1, shape.max_tokens + 1)) if tokens is None else tokens
        head = random_head(rng, shape, tokens, **fields)
        head.books, head.exponents = known.books, known.exponents
        for codes in head.codes:
            codes %= known.books[0].shape[1]
        script.request(head, last)

    known = random_head(rng, shape, 1)
    script.book(last, known.books, known.exponents)
    for tokens in (1, 1, 2, shape.max_tokens - shape.max_tokens % 2 - 1, shape.max_tokens):
        sound(tokens, queries=int(rng.integers(1, shape.queries + 1)))
    # refused
    script.refused(Status.EMPTY, shape.queries, place=last, tokens=0)
    sound()
    script.refused(Status.LENGTH_LIMIT, 1, place=last, tokens=shape.max_tokens + 1)
    script.refused(Status.NO_CODEBOOK, 1, place=config.books, tokens=1)
    script.refused(Status.NO_CODEBOOK, 1, place=255, tokens=1)
    script.refused(Status.BAD_REQUEST, 0, place=last, tokens=1)
    script.refused(Status.BAD_REQUEST, shape.queries + 1, place=last, tokens=1)
    sound(2)
    # queries and codes
    for word in (NAN, INFINITY, INFINITY | 0x8000):
        head = random_head(rng, shape, 5)
        head.books, head.exponents = known.books, known.exponents
        head.q[rng.integers(len(head.q)), rng.integers(shape.pq.head_dim)] = word
        script.request(head, last)
    sound(1)
    for exponent, q in ((15, MOST), (15, MOST | 0x8000)):
        head = random_head(rng, shape, 3)
        head.exponents = [exponent, 0]
        for book in head.books:
            book[:] = 0x3C00
        head.q[:] = q
        head.q[0] = 0x3C00  # of several queries this one is sound
        script.book(last, head.books, head.exponents)
        script.request(head, last)
    # a short codebook, then one that is used beyond its end
    known = random_head(rng, shape, 7, entries=3)
    script.book(0, known.books, known.exponents)
    script.request(known, 0)
    for side in range(2):
        codes = known.codes[side].copy()
        known.codes[side][rng.integers(7), rng.integers(shape.pq.subspaces)] = 3
        script.request(known, 0)
        known.codes[side] = codes
        script.request(known, 0)
    # codebooks with faults
    for side, word in ((0, LARGE), (1, LARGE | 0x8000), (0, NAN), (1, INFINITY)):
        head = random_head(rng, shape, 4)
        book = head.books[side]
        book[rng.integers(len(book)), rng.integers(entries), rng.integers(shape.pq.sub)] = word
        script.book(0, head.books, head.exponents)
        script.request(head, 0)
    script.book(0, known.books, known.exponents)
    script.request(known, 0)
    # memory
    for side, response in (("k", RESP_SLVERR), ("v", RESP_DECERR)):
        script.request(known, 0, response=response, side=side)
        script.request(known, 0)
    for response in (RESP_DECERR, RESP_SLVERR):
        spans = script.book(0, known.books, known.exponents)
        script.refuse(*spans[int(rng.integers(2))], response)
        script.request(known, 0, response=response)
    # books that are out of range
    for wrong in ({"entries": 0}, {"entries": entries + 1}, {"exponents": [-9, 0]},
                  {"exponents": [0, -16]}):  # fmt: skip
        script.book(0, known.books, **{"exponents": known.exponents, **wrong})
        script.refused(Status.NO_CODEBOOK, 1, place=0, tokens=1)
    script.book(255, known.books, known.exponents)
    script.book(0, known.books, known.exponents)
    script.request(known, 0)
    return script


def train_of(config, rng, tokens: int, heads: int) -> Script:
    """One head several times."""
    script = Script(rng, config)
    head = random_head(rng, config.shape, tokens)
    script.book(0, head.books, head.exponents)
    for _ in range(heads):
        script.request(head, 0)
    return script


def run(config, seed, *, latency=10):
    rng = np.random.default_rng([seed, 211])
    shape = config.shape
    heads = 4
    scripts = [script_of(config, rng), train_of(config, rng, shape.max_tokens, heads)]
    bound = timing.attend_bound(shape, shape.max_tokens, shape.pq.entries)
    params = {
        "scripts": [script.params() for script in scripts],
        "heads": [bound] * heads,
        "fill": timing.attend_fill(shape, shape.max_tokens, shape.pq.entries, latency),
        "latency": latency,
    }
    block = VqAttention(config)
    return simulate(block, "tb.vqllm.tb_attention", params=params, seed=seed)


@pytest.mark.telling("two_passes")
@pytest.mark.parametrize("name", CONFIGS)
def test_attention(name, seed):
    run(CONFIGS[name], seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"words": 8}, "VqAttentionConfig.words must be burst_beats = 16 or more, not 8"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        VqAttentionConfig(**wrong)
    assert str(error.value) == message
