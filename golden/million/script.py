"""Requests of ``million_attention``, the words of its streams, and what comes of them.

Golden runs along: what a request brings, and what comes back, is in the streams of ``words``:

    request   fields REQUEST_FIELDS, the first in the low bits
    codebook  ``lanes`` FP16 words per beat, the first in the low bits: K's codebooks, then V's
    kv        the same: K of each KV head, then V
    query     the same, and the slope above them
    restored  ``data_bits`` of a record's bytes: K's record of each KV head, then V's
    o         the outputs, as kv
    status    fields STATUS_FIELDS, one per request, in order of requests
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.index.codes import pack
from golden.index.packet import packet_rows
from golden.manifest import split_words
from golden.million.cache import Cache, Codebooks
from golden.million.config import MillionConfig
from golden.million.format import Op, Status

# Bits of each field of hdl.million.layouts.REQUEST_LAYOUT and STATUS_LAYOUT.
REQUEST_FIELDS = {
    "op": 4, "tag": 8, "sequence": 8, "layer": 8, "entries": 13, "exponent_k": 5, "exponent_v": 5,
}  # fmt: skip
STATUS_FIELDS = {"tag": 8, "op": 4, "status": 4, "sequence": 8}
STREAMS = ("request", "codebook", "kv", "query", "restored", "o", "status")
_TAGS = 1 << REQUEST_FIELDS["tag"]


def joined(layout: dict[str, int], **values: int) -> int:
    """A word of fields; those without a value are zero."""
    word = place = 0
    for name, bits in layout.items():
        word |= (values.get(name, 0) & (1 << bits) - 1) << place
        place += bits
    return word


def fields(layout: dict[str, int], word: int) -> dict[str, int]:
    """The fields of a word, without signs."""
    found = {}
    for name, bits in layout.items():
        found[name] = word & (1 << bits) - 1
        word >>= bits
    return found


def beats(words: Tensor, lanes: int) -> list[int]:
    """FP16 words in order as integers of ``lanes`` of them, the first in the low bits."""
    return split_words(words.flatten().numpy().astype("<u2").tobytes(), 2 * lanes)


class Script:
    """Requests to one Cache; each gives a ConfigError unless its status is OK."""

    def __init__(self, config: MillionConfig, lanes: int, data_bits: int):
        self.cache = Cache(config, data_bits)
        self.lanes, self.data_bits = lanes, data_bits
        self.words: dict[str, list[int]] = {name: [] for name in STREAMS}

    def open(self) -> int:
        status, sequence = self.cache.open()
        self._request(Op.OPEN, status, answer=sequence)
        return sequence

    def load(self, layer: int, books: Codebooks) -> None:
        """The codebooks of ``layer``."""
        for book in (*books.k, *books.v):
            self.words["codebook"] += beats(packet_rows(book.words), self.lanes)
        named = {
            "layer": layer,
            "entries": books.k[0].words.shape[1],
            "exponent_k": books.k[0].exponent,
            "exponent_v": books.v[0].exponent,
        }
        self._request(Op.LOAD, self.cache.load(layer, books), **named)

    def prefill(self, sequence: int, layer: int, k: Tensor, v: Tensor) -> None:
        """(heads, d) words each."""
        status = self.cache.prefill(sequence, layer, k, v)
        self._token(Op.PREFILL, status, torch.cat((k, v)), sequence=sequence, layer=layer)

    def append(self, sequence: int, layer: int, k: Tensor, v: Tensor) -> None:
        """(heads, d) words each."""
        status = self.cache.append(sequence, layer, k, v)
        self._token(Op.APPEND, status, torch.cat((k, v)), sequence=sequence, layer=layer)

    def restore(self, sequence: int, layer: int, codes_k: Tensor, codes_v: Tensor) -> None:
        """(heads, M) codes each."""
        status = self.cache.restore(sequence, layer, codes_k, codes_v)
        size = self.data_bits // 8
        for record in pack(torch.cat((codes_k, codes_v)), self.cache.config.pq.bits):
            self.words["restored"] += split_words(bytes(record.tolist()), size)
        self._request(Op.RESTORE, status, sequence=sequence, layer=layer)

    def attend(self, sequence: int, layer: int, q: Tensor, slope: Tensor | None = None) -> Tensor:
        """(heads, group, d) outputs of as many queries; slope: (heads, group)."""
        status, o = self.cache.attend(sequence, layer, q, slope)
        self._check(Op.ATTEND, status)
        assert o is not None
        place = FP16.bits * self.lanes
        slopes = torch.zeros(q.shape[:-1], dtype=torch.int64) if slope is None else slope
        above = np.repeat(slopes.flatten().numpy(), q.shape[-1] // self.lanes).tolist()
        for beat, each in zip(beats(q, self.lanes), above, strict=True):
            self.words["query"].append(beat | each << place)
        self.words["o"] += beats(o, self.lanes)
        self._request(Op.ATTEND, status, sequence=sequence, layer=layer)
        return o

    def _token(self, op: Op, status: Status, kv: Tensor, **named: int) -> None:
        self.words["kv"] += beats(kv, self.lanes)
        self._request(op, status, **named)

    def _request(self, op: Op, status: Status, answer: int | None = None, **named: Any) -> None:
        self._check(op, status)
        tag = len(self.words["request"]) % _TAGS
        self.words["request"].append(joined(REQUEST_FIELDS, op=op, tag=tag, **named))
        sequence = named.get("sequence", 0) if answer is None else answer
        self.words["status"].append(
            joined(STATUS_FIELDS, tag=tag, op=op, status=status, sequence=sequence)
        )

    def _check(self, op: Op, status: Status) -> None:
        if status != Status.OK:
            number = len(self.words["request"])
            raise ConfigError(f"{op.name}, request {number}: must end OK, not {status.name}")
