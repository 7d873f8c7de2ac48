"""Requests to million_attention with what golden answers, for its benches.

A script is a list of phases. The requests of a phase are offered one after the other. The next
phase starts when all their statuses have come and no token is being encoded.
"""

import random

import numpy as np
import torch

from golden.index.codes import pack
from golden.million.attention import Codebook
from golden.million.cache import Cache, Codebooks
from golden.million.format import EXPONENT_MAX, EXPONENT_MIN, Op, Status
from golden.million.vectors.words import INFINITY, MINUS, NAN, ONE, normal
from golden.paging.format import PageOp
from golden.paging.format import Status as PagingStatus
from golden.paging.pages import PageCommand
from golden.words import layout_field, layout_word

_STREAMS = ("kv", "query", "codebook", "restored", "o")
_SPECIAL = (INFINITY, MINUS | INFINITY, NAN, 0xFFFF)


class Script:
    """Phases of requests and what must come of them; golden runs along."""

    def __init__(self, config, seed: int, base: int = 0):
        self.config, self.base = config, base
        self.rng = random.Random(f"million {seed}")
        self.words = np.random.default_rng(self.rng.getrandbits(32))
        self.faults: list[tuple[int, int, int]] = []
        self.golden = Cache(config.cache, config.data_bits, self._respond)
        self.phases: list[dict] = []
        self.statuses: set[tuple[Op, Status]] = set()
        self.wait()

    def _respond(self, address: int, is_write: bool) -> int:
        at = address + self.base
        return max((resp for low, high, resp in self.faults if low <= at < high), default=0)

    def wait(self) -> None:
        """Begins a phase: it starts when all before is complete, and memory is sound again."""
        if self.phases and not self.phases[-1]["requests"]:
            return
        if self.phases:
            self.phases[-1]["free_pages"] = self.golden.mmu.free_pages
        self.faults = []
        self.phases.append(
            {"requests": [], "faults": self.faults, "free_pages": 0}
            | {name: [] for name in _STREAMS}
        )

    def done(self) -> list[dict]:
        self.wait()
        return self.phases[:-1]

    def fault(self, response: int, low: int = 0, high: int = 1 << 40) -> None:
        """Lets beats at low <= address < high be answered ``response`` in this phase."""
        self.faults.append((low, high, response))

    def place(self, sequence: int, layer: int, kv: int, head: int) -> int:
        """Address of the page of the first token's codes of a KV head."""
        answer = self.golden.mmu.table.command(
            PageCommand(PageOp.READ, sequence, layer, kv, head, 1)
        )
        assert answer.status == PagingStatus.OK
        return self.base + answer.page * self.config.cache.page_bytes

    def _request(self, op: int, status: Status, opened: int | None = None, **fields) -> Status:
        """``opened``: the sequence of the status, where it is not the request's own."""
        layout, tag = self.config.request_layout, self.rng.getrandbits(8)
        payload = self.rng.getrandbits(layout.size)  # unused fields are junk
        for name, value in {**fields, "op": int(op), "tag": tag}.items():
            field = layout[name]
            payload &= ~((1 << field.width) - 1 << field.offset)
            payload |= layout_word(layout, **{name: value})
        sequence = opened
        if opened is None:
            sequence = layout_field(layout, payload, "sequence")
        end = layout_word(
            self.config.status_layout, tag=tag, op=int(op), status=status, sequence=sequence
        )
        self.phases[-1]["requests"].append({"op": int(op), "payload": payload, "status": end})
        if op in list(Op):
            self.statuses.add((Op(op), status))
        return status

    def _beats(self, stream: str, layout, words, **fields) -> None:
        """(..., elements) words as beats of ``stream``."""
        lanes = self.config.rate.lanes
        flat = np.asarray(words).reshape(-1, lanes).tolist()
        self.phases[-1][stream] += [layout_word(layout, word=beat, **fields) for beat in flat]

    # Whole requests by name; random words where none are given.
    def unknown(self, op: int) -> Status:
        return self._request(op, Status.BAD_REQUEST)

    def open(self) -> int:
        status, sequence = self.golden.open()
        self._request(Op.OPEN, status, opened=sequence if status == Status.OK else None)
        return sequence if status == Status.OK else -1

    def free(self, sequence: int) -> Status:
        return self._request(Op.FREE, self.golden.free(sequence), sequence=sequence)

    def books(self, entries: int, low: int = 0, high: int = 0) -> Codebooks:
        """Random codebooks of exponents low..high; the first entries of each are corners."""
        pq, rng = self.config.cache.pq, self.words
        sides = []
        for _ in range(2):
            exponent = int(rng.integers(low, high + 1))
            books = []
            for _ in range(self.config.cache.books):
                words = normal(rng, pq.subspaces, entries, pq.sub, width=0.4) & 0x7FFF
                words = np.minimum(words, ONE) | rng.integers(0, 2, words.shape) << 15
                for row, word in enumerate((0, MINUS | ONE, 1)[: entries - 1]):
                    words[:, row] = word
                books.append(Codebook(torch.from_numpy(words), exponent))
            sides.append(tuple(books))
        return Codebooks(*sides)

    def load(self, layer: int, books: Codebooks, wrong: dict | None = None) -> Status:
        """A LOAD; ``wrong``: place in the words of K and then V -> word."""
        config = self.config.cache
        entries = books.k[0].words.shape[1]
        fields = {"layer": layer, "entries": entries,
                  "exponent_k": books.k[0].exponent, "exponent_v": books.v[0].exponent}  # fmt: skip
        exponents = (books.k[0].exponent, books.v[0].exponent)
        if min(exponents) < EXPONENT_MIN or entries == 0:
            return self._request(Op.LOAD, Status.BAD_REQUEST, **fields)
        status = self.golden.load(layer, books)
        if status == Status.OK:
            rows = [
                book.words.permute(1, 0, 2).reshape(-1).numpy() for book in (*books.k, *books.v)
            ]
            words = np.concatenate(rows)
            for place, word in (wrong or {}).items():
                words[place] = word
                magnitude = word & 0x7FFF
                if magnitude >= INFINITY:
                    status = Status.NONFINITE
                elif magnitude > ONE and status == Status.OK:
                    status = Status.BAD_REQUEST
            if status != Status.OK:
                self.golden.waiting = None  # the buffer holds nothing that is sound
            self._beats("codebook", self.config.loader.codebook_layout, words)
        assert (
            layer >= config.layers
            or status != Status.BAD_REQUEST
            or wrong
            or (entries > config.pq.entries)
        )
        return self._request(Op.LOAD, status, **fields)

    def vectors(self, width: float = 1.0) -> torch.Tensor:
        """(2, heads, d) words of a token."""
        cache = self.config.cache
        return torch.from_numpy(
            normal(self.words, 2, cache.head.heads, cache.pq.head_dim, width=width)
        )

    def _add(self, op: Op, sequence: int, layer: int, kv) -> Status:
        kv = self.vectors() if kv is None else kv
        add = self.golden.prefill if op == Op.PREFILL else self.golden.append
        self._beats("kv", self.config.control.writer.kv_layout, kv)
        return self._request(op, add(sequence, layer, kv[0], kv[1]), sequence=sequence, layer=layer)

    def prefill(self, sequence: int, layer: int, kv=None) -> Status:
        return self._add(Op.PREFILL, sequence, layer, kv)

    def append(self, sequence: int, layer: int, kv=None) -> Status:
        return self._add(Op.APPEND, sequence, layer, kv)

    def codes(self, entries: int = 0) -> torch.Tensor:
        """(2, heads, M) codes of a token, below ``entries``; 0: any."""
        cache = self.config.cache
        shape = (2, cache.head.heads, cache.pq.subspaces)
        return torch.from_numpy(self.words.integers(0, entries or cache.pq.entries, shape))

    def restore(self, sequence: int, layer: int, codes=None) -> Status:
        codes = self.codes() if codes is None else codes
        word_bytes, bits = self.config.data_bits // 8, self.config.cache.pq.bits
        for record in pack(codes.reshape(-1, codes.shape[-1]), bits).tolist():
            self.phases[-1]["restored"] += [
                int.from_bytes(bytes(record[at : at + word_bytes]), "little")
                for at in range(0, len(record), word_bytes)
            ]
        status = self.golden.restore(sequence, layer, codes[0], codes[1])
        return self._request(Op.RESTORE, status, sequence=sequence, layer=layer)

    def queries(self, width: float = 0.3) -> torch.Tensor:
        """(heads, group, d) words."""
        head, pq = self.config.cache.head, self.config.cache.pq
        return torch.from_numpy(
            normal(self.words, head.heads, head.group, pq.head_dim, width=width)
        )

    def attend(self, sequence: int, layer: int, q=None, slope=None) -> Status:
        head = self.config.cache.head
        q = self.queries() if q is None else q
        if slope is None:
            width = self.rng.choice((0, 0.05))
            slope = torch.from_numpy(normal(self.words, head.heads, head.group, width=width))
        status, o = self.golden.attend(sequence, layer, q, slope)
        layout = self.config.query_layout
        for h in range(head.heads):
            for g in range(head.group):
                self._beats("query", layout, q[h, g], slope=int(slope[h, g]))
        if o is not None:
            self._outputs(o)
        return self._request(Op.ATTEND, status, sequence=sequence, layer=layer)

    def _outputs(self, o: torch.Tensor) -> None:
        """(heads, group, d) words as beats, ``last`` with the last of each group of queries."""
        group, queries = self.config.cache.head.group, self.config.rate.queries
        lanes = self.config.rate.lanes
        layout = self.config.o_layout
        for head in o.tolist():
            for g, words in enumerate(head):
                ends = g == group - 1 or g % queries == queries - 1
                beats = [words[at : at + lanes] for at in range(0, len(words), lanes)]
                self.phases[-1]["o"] += [
                    layout_word(layout, word=beat, last=ends and n == len(beats) - 1)
                    for n, beat in enumerate(beats)
                ]


def spoilt(script: Script, words: torch.Tensor) -> torch.Tensor:
    """``words`` with a NaN or an infinity somewhere."""
    found = words.clone()
    found.view(-1)[script.rng.randrange(found.numel())] = script.rng.choice(_SPECIAL)
    return found


def random_script(
    config, seed: int, phases: int, faults: float = 0.15
) -> list[dict]:
    """Tokens and queries of several sequences and layers side by side, wrong ones among them."""
    script = Script(config, seed)
    rng, cache = script.rng, config.cache
    entries = cache.pq.entries

    def load(layer: int) -> None:
        count = rng.choice((*[entries] * 6, rng.randrange(1, entries), 1))
        books = script.books(count, *rng.choice(((0, 0), (-2, 3), (EXPONENT_MIN, EXPONENT_MAX))))
        places = 2 * cache.books * count * cache.pq.head_dim
        wrong = {}
        if rng.random() < 0.1:
            wrong = {rng.randrange(places): rng.choice((*_SPECIAL, ONE + 1, MINUS | ONE + 1))}
        script.load(layer, books, wrong)

    def some(limit: int) -> int:
        """Mostly below ``limit``."""
        return limit + rng.randrange(3) if rng.random() < 0.04 else rng.randrange(limit)

    def request(layer: int) -> None:
        sequence, draw = some(cache.sequences), rng.random()
        layer = some(cache.layers) if draw < 0.05 else layer
        present = script.golden.present
        if draw < 0.3:
            kv = script.vectors(rng.choice((1.0, 1.0, 0.1, 100.0)))
            script.append(sequence, layer, spoilt(script, kv) if rng.random() < 0.05 else kv)
        elif draw < 0.45:
            kv = script.vectors()
            script.prefill(sequence, layer, spoilt(script, kv) if rng.random() < 0.05 else kv)
        elif draw < 0.57:
            count = present[1].k[0].words.shape[1] if present else 0
            script.restore(sequence, layer, script.codes(count if rng.random() < 0.9 else 0))
        elif draw < 0.9:
            q = script.queries(rng.choice((0.3, 0.3, 2.0, 300.0)))
            script.attend(sequence, layer, spoilt(script, q) if rng.random() < 0.05 else q)
        elif draw < 0.93:
            script.free(sequence)
            if rng.random() < 0.8:
                script.open()
        elif draw < 0.94:
            script.open()
        elif draw < 0.95:
            script.unknown(rng.randrange(len(Op), 16))
        elif draw < 0.96:
            script.load(cache.layers + rng.randrange(4), script.books(1))
        else:
            load(layer)

    for _ in range(cache.sequences):
        script.open()
    for phase in range(phases):
        layer = phase % cache.layers
        if len(script.golden.open_sequences) < cache.sequences and rng.random() < 0.8:
            script.open()
        if rng.random() < 0.9:
            load(layer)
        if phase and rng.random() < faults:
            low = rng.randrange(cache.pages) * cache.page_bytes
            script.fault(rng.choice((2, 3)), low, low + 4 * cache.page_bytes)
        for _ in range(rng.randrange(4, 24)):
            request(layer)
        if rng.random() < 0.4:  # a train of queries
            for _ in range(rng.randrange(2, 6)):
                script.attend(rng.randrange(cache.sequences), layer)
        script.wait()
    return script.done()


def rates_script(
    config, seed: int, codes: int = 3, attends: int = 5
) -> list[dict]:
    """All exact rows and some codes of one layer, whole codebooks; then ATTENDs.

    One is alone, and in the last phase there is a train of them.
    """
    script = Script(config, seed)
    window = config.cache.window
    sequence = script.open()
    script.load(0, script.books(config.cache.pq.entries))
    script.wait()
    for _ in range(window.sinks):
        assert script.prefill(sequence, 0) == Status.OK
    for _ in range(codes):
        assert script.restore(sequence, 0) == Status.OK
    for _ in range(window.recent):
        assert script.append(sequence, 0) == Status.OK
    script.wait()
    assert script.attend(sequence, 0) == Status.OK
    script.wait()
    for _ in range(attends):
        assert script.attend(sequence, 0) == Status.OK
    return script.done()
