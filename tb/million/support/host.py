"""The outputs that benches of million_attention expect of it, inside the simulator."""

from collections import deque

from golden.million.format import Op, Status
from hdl.million.attention import MillionAttentionConfig
from hdl.million.layouts import STATUS_LAYOUT
from tb.bench import SILENCE
from tb.paging.support.statuses import StatusesToCome


def encoding(config: MillionAttentionConfig) -> int:
    """Cycles of the encoder for the K and V of a token, where it reads in each cycle."""
    pq = config.cache.pq
    return 2 * config.cache.head.heads * pq.entries * config.rate.parts(pq)


def silence(config: MillionAttentionConfig) -> int:
    """Cycles without any transfer that are a hang.

    Until its first output, a group has its tables built, its keys scored and counted, its exact
    rows scored and added, and its bins added. Before it, a token may be encoded.
    """
    cache, rate, pq = config.cache, config.rate, config.cache.pq
    tables = pq.entries * rate.parts(pq) * rate.queries
    codes = -(-cache.max_tokens // rate.keys)
    rows = cache.window.rows * rate.queries * pq.head_dim // rate.window_macs
    return SILENCE + 2 * (tables + codes + rows) + encoding(config)


class Expected:
    """Statuses and words of ``o`` still to come of a phase of golden.million.vectors.script."""

    def __init__(self, phase):
        self.o = deque(phase["o"])
        self.statuses = StatusesToCome(phase["requests"], STATUS_LAYOUT, Op, Status)

    def take(self, flow) -> None:
        """The words of a run."""
        for word in flow.words["status"]:
            self.statuses.take(word)
        for word in flow.words["o"]:
            self.take_o(word)

    def take_o(self, word: int) -> None:
        assert self.o, f"a word of o that nobody waits for: {word:#x}"
        expected = self.o.popleft()
        assert word == expected, f"o: {word:#x}, golden {expected:#x}, {len(self.o)} to come"

    @property
    def is_empty(self) -> bool:
        return not self.o and self.statuses.is_empty
