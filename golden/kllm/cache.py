"""The unit CACHE of the accelerator: K and V in Oaken's paged cache, and attention over them.

Words are FP16 bit patterns, int64.

    APPEND   a vector becomes the next K or V of a sequence: golden.oaken.kv_engine
    ATTEND   o = softmax(q K^T) V over the tokens of a sequence up to the query's own

The scores are exact before their rounding; q has the scaling in it. Exponentials and reciprocals
are those of golden.attention.softmax:

    s = rne16(q . k)
    m = max s;  e = exp(rne16(s - m));  S = sum e
    o = rne16(rne32(sum e * v) * rne32(1 / rne32(S)))

Both sums are exact. So the tokens may come in any order, and a token's words do not depend on the
others of its batch.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from golden.attention.softmax import row_weights
from golden.fp16.format import FP16
from golden.fp16.limbs import Limbs
from golden.fp16.ops import is_special
from golden.kllm.isa import CommandStatus
from golden.million.output import outputs
from golden.million.window import window_scores, window_sums
from golden.oaken.config import CacheConfig
from golden.oaken.kv_engine import Answer, KvEngine, Request
from golden.paging.format import Kv, Op, Status

_STATUS = {
    Status.OK: CommandStatus(0),
    Status.BAD_REQUEST: CommandStatus.RANGE,
    Status.SEQUENCE_UNKNOWN: CommandStatus.SLOT_MISMATCH,
    Status.THRESHOLDS: CommandStatus.CODEBOOK_MISSING,
    Status.TOKEN_ORDER: CommandStatus.SLOT_MISMATCH,
    Status.LENGTH_LIMIT: CommandStatus.CAPACITY,
    Status.BEYOND_LENGTH: CommandStatus.SLOT_MISMATCH,
    Status.EMPTY: CommandStatus.SLOT_MISMATCH,
    Status.NONFINITE: CommandStatus.NONFINITE,
    Status.OUT_OF_PAGES: CommandStatus.CAPACITY,
    Status.SLAVE_ERROR: CommandStatus.BUS_ERROR,
    Status.DECODE_ERROR: CommandStatus.BUS_ERROR,
    Status.MALFORMED: CommandStatus.BUS_ERROR,
}


_EXACT = 64  # rows whose products are summed in float64 without a rounding


@dataclasses.dataclass(frozen=True)
class Place:
    """A place of the batch: the sequence that a token belongs to, and its position there."""

    sequence: int
    position: int


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(o (queries, d) words, bad (queries,)) of the queries that share the rows of K and of V.

    q : (queries, d); k, v : (tokens, d), finite, one token at least
    bad : NaN or infinity in q, a score beyond FP16, or all scores -infinity; o is canonical NaN
    """
    odd = is_special(q).any(-1)
    q = torch.where(odd[:, None], 0, q)
    scores = window_scores(q, k, torch.zeros(len(q), dtype=torch.int64), torch.zeros(len(k)))
    weight, _, part = row_weights(scores.T, scores.T[:, :0])
    bad = part.bad | odd
    none = Limbs(torch.zeros_like(q), torch.zeros_like(q))
    total = none
    for some in torch.arange(len(v)).split(_EXACT):
        total = total.plus(window_sums(weight[:, some], v[some]))
    return outputs(none, 0, total, part.total, bad), bad


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
            status |= _STATUS[answer.status]
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
        cached: list[Tensor] = []
        for side in Kv:
            answer = self._request(Op.READ, place.position + 1, place, layer, side)
            status = _STATUS[answer.status]
            if status:
                none = torch.full_like(queries, FP16.canonical_nan)
                return none if status & CommandStatus.BUS_ERROR else None, status
            cached.append(torch.tensor(answer.words))
        group = queries.reshape(kv.heads, -1, kv.head_dim)
        found = [attend(q, k, v) for q, k, v in zip(group, *cached, strict=True)]
        o = torch.cat([each.flatten() for each, _ in found])
        if any(bool(bad.any()) for _, bad in found):
            return o, CommandStatus.NONFINITE
        return o, CommandStatus(0)

    def _request(
        self, op: Op, token: int, place: Place, layer: int, kv: int, vector: Sequence[int] = ()
    ) -> Answer:
        heads = self.config.kv.heads
        return self.engine.request(
            Request(op, place.sequence, layer, kv, 0, heads, token, vector=vector,
                    memory=self.memory)
        )  # fmt: skip
