"""One output column of a selecting lane."""

from amaranth import Cat, Const, Module, Mux, Signal, signed

from golden.timing import Timing
from hdl.bits import any_of, carry_save, let, one_hot
from hdl.block import Block, Operations, Tier
from hdl.kinds import index_of
from hdl.kllm.lane.select_config import SELECTS, KllmSelectConfig
from hdl.lanes.column import registers
from hdl.ports import In, Out


class KllmSelectColumn(Block):
    """``held = sum over beats and elements of (row[e][index_e] + bias) * 2**(bits_a * digit)``.

    With ``antisymmetric`` a row has half the words, and ``row[e][last - j]`` is ``-row[e][j]``. No
    word of it is then ``-2**(word_bits - 1)`` (not checked).

    ``bias = 2**(word_bits - 1)``: the column inverts the sign bit of each selected word, so that
    no word needs a sign extension. The parent subtracts what the biases add up to. The sum is exact
    modulo ``2**sum_bits``.

    The parent steps the column, and all columns of a lane alike:

        ======  ==================================================================
        input   effect at the end of its cycle
        ======  ==================================================================
        enter   the tree registers take the sum of the beat, in carry-save form
        add     the accumulator adds the tree registers, shifted by their ``digit``
        first   with ``add``: the accumulator starts from 0
        load    ``held`` takes the accumulator, before an ``add`` of the same cycle
        shift   ``held`` takes ``chain`` (``load`` wins)
        ======  ==================================================================

    ``chain`` is ``held`` of the next column, so a lane gives its sums one per cycle while it adds
    up the next packet. The weight indices are decoded to one-hot words. ANDs and ORs select, which
    needs fewer gates than a multiplexer per bit. One beat per cycle. Nothing rounds.
    Source: KLLM, section III-B; the sum replaces its counters. Golden:
    golden.kllm.select.column_sum.

    The path before the tree registers has a decoder, an AND, an OR tree and 6 rows of full adders
    at 16 elements. The path after them has one row of full adders and the adder. Registers have no
    reset: a packet begins with ``first``.
    """

    tier = Tier.PART
    golden = "golden.kllm.select:column_sum"
    default = KllmSelectConfig()
    configs = SELECTS

    def __init__(self, config: KllmSelectConfig):
        members = {
            "row": In(
                config.row_layout, "Words of each element, by weight index.", config.word_kind
            ),
            "index": In(
                config.index_layout,
                "Weight index of each element.",
                index_of("weight centroids"),
            ),
            "enter": In(1, "The tree registers take the beat."),
            "add": In(1, "The accumulator adds the tree registers."),
            "first": In(1, "With add: a packet begins."),
            "load": In(1, "held takes the accumulator."),
            "shift": In(1, "held takes chain."),
            "chain": In(signed(config.sum_bits), "held of the next column.", config.word_kind),
            "held": Out(
                signed(config.sum_bits), "A finished sum, with its biases.", config.word_kind
            ),
        }
        if config.digits > 1:
            members["digit"] = In(range(config.digits), "Place of the digit in the tree registers.")
        super().__init__(config, members)

    # From the beat with ``enter`` to its sum: tree, accumulator, ``held``.
    timing = Timing(latency=3, start="row", end="held", unit="beat")

    @property
    def operations(self) -> Operations:
        return Operations("enter", self.config.elements, "MAC")

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        make = self._gates if config.coding == "gates" else self._sums
        tree = [self._placed(m, n, held) for n, held in enumerate(make(m))]

        total = Signal(config.sum_bits, reset_less=True)
        start = let(m, "start", Mux(self.first, 0, total))
        terms = [start, *tree]
        if config.coding == "gates":
            terms = carry_save(m, "total", terms, config.sum_bits)
        with m.If(self.add):
            m.d.sync += total.eq(sum(terms[1:], terms[0]))

        sums = Signal(signed(config.sum_bits), reset_less=True)
        m.d.comb += self.held.eq(sums)
        with m.If(self.load):
            m.d.sync += sums.eq(total)
        with m.Elif(self.shift):
            m.d.sync += sums.eq(self.chain)
        return m

    def _gates(self, m: Module) -> list[Signal]:
        """The tree registers, in carry-save form: what synthesis is given."""
        config = self.config
        words: list = []
        negated: list = []
        for e, (row, index) in enumerate(zip(self.row, self.index, strict=True)):
            negates, place = Const(0, 1), index
            if config.antisymmetric:
                negates = index[-1]
                place = let(m, f"place_{e}", index[:-1] ^ negates.replicate(len(index) - 1))
                negated.append(negates)
            chosen = one_hot(m, f"index_{e}", place)
            word = any_of(
                one.replicate(config.word_bits) & entry.as_unsigned()
                for one, entry in zip(chosen, row, strict=True)
            )
            if config.antisymmetric:
                word = word ^ negates.replicate(config.word_bits)
            words.append(let(m, f"word_{e}", word ^ (1 << config.word_bits - 1)))
        if negated:  # a word negates by its inverse and 1
            words.append(let(m, "ones", sum(negated[1:], negated[0])))

        # The cut: a sum and its carries.
        return registers(m, "tree", carry_save(m, "tree", words, config.tree_bits), self.enter)

    def _sums(self, m: Module) -> list[Signal]:
        """One tree register, their sum: selections by index, which a simulator does in one step."""
        config, bias = self.config, 1 << self.config.word_bits - 1
        total = Const(0, 1)
        for row, index in zip(self.row, self.index, strict=True):
            place = index
            if config.antisymmetric:
                place = index[:-1] ^ index[-1].replicate(len(index) - 1)
            word = row.as_value().word_select(place, config.word_bits).as_signed()
            if config.antisymmetric:
                word = Mux(index[-1], -word, word)
            total = total + (word + bias)[: config.word_bits]
        tree = Signal(config.tree_bits, reset_less=True)
        with m.If(self.enter):
            m.d.sync += tree.eq(total)
        return [tree]

    def _placed(self, m: Module, n: int, held: Signal):
        """``held`` times 2**(bits_a * digit), of ``sum_bits``."""
        config = self.config
        placed = held
        for digit in range(1, config.digits):
            shifted = Cat(Const(0, config.bits_a * digit), held)
            placed = Mux(self.digit == digit, shifted, placed)
        return let(m, f"placed_{n}", placed[: config.sum_bits])
