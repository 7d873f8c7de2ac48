"""The nearest entry of one group: exact squared distances, one entry after another."""

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import data

from golden.fp16.format import FP16
from golden.index.format import SCALE_EXPONENT_MAX
from golden.index.timing import tree_levels
from golden.qet.timing import X_BITS
from hdl.bits import let
from hdl.block import Block
from hdl.index.sums import add_tree, grid_parts
from hdl.kinds import BITS, NUMBER, index_of
from hdl.ports import In, Out
from hdl.qet.dequantizer import on_grid
from hdl.qet.tile import EXPONENTS, VALUE_BITS, QetStageConfig

DIFFERENCE_BITS = X_BITS + 1  # of X - E: below 2**26 + 2**25 + 2**16
_SQUARE_BITS = 2 * DIFFERENCE_BITS


class QetNearestLane(Block):
    """The index of the least ``sum of (X - low - step * c)**2``, the first of equal ones.

    ``take`` holds the group's words, exponent and ``low``. X is a word times ``2**(24 -
    exponent)``, without what lies below its last bit, and at most 2**26 - 1 in magnitude. An entry
    ``c`` may come in every cycle. ``difference`` is there 2 cycles later. ``compare``, ``first``
    and ``index`` come 3 + tree_levels(group) cycles after ``c``. ``code`` shows the index a cycle
    later.
    """

    def __init__(self, config: QetStageConfig):
        shape = config.shape
        words = data.ArrayLayout(FP16.bits, shape.group)
        differences = data.ArrayLayout(signed(DIFFERENCE_BITS), shape.group)
        entries, count = index_of("entries of the codebook"), config.stage.code_bits
        super().__init__(
            config,
            {
                "take": In(1, "take the words"),
                "x": In(words, "FP16 words of the group", FP16),
                "exponent": In(EXPONENTS, "of the matrix"),
                "low": In(signed(VALUE_BITS), "of the range", NUMBER),
                "step": In(max(1, shape.step_bits), "of the range", NUMBER),
                "c": In(data.ArrayLayout(shape.element_bits, shape.group), "an entry", BITS),
                "difference": Out(differences, "X - low - step * c", NUMBER),
                "compare": In(1, "a distance is there"),
                "first": In(1, "it is the first one"),
                "index": In(count, "of the entry", entries),
                "code": Out(count, "index of the nearest so far", entries),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        squares = []
        for k in range(config.shape.group):
            base = Signal(signed(DIFFERENCE_BITS), name=f"base_{k}", reset_less=True)
            product = Signal(signed(VALUE_BITS + 1), name=f"product_{k}", reset_less=True)
            difference = Signal(signed(DIFFERENCE_BITS), name=f"held_{k}", reset_less=True)
            square = Signal(_SQUARE_BITS, name=f"square_{k}", reset_less=True)
            word = self.c[k]
            value = self.step * word if config.shape.entry_bits else on_grid(m, str(k), word)
            with m.If(self.take):
                m.d.sync += base.eq(self._scaled(m, k) - self.low)
            m.d.sync += [
                product.eq(value),
                difference.eq(base - product),
                square.eq(difference * difference),
            ]
            m.d.comb += self.difference[k].eq(difference)
            squares.append(square)
        levels = tree_levels(config.shape.group)
        (total,) = add_tree(m, "total", squares, [Const(0, 1)] * len(squares), levels)
        distance = Signal(_SQUARE_BITS + (config.shape.group - 1).bit_length())
        best = Signal.like(distance, reset_less=True)
        m.d.comb += distance.eq(total)
        with m.If(self.compare & (self.first | (distance < best))):
            m.d.sync += [best.eq(distance), self.code.eq(self.index)]
        return m

    def _scaled(self, m: Module, k: int) -> Value:
        """``X`` of element k."""
        sign, significand, shift = grid_parts(Value.cast(self.x[k]))
        # A word of shift 1 or more has its leading one: 16 places beyond the grid are too many.
        places = let(m, f"places_{k}", shift - self.exponent + SCALE_EXPONENT_MAX)
        wide = let(m, f"wide_{k}", significand << places[:5])
        large = places[5:].any() | wide[SCALE_EXPONENT_MAX + X_BITS - 1 :].any()
        size = let(m, f"size_{k}", wide[SCALE_EXPONENT_MAX : SCALE_EXPONENT_MAX + X_BITS - 1])
        most = Cat(size | large.replicate(len(size)), Const(0, 1)).as_signed()
        return Mux(sign, -most, most)
