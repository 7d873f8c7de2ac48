"""Order of two words: FpCompare, and its parts for use inside other blocks.

IEEE 754-2019 clauses 5.6.1 (quiet comparisons), 5.10 (total order), 9.6 (minimum, maximum).
"""

import dataclasses

from amaranth import Cat, Module, Mux
from amaranth.hdl import Value

from golden.fp16.format import FP16, FloatFormat
from hdl.bits import let
from hdl.fp16.pipeline import Operator, OperatorConfig, operator_configs, word


@dataclasses.dataclass(frozen=True, kw_only=True)
class FpCompareConfig(OperatorConfig):
    """Elaboration-time parameters of FpCompare."""

    format: FloatFormat = FP16  # of a, b, minimum and maximum

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_format("format")

    @property
    def operands(self) -> dict:
        return {"a": word(self.format, "operand"), "b": word(self.format, "operand")}

    @property
    def results(self) -> dict:
        return {
            "less": (1, "a < b"),
            "equal": (1, "a = b; -0 equals +0"),
            "unordered": (1, "a or b is NaN"),
            "total_less": (1, "a precedes b in the total order, in which -0 precedes +0"),
            "minimum": word(self.format, "the smaller operand"),
            "maximum": word(self.format, "the larger operand"),
        }


def total_order_key(word) -> Value:
    """Unsigned key, monotone in the value, -0 below +0: positive words get the top bit, negative
    ones are inverted. One XOR per bit, combinational.
    """
    word = Value.cast(word)
    sign = word[-1]
    return Cat(word[:-1] ^ sign.replicate(len(word) - 1), ~sign)


def total_order_word(key) -> Value:
    """The word that has ``key`` as its ``total_order_key``."""
    key = Value.cast(key)
    sign = ~key[-1]
    return Cat(key[:-1] ^ sign.replicate(len(key) - 1), sign)


def is_nan(word, format: FloatFormat = FP16) -> Value:
    word = Value.cast(word)
    return word[format.frac_bits : format.bits - 1].all() & word[: format.frac_bits].any()


def is_special(word, format: FloatFormat = FP16) -> Value:
    """NaN or infinity."""
    return Value.cast(word)[format.frac_bits : format.bits - 1].all()


def compare_phases(format: FloatFormat) -> list:
    """keys and flags | choose; fields a, b -> FpCompareConfig.results."""

    def order(m: Module, f: dict) -> dict:
        a, b = f["a"], f["b"]
        zeros = ~(a[:-1].any() | b[:-1].any())
        return {
            "a": a,
            "b": b,
            "total_less": let(m, "key_less", total_order_key(a) < total_order_key(b)),
            "equal": let(m, "same", (a == b) | zeros),
            "unordered": let(m, "any_nan", is_nan(a, format) | is_nan(b, format)),
        }

    def choose(m: Module, f: dict) -> dict:
        a, b, lower, unordered = f["a"], f["b"], f["total_less"], f["unordered"]
        nan = format.canonical_nan
        return {
            "less": let(m, "less", lower & ~f["equal"] & ~unordered),
            "equal": let(m, "equal", f["equal"] & ~unordered),
            "unordered": unordered,
            "total_less": lower,
            "minimum": let(m, "minimum", Mux(unordered, nan, Mux(lower, a, b))),
            "maximum": let(m, "maximum", Mux(unordered, nan, Mux(lower, b, a))),
        }

    return [order, choose]


class FpCompare(Operator):
    """``less = a < b, equal = a == b, total_less = key(a) < key(b)``, minimum and maximum.

    Throughput 1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Any words are legal. less and equal are IEEE's: -0 equals +0,
    and with a NaN both are 0, unordered is 1, minimum and maximum are the canonical NaN.
    total_less orders all words, -0 before +0 and NaNs beyond the infinities. Nothing rounds.
    Registers are spread over keys and flags | choose. Golden: ``golden.fp16.ops`` less, equal,
    unordered, total_less, minimum, maximum.
    """

    name = "fp16_compare"
    golden = "golden.fp16.ops:less"
    reference = (
        "tests/fp16/test_golden.py: "
        "test_comparisons_equal_softfloat_and_the_key_is_a_strict_total_order"
    )
    default = FpCompareConfig(stages=1)
    configs = operator_configs(default)

    def phases(self) -> list:
        return compare_phases(self.config.format)
