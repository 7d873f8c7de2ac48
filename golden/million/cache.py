"""The product-quantized KV cache, request by request: what ``million_attention`` does, bit for bit.

One request is over before the next begins. K, V and queries are int64 tensors of FP16 words.
"""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from golden.fp16.ops import is_special
from golden.index.codes import pack, unpack
from golden.index.packet import check_words
from golden.index.pq import exact_codes
from golden.million.attention import Codebook, Head, attend_head
from golden.million.config import MillionConfig
from golden.million.format import Op, Status, paged
from golden.paging import mmu
from golden.paging.format import Op as PagingOp


@dataclasses.dataclass(frozen=True)
class Codebooks:
    """Those of K and of V that one LOAD brings: one of each, or one for each KV head.

    All have as many entries, and those of K, and of V, one exponent.
    """

    k: tuple[Codebook, ...]
    v: tuple[Codebook, ...]

    def check(self) -> None:
        """ConfigError: words beyond -1..1 or not finite, exponents out of range."""
        for name, books in (("k", self.k), ("v", self.v)):
            for book in books:
                check_words(book.words, book.exponent, name)


@dataclasses.dataclass
class _Layer:
    """Tokens of a (sequence, layer): K and V are (heads, d) words of each exact token."""

    tokens: int = 0
    past: int = 0  # tokens that are attended as codes
    coded: int = 0  # tokens whose K and V have codes
    has_k: bool = False  # the K of the next token has codes, too
    sinks: list[Tensor] = dataclasses.field(default_factory=list)  # (2, heads, d)
    recent: list[Tensor] = dataclasses.field(default_factory=list)


class Cache:
    """A cache of ``config`` in memory words of ``data_bits``, page 0 at address 0.

    ``respond`` is that of golden.paging.mmu.Mmu. Every request gives a Status; ``attend`` gives
    the outputs, too. A request that is refused changes nothing, but for pages that a failed
    encoding had taken before.
    """

    def __init__(
        self,
        config: MillionConfig,
        data_bits: int = 256,
        respond: Callable[[int, bool], int] | None = None,
    ):
        self.config = config
        options = {} if respond is None else {"respond": respond}
        self.mmu = mmu.Mmu(config.cache, data_bits, **options)
        self.open_sequences: set[int] = set()
        self.layers: dict[tuple[int, int], _Layer] = {}
        self.present: tuple[int, Codebooks] | None = None
        self.waiting: tuple[int, Codebooks] | None = None

    def open(self) -> tuple[Status, int]:
        """(status, number of the new sequence)."""
        answer = self.mmu.request(mmu.Request(PagingOp.OPEN))
        status = paged(answer.status)
        if status == Status.OK:
            self.open_sequences.add(answer.sequence)
            for layer in range(self.config.layers):
                self.layers[answer.sequence, layer] = _Layer()
        return status, answer.sequence

    def free(self, sequence: int) -> Status:
        if not 0 <= sequence < self.config.sequences:
            return Status.BAD_REQUEST
        if sequence not in self.open_sequences:
            return Status.SEQUENCE_UNKNOWN
        answer = self.mmu.request(mmu.Request(PagingOp.FREE, sequence=sequence))
        self.open_sequences.discard(sequence)
        return paged(answer.status)

    def load(self, layer: int, books: Codebooks) -> Status:
        """The codebooks of ``layer`` into the buffer that is not in use."""
        entries = {book.words.shape[1] for book in (*books.k, *books.v)}
        if not 0 <= layer < self.config.layers or max(entries) > self.config.pq.entries:
            return Status.BAD_REQUEST
        self.waiting = (layer, books)
        return Status.OK

    def prefill(self, sequence: int, layer: int, k: Tensor, v: Tensor) -> Status:
        """One token's (heads, d) K and V: to the sinks, or encoded at once."""
        return self._add(Op.PREFILL, sequence, layer, torch.stack((k, v)))

    def append(self, sequence: int, layer: int, k: Tensor, v: Tensor) -> Status:
        """One token's (heads, d) K and V: to the sinks or the window."""
        return self._add(Op.APPEND, sequence, layer, torch.stack((k, v)))

    def restore(self, sequence: int, layer: int, codes_k: Tensor, codes_v: Tensor) -> Status:
        """One token's (heads, M) codes of K and of V, as they are: no codebook is looked at.

        A token whose K has codes, after a failure, keeps them.
        """
        status, _ = self._check(sequence, layer)
        if status:
            return status
        state = self.layers[sequence, layer]
        if state.recent or state.tokens < self.config.window.sinks:
            return Status.TOKEN_ORDER
        if state.tokens == self.config.max_tokens:
            return Status.LENGTH_LIMIT
        for kv, codes in enumerate((codes_k, codes_v)):
            if state.has_k == bool(kv):
                raw = pack(codes, self.config.pq.bits)
                records = [bytes(record.tolist()) for record in raw]
                status = self._store(sequence, layer, records)
        if status == Status.OK:
            state.past += 1
            state.tokens += 1
        return status

    def attend(
        self, sequence: int, layer: int, q: Tensor, slope: Tensor | None = None
    ) -> tuple[Status, Tensor | None]:
        """(status, (heads, group, d) words) of (heads, group, d) queries times 1/sqrt(d).

        slope: (heads, group) words. No words where the request is refused.
        """
        status, books = self._check(sequence, layer)
        if status:
            return status, None
        state = self.layers[sequence, layer]
        if not state.tokens:
            return Status.EMPTY, None
        assert books is not None
        slope = torch.zeros(q.shape[:-1], dtype=torch.int64) if slope is None else slope
        codes, status = self._codes(sequence, layer, state.past)
        exact = [*state.sinks, *state.recent]
        shape = (0, 2, self.config.head.heads, self.config.pq.head_dim)
        rows = torch.stack(exact) if exact else torch.zeros(shape, dtype=torch.int64)
        words, worst = [], [status] if status else []
        for head in range(self.config.head.heads):
            book = head if self.config.scope_heads else 0
            seen = Head(
                codes_k=codes[0, head],
                codes_v=codes[1, head],
                rows_k=rows[:, 0, head],
                rows_v=rows[:, 1, head],
                sinks=len(state.sinks),
            )
            found, o = attend_head(q[head], slope[head], seen, books.k[book], books.v[book])
            words.append(o)
            worst += [found] if found else []
        return min(worst, default=Status.OK), torch.stack(words)

    def _check(self, sequence: int, layer: int) -> tuple[Status, Codebooks | None]:
        config = self.config
        if not (0 <= sequence < config.sequences and 0 <= layer < config.layers):
            return Status.BAD_REQUEST, None
        if sequence not in self.open_sequences:
            return Status.SEQUENCE_UNKNOWN, None
        if self.waiting and self._serves(self.waiting[0], layer):
            self.present, self.waiting = self.waiting, None
        if self.present and self._serves(self.present[0], layer):
            return Status.OK, self.present[1]
        return Status.NO_CODEBOOK, None

    def _serves(self, loaded: int, layer: int) -> bool:
        return loaded == layer or not self.config.scope_layers

    def _add(self, op: Op, sequence: int, layer: int, kv: Tensor) -> Status:
        window = self.config.window
        status, books = self._check(sequence, layer)
        if status:
            return status
        assert books is not None
        state = self.layers[sequence, layer]
        if op == Op.PREFILL and state.recent:
            return Status.TOKEN_ORDER
        if state.tokens == self.config.max_tokens:
            return Status.LENGTH_LIMIT
        is_full = window.recent and len(state.recent) == window.recent
        if op == Op.APPEND and is_full:
            status = self._encode(sequence, layer, books, state.past + window.block)
            if status:
                return status
            state.past += window.block
            del state.recent[: window.block]
        if bool(is_special(kv).any()):
            return Status.NONFINITE
        if state.tokens < window.sinks:
            state.sinks.append(kv)
            state.tokens += 1
            return Status.OK
        if op == Op.PREFILL or not window.recent:
            state.recent = [kv]
            status = self._encode(sequence, layer, books, state.past + 1)
            state.recent = []
            if status == Status.OK:
                state.past += 1
                state.tokens += 1
            return status
        state.recent.append(kv)
        state.tokens += 1
        self._encode(sequence, layer, books, state.tokens - len(state.sinks))
        return Status.OK

    def _encode(self, sequence: int, layer: int, books: Codebooks, until: int) -> Status:
        """Codes of the tokens before ``until``; those that have some are not encoded again."""
        state = self.layers[sequence, layer]
        while state.coded < until:
            kv = int(state.has_k)
            vectors = state.recent[state.coded - state.past][kv]
            records = [
                self._record(vectors[head], (books.k, books.v)[kv], head)
                for head in range(len(vectors))
            ]
            status = self._store(sequence, layer, records)
            if status:
                return status
        return Status.OK

    def _store(self, sequence: int, layer: int, records: list[bytes]) -> Status:
        """The next vector's record of each head to memory."""
        state = self.layers[sequence, layer]
        kv = int(state.has_k)
        request = mmu.Request(
            PagingOp.APPEND, sequence=sequence, layer=layer, kv=kv, token=state.coded
        )
        answer = self.mmu.request(request, records)
        if answer.status:
            return paged(answer.status)
        state.coded += kv
        state.has_k = not state.has_k
        return Status.OK

    def _record(self, vector: Tensor, books: Sequence[Codebook], head: int) -> bytes:
        book, bits = books[head if self.config.scope_heads else 0], self.config.pq.bits
        codes = exact_codes(vector[None], book.words, book.exponent, bits)
        return bytes(pack(codes, bits)[0].tolist())

    def _codes(self, sequence: int, layer: int, past: int) -> tuple[Tensor, Status]:
        """(2, heads, past, M) codes from memory, and the status of the reads."""
        pq, heads = self.config.pq, self.config.head.heads
        codes = torch.zeros(2, heads, past, pq.subspaces, dtype=torch.int64)
        worst: list[Status] = []
        if not past:
            return codes, Status.OK
        for kv in range(2):
            request = mmu.Request(
                PagingOp.READ, sequence=sequence, layer=layer, kv=kv, heads=heads, token=past
            )
            answer = self.mmu.request(request)
            worst += [paged(answer.status)] if answer.status else []
            for read in answer.heads:
                data = mmu.joined(read.codes, self.mmu.word_bytes)
                raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
                codes[kv, read.head] = unpack(raw.reshape(past, -1), pq.subspaces, pq.bits)
        return codes, min(worst, default=Status.OK)
