"""Operators that take one word at a time: one row of a digit recurrence, used again each cycle.

An operator of ``stages`` cycles is a pipeline with a row for every digit. Where its parent waits
for each result before it offers the next word, most rows have no work. Here a few rows take turns:

    cycle 0                  the phases before the recurrence
    cycles 1 .. stages - 2   ``rows_per_cycle`` digits each, until all are there
    cycle stages - 1         the phases after it

A word takes as many cycles as in the pipeline, and has the same bits.
"""

import dataclasses
from collections.abc import Callable, Mapping

from amaranth import Const, Module, Mux, Signal
from amaranth.hdl import Value

from hdl.fp16.pipeline import Operator, OperatorConfig, Phase, compute
from hdl.target import LEAST_TURNS, has_turns

State = Mapping[str, Value]


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """A digit recurrence whose rows are alike.

    before : phases from operands to the fields of a word
    begin : of those fields, the first state; its values have their widths in all rows
    row : the state after one more digit, from state and fields
    after : phases from the last state, and fields, to the result
    """

    before: list[Phase]
    begin: Callable[[Module, State], dict[str, Value]]
    row: Callable[[Module, dict[str, Value], str], dict[str, Value]]
    rows: int
    after: list[Phase]


class OperatorInTurn(Operator):
    """``o = phases(i)``, one word at a time, ``config.stages`` cycles from i to o.

    There are LEAST_TURNS cycles or more. Subclasses give ``recurrence()``. ``i.ready`` is 1 while
    no word is inside. A word leaves when ``o.ready`` is 1. The next one enters a cycle later, so a
    word takes ``stages`` + 1 cycles.
    """

    def __init__(self, config: OperatorConfig):
        if config.stages < LEAST_TURNS:
            config._refuse("stages", f"at least {LEAST_TURNS}")
        super().__init__(config)

    def recurrence(self) -> Recurrence:
        raise NotImplementedError

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        parts = self.recurrence()
        turns = config.stages - 2
        rows_per_cycle = -(-parts.rows // turns)
        needed = -(-parts.rows // rows_per_cycle)  # cycles in which digits are found
        fields = compute(m, parts.before, {name: self.i.p[name] for name in config.operands})
        if config.tag_bits:
            fields["tag"] = self.i.p.tag
        state = parts.begin(m, fields)

        at = Signal(range(config.stages + 1))  # 0: no word is inside
        valid = Signal()
        enter = Signal()
        held = {
            name: _register(m, value, f"held_{name}", enter)
            for name, value in fields.items()
            if name not in state
        }
        registers = {
            name: Signal(len(value), name=f"state_{name}", reset_less=True)
            for name, value in state.items()
        }
        m.d.comb += [self.i.ready.eq((at == 0) & ~valid), enter.eq(self.i.valid & self.i.ready)]

        # The digits of a cycle; the last one may have fewer.
        now: dict[str, Value] = dict(registers)
        reached = [now]
        for n in range(rows_per_cycle):
            now = parts.row(m, held | now, str(n))
            reached.append(now)
        fewer = reached[parts.rows % rows_per_cycle or rows_per_cycle]
        is_last = at == needed
        for name, register in registers.items():
            after = reached[-1][name]
            if fewer is not reached[-1]:
                after = Mux(is_last, fewer[name], after)
            with m.If(enter):
                m.d.sync += register.eq(state[name])
            with m.Elif((at != 0) & (at <= needed)):
                m.d.sync += register.eq(after)

        with m.If(enter):
            m.d.sync += at.eq(1)
        with m.Elif(at == config.stages - 1):
            m.d.sync += [at.eq(0), valid.eq(1)]
        with m.Elif(at != 0):
            m.d.sync += at.eq(at + 1)
        result = compute(m, parts.after, held | registers)
        if config.tag_bits:
            result["tag"] = held["tag"]
        for name in config.o_layout.members:
            register = Signal(len(result[name]), name=f"o_{name}", reset_less=True)
            with m.If(at == config.stages - 1):
                m.d.sync += register.eq(result[name])
            m.d.comb += self.o.p[name].eq(register)
        m.d.comb += self.o.valid.eq(valid)
        with m.If(valid & self.o.ready):
            m.d.sync += valid.eq(0)
        return m


def _register(m: Module, value: Value, name: str, enter: Value) -> Value:
    """The value of the word inside; a constant needs no flip-flops."""
    if isinstance(value, Const):
        return value
    register = Signal(value.shape(), name=name, reset_less=True)
    with m.If(enter):
        m.d.sync += register.eq(value)
    return register


def one_at_a_time(
    config: OperatorConfig, pipeline: type[Operator], in_turn: type[OperatorInTurn]
) -> Operator:
    """The operator for a user who waits for each result, as the target has it (hdl.target)."""
    return (in_turn if has_turns(config.stages) else pipeline)(config)
