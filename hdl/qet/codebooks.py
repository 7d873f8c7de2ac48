"""Codebooks of a tile: loads, checked, and two buffers of a stage that are read side by side."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.index.format import CodebookFault
from hdl.bits import any_of, outside
from hdl.block import Block
from hdl.children import add
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Member, Out
from hdl.qet.tile import EXPONENTS, QetStageConfig, QetTileConfig, entry_layout, refused_numbers
from hdl.stream.link import link

_TWO = 0x4000  # the largest magnitude of an element of an entry


class QetLoader(Block):
    """``write`` and ``place`` of each word of a load, its stages one after another.

    A load begins when no stage holds one that waits for its switch, and the verdict of the load
    before is taken. ``commit`` ends a load without faults.
    """

    def __init__(self, config: QetTileConfig):
        stages = config.stages
        most = max(stage.stage.entries for stage in stages)
        super().__init__(
            config,
            {
                "info": In(stream.Signature(config.info_layout), "Begins a load."),
                "load": In(stream.Signature(config.load_layout), "Entries, stage by stage."),
                "verdict": Out(stream.Signature(config.verdict_layout), "How each load ended."),
                "waits": In(len(stages), "Stages whose load waits for its switch."),
                "write": Out(len(stages), "Write the word to this stage."),
                "place": Out(range(most), "Number of the entries of the word."),
                "word": Out(entry_layout(config.shape), "Entries of all groups."),
                "commit": Out(1, "The load is complete."),
                "shown": Out(config.info_layout, "Numbers of the load."),
            },
        )

    @property
    def given(self):
        """Entries of the word that is offered."""
        return self.load.p[self.config.entry_field]

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        stages = config.stages
        shown = Signal(config.info_layout, reset_less=True)
        loading = Signal()
        judged = Signal()
        fault = Signal(len(CodebookFault))
        at = Signal(range(len(stages) + 1))  # stage of the next word; beyond: the load is full
        place = Signal.like(self.place)
        take = Signal()
        full = Signal()
        counts = [shown[f"entries_{n}"] for n in range(len(stages))]
        ends_stage = any_of((at == n) & (place == count - 1) for n, count in enumerate(counts))
        ends = (at == len(stages) - 1) & ends_stage
        nonfinite, large = self._wrong()
        wrong = Signal(len(CodebookFault))  # with the word that is taken
        m.d.comb += [
            self.info.ready.eq(~loading & ~judged & ~self.waits.any()),
            self.load.ready.eq(loading),
            take.eq(self.load.valid & loading),
            full.eq(at == len(stages)),
            wrong.eq(fault | Cat(nonfinite, large, full | (self.load.p.last & ~ends))),
            self.verdict.valid.eq(judged),
            self.verdict.p.fault.eq(fault),
            *(self.write[n].eq(take & (at == n)) for n in range(len(stages))),
            self.place.eq(place),
            *self._cleared(),
            self.commit.eq(take & self.load.p.last & ~wrong.any()),
            self.shown.eq(shown),
        ]
        with m.If(take):
            m.d.sync += fault.eq(wrong)
            with m.If(~full):
                m.d.sync += [place.eq(Mux(ends_stage, 0, place + 1)), at.eq(at + ends_stage)]
            with m.If(self.load.p.last):
                m.d.sync += [loading.eq(0), judged.eq(1)]
        with m.If(self.verdict.ready & judged):
            m.d.sync += judged.eq(0)
        with m.If(self.info.valid & self.info.ready):
            m.d.sync += [loading.eq(1), shown.eq(self.info.p), fault.eq(0), place.eq(0), at.eq(0)]
            with m.If(self._refused()):
                m.d.sync += [fault.eq(CodebookFault.SHAPE), at.eq(len(stages))]
        return m

    def _refused(self) -> Value:
        """Numbers of a load that is not taken."""
        found = refused_numbers(self.config, self.info.p)
        if self.config.has_exponent:
            found.append(outside(self.info.p.exponent, EXPONENTS))
        return any_of(found)

    def _wrong(self) -> tuple[Value, Value]:
        """Whether an element of the word is NaN or infinite; is beyond 2."""
        if self.config.has_ranges:
            return Const(0, 1), Const(0, 1)
        sizes = [word[:-1] for entry in self.given for word in entry]
        return (
            any_of(size >= FP16.infinity for size in sizes),
            any_of((size > _TWO) & (size < FP16.infinity) for size in sizes),
        )

    def _cleared(self) -> list:
        """The word; a word of -0 becomes 0."""
        if self.config.has_ranges:
            return [self.word.eq(self.given)]
        pairs = [
            pair
            for ours, theirs in zip(self.word, self.given, strict=True)
            for pair in zip(ours, theirs, strict=True)
        ]
        return [ours.eq(Cat(word[:-1], word[-1] & word[:-1].any())) for ours, word in pairs]


class QetCodebooks(Block):
    """Two buffers of the codebooks of a stage: a RAM for each group, one in use, one loaded.

    ``commit`` with ``next``: the load waits for ``adopt``, which uses it in the same cycle. So the
    row of a read with ``adopt``, and ``used``, are those of the new codebooks.
    """

    def __init__(self, config: QetStageConfig):
        layout = entry_layout(config.shape)
        super().__init__(
            config,
            {
                "write": In(1, "Write word to the buffer that is loaded."),
                "place": In(range(config.stage.entries), "Number of its entries."),
                "word": In(layout, "Entries of all groups."),
                "commit": In(1, "The load is complete."),
                "next": In(config.info_layout, "Its numbers."),
                "waits": Out(1, "A load waits for adopt."),
                "adopt": In(1, "Use the load that waits; only while waits."),
                "used": Out(config.info_layout, "Numbers of the codebooks in use."),
                "valid": Out(1, "There are codebooks in use."),
                "read": In(1, "Read an entry of each group."),
                "row": In(config.rows_layout, "Their numbers."),
                "entry": Out(layout, "The entries, from the next cycle to the next read."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        side = Signal()
        is_used = Signal()
        waits = Signal()
        used, following = (
            Signal(config.info_layout, name=name, reset_less=True) for name in ("held", "following")
        )
        now = Signal()
        entries = config.stage.entries
        m.d.comb += [
            now.eq(side ^ self.adopt),
            self.waits.eq(waits),
            self.used.eq(Mux(self.adopt, following, used)),
            self.valid.eq(is_used | self.adopt),
        ]
        m.d.sync += waits.eq((waits & ~self.adopt) | self.commit)
        with m.If(self.commit):
            m.d.sync += following.eq(self.next)
        with m.If(self.adopt):
            m.d.sync += [side.eq(now), used.eq(following), is_used.eq(1)]
        for group in range(config.shape.groups):
            memory = add(m, f"group_{group}", Memory1R1W(config.memory))
            m.d.comb += [
                memory.write_en.eq(self.write),
                memory.write_addr.eq(self.place + Mux(side, 0, entries)),
                memory.write_data.eq(self.word[group]),
                memory.read_en.eq(self.read),
                memory.read_addr.eq(self.row[group] + Mux(now, entries, 0)),
                Value.cast(self.entry[group]).eq(memory.read_data),
            ]
        return m


def load_members(config: QetTileConfig) -> dict[str, Member]:
    """Streams that bring codebooks, for ``add_codebooks``."""
    return {
        "info": In(stream.Signature(config.info_layout), "Begins a load of codebooks."),
        "load": In(
            stream.Signature(config.load_layout), "Entries of stage 0, then of each next stage."
        ),
        "verdict": Out(stream.Signature(config.verdict_layout), "How each load ended."),
    }


def add_codebooks(m: Module, config: QetTileConfig, info, load, verdict) -> list:
    """The codebooks of each stage, loaded by the streams ``info``, ``load``, ``verdict``."""
    loader = add(m, "loader", QetLoader(config))
    link(m, info, loader.info)
    link(m, load, loader.load)
    link(m, loader.verdict, verdict)
    books = []
    for stage in config.stages:
        n = stage.number
        book = add(m, f"codebooks_{n}", QetCodebooks(stage))
        m.d.comb += [
            book.write.eq(loader.write[n]),
            book.place.eq(loader.place),
            book.word.eq(loader.word),
            book.commit.eq(loader.commit),
            loader.waits[n].eq(book.waits),
            *(
                book.next[name].eq(loader.shown[name if name == "exponent" else f"{name}_{n}"])
                for name, _ in stage.info_layout
            ),
        ]
        books.append(book)
    return books
