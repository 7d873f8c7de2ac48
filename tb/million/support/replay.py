"""Words of golden.million.script as tb_replay takes them, in parts that run one after another."""

import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.million.attention import Codebook
from golden.million.cache import Codebooks
from golden.million.script import REQUEST_FIELDS, STREAMS, Script, fields
from hdl.million.attention import MillionAttentionConfig


def part(words: dict[str, list[int]], config: MillionAttentionConfig) -> dict:
    """Words of every stream, those of ``o`` with ``last``, and what the statuses are."""
    ops = [fields(REQUEST_FIELDS, word)["op"] for word in words["request"]]
    requests = [
        {"op": op, "status": status} for op, status in zip(ops, words["status"], strict=True)
    ]
    inputs = {name: words[name] for name in STREAMS if name not in ("o", "status")}
    return {"inputs": inputs, "requests": requests, "o": _marked(words["o"], config)}


def _marked(words: list[int], config: MillionAttentionConfig) -> list[int]:
    """Beats of ``o``: the last of each group of queries has the bit above the words."""
    group, queries = config.cache.head.group, config.rate.queries
    beats = config.cache.pq.head_dim // config.rate.lanes
    place = FP16.bits * config.rate.lanes
    ends = {n * beats - 1 for n in range(1, group + 1) if n % queries == 0 or n == group}
    return [word | int(n % (group * beats) in ends) << place for n, word in enumerate(words)]


class Parts(Script):
    """A script in parts; a part begins when the part before is complete and nothing is encoded."""

    def __init__(self, config: MillionAttentionConfig):
        super().__init__(config.cache, config.rate.lanes, config.data_bits)
        self.block = config
        self.parts: list[dict] = []

    def cut(self, name: str) -> None:
        """Makes a part of what came since the last cut."""
        self.parts.append({"name": name, **part(self.words, self.block)})
        self.words = {stream: [] for stream in STREAMS}


def some_words(generator: torch.Generator, *shape: int, width: float = 1.0) -> Tensor:
    """Normal FP16 words of standard deviation ``width``."""
    real = width * torch.randn(*shape, generator=generator)
    return real.half().view(torch.int16).long() & 0xFFFF


def random_books(config: MillionAttentionConfig, generator: torch.Generator) -> Codebooks:
    """Codebooks of normal entries."""
    pq = config.cache.pq
    sides = []
    for _ in range(2):
        words = some_words(
            generator, config.cache.books, pq.subspaces, pq.entries, pq.sub, width=0.2
        )
        sides.append(tuple(Codebook(each, 0) for each in words))
    return Codebooks(*sides)
