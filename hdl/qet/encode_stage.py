"""One stage of the encoder: swaps, codes, and what they leave of a row."""

from amaranth import Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.fp16.format import FP16
from golden.qet.format import RowFault
from golden.qet.timing import nearest_depth
from hdl.block import Block
from hdl.children import add
from hdl.index.stages import delay
from hdl.ports import In, Out
from hdl.qet.nearest_lane import QetNearestLane
from hdl.qet.residual import QetResidual, columns_layout, flags_layout
from hdl.qet.swap import QetSwap, QetSwapConfig
from hdl.qet.tile import QetStageConfig, entry_layout
from hdl.stream.link import link
from hdl.stream.queue import queue


def coded_layout(config: QetStageConfig) -> data.StructLayout:
    bits = data.ArrayLayout(config.map_bits, config.networks)
    maps = {"map": bits} if config.map_bits else {}
    return data.StructLayout({**maps, "code": config.rows_layout, "flags": flags_layout()})


class QetEncodeStage(Block):
    """Maps and codes of a row, and ``rest``: its residual, where another stage follows.

    A row is in the lanes until its codes are taken. The next ones are swapped meanwhile, and the
    residual of the one before is rounded. The codebooks are outside: ``adopt`` to ``entry`` are
    those of QetCodebooks.
    """

    def __init__(self, config: QetStageConfig):
        row = stream.Signature(columns_layout(config))
        rest = {"rest": Out(row, "Residuals.")}
        super().__init__(
            config,
            {
                "i": In(row, "Rows."),
                "coded": Out(stream.Signature(coded_layout(config)), "Maps and codes."),
                **({} if config.is_final else rest),
                "waits": In(1, "A load waits for adopt."),
                "adopt": Out(1, "Use the load that waits."),
                "used": In(config.info_layout, "Numbers of the codebooks in use."),
                "valid": In(1, "There are codebooks in use."),
                "read": Out(1, "Read an entry of each group."),
                "row": Out(config.rows_layout, "Their numbers."),
                "entry": In(entry_layout(config.shape), "The entries."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        stage = config.stage
        swap = add(m, "swap", QetSwap(
            QetSwapConfig(levels=stage.levels, networks=config.networks, bits=FP16.bits)
        ))  # fmt: skip
        kept = queue(m, "kept", flags_layout(), max(stage.levels, 1) + 1)
        words = [Value.cast(word) for network in swap.i.p.word for word in network]
        m.d.comb += [
            self.i.ready.eq(swap.i.ready & kept.i.ready),
            swap.i.valid.eq(self.i.valid & kept.i.ready),
            kept.i.valid.eq(self.i.valid & swap.i.ready),
            kept.i.p.eq(self.i.p.flags),
            *(word.eq(column) for word, column in zip(words, self.i.p.word, strict=True)),
        ]
        row = swap.o
        flags = kept.o.p
        leaves = Signal()
        m.d.comb += [swap.o.ready.eq(leaves), kept.o.ready.eq(leaves)]

        begins = Signal()
        walks = Signal()
        wins = Signal()
        at = Signal(range(stage.entries))
        now = Signal(data.StructLayout({"first": 1, "last": 1, "wins": 1, "index": len(at)}))
        m.d.comb += [
            self.adopt.eq(begins & flags.switch),
            self.read.eq(walks | wins),
            now.first.eq(at == 0),
            now.last.eq(at == self.used.entries - 1),
            now.wins.eq(wins),
            now.index.eq(at),
        ]
        depth = nearest_depth(config.shape.group)
        stages = delay(m, self.read, now, depth)
        lanes = self._lanes(m, begins, stages[-1])
        m.d.comb += [
            row_code.eq(Mux(wins, lane.code, at))
            for row_code, lane in zip(self.row, lanes, strict=True)
        ]
        for (group, element), word in zip(
            config.places(), [w for network in row.p.word for w in network], strict=True
        ):
            m.d.comb += lanes[group].x[element].eq(word)

        # A row without codebooks has no codes.
        unloaded = Signal()
        p = self.coded.p
        m.d.comb += [
            *(code.eq(lane.code) for code, lane in zip(p.code, lanes, strict=True)),
            p.flags.switch.eq(flags.switch),
            p.flags.fault.eq(flags.fault | Mux(unloaded, RowFault.UNLOADED, 0)),
            p.flags.last.eq(flags.last),
        ]
        if config.map_bits:
            m.d.comb += Value.cast(p.map).eq(Value.cast(row.p.map))
        found = stages[-1].valid & stages[-1].flags.last & ~stages[-1].flags.wins
        rest = None if config.is_final else self._rest(m, lanes, row, p.flags)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += at.eq(0)
                with m.If(row.valid & kept.o.valid & (~flags.switch | self.waits)):
                    m.d.comb += begins.eq(1)
                    m.d.sync += unloaded.eq(~self.valid)
                    m.next = "WALK"
                    with m.If(~self.valid):
                        m.next = "CODES" if config.is_final else "DIFFERENCE"
            with m.State("WALK"):
                m.d.comb += walks.eq(1)
                m.d.sync += at.eq(at + 1)
                with m.If(now.last):
                    m.next = "COMPARE"
            with m.State("COMPARE"):
                with m.If(found):
                    m.next = "CODES" if config.is_final else "NEAREST"
            if rest is not None:
                ends = stages[2].valid & stages[2].flags.wins
                with m.State("NEAREST"):
                    m.d.comb += wins.eq(1)
                    m.next = "DIFFERENCE"
                with m.State("DIFFERENCE"):
                    with m.If(ends | unloaded):
                        m.d.comb += rest.start.eq(rest.ready)
                        m.next = "WAIT"
                        with m.If(rest.ready):
                            m.next = "CODES"
                with m.State("WAIT"):  # the differences stay as they are
                    with m.If(rest.ready):
                        m.d.comb += rest.start.eq(1)
                        m.next = "CODES"
            with m.State("CODES"):
                m.d.comb += self.coded.valid.eq(1)
                with m.If(self.coded.ready):
                    m.d.comb += leaves.eq(1)
                    m.next = "IDLE"
        return m

    def _lanes(self, m: Module, begins, compared) -> list:
        config, lanes = self.config, []
        for group in range(config.shape.groups):
            lane = add(m, f"lane_{group}", QetNearestLane(config))
            m.d.comb += [
                lane.take.eq(begins),
                lane.exponent.eq(self.used.exponent),
                Value.cast(lane.c).eq(Value.cast(self.entry[group])),
                lane.compare.eq(compared.valid & ~compared.flags.wins),
                lane.first.eq(compared.flags.first),
                lane.index.eq(compared.flags.index),
            ]
            if config.shape.entry_bits:
                m.d.comb += [lane.low.eq(self.used.low), lane.step.eq(self.used.step)]
            lanes.append(lane)
        return lanes

    def _rest(self, m: Module, lanes, row, flags):
        """The residual of the row, which is rounded while the next row is in the lanes."""
        rest = add(m, "residual", QetResidual(self.config))
        m.d.comb += [
            rest.exponent.eq(self.used.exponent),
            rest.flags.eq(flags),
            *(
                Value.cast(difference).eq(Value.cast(lane.difference))
                for difference, lane in zip(rest.difference, lanes, strict=True)
            ),
        ]
        if self.config.map_bits:
            m.d.comb += Value.cast(rest.map).eq(Value.cast(row.p.map))
        link(m, rest.rest, self.rest)
        return rest
