"""Attention on the cache attend by attend: what oaken_attention answers.

Words are FP16 bit patterns, int64. Each group of KV heads is a job of golden.attention.stream:

    o = softmax(q K^T) V    of the tokens that READs of K and of V give; q has the scaling in it

With a window the latest of these alone count. Scores may have a cap, and queries a sink.

Nothing is rounded here: rounding points are those of golden.oaken.quantize and of
golden.attention.stream. All sums of a job are exact.
"""

import dataclasses
import typing
from collections.abc import Mapping

import torch
from torch import Tensor

from golden.attention.format import Status as JobStatus
from golden.attention.stream import attend
from golden.fp16.format import FP16
from golden.oaken.kv_engine import Answer, KvEngine, Request
from golden.paging.format import Kv, Op, Status

SOUND: Mapping[tuple[int, int], Status] = {}


@dataclasses.dataclass(frozen=True)
class Rules:
    """The rules by which an attend weighs tokens.

    window : most tokens that it sees, the latest; 0: all
    cap : of golden.attention.format.cap_operand; 0: none
    sinks : (KV heads, L) words; None: none
    """

    window: int = 0
    cap: int = 0
    sinks: Tensor | None = None


PLAIN = Rules()


class Attended(typing.NamedTuple):
    """The end of an attend. Words are NaN where a group has none, and ``void`` if refused."""

    words: Tensor  # (KV heads, L, head_dim)
    void: Tensor  # (groups,) bool: a READ of the group was refused
    status: Status  # the first READ that is not OK, those of K before those of V
    result: JobStatus  # the first that applies to a group; OK where ``status`` is not


@dataclasses.dataclass
class Begun:
    """An attend whose last V is not read."""

    q: Tensor
    read: Request
    memory: Mapping[tuple[int, int], Status]
    answers: dict[tuple[int, int], Answer]  # by (K or V, group)
    rules: Rules = PLAIN


class Attention(KvEngine):
    """The cache with attention in it. A READ of the user's is BAD_REQUEST."""

    def request(self, request: Request) -> Answer:
        if request.op == Op.READ:
            return Answer(Status.BAD_REQUEST, request.sequence)
        return super().request(request)

    def attend(
        self,
        q: Tensor,
        sequence: int,
        layer: int,
        token: int,
        memory: Mapping[tuple[int, int], Status] = SOUND,
        rules: Rules = PLAIN,
    ) -> Attended:
        """Attention of ``q`` on the tokens start..``token`` - 1, or the last ones of them.

        q : (KV heads, L, head_dim) words; memory: by (K or V, group), what memory does to the READ
        """
        return self.finish(self.begin(q, sequence, layer, token, memory, rules))

    def begin(
        self,
        q: Tensor,
        sequence: int,
        layer: int,
        token: int,
        memory: Mapping[tuple[int, int], Status] = SOUND,
        rules: Rules = PLAIN,
    ) -> Begun:
        """READs of all but V of the last group, which waits for the K that comes next."""
        read = Request(Op.READ, sequence, layer, token=token)
        begun = Begun(torch.as_tensor(q), read, memory, {}, rules)
        for group in range(self.config.kv.groups):
            self._read_side(begun, Kv.K, group)
            if group:
                self._read_side(begun, Kv.V, group - 1)
        return begun

    def finish(self, begun: Begun) -> Attended:
        """V of the last group, and the end."""
        kv = self.config.kv
        self._read_side(begun, Kv.V, kv.groups - 1)
        statuses = [answer.status for _, answer in sorted(begun.answers.items())]
        status = next(filter(None, statuses), Status.OK)
        words, void, results = [], [], []
        for group in range(kv.groups):
            made, is_void, result = self._job(begun, group)
            words.append(made)
            void.append(is_void)
            results.append(result)
        result = JobStatus.OK if status else min(filter(None, results), default=JobStatus.OK)
        return Attended(torch.cat(words), torch.tensor(void), status, result)

    def _read_side(self, begun: Begun, side: Kv, group: int) -> None:
        """A READ of K or V, but none of V where K was refused."""
        if side == Kv.V and _is_refusal(begun.answers[Kv.K, group].status):
            return
        heads = self.config.kv.part_heads
        memory = begun.memory.get((side, group), Status.OK)
        begun.answers[side, group] = super().request(
            begun.read._replace(kv=side, head=group * heads, heads=heads, memory=memory)
        )

    def _job(self, begun: Begun, group: int) -> tuple[Tensor, bool, JobStatus]:
        """(words, void, result) of a group."""
        heads = slice(group * self.config.kv.part_heads, (group + 1) * self.config.kv.part_heads)
        q, key, value = begun.q[heads], begun.answers[Kv.K, group], begun.answers.get((Kv.V, group))
        nothing = torch.full_like(q, FP16.canonical_nan)
        status = key.status or (value.status if value else Status.OK)
        if status or value is None:
            return nothing, _is_refusal(status), JobStatus.OK
        k, v = (self._rows(answer) for answer in (key, value))
        if len(k) != len(v):
            return nothing, False, JobStatus.DATA
        rules = begun.rules
        sinks = None if rules.sinks is None else rules.sinks[heads]
        latest = slice(-rules.window, None)
        found = attend(q, k[latest], v[latest], self.config.max_tokens, cap=rules.cap, sinks=sinks)
        return found.words, False, found.status

    def _rows(self, answer: Answer) -> Tensor:
        """(tokens, heads, head_dim) of a READ of one group."""
        kv = self.config.kv
        return torch.tensor(answer.words[0]).reshape(-1, kv.part_heads, kv.head_dim)


def _is_refusal(status: Status) -> bool:
    """Whether a READ ended before memory was read."""
    return Status.OK < status < Status.SLAVE_ERROR
