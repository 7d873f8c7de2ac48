"""Activation indices to rows of products."""

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.kllm.format import product_bits
from golden.timing import Timing
from hdl.bits import any_of, let, one_hot
from hdl.block import Block, Tier
from hdl.children import add
from hdl.index.reducer import centroid_parts
from hdl.kllm.lane.select_config import SELECTS, KllmSelectConfig
from hdl.ports import In, Out


class KllmRowLookup(Block):
    """``o.row[e][j] = inlier_e ? table[value_e][j] : 0``: a row of ``2**bits_b`` words per element.

    ``product`` fills the table with words in -1..1 (others are illegal and not checked). With
    ``product=rounded`` they are FP16, and the table holds them exactly, on the grid 2**-24. Words
    of ``fixed16`` and ``fixed12`` are in two's complement, and the table takes their low bits.

    The word of bin ``a * 2**bits_b + j`` is entry ``[a][j]``. A word of row 0 also sets entry
    ``[n][j]`` to n times it, for each n from 1. So ``2**bits_b`` centroids C_V make the table of
    integers. The words of row 0 precede those of the other rows, which replace the multiples. With
    ``antisymmetric`` a row has the lower half of the weight indices, so ``bits_b`` is one less.

    With ``packet_words`` 16 a word of ``product`` has 16 of these, and sets no multiple. One with
    ``multiply`` fills the table with the multiples of its first words, a row per cycle.

    In integer mode the block takes a beat in digits of ``bits_a`` bits of each value. Each digit is
    a beat of ``o``, the lowest first, and ``last`` is on the final one. Digit 0 has a row of zeros.
    ``index`` and ``tag`` pass unchanged. The parent changes ``is_integer`` and the table only while
    no beat is inside. ``o.row`` is combinational after the registers of the codes.

    Latency 1 cycle. One beat per cycle, in integer mode one digit. ``i.ready`` depends
    combinationally on ``o.ready``. ``product.ready`` is 1. A word with ``multiply`` takes a cycle
    for each row of the table. Nothing rounds.
    Source: KLLM, section III-B; the rows replace its counters. Golden:
    golden.kllm.select.look_up_rows.

    The registers hold the code of each element, 5 bits, and not its row of 464 bits. So the longest
    path of a lane runs from a code through the row and a column's tree. Registers of rows would
    cost 59 kGE of a lane with 16 elements. Row n needs up to ``bits_a`` more bits than a product.
    """

    tier = Tier.PART
    golden = "golden.kllm.select:look_up_rows"
    default = KllmSelectConfig()
    configs = SELECTS

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
        """The last digit of a beat of integers leaves ``digits - 1`` cycles later."""
        digits = self.config.digits
        integer = (("cycles of a beat in integer mode", digits),) if digits > 1 else ()
        return Timing(latency=1, unit="beat", delays=integer)

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        fill = _table if config.packet_words == 1 else _table_of_rows
        table = fill(m, config, self.product)
        passed = Signal(config.passed_layout, reset_less=True)  # what leaves as it came
        free = Signal()
        final = Signal()
        enter = let(m, "enter", free & self.i.valid)
        digit = _digits(m, config, self.is_integer, final, enter)
        m.d.comb += [free.eq(~self.o.valid | self.o.ready), self.i.ready.eq(free & final)]
        with m.If(free):
            m.d.sync += self.o.valid.eq(self.i.valid)
        with m.If(enter):
            m.d.sync += [passed[name].eq(self.i.p[name]) for name in passed.shape().members]
            m.d.sync += passed.last.eq(self.i.p.last & final)
        m.d.comb += [self.o.p[name].eq(passed[name]) for name in passed.shape().members]
        if digit is not None:
            place = Signal.like(self.o.p.digit, name="place", reset_less=True)
            m.d.comb += self.o.p.digit.eq(place)
            with m.If(enter):
                m.d.sync += place.eq(digit)

        # Registers hold the codes. Those of the rows would be 90 times as many.
        for e, value in enumerate(self.i.p.value):
            select = add(m, f"element_{e}", KllmRowSelect(config))
            code = value if digit is None else _place(value, digit, config)
            counts = self.i.p.inlier[e]
            if config.integer_bits:
                counts = counts & ~(self.is_integer & (code == 0))
            held_code = Signal(config.bits_a, name=f"code_{e}", reset_less=True)
            held_counts = Signal(name=f"counts_{e}", reset_less=True)
            with m.If(enter):
                m.d.sync += [held_code.eq(code), held_counts.eq(counts)]
            m.d.comb += [
                select.entries.eq(table),
                select.code.eq(held_code),
                select.counts.eq(held_counts),
                self.o.p.row[e].eq(select.row),
            ]
        return m


class KllmRowSelect(Block):
    """``row = counts ? entries[code] : 0``: the row of one element. Combinational."""

    def __init__(self, config: KllmSelectConfig):
        super().__init__(
            config,
            {
                "entries": In(
                    config.table_layout, "Words of each row, in as many bits as it needs."
                ),
                "code": In(config.bits_a, "Row of the element."),
                "counts": In(1, "The element is an inlier, and its digit has a row."),
                "row": Out(config.row_layout.elem_shape, "The row, or zeros."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        if config.coding == "sums":
            with m.If(self.counts), m.Switch(self.code):
                for n in range(config.rows):
                    with m.Case(n):
                        m.d.comb += [
                            word.eq(entry)
                            for word, entry in zip(self.row, self.entries[f"row_{n}"], strict=True)
                        ]
            return m
        chosen = []  # of each row: whether it is given, and its words
        for n, one in enumerate(one_hot(m, "code", self.code)):
            chosen.append((let(m, f"chosen_{n}", one & self.counts), self.entries[f"row_{n}"]))
        for j, word in enumerate(self.row):
            m.d.comb += word.eq(
                any_of(
                    _extended(one.replicate(len(row[j])) & row[j].as_unsigned(), config.word_bits)
                    for one, row in chosen
                )
            )
        return m


def _extended(word: Value, width: int) -> Value:
    """A signed word as ``width`` bits."""
    return Cat(word, word[-1].replicate(width - len(word)))


def _table(m: Module, config: KllmSelectConfig, product) -> Signal:
    """The table, filled by ``product``, a word per cycle."""
    word_bits = product_bits(config.product)
    number = _number(m, config, "magnitude", product.p.word)
    # A beat that enters after a word reads the table two cycles after it: a register is free.
    value = Signal(signed(word_bits), reset_less=True)
    bin = Signal.like(product.p.bin, name="bin", reset_less=True)
    fills = Signal()
    is_first_row = let(m, "is_first_row", bin >> config.row_index_bits == 0)
    m.d.comb += product.ready.eq(1)
    m.d.sync += fills.eq(product.valid)
    with m.If(product.valid):
        m.d.sync += [value.eq(number), bin.eq(product.p.bin)]
    multiples = {1: value}
    table = Signal(config.table_layout, reset_less=True)
    for n in range(config.rows):
        word, write = value, bin >> config.row_index_bits == n
        if config.integer_bits and n:
            multiple = Signal(signed(config.row_bits(n)), name=f"multiple_{n}")
            m.d.comb += multiple.eq(_multiple(multiples, n))
            multiples[n] = multiple
            word, write = Mux(is_first_row, multiple, value), write | is_first_row
        write = let(m, f"write_{n}", fills & write)
        bus = let(m, f"bus_{n}", word)
        for j in range(config.codes):
            with m.If(write & (bin[: config.row_index_bits] == j)):
                m.d.sync += table[f"row_{n}"][j].eq(bus)
    return table


def _table_of_rows(m: Module, config: KllmSelectConfig, product) -> Signal:
    """The table, filled by ``product``, ``packet_words`` words per cycle.

    A word goes the same way whatever its row. So multiples add a word to what it gave last, and one
    bus for each word serves all rows.
    """
    multiplies = Const(0, 1)
    step = Signal(range(config.rows))
    m.d.comb += product.ready.eq(1)
    if config.integer_bits:
        multiplies = product.p.multiply
        m.d.comb += product.ready.eq(~multiplies | (step == config.rows - 1))
        with m.If(product.valid & multiplies):
            m.d.sync += step.eq(Mux(product.ready, 0, step + 1))
    buses = []
    for k, word in enumerate(product.p.word):
        bus = let(m, f"bus_{k}", _number(m, config, f"magnitude_{k}", word))
        if config.integer_bits and k < config.codes:
            total = Signal(signed(config.word_bits), name=f"total_{k}")
            sum_of = Signal(signed(config.word_bits), name=f"sum_{k}")
            m.d.comb += sum_of.eq(total + bus)
            with m.If(product.valid & multiplies & (step != 0)):
                m.d.sync += total.eq(Mux(product.ready, 0, sum_of))
            bus = sum_of
        buses.append(bus)
    table = Signal(config.table_layout, reset_less=True)
    for n in range(config.rows):
        row, first = divmod(n * config.codes, config.packet_words)
        is_here = let(m, f"is_here_{n}", ~multiplies & (product.p.row == row))
        write = let(m, f"write_{n}", product.valid & (is_here | (multiplies & (step == n))))
        for j in range(config.codes):
            word = buses[first + j]
            if first and config.integer_bits:
                word = Mux(multiplies, buses[j], word)
            with m.If(write):
                m.d.sync += table[f"row_{n}"][j].eq(word)
    return table


def _number(m: Module, config: KllmSelectConfig, name: str, word: Value) -> Value:
    """A word of a packet as an integer on the grid of the table."""
    word_bits = product_bits(config.product)
    if config.is_fixed:
        return word[:word_bits].as_signed()
    sign, significand, shift = centroid_parts(word)
    magnitude = let(m, name, (significand << shift)[: word_bits - 1])
    return Mux(sign, -magnitude, magnitude)


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
