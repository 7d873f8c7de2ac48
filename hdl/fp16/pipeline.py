"""Streams around a list of combinational phases, with as many registers as the depth requires.

Stall rule: a register takes a word when it is empty or being emptied, so ``i.ready`` depends
combinationally on ``o.ready`` and bubbles close up. ``o.valid`` never depends on ``o.ready``.
"""

import dataclasses
from collections.abc import Callable

from amaranth import Const, Module, Signal
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.config import Config, bounded
from golden.fp16.format import FP16, FloatFormat
from golden.timing import Timing
from hdl.block import Block
from hdl.kinds import BITS
from hdl.ports import In, Out, Payload

Phase = Callable[[Module, dict[str, Value]], dict[str, Value]]

_MAX_STAGES = 32
_MAX_TAG_BITS = 128
TAG_TEXT = "passes unchanged with its word"


def word(format: FloatFormat, text: str) -> tuple[int, str, FloatFormat]:
    """Shape, text and kind of a payload field: a word of ``format``."""
    kind = {(5, 10): "binary16", (8, 23): "binary32"}.get((format.exp_bits, format.frac_bits))
    if kind is None:
        kind = f"1 + {format.exp_bits} + {format.frac_bits} bits"
    return format.bits, f"{text}, {kind}", format


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorConfig(Config):
    """Depth and sideband of every arithmetic component."""

    stages: int = bounded(2, 0, _MAX_STAGES, "cycles from i to o; 0 is combinational")
    tag_bits: int = bounded(
        0, 0, _MAX_TAG_BITS, "bits of the sideband carried with each word; 0: no such field"
    )

    def _check_format(self, field: str) -> None:
        if not isinstance(getattr(self, field), FloatFormat):
            self._refuse(field, "a FloatFormat")

    @property
    def operands(self) -> dict:
        """Payload fields of ``i`` without the tag: name -> (shape, text, kind).

        An operator without a page may give a shape alone.
        """
        raise NotImplementedError

    @property
    def results(self) -> dict:
        """Payload fields of ``o`` without the tag: name -> (shape, text, kind).

        An operator without a page may give a shape alone.
        """
        raise NotImplementedError

    @property
    def _tag(self) -> dict:
        return {"tag": (self.tag_bits, TAG_TEXT, BITS)} if self.tag_bits else {}

    @property
    def i_layout(self) -> Payload:
        return Payload(**self.operands, **self._tag)

    @property
    def o_layout(self) -> Payload:
        return Payload(**self.results, **self._tag)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnaryConfig(OperatorConfig):
    """The configuration of an operator a -> y with a format on either side."""

    a: FloatFormat = FP16
    o: FloatFormat = FP16  # of the result

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("a", "o"):
            self._check_format(field)

    @property
    def operands(self) -> dict:
        return {"a": word(self.a, "operand")}

    @property
    def results(self) -> dict:
        return {"y": word(self.o, "result")}


def operator_configs(config: OperatorConfig, **more: OperatorConfig) -> dict[str, Config]:
    """Every block also without registers, and with four stages and a tag."""
    return {
        "combinational": dataclasses.replace(config, stages=0),
        "pipelined": dataclasses.replace(config, stages=4, tag_bits=8),
        **more,
    }


def registers_after(phases: int, stages: int) -> tuple[int, ...]:
    """Registers after each phase: the k-th of ``stages`` follows phase ceil(k*phases/stages).

    So one stage is an output register, two add one in the middle, and more than ``phases``
    stages put two in one place.
    """
    counts = [0] * phases
    for k in range(1, stages + 1):
        counts[-(-k * phases // stages) - 1] += 1
    return tuple(counts)


def compute(m: Module, phases: list[Phase], fields: dict) -> dict:
    """Run every phase combinationally."""
    for phase in phases:
        fields = phase(m, fields)
    return fields


class Operator(Block):
    """``o = phases(i)``: 1 word per cycle, ``config.stages`` cycles from i to o.

    Subclasses give ``phases()``: functions from a dict of values to a dict of values. The first
    takes the payload fields of ``i``, the last returns those of ``o``.
    """

    i_text = "Operands, one set per transfer."
    o_text = "Results, in the order of i."

    def __init__(self, config: OperatorConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.i_layout), self.i_text),
                "o": Out(stream.Signature(config.o_layout), self.o_text),
            },
        )

    @property
    def timing(self) -> Timing:
        """``stages`` registers from operands to result; 0 stages are combinational."""
        return Timing(latency=self.config.stages)

    def phases(self) -> list[Phase]:
        raise NotImplementedError

    def elaborate(self, platform):
        m = Module()
        phases = self.phases()
        fields = {name: self.i.p[name] for name in self.config.operands}
        if self.config.tag_bits:
            fields["tag"] = self.i.p.tag
        valid = self.i.valid

        # takes[k]: stage k moves in this cycle; the last entry is the consumer's.
        takes = [Signal(name=f"take_{k}") for k in range(self.config.stages)] + [self.o.ready]
        m.d.comb += self.i.ready.eq(takes[0])
        stage = 0
        for phase, registers in zip(
            phases, registers_after(len(phases), self.config.stages), strict=True
        ):
            tag = fields.pop("tag", None)
            fields = phase(m, fields)
            if tag is not None:
                fields["tag"] = tag
            for _ in range(registers):
                held = Signal(name=f"valid_{stage}")
                m.d.comb += takes[stage].eq(~held | takes[stage + 1])
                with m.If(takes[stage]):
                    m.d.sync += held.eq(valid)
                    fields = {
                        name: _register(m, value, f"{name}_{stage}")
                        for name, value in fields.items()
                    }
                valid = held
                stage += 1

        m.d.comb += self.o.valid.eq(valid)
        m.d.comb += [self.o.p[name].eq(fields[name]) for name in self.config.o_layout.members]
        return m


def _register(m: Module, value, name: str):
    """The value one take later; a constant needs no flip-flops."""
    if isinstance(value, Const):
        return value
    shape = value.shape()
    register = Signal(shape, name=name, reset_less=True)
    m.d.sync += register.eq(value)
    return register
