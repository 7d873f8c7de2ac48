"""One operator at several depths and formats in one module: one compiled model tests them all."""

import dataclasses

import numpy as np
from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden.config import Config
from golden.fp16.vectors.beats import flow_rows, pack
from hdl.block import Block
from hdl.children import add
from hdl.fp16.in_turn import OperatorInTurn
from hdl.fp16.pipeline import Operator, OperatorConfig
from tb.simulate.run import simulate

__all__ = [
    "DEPTHS",
    "Bank",
    "BankConfig",
    "at_all_depths",
    "at_depths",
    "check",
    "flow_rows",
    "pack",
    "some",
]

DEPTHS = ((0, 0), (1, 3), (2, 0), (4, 8))  # (stages, tag_bits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BankConfig(Config):
    """``operator`` is the class, ``members`` its configurations."""

    operator: type[Operator]
    members: tuple[OperatorConfig, ...]

    def describe(self) -> dict:
        return {
            "operator": self.operator.__qualname__,
            "members": [member.describe() for member in self.members],
        }


def at_depths(
    config: OperatorConfig, columns: dict[str, np.ndarray], depths
) -> list[tuple[OperatorConfig, dict[str, np.ndarray]]]:
    """``config`` at each of ``depths``, all with the same vectors: cases for ``check``."""
    return [
        (dataclasses.replace(config, stages=stages, tag_bits=tag_bits), columns)
        for stages, tag_bits in depths
    ]


def some(columns: dict[str, np.ndarray], seed: int, count: int = 4000) -> dict[str, np.ndarray]:
    """A random part of the rows, and up to half as many of those whose first operand is round.

    Exact ties, powers of two and infinities come from round words (low bits zero). Among all words
    of a format these are too rare to be drawn.
    """
    first = next(iter(columns.values()))
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(first))
    is_round = np.asarray(first)[order] & 63 == 0
    chosen = rng.permutation(np.union1d(order[:count], order[is_round][: count // 2]))
    return {name: column[chosen] for name, column in columns.items()}


def at_all_depths(
    config: OperatorConfig,
    columns: dict[str, np.ndarray],
    seed: int,
    complete=tuple(stages for stages, _ in DEPTHS),
) -> list[tuple[OperatorConfig, dict[str, np.ndarray]]]:
    """Every vector where the number of stages is in ``complete``, some at the other DEPTHS."""
    part = some(columns, seed)
    return [
        case
        for depth in DEPTHS
        for case in at_depths(config, columns if depth[0] in complete else part, [depth])
    ]


class Bank(Block):
    """Streams ``i0``, ``o0``, ``i1``, ``o1``, ... of independent operators.

    A register that nothing reads gives the module a clock where no operator has one.
    """

    def __init__(self, config: BankConfig):
        ports = {}
        for k, member in enumerate(config.members):
            ports[f"i{k}"] = In(stream.Signature(member.i_layout))
            ports[f"o{k}"] = Out(stream.Signature(member.o_layout))
        super().__init__(config, ports | {"running": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.running.eq(1)
        for k, member in enumerate(self.config.members):
            operator = add(m, f"operator_{k}", self.config.operator(member))
            wiring.connect(m, wiring.flipped(getattr(self, f"i{k}")), operator.i)
            wiring.connect(m, operator.o, wiring.flipped(getattr(self, f"o{k}")))
        return m


def check(operator: type[Operator], cases, seed: int, flow_count: int = 400) -> None:
    """Run tb.fp16.check_operator on ``cases``: (configuration, columns by payload field) each."""
    block = Bank(BankConfig(operator=operator, members=tuple(config for config, _ in cases)))
    packed, rng = {}, np.random.default_rng([seed, 17])
    for k, (config, columns) in enumerate(cases):
        packed[f"i{k}"] = pack(config.i_layout, columns)
        packed[f"o{k}"] = pack(config.o_layout, columns)
        packed[f"flow{k}"] = flow_rows(config, columns, rng, 4 * flow_count)
    simulate(
        block,
        "tb.fp16.check_operator",
        vectors=packed,
        params={"flow_rows": flow_count, "in_turn": issubclass(operator, OperatorInTurn)},
        seed=seed,
    )
