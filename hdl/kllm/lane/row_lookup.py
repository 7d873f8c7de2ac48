"""Activation indices to rows of products (docs/blocks/kllm_row_lookup.md)."""

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.kllm.timing import row_lookup
from golden.timing import Timing
from hdl.bits import any_of, let, one_hot
from hdl.block import Block
from hdl.index.reducer import centroid_parts
from hdl.kllm.lane.select_config import KllmSelectConfig
from hdl.ports import In, Out

__all__ = ["KllmRowLookup"]

_PRODUCT_BITS = 26  # -1..1 on the grid 2**-24, two's complement


class KllmRowLookup(Block):
    """``o.row[e][j] = inlier_e ? table[value_e][j] : 0``: a row of ``2**bits_b`` words per element.

    ``product`` fills the table with FP16 words in -1..1 (others are illegal and not checked). The
    table holds them exactly, on the grid 2**-24. The word of bin ``a * 2**bits_b + j`` is entry
    ``[a][j]``. A word of row 0 also sets entry ``[n][j]`` to n times it, for each n from 1. So
    ``2**bits_b`` centroids C_V make the table of integers. The words of row 0 precede those of the
    other rows, which replace the multiples.

    In integer mode the block takes a beat in digits of ``bits_a`` bits of each value. Each digit is
    a beat of ``o``, the lowest first, and ``last`` is on the final one. Digit 0 has a row of zeros.
    ``index`` and ``tag`` pass unchanged. The parent changes ``is_integer`` and the table only while
    no beat is inside.

    Latency 1 cycle. One beat per cycle, in integer mode one digit. ``i.ready`` depends
    combinationally on ``o.ready``; ``product.ready`` is 1. Nothing rounds.
    Source: KLLM, section III-B; the rows replace its counters. Golden:
    golden.kllm.select.look_up_rows.
    """

    def __init__(self, config: KllmSelectConfig):
        super().__init__(
            config,
            {
                "product": In(
                    stream.Signature(config.product_layout),
                    "Words of the table, row 0 first.",
                ),
                "is_integer": In(1, "Integer mode, constant while a beat is inside."),
                "i": In(
                    stream.Signature(config.beat_layout),
                    "Values of one beat, and the weight indices that pass with it.",
                ),
                "o": Out(
                    stream.Signature(config.rows_layout), "Rows of one beat, or of one digit of it."
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return row_lookup(self.config.digits)

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        table = _table(m, config, self.product)
        held = Signal(config.rows_layout, reset_less=True)
        free, final = Signal(), Signal()
        m.d.comb += [
            free.eq(~self.o.valid | self.o.ready),
            self.i.ready.eq(free & final),
            self.o.p.eq(held),
        ]
        digit = _digits(m, config, self.is_integer, final, free & self.i.valid)

        rows = []
        for e, value in enumerate(self.i.p.value):
            code = Signal(config.bits_a, name=f"code_{e}")
            m.d.comb += code.eq(value if digit is None else _place(value, digit, config))
            chosen = one_hot(m, f"code_{e}", code)
            counts = [self.i.p.inlier[e]] * len(chosen)
            if config.integer_bits:
                counts[0] = counts[0] & ~self.is_integer
            rows.append(
                any_of(
                    (one & count).replicate(len(row)) & row
                    for one, count, row in zip(chosen, counts, table, strict=True)
                )
            )
        with m.If(free):
            m.d.sync += self.o.valid.eq(self.i.valid)
        with m.If(free & self.i.valid):
            m.d.sync += [
                held.row.as_value().eq(Cat(rows)),
                held.index.eq(self.i.p.index),
                held.last.eq(self.i.p.last & final),
            ]
            if digit is not None:
                m.d.sync += held.digit.eq(digit)
            if config.tag_bits:
                m.d.sync += held.tag.eq(self.i.p.tag)
        return m


def _table(m: Module, config: KllmSelectConfig, product) -> list[Value]:
    """The rows of the table, filled by ``product``: each a vector of words of ``word_bits``."""
    sign, significand, shift = centroid_parts(product.p.word)
    magnitude = let(m, "magnitude", (significand << shift)[: _PRODUCT_BITS - 1])
    value = Signal(signed(_PRODUCT_BITS))
    is_first_row = Signal()
    m.d.comb += [
        product.ready.eq(1),
        value.eq(Mux(sign, -magnitude, magnitude)),
        is_first_row.eq(product.p.bin >> config.bits_b == 0),
    ]
    multiples = {1: value}
    rows = []
    for n in range(config.rows):
        word, write = value, product.p.bin >> config.bits_b == n
        if config.integer_bits and n:
            multiple = Signal(signed(config.row_bits(n)), name=f"multiple_{n}")
            m.d.comb += multiple.eq(_multiple(multiples, n))
            multiples[n] = multiple
            word, write = Mux(is_first_row, multiple, value), write | is_first_row
        write = let(m, f"write_{n}", product.valid & write)
        bus = let(m, f"bus_{n}", word)
        row = []
        for j in range(config.codes):
            entry = Signal(signed(config.row_bits(n)), name=f"entry_{n}_{j}", reset_less=True)
            with m.If(write & (product.p.bin[: config.bits_b] == j)):
                m.d.sync += entry.eq(bus)
            extension = entry[-1].replicate(config.word_bits - len(entry))
            row.append(Cat(entry, extension))
        rows.append(let(m, f"row_{n}", Cat(row)))
    return rows


def _multiple(known: dict[int, Value], n: int) -> Value:
    """``n`` times ``known[1]``, by one addition from smaller multiples."""
    if n in known:
        return known[n]
    if n % 2 == 0:
        return known[n // 2] << 1
    top = 1 << n.bit_length() - 1
    return known[n - top] + (known[1] << n.bit_length() - 1)


def _digits(m: Module, config: KllmSelectConfig, is_integer, final, step) -> Signal | None:
    """The place of the digit looked up now; None where integers have one. Drives ``final``."""
    if config.digits == 1:
        m.d.comb += final.eq(1)
        return None
    digit = Signal(range(config.digits))
    m.d.comb += final.eq(~is_integer | (digit == config.digits - 1))
    with m.If(step):
        m.d.sync += digit.eq(Mux(final, 0, digit + 1))
    return digit


def _place(value: Value, digit: Value, config: KllmSelectConfig) -> Value:
    """The ``bits_a`` bits of ``value`` at ``digit``."""
    place = Const(0, config.bits_a)
    for d in reversed(range(config.digits)):
        bits = value[config.bits_a * d : config.bits_a * (d + 1)]
        place = bits if d == config.digits - 1 else Mux(digit == d, bits, place)
    return place
