"""The unit CACHE of the accelerator: K and V in Oaken's paged cache, and attention over them.

Words are FP16 bit patterns, int64.

    APPEND   a vector becomes the next K or V of a sequence: golden.oaken.kv_engine
    ATTEND   o = softmax(q K^T) V over the tokens of a sequence up to the query's own, or over the
             latest of them: golden.attention.stream; q has the scaling in it. Scores may have
             a cap, and query heads a sink

All sums of ATTEND are exact. So the tokens may come in any order, and a token's words do not depend
on the others of its batch.

The cache may have several engines. Each has equally many KV heads of every vector, in order, and
pages of its own. It quantizes its heads as a vector: they have scales of their own. Thresholds are
those of all.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from golden.attention.stream import attend
from golden.fp16.format import FP16
from golden.kllm.engines import Sampling
from golden.kllm.isa import CACHE_STATUS, CommandStatus
from golden.oaken.attention import PLAIN, Rules
from golden.oaken.attention_array import rules_of_parts, undo_fork
from golden.oaken.config import CacheConfig
from golden.oaken.kv_engine import Answer, KvEngine, Request
from golden.paging.format import Kv, Op, Status


@dataclasses.dataclass(frozen=True)
class Place:
    """A place of the batch: a token's sequence, its position there, and its id for LOAD_AT.

    sampling : how TOP_K chooses what follows it; None: the largest logit
    """

    sequence: int
    position: int
    token: int = 0
    sampling: Sampling | None = None


@dataclasses.dataclass(frozen=True)
class Part:
    """The result of one engine of an ATTEND.

    words: None: refused before memory was read; is_nonfinite: a query has no result
    """

    words: Tensor | None
    status: Status
    is_nonfinite: bool = False


def first_fault(statuses: Sequence[Status]) -> Status:
    """The first that is not OK."""
    return next(filter(None, statuses), Status.OK)


class CacheUnit:
    """The cache, and the batch that its commands serve.

    batch : a ``Place`` for each token of a command, None where there is no token. The host writes
        it before a step
    memory : of each engine, what its memory does to the requests that follow: ``Request.memory``

    A command does its tokens in order, and its status has the bits of all of them. A place without
    a token takes nothing, and ATTEND gives it zeros.

    Every engine carries out every request, whatever the others answer. The status is the first
    that is not OK, in the order of the engines. So an APPEND may leave a token in some engines
    alone. Until the others have it, ATTEND is refused in those. APPEND of the same token is
    TOKEN_ORDER where it is, and goes into the others. TRIM is refused where a vector is too short,
    and repeating it later trims those too. FREE frees the sequence in all engines, whatever they
    have. OPEN, FREE and THRESHOLDS end alike in all. A FORK that fails in some is undone in the
    others. So all have the same sequences.
    """

    def __init__(self, config: CacheConfig, places: int, engines: int = 1) -> None:
        self.config, self.part = config, config.part(engines)
        self.engines = [KvEngine(self.part) for _ in range(engines)]
        self.batch: list[Place | None] = [None] * places
        self.memory = [Status.OK] * engines

    def request(self, request: Request) -> Answer:
        """A request of the host, such as OPEN, FORK or FREE; of APPEND each its elements."""
        size = self.part.kv.elements
        vectors = (request.vector[n * size : (n + 1) * size] for n in range(len(self.engines)))
        answers = [
            engine.request(request._replace(vector=vector, memory=request.memory or memory))
            for engine, vector, memory in zip(self.engines, vectors, self.memory, strict=True)
        ]
        if request.op == Op.FORK:
            undo_fork(self.engines, answers)
        return next((answer for answer in answers if answer.status), answers[0])

    def tokens(self, sequence: int, layer: int, kv: int) -> int:
        """Tokens of a vector that all engines have, those that were trimmed included."""
        return min(engine.tokens(sequence, layer, kv) for engine in self.engines)

    def begin(self, thresholds: Tensor) -> None:
        """Sets (layers, 2, 4) words of thresholds; ValueError: the cache refuses them."""
        for layer, sides in enumerate(thresholds.tolist()):
            for kv, words in zip(Kv, sides, strict=True):
                request = Request(Op.THRESHOLDS, layer=layer, kv=kv, thresholds=words)
                status = self.request(request).status
                if status:
                    raise ValueError(f"thresholds of layer {layer}, {kv.name}: {status.name}")

    def append(self, x: Sequence[Tensor], layer: int, kv: int, place: int = 0) -> CommandStatus:
        """``x``: vectors of the places from ``place`` on, (heads * head_dim,) each."""
        status = CommandStatus(0)
        for at, vector in zip(self.batch[place:], x, strict=False):
            if at is None:
                continue
            statuses = [
                self._request(n, Op.APPEND, at.position, at, layer, kv, part.tolist()).status
                for n, part in enumerate(vector.chunk(len(self.engines)))
            ]
            status |= CACHE_STATUS[first_fault(statuses)]
        return status

    def attend(
        self, q: Sequence[Tensor], layer: int, place: int = 0, rules: Rules = PLAIN
    ) -> tuple[list[list[Tensor | None]], CommandStatus]:
        """(o, status) of the queries of the places from ``place`` on, (query heads * head_dim,).

        rules: a window has the query's own token in it; sinks: (query heads,) words.
        o: of each place its parts, one of each engine. None: the engine refused before it read
        memory, and nothing is to be written.
        """
        made: list[list[Tensor | None]] = []
        status = CommandStatus(0)
        count = len(self.engines)
        own = rules_of_parts(rules, count)
        for at, queries in zip(self.batch[place:], q, strict=False):
            parts = queries.chunk(count)
            if at is None:
                made.append([torch.zeros_like(part) for part in parts])
                continue
            found = [
                self._attend_part(n, at, part, layer, own[n]) for n, part in enumerate(parts)
            ]
            made.append([each.words for each in found])
            fault = first_fault([each.status for each in found])
            status |= CACHE_STATUS[fault]
            if not fault and any(each.is_nonfinite for each in found):
                status |= CommandStatus.NONFINITE
        return made, status

    def _attend_part(
        self, number: int, place: Place, queries: Tensor, layer: int, rules: Rules
    ) -> "Part":
        """Attends to the queries of the heads of engine ``number``."""
        kv = self.part.kv
        rows: list[Tensor] = []
        for side in Kv:
            answer = self._request(number, Op.READ, place.position + 1, place, layer, side)
            if CACHE_STATUS[answer.status] & CommandStatus.BUS_ERROR:
                return Part(torch.full_like(queries, FP16.canonical_nan), answer.status)
            if answer.status:
                return Part(None, answer.status)
            # Part by part: of a head, or in order token of a group of heads.
            parts = torch.tensor(answer.words).transpose(0, 1)
            rows.append(parts.reshape(-1, kv.heads, kv.head_dim))
        q = queries.reshape(kv.heads, -1, kv.head_dim)
        k, v = (each[-rules.window :] for each in rows)
        sinks = None if rules.sinks is None else rules.sinks.reshape(kv.heads, -1)
        made = attend(q, k, v, self.config.max_tokens, cap=rules.cap, sinks=sinks)
        return Part(made.words.flatten(), Status.OK, bool(made.status))

    def _request(
        self, number: int, op: Op, token: int, place: Place, layer: int, kv: int,
        vector: Sequence[int] = (),
    ) -> Answer:  # fmt: skip
        """A request to engine ``number`` alone."""
        heads = self.part.kv.heads
        return self.engines[number].request(
            Request(op, place.sequence, layer, kv, 0, heads, token, vector=vector,
                    memory=self.memory[number])
        )  # fmt: skip
