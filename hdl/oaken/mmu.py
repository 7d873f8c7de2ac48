"""The MMU's configuration for Oaken's records: dense and sparse per head, scale per vector."""

import dataclasses

from golden.config import bounded
from hdl.paging.mmu import PagingMmuNumbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagingMmuConfig(PagingMmuNumbers):
    """An MMU of Oaken's records."""

    dense_beats: int = bounded(256, 4, 4096, "words of the queue in front of dense")
    sparse_beats: int = bounded(128, 4, 4096, "words of the queue in front of sparse")
    scale_beats: int = bounded(64, 4, 4096, "words of the queue in front of scale")

    @property
    def beats(self) -> tuple[int, ...]:
        return self.dense_beats, self.sparse_beats, self.scale_beats

    def _check_beats(self) -> None:
        shape = [(kind.name, kind.is_fixed) for kind in self.cache.kv.kinds]
        if shape != [("dense", True), ("sparse", False), ("scale", True)]:
            self._refuse("cache", "of records dense (fixed), sparse (variable), scale (fixed)")
        if len(self.cache.kv.per_head) != 2:
            self._refuse("cache", "of two records per head, dense and sparse")
