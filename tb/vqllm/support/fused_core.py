"""A core whose elements change their lanes before they are multiplied, for measurements.

Built of the project's blocks: vq_gemv_core with vq_exchange or vq_layout_buffer before the sums. A
lane multiplies ``need`` elements of a vector at a time, so a beat of codes takes several cycles.
"""

import dataclasses

import numpy as np
from amaranth import Module
from amaranth.hdl import Value

from golden.vqllm.config import ExchangeShape
from hdl.emit import add
from hdl.vqllm.exchange import VqExchange, VqExchangeConfig
from hdl.vqllm.gemv_core import VqGemvCore, VqGemvCoreConfig
from hdl.vqllm.layout_buffer import VqLayoutBuffer, VqLayoutBufferConfig
from hdl.vqllm.row_config import VqRowSumsConfig

__all__ = ["FusedCore", "FusedCoreConfig", "in_order"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FusedCoreConfig(VqGemvCoreConfig):
    """A core of one stage, and what changes the layout."""

    fusion: str = "exchange"  # or buffer
    need: int = 2  # elements of a vector multiplied at a time

    @property
    def exchange(self) -> ExchangeShape:
        return ExchangeShape(size=self.cache.vq.size, need=self.need, lanes=self.vectors)

    @property
    def sums(self) -> VqRowSumsConfig:
        return dataclasses.replace(super().sums, macs=self.vectors * self.need)


class FusedCore(VqGemvCore):
    """``vq_gemv_core``, whose vectors arrive in pieces. x comes ``in_order``."""

    def _elaborate_words(self, m: Module, entry, wrong, w) -> None:
        config = self.config
        kind = {"exchange": (VqExchange, VqExchangeConfig),
                "buffer": (VqLayoutBuffer, VqLayoutBufferConfig)}  # fmt: skip
        block, sizes = kind[config.fusion]
        change = add(m, "change", block(sizes(shape=config.exchange)))
        i, o = change.i, change.o
        m.d.comb += [
            i.valid.eq(entry.valid),
            Value.cast(i.p.word).eq(Value.cast(entry.p.entry)),
            i.p.last.eq(wrong),  # it goes along with the beat
            entry.ready.eq(i.ready),
            Value.cast(w.p.word).eq(Value.cast(o.p.word)),
            w.p.wrong.eq(o.p.last),
            w.valid.eq(o.valid),
            o.ready.eq(w.ready),
        ]


def in_order(config: FusedCoreConfig, x: np.ndarray) -> np.ndarray:
    """(vectors, columns) elements as the lanes meet them: piece i of a vector is with lane i."""
    shape = config.exchange
    beats = x.reshape(len(x), -1, shape.lanes // shape.pieces, shape.pieces, shape.size)
    pieces = beats.reshape(*beats.shape[:4], shape.pieces, shape.need)
    return pieces.transpose(0, 1, 3, 2, 4, 5).reshape(len(x), -1)
