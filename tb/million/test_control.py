"""MillionControl against golden.million.requests: jobs of the parts, statuses, swaps.

Shown to fail:

- the first sequence or layer beyond the configuration, no entries, an entry too many, an exponent
  of V out of range;
- a refused ATTEND that takes K and V;
- codebooks of a failed LOAD, of another layer, or the old ones where new ones wait;
- a swap that repeats, or before ATTENDs and encoding have ended; a LOAD during another;
- an end of an ATTEND lost in the cycle in which another begins;
- tokens with codes that count as recent; a place that does not wrap, or not after a flush.
"""

import numpy as np
import pytest

from golden.million.config import NAMED, HeadShape, MillionConfig, PqShape, RateShape, WindowShape
from golden.million.format import EXPONENT_MAX, EXPONENT_MIN, Op, Status, paged
from golden.million.requests import Book, Requests
from golden.paging.format import Op as PagingOp
from golden.paging.format import Status as PagingStatus
from golden.words import layout_word
from hdl.million.control import MillionControl, MillionControlConfig
from hdl.million.layouts import REQUEST_LAYOUT, STATUS_LAYOUT
from hdl.million.loader import LOAD_LAYOUT
from hdl.million.verdict import BEGUN_LAYOUT
from hdl.paging.layouts import REQUEST_LAYOUT as PAGING_REQUEST_LAYOUT
from hdl.paging.layouts import STATUS_LAYOUT as PAGING_STATUS_LAYOUT
from tb.simulate.run import simulate

SMALL = PqShape(head_dim=16, subspaces=4, bits=4)
RATE = RateShape(macs=8, keys=2, queries=2, window_macs=8, lanes=8)


def control(window, pq=SMALL, rate=RATE, heads=2, **cache):
    sinks, keep, block = window
    return MillionControlConfig(
        cache=MillionConfig(
            pq=pq, head=HeadShape(heads=heads, group=2),
            window=WindowShape(sinks=sinks, keep=keep, block=block),
            **{"sequences": 2, "layers": 2, "max_tokens": 21, **cache},
        ),
        rate=rate,
    )  # fmt: skip


CONFIGS = {
    "default": MillionControlConfig(),
    "smollm2": control(
        (4, 0, 32), NAMED["4b_64"], RateShape(queries=3), 3, layers=30, max_tokens=100
    ),
    "small": control((2, 3, 4)),
    "flush": control((2, 0, 3)),
    "sliding": control((0, 4, 1)),
    "no_window": control((0, 0, 0)),
    "sinks_alone": control((3, 0, 0), sequences=1, layers=1, max_tokens=9, heads=1),
    "one_for_all": control((2, 1, 2), scope_layers=False, layers=3),
    "largest": control((64, 256, 256), sequences=3, layers=5, heads=5, max_tokens=700),
}
TOKENS = (Op.PREFILL, Op.APPEND, Op.RESTORE)
STREAMS = (
    "request", "status", "page", "paged", "write", "written", "encode", "encoded", "begun",
    "attend", "load",
)  # fmt: skip
MASKED = ("encode", "write", "attend")


class Parts:
    """Answers of the parts, and what the block must ask of them."""

    def __init__(self, rng, config):
        self.rng, self.config = rng, config
        self.words = {name: [] for name in STREAMS}
        self.masks = {name: [] for name in MASKED}
        self.needs = {name: {} for name in ("page", "write", "encode", "load")}
        self.sound: list[bool] = []
        self.requests = Requests(config.cache, self.ask)
        self.op, self.tag = Op.OPEN, 0
        self.fails: bool | None = None  # whether the parts do; None: at times
        self.refused: Status | None = None  # of an ATTEND

    def ask(self, what, **fields):
        return getattr(self, f"_{what}")(**fields)

    def _chance(self, chance) -> int:
        """Whether a part fails."""
        return int(self.rng.random() < chance if self.fails is None else self.fails)

    def _need(self, name, *parts) -> None:
        """The next word of ``name`` comes when these parts are idle."""
        self.needs[name][str(len(self.words[name]))] = parts

    def _put(self, name, layout, junk=(), **fields) -> None:
        """``junk``: fields that the word leaves open."""
        self.words[name].append(layout_word(layout, **fields))
        if name in self.masks:
            width = sum(field.width for _, field in layout)
            mask = (1 << width) - 1
            for each in junk:
                field = layout[each]
                mask &= ~((1 << field.width) - 1 << field.offset)
            self.masks[name].append(mask)

    def _page(self, op, sequence):
        rng, free = self.rng, {*range(self.config.cache.sequences)} - self.requests.open
        if op == Op.FREE:
            self._need("page", "encoded", "attended")
        found, status = sequence, PagingStatus.OK
        if op == Op.OPEN:
            found = int(rng.choice(sorted(free))) if free else 0
            status = PagingStatus.OK if free else PagingStatus.TABLE_FULL
        if self.fails is None and rng.random() < 0.15:
            status = PagingStatus(int(rng.integers(1, len(PagingStatus))))
        paging = PagingOp.FREE if op == Op.FREE else PagingOp.OPEN
        self._put("page", PAGING_REQUEST_LAYOUT, op=paging, sequence=sequence)
        self._put(
            "paged", PAGING_STATUS_LAYOUT, tag=int(rng.integers(256)), op=int(rng.integers(4)),
            status=status, sequence=found,
        )  # fmt: skip
        return paged(status), found

    def _load(self, book):
        self._need("load", "loaded")
        self._put(
            "load", LOAD_LAYOUT, tag=self.tag, sequence=self.sequence, entries=book.entries,
            exponent_k=book.exponent_k, exponent_v=book.exponent_v,
        )  # fmt: skip
        self.sound.append(bool(self._chance(0.2) == 0))
        return self.sound[-1]

    def _slot(self, sequence, layer):
        cache = self.config.cache
        vector = sequence * cache.layers + layer
        return vector, vector * cache.head.heads

    def _write(self, sequence, layer, row, refused):
        cache, layout = self.config.cache, self.config.writer.job_layout
        nonfinite = self._chance(0.15)
        if refused:
            self._put("write", layout, junk=("slot", "row"), discard=1)
        else:
            is_direct = self.op == Op.PREFILL or not cache.window.recent
            self._need("write", "attended", *["encoded"] * is_direct)
            slot = self._slot(sequence, layer)[1]
            self._put("write", layout, discard=0, slot=slot, row=row)
        self.words["written"].append(nonfinite)
        return nonfinite

    def _encode(self, job, book, waits):
        layout = self.config.encode.job_layout
        names = [name for name, _ in layout]
        if waits or job.clear:
            self._need("encode", "encoded")
        vector, slot = self._slot(job.sequence, job.layer)
        kinds = {name: int(getattr(job, name)) for name in ("clear", "restored", "discard")}
        if job.clear:
            fields = {"vector": vector}
        elif job.discard:
            fields = {}
        else:
            fields = {
                "vector": vector, "sequence": job.sequence, "layer": job.layer, "slot": slot,
                "until": job.until, "entries": book.entries, "exponent_k": book.exponent_k,
                "exponent_v": book.exponent_v,
            }  # fmt: skip
        junk = [name for name in names if name not in {**fields, **kinds}]
        self._put("encode", layout, junk=junk, **fields, **kinds)
        status = Status.OK
        if self._chance(0.2):
            some = (Status.OUT_OF_PAGES, Status.SLAVE_ERROR, Status.DECODE_ERROR)
            status = some[0 if self.fails else int(self.rng.choice(3, p=(0.6, 0.2, 0.2)))]
        self.words["encoded"].append(int(status))
        return Status.OK if job.discard else status

    def _attend(self, sequence, layer, book, refused, **fields):
        layout = self.config.attend.job_layout
        self.refused = refused
        self._put("begun", BEGUN_LAYOUT, tag=self.tag, sequence=sequence, refused=refused)
        if refused:
            junk = [name for name, _ in layout if name != "discard"]
            self._put("attend", layout, junk=junk, discard=1)
            return
        self._put(
            "attend", layout, discard=0, sequence=sequence, layer=layer,
            slot=self._slot(sequence, layer)[1], entries=book.entries, exponent_k=book.exponent_k,
            exponent_v=book.exponent_v, **fields,
        )  # fmt: skip

    def run(self, op, sequence, layer, book) -> Status | None:
        """One request; the status that the block gives, None if another part ends it."""
        self.op, self.sequence, self.tag = op, sequence, int(self.rng.integers(256))
        self.words["request"].append(
            layout_word(
                REQUEST_LAYOUT, op=op, tag=self.tag, sequence=sequence, layer=layer,
                entries=book.entries, exponent_k=book.exponent_k, exponent_v=book.exponent_v,
            )
        )  # fmt: skip
        status, found = self.requests.run(op, sequence, layer, book)
        if status is not None:
            self.words["status"].append(
                layout_word(STATUS_LAYOUT, tag=self.tag, op=op, status=status, sequence=found)
            )
        return status


def book_of(rng, cache, layer, sound=True):
    """A LOAD's fields; not sound: one of them is out of range."""
    entries = int(rng.choice([1, cache.pq.entries, rng.integers(1, cache.pq.entries + 1)]))
    k, v = (int(rng.choice([EXPONENT_MIN, EXPONENT_MAX, 0, 3])) for _ in range(2))
    if sound:
        return layer, Book(layer, entries, k, v)
    wrong = int(rng.integers(5))
    layer = (cache.layers if rng.random() < 0.5 else 255) if wrong == 0 else layer
    entries = {1: 0, 2: cache.pq.entries + 1}.get(wrong, entries)
    k, v = (EXPONENT_MIN - 1 if wrong == 3 else k), (EXPONENT_MIN - 1 if wrong == 4 else v)
    return layer, Book(layer, entries, k, v)


def refusals(parts, cache):
    """Each op refused in each way, and carried out."""
    requests, parts.fails = parts.requests, False
    ops, sinks = (*TOKENS, Op.ATTEND), cache.window.sinks
    beyond = [(cache.sequences, 0), (255, 0), (0, cache.layers), (0, 255)]
    yield from ((op, *where) for op in ops for where in beyond)
    yield from ((op, 0, 0) for op in (*ops, Op.FREE))  # never opened
    yield from ((Op.OPEN, 255, 255) for _ in range(cache.sequences + 1))
    yield from ((op, 0, 0) for op in ops)  # no codebook
    yield from ((op, 0, 0) for op in (Op.LOAD, Op.ATTEND, Op.RESTORE))
    parts.fails = True
    yield from ((op, 0, 0) for op in (Op.PREFILL, Op.APPEND))
    parts.fails = False
    yield from ((Op.PREFILL, 0, 0) for _ in range(sinks))
    parts.fails = True
    yield Op.RESTORE, 0, 0
    parts.fails = False
    yield from ((op, 0, 0) for op in (Op.RESTORE, Op.ATTEND, Op.APPEND, Op.PREFILL, Op.RESTORE))
    yield from ((op, 0, 0) for op in (Op.FREE, Op.OPEN, Op.LOAD))
    if cache.max_tokens < 50:
        sequence = min(requests.open)
        tokens = requests.layers[sequence, 0]
        yield from ((Op.PREFILL, sequence, 0) for _ in range(sinks))
        while tokens.tokens < cache.max_tokens:
            yield (Op.RESTORE if tokens.tokens % 2 else Op.PREFILL), sequence, 0
        yield from ((op, sequence, 0) for op in ops)
    yield from ((Op.FREE, sequence, 9) for sequence in (cache.sequences, 255, 0, 0))
    parts.fails = None


def full_window(parts, cache):
    """Appends as many recent tokens as the window has, and the token after them."""
    requests, parts.fails = parts.requests, False
    yield Op.OPEN, 0, 0
    sequence = max(requests.open)
    tokens = requests.layers[sequence, 0]
    yield Op.LOAD, sequence, 0
    while tokens.tokens < min(cache.window.rows, cache.max_tokens):
        yield Op.APPEND, sequence, 0
    yield from ((op, sequence, 0) for op in (Op.ATTEND, Op.APPEND, Op.ATTEND))
    yield Op.FREE, sequence, 0
    parts.fails = None


def plan(rng, parts, cache, count):
    """(op, sequence, layer): an op several times for a (sequence, layer), then another."""
    yield from refusals(parts, cache)
    yield from full_window(parts, cache)
    requests = parts.requests
    ops = [*[Op.APPEND] * 5, *[Op.PREFILL] * 2, *[Op.RESTORE] * 3, *[Op.ATTEND] * 3, Op.FREE, 7, 15]
    sequence = layer = 0
    while count > 0:
        if len(requests.open) < cache.sequences and rng.random() < 0.4:
            yield Op.OPEN, int(rng.integers(256)), int(rng.integers(256))
        if rng.random() < 0.5:
            sequence = int(rng.choice([*requests.open, cache.sequences - 1, 0]))
            layer = int(rng.choice([0, cache.layers - 1, rng.integers(min(cache.layers, 3))]))
        present = requests.present
        serves = present and (present.layer == layer or not cache.scope_layers)
        if rng.random() < (0.1 if serves else 0.8):
            yield Op.LOAD, int(rng.integers(256)), layer
        op = int(rng.choice(ops))
        times = int(rng.integers(1, 9)) if op < 7 and op != Op.FREE else 1
        beyond = [int(rng.choice([top, 255])) for top in (cache.sequences, cache.layers)]
        kinds = rng.choice(["plain", "load", "open", "sequence", "layer"], times,
                           p=[0.94, 0.01, 0.01, 0.02, 0.02])  # fmt: skip
        for kind in kinds:
            yield (
                {"load": Op.LOAD, "open": Op.OPEN}.get(kind, op),
                beyond[0] if kind == "sequence" else sequence,
                beyond[1] if kind == "layer" else layer,
            )
        count -= times


def expected(cache):
    """Statuses by op; None: another part ends the request."""
    ok, window = Status.OK, cache.window
    refused = {Status.BAD_REQUEST, Status.SEQUENCE_UNKNOWN, Status.NO_CODEBOOK}
    ends = {ok, *refused, *[Status.LENGTH_LIMIT] * (cache.max_tokens < 50)}
    order = {Status.TOKEN_ORDER}
    return {
        Op.OPEN: {ok, Status.TABLE_FULL},
        Op.PREFILL: {*ends, Status.NONFINITE, *(order if window.recent else ())},
        Op.APPEND: {*ends, Status.NONFINITE},
        Op.RESTORE: {*ends, Status.OUT_OF_PAGES, *(order if window.rows else ())},
        Op.ATTEND: {ok, *refused, Status.EMPTY},
        Op.FREE: {ok, Status.BAD_REQUEST, Status.SEQUENCE_UNKNOWN},
        Op.LOAD: {None, Status.BAD_REQUEST},
    }


def control_vectors(block, seed, count):
    config = block.config
    cache, timing = config.cache, block.timing
    rng = np.random.default_rng([seed, 152])
    parts = Parts(rng, config)
    requests = parts.requests
    packets = {name: [] for name in STREAMS}
    swaps, attends, seen = [], [], {op: set() for op in Op}
    for n, (op, sequence, layer) in enumerate(plan(rng, parts, cache, count)):
        layer, book = (
            book_of(rng, cache, layer, sound=parts.fails is False or rng.random() < 0.7)
            if op == Op.LOAD
            else (layer, book_of(rng, cache, layer)[1])
        )
        waiting, before = requests.waiting, requests.present
        parts.refused = None
        status = parts.run(op, sequence, layer, book)
        if requests.present is not before:
            swaps.append(n)
        if op == Op.ATTEND and parts.refused in (Status.OK, Status.EMPTY):
            attends += [(n, len(parts.words["begun"]) - 1)] * (requests.waiting is waiting)
        if op in seen:
            seen[op].add(parts.refused if op == Op.ATTEND else status)
        for name in STREAMS:
            packets[name].append(len(parts.words[name]))
    vectors = {
        name: np.array([list(word.to_bytes(24, "little")) for word in words], dtype=np.uint8)
        for name, words in (
            *parts.words.items(),
            *((f"mask_{k}", w) for k, w in parts.masks.items()),
        )
    }
    params = {
        "packets": packets, "needs": parts.needs, "sound": parts.sound, "swaps": swaps,
        "attends": attends, "timing": [timing.latency, int(timing.interval)], "some": 90,
    }  # fmt: skip
    for op, statuses in expected(cache).items():
        assert statuses <= seen[op], f"{op.name}: no request ends with {statuses - seen[op]}"
    return vectors, params


@pytest.mark.telling("small", "flush", "one_for_all")
@pytest.mark.parametrize("name", CONFIGS)
def test_control(name, seed):
    block = MillionControl(CONFIGS[name])
    count = 1800 if name == "largest" else 500
    vectors, params = control_vectors(block, seed, count)
    simulate(block, "tb.million.tb_control", vectors=vectors, params=params, seed=seed)
