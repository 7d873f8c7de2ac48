"""Scripts for several attention engines as one: phases of golden.oaken.vectors.attention.

``faults`` and ``pokes`` have the number of the engine before their addresses.
"""

import dataclasses

from golden.oaken.attention_array import AttentionArray
from golden.oaken.vectors.attention import AttentionScript
from golden.paging.format import PageOp, Status
from golden.paging.pages import PageCommand


def whole(config):
    """The configuration of one engine with the KV heads of all: each has its groups."""
    part, kv = config.part, config.cache.kv
    count = config.engines
    kv = dataclasses.replace(kv, heads=count * kv.heads, groups=count * kv.groups)
    cache = dataclasses.replace(config.cache, kv=kv, pages=count * config.cache.pages)
    mmu = dataclasses.replace(part.engine.mmu, cache=cache)
    return dataclasses.replace(part, engine=dataclasses.replace(part.engine, mmu=mmu))


class ArrayScript(AttentionScript):
    """The script's user sees one engine with all heads."""

    golden: AttentionArray  # type: ignore[assignment]

    def __init__(self, config, seed: int, base: int = 0) -> None:
        super().__init__(whole(config), seed, base)
        self.array = config
        self.golden = AttentionArray(config.cache, config.engines)  # type: ignore[assignment]

    def refuse(self, engine: int, response: int, status: Status) -> None:
        """An engine's memory refuses all of this phase; its APPENDs end with ``status``."""
        cache = self.array.cache
        self.phases[-1]["faults"].append((engine, 0, cache.pages * cache.page_bytes, response))
        self.golden.memory[engine] = status

    def place_of(self, engine: int, sequence: int, layer: int, kv: int, token: int) -> int:
        """Address of the first byte that a READ of the first group requests of an engine."""
        command = PageCommand(PageOp.READ, sequence, layer, kv, 0, token)
        answer = self.golden.engines[engine].table.command(command)
        assert answer.status == Status.OK
        return answer.page * self.array.cache.page_bytes + answer.offset
