"""The MMU's configuration for Oaken's records: dense and sparse per head, scale per vector."""

import dataclasses

from hdl.paging.mmu import PagingMmuNumbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagingMmuConfig(PagingMmuNumbers):
    """An MMU of Oaken's records."""

    dense_beats: int = 256  # words of the queue in front of dense, 4..4096
    sparse_beats: int = 128  # words of the queue in front of sparse, 4..4096
    scale_beats: int = 64  # words of the queue in front of scale, 4..4096

    @property
    def beats(self) -> tuple[int, ...]:
        return self.dense_beats, self.sparse_beats, self.scale_beats

    def _check_beats(self) -> None:
        for field in ("dense_beats", "sparse_beats", "scale_beats"):
            self._check_range(field, 4, 4096)
        shape = [(kind.name, kind.is_fixed) for kind in self.cache.kv.kinds]
        if shape != [("dense", True), ("sparse", False), ("scale", True)]:
            self._refuse("cache", "of records dense (fixed), sparse (variable), scale (fixed)")
        if len(self.cache.kv.per_head) != 2:
            self._refuse("cache", "of two records per head, dense and sparse")
