"""Scripts for million_attention that reach every status; after each, requests that are right."""

import dataclasses

import torch

from golden.million.attention import Codebook
from golden.million.cache import Codebooks
from golden.million.format import EXPONENT_MAX, EXPONENT_MIN, Op, Status
from golden.million.vectors.script import Script
from golden.million.vectors.words import INFINITY, MINUS, MOST, NAN, ONE
from hdl.million.attention import MillionAttentionConfig

_TOKEN_OPS = (Op.PREFILL, Op.APPEND, Op.RESTORE)


def _add(script: Script, op: Op, *where) -> Status:
    return {
        Op.PREFILL: script.prefill,
        Op.APPEND: script.append,
        Op.RESTORE: script.restore,
        Op.ATTEND: script.attend,
    }[op](*where)


def _with(words: torch.Tensor, place: int, word: int) -> torch.Tensor:
    found = words.clone()
    found.view(-1)[place] = word
    return found


class _Statuses:
    """Two sequences: ``kept`` holds tokens that nothing may touch, ``mine`` is asked."""

    def __init__(self, config: MillionAttentionConfig, seed: int):
        self.script = Script(config, seed)
        self.config, self.cache = config, config.cache
        books = self.script.books(config.cache.pq.entries)
        louder = tuple(dataclasses.replace(book, exponent=1) for book in books.v)
        self.full = Codebooks(books.k, louder)  # not the same scale of K and of V
        self.mine, self.kept = 0, config.cache.sequences - 1

    def right(self, sequence: int | None = None) -> None:
        """Tokens and queries that are carried out."""
        script = self.script
        for each in (self.kept, self.mine if sequence is None else sequence):
            assert script.attend(each, 0) == Status.OK
        script.wait()

    def fill(self, sequence: int, codes: int) -> None:
        """Exact first tokens, some codes, and a recent token where there may be one."""
        script, window = self.script, self.cache.window
        for _ in range(window.sinks):
            assert script.prefill(sequence, 0) == Status.OK
        for _ in range(codes):
            assert script.restore(sequence, 0) == Status.OK
        assert script.append(sequence, 0) == Status.OK

    def nothing_open(self) -> None:
        script, cache = self.script, self.cache
        for op in _TOKEN_OPS:
            assert _add(script, op, 0, 0) == Status.SEQUENCE_UNKNOWN
            assert _add(script, op, cache.sequences, 0) == Status.BAD_REQUEST
        assert script.attend(0, 0) == Status.SEQUENCE_UNKNOWN
        assert script.free(0) == Status.SEQUENCE_UNKNOWN
        assert script.free(cache.sequences) == Status.BAD_REQUEST
        for op in range(len(Op), 16):
            script.unknown(op)
        for _ in range(cache.sequences):
            script.open()
        assert script.open() == -1
        for op in (*_TOKEN_OPS, Op.ATTEND):
            assert _add(script, op, self.mine, 0) == Status.NO_CODEBOOK
            assert _add(script, op, self.mine, cache.layers) == Status.BAD_REQUEST
        script.wait()

    def loads(self) -> None:
        """Codebooks that are refused, and then some that are right, in one train."""
        script, cache, full = self.script, self.cache, self.full
        half = cache.books * cache.pq.entries * cache.pq.head_dim
        for place, word, status in (
            (0, NAN, Status.NONFINITE),
            (half - 1, INFINITY, Status.NONFINITE),
            (half, ONE + 1, Status.BAD_REQUEST),
            (2 * half - 1, MINUS | INFINITY, Status.NONFINITE),
        ):
            assert script.load(0, full, {place: word}) == status
            assert script.load(cache.layers, full) == Status.BAD_REQUEST
            assert script.attend(self.mine, 0) == Status.NO_CODEBOOK
        low = [
            tuple(dataclasses.replace(book, exponent=EXPONENT_MIN - 1) for book in side)
            for side in (full.k, full.v)
        ]
        for books in (Codebooks(low[0], full.v), Codebooks(full.k, low[1])):
            assert script.load(0, books) == Status.BAD_REQUEST
        none = tuple(Codebook(book.words[:, :0], 0) for book in full.k)
        assert script.load(0, Codebooks(none, none)) == Status.BAD_REQUEST
        more = tuple(Codebook(torch.cat((book.words, book.words[:, :1]), 1), 0) for book in full.k)
        assert script.load(0, Codebooks(more, more)) == Status.BAD_REQUEST
        assert script.load(0, full) == Status.OK
        assert script.attend(self.mine, 0) == Status.EMPTY
        script.wait()
        for sequence in (self.mine, self.kept):
            self.fill(sequence, 3)
        self.right()

    def order(self) -> None:
        script, window = self.script, self.cache.window
        if window.recent:
            for op in (Op.PREFILL, Op.RESTORE):
                assert _add(script, op, self.mine, 0) == Status.TOKEN_ORDER
        self.right()
        if window.sinks:
            script.free(self.mine)
            script.open()
            assert script.restore(self.mine, 0) == Status.TOKEN_ORDER
            self.fill(self.mine, 2)
            self.right()

    def words(self) -> None:
        """NaN and infinity in each place that may have one; scores beyond FP16."""
        script, head, d = self.script, self.cache.head, self.cache.pq.head_dim
        queries, rows = head.heads * head.group * d, 2 * head.heads * d
        slopes = torch.zeros(head.heads, head.group, dtype=torch.int64)
        for place, word in ((0, NAN), (queries - 1, MINUS | INFINITY), (queries // 2, 0x7C01)):
            q = _with(script.queries(), place, word)
            assert script.attend(self.mine, 0, q) == Status.NONFINITE
            assert script.attend(self.kept, 0) == Status.OK
        for place in (0, head.heads * head.group - 1):
            slope = _with(slopes, place, INFINITY)
            assert script.attend(self.mine, 0, slope=slope) == Status.NONFINITE
        self.right()
        for place, word in ((0, INFINITY), (rows // 2, NAN), (rows - 1, MINUS | NAN)):
            for op in (Op.APPEND, Op.PREFILL):
                status = _add(script, op, self.mine, 0, _with(script.vectors(), place, word))
                assert status in (Status.NONFINITE, Status.TOKEN_ORDER)
            assert script.append(self.mine, 0) == Status.OK
            self.right()
        script.load(0, script.books(self.cache.pq.entries, 3, 3))  # entries of -8: infinite tables
        for place in (0, queries - 1):
            big = script.queries()
            big.view(-1, d)[place // d] = MOST
            assert script.attend(self.mine, 0, big) == Status.OVERFLOW
        script.load(0, self.full)
        for slope in (0x3400, 0xB400, 0x4900, 0xC900):  # +-0.25, +-10
            assert script.attend(self.mine, 0, slope=slopes + slope) == Status.OK
        self.right()

    def codes(self) -> None:
        """A codebook with fewer entries than codes of K, or of V, of one head; then whole ones."""
        script, cache = self.script, self.cache
        pq, most = cache.pq, cache.pq.entries
        short = Codebooks(
            tuple(Codebook(book.words[:, : most // 2], book.exponent) for book in self.full.k),
            tuple(Codebook(book.words[:, : most // 2], book.exponent) for book in self.full.v),
        )
        for kv in range(2):
            script.free(self.mine)
            script.open()
            script.load(0, short)
            for _ in range(cache.window.sinks):
                script.prefill(self.mine, 0)
            codes = script.codes(most // 2)
            assert script.restore(self.mine, 0, codes) == Status.OK
            assert script.attend(self.mine, 0) == Status.OK
            codes = script.codes(most // 2)
            codes[kv, cache.head.heads - 1, pq.subspaces - 1] = most // 2
            assert script.restore(self.mine, 0, codes) == Status.OK
            assert script.attend(self.mine, 0) == Status.BAD_CODE
            q = _with(script.queries(), 0, NAN)
            assert script.attend(self.mine, 0, q) == Status.NONFINITE
            script.load(0, self.full)
            assert script.attend(self.mine, 0) == Status.OK
            self.right()

    def memory(self) -> None:
        """SLVERR and DECERR of reads and of writes; what failed may be asked again."""
        script, window = self.script, self.cache.window
        for resp, status in ((2, Status.SLAVE_ERROR), (3, Status.DECODE_ERROR)):
            script.fault(resp)
            assert script.attend(self.mine, 0) == status
            assert script.attend(self.kept, 0, _with(script.queries(), 0, NAN)) == Status.NONFINITE
            script.wait()
            script.fault(resp)
            assert script.restore(self.mine, 0) == status
            assert script.prefill(self.mine, 0) == status
            script.wait()
            assert script.restore(self.mine, 0) == Status.OK
            self.right()
            # Codes of recent tokens find no memory; when their places are needed, they must.
            script.fault(resp)
            statuses = [script.append(self.mine, 0) for _ in range(window.recent + 2)]
            assert statuses == [Status.OK] * window.recent + [status] * 2
            script.wait()
            for _ in range(window.recent + 1):
                assert script.append(self.mine, 0) == Status.OK
            self.right()
            script.free(self.mine)
            script.open()
            self.fill(self.mine, 1)
            script.free(self.mine)
            script.open()
            for _ in range(window.sinks):
                script.prefill(self.mine, 0)
            assert script.prefill(self.mine, 0) == Status.OK
            self.right()
            for kv in range(2):  # one side of a token fails, in one head
                for add in (script.restore, script.prefill):
                    page = script.place(self.mine, 0, kv, self.cache.head.heads - 1)
                    script.fault(resp, page, page + self.cache.page_bytes)
                    assert add(self.mine, 0) == status
                    script.wait()
                    assert script.restore(self.mine, 0) == Status.OK
                    assert script.prefill(self.mine, 0) == Status.OK
                    self.right()

    def swaps(self) -> None:
        """Codebooks of another layer are needed while tokens are encoded with these."""
        script, cache = self.script, self.cache
        if cache.layers == 1 or not cache.scope_layers:
            return
        script.load(0, self.full)
        assert script.append(self.mine, 0) == Status.OK
        for _ in range(2 * cache.window.recent + 1):
            script.load(1, script.books(cache.pq.entries))
            script.wait()
            assert script.append(self.mine, 0) == Status.OK
            assert script.attend(self.mine, 1) == Status.EMPTY
            script.load(0, self.full)
            assert script.attend(self.mine, 0) == Status.OK
            script.wait()
        assert script.append(self.mine, 0) == Status.OK
        script.free(self.mine)  # while its tokens are encoded
        assert script.open() == self.mine
        self.fill(self.mine, 1)
        self.right()

    def lengths(self) -> None:
        """Until a sequence is full, and until there are no pages."""
        script, cache = self.script, self.cache
        found = []
        for sequence in range(cache.sequences - 1):
            script.free(sequence)
            script.open()
            for _ in range(cache.window.sinks):
                script.prefill(sequence, 0)
            while not found or found[-1] == Status.OK:
                found.append(script.restore(sequence, 0))
            assert script.append(sequence, 0) == found[-1] or cache.window.recent
            found.append(Status.OK)
            script.wait()
            script.attend(sequence, 0)
            self.right(sequence)
        assert Status.LENGTH_LIMIT in found
        script.wait()
        for layer in range(cache.layers):  # other layers until no page is free
            script.load(layer, self.full)
            for sequence in range(cache.sequences):
                status, count = Status.OK, 0
                while status == Status.OK and count < cache.max_tokens:
                    status = script.append(sequence, layer)
                    count += 1
                script.attend(sequence, layer)
            script.wait()
        script.load(0, self.full)
        script.free(self.mine)
        assert script.open() == self.mine
        self.fill(self.mine, 2)
        assert script.attend(self.mine, 0) == Status.OK
        script.wait()
        last = cache.layers - 1
        if last:  # codebooks of another layer come while queries are under way
            for _ in range(3):
                script.attend(self.mine, 0)
            script.load(last, script.books(2, EXPONENT_MAX, EXPONENT_MAX))
            script.attend(self.mine, 0)
            script.attend(self.kept, last)
            script.attend(self.mine, last)
            script.wait()


def statuses_script(config: MillionAttentionConfig, seed: int):
    """(phases, the (op, status) reached): each status, then requests that are carried out."""
    found = _Statuses(config, seed)
    found.nothing_open()
    found.loads()
    found.order()
    found.words()
    found.codes()
    found.memory()
    found.swaps()
    found.lengths()
    return found.script.done(), found.script.statuses


def grown_script(config: MillionAttentionConfig, seed: int) -> list[dict]:
    """A sequence token by token: queries after each, over no code and over the first ones."""
    script = Script(config, seed)
    window, cache = config.cache.window, config.cache
    script.load(0, script.books(cache.pq.entries, -1, 1))
    for tokens in (window.sinks, window.sinks + 2, 0):
        sequence = script.open()
        for n in range(window.rows + 2 * max(window.block, 1) + 2):
            add = script.prefill if n < tokens else script.append
            assert add(sequence, 0) == Status.OK
            assert script.attend(sequence, 0) == Status.OK
        script.free(sequence)
    return script.done()
