"""The trees of KllmOrizuru: one unit per node, or rows in RAM and one unit for all nodes.

Both have the same members, so kllm_orizuru takes either (docs/blocks/kllm_orizuru.md).
"""

import dataclasses
from typing import ClassVar

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from golden.config import Config
from golden.fp16.format import FP16
from hdl.block import Block
from hdl.emit import add
from hdl.fp16.shift import let
from hdl.kllm.orizuru_unit import KllmOrizuruUnit, KllmOrizuruUnitConfig
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W

__all__ = [
    "RADIX",
    "OrizuruLeaves",
    "OrizuruTreesConfig",
    "OrizuruTreesParallel",
    "OrizuruTreesShared",
]

RADIX = 16
_TREES = ("max", "min")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrizuruTreesConfig(Config):
    """Leaves of a pair of trees made of nodes of 16."""

    n_max: int = 4096  # leaves, 2..65536; the tree is rounded up to whole nodes

    def __post_init__(self) -> None:
        self._check_range("n_max", 2, 1 << 16)

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes of each level, the leaves' first: (256, 16, 1) for 4096."""
        counts = [-(-self.n_max // RADIX)]
        while counts[-1] > 1:
            counts.append(-(-counts[-1] // RADIX))
        return tuple(counts)

    @property
    def levels(self) -> int:
        return len(self.nodes)

    @property
    def row_layout(self) -> data.StructLayout:
        """16 leaves in flight to the lowest level."""
        return data.StructLayout(
            {
                "en": 1,
                "row": range(max(2, self.nodes[0])),
                "key": data.ArrayLayout(FP16.bits, RADIX),
                "valid": RADIX,
                "last": 1,
            }
        )

    @property
    def best_layout(self) -> data.StructLayout:
        return data.StructLayout({"key": FP16.bits, "index": 4 * self.levels})

    @property
    def signature(self) -> dict:
        return {
            "row": In(self.row_layout),
            "start": In(1),
            "advance_max": In(1),
            "advance_min": In(1),
            "max": Out(self.best_layout),
            "min": Out(self.best_layout),
            "shown_max": Out(1),
            "shown_min": Out(1),
        }


_MEANING = {
    "row": "16 leaves of the token that is being loaded; rows in ascending order",
    "start": "the loaded token takes the place of the one in the trees",
    "advance_max": "with shown_max: the max tree's root is popped",
    "advance_min": "with shown_min: the min tree's root is popped",
    "max": "root of the max tree: key and position",
    "min": "root of the min tree: key and position",
    "shown_max": "max is up to date",
    "shown_min": "min is up to date",
}


class OrizuruLeaves(Block):
    """16 leaves of two tokens and the lowest unit: ``max, min = winners of what is left``.

    The token in the trees and the one being loaded have registers of their own; ``start`` copies.
    Members: see ``__init__``. A pop masks its leaf in the same cycle; winners follow in the next.
    """

    verilate_separately = True  # 256 of them in a tree of 4096; every output is a register
    meaning: ClassVar[dict[str, str]] = {
        "en": "load key and valid",
        "key": "keys of the leaves",
        "valid": "which of them belong to the token",
        "start": "the loaded leaves become the leaves of the tree, all present",
        "pop": "bit 0: leaf_max leaves the max tree; bit 1: leaf_min leaves the min tree",
        "leaf_max": "leaf popped from the max tree",
        "leaf_min": "leaf popped from the min tree",
        "max": "winner of the max tree, one cycle later",
        "min": "winner of the min tree, one cycle later",
    }

    def __init__(self, config: KllmOrizuruUnitConfig):
        winners = config.results
        super().__init__(
            config,
            {
                "en": In(1),
                "key": In(data.ArrayLayout(FP16.bits, RADIX)),
                "valid": In(RADIX),
                "start": In(1),
                "pop": In(2),
                "leaf_max": In(4),
                "leaf_min": In(4),
                "max": Out(winners["max"]),
                "min": Out(winners["min"]),
            },
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        unit = add(m, "unit", KllmOrizuruUnit(self.config))
        loaded_key = Signal.like(self.key, name="loaded_key", reset_less=True)
        key = Signal.like(self.key, name="tree_key", reset_less=True)
        loaded_valid = Signal(RADIX)
        with m.If(self.start):
            m.d.sync += [key.eq(loaded_key), loaded_valid.eq(0)]
        with m.Elif(self.en):
            m.d.sync += [loaded_key.eq(self.key), loaded_valid.eq(self.valid)]
        m.d.comb += [unit.i.valid.eq(1), unit.o.ready.eq(1), unit.i.p.key.eq(key)]
        for bit, tree in enumerate(_TREES):
            present = Signal(RADIX, name=f"present_{tree}")
            after = Signal(RADIX, name=f"after_{tree}")
            popped = self.pop[bit].replicate(RADIX) & (1 << getattr(self, f"leaf_{tree}"))[:RADIX]
            m.d.comb += [
                after.eq(present & ~popped),
                unit.i.p[f"valid_{tree}"].eq(after),
                getattr(self, tree).eq(unit.o.p[tree]),
            ]
            m.d.sync += present.eq(Mux(self.start, loaded_valid, after))
        return m


class OrizuruTreesParallel(Block):
    """A unit for every node of both trees, each with its winner in registers.

    Load: ``start`` may come 1 cycle after the last row. Roots are shown levels + 1 cycles after
    ``start``. A pop is repaired in levels cycles, one level each, both trees at once.
    """

    meaning: ClassVar[dict[str, str]] = _MEANING

    def __init__(self, config: OrizuruTreesConfig):
        super().__init__(config, config.signature)

    @property
    def load_cycles(self) -> int:
        """Cycles from the last row to ``start``, at least."""
        return 1

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        winners = []  # of the level below
        for n in range(config.nodes[0]):
            leaves = add(m, f"leaves_{n}", OrizuruLeaves(KllmOrizuruUnitConfig()))
            m.d.comb += [
                leaves.en.eq(self.row.en & (self.row.row == n)),
                leaves.key.eq(self.row.key),
                leaves.valid.eq(self.row.valid),
                leaves.start.eq(self.start),
                leaves.leaf_max.eq(self.max.index[:4]),
                leaves.leaf_min.eq(self.min.index[:4]),
                leaves.pop.eq(
                    Cat(
                        *(
                            getattr(self, f"advance_{tree}") & (getattr(self, tree).index[4:] == n)
                            for tree in _TREES
                        )
                    )
                ),
            ]
            winners.append({tree: getattr(leaves, tree) for tree in _TREES})
        for level in range(1, config.levels):
            below, winners = winners, []
            unit_config = KllmOrizuruUnitConfig(shared=False, carry_bits=4 * level)
            for n in range(config.nodes[level]):
                unit = add(m, f"unit_{level}_{n}", KllmOrizuruUnit(unit_config))
                m.d.comb += [unit.i.valid.eq(1), unit.o.ready.eq(1)]
                for tree in _TREES:
                    children = [child[tree] for child in below[RADIX * n : RADIX * (n + 1)]]
                    absent = RADIX - len(children)
                    m.d.comb += unit.i.p[f"valid_{tree}"].eq(
                        Cat(*(child.valid for child in children), Const(0, absent))
                    )
                    for k, child in enumerate(children):
                        index = child.index if level == 1 else Cat(child.carry, child.index)
                        m.d.comb += [
                            unit.i.p[f"key_{tree}"][k].eq(child.key),
                            unit.i.p[f"carry_{tree}"][k].eq(index),
                        ]
                winners.append({tree: unit.o.p[tree] for tree in _TREES})
        for tree in _TREES:
            root = winners[0][tree]
            wait = Signal(range(config.levels + 1), name=f"wait_{tree}")
            index = root.index if config.levels == 1 else Cat(root.carry, root.index)
            m.d.comb += [
                getattr(self, tree).key.eq(root.key),
                getattr(self, tree).index.eq(index),
                getattr(self, f"shown_{tree}").eq(wait == 0),
            ]
            with m.If(self.start):
                m.d.sync += wait.eq(config.levels)
            with m.Elif(getattr(self, f"advance_{tree}")):
                m.d.sync += wait.eq(config.levels - 1)
            with m.Elif(wait != 0):
                m.d.sync += wait.eq(wait - 1)
        return m


class OrizuruTreesShared(Block):
    """Leaves and lower winners in RAM, one unit for loading, one for the repairs of both trees.

    Loading: each row gives its winners once, and one comparison per level and tree merges them
    into the winners above. ``start`` may come levels cycles after the last row; roots are shown
    in the cycle after ``start``.

    A repair takes levels + 1 cycles. It reads the row of the popped leaf and finds its winner among
    the leaves that are left. Then it reads each row above, with that winner in its place. No mask
    says which leaves are left: pops descend in one strict order. A leaf of the row is left in the
    max tree if and only if it is below the popped one. In the min tree it must be above. Both trees
    read leaves through one port. When both start in one cycle, the min tree starts in the next.
    """

    meaning: ClassVar[dict[str, str]] = _MEANING

    def __init__(self, config: OrizuruTreesConfig):
        super().__init__(config, config.signature)

    @property
    def load_cycles(self) -> int:
        """Cycles from the last row to ``start``, at least."""
        return max(self.config.levels, 2)

    @property
    def leaf_memory(self) -> MemoryConfig:
        """Rows of 16 keys, of two tokens."""
        return MemoryConfig(depth=2 * self.config.nodes[0], width=RADIX * FP16.bits)

    def node_memory(self, level: int) -> MemoryConfig:
        """Rows of 16 winners of the level below, of one token and tree."""
        lane = _entry(level).size
        return MemoryConfig(depth=self.config.nodes[level], width=RADIX * lane, granularity=lane)

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        levels, rows = config.levels, config.nodes[0]
        bank = Signal()  # of the token in the trees; the other one is being loaded
        with m.If(self.start):
            m.d.sync += bank.eq(~bank)

        leaves = add(m, "leaves", Memory1R1W(self.leaf_memory))
        m.d.comb += [
            leaves.write_en.eq(self.row.en),
            leaves.write_addr.eq(self.row.row + Mux(bank, 0, rows)),
            leaves.write_data.eq(self.row.key),
        ]

        # Loading. stage: winners of one node, and which node of its level it is.
        unit = add(m, "load_unit", KllmOrizuruUnit(KllmOrizuruUnitConfig()))
        m.d.comb += [
            unit.i.valid.eq(self.row.en),
            unit.o.ready.eq(1),
            unit.i.p.key.eq(self.row.key),
            unit.i.p.valid_max.eq(self.row.valid),
            unit.i.p.valid_min.eq(self.row.valid),
        ]
        number = Signal(range(max(2, rows)), reset_less=True)
        closes = Signal(reset_less=True)
        last_row = Signal(range(max(2, rows)), reset_less=True)  # of the token being loaded
        tail = Signal(RADIX, reset_less=True)  # leaves of its last row
        with m.If(self.row.en):
            m.d.sync += [
                number.eq(self.row.row),
                closes.eq(self.row.last),
                last_row.eq(self.row.row),
                tail.eq(self.row.valid),
            ]
        stage = {"valid": unit.o.valid, "number": number, "closes": closes}
        found = {tree: unit.o.p[tree] for tree in _TREES}
        if levels == 1:
            held = {}
            for tree in _TREES:
                held[tree] = Signal(_entry(1), name=f"root_{tree}", reset_less=True)
                with m.If(stage["valid"]):
                    m.d.sync += [
                        held[tree].key.eq(found[tree].key),
                        held[tree].index.eq(found[tree].index),
                    ]
            found = held
        stores: dict[int, dict[str, _Store]] = {}
        for level in range(1, levels):
            stores[level] = {}
            is_top = level == levels - 1
            is_first = stage["number"][:4] == 0
            merged = {}
            for tree in _TREES:
                smallest = tree == "min"
                new = found[tree]
                best = Signal(_entry(level + 1), name=f"merged_{level}_{tree}", reset_less=True)
                # Later nodes have higher positions: an equal one wins the min tree alone.
                wins = new.key <= best.key if smallest else new.key > best.key
                with m.If(stage["valid"] & (is_first | wins)):
                    m.d.sync += [
                        best.key.eq(new.key),
                        best.index.eq(Cat(new.index, stage["number"][:4])),
                    ]
                entry = Signal(_entry(level), name=f"loaded_{level}_{tree}")
                m.d.comb += [entry.valid.eq(1), entry.key.eq(new.key), entry.index.eq(new.index)]
                store = _Top(m, self, level, tree) if is_top else _Rows(m, self, level, tree)
                store.load(stage["valid"], stage["number"], entry, bank)
                stores[level][tree] = store
                merged[tree] = best
            valid = Signal(name=f"stage_valid_{level}")
            above = Signal(
                range(max(2, config.nodes[level])), name=f"stage_number_{level}", reset_less=True
            )
            closes = Signal(name=f"stage_closes_{level}", reset_less=True)
            is_end = stage["closes"] | (_at_least(stage["number"][:4], RADIX - 1))
            m.d.sync += [
                valid.eq(stage["valid"] & is_end),
                above.eq(stage["number"][4:]),
                closes.eq(stage["closes"]),
            ]
            stage, found = {"valid": valid, "number": above, "closes": closes}, merged

        # The token in the trees.
        tree_last_row = Signal.like(last_row, name="tree_last_row", reset_less=True)
        tree_tail = Signal(RADIX, reset_less=True)
        with m.If(self.start):
            m.d.sync += [tree_last_row.eq(last_row), tree_tail.eq(tail)]
        pick = add(
            m,
            "pick_unit",
            KllmOrizuruUnit(
                KllmOrizuruUnitConfig(shared=False, stages=0, carry_bits=4 * (levels - 1))
            ),
        )
        m.d.comb += [pick.i.valid.eq(1), pick.o.ready.eq(1)]
        reads = {}
        for tree in _TREES:
            smallest = tree == "min"
            advance = getattr(self, f"advance_{tree}")
            best = Signal(config.best_layout, name=f"best_{tree}", reset_less=True)
            shown, waits = Signal(name=f"is_shown_{tree}"), Signal(name=f"waits_{tree}")
            step = Signal(levels, name=f"step_{tree}")  # bit l: level l is repaired
            wants, read = let(m, f"wants_{tree}", advance | waits), Signal(name=f"read_{tree}")
            m.d.comb += [
                read.eq(wants & ~reads["max"] if smallest else wants),
                getattr(self, tree).eq(best),
                getattr(self, f"shown_{tree}").eq(shown),
            ]
            reads[tree] = read
            m.d.sync += [waits.eq(wants & ~read), step.eq(Cat(read, step)[:levels])]

            winner = Signal(_entry(levels), name=f"winner_{tree}", reset_less=True)
            picked = pick.o.p[tree]
            # Level 0: leaves of the popped one's row that come after it in this tree's order.
            is_tail = best.index[4:] == tree_last_row
            row_valid = []
            for k in range(RADIX):
                key = leaves.read_data.word_select(k, FP16.bits)
                place = best.index[:4]
                beside = _at_least(place, k + 1) if smallest else ~_at_least(place, k)
                behind = key > best.key if smallest else key < best.key
                is_left = behind | ((key == best.key) & beside)
                row_valid.append(is_left & (~is_tail | tree_tail[k]))
            with m.If(step[0]):
                m.d.comb += [
                    pick.i.p[f"key_{tree}"].eq(leaves.read_data),
                    pick.i.p[f"valid_{tree}"].eq(Cat(*row_valid)),
                ]
            with m.If(step[0]):
                m.d.sync += [
                    winner.key.eq(picked.key),
                    winner.index.eq(picked.index),
                    winner.valid.eq(picked.valid),
                ]
            for level in range(1, levels):
                place = best.index[4 * level : 4 * level + 4]
                node = best.index[4 * level + 4 :]
                store = stores[level][tree]
                store.read(read, node, bank)
                store.repair(self.start, step[level], best.index[4 * level :], winner, bank)
                last = tree_last_row[4 * (level - 1) :]
                is_tail = node == last[4:] if len(last) > 4 else Const(1)
                with m.If(step[level]):
                    for k in range(RADIX):
                        entry = store.entry(k, bank)
                        is_new = place == k
                        inside = ~is_tail | _at_least(last[:4], k)
                        m.d.comb += [
                            pick.i.p[f"key_{tree}"][k].eq(Mux(is_new, winner.key, entry.key)),
                            pick.i.p[f"carry_{tree}"][k].eq(
                                Mux(is_new, winner.index[: 4 * level], entry.index)
                            ),
                            pick.i.p[f"valid_{tree}"][k].eq(
                                Mux(is_new, winner.valid, entry.valid) & inside
                            ),
                        ]
                    m.d.sync += [
                        winner.key.eq(picked.key),
                        winner.index.eq(Cat(picked.carry[: 4 * level], picked.index)),
                        winner.valid.eq(picked.valid),
                    ]
            with m.If(self.start):
                root = found[tree]
                m.d.sync += [best.key.eq(root.key), best.index.eq(root.index), shown.eq(1)]
            with m.Elif(advance):
                m.d.sync += shown.eq(0)
            with m.Elif(step[levels - 1]):
                index = Cat(picked.carry, picked.index) if levels > 1 else picked.index
                m.d.sync += [best.key.eq(picked.key), best.index.eq(index), shown.eq(1)]

        is_max = reads["max"]
        row = Mux(is_max, self.max.index[4:], self.min.index[4:]) if levels > 1 else Const(0)
        m.d.comb += [
            leaves.read_en.eq(reads["max"] | reads["min"]),
            leaves.read_addr.eq(row + Mux(bank, rows, 0)),
        ]
        return m


def _entry(level: int) -> data.StructLayout:
    """Winner of a node below ``level``: its key and the position within that node."""
    return data.StructLayout({"key": FP16.bits, "index": 4 * level, "valid": 1})


class _Store:
    """16-entry rows of one level and tree, of the token being loaded and the one in the tree."""

    def __init__(self, m: Module, trees: OrizuruTreesShared, level: int, tree: str):
        self.m, self.level, self.tree = m, level, tree
        self.name = f"{level}_{tree}"
        self.setup(trees)

    def setup(self, trees: OrizuruTreesShared) -> None:
        raise NotImplementedError


class _Top(_Store):
    """One row: registers, copied at ``start``."""

    def setup(self, trees: OrizuruTreesShared) -> None:
        entries = range(RADIX)
        self.loaded = [
            Signal(_entry(self.level), name=f"top_loaded_{self.tree}_{k}", reset_less=True)
            for k in entries
        ]
        self.entries = [
            Signal(_entry(self.level), name=f"top_{self.tree}_{k}", reset_less=True)
            for k in entries
        ]

    def load(self, en, number, entry, bank) -> None:
        for k in range(RADIX):
            with self.m.If(en & _equals(number, k)):
                self.m.d.sync += self.loaded[k].eq(entry)

    def read(self, en, node, bank) -> None:
        pass

    def repair(self, start, en, number, entry, bank) -> None:
        for k in range(RADIX):
            with self.m.If(start):
                self.m.d.sync += self.entries[k].eq(self.loaded[k])
            with self.m.Elif(en & (number == k)):
                self.m.d.sync += self.entries[k].eq(_fitted(entry, self.level))

    def entry(self, k: int, bank):
        return self.entries[k]


class _Rows(_Store):
    """One RAM for each of the two tokens, because both are written."""

    def setup(self, trees: OrizuruTreesShared) -> None:
        self.rams = [
            add(self.m, f"node_{self.name}_{b}", Memory1R1W(trees.node_memory(self.level)))
            for b in range(2)
        ]
        self.loading: tuple = ()

    def load(self, en, number, entry, bank) -> None:
        self.loading = en, number, entry

    def read(self, en, node, bank) -> None:
        for b, ram in enumerate(self.rams):
            self.m.d.comb += [ram.read_en.eq(en & (bank == b)), ram.read_addr.eq(node)]

    def repair(self, start, en, number, entry, bank) -> None:
        load_en, load_number, load_entry = self.loading
        for b, ram in enumerate(self.rams):
            in_tree = bank == b
            place = let(self.m, f"node_{self.name}_{b}_place", Mux(in_tree, number, load_number))
            one_hot = let(self.m, f"node_{self.name}_{b}_lane", (1 << place[:4])[:RADIX])
            word = Mux(in_tree, _fitted(entry, self.level), load_entry.as_value())
            self.m.d.comb += [
                ram.write_en.eq(Mux(Mux(in_tree, en, load_en), one_hot, 0)),
                ram.write_addr.eq(place[4:]),
                ram.write_data.eq(word.replicate(RADIX)),
            ]

    def entry(self, k: int, bank):
        layout = _entry(self.level)
        lanes = [ram.read_data.word_select(k, layout.size) for ram in self.rams]
        return data.View(layout, Array(lanes)[bank])


def _equals(value, number: int):
    return value == number if number < 1 << len(value) else Const(0, 1)


def _at_least(value, bound: int):
    """``value >= bound`` as one bit, a constant where it is one."""
    if bound == 0:
        return Const(1, 1)
    return value >= bound if bound < 1 << len(value) else Const(0, 1)


def _fitted(entry, level: int):
    """A winner cut to the index bits of its level."""
    return Cat(entry.key, entry.index[: 4 * level], entry.valid)
