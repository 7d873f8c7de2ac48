"""The KV cache request by request: what oaken_kv_engine stores, gives back and answers."""

import dataclasses
import typing
from collections.abc import Callable, Sequence

import torch

from golden.oaken.config import CacheConfig
from golden.oaken.format import SCALE_BYTES, dense_slot, scale_slot, sparse_slot
from golden.oaken.quantize import (
    decode,
    encode,
    pack_groups,
    pack_token,
    thresholds_valid,
    unpack_groups,
    unpack_token,
)
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
    """The end of a request. words: of a READ, [part][token][element]; bytes_read: for a READ.

    A part is a head; in order token it is a group of heads.
    """

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
    FORK        -> sequence: a new one, which has the first ``token`` tokens of another: all that it
                has. SEQUENCE_UNKNOWN, BAD_REQUEST: it is itself the child of a FORK. TABLE_FULL,
                BEYOND_LENGTH, TOKEN_ORDER: some vector is longer. OUT_OF_PAGES. Without
                ``forks`` of the cache no such op.

    In order token, ``head`` and ``heads`` of a READ name whole groups; its words come group by
    group, and of each group token by token.

    BAD_REQUEST: no such op, layer or head; no whole groups. The first status that applies, in the
    order of Status.
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

    def tokens(self, sequence: int, layer: int, kv: int) -> int:
        """Tokens of a vector of a sequence, those that were trimmed included; 0: none, not open."""
        found = self._vectors.get((sequence, layer, kv))
        return len(found.words) if found else 0

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
        if self.config.forks:
            handlers[Op.FORK] = self._fork
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
        if kv.is_by_token:
            unpacked = unpack_groups(records, kv.elements, kv.block)
        else:
            unpacked = unpack_token(records, kv.head_dim, kv.block)
        decoded = decode(unpacked, thresholds)
        stored.words.append(decoded[0].tolist())
        return Status.OK

    def _quantize(self, vector, thresholds) -> tuple[Status, list[bytes]]:
        kv = self.config.kv
        if len(vector) != kv.elements:
            return Status.VECTOR_LENGTH, []
        encoded = encode(torch.tensor([vector]), thresholds, kv.block)
        if encoded.nonfinite is not None and encoded.nonfinite.any():
            return Status.NONFINITE, []
        if kv.is_by_token:
            return Status.OK, pack_groups(encoded, 0, kv.groups, kv.block)
        return Status.OK, pack_token(encoded, 0, kv.head_dim, kv.block)

    def _read(self, request: Request) -> Answer | Status:
        kv, heads = self.config.kv, range(request.head, request.head + request.heads)
        if request.layer >= self.config.layers or not heads or heads.stop > kv.heads:
            return Status.BAD_REQUEST
        if heads.start % kv.part_heads or heads.stop % kv.part_heads:
            return Status.BAD_REQUEST
        if request.sequence not in self._open:
            return Status.SEQUENCE_UNKNOWN
        if (request.layer, request.kv) not in self._thresholds:
            return Status.THRESHOLDS
        found = self._pages(PageOp.READ, request)
        if found.status != Status.OK:
            return found.status
        tokens = range(self._open[request.sequence], request.token)
        parts = range(heads.start // kv.part_heads, heads.stop // kv.part_heads)
        if kv.is_by_token:
            bytes_read = sum(self._pages(PageOp.READ, request, slot=part).bytes for part in parts)
        else:
            bytes_read = self._bytes_by_head(request, heads, len(tokens))
        stored = self._vectors[request.sequence, request.layer, request.kv].words
        size = kv.part_heads * kv.head_dim
        words = tuple(
            tuple(tuple(stored[token][part * size : (part + 1) * size]) for token in tokens)
            for part in parts
        )
        return Answer(request.memory, request.sequence, words, bytes_read)

    def _bytes_by_head(self, request: Request, heads: range, tokens: int) -> int:
        """Bytes that a READ in order head reads."""
        scale = self._pages(PageOp.READ, request, slot=scale_slot(self.config.kv.heads))
        assert scale.bytes == SCALE_BYTES * tokens
        is_split = len(heads) > 1 and tokens > self.scale_tokens
        bytes_read = scale.bytes * (len(heads) if is_split else 1)
        for head in heads:
            for slot in (dense_slot(head), sparse_slot(head)):
                bytes_read += self._pages(PageOp.READ, request, slot=slot).bytes
        return bytes_read

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

    def _fork(self, request: Request) -> Answer | Status:
        begun = self._pages(PageOp.FORK, request)
        if begun.status != Status.OK:
            return begun.status
        found = PageResponse(skip=1)
        while found.skip:
            found = self._pages(PageOp.FORK_STREAM, request)
        status, child = found.status or request.memory, begun.sequence
        if status != Status.OK:
            self._give_back(request._replace(sequence=child))
            return status
        self._pages(PageOp.FORK_END, request)
        self._open[child] = self._open[request.sequence]
        for (sequence, layer, kv), vector in list(self._vectors.items()):
            if sequence == request.sequence:
                copy = _Vector([*vector.records], [*vector.words])
                self._vectors[child, layer, kv] = copy
        return Answer(Status.OK, child)

    def _give_back(self, request: Request) -> None:
        self._pages(PageOp.CLOSE, request)
        self._streams(PageOp.FREE_STREAM, request)
        self._pages(PageOp.VACATE, request)

    def _free(self, request: Request) -> Status:
        if request.sequence not in self._open:
            return Status.SEQUENCE_UNKNOWN
        self._give_back(request)
        del self._open[request.sequence]
        self._vectors = {
            key: vector for key, vector in self._vectors.items() if key[0] != request.sequence
        }
        return Status.OK
