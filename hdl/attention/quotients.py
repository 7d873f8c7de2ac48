"""Exact sums of weighted values over the sums of the weights: the end of exact attention.

    o = rne16(rne32(W) * rne32(1 / rne32(S)))

Golden: golden.attention.exact.quotients.
"""

from collections.abc import Mapping

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value

from golden.attention.format import WEIGHT_GRID
from golden.fp16.format import FP16, FP32
from hdl.children import add
from hdl.fp16.divide import FpReciprocal, FpReciprocalConfig
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.fp16.mul import FpMul, FpMulConfig

_SUM_STAGES = 4
_MUL_STAGES = 3
_TO_FLOAT_STAGES = 2
_RECIPROCAL_STAGES = 10


def reciprocals(m: Module, sums: Value, queries: int) -> tuple[list[Signal], Signal, Signal]:
    """(registers of ``rne32(1 / rne32(S))``, input: compute them, output: the last one comes).

    ``sums`` has S of each query, in units of 2**-24, constant while they are computed.
    """
    bits = len(sums) // queries
    shape = FixedToFloatConfig(
        width=bits + 1, grid_exponents=(WEIGHT_GRID,), o=FP32, stages=_TO_FLOAT_STAGES
    )
    to_float = add(m, "total_to_float", FixedToFloat(shape))
    divider = FpReciprocal(FpReciprocalConfig(a=FP32, o=FP32, stages=_RECIPROCAL_STAGES))
    reciprocal = add(m, "reciprocal", divider)
    inverses = [Signal(FP32.bits, name=f"inverse_{n}", reset_less=True) for n in range(queries)]
    invert = Signal()
    inverted = Signal()
    sent = Signal(range(queries + 1))
    got = Signal(range(queries + 1))
    total = sums.word_select(sent[: max(1, (queries - 1).bit_length())], bits)
    m.d.comb += [
        to_float.i.valid.eq(invert & (sent != queries)),
        to_float.i.p.value.eq(Cat(total, Const(0, 1)).as_signed()),
        reciprocal.i.valid.eq(to_float.o.valid),
        to_float.o.ready.eq(1),
        reciprocal.i.p.a.eq(to_float.o.p.y),
        reciprocal.o.ready.eq(1),
        inverted.eq(reciprocal.o.valid & (got == queries - 1)),
    ]
    with m.If(invert):
        with m.If(sent != queries):
            m.d.sync += sent.eq(sent + 1)
        with m.If(reciprocal.o.valid):
            m.d.sync += got.eq(got + 1)
    with m.Else():
        m.d.sync += [sent.eq(0), got.eq(0)]
    for n, inverse in enumerate(inverses):
        with m.If(reciprocal.o.valid & (got == n)):
            m.d.sync += inverse.eq(reciprocal.o.p.y)
    return inverses, invert, inverted


class Quotients:
    """Elements of W, several at a time, over S: words for ``beats``, a StreamWiden.

    bits, grid : of an element of W, signed, and exponent of its unit
    held : the elements of this cycle count
    side : registers of all of them: ``inverse`` of S, ``bad`` for NaN, and ``last``
    takes : driven; the registers of the elements take others at the end of the cycle
    """

    def __init__(self, m: Module, bits: int, grid: int, held, side: Mapping, takes, beats):
        self.m, self.bits, self.grid, self.held = m, bits, grid, held
        self.side, self.takes, self.beats = side, takes, beats
        self._first = self._last = None  # stages of element 0, which carry the side of all

    def element(self, n: int, value) -> None:
        """Adds element ``n``; all of them move together, element 0 first."""
        m, beats = self.m, self.beats
        tag = FP32.bits + 2 if n == 0 else 0
        to_float = add(
            m,
            f"to_float_{n}",
            FixedToFloat(
                FixedToFloatConfig(
                    width=self.bits,
                    grid_exponents=(self.grid,),
                    o=FP32,
                    stages=_SUM_STAGES,
                    tag_bits=tag,
                )
            ),
        )
        product = FpMulConfig(a=FP32, b=FP32, stages=_MUL_STAGES, tag_bits=2 if tag else 0)
        product = add(m, f"divided_{n}", FpMul(product))
        if tag:
            self._first, self._last = to_float, product
            side = Cat(self.side["inverse"], self.side["bad"], self.side["last"])
            m.d.comb += [
                self.takes.eq(~self.held | to_float.i.ready),
                to_float.i.p.tag.eq(side),
                product.i.p.tag.eq(to_float.o.p.tag[FP32.bits :]),
                beats.i.valid.eq(product.o.valid),
                beats.i.p.last.eq(product.o.p.tag[1]),
            ]
        m.d.comb += [
            to_float.i.valid.eq(self.held),
            to_float.i.p.value.eq(value),
            product.i.valid.eq(to_float.o.valid),
            product.i.p.a.eq(to_float.o.p.y),
            product.i.p.b.eq(self._first.o.p.tag[: FP32.bits]),
            to_float.o.ready.eq(product.i.ready),
            product.o.ready.eq(beats.i.ready),
            beats.i.p.data.word_select(n, FP16.bits).eq(
                Mux(self._last.o.p.tag[0], FP16.canonical_nan, product.o.p.y)
            ),
        ]
