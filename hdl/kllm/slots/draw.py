"""The draw of one of some elements, each with the probability that its weight says."""

import dataclasses
import itertools

from amaranth import Array, Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.kllm.format import (
    GRID_VALUE,
    ID_BITS,
    KEY_ZERO,
    PARITY,
    POWER_BITS,
    POWERS,
    ROTATIONS,
    STEP_BITS,
    WEIGHT_BITS,
    WEIGHT_POWERS,
)
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.kinds import BITS, NUMBER
from hdl.kllm.batch import choice_layout
from hdl.ports import In, Out, Payload

# An element: as a number the better one is the higher; no element is 0.
rank_layout = Payload(
    rest=(ID_BITS, "2**25 - 1 less its id", BITS),
    key=(FP16.bits, "2**15 plus its magnitude, or minus it", BITS),
)

_HASH_BITS = 32
_ROUNDS = 20
_VALUE_BITS = 42  # of an element in units of 2**-24, with its sign
_PRODUCT_BITS = _VALUE_BITS + FP16.precision


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmDrawConfig(Config):
    """The most elements."""

    top: int = bounded(64, 2, 64, "elements of which one is drawn")


class KllmDraw(Block):
    """One of some elements, by ``golden.kllm.top_k.draw``.

    The elements come twice in the same order, the best first. ``choice`` holds from the first one
    until ``o``. First their weights are added. Then the sum is multiplied by the random word. The
    first element for which the weights up to its own exceed the product is ``o``. An element of 0
    has no weight. The first one must not be 0.

    The random word is a Threefry-2x32 of 20 rounds, a round per cycle. A weight passes seven
    registers: value, difference to the best, product, whole and part of the power, entry of the
    table, interpolated, shifted. The multiplication takes a cycle per bit of the random word.
    """

    tier = Tier.PART
    golden = "golden.kllm.top_k:draw"
    configs = FieldOf("kllm_top_k", "draw")

    def __init__(self, config: KllmDrawConfig):
        super().__init__(
            config,
            {
                "i": In(
                    stream.Signature(
                        Payload(
                            rank=(rank_layout, "an element", BITS),
                            last=(1, "it is the last of the elements"),
                        )
                    ),
                    "The elements, twice.",
                ),
                "choice": In(choice_layout, "Of the place that chooses."),
                "o": Out(
                    stream.Signature(Payload(id=(ID_BITS, "of the element that is drawn", NUMBER))),
                    "What is drawn.",
                ),
            },
        )

    # The elements may come again when both delays are over.
    timing = Timing(
        latency=9,
        start="the last element again",
        delays=(
            ("from the first element to the first one again, at least", 59),
            ("from the last element to the first one again, at least", 41),
        ),
        unit="element",
    )

    def elaborate(self, platform) -> Module:
        m = Module()
        total = Signal(WEIGHT_BITS + 1 + (self.config.top - 1).bit_length(), reset_less=True)
        left = Signal(len(total), reset_less=True)  # of the multiplied sum
        bit = Signal(range(_HASH_BITS))
        is_found = Signal()
        begins = Signal()  # the first element of a draw is taken
        taken = Signal()
        is_first = Signal(init=1)
        chosen = Signal(ID_BITS, reset_less=True)
        number, is_hashed = _hash(m, self.choice, begins)
        weight = _weights(m, self.i, taken, is_first, self.choice.inverse_temperature)
        m.d.comb += [taken.eq(self.i.valid & self.i.ready), self.o.p.id.eq(chosen)]
        with m.If(taken):
            m.d.sync += is_first.eq(self.i.p.last)
        adds = Signal()
        with m.FSM():
            with m.State("SUM"):
                m.d.comb += [self.i.ready.eq(1), adds.eq(1), begins.eq(taken & is_first)]
                m.d.sync += is_found.eq(0)
                with m.If(begins):
                    m.d.sync += total.eq(0)
                with m.If(taken & self.i.p.last):
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.d.comb += adds.eq(1)
                m.d.sync += [bit.eq(0), left.eq(0)]
                with m.If(~weight.is_busy & is_hashed):
                    m.next = "MULTIPLY"
            with m.State("MULTIPLY"):
                some = Mux(number.bit_select(bit, 1), total, 0)
                m.d.sync += [left.eq((left + some) >> 1), bit.eq(bit + 1)]
                with m.If(bit == _HASH_BITS - 1):
                    m.next = "CHOOSE"
            with m.State("CHOOSE"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(taken & self.i.p.last):
                    m.next = "FIND"
            with m.State("FIND"):
                with m.If(~weight.is_busy):
                    m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "SUM"
        with m.If(weight.valid & adds):
            m.d.sync += total.eq(total + weight.word)
        with m.If(weight.valid & ~adds & ~is_found):
            m.d.sync += left.eq(left - weight.word)
            with m.If(left < weight.word):
                m.d.sync += [is_found.eq(1), chosen.eq(weight.id)]
        return m


def _hash(m: Module, choice, begins: Value) -> tuple[Signal, Value]:
    """(word 0 of Threefry-2x32 of seed and position, whether it is done), from ``begins`` on.

    A round takes a cycle, and so do the additions of the key after each fourth round.
    """
    first, second = (Signal(_HASH_BITS, name=f"hash_{n}", reset_less=True) for n in range(2))
    step = Signal(range(5), name="hash_step")
    turn = Signal(range(_ROUNDS // 4 + 1), name="hash_turn", init=_ROUNDS // 4)
    key = Array([choice.seed, Const(0, _HASH_BITS), choice.seed ^ PARITY])
    is_done = turn == _ROUNDS // 4
    added = Signal(_HASH_BITS, name="hash_added")
    turned = Signal(_HASH_BITS, name="hash_turned")
    m.d.comb += added.eq(first + second)
    with m.Switch(Cat(step[:2], turn[0])):
        for n, rotation in enumerate(ROTATIONS):
            with m.Case(n):
                m.d.comb += turned.eq(second.rotate_left(rotation))
    keys = [Signal(_HASH_BITS, name=f"hash_key_{n}") for n in range(2)]
    with m.Switch(turn):
        for n in range(_ROUNDS // 4):
            with m.Case(n):
                m.d.comb += [keys[k].eq(key[(n + 1 + k) % 3]) for k in range(2)]
    with m.If(begins):
        m.d.sync += [first.eq(choice.position + choice.seed), second.eq(0)]
        m.d.sync += [step.eq(0), turn.eq(0)]
    with m.Elif(~is_done):
        m.d.sync += [step.eq(step + 1), first.eq(added), second.eq(turned ^ added)]
        with m.If(step == 4):
            m.d.sync += [
                step.eq(0), turn.eq(turn + 1), first.eq(first + keys[0]),
                second.eq(second + keys[1] + turn + 1),
            ]  # fmt: skip
    return first, is_done


@dataclasses.dataclass(frozen=True)
class _Weight:
    """The weight of an element; is_busy: some are to come."""

    valid: Signal
    word: Signal
    id: Signal
    is_busy: Value


class _Stages:
    """Registers that follow each other, and what goes along with their words."""

    def __init__(self, m: Module, count: int, valid: Value, **beside: Value) -> None:
        self.m = m
        self.valid = [Signal(name=f"weight_valid_{n}") for n in range(count)]
        self.beside: dict[str, list[Signal]] = {name: [] for name in beside}
        for n, (here, before) in enumerate(zip(self.valid, [valid, *self.valid], strict=False)):
            m.d.sync += here.eq(before)
            for name, value in beside.items():
                register = Signal(len(value), name=f"weight_{name}_{n}", reset_less=True)
                m.d.sync += register.eq(self.beside[name][-1] if n else value)
                self.beside[name].append(register)


def _register(m: Module, name: str, shape, value) -> Signal:
    kept = Signal(shape, name=name, reset_less=True)
    m.d.sync += kept.eq(value)
    return kept


def _weights(m: Module, i, taken: Value, is_first: Value, inverse_temperature) -> _Weight:
    """Weights of the elements, seven cycles after they are taken."""
    rank = i.p.rank
    is_none = rank.as_value() == 0
    stages = _Stages(m, 7, taken, id=~rank.rest, none=is_none)
    first = _register(m, "is_best", 1, is_first)
    # 1: the value, in units of 2**-24.
    key = Signal(signed(FP16.bits), name="rank_key")
    magnitude = Signal(FP16.bits - 1, name="rank_magnitude")
    m.d.comb += [
        key.eq(rank.key ^ KEY_ZERO),
        magnitude.eq(Mux(key < 0, -key, key)),
    ]
    exponent = magnitude[FP16.frac_bits :]
    fraction = Cat(magnitude[: FP16.frac_bits], exponent != 0)
    shifted = Signal(_VALUE_BITS - 1, name="shifted")
    m.d.comb += shifted.eq(fraction << Mux(exponent == 0, 0, exponent - 1)[: FP16.exp_bits])
    value = _register(m, "value", signed(_VALUE_BITS), Mux(key < 0, -shifted, shifted))
    # 2: its difference to the best, which comes first.
    best = Signal(signed(_VALUE_BITS), name="best_value", reset_less=True)
    with m.If(stages.valid[0] & first):
        m.d.sync += best.eq(value)
    difference = _register(m, "difference", _VALUE_BITS, Mux(first, value, best) - value)
    # 3: times the inverse temperature.
    inverse = inverse_temperature[: FP16.bits - 1]
    scale = inverse[FP16.frac_bits :]
    mantissa = Cat(inverse[: FP16.frac_bits], scale != 0)
    product = _register(m, "product", _PRODUCT_BITS, difference * mantissa)
    # 4: the power, rounded down.
    most = GRID_VALUE + 25 - POWER_BITS  # a shift for an exponent of 0
    power = Signal(_PRODUCT_BITS, name="power")
    m.d.comb += power.eq(product >> (most - Mux(scale == 0, 1, scale))[:6])
    kept = POWER_BITS + (WEIGHT_POWERS - 1).bit_length()
    whole = _register(m, "whole", kept - POWER_BITS, power[POWER_BITS:kept])
    part = _register(m, "part", POWER_BITS, power[:POWER_BITS])
    is_far = _register(m, "is_far", 1, power[kept:].any())
    # 5: an entry of the table, and the step to the next one.
    entry, step = (Signal(POWER_BITS + 1, name=f"table_{name}") for name in ("entry", "step"))
    with m.Switch(part[STEP_BITS:]):
        for n, (here, after) in enumerate(itertools.pairwise(POWERS)):
            with m.Case(n):
                m.d.comb += [entry.eq(here), step.eq(here - after)]
    steps = max(here - after for here, after in itertools.pairwise(POWERS))
    entry = _register(m, "entry", POWER_BITS + 1, entry)
    step = _register(m, "step", steps.bit_length(), step)
    rest = _register(m, "rest", STEP_BITS, part[:STEP_BITS])
    shift = _register(m, "shift", len(whole), whole)
    is_void = _register(m, "is_void", 1, is_far | stages.beside["none"][3])
    # 6: interpolated.
    made = _register(m, "interpolated", POWER_BITS + 1, entry - ((step * rest) >> STEP_BITS))
    down = _register(m, "down", len(shift), shift)
    is_nothing = _register(m, "is_nothing", 1, is_void)
    # 7: shifted.
    large = Cat(Const(0, WEIGHT_BITS - POWER_BITS), made)
    word = _register(m, "weight", WEIGHT_BITS + 1, Mux(is_nothing, 0, large >> down))
    is_busy = Cat(stages.valid).any()
    return _Weight(stages.valid[-1], word, stages.beside["id"][-1], is_busy)
