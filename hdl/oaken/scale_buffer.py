"""Scales of the tokens being read, again for every head."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.timing import Timing
from hdl.bits import after, let
from hdl.block import Block, Tier
from hdl.children import add
from hdl.kinds import NUMBER
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.oaken.layouts import SCALE, SCALE_LAYOUT
from hdl.paging.layouts import TOKEN_BITS
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenScaleBufferConfig(Config):
    """Capacity."""

    depth: int = bounded(1024, 4, 65_536, "tokens held")

    @property
    def scale_layout(self) -> data.StructLayout:
        return Payload(
            scale=SCALE,
            error=(1, "the word was read with an error, or has any scale"),
        )

    @property
    def request_layout(self) -> data.StructLayout:
        return Payload(
            tokens=(TOKEN_BITS, "words of i per request", NUMBER),
            heads=(8, "times that they are given", NUMBER),
        )

    @property
    def memory(self) -> MemoryConfig:
        return MemoryConfig(depth=self.depth, width=self.scale_layout.size)


class OakenScaleBuffer(Block):
    """``o`` = the next ``tokens`` words of ``i``, in order, ``heads`` times over, per request.

    A ring of ``depth`` words. Words are taken in as long as there is room, those of later requests
    too; a word leaves while the last head reads it. With ``heads`` = 1 the words stream through,
    any number of them. ``tokens`` above ``depth`` with more heads do not fit. The words then go
    through once and the other heads get words of any scale, all of them with ``error``. A request
    of no tokens or no heads takes and gives nothing.

    1 word per cycle, also across heads and requests; 2 cycles from ``i`` to ``o``. ``i.ready`` is
    ``level != depth``; ``request.ready`` depends combinationally on ``o.ready``. The memory's row
    being written is never read in the same cycle.
    Golden: golden.oaken.dequantize.repeat_scales.

    A vector's scales belong to all its heads, and a request reads head after head. So scale records
    come from memory once. The requester splits reads that do not fit into single heads (decision
    0069). A word has 97 bits: six FP16 words and ``error``.
    """

    tier = Tier.PART
    golden = "golden.oaken.dequantize:repeat_scales"
    default = OakenScaleBufferConfig()
    configs: ClassVar = {
        "small": OakenScaleBufferConfig(depth=16),
    }

    def __init__(self, config: OakenScaleBufferConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.scale_layout), "Scale words, one per token."),
                "request": In(
                    stream.Signature(config.request_layout),
                    "How many words to give, and how often.",
                ),
                "o": Out(
                    stream.Signature(config.scale_layout),
                    "The words of each request, once per head.",
                ),
            },
        )

    timing = Timing(latency=2)

    def elaborate(self, platform) -> Module:
        config = self.config
        depth = config.depth
        m = Module()
        ram = add(m, "ram", Memory1R1W(config.memory))

        level = Signal(range(depth + 1))  # words held
        ahead = Signal(range(depth + 1))  # of these, read by this head and kept for the next
        write_row, base_row, read_row = (
            Signal(range(depth), name=name) for name in ("write_row", "base_row", "read_row")
        )
        active = Signal()
        beyond = Signal(reset_less=True)
        tokens = Signal(TOKEN_BITS, reset_less=True)
        tokens_left = Signal(TOKEN_BITS, reset_less=True)
        heads_left = Signal(8, reset_less=True)
        absent = Signal(reset_less=True)  # the words of this head are not held

        shown = Signal()
        forced = Signal(reset_less=True)
        free = let(m, "free", ~shown | self.o.ready)
        give = let(m, "give", active & free & (absent | (level > ahead)))
        fetch = let(m, "fetch", give & ~absent)
        is_last_head = let(m, "is_last_head", heads_left == 1)
        leaves = let(m, "leaves", fetch & (is_last_head | beyond))
        ends_head = let(m, "ends_head", give & (tokens_left == 1))
        ends = let(m, "ends", ends_head & is_last_head)
        enters = let(m, "enters", self.i.valid & self.i.ready)

        m.d.comb += [
            self.i.ready.eq(level != depth),
            ram.write_en.eq(enters),
            ram.write_addr.eq(write_row),
            ram.write_data.eq(self.i.payload),
            ram.read_en.eq(fetch),
            ram.read_addr.eq(read_row),
            self.o.valid.eq(shown),
            self.o.p.scale.eq(ram.read_data[: SCALE_LAYOUT.size]),
            self.o.p.error.eq(ram.read_data[-1] | forced),
        ]
        m.d.sync += level.eq(level + enters - leaves)
        with m.If(enters):
            m.d.sync += write_row.eq(after(write_row, depth))
        with m.If(leaves):
            m.d.sync += base_row.eq(after(base_row, depth))
        with m.If(free):
            m.d.sync += [shown.eq(give), forced.eq(beyond)]
        with m.If(fetch):
            m.d.sync += read_row.eq(after(read_row, depth))
            with m.If(~leaves):
                m.d.sync += ahead.eq(ahead + 1)
        with m.If(give):
            m.d.sync += tokens_left.eq(tokens_left - 1)
        with m.If(ends_head):
            m.d.sync += [
                tokens_left.eq(tokens),
                heads_left.eq(heads_left - 1),
                ahead.eq(0),
                absent.eq(beyond),
            ]
            with m.If(~leaves & ~absent):
                m.d.sync += read_row.eq(base_row)

        ready = let(m, "ready", ~active | ends)
        m.d.comb += self.request.ready.eq(ready)
        with m.If(ready):
            request = self.request.p
            m.d.sync += active.eq(self.request.valid & request.tokens.any() & request.heads.any())
            with m.If(self.request.valid):
                m.d.sync += [
                    tokens.eq(request.tokens),
                    tokens_left.eq(request.tokens),
                    heads_left.eq(request.heads),
                    beyond.eq((request.heads > 1) & (request.tokens > depth)),
                    absent.eq(0),
                ]
        return m
