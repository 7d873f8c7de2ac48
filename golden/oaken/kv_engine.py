"""The KV cache request by request: what oaken_kv_engine stores, gives back and answers."""

import dataclasses
import typing
from collections.abc import Callable, Sequence

import torch

from golden.oaken.config import CacheConfig
from golden.oaken.format import SCALE_BYTES, dense_slot, scale_slot, sparse_slot
from golden.oaken.quantize import decode, encode, pack_token, thresholds_valid, unpack_token
from golden.paging.format import Op, PageOp, Status
from golden.paging.pages import PageCommand, PageResponse, PageTable


class Request(typing.NamedTuple):
    """One request; fields that its op does not use are ignored.

    vector: FP16 words of an APPEND, any number. memory: what the memory does to it: OK,
    SLAVE_ERROR, DECODE_ERROR or, for a READ, MALFORMED.
    """

    op: int  # Op
    sequence: int = 0
    layer: int = 0
    kv: int = 0
    head: int = 0
    heads: int = 0
    token: int = 0
    thresholds: Sequence[int] = (0, 0, 0, 0)
    vector: Sequence[int] = ()
    memory: Status = Status.OK


class Answer(typing.NamedTuple):
    """The end of a request. words: of a READ, [head][token][element]; bytes_read: for a READ."""

    status: Status
    sequence: int = 0
    words: tuple[tuple[tuple[int, ...], ...], ...] = ()
    bytes_read: int = 0


@dataclasses.dataclass
class _Vector:
    """Records and decoded words of (sequence, layer, K or V), by token."""

    records: list[list[bytes]] = dataclasses.field(default_factory=list)
    words: list[list[int]] = dataclasses.field(default_factory=list)


class KvEngine:
    """The cache as its user sees it, each request complete before the next.

    OPEN        -> sequence. TABLE_FULL.
    THRESHOLDS  the four words of (layer, K or V) hold from now on. THRESHOLDS: not in order or
                not finite, or some sequence is open.
    APPEND      the vector, quantized, becomes token ``token``. SEQUENCE_UNKNOWN, THRESHOLDS (none
                for this layer), TOKEN_ORDER, LENGTH_LIMIT, VECTOR_LENGTH, NONFINITE, OUT_OF_PAGES.
    READ        -> words: tokens start..``token`` - 1 of ``heads`` heads, decoded.
                SEQUENCE_UNKNOWN, THRESHOLDS, BEYOND_LENGTH, EMPTY.
    TRIM        tokens below ``token`` are forgotten, in all layers. SEQUENCE_UNKNOWN,
                BEYOND_LENGTH: some vector of the sequence has fewer.
    FREE        the sequence and its pages. SEQUENCE_UNKNOWN.

    BAD_REQUEST: no such op, layer or head. The first status that applies, in the order of Status.
    A READ that meets an error or a MALFORMED record gives all its words; here they are those that
    were written. Arithmetic: golden.oaken.quantize; pages: golden.paging.pages.
    scale_tokens: a READ of several heads and more than so many tokens reads the scales once
    per head, which only ``bytes_read`` shows.
    """

    def __init__(self, config: CacheConfig, scale_tokens: int = 1 << 20):
        self.config, self.scale_tokens = config, scale_tokens
        self.table = PageTable(config)
        self._thresholds: dict[tuple[int, int], torch.Tensor] = {}
        self._open: dict[int, int] = {}  # sequence -> first token that is left
        self._vectors: dict[tuple[int, int, int], _Vector] = {}

    @property
    def free_pages(self) -> int:
        return self.table.free_pages

    def bytes_stored(self) -> int:
        """Bytes of all records that are not freed or trimmed."""
        return sum(
            len(record)
            for (sequence, _, _), vector in self._vectors.items()
            for records in vector.records[self._open[sequence] :]
            for record in records
        )

    def records(self, sequence: int, layer: int, kv: int, token: int) -> list[bytes]:
        """The records of one token in slot order."""
        return self._vectors[sequence, layer, kv].records[token]

    def request(self, request: Request) -> Answer:
        """Carry out one request."""
        handlers: dict[int, Callable[[Request], Answer | Status]] = {
            Op.OPEN: self._open_one,
            Op.APPEND: self._append,
            Op.READ: self._read,
            Op.TRIM: self._trim,
            Op.FREE: self._free,
            Op.THRESHOLDS: self._set_thresholds,
        }
        run = handlers.get(request.op)
        answer = run(request) if run else Status.BAD_REQUEST
        return Answer(answer, request.sequence) if isinstance(answer, Status) else answer

    def _pages(self, op: PageOp, request: Request, **fields) -> PageResponse:
        command = PageCommand(op, request.sequence, request.layer, request.kv, token=request.token)
        return self.table.command(command._replace(**fields))

    def _streams(self, op: PageOp, request: Request) -> None:
        """The op on every stream of the sequence."""
        for layer in range(self.config.layers):
            for kv in range(2):
                for slot in range(self.config.kv.slots):
                    answer = self._pages(op, request, layer=layer, kv=kv, slot=slot)
                    assert answer.status == Status.OK, (op, answer)

    def _open_one(self, request: Request) -> Answer:
        answer = self._pages(PageOp.OPEN, request)
        if answer.status == Status.OK:
            self._open[answer.sequence] = 0
        return Answer(answer.status, answer.sequence)

    def _set_thresholds(self, request: Request) -> Status:
        if request.layer >= self.config.layers:
            return Status.BAD_REQUEST
        words = torch.tensor(request.thresholds)
        if self._open or not thresholds_valid(words):
            return Status.THRESHOLDS
        self._thresholds[request.layer, request.kv] = words
        return Status.OK

    def _append(self, request: Request) -> Status:
        kv = self.config.kv
        if request.layer >= self.config.layers:
            return Status.BAD_REQUEST
        if request.sequence not in self._open:
            return Status.SEQUENCE_UNKNOWN
        thresholds = self._thresholds.get((request.layer, request.kv))
        if thresholds is None:
            return Status.THRESHOLDS
        begun = self._pages(PageOp.BEGIN, request)
        if begun.status != Status.OK:
            return begun.status
        status, records = self._quantize(request.vector, thresholds)
        for slot, record in enumerate(records):
            if status == Status.OK:
                status = self._pages(PageOp.EXTEND, request, slot=slot, bytes=len(record)).status
        if status == Status.OK:
            status = request.memory
        self._pages(PageOp.COMMIT if status == Status.OK else PageOp.ABORT, request)
        if status != Status.OK:
            return status
        stored = self._vectors.setdefault((request.sequence, request.layer, request.kv), _Vector())
        stored.records.append(records)
        decoded = decode(unpack_token(records, kv.head_dim, kv.block), thresholds)
        stored.words.append(decoded[0].tolist())
        return Status.OK

    def _quantize(self, vector, thresholds) -> tuple[Status, list[bytes]]:
        kv = self.config.kv
        if len(vector) != kv.elements:
            return Status.VECTOR_LENGTH, []
        encoded = encode(torch.tensor([vector]), thresholds, kv.block)
        if encoded.nonfinite is not None and encoded.nonfinite.any():
            return Status.NONFINITE, []
        return Status.OK, pack_token(encoded, 0, kv.head_dim, kv.block)

    def _read(self, request: Request) -> Answer | Status:
        kv, heads = self.config.kv, range(request.head, request.head + request.heads)
        if request.layer >= self.config.layers or not heads or heads.stop > kv.heads:
            return Status.BAD_REQUEST
        if request.sequence not in self._open:
            return Status.SEQUENCE_UNKNOWN
        if (request.layer, request.kv) not in self._thresholds:
            return Status.THRESHOLDS
        scale = self._pages(PageOp.READ, request, slot=scale_slot(kv.heads))
        if scale.status != Status.OK:
            return scale.status
        tokens = range(self._open[request.sequence], request.token)
        bytes_read = 0
        for head in heads:
            for slot in (dense_slot(head), sparse_slot(head)):
                bytes_read += self._pages(PageOp.READ, request, slot=slot).bytes
        is_split = len(heads) > 1 and len(tokens) > self.scale_tokens
        bytes_read += scale.bytes * (len(heads) if is_split else 1)
        assert scale.bytes == SCALE_BYTES * len(tokens)
        stored = self._vectors[request.sequence, request.layer, request.kv].words
        words = tuple(
            tuple(
                tuple(stored[token][head * kv.head_dim : (head + 1) * kv.head_dim])
                for token in tokens
            )
            for head in heads
        )
        return Answer(request.memory, request.sequence, words, bytes_read)

    def _trim(self, request: Request) -> Status:
        if request.sequence not in self._open:
            return Status.SEQUENCE_UNKNOWN
        for layer in range(self.config.layers):
            for kv in range(2):
                answer = self._pages(PageOp.TRIM_CHECK, request, layer=layer, kv=kv)
                if answer.status != Status.OK:
                    return answer.status
        start = max(self._open[request.sequence], request.token)
        self._pages(PageOp.SET_START, request)
        self._streams(PageOp.TRIM_STREAM, request)
        self._open[request.sequence] = start
        return Status.OK

    def _free(self, request: Request) -> Status:
        if request.sequence not in self._open:
            return Status.SEQUENCE_UNKNOWN
        self._pages(PageOp.CLOSE, request)
        self._streams(PageOp.FREE_STREAM, request)
        self._pages(PageOp.VACATE, request)
        del self._open[request.sequence]
        self._vectors = {
            key: vector for key, vector in self._vectors.items() if key[0] != request.sequence
        }
        return Status.OK
