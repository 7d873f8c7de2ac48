"""The unit CACHE of the accelerator: K and V in Oaken's paged cache, and attention over them.

Words are FP16 bit patterns, int64.

    APPEND   a vector becomes the next K or V of a sequence: golden.oaken.kv_engine
    ATTEND   o = softmax(q K^T) V over the tokens of a sequence up to the query's own:
             golden.attention.stream; q has the scaling in it

All sums of ATTEND are exact. So the tokens may come in any order, and a token's words do not depend
on the others of its batch.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from golden.attention.stream import attend
from golden.fp16.format import FP16
from golden.kllm.engines import Sampling
from golden.kllm.isa import CACHE_STATUS, CommandStatus
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


class CacheUnit:
    """The cache, and the batch that its commands serve.

    batch : a ``Place`` for each token of a command, None where there is no token. The host writes
        it before a step
    memory : what the memory does to the requests that follow, as ``Request.memory``

    A command does its tokens in order, and its status has the bits of all of them. A place without
    a token takes nothing, and ATTEND gives it zeros.
    """

    def __init__(self, config: CacheConfig, places: int) -> None:
        self.config = config
        self.engine = KvEngine(config)
        self.batch: list[Place | None] = [None] * places
        self.memory = Status.OK

    def request(self, request: Request) -> Answer:
        """A request of the host, such as OPEN, THRESHOLDS or FREE."""
        return self.engine.request(request)

    def begin(self, thresholds: Tensor) -> None:
        """Sets (layers, 2, 4) words of thresholds; ValueError: the cache refuses them."""
        for layer, sides in enumerate(thresholds.tolist()):
            for kv, words in zip(Kv, sides, strict=True):
                request = Request(Op.THRESHOLDS, layer=layer, kv=kv, thresholds=words)
                status = self.request(request).status
                if status:
                    raise ValueError(f"thresholds of layer {layer}, {kv.name}: {status.name}")

    def append(self, x: Sequence[Tensor], layer: int, kv: int) -> CommandStatus:
        """``x``: vectors of the first places, (heads * head_dim,) each."""
        status = CommandStatus(0)
        for place, vector in zip(self.batch, x, strict=False):
            if place is None:
                continue
            answer = self._request(Op.APPEND, place.position, place, layer, kv, vector.tolist())
            status |= CACHE_STATUS[answer.status]
        return status

    def attend(self, q: Sequence[Tensor], layer: int) -> tuple[list[Tensor | None], CommandStatus]:
        """(o, status) of the queries of the first places, (query heads * head_dim,) each.

        None: the request was refused before memory was read, and nothing is to be written.
        """
        made: list[Tensor | None] = []
        status = CommandStatus(0)
        for place, queries in zip(self.batch, q, strict=False):
            if place is None:
                made.append(torch.zeros_like(queries))
                continue
            o, found = self._attend_one(place, queries, layer)
            made.append(o)
            status |= found
        return made, status

    def _attend_one(
        self, place: Place, queries: Tensor, layer: int
    ) -> tuple[Tensor | None, CommandStatus]:
        kv = self.config.kv
        rows: list[Tensor] = []
        for side in Kv:
            answer = self._request(Op.READ, place.position + 1, place, layer, side)
            status = CACHE_STATUS[answer.status]
            if status & CommandStatus.BUS_ERROR:
                return torch.full_like(queries, FP16.canonical_nan), status
            if status:
                return None, status
            # Part by part: of a head, or in order token of a group of heads.
            parts = torch.tensor(answer.words).transpose(0, 1)
            rows.append(parts.reshape(-1, kv.heads, kv.head_dim))
        q = queries.reshape(kv.heads, -1, kv.head_dim)
        k, v = rows
        made = attend(q, k, v, self.config.max_tokens)
        status = CommandStatus.NONFINITE if made.status else CommandStatus(0)
        return made.words.flatten(), status

    def _request(
        self, op: Op, token: int, place: Place, layer: int, kv: int, vector: Sequence[int] = ()
    ) -> Answer:
        heads = self.config.kv.heads
        return self.engine.request(
            Request(op, place.sequence, layer, kv, 0, heads, token, vector=vector,
                    memory=self.memory)
        )  # fmt: skip
