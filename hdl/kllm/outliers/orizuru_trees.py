"""The trees of KllmOrizuru: one unit per node, or rows in RAM and one unit for all nodes.

Both have the same members, so kllm_orizuru takes either (docs/blocks/kllm_orizuru.md).
"""

import dataclasses

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data

from golden.config import Config, bounded
from golden.fp16.format import FP16
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.kinds import NUMBER, index_of, mask_of
from hdl.kllm.outliers.orizuru_unit import KllmOrizuruUnit, KllmOrizuruUnitConfig
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import Bus, In, Out, Payload

RADIX = 16
TREES = ("max", "min")  # order of the two trees wherever both are an array


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrizuruTreesConfig(Config):
    """Leaves of a pair of trees made of nodes of 16."""

    n_max: int = bounded(4096, 2, 1 << 16, "leaves; the tree is rounded up to whole nodes")
    stages: int = bounded(1, 1, 4, "cycles of a tournament of 16; parallel: 1")

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
        return Payload(
            en=(1, "a row comes"),
            row=(range(max(2, self.nodes[0])), "row of the token"),
            key=(data.ArrayLayout(FP16.bits, RADIX), "ordered key of each word", NUMBER),
            valid=(RADIX, "words that count", mask_of("elements")),
            last=(1, "final row of the token"),
        )

    @property
    def best_layout(self) -> data.StructLayout:
        return Payload(
            key=(FP16.bits, "ordered key of each word", NUMBER),
            index=(4 * self.levels, "place of the winner", index_of("leaves")),
        )

    @property
    def signature(self) -> dict:
        return {
            "row": In(
                self.row_layout,
                "16 leaves of the token that is being loaded; rows in ascending order",
            ),
            "start": In(1, "the loaded token takes the place of the one in the trees"),
            "tree": Out(self.tree_signature, ("the max tree", "the min tree")).array(len(TREES)),
        }

    @property
    def tree_signature(self) -> Bus:
        """One tree, as the trees show it."""
        return Bus(
            {
                "root": Out(self.best_layout, "key and position of the root"),
                "shown": Out(1, "root is up to date"),
                "advance": In(1, "with shown: the root is popped"),
            }
        )


class OrizuruLeaves(Block):
    """16 leaves of two tokens and the lowest unit: ``max, min = winners of what is left``.

    The token in the trees and the one being loaded have registers of their own; ``start`` copies.
    Members: see ``__init__``. A pop masks its leaf in the same cycle; winners follow in the next.
    """

    verilate_separately = True  # 256 of them in a tree of 4096; every output is a register

    def __init__(self, config: KllmOrizuruUnitConfig):
        super().__init__(
            config,
            {
                "en": In(1, "load key and valid"),
                "key": In(data.ArrayLayout(FP16.bits, RADIX), "keys of the leaves", NUMBER),
                "valid": In(RADIX, "which of them belong to the token", mask_of("elements")),
                "start": In(1, "the loaded leaves become the leaves of the tree, all present"),
                "pop": In(1, "leaf {0} leaves tree {0}").array(len(TREES)),
                "leaf": In(
                    4, ("leaf popped from the max tree", "of the min tree"), index_of("leaves")
                ).array(len(TREES)),
                "winner": Out(
                    config.winner_layout,
                    ("winner of the max tree, one cycle later", "of the min tree"),
                ).array(len(TREES)),
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
        for n, tree in enumerate(TREES):
            present = Signal(RADIX, name=f"present_{tree}")
            after = Signal(RADIX, name=f"after_{tree}")
            popped = self.pop[n].replicate(RADIX) & (1 << self.leaf[n])[:RADIX]
            m.d.comb += [
                after.eq(present & ~popped),
                unit.i.p[f"valid_{tree}"].eq(after),
                self.winner[n].eq(unit.o.p[tree]),
            ]
            m.d.sync += present.eq(Mux(self.start, loaded_valid, after))
        return m


class OrizuruTreesParallel(Block):
    """A unit for every node of both trees, each with its winner in registers.

    Load: ``start`` may come 1 cycle after the last row. Roots are shown levels + 1 cycles after
    ``start``. A pop is repaired in levels cycles, one level each, both trees at once.
    """

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
                *(
                    leaf.eq(tree.root.index[:4])
                    for leaf, tree in zip(leaves.leaf, self.tree, strict=True)
                ),
                *(
                    pop.eq(tree.advance & (tree.root.index[4:] == n))
                    for pop, tree in zip(leaves.pop, self.tree, strict=True)
                ),
            ]
            winners.append(dict(zip(TREES, leaves.winner, strict=True)))
        for level in range(1, config.levels):
            below, winners = winners, []
            unit_config = KllmOrizuruUnitConfig(shared=False, carry_bits=4 * level)
            for n in range(config.nodes[level]):
                unit = add(m, f"unit_{level}_{n}", KllmOrizuruUnit(unit_config))
                m.d.comb += [unit.i.valid.eq(1), unit.o.ready.eq(1)]
                for tree in TREES:
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
                winners.append({tree: unit.o.p[tree] for tree in TREES})
        for name, tree in zip(TREES, self.tree, strict=True):
            root = winners[0][name]
            wait = Signal(range(config.levels + 1), name=f"wait_{name}")
            index = root.index if config.levels == 1 else Cat(root.carry, root.index)
            m.d.comb += [
                tree.root.key.eq(root.key),
                tree.root.index.eq(index),
                tree.shown.eq(wait == 0),
            ]
            with m.If(self.start):
                m.d.sync += wait.eq(config.levels)
            with m.Elif(tree.advance):
                m.d.sync += wait.eq(config.levels - 1)
            with m.Elif(wait != 0):
                m.d.sync += wait.eq(wait - 1)
        return m


class OrizuruTreesShared(Block):
    """Leaves and lower winners in RAM, one unit for loading, one for the repairs of both trees.

    Loading: each row gives its winners once, and one comparison per level and tree merges them
    into the winners above. ``start`` may come levels + stages - 1 cycles after the last row; roots
    are shown in the cycle after ``start``.

    A repair takes levels * stages + 1 cycles. It reads the row of the popped leaf and finds its
    winner among the leaves that are left. Then it reads each row above, with that winner in its
    place. No mask says which leaves are left: pops descend in one strict order. A leaf of the row
    is left in the max tree if and only if it is below the popped one. In the min tree it must be
    above. Both trees read leaves through one port. When both start in one cycle, the min tree
    starts in the next.
    """

    def __init__(self, config: OrizuruTreesConfig):
        super().__init__(config, config.signature)

    @property
    def load_cycles(self) -> int:
        """Cycles from the last row to ``start``, at least."""
        return max(self.config.levels, 2) + self.config.stages - 1

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
        levels, rows, stages = config.levels, config.nodes[0], config.stages
        bank = Signal()  # of the token in the trees; the other one is being loaded
        with m.If(self.start):
            m.d.sync += bank.eq(~bank)

        leaves = add(m, "leaves", Memory1R1W(self.leaf_memory))
        m.d.comb += [
            leaves.write_en.eq(self.row.en),
            leaves.write_addr.eq(self.row.row + Mux(bank, 0, rows)),
            leaves.write_data.eq(self.row.key),
        ]
        end, stage = _load_rows(m, self.row, rows, stages)
        if levels == 1:
            stage = _held(m, stage)
        stores: dict[int, dict[str, _Store]] = {}
        loads: dict[int, dict[str, _Write]] = {}
        for level in range(1, levels):
            loads[level], stage = _merge(m, config, level, stage)
            stores[level] = {
                tree: _Top(m, level, tree)
                if level == levels - 1
                else _Rows(m, level, tree, self.node_memory(level))
                for tree in TREES
            }

        # The token in the trees.
        tree_end = _End(
            row=Signal.like(end.row, name="tree_last_row", reset_less=True),
            tail=Signal(RADIX, name="tree_tail", reset_less=True),
        )
        with m.If(self.start):
            m.d.sync += [tree_end.row.eq(end.row), tree_end.tail.eq(end.tail)]
        pick = add(
            m,
            "pick_unit",
            KllmOrizuruUnit(
                KllmOrizuruUnitConfig(
                    shared=False, stages=max(stages - 2, 0), carry_bits=4 * (levels - 1)
                )
            ),
        )
        m.d.comb += [pick.i.valid.eq(1), pick.o.ready.eq(1)]
        row = pick.i.p  # of a node, and which of its leaves are left
        if stages > 1:  # the RAM and the comparison with the popped leaf have a cycle of their own
            row = Signal(pick.i.p.shape(), name="row")
            held = Signal(pick.i.p.shape(), name="held_row", reset_less=True)
            m.d.comb += pick.i.p.eq(held)
            m.d.sync += held.eq(row)
        reads: dict[str, Signal] = {}
        for tree, shown in zip(TREES, self.tree, strict=True):
            best = Signal(config.best_layout, name=f"best_{tree}", reset_less=True)
            read, step = _steps(m, tree, shown.advance, levels * stages, reads.get("max"))
            reads[tree] = read
            begins, ends = step[::stages], step[stages - 1 :: stages]  # the tournament of a level
            picked = pick.o.p[tree]
            winner = Signal(_entry(levels), name=f"winner_{tree}", reset_less=True)
            with m.If(begins[0]):
                _repair_leaves(m, tree, row, leaves.read_data, best, tree_end)
            for level in range(levels):
                carried = picked.carry[: 4 * level] if level else Const(0, 0)
                with m.If(ends[level]):
                    m.d.sync += [
                        winner.key.eq(picked.key),
                        winner.index.eq(Cat(carried, picked.index)),
                        winner.valid.eq(picked.valid),
                    ]
            for level in range(1, levels):
                store, node = stores[level][tree], best.index[4 * level + 4 :]
                store.read(m, read, node, bank)
                repaired = _Write(begins[level], best.index[4 * level :], winner)
                store.write(m, self.start, loads[level][tree], repaired, bank)
                with m.If(begins[level]):
                    _repair_node(m, row, store, bank, best, tree_end, winner)
            self._show(m, tree, shown, stage.winner[tree], ends[levels - 1], picked, best)

        index = Mux(reads["max"], *(tree.root.index[4:] for tree in self.tree))
        number = index if levels > 1 else Const(0)
        m.d.comb += [
            leaves.read_en.eq(reads["max"] | reads["min"]),
            leaves.read_addr.eq(number + Mux(bank, rows, 0)),
        ]
        return m

    def _show(self, m: Module, name: str, tree, root, is_end, picked, best) -> None:
        """``best`` is the root of the token loaded, then that of each repair."""
        shown = Signal(name=f"is_shown_{name}")
        m.d.comb += [tree.root.eq(best), tree.shown.eq(shown)]
        with m.If(self.start):
            m.d.sync += [best.key.eq(root.key), best.index.eq(root.index), shown.eq(1)]
        with m.Elif(tree.advance):
            m.d.sync += shown.eq(0)
        with m.Elif(is_end):
            index = Cat(picked.carry, picked.index) if self.config.levels > 1 else picked.index
            m.d.sync += [best.key.eq(picked.key), best.index.eq(index), shown.eq(1)]


def _entry(level: int) -> data.StructLayout:
    """Winner of a node below ``level``: its key and the position within that node."""
    return Payload(
        key=(FP16.bits, "ordered key of each word", NUMBER),
        index=(4 * level, "place of the winner", index_of("leaves")),
        valid=(1, "words that count"),
    )


@dataclasses.dataclass(frozen=True)
class _Stage:
    """Winners of one node, per tree, and which node of its level it is; closes: the last one."""

    valid: Value
    number: Value
    closes: Value
    winner: dict


@dataclasses.dataclass(frozen=True)
class _End:
    """Last row of a token, and which of its leaves belong to the token."""

    row: Signal
    tail: Signal


@dataclasses.dataclass(frozen=True)
class _Write:
    """An entry for place ``number`` of a level."""

    en: Value
    number: Value
    entry: data.View


def _load_rows(m: Module, row, rows: int, stages: int) -> tuple[_End, _Stage]:
    """The end of the token being loaded, and the winners of each of its rows."""
    unit = add(m, "load_unit", KllmOrizuruUnit(KllmOrizuruUnitConfig(stages=stages)))
    m.d.comb += [
        unit.i.valid.eq(row.en),
        unit.o.ready.eq(1),
        unit.i.p.key.eq(row.key),
        unit.i.p.valid_max.eq(row.valid),
        unit.i.p.valid_min.eq(row.valid),
    ]
    number = Signal(range(max(2, rows)), reset_less=True)
    closes = Signal(reset_less=True)
    end = _End(
        row=Signal(range(max(2, rows)), name="last_row", reset_less=True),
        tail=Signal(RADIX, name="tail", reset_less=True),
    )
    with m.If(row.en):
        m.d.sync += [
            number.eq(row.row),
            closes.eq(row.last),
            end.row.eq(row.row),
            end.tail.eq(row.valid),
        ]
    for n in range(1, stages):
        late_number = Signal.like(number, name=f"number_{n}", reset_less=True)
        late_closes = Signal(name=f"closes_{n}", reset_less=True)
        m.d.sync += [late_number.eq(number), late_closes.eq(closes)]
        number, closes = late_number, late_closes
    winner = {tree: unit.o.p[tree] for tree in TREES}
    return end, _Stage(unit.o.valid, number, closes, winner)


def _held(m: Module, stage: _Stage) -> _Stage:
    """The winners in registers: those of a tree of one node."""
    held = {}
    for tree in TREES:
        held[tree] = Signal(_entry(1), name=f"root_{tree}", reset_less=True)
        with m.If(stage.valid):
            m.d.sync += [
                held[tree].key.eq(stage.winner[tree].key),
                held[tree].index.eq(stage.winner[tree].index),
            ]
    return dataclasses.replace(stage, winner=held)


def _merge(m: Module, config: OrizuruTreesConfig, level: int, stage: _Stage):
    """(what each tree's store of ``level`` loads, the winners above): one comparison per tree."""
    is_first = stage.number[:4] == 0
    merged, loads = {}, {}
    for tree in TREES:
        new = stage.winner[tree]
        best = Signal(_entry(level + 1), name=f"merged_{level}_{tree}", reset_less=True)
        # Later nodes have higher positions: an equal one wins the min tree alone.
        wins = new.key <= best.key if tree == "min" else new.key > best.key
        with m.If(stage.valid & (is_first | wins)):
            m.d.sync += [
                best.key.eq(new.key),
                best.index.eq(Cat(new.index, stage.number[:4])),
            ]
        entry = Signal(_entry(level), name=f"loaded_{level}_{tree}")
        m.d.comb += [entry.valid.eq(1), entry.key.eq(new.key), entry.index.eq(new.index)]
        loads[tree] = _Write(stage.valid, stage.number, entry)
        merged[tree] = best
    valid = Signal(name=f"stage_valid_{level}")
    above = Signal(
        range(max(2, config.nodes[level])), name=f"stage_number_{level}", reset_less=True
    )
    closes = Signal(name=f"stage_closes_{level}", reset_less=True)
    is_end = stage.closes | (_at_least(stage.number[:4], RADIX - 1))
    m.d.sync += [
        valid.eq(stage.valid & is_end),
        above.eq(stage.number[4:]),
        closes.eq(stage.closes),
    ]
    return loads, _Stage(valid, above, closes, merged)


def _steps(m: Module, tree: str, advance, levels: int, others) -> tuple[Signal, Signal]:
    """(read, step): the read of a repair, after that of the other tree; bit l: level l is next."""
    waits = Signal(name=f"waits_{tree}")
    step = Signal(levels, name=f"step_{tree}")
    wants = let(m, f"wants_{tree}", advance | waits)
    read = Signal(name=f"read_{tree}")
    m.d.comb += read.eq(wants if others is None else wants & ~others)
    m.d.sync += [waits.eq(wants & ~read), step.eq(Cat(read, step)[:levels])]
    return read, step


def _repair_leaves(m: Module, tree: str, node, row, best, end: _End) -> None:
    """``node`` gets the leaves of the popped one's row that come after it in this tree's order."""
    smallest = tree == "min"
    is_tail = best.index[4:] == end.row
    row_valid = []
    for k in range(RADIX):
        key = row.word_select(k, FP16.bits)
        place = best.index[:4]
        is_later = _at_least(place, k + 1) if smallest else ~_at_least(place, k)
        is_next = key > best.key if smallest else key < best.key
        is_left = is_next | ((key == best.key) & is_later)
        row_valid.append(is_left & (~is_tail | end.tail[k]))
    m.d.comb += [
        node[f"key_{tree}"].eq(row),
        node[f"valid_{tree}"].eq(Cat(*row_valid)),
    ]


class _Store:
    """16-entry rows of one level and tree, of the token being loaded and the one in the tree."""

    def __init__(self, level: int, tree: str):
        self.level, self.tree = level, tree

    def read(self, m: Module, en, node, bank) -> None:
        """The row of ``node`` is there in the next cycle."""
        raise NotImplementedError

    def write(self, m: Module, start, loaded: _Write, repaired: _Write, bank) -> None:
        """``loaded`` is of the other token, ``repaired`` of the one in the tree."""
        raise NotImplementedError

    def entries(self, bank) -> list[data.View]:
        """The row that was read."""
        raise NotImplementedError


class _Top(_Store):
    """One row: registers, copied at ``start``."""

    def __init__(self, m: Module, level: int, tree: str):
        super().__init__(level, tree)
        self.row = [
            Signal(_entry(level), name=f"top_{tree}_{k}", reset_less=True) for k in range(RADIX)
        ]

    def read(self, m: Module, en, node, bank) -> None:
        pass

    def write(self, m: Module, start, loaded: _Write, repaired: _Write, bank) -> None:
        for k, entry in enumerate(self.row):
            if k >> len(loaded.number):  # a row with fewer nodes: this one never wins
                m.d.comb += entry.eq(0)
                continue
            other = Signal(_entry(self.level), name=f"top_loaded_{self.tree}_{k}", reset_less=True)
            with m.If(loaded.en & _equals(loaded.number, k)):
                m.d.sync += other.eq(loaded.entry)
            with m.If(start):
                m.d.sync += entry.eq(other)
            with m.Elif(repaired.en & (repaired.number == k)):
                m.d.sync += entry.eq(_fitted(repaired.entry, self.level))

    def entries(self, bank) -> list[data.View]:
        return self.row


class _Rows(_Store):
    """One RAM for each of the two tokens, because both are written."""

    def __init__(self, m: Module, level: int, tree: str, memory: MemoryConfig):
        super().__init__(level, tree)
        self.rams = [add(m, f"node_{level}_{tree}_{b}", Memory1R1W(memory)) for b in range(2)]

    def read(self, m: Module, en, node, bank) -> None:
        for b, ram in enumerate(self.rams):
            m.d.comb += [ram.read_en.eq(en & (bank == b)), ram.read_addr.eq(node)]

    def write(self, m: Module, start, loaded: _Write, repaired: _Write, bank) -> None:
        for b, ram in enumerate(self.rams):
            in_tree = bank == b
            name = f"node_{self.level}_{self.tree}_{b}"
            place = let(m, f"{name}_place", Mux(in_tree, repaired.number, loaded.number))
            one_hot = let(m, f"{name}_lane", (1 << place[:4])[:RADIX])
            word = Mux(in_tree, _fitted(repaired.entry, self.level), loaded.entry.as_value())
            m.d.comb += [
                ram.write_en.eq(Mux(Mux(in_tree, repaired.en, loaded.en), one_hot, 0)),
                ram.write_addr.eq(place[4:]),
                ram.write_data.eq(word.replicate(RADIX)),
            ]

    def entries(self, bank) -> list[data.View]:
        layout = _entry(self.level)
        return [
            data.View(
                layout,
                Array(ram.read_data.word_select(k, layout.size) for ram in self.rams)[bank],
            )
            for k in range(RADIX)
        ]


def _repair_node(m: Module, row, store: _Store, bank, best, end: _End, winner) -> None:
    """``row`` gets a node's entries, with ``winner`` in its place."""
    tree, level = store.tree, store.level
    place, node = best.index[4 * level : 4 * level + 4], best.index[4 * level + 4 :]
    last = end.row[4 * (level - 1) :]
    is_tail = node == last[4:] if len(last) > 4 else Const(1)
    for k, entry in enumerate(store.entries(bank)):
        is_new = place == k
        inside = ~is_tail | _at_least(last[:4], k)
        m.d.comb += [
            row[f"key_{tree}"][k].eq(Mux(is_new, winner.key, entry.key)),
            row[f"carry_{tree}"][k].eq(Mux(is_new, winner.index[: 4 * level], entry.index)),
            row[f"valid_{tree}"][k].eq(Mux(is_new, winner.valid, entry.valid) & inside),
        ]


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
