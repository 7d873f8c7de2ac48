"""Neighbouring columns to parts of smaller and larger values (docs/blocks/qet_swap.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice
from golden.qet import timing
from golden.qet.config import ELEMENT_BITS, FORMATS, LEVELS_MAX
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block
from hdl.fp16.compare import total_order_key, total_order_word
from hdl.ports import In, Out
from hdl.qet.layouts import columns_layout, networks_max, parts_layout, places


@dataclasses.dataclass(frozen=True, kw_only=True)
class QetSwapConfig(Config):
    """Networks side by side, and their values."""

    levels: int = bounded(
        3, 0, LEVELS_MAX, "compare-swaps of each value; a network has 2**levels values"
    )
    networks: int = 8  # side by side, from 1 to what a payload of 65,536 bits holds
    bits: int = choice(16, ELEMENT_BITS, "of a value, FP16 or FP32")

    def __post_init__(self) -> None:
        self._check_range("networks", 1, networks_max(self.levels, self.bits))

    @property
    def kind(self):
        return FORMATS.get(self.bits)

    @property
    def i_layout(self) -> data.StructLayout:
        return columns_layout(self, self.kind)

    @property
    def o_layout(self) -> data.StructLayout:
        return parts_layout(self, self.kind)


class QetSwap(Block):
    """``word[n][p]`` of ``o`` is the value of part p among the 2**levels columns of network n.

    A level takes each pair of neighbouring columns of a part. The smaller value goes to the part's
    S, the larger to its L. The parts after all levels are S..SS, S..SL, up to L..LL. A map bit is 1
    where the smaller value was on the right. ``map[n]`` has the bit of level k, part p and pair j
    at ``k * 2**(levels - 1) + p * 2**(levels - 1 - k) + j``.

    The order of two words is that of their signs and magnitudes: one strict order, with -0 below
    +0. Equal words stay. NaN has its place beyond the infinity of its sign, and is no fault.

    A beat per cycle. Latency golden.qet.timing.swap: a cycle per level, and at least one.
    ``i.ready`` depends combinationally on ``o.ready``.
    Source: QET, section 3.2, Algorithm 1; sign, ties and order are decision 0220.
    Golden: golden.qet.swap.swap, words_of_maps.
    """

    golden = "golden.qet.swap:swap"
    reference = "tests/qet/test_swap.py: test_parts_and_maps_of_the_paper"
    default = QetSwapConfig()
    configs: ClassVar = {
        "fp32": QetSwapConfig(bits=32),
        "widest": QetSwapConfig(levels=5, bits=32),
        "small": QetSwapConfig(levels=2, networks=2),
    }

    def __init__(self, config: QetSwapConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.i_layout), "Columns of a row."),
                "o": Out(stream.Signature(config.o_layout), "The parts of the same columns."),
            },
        )
        # State that the proofs in tb/formal speak of: the register after each level. The last one
        # holds words. The others hold keys, which compare as integers.
        stages = range(self.timing.latency)
        self.full = [Signal(name=f"full_{k}") for k in stages]
        layouts = [parts_layout(config, config.kind, min(k + 1, config.levels)) for k in stages]
        self.held = [
            Signal(layout, name=f"held_{k}", reset_less=True) for k, layout in enumerate(layouts)
        ]

    @property
    def timing(self) -> Timing:
        return timing.swap(self.config.levels)

    def elaborate(self, platform) -> Module:
        m, i = Module(), self.i
        values = [[Value.cast(word) for word in network] for network in i.p.word]
        if self.config.levels:
            values = [[total_order_key(word) for word in network] for network in values]
        maps: list = [Const(0, 0)] * len(values)
        valid, last = i.valid, i.p.last
        takes = [Signal(name=f"take_{k}") for k in range(len(self.full))]
        frees = [*takes[1:], self.o.ready]
        m.d.comb += i.ready.eq(takes[0])
        for k, (full, held) in enumerate(zip(self.full, self.held, strict=True)):
            placed = [self._placed(m, k, n, network) for n, network in enumerate(values)]
            m.d.comb += takes[k].eq(~full | frees[k])
            with m.If(takes[k]):
                m.d.sync += full.eq(valid)
            with m.If(takes[k] & valid):
                m.d.sync += held.last.eq(last)
                for n, (network, exchanged) in enumerate(placed):
                    m.d.sync += [held.word[n][at].eq(value) for at, value in network.items()]
                    if self.config.levels:
                        m.d.sync += held.map[n].eq(Cat(maps[n], exchanged))
            values = [[Value.cast(word) for word in network] for network in held.word]
            maps = list(held.map) if self.config.levels else maps
            valid, last = full, held.last
        m.d.comb += [self.o.valid.eq(self.full[-1]), self.o.payload.eq(self.held[-1])]
        return m

    def _placed(self, m: Module, level: int, n: int, keys: list) -> tuple[dict[int, Value], Value]:
        """Values of network ``n`` by their place after ``level``, and its map bits of the level.

        The last level gives words.
        """
        levels = self.config.levels
        if not levels:
            return dict(enumerate(keys)), Const(0, 0)
        pairs = list(zip(keys[::2], keys[1::2], strict=True))
        exchanged = let(m, f"exchanged_{level}_{n}", Cat(left > right for left, right in pairs))
        placed = {}
        for pair, (left, right) in enumerate(pairs):
            if level == levels - 1:
                left, right = total_order_word(left), total_order_word(right)
            small, large = places(levels, level, pair)
            placed[small] = Mux(exchanged[pair], right, left)
            placed[large] = Mux(exchanged[pair], left, right)
        return placed, exchanged
