"""Trains of ATTENDs and of tokens, as tb_replay takes them, and what they spend."""

import torch

from golden.million.format import Op
from hdl.million.attention import MillionAttentionConfig
from tb.million.support.replay import Parts, random_books, some_words

ATTENDS = 3  # of a train; the first is not counted
PREFILLS = 8  # of a train; the first is not counted
PAIRS = 4  # ATTENDs with the encoder at work, and as many without
_RESTORES = 8192  # of a part


class _Train(Parts):
    """Random tokens of one sequence and layer."""

    def __init__(self, config: MillionAttentionConfig, seed: int = 1):
        super().__init__(config)
        self.generator = torch.Generator().manual_seed(seed)
        self.sequence = self.open()
        self.load(0, random_books(config, self.generator))
        self.keys = 0  # in codes
        for _ in range(config.cache.window.sinks):
            self.prefill(self.sequence, 0, *self._vectors())

    def _vectors(self) -> torch.Tensor:
        cache = self.block.cache
        return some_words(self.generator, 2, cache.head.heads, cache.pq.head_dim)

    def keys_until(self, keys: int) -> None:
        """RESTOREs."""
        cache = self.block.cache
        shape = (keys - self.keys, 2, cache.head.heads, cache.pq.subspaces)
        for k, v in torch.randint(cache.pq.entries, shape, generator=self.generator):
            self.restore(self.sequence, 0, k, v)
        self.keys = keys

    def tokens(self, count: int, prefill: bool) -> None:
        for _ in range(count):
            (self.prefill if prefill else self.append)(self.sequence, 0, *self._vectors())
        self.keys += count * prefill

    def attends(self, count: int) -> None:
        cache = self.block.cache
        shape = (cache.head.heads, cache.head.group, cache.pq.head_dim)
        width = cache.pq.head_dim**-0.5
        for _ in range(count):
            self.attend(self.sequence, 0, some_words(self.generator, *shape, width=width))


def attend_parts(config: MillionAttentionConfig, keys: list[int]) -> list[dict]:
    """Parts ``attend N`` for each number of keys, and those that place the codes."""
    train = _Train(config)
    for count in keys:
        for until in (*range(train.keys + _RESTORES, count, _RESTORES), count):
            train.keys_until(until)
            train.cut(f"restore {until}")
        train.attends(ATTENDS)
        train.cut(f"attend {count}")
    return train.parts


def encoder_parts(config: MillionAttentionConfig, keys: int) -> list[dict]:
    """Parts prefill, ``busy N`` and ``idle N``.

    busy: an ATTEND right after an APPEND, whose token is encoded meanwhile. idle: the same keys and
    rows, and nothing to encode.
    """
    train = _Train(config)
    train.keys_until(keys - PREFILLS)
    train.cut("restore")
    train.tokens(PREFILLS, prefill=True)
    train.cut("prefill")
    for number in range(PAIRS):
        train.tokens(1, prefill=False)
        train.attends(1)
        train.cut(f"busy {number}")
        train.attends(1)
        train.cut(f"idle {number}")
    return train.parts


def train_cycles(part: dict, op: Op) -> tuple[int, int]:
    """(cycles, requests) from the first status of ``op`` to its last."""
    ends = [cycle for each, cycle in part["statuses"] if each == op]
    return ends[-1] - ends[0], len(ends) - 1


def lone_cycles(parts: dict, name: str) -> int:
    """Cycles of all ATTENDs of the parts ``name N``: from the request taken to the status."""
    found = [part for key, part in parts.items() if key.startswith(f"{name} ")]
    return sum(part["statuses"][-1][1] - part["requests"][-1] for part in found)
