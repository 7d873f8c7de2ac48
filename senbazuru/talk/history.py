"""Cached tokens whose K and V have as many outliers as those of a text."""

import numpy as np
import torch

from golden.kllm.assembler import Assembler, Vector
from golden.kllm.isa import ROW_ELEMENTS, row_count
from golden.kllm.layer.layout import Job
from golden.llm.kllm.pack import ModelPack
from golden.oaken.quantize import encode
from golden.paging.format import Kv
from senbazuru.talk.driver import Driver

SHARES = (0.04, 0.06)  # beyond the outer thresholds, and between the inner ones


class History:
    """K and V for the tokens that a step attends to.

    The cycles of a step depend on the sizes of their records alone, and these on the outliers. Each
    layer has a vector of K and one of V, of which each cached token is a copy. ``SHARES`` of its
    elements are outliers, as Oaken's groups have them.
    """

    def __init__(self, pack: ModelPack) -> None:
        shape = pack.layout.shape.layer
        self.layout, self.thresholds = pack.layout, pack.thresholds
        self.elements = shape.kv_heads * shape.head_size
        rng = np.random.default_rng(7)
        self.words = np.array(
            [[self._vector(own, rng) for own in sides] for sides in self.thresholds.numpy()]
        )
        self._row: int | None = None

    def _vector(self, thresholds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """FP16 words; the most lie half way from an inner threshold to an outer one."""
        words = thresholds.astype(np.uint16).view(np.float16)
        outer_low, inner_low, inner_high, outer_high = words.astype(np.float64)
        high = rng.random(self.elements) < 0.5
        x = np.where(high, (inner_high + outer_high) / 2, (inner_low + outer_low) / 2)
        beyond = np.where(high, 1.5 * outer_high, 1.5 * outer_low)
        places = rng.permutation(self.elements)
        outer, inner = (round(share * self.elements) for share in SHARES)
        x[places[:outer]] = beyond[places[:outer]]
        x[places[outer : outer + inner]] = (inner_low + inner_high) / 2
        largest = float(np.finfo(np.float16).max)
        return x.clip(-largest, largest).astype(np.float16).view(np.uint16)

    def outliers(self) -> dict[int, tuple[float, float]]:
        """The share of the elements with an entry in their records, of K and V of each layer."""
        words = torch.from_numpy(self.words.astype(np.int64))
        found = [
            [encode(x[None], own).sparse_fraction for x, own in zip(sides, words_of, strict=True)]
            for sides, words_of in zip(words, self.thresholds, strict=True)
        ]
        return {layer: (float(k), float(v)) for layer, (k, v) in enumerate(found)}

    def fill(self, driver: Driver, cached: int, context: int) -> None:
        """Appends K and V of all layers up to ``context`` tokens."""
        if self._row is None:
            self._row = driver.store(self._image())
        while cached < context:
            count = min(self.layout.config.batch, context - cached)
            driver.set_batch(Job(count, cached))
            driver.run(self._appends(self._row, count))
            cached += count

    def _image(self) -> bytes:
        """The vectors of all layers, of K and then of V, in rows."""
        missing = row_count(self.elements) * ROW_ELEMENTS - self.elements
        rows = self.words.reshape(-1, self.elements)
        return np.pad(rows, ((0, 0), (0, missing))).astype("<u2").tobytes()

    def _appends(self, row: int, count: int) -> list[int]:
        """The program that appends ``count`` copies of the vectors that begin in row ``row``."""
        asm = Assembler(self.layout.config)
        for layer in range(self.layout.shape.layers):
            for kv in Kv:
                x = asm.vector(self.elements)
                asm.load(address=row + (layer * len(Kv) + kv) * x.rows, dst=x)
                copies = Vector(x.row, x.length, count, 0)
                asm.append(src=copies, layer=layer, kv=kv)
                asm.free(x)
        return asm.words()
