"""The cycles of golden.oaken.timing for the READs and APPENDs of a KV engine, in either order.

Vectors have no outliers, and token k of a sequence is at the place that such tokens give it.
"""

from golden.oaken import timing
from golden.oaken.format import SCALE_BYTES, record_bytes
from hdl.oaken.inlier_quantizer import OakenInlierQuantizer
from hdl.oaken.kv_engine import OakenKvEngineConfig


class Rates:
    """Cycles in order head."""

    def __init__(self, config: OakenKvEngineConfig):
        self.config, self.kv = config, config.cache.kv
        self.stages = OakenInlierQuantizer.SCALE_STAGES

    def words(self, token: int) -> int:
        """Memory words of the last record of a token."""
        return self._words(token, SCALE_BYTES)

    def _words(self, token: int, size: int) -> int:
        word_bytes = self.config.mmu.word_bytes
        return -(-(token * size % word_bytes + size) // word_bytes)

    def first(self, memory: int) -> int:
        """Cycles from a READ to its first beat."""
        return self.config.read_cycles(memory)

    def between_parts(self) -> int:
        """Cycles from a part's first beat to the next one's, at most."""
        return timing.kv_head_cycles()

    def lone(self, token: int, memory: int) -> int:
        """Cycles from a lone vector's last beat to its status."""
        words, slots = self.words(token), self.kv.slots
        return timing.kv_append_latency(self.config.lanes, self.stages, slots, words, memory)

    def step(self, token: int, memory: int) -> int:
        """Cycles from one status to the next in a train of APPENDs."""
        return timing.kv_append_cycles(self.kv.slots, self.words(token), memory)


class TokenRates(Rates):
    """Cycles in order token."""

    def words(self, token: int) -> int:
        return self._words(token, record_bytes(self.kv.part_blocks, self.kv.block, 0))

    def between_parts(self) -> int:
        return timing.kv_group_cycles()

    def between_reads(self) -> int:
        """Cycles from a READ's first beat to the next one's, at most."""
        return timing.kv_token_reads_cycles(self.kv.groups)

    def lone(self, token: int, memory: int) -> int:
        config, words = self.config, self.words(token)
        beats = self.kv.elements // config.lanes
        return timing.kv_token_append_latency(
            config.lanes, self.stages, beats, self.kv.slots, words, memory
        )

    def step(self, token: int, memory: int) -> int:
        return timing.kv_token_append_cycles([self.words(token)] * self.kv.groups, memory)


def rates(config: OakenKvEngineConfig) -> Rates:
    return (TokenRates if config.cache.kv.is_by_token else Rates)(config)
