"""Several blocks side by side in one module: one compiled model tests them all."""

import dataclasses
from typing import Any

from amaranth import Module
from amaranth.lib import wiring

from golden.config import Config
from hdl.block import Block
from hdl.children import add
from tb.simulate.run import simulate


@dataclasses.dataclass(frozen=True, kw_only=True)
class BankConfig(Config):
    """Class and configuration of every member."""

    members: tuple[tuple[type[Block], Config], ...]

    def describe(self) -> dict:
        return {
            "members": [[block.__qualname__, config.describe()] for block, config in self.members]
        }


class Bank(Block):
    """Member ``name`` of block k is ``u{k}_{name}``; the blocks are independent.

    A register that nothing reads gives the module a clock where no block has one.
    """

    def __init__(self, config: BankConfig):
        self.blocks = [block(member) for block, member in config.members]
        for block in self.blocks:
            block._MustUse__silence = True  # type: ignore[attr-defined]  # as its bank says
        ports = {"running": wiring.Out(1)}
        for k, block in enumerate(self.blocks):
            ports |= {f"u{k}_{name}": member for name, member in block.signature.members.items()}
        super().__init__(config, ports)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.d.sync += self.running.eq(1)
        for k, block in enumerate(self.blocks):
            inner = add(m, f"u{k}", block)
            for name, member in block.signature.members.items():
                port, pin = getattr(self, f"u{k}_{name}"), getattr(inner, name)
                pairs = zip(port, pin, strict=True) if member.dimensions else [(port, pin)]
                for outer_one, inner_one in pairs:
                    _join(m, member, outer_one, inner_one)
        return m


def _join(m: Module, member, port, pin) -> None:
    """Member ``pin`` of a child to ``port`` of the bank."""
    if member.is_signature and member.flow == wiring.In:
        wiring.connect(m, wiring.flipped(port), pin)
    elif member.is_signature:
        wiring.connect(m, pin, wiring.flipped(port))
    elif member.flow == wiring.In:
        m.d.comb += pin.eq(port)
    else:
        m.d.comb += port.eq(pin)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A block, what to offer it and what must come out, as payload bits by stream name.

    cycles: of the transfers at a stream when nothing idles or stalls. capacity: words taken by
    every source while every sink stalls. merge: the sinks hold the words of all sources in an
    order of the block's choice, checked by ``check_arbitration``. cause: which word of the first
    source the first word of the first sink needs; None: it is enough that one is offered.
    paced: the first sink gives one unit of the block's timing per word, so its rate is the
    interval. flags: by output, the stream whose words the flag describes while they are offered,
    and its value for each; 0 at other times.
    """

    block: type[Block]
    config: Config
    sources: dict[str, list[int]]
    sinks: dict[str, list[int]]
    cycles: dict[str, list[int]]
    capacity: int
    merge: bool = False
    cause: int | None = 0
    paced: bool = True
    flags: dict[str, tuple[str, list[int]]] = dataclasses.field(default_factory=dict)


def timing_of(component: type[Block], config: Config):
    """The timing of a block that is not elaborated."""
    block = component(config)
    block._MustUse__silence = True  # type: ignore[attr-defined]
    return block.timing


def check(cases: list[Case], seed: int) -> None:
    """Run tb.stream.check_stream on all ``cases`` at once."""
    members = tuple((case.block, case.config) for case in cases)
    plain: list[dict[str, Any]] = [
        {
            field.name: getattr(case, field.name)
            for field in dataclasses.fields(Case)
            if field.name not in ("block", "config")
        }
        | {"timing": timing_of(case.block, case.config)}
        for case in cases
    ]
    simulate(
        Bank(BankConfig(members=members)),
        "tb.stream.check_stream",
        params={"cases": plain},
        seed=seed,
    )
