"""Differences of a row to words: what a stage leaves to the next one."""

from amaranth import Module, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.fp16.format import FP16
from golden.index.format import GRID_PRODUCT_ROUNDED
from golden.qet.format import RowFault
from hdl.block import Block
from hdl.children import add
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.ports import In, Out
from hdl.qet.nearest_lane import DIFFERENCE_BITS
from hdl.qet.tile import EXPONENTS, QetStageConfig
from hdl.qet.unswap import QetUnswap, QetUnswapConfig
from hdl.stream.queue import queue


def flags_layout() -> data.StructLayout:
    """The flags that go along with a row."""
    return data.StructLayout({"switch": 1, "fault": len(RowFault), "last": 1})


def columns_layout(config: QetStageConfig) -> data.StructLayout:
    """A row: words by column."""
    words = data.ArrayLayout(FP16.bits, config.shape.columns)
    return data.StructLayout({"word": words, "flags": flags_layout()})


class QetResidual(Block):
    """``rne16(2**(exponent - 24) * difference)`` in the order of the columns, after ``start``.

    ``start`` while ``ready`` takes all inputs. An element of each group is rounded per cycle. An
    infinity becomes the largest number of its sign.
    """

    def __init__(self, config: QetStageConfig):
        shape = config.shape
        differences = data.ArrayLayout(signed(DIFFERENCE_BITS), shape.group)
        maps = {"map": In(data.ArrayLayout(config.map_bits, config.networks), "Maps of the row.")}
        super().__init__(
            config,
            {
                "ready": Out(1, "No row is rounded."),
                "start": In(1, "Take a row; only while ready."),
                "difference": In(data.ArrayLayout(differences, shape.groups), "By group."),
                "exponent": In(EXPONENTS, "Of the matrix."),
                **(maps if config.map_bits else {}),
                "flags": In(flags_layout(), "Of the row."),
                "rest": Out(stream.Signature(columns_layout(config)), "Residuals."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        group = config.shape.group
        levels, networks = config.stage.levels, config.networks
        unswap = add(m, "unswap", QetUnswap(
            QetUnswapConfig(levels=levels, networks=networks, bits=FP16.bits)
        ))  # fmt: skip
        passed = queue(m, "passed", flags_layout(), 2)
        element = Signal(range(group + 1))
        stored = Signal(range(group + 1))
        rounds = Signal()
        exponent = Signal.like(self.exponent, reset_less=True)
        flags = Signal.like(self.flags, reset_less=True)
        differences = Signal.like(Value.cast(self.difference), reset_less=True)
        with m.If(self.start):
            m.d.sync += [
                differences.eq(self.difference),
                exponent.eq(self.exponent),
                flags.eq(self.flags),
            ]
        m.d.sync += stored.eq(element)
        m.d.comb += rounds.eq(element != group)
        of_group = DIFFERENCE_BITS * group
        held = [
            self._rounded(
                m, n, differences.word_select(n, of_group), exponent, (element, stored, rounds)
            )
            for n in range(config.shape.groups)
        ]

        columns = [Value.cast(word) for network in unswap.i.p.word for word in network]
        given = [Value.cast(word) for network in unswap.o.p.word for word in network]
        m.d.comb += [
            *(word.eq(held[n][k]) for word, (n, k) in zip(columns, config.places(), strict=True)),
            *(column.eq(word) for column, word in zip(self.rest.p.word, given, strict=True)),
            passed.i.p.eq(flags),
            self.rest.valid.eq(unswap.o.valid & passed.o.valid),
            unswap.o.ready.eq(self.rest.ready & passed.o.valid),
            passed.o.ready.eq(self.rest.ready & unswap.o.valid),
            self.rest.p.flags.eq(passed.o.p),
        ]
        if config.map_bits:
            maps = Signal.like(Value.cast(self.map), reset_less=True)
            with m.If(self.start):
                m.d.sync += maps.eq(self.map)
            m.d.comb += Value.cast(unswap.i.p.map).eq(maps)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.ready.eq(1)
                m.d.sync += element.eq(group)
                with m.If(self.start):
                    m.d.sync += element.eq(0)
                    m.next = "ROUND"
            with m.State("ROUND"):
                with m.If(rounds):
                    m.d.sync += element.eq(element + 1)
                with m.Else():
                    m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += [
                    unswap.i.valid.eq(passed.i.ready),
                    passed.i.valid.eq(unswap.i.ready),
                ]
                with m.If(unswap.i.ready & passed.i.ready):
                    m.next = "IDLE"
        return m

    def _rounded(self, m: Module, number: int, differences, exponent, place) -> list[Signal]:
        """The words of a group, one after another. place: element, that of the result, valid."""
        element, stored, rounds = place
        grids = tuple(GRID_PRODUCT_ROUNDED + each for each in EXPONENTS)
        shape = FixedToFloatConfig(width=DIFFERENCE_BITS, grid_exponents=grids, o=FP16, stages=1)
        rounder = add(m, f"rounder_{number}", FixedToFloat(shape))
        y = rounder.o.p.y
        m.d.comb += [
            rounder.i.valid.eq(rounds),
            rounder.i.p.value.eq(differences.word_select(element, DIFFERENCE_BITS).as_signed()),
            rounder.i.p.grid.eq(exponent - EXPONENTS.start),
            rounder.o.ready.eq(1),
        ]
        words = []
        for k in range(self.config.shape.group):
            word = Signal(FP16.bits, name=f"rest_{number}_{k}", reset_less=True)
            with m.If(rounder.o.valid & (stored == k)):
                m.d.sync += word.eq(y - y[FP16.frac_bits : -1].all())
            words.append(word)
        return words
