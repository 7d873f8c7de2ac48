"""The MMU's configuration for Oaken's records, in either order."""

import dataclasses

from golden.config import bounded
from hdl.paging.mmu import PagingMmuNumbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagingMmuConfig(PagingMmuNumbers):
    """An MMU of Oaken's records."""

    dense_beats: int = bounded(256, 4, 4096, "words of the queue in front of dense")
    sparse_beats: int = bounded(128, 4, 4096, "words of the queue in front of sparse")
    scale_beats: int = bounded(64, 4, 4096, "words of the queue in front of scale")
    token_beats: int = bounded(256, 4, 4096, "order token: words of the queue in front of records")

    @property
    def beats(self) -> tuple[int, ...]:
        if self._is_by_token:
            return (self.token_beats,)
        return self.dense_beats, self.sparse_beats, self.scale_beats

    @property
    def _is_by_token(self) -> bool:
        return [kind.name for kind in self.cache.kv.kinds] == ["token"]

    def _check_beats(self) -> None:
        if self._is_by_token:
            return
        shape = [(kind.name, kind.is_fixed) for kind in self.cache.kv.kinds]
        if shape != [("dense", True), ("sparse", False), ("scale", True)]:
            self._refuse("cache", "of records dense (fixed), sparse (variable), scale (fixed)")
        if len(self.cache.kv.per_head) != 2:
            self._refuse("cache", "of two records per head, dense and sparse")
