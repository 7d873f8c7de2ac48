"""Sizes and payloads that the parts of million_window share."""

import dataclasses

from amaranth import Module, Mux, Signal, signed
from amaranth.lib import data

from golden.attention.format import PRODUCT_BITS, WEIGHTED_BITS
from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.million.format import DISTANCE_BITS, PRODUCT_GRID
from hdl.bits import after
from hdl.children import add
from hdl.kinds import NUMBER, fixed, index_of
from hdl.memory.config import MemoryConfig
from hdl.million.layouts import BEAT_LAST, RECENT_BITS, RING_BITS, SINKS_BITS, slot_bits
from hdl.million.shapes import LayerConfig
from hdl.ports import Payload
from hdl.stream.narrow import StreamNarrow, StreamNarrowConfig
from hdl.stream.widen import StreamWiden, StreamWidenConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionWindowConfig(LayerConfig):
    """Size of the exact rows, and what moves per cycle."""

    def __post_init__(self) -> None:
        super().__post_init__()
        words = self.slots * self.rows * self.steps
        if words > 1 << 20:
            # The exact rows of all sequences, layers and heads are on chip.
            raise ConfigError(
                f"{type(self).__name__}: sequences * layers * heads windows must have at most "
                f"{1 << 20} words of window_macs elements, not {words}"
            )

    @property
    def slots(self) -> int:
        return self.cache.slots

    @property
    def places(self) -> int:
        """Rows of the ring of recent tokens."""
        return self.cache.window.places

    @property
    def rows(self) -> int:
        """Rows of a window: the sinks, then the ring."""
        return self.cache.window.sinks + self.places

    @property
    def keys(self) -> int:
        """Most exact keys of a job."""
        return max(self.cache.window.rows, 1)

    @property
    def steps(self) -> int:
        """Words of a row."""
        return self.cache.pq.head_dim // self.rate.window_macs

    @property
    def memory(self) -> MemoryConfig:
        """K, or V, of all windows."""
        width = FP16.bits * self.rate.window_macs
        return MemoryConfig(depth=self.slots * self.rows * self.steps, width=width)

    @property
    def score_bits(self) -> int:
        """Bits of an exact score, signed: head_dim products, and slope * distance below 2**81."""
        return (self.cache.pq.head_dim + 2 << PRODUCT_BITS).bit_length() + 1

    @property
    def value_bits(self) -> int:
        """Bits of an exact sum of weighted values, signed."""
        return (self.keys << WEIGHTED_BITS).bit_length() + 1

    @property
    def keys_parts(self) -> dict:
        """The exact keys that a job attends."""
        return {
            "slot": (slot_bits(self.cache), "window of the KV head", index_of("slots")),
            "sinks": (SINKS_BITS, "sinks in use, from row 0 on", NUMBER),
            "start": (RING_BITS, "place of the oldest recent token", index_of("places")),
            "recent": (RECENT_BITS, "recent tokens", NUMBER),
        }

    @property
    def job_layout(self) -> Payload:
        slopes = data.ArrayLayout(FP16.bits, self.rate.queries)
        return Payload(
            **self.keys_parts,
            distance=(DISTANCE_BITS, "tokens from row 0 to the newest", NUMBER),
            slope=(slopes, "of each query, FP16: added per token of distance", FP16),
        )

    @property
    def heads_layout(self) -> Payload:
        """One word per query."""
        words = data.ArrayLayout(FP16.bits, self.rate.queries)
        return Payload(word=(words, "FP16 words of one key, one per query", FP16), last=BEAT_LAST)

    @property
    def sum_layout(self) -> Payload:
        values = data.ArrayLayout(signed(self.value_bits), self.rate.window_macs)
        return Payload(
            value=(values, "exact sums, in units of 2**-48", fixed(PRODUCT_GRID)), last=BEAT_LAST
        )


class ExactKeys:
    """Walks over the exact keys of ``job``: sinks first, then recent tokens, oldest first.

    Set by the parent
    -----------------
    restart : to the first key of ``of``, the job that begins; wins
    rewind : to the first key of ``job`` again; wins over ``advance``
    advance : to the next key

    Read by the parent
    ------------------
    index : of the key
    row : of the memory
    away : distance of the key
    """

    def __init__(self, m: Module, config: MillionWindowConfig, of, job):
        self.restart = Signal(name="keys_restart")
        self.advance = Signal(name="keys_advance")
        self.rewind = Signal(name="keys_rewind")
        self.index = Signal(range(config.rows), name="keys_index")
        self.row = Signal(range(config.slots * config.rows), name="keys_row")
        self.away = Signal(DISTANCE_BITS, name="keys_away", reset_less=True)
        ring = Signal(range(config.places), name="keys_ring", reset_less=True)
        base = Signal(range(config.slots * config.rows), name="keys_base", reset_less=True)
        is_sink = Signal(name="keys_is_sink")
        has_distance = "distance" in of.shape().members
        row = Mux(is_sink, self.index, config.cache.window.sinks + ring)
        m.d.comb += [is_sink.eq(self.index < job.sinks), self.row.eq(base + row)]
        with m.If(self.advance):
            m.d.sync += self.index.eq(self.index + 1)
            with m.If(~is_sink):
                m.d.sync += ring.eq(after(ring, config.places))
            if has_distance:
                to_recent = self.index + 1 == job.sinks
                m.d.sync += self.away.eq(Mux(to_recent, job.recent, self.away) - 1)
        with m.If(self.rewind):
            m.d.sync += [self.index.eq(0), ring.eq(job.start)]
        with m.If(self.restart):
            m.d.sync += [
                self.index.eq(0),
                ring.eq(of.start),
                base.eq(of.slot * config.rows),
            ]
            if has_distance:
                m.d.sync += self.away.eq(Mux(of.sinks == 0, of.recent - 1, of.distance))


def regroup(m: Module, name: str, lanes: int, o_lanes: int):
    """A block from beats ``i`` of ``lanes`` FP16 words to beats ``o`` of ``o_lanes``.

    Both have ``data`` and ``last``. One of the numbers divides the other, and a packet has whole
    beats of both.
    """
    bits = FP16.bits
    if o_lanes >= lanes:
        config = StreamWidenConfig(width=bits * lanes, ratio=o_lanes // lanes)
        return add(m, name, StreamWiden(config))
    ratio = lanes // o_lanes
    narrow = add(m, name, StreamNarrow(StreamNarrowConfig(width=bits * o_lanes, ratio=ratio)))
    m.d.comb += narrow.i.p.count.eq(ratio)
    return narrow
