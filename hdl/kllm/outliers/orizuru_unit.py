"""Largest and smallest of up to 16 leaves."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Mux
from amaranth.hdl import Value
from amaranth.lib import data

from golden.config import bounded, flag, power_of_two
from golden.fp16.format import FP16
from hdl.bits import let
from hdl.block import Tier
from hdl.fp16.pipeline import Operator, OperatorConfig
from hdl.kinds import BITS, NUMBER, index_of, mask_of
from hdl.ports import Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmOrizuruUnitConfig(OperatorConfig):
    """Fan-in of one unit, and whether both of its trees see the same leaves."""

    stages: int = 1
    leaves: int = power_of_two(16, 2, 16, "leaves of a node")
    shared: bool = flag(True, "one set of keys for both trees (lowest level), else one for each")
    carry_bits: int = bounded(
        0, 0, 16, "bits that go along with each leaf and leave with the winner"
    )

    @property
    def trees(self) -> tuple[str, ...]:
        """Suffixes of the leaf fields: one set, or one for each tree."""
        return ("",) if self.shared else ("_max", "_min")

    @property
    def index_bits(self) -> int:
        return self.leaves.bit_length() - 1

    @property
    def comparators(self) -> int:
        """16-bit comparators of the unit: leaves/2 fewer when the trees share their leaves."""
        return 2 * (self.leaves - 1) - (self.leaves // 2 if self.shared else 0)

    @property
    def operands(self) -> dict:
        fields = {}
        for tree in self.trees:
            of = tree.replace("_", " of the ") + " tree" * bool(tree)
            fields[f"key{tree}"] = (data.ArrayLayout(FP16.bits, self.leaves), f"leaves{of}", NUMBER)
            if self.carry_bits:
                carry = data.ArrayLayout(self.carry_bits, self.leaves)
                fields[f"carry{tree}"] = (carry, f"bits that go with each leaf{of}", BITS)
        for tree in ("max", "min"):
            fields[f"valid_{tree}"] = (
                self.leaves,
                f"leaves that the {tree} tree still has",
                mask_of("elements"),
            )
        return fields

    @property
    def results(self) -> dict:
        return {
            "max": (self.winner_layout, "winner of the max tree"),
            "min": (self.winner_layout, "winner of the min tree"),
        }

    @property
    def winner_layout(self) -> Payload:
        carry = {"carry": (self.carry_bits, "bits of that leaf", BITS)} if self.carry_bits else {}
        return Payload(
            key=(FP16.bits, "ordered key", NUMBER),
            index=(self.index_bits, "its leaf", index_of("leaves")),
            valid=(1, "the tree has a leaf left"),
            **carry,
        )


class KllmOrizuruUnit(Operator):
    """``max = the largest valid key, lowest index first; min = the smallest, highest index first``.

    One node of both trees. key: ``hdl.fp16.compare.total_order_key`` of an FP16 word, any 16-bit
    unsigned integer; valid_max, valid_min: which leaves are still in each tree. A winner with
    valid = 0 means that its tree has no leaf left; its other fields are then without meaning.

    A tournament of log2(leaves) levels. At the lowest level of a ``shared`` unit one comparison,
    left >= right, serves both trees. The min tree follows its inverse, which makes the two orders
    exact opposites. Comparators: 8 + 7 + 7 for 16 shared leaves, 15 + 15 otherwise.
    Throughput 1 set of leaves per cycle, latency ``stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Nothing rounds.
    Source: KLLM, section IV-C. Golden: golden.kllm.orizuru.select_unit.

    ``carry`` travels with a leaf and leaves with the winner. It holds positions within the units
    below. ``python -m synth.report kllm_orizuru_unit --config leaf`` gives 3.44 kGE, or 1,708 um2
    at 28 nm eq. ``inner`` has 4.75 kGE, or 2,358 um2. Table I's row is 2,707 um2 per unit. It does
    not say which part of the leaves that includes.
    """

    tier = Tier.PART
    golden = "golden.kllm.orizuru:select_unit"
    default = KllmOrizuruUnitConfig()
    configs: ClassVar = {
        "leaf": KllmOrizuruUnitConfig(),
        "inner": KllmOrizuruUnitConfig(shared=False, carry_bits=8),
    }

    i_text = "leaves as ordered keys, and which of them each tree still has"
    o_text = "the winner of each tree: key, index of its leaf, whether there is one"

    def phases(self) -> list:
        config = self.config
        levels = config.index_bits
        return [_level(config, depth, is_last=depth == levels - 1) for depth in range(levels)]


def _level(config: KllmOrizuruUnitConfig, depth: int, *, is_last: bool):
    """One round of the tournament; nodes travel as fields ``max_0_key``, ``max_0_index``, ..."""

    def nodes(fields: dict, smallest: bool) -> list[dict]:
        tree = "min" if smallest else "max"
        if depth:
            count = config.leaves >> depth
            names = ("key", "index", "valid", "carry")
            return [
                {n: fields[f"{tree}_{k}_{n}"] for n in names if f"{tree}_{k}_{n}" in fields}
                for k in range(count)
            ]
        suffix = "" if config.shared else f"_{tree}"
        leaves = []
        for k in range(config.leaves):
            leaf = {"key": fields[f"key{suffix}"][k], "valid": fields[f"valid_{tree}"][k]}
            if config.carry_bits:
                leaf["carry"] = fields[f"carry{suffix}"][k]
            leaves.append(leaf)
        return leaves

    def phase(m: Module, fields: dict) -> dict:
        result = {}
        shared_ge: dict[int, Value] = {}
        for smallest in (False, True):
            tree = "min" if smallest else "max"
            level = nodes(fields, smallest)
            for k in range(len(level) // 2):
                left, right = level[2 * k], level[2 * k + 1]
                name = f"{tree}_{depth}_{k}"
                if smallest and config.shared and depth == 0:
                    ge = shared_ge[k]
                else:
                    ge = let(m, f"{name}_ge", left["key"] >= right["key"])
                    shared_ge[k] = ge
                wins = ~ge if smallest else ge
                pick_left = let(m, f"{name}_left", left["valid"] & (~right["valid"] | wins))
                winner = {
                    n: let(m, f"{name}_{n}", Mux(pick_left, left[n], right[n]))
                    for n in ("key", "carry")
                    if n in left
                }
                lower = Mux(pick_left, left["index"], right["index"]) if depth else None
                index = ~pick_left if lower is None else Cat(lower, ~pick_left)
                winner["index"] = let(m, f"{name}_index", index)
                winner["valid"] = let(m, f"{name}_valid", left["valid"] | right["valid"])
                if is_last:
                    order = config.winner_layout.members
                    result[tree] = let(m, tree, Cat(*(winner[n] for n in order)))
                else:
                    result |= {f"{tree}_{k}_{n}": value for n, value in winner.items()}
        return result

    return phase
