"""Unsigned integers of a token by exact division."""

import dataclasses
from fractions import Fraction

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice
from golden.fp16.format import FP16
from golden.index.format import INT_BITS
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, FieldOf, Tier
from hdl.children import add
from hdl.fp16.pipeline import Operator, OperatorConfig
from hdl.fp16.round import Rounder
from hdl.fp16.shift import shift_right_sticky
from hdl.fp16.unpack import unpack
from hdl.kinds import BITS, NUMBER
from hdl.ports import In, Out, Payload

_MAX_STAGES = 8
_SCALE_STEPS = 14  # quotient bits of the scale, one per cycle


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnsignedQuotientsConfig(OperatorConfig):
    """Shape of the dividers."""

    int_bits: int = choice(8, INT_BITS, "bits of a quotient")
    lanes: int = bounded(4, 1, 32, "quotients per cycle")

    @property
    def operands(self) -> dict:
        return {"words": self.lanes * FP16.bits, "s": FP16.bits}

    @property
    def results(self) -> dict:
        return {"values": self.lanes * self.int_bits}


class UnsignedQuotients(Operator):
    """``value_l = min(2**b - 1, rne(x_l / s))`` of finite words, 0 for s = 0; signs are ignored.

    Restoring division gives floor(2x/s), one phase per bit, and its remainder rounds: exact, ties
    to even. The dividend is x on the grid of s. 2x/s below 2**(b+1) is below 2**(b+1) significands
    of s there, and anything larger is clamped before the first step.
    """

    def phases(self) -> list:
        config = self.config
        bits, lanes = config.int_bits, config.lanes
        steps = bits + 1
        divisor_bits = FP16.precision

        def align(m: Module, f: dict) -> dict:
            s = unpack(m, f["s"], FP16, "s")
            out = {"divisor": s.significand, "zero": let(m, "zero", s.is_zero)}
            for lane in range(lanes):
                word = f["words"][lane * FP16.bits : (lane + 1) * FP16.bits]
                x = unpack(m, word, FP16, f"x_{lane}")
                # 2x/s = (significand of x << steps) >> distance, over the significand of s
                distance = let(
                    m, f"distance_{lane}", s.exponent - x.exponent + Const(bits, signed(8))
                )
                amount = Signal(5, name=f"amount_{lane}")
                m.d.comb += amount.eq(Mux(distance > 31, 31, distance))
                wide = Cat(Const(0, steps), x.significand)
                # Bits are lost only where x < s/2, which gives 0 with them and without.
                dividend, _ = shift_right_sticky(m, wide, amount, f"dividend_{lane}")
                rest = dividend[steps:]
                out[f"rest_{lane}"] = let(m, f"rest_{lane}", rest)
                out[f"digits_{lane}"] = let(m, f"digits_{lane}", dividend[:steps])
                # A negative distance: x is so much larger that it is normal, not 0.
                out[f"clamp_{lane}"] = let(
                    m, f"clamp_{lane}", (distance < 0) | (rest >= s.significand)
                )
            return out

        def step(m: Module, f: dict) -> dict:
            out = dict(f)
            for lane in range(lanes):
                digits, rest = f[f"digits_{lane}"], f[f"rest_{lane}"]
                trial = let(m, f"trial_{lane}", Cat(digits[-1], rest))
                fits = let(m, f"fits_{lane}", trial >= f["divisor"])
                difference = Signal(divisor_bits, name=f"difference_{lane}")
                m.d.comb += difference.eq(trial - Mux(fits, f["divisor"], 0))
                out[f"rest_{lane}"] = difference
                out[f"digits_{lane}"] = let(m, f"shifted_{lane}", Cat(fits, digits[:-1]))
            return out

        def round_(m: Module, f: dict) -> dict:
            values = []
            for lane in range(lanes):
                digits = f[f"digits_{lane}"]
                up = digits[0] & (f[f"rest_{lane}"].any() | digits[1])
                rounded = let(m, f"rounded_{lane}", digits[1:] + up)
                value = Signal(bits, name=f"value_{lane}")
                with m.If(~f["zero"]):
                    m.d.comb += value.eq(
                        Mux(f[f"clamp_{lane}"] | rounded[bits], (1 << bits) - 1, rounded)
                    )
                values.append(value)
            return {"values": Cat(values)}

        return [align, *[step] * steps, round_]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmIntegerQuantizerConfig(Config):
    """Shape of the integer quantizer."""

    int_bits: int = choice(8, INT_BITS, "bits of an integer")
    elements: int = bounded(16, 1, 32, "elements of a row")
    lanes: int = 4  # dividers, a divisor of elements
    stages: int = bounded(5, 1, _MAX_STAGES, "cycles of latency of a divider")
    tag_bits: int = bounded(1, 1, 100, "sideband carried with each row")

    def __post_init__(self) -> None:
        self._check_range("lanes", 1, self.elements)
        if self.elements % self.lanes:
            self._refuse("lanes", f"a divisor of elements {self.elements}")

    @property
    def parts(self) -> int:
        """Cycles of one row in the dividers."""
        return self.elements // self.lanes

    @property
    def timing(self) -> Timing:
        """A row is divided in ``parts``; the scale takes _SCALE_STEPS steps of a division."""
        return Timing(
            latency=self.stages + self.parts - 1,
            interval=Fraction(self.parts),
            words=(("i", 1), ("o", 1)),
            unit="row",
            delays=(("from largest to scale", _SCALE_STEPS + 2),),
        )

    @property
    def word_layout(self) -> data.StructLayout:
        return Payload(word=(FP16.bits, "FP16 word", FP16))

    @property
    def i_layout(self) -> data.StructLayout:
        words = data.ArrayLayout(FP16.bits, self.elements)
        return Payload(
            word=(words, "FP16 elements", FP16),
            s=(FP16.bits, "the token's scale s, FP16", FP16),
            tag=(self.tag_bits, "passes unchanged with its beat", BITS),
        )

    @property
    def o_layout(self) -> data.StructLayout:
        values = data.ArrayLayout(self.int_bits, self.elements)
        return Payload(
            value=(values, "unsigned integer of each element", NUMBER),
            tag=(self.tag_bits, "passes unchanged with its beat", BITS),
        )


class KllmIntegerQuantizer(Block):
    """``scale = rne16(largest / (2**b - 1))`` and ``value_e = min(2**b - 1, rne(x_e / s))``.

    Both quotients are of the words, rounded once, nearest even; s = 0 gives 0. Signs are ignored;
    NaN and infinity are illegal: the words that they give are unspecified, nothing hangs.
    ``largest`` and ``i`` know nothing of each other: whoever sends rows waits for the scale.

    Scale: one quotient bit per cycle, 16 cycles from largest to scale, one word at a time. Rows:
    one per ``elements / lanes`` cycles, latency as many plus ``stages`` less one; ``i.ready``
    depends combinationally on ``o.ready``.
    Source: KLLM, integer score x V. Golden: golden.kllm.quantize.unsigned_scale,
    unsigned_quotient.

    The block computes floor(2x/s) bit by bit. The remainder decides ties. It drops bits of x below
    the grid of s: then x < s/2, and the integer is 0. It clamps a quotient of 2**b or more before
    the first step. A scale of the token's largest element gives a quotient below 1.5 (2**b - 1).
    The quotient reaches that range where s is subnormal. Decision 0042 says why it divides.
    ``python -m synth.report kllm_integer_quantizer`` gives 10.9 kGE, of which the four dividers are
    8.9.
    """

    tier = Tier.PART
    golden = "golden.kllm.quantize:unsigned_quotient"
    default = KllmIntegerQuantizerConfig()
    configs = FieldOf("kllm_quantizer", "integer_config", ("table1", "small"))

    def __init__(self, config: KllmIntegerQuantizerConfig):
        super().__init__(
            config,
            {
                "largest": In(
                    stream.Signature(config.word_layout), "the largest element of a token"
                ),
                "scale": Out(stream.Signature(config.word_layout), "the scale made of it"),
                "i": In(stream.Signature(config.i_layout), "elements of a token with its scale"),
                "o": Out(stream.Signature(config.o_layout), "unsigned integers"),
            },
        )

    @property
    def timing(self) -> Timing:
        return self.config.timing

    def elaborate(self, platform) -> Module:
        m = Module()
        self._elaborate_scale(m)
        self._elaborate_rows(m)
        return m

    def _elaborate_scale(self, m: Module) -> None:
        """largest * 2**places over 2**b - 1, bit by bit; what remains is sticky."""
        bits = self.config.int_bits
        top = (1 << bits) - 1
        # A normal quotient has 12 bits or more, so the rounding bit is one of them.
        places = bits + 2
        rest = Signal(bits)  # the first bits - 1 of the dividend are below the divisor
        dividend = Signal(_SCALE_STEPS, reset_less=True)  # bits to come, then quotient bits
        exponent = Signal(FP16.exp_bits, reset_less=True)
        left = Signal(range(_SCALE_STEPS + 1))
        busy = Signal()
        done = Signal()
        scale = Signal(FP16.bits, reset_less=True)
        word = unpack(m, self.largest.p.word, FP16, "largest")
        trial = Signal(bits + 1)
        fits = Signal()
        rounder = Rounder(
            format=FP16,
            width=_SCALE_STEPS,
            lowest=FP16.grid_exponent - places,
            highest=FP16.largest_grid_exponent + 1 - places,
        )
        rounded = rounder(
            m,
            {
                "significand": dividend,
                "exponent": let(
                    m, "weight", exponent + Const(FP16.grid_exponent - 1 - places, signed(8))
                ),
                "sticky": let(m, "inexact", rest.any()),
                "sign": Const(0, 1),
                "zero_sign": Const(0, 1),
                "is_nan": Const(0, 1),
                "is_inf": Const(0, 1),
            },
        )
        m.d.comb += [
            self.largest.ready.eq(~busy & ~done),
            self.scale.valid.eq(done),
            self.scale.p.word.eq(scale),
            trial.eq(Cat(dividend[-1], rest)),
            fits.eq(trial >= top),
        ]
        with m.If(self.largest.valid & self.largest.ready):
            split = FP16.precision - (bits - 1)
            m.d.sync += [
                busy.eq(1),
                left.eq(_SCALE_STEPS),
                exponent.eq(word.exponent),
                rest.eq(word.significand[split:]),
                dividend.eq(Cat(Const(0, places), word.significand[:split])),
            ]
        with m.Elif(busy):
            m.d.sync += left.eq(left - 1)
            with m.If(left != 0):
                m.d.sync += [
                    rest.eq(Mux(fits, trial - top, trial)),
                    dividend.eq(Cat(fits, dividend[:-1])),
                ]
            with m.Else():
                m.d.sync += [busy.eq(0), done.eq(1), scale.eq(rounded)]
        with m.Elif(self.scale.ready):
            m.d.sync += done.eq(0)

    def _elaborate_rows(self, m: Module) -> None:
        """A row passes the dividers part by part; the parts meet again after them."""
        config = self.config
        parts, lanes = config.parts, config.lanes
        tag = data.StructLayout({"last": 1, "tag": config.tag_bits})
        divide = add(
            m,
            "divide",
            UnsignedQuotients(
                UnsignedQuotientsConfig(
                    int_bits=config.int_bits,
                    lanes=lanes,
                    stages=config.stages,
                    tag_bits=tag.size,
                )
            ),
        )
        part = Signal(range(parts), name="part") if parts > 1 else Const(0, 1)
        is_last = Signal()
        words = self.i.p.word.as_value()
        tag_i, tag_o = data.View(tag, divide.i.p.tag), data.View(tag, divide.o.p.tag)
        m.d.comb += [
            is_last.eq(part == parts - 1),
            divide.i.valid.eq(self.i.valid),
            divide.i.p.words.eq(words.word_select(part, lanes * FP16.bits)),
            divide.i.p.s.eq(self.i.p.s),
            tag_i.last.eq(is_last),
            tag_i.tag.eq(self.i.p.tag),
            self.i.ready.eq(divide.i.ready & is_last),
        ]
        values = divide.o.p["values"]
        if parts > 1:
            with m.If(divide.i.valid & divide.i.ready):
                m.d.sync += part.eq(Mux(is_last, 0, part + 1))
            width = lanes * config.int_bits
            earlier = Signal((parts - 1) * width, reset_less=True)
            values = Cat(earlier, values)
            with m.If(divide.o.valid & ~tag_o.last):
                m.d.sync += earlier.eq(values[width:])
        m.d.comb += [
            self.o.valid.eq(divide.o.valid & tag_o.last),
            divide.o.ready.eq(self.o.ready | ~tag_o.last),
            self.o.p.value.as_value().eq(values),
            self.o.p.tag.eq(tag_o.tag),
        ]
