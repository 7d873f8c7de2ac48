"""The k largest and k smallest words of each token (docs/blocks/kllm_orizuru.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice, power_of_two
from golden.fp16.format import FP16
from golden.kllm import timing
from golden.kllm.format import OrizuruStatus
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.fp16.compare import is_nan, total_order_key
from hdl.kinds import NUMBER, index_of
from hdl.kllm.outliers.orizuru_trees import (
    RADIX,
    TREES,
    OrizuruTreesConfig,
    OrizuruTreesParallel,
    OrizuruTreesShared,
)
from hdl.ports import In, Out, Payload, status_layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmOrizuruConfig(Config):
    """Longest token, words per load beat, and how the trees are built."""

    n_max: int = bounded(4096, 2, 1 << 16, "longest token, words")
    elements: int = power_of_two(16, 1, RADIX, "words per beat of x")
    architecture: str = choice(
        "shared",
        ("parallel", "shared"),
        "shared: rows in RAM and two units; parallel: a unit for every node",
    )
    stages: int = bounded(1, 1, 4, "cycles of a tournament of 16; parallel: 1")

    def __post_init__(self) -> None:
        if self.architecture == "parallel":
            self._check_choice("stages", (1,))

    @property
    def trees_config(self) -> OrizuruTreesConfig:
        return OrizuruTreesConfig(n_max=self.n_max, stages=self.stages)

    @property
    def units(self) -> int:
        """Radix-16 units: 273 = 256 + 16 + 1 for 4096 in ``parallel``, else 2."""
        return sum(self.trees_config.nodes) if self.architecture == "parallel" else 2

    @property
    def pop_cycles(self) -> int:
        """Cycles from a pop to the next of the same tree."""
        levels = self.trees_config.levels
        return levels if self.architecture == "parallel" else levels * self.stages + 1

    @property
    def job_layout(self) -> data.StructLayout:
        return Payload(
            length=(16, "elements of the token", NUMBER),
            k_max=(16, "outliers to pop from the top", NUMBER),
            k_min=(16, "outliers to pop from the bottom", NUMBER),
        )

    @property
    def x_layout(self) -> data.StructLayout:
        return Payload(
            word=(
                data.ArrayLayout(FP16.bits, self.elements),
                "FP16 elements, the first position in the low bits",
                FP16,
            ),
            last=(1, "final beat of the token"),
        )

    @property
    def pop_layout(self) -> data.StructLayout:
        return Payload(
            index=(16, "position of the element within the token", index_of("elements")),
            word=(FP16.bits, "the element, FP16", FP16),
            last=(1, "the token's final pop of this tree"),
        )

    @property
    def done_layout(self) -> data.StructLayout:
        return Payload(
            largest=(FP16.bits, "largest inlier, FP16", FP16),
            smallest=(FP16.bits, "smallest inlier, FP16", FP16),
            scale=(FP16.bits, "the larger of their magnitudes, s_A, FP16", FP16),
            status=(status_layout(OrizuruStatus), "faults of the token, 0: none"),
        )


class KllmOrizuru(Block):
    """Pops the ``k_max`` largest and ``k_min`` smallest words of a token, then shows what is left.

    Both trees use one strict total order on (key, -position), key = sign-magnitude integer with -0
    below +0. The max tree pops it downwards (equal words: lowest position first), the min tree
    upwards (highest position first). Both pop at once, each on a stream of its own. A stream with
    k = 0 has no pops. Then ``done`` comes: largest and smallest are the ends of the inliers in that
    order, scale is the larger of their magnitudes, s_A. Words are moved and compared only: no
    rounding.

    A token is a ``job`` and ceil(length / elements) beats of ``x``, the final one with ``last``;
    words at and beyond ``length`` are ignored. ``done`` follows when all its pops have been taken.

    Faults, one bit of ``status`` each: ``golden.kllm.format.OrizuruStatus``. Such a token has no
    pops, and the canonical NaN as largest, smallest and scale. Its beats are taken up to ``last``;
    a length of 0 has none and LENGTH_ZERO alone. Infinities are ordinary words.

    Loading the next token overlaps the pops of this one. The tree has L levels of 16 (3 for 4096).
    A token takes ceil(length / elements) cycles of loading, ``pop_cycles`` per pop of each tree,
    and the latencies below. ``job`` is taken when the token before has gone to the trees. ``valid``
    depends on no ``ready``; ``x.ready`` and ``job.ready`` depend on no input.
    Source: KLLM, section IV-C. Golden: golden.kllm.orizuru.pop_token.
    """

    golden = "golden.kllm.orizuru:pop_token"
    reference = "tests/kllm/test_orizuru.py: test_pops_of_a_token_are_those_of_pythons_sort"
    default = KllmOrizuruConfig()
    configs: ClassVar = {
        "table1": KllmOrizuruConfig(architecture="parallel"),
        "table1_shared": KllmOrizuruConfig(),
        "small": KllmOrizuruConfig(n_max=256, elements=8),
        "small_parallel": KllmOrizuruConfig(n_max=256, architecture="parallel"),
    }

    def __init__(self, config: KllmOrizuruConfig):
        super().__init__(
            config,
            {
                "job": In(
                    stream.Signature(config.job_layout),
                    "one per token: its words, and how many to pop from each tree",
                ),
                "x": In(
                    stream.Signature(config.x_layout),
                    "the token's words, position 0 first; words beyond length are ignored",
                ),
                "pop_max": Out(
                    stream.Signature(config.pop_layout),
                    "largest words in descending order: position, word",
                ),
                "pop_min": Out(
                    stream.Signature(config.pop_layout),
                    "smallest words in ascending order: position, word",
                ),
                "done": Out(
                    stream.Signature(config.done_layout),
                    "one per token, after its pops: ends of the inliers, s_A, fault bits",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        config = self.config
        return timing.orizuru(config.trees_config.levels, config.architecture, config.stages)

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        trees_class = (
            OrizuruTreesParallel if config.architecture == "parallel" else OrizuruTreesShared
        )
        prototype = trees_class(config.trees_config)
        load_cycles = prototype.load_cycles
        trees = add(m, "trees", prototype)
        start = Signal()
        m.d.comb += trees.start.eq(start)
        pending = Signal()  # the loaded token waits for the trees
        loaded = self._load(m, trees, load_cycles, start, pending)
        self._pop(m, trees, loaded, start, pending)
        return m

    def _load(self, m: Module, trees, load_cycles: int, start, pending):
        """Job and beats -> rows of keys; returns the record of the loaded token."""
        config = self.config
        elements, log = config.elements, config.elements.bit_length() - 1
        rows = config.trees_config.nodes[0]
        length = Signal(16, reset_less=True)
        status = Signal(len(OrizuruStatus), reset_less=True)
        counts = {tree: Signal(16, name=f"k_{tree}", reset_less=True) for tree in TREES}
        left = Signal(17, reset_less=True)  # beats before the one that must have last, and it
        flush = Signal(range(load_cycles + 1), reset_less=True)
        x, job = self.x, self.job.p

        # Which words of a beat belong to the token, as keys.
        tail = let(m, "tail", (length - 1)[:log]) if log else Const(0, 1)
        is_final = let(m, "is_final", left == 1)
        in_token = Signal(elements)
        m.d.comb += in_token.eq(
            Cat(
                *(
                    (left != 0) & (~is_final | (tail >= e if e else Const(1)))
                    for e in range(elements)
                )
            )
        )
        keys = [total_order_key(word) for word in x.p.word]
        nan = Cat(*(is_nan(word) for word in x.p.word)) & in_token

        # A row of 16 keys, gathered from one or more beats.
        beats = RADIX // elements
        slot = Signal(range(max(2, beats)), reset_less=True)
        number = Signal(range(max(2, rows)), reset_less=True)
        row = Signal(config.trees_config.row_layout, reset_less=True)
        row_en = Signal()
        m.d.comb += [trees.row.eq(row), trees.row.en.eq(row_en)]
        m.d.sync += row_en.eq(0)
        next_valid = Signal(RADIX)
        m.d.comb += next_valid.eq(
            in_token
            if beats == 1
            else Mux(slot == 0, 0, row.valid) | (in_token << (slot << log))[:RADIX]
        )

        with m.FSM(name="load"):
            with m.State("JOB"):
                m.d.comb += self.job.ready.eq(1)
                zero = job.length == 0
                too_long = job.length > config.n_max if config.n_max < 1 << 16 else Const(0)
                fault = {
                    OrizuruStatus.LENGTH_ZERO: zero,
                    OrizuruStatus.LENGTH_TOO_LONG: too_long,
                    OrizuruStatus.OUTLIER_COUNT: ~zero & (job.k_max + job.k_min >= job.length),
                }
                m.d.sync += [
                    length.eq(job.length),
                    status.eq(Cat(*(fault.get(bit, Const(0)) for bit in OrizuruStatus))),
                    *(counts[tree].eq(job[f"k_{tree}"]) for tree in TREES),
                    left.eq((job.length + (elements - 1)) >> log),
                    slot.eq(0),
                    number.eq(0),
                    flush.eq(load_cycles),
                ]
                with m.If(self.job.valid):
                    m.next = "WAIT"
                    with m.If(~zero):
                        m.next = "BEATS"
            with m.State("BEATS"):
                m.d.comb += x.ready.eq(1)
                with m.If(x.valid):
                    ends_row = (slot == beats - 1) | is_final
                    m.d.sync += [
                        left.eq(Mux(left == 0, 0, left - 1)),
                        row.row.eq(number),
                        row.valid.eq(next_valid),
                        row.last.eq(is_final),
                        # Rows of a refused token could lie beyond the trees.
                        row_en.eq(ends_row & (left != 0) & (status == 0)),
                        slot.eq(slot + 1 if beats > 1 else 0),
                    ]
                    with m.If(ends_row):
                        m.d.sync += number.eq(number + 1)
                    for e, key in enumerate(keys):
                        for s in range(beats):
                            with m.If(slot == s):
                                m.d.sync += row.key[s * elements + e].eq(key)
                    with m.If(nan.any()):
                        m.d.sync += status[_position(OrizuruStatus.NAN)].eq(1)
                    with m.If(x.p.last):
                        with m.If(~is_final):
                            m.d.sync += status[_position(OrizuruStatus.LAST_MISPLACED)].eq(1)
                        m.next = "FLUSH"
            with m.State("FLUSH"):
                m.d.sync += flush.eq(flush - 1)
                with m.If(flush == 1):
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.d.comb += pending.eq(1)
                with m.If(start):
                    m.next = "JOB"
        return {"status": status, **counts}

    def _pop(self, m: Module, trees, loaded, start, pending) -> None:
        """Pops of the token in the trees, and its done word."""
        busy = Signal()
        status = Signal(len(OrizuruStatus), reset_less=True)
        is_sound = status == 0
        finished = []
        for name, tree, pop in zip(TREES, trees.tree, (self.pop_max, self.pop_min), strict=True):
            left = Signal(16, name=f"left_{name}", reset_less=True)
            m.d.comb += [
                pop.valid.eq(busy & is_sound & tree.shown & (left != 0)),
                pop.p.index.eq(tree.root.index),
                pop.p.word.eq(_word(tree.root.key)),
                pop.p.last.eq(left == 1),
                tree.advance.eq(pop.valid & pop.ready),
            ]
            with m.If(start):
                m.d.sync += left.eq(loaded[name])
            with m.Elif(pop.valid & pop.ready):
                m.d.sync += left.eq(left - 1)
            finished.append(tree.shown & (left == 0))

        done = self.done
        largest, smallest = (_word(tree.root.key) for tree in trees.tree)
        magnitudes = largest[:-1], smallest[:-1]
        scale = Mux(magnitudes[0] > magnitudes[1], *magnitudes)
        nan = FP16.canonical_nan
        taken = Signal()
        m.d.comb += [
            done.valid.eq(busy & (~is_sound | (finished[0] & finished[1]))),
            done.p.largest.eq(Mux(is_sound, largest, nan)),
            done.p.smallest.eq(Mux(is_sound, smallest, nan)),
            done.p.scale.eq(Mux(is_sound, scale, nan)),
            done.p.status.eq(status),
            taken.eq(done.valid & done.ready),
            start.eq(pending & (~busy | taken)),
        ]
        with m.If(start):
            m.d.sync += [busy.eq(1), status.eq(loaded["status"])]
        with m.Elif(taken):
            m.d.sync += busy.eq(0)


def _position(bit: OrizuruStatus) -> int:
    return bit.bit_length() - 1


def _word(key):
    """FP16 word of a ``total_order_key``."""
    return Cat(key[:-1] ^ (~key[-1]).replicate(FP16.bits - 1), ~key[-1])
