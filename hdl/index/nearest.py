"""Centroid indices by thresholds scaled once per token (docs/blocks/index_nearest.md)."""

import contextlib
import dataclasses
from fractions import Fraction
from itertools import pairwise
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.index import timing
from golden.index.format import CODEBOOK_BITS_MAX, CODEBOOK_BITS_MIN
from golden.timing import Timing
from hdl.block import Block
from hdl.children import add
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.fp16.pipeline import TAG_TEXT
from hdl.kinds import BITS, index_of
from hdl.ports import In, Out, Payload

_MUL_STAGES = 2
_LOWEST_KEY, _HIGHEST_KEY = -(1 << 15), (1 << 15) - 1  # beyond the keys of both infinities


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexNearestConfig(Config):
    """Shape of the clustering unit."""

    bits_a: int = bounded(4, CODEBOOK_BITS_MIN, CODEBOOK_BITS_MAX, "bits of an index")
    elements: int = bounded(16, 1, 32, "elements of a beat")
    tag_bits: int = bounded(0, 0, 128, "sideband carried with each beat; 0: no such field")
    multipliers: int = 1  # thresholds scaled per cycle, 1..a third of them (1, 3 or 5)
    parts: int = 1  # cycles in which the elements of a beat are compared, a divisor of elements

    def __post_init__(self) -> None:
        self._check_range("parts", 1, self.elements)
        if self.elements % self.parts:
            self._refuse("parts", f"a divisor of elements = {self.elements}")
        # Scaling then takes 3 cycles or more: a token's thresholds fill the multipliers' pipeline.
        self._check_range("multipliers", 1, timing.multipliers_max(self.bits_a))

    @property
    def bounds(self) -> int:
        """Midpoints of a codebook, and thresholds of a token."""
        return 2**self.bits_a - 1

    @property
    def compared(self) -> int:
        """Elements compared per cycle."""
        return self.elements // self.parts

    @property
    def scaling_cycles(self) -> int:
        """Cycles in which the thresholds of a token enter the multipliers."""
        return -(-self.bounds // self.multipliers)

    @property
    def _tag(self) -> dict:
        return {"tag": (self.tag_bits, TAG_TEXT, BITS)} if self.tag_bits else {}

    @property
    def midpoints_layout(self) -> data.StructLayout:
        return Payload(
            word=(FP16.bits, "FP16 word", FP16), last=(1, "the last midpoint of the codebook")
        )

    @property
    def scale_layout(self) -> data.StructLayout:
        return Payload(word=(FP16.bits, "FP16 word", FP16))

    @property
    def x_layout(self) -> data.StructLayout:
        words = data.ArrayLayout(FP16.bits, self.elements)
        return Payload(
            word=(words, "FP16 elements", FP16), last=(1, "end of the token"), **self._tag
        )

    @property
    def o_layout(self) -> data.StructLayout:
        indices = data.ArrayLayout(self.bits_a, self.elements)
        return Payload(
            index=(indices, "index of the centroid nearest to each element", index_of("centroids")),
            fault=(1, "no valid midpoints were loaded"),
            last=(1, "end of the token"),
            **self._tag,
        )


class IndexNearest(Block):
    """``index_e = number of i with x_e > rne16(s * midpoint_i)`` for every element of a token.

    midpoint_i = rne16((c_i + c_{i+1}) / 2), computed offline; any FP16 words in any order are
    legal. The only rounding is that of the product. The comparison is IEEE 754's: -0 equals +0,
    and a NaN on either side counts nothing. A token is one scale, then beats up to ``last``.
    ``fault`` is set on each beat of a token if the latest midpoints packet had not 2**bits_a - 1
    words, or none came since reset. The token's indices are 0 and nothing waits.

    The block takes a packet on ``midpoints`` between tokens. Once a packet is offered, the block
    takes no further scale. The packet starts when every token whose scale was taken has ended. The
    midpoints hold until replaced.

    ``multipliers`` multipliers scale the thresholds, n = ceil((2**bits_a - 1) / multipliers) cycles
    per token, into a double buffer. So the next token's scaling overlaps this token's beats. A beat
    takes ``parts`` cycles: its elements are compared in so many parts. Tokens of at least n cycles
    follow without a pause. Shorter ones run at one token per n cycles. Latency is 2 cycles from x
    to o. The first beat is compared n + 5 cycles after its scale when nothing else is in flight. It
    is taken with its last part. ``x.ready`` depends combinationally on ``o.ready``, ``scale.ready``
    on ``midpoints.valid``.
    Source: KLLM, section IV-A. Golden: golden.index.nearest.cluster_by_midpoints.
    """

    golden = "golden.index.nearest:cluster_by_midpoints"
    reference = "tests/index/test_nearest.py: test_rule_on_any_words"
    default = IndexNearestConfig()
    configs: ClassVar = {
        "table1": IndexNearestConfig(),
        "table1_w4a3": IndexNearestConfig(bits_a=3),
        "small": IndexNearestConfig(bits_a=2, elements=4),
    }

    def __init__(self, config: IndexNearestConfig):
        super().__init__(
            config,
            {
                "midpoints": In(
                    stream.Signature(config.midpoints_layout),
                    "rne16 of the middle between neighbouring centroids, kept until replaced",
                ),
                "scale": In(
                    stream.Signature(config.scale_layout),
                    "the scale of one token, before its elements",
                ),
                "x": In(stream.Signature(config.x_layout), "elements of a token; last ends it"),
                "o": Out(
                    stream.Signature(config.o_layout), "centroid indices; fault: no valid midpoints"
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        """A token's thresholds enter the multipliers before its first beat."""
        first = self.config.scaling_cycles + _MUL_STAGES + 2 + self.config.parts
        return Timing(
            latency=2,
            interval=Fraction(self.config.parts),
            start="x",
            unit="beat",
            delays=(("from a scale to its first beat of x", first),),
        )

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        bounds, width, turns = config.bounds, config.multipliers, config.scaling_cycles
        # All in step: the first one's handshake is that of all.
        multipliers = [
            add(m, f"multiply_{n}", FpMul(FpMulConfig(stages=_MUL_STAGES))) for n in range(width)
        ]
        multiply, unused = multipliers[0], turns * width - bounds

        # Midpoints: a ring that the scaling turns once per token, so that neither loading nor
        # reading needs a multiplexer. Its first ``unused`` words are of no packet.
        in_flight = Signal(3)  # scales taken whose last beat is still to come: 4 at most
        loaded = Signal()
        loading = Signal()
        count = Signal(range(bounds + 2))  # words of this packet so far, held at one too many
        ring = [
            Signal(FP16.bits, name=f"ring_{i}", reset_less=True) for i in range(unused + bounds)
        ]
        take_midpoint = Signal()
        turn = Signal()
        m.d.comb += [
            self.midpoints.ready.eq(in_flight == 0),
            take_midpoint.eq(self.midpoints.valid & self.midpoints.ready),
        ]
        with m.If(take_midpoint):
            m.d.sync += [
                loading.eq(~self.midpoints.p.last),
                loaded.eq(self.midpoints.p.last & (count == bounds - 1)),
                count.eq(Mux(self.midpoints.p.last, 0, Mux(count > bounds, count, count + 1))),
            ]
        turned = ring[width:] + ring[:width]
        with m.If(take_midpoint):
            m.d.sync += [word.eq(after) for word, after in pairwise(ring)]
            m.d.sync += ring[-1].eq(self.midpoints.p.word)
        with m.Elif(turn):
            m.d.sync += [word.eq(after) for word, after in zip(ring, turned, strict=True)]

        # Scales: one waits while another is multiplied.
        waiting = Signal()
        scaling = Signal()
        next_scale = Signal(FP16.bits, reset_less=True)
        scale = Signal(FP16.bits, reset_less=True)
        left = Signal(range(max(turns, 2)))  # turns of the ring still to start, less one
        take_scale = Signal()
        start = Signal()
        m.d.comb += [
            self.scale.ready.eq(~waiting & ~loading & ~self.midpoints.valid),
            take_scale.eq(self.scale.valid & self.scale.ready),
            *(each.i.valid.eq(scaling) for each in multipliers),
            *(each.i.p.a.eq(scale) for each in multipliers),
            *(each.i.p.b.eq(word) for each, word in zip(multipliers, ring, strict=False)),
            turn.eq(scaling & multiply.i.ready),
            start.eq(waiting & (~scaling | (turn & (left == 0)))),
        ]
        with m.If(take_scale):
            m.d.sync += [next_scale.eq(self.scale.p.word), waiting.eq(1)]
        with m.Elif(start):
            m.d.sync += waiting.eq(0)
        with m.If(start):
            m.d.sync += [scale.eq(next_scale), scaling.eq(1), left.eq(turns - 1)]
        with m.Elif(turn):
            m.d.sync += [scaling.eq(left != 0), left.eq(left - 1)]

        # Thresholds: collected for the next token while the current one's are in use.
        collected = Signal(range(turns + 1))
        in_use = Signal()
        complete = Signal()
        hand_over = Signal()
        collect = Signal()
        take_x = Signal()
        end = Signal()
        following = [
            Signal(signed(FP16.bits), name=f"following_{i}", reset_less=True)
            for i in range(unused + bounds)
        ]
        current = [
            Signal(signed(FP16.bits), name=f"current_{i}", reset_less=True) for i in range(bounds)
        ]
        m.d.comb += [
            complete.eq(collected == turns),
            hand_over.eq(complete & (~in_use | end)),
            *(each.o.ready.eq(~complete | hand_over) for each in multipliers),
            collect.eq(multiply.o.valid & multiply.o.ready),
        ]
        products = [_key(each.o.p.y, nan_key=_HIGHEST_KEY) for each in multipliers]
        shifted = following[width:] + products
        with m.If(collect):
            m.d.sync += [word.eq(after) for word, after in zip(following, shifted, strict=True)]
        with m.If(hand_over):
            thresholds = following[unused:]
            m.d.sync += [now.eq(then) for now, then in zip(current, thresholds, strict=True)]
            m.d.sync += [collected.eq(collect), in_use.eq(1)]
        with m.Else():
            m.d.sync += collected.eq(collected + collect)
            with m.If(end):
                m.d.sync += in_use.eq(0)
        m.d.sync += in_flight.eq(in_flight + take_scale - end)

        self._elements(m, current, loaded, in_use, take_x, end)
        return m

    def _elements(self, m: Module, current, loaded, in_use, take_x, end) -> None:
        """Elements are compared with the thresholds in use, a part at a time, then counted."""
        config, bounds, compared = self.config, self.config.bounds, self.config.compared
        moves = [Signal(name=f"move_{stage}") for stage in range(2)]
        held = [Signal(name=f"held_{stage}") for stage in range(2)]
        has_parts = config.parts > 1
        part = Signal(range(config.parts)) if has_parts else Const(0)
        above_part = Signal(range(config.parts), reset_less=True) if has_parts else Const(0)
        above_ends = Signal(reset_less=True) if has_parts else Const(1)  # a beat's last part
        is_last_part = part == config.parts - 1 if has_parts else Const(1)
        enter = Signal()
        m.d.comb += [
            moves[1].eq(~held[1] | self.o.ready),
            moves[0].eq(~held[0] | moves[1]),
            enter.eq(in_use & moves[0] & self.x.valid),
            self.x.ready.eq(in_use & moves[0] & is_last_part),
            take_x.eq(self.x.valid & self.x.ready),
            end.eq(take_x & self.x.p.last),
            self.o.valid.eq(held[1]),
        ]
        above = [Signal(bounds, name=f"above_{e}", reset_less=True) for e in range(compared)]
        above_last = Signal(reset_less=True)
        above_fault = Signal(reset_less=True)
        above_tag = Signal(max(config.tag_bits, 1), reset_less=True)
        words = self.x.p.word
        if has_parts:
            chosen = words.as_value().word_select(part, compared * FP16.bits)
            words = data.View(data.ArrayLayout(FP16.bits, compared), chosen)
            with m.If(enter):
                m.d.sync += part.eq(Mux(is_last_part, 0, part + 1))
            with m.If(moves[0]):
                m.d.sync += [above_part.eq(part), above_ends.eq(is_last_part)]
        with m.If(moves[0]):
            m.d.sync += [held[0].eq(enter), above_last.eq(self.x.p.last), above_fault.eq(~loaded)]
            for e, flags in enumerate(above):
                key = Signal(signed(FP16.bits), name=f"key_{e}")
                m.d.comb += key.eq(_key(words[e], nan_key=_LOWEST_KEY))
                m.d.sync += flags.eq(Cat(key > bound for bound in current))
            if config.tag_bits:
                m.d.sync += above_tag.eq(self.x.p.tag)
        o = Signal(config.o_layout, reset_less=True)
        m.d.comb += self.o.p.eq(o)
        with m.If(moves[1]):
            m.d.sync += [
                held[1].eq(held[0] & above_ends), o.last.eq(above_last), o.fault.eq(above_fault),
            ]  # fmt: skip
            for n in range(config.parts):
                with m.If(above_part == n) if has_parts else contextlib.nullcontext():
                    m.d.sync += [
                        o.index[n * compared + e].eq(Mux(above_fault, 0, sum(flags)))
                        for e, flags in enumerate(above)
                    ]
            if config.tag_bits:
                m.d.sync += o.tag.eq(above_tag)


def _key(word, nan_key: int) -> Value:
    """Signed 16-bit integer in the order of the values, -0 equal to +0; ``nan_key`` for a NaN."""
    magnitude = word[:-1]
    negative = word[-1] & magnitude.any()
    key = Cat(magnitude ^ negative.replicate(FP16.bits - 1), negative)
    return Mux(magnitude > FP16.infinity, Const(nan_key, FP16.bits), key).as_signed()
