"""Several attention engines as one: what oaken_attention_array answers.

Each engine has equally many KV heads of every vector, in order, and quantizes them as a vector.
Nothing is computed here: rounding points are those of golden.oaken.attention.

A FORK that fails in some engines is undone in the others, by a FREE of the child. So all engines
always have the same sequences, and a child has one number.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from golden.attention.format import Status as JobStatus
from golden.oaken.attention import PLAIN, SOUND, Attended, Attention, Begun, Rules
from golden.oaken.config import CacheConfig
from golden.oaken.kv_engine import Answer, KvEngine, Request
from golden.paging.format import Op, Status

Memories = Sequence[Mapping[tuple[int, int], Status]]


class AttentionArray:
    """``config``: the cache of one engine. Each engine does every request and every attend.

    memory : of each engine, what its memory does to the APPENDs that follow
    """

    def __init__(self, config: CacheConfig, engines: int) -> None:
        self.config = config
        self.engines = [Attention(config) for _ in range(engines)]
        self.memory = [Status.OK] * engines

    @property
    def free_pages(self) -> int:
        """The fewest of an engine."""
        return min(engine.free_pages for engine in self.engines)

    def request(self, request: Request) -> Answer:
        """The answer of the first engine whose status is not OK, else of the first."""
        size = self.config.kv.elements
        vectors = (request.vector[n * size : (n + 1) * size] for n in range(len(self.engines)))
        answers = [
            engine.request(request._replace(vector=vector, memory=memory))
            for engine, vector, memory in zip(self.engines, vectors, self.memory, strict=True)
        ]
        if request.op == Op.FORK:
            undo_fork(self.engines, answers)
        found = next((answer for answer in answers if answer.status), answers[0])
        return Answer(found.status, found.sequence)

    def attend(
        self, q: Tensor, sequence: int, layer: int, token: int, memories: Memories = (),
        rules: Rules = PLAIN,
    ) -> Attended:  # fmt: skip
        """Attends with the KV heads of all engines: Attention.attend."""
        return self.finish(self.begin(q, sequence, layer, token, memories, rules))

    def begin(
        self, q: Tensor, sequence: int, layer: int, token: int, memories: Memories = (),
        rules: Rules = PLAIN,
    ) -> list[Begun]:  # fmt: skip
        """Begins an attend of each engine: Attention.begin; memories: of each."""
        count = len(self.engines)
        given = memories or [SOUND] * count
        own = rules_of_parts(rules, count)
        parts = zip(self.engines, torch.as_tensor(q).chunk(count), given, own, strict=True)
        return [
            engine.begin(part, sequence, layer, token, each, some)
            for engine, part, each, some in parts
        ]

    def finish(self, begun: Sequence[Begun]) -> Attended:
        """Ends them: the first status that is not OK, else the least such result."""
        pairs = zip(self.engines, begun, strict=True)
        found = [engine.finish(each) for engine, each in pairs]
        status = _first(found)
        results = [each.result for each in found if each.result]
        result = JobStatus.OK if status else min(results, default=JobStatus.OK)
        words, void = [each.words for each in found], [each.void for each in found]
        return Attended(torch.cat(words), torch.cat(void), status, result)


def rules_of_parts(rules: Rules, engines: int) -> list[Rules]:
    """The rules of each engine, with the sinks of its heads."""
    if rules.sinks is None:
        return [rules] * engines
    return [dataclasses.replace(rules, sinks=part) for part in rules.sinks.chunk(engines)]


def undo_fork(engines: Sequence[KvEngine], answers: Sequence[Answer]) -> None:
    """FREEs the child of a FORK that some engine refused, in the others."""
    if not any(answer.status for answer in answers):
        return
    for engine, answer in zip(engines, answers, strict=True):
        if not answer.status:
            freed = engine.request(Request(Op.FREE, answer.sequence))
            assert freed.status == Status.OK, freed


def _first(parts: Sequence[Attended]) -> Status:
    return next((each.status for each in parts if each.status), Status.OK)
