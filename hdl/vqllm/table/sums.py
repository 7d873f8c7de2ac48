"""Sums of the entries of tables that the codes of rows name."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.index.timing import tree_levels
from golden.vqllm import timing
from hdl.bits import any_of
from hdl.block import Block
from hdl.children import add
from hdl.index.stages import Stage, delay
from hdl.index.sums import add_tree, word_terms
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.table.config import VqTableGemvConfig
from hdl.vqllm.totals import Totals


class VqTableSums(Block):
    """A bank holds both sides of the table of a vector of a beat and of a stage.

    The rows of a slice are looked up when it is built, and then its side is free.
    """

    def __init__(self, config: VqTableGemvConfig):
        super().__init__(
            config,
            {
                "begins": In(1, "A slice begins."),
                "slice": In(config.slice_layout, "Its rows, and what they need."),
                "write": In(1, "Write the words into the tables."),
                "place": In(config.place_layout, "Which tables, and where."),
                "word": In(config.words_layout, "The words.", FP16),
                "built": In(1, "The slice is complete with this word."),
                "free": Out(1, "The oldest slice has been looked up."),
                "code": In(stream.Signature(config.code_layout), "Codes, slice by slice."),
                "sum": Out(stream.Signature(config.sums.sum_layout), "Sums, row by row."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        slices = queue(m, "slices", config.slice_layout, 2)
        m.d.comb += [slices.i.valid.eq(self.begins), slices.i.p.eq(self.slice)]

        # Which row is taken
        used = slices.o.p
        row = Signal(range(max(2, config.rows)))
        side = Signal()
        # slices that are built
        full = Signal(range(3))
        room = Signal()
        go = Signal()
        is_last = Signal()
        now = Signal(config.flags_layout)
        code = self.code.p
        m.d.comb += [
            self.code.ready.eq(full.any() & (room | ~used.final)),
            go.eq(self.code.valid & self.code.ready),
            is_last.eq(row == used.last_row),
            self.free.eq(go & is_last),
            slices.o.ready.eq(self.free),
            now.row.eq(row),
            now.begins.eq(1),
            now.ends.eq(1),
            now.first.eq(used.first),
            now.final.eq(used.final),
            now.last.eq(is_last),
            now.bad.eq(used.bad),
            now.beyond.eq(
                any_of(code.use[n] & (each >= used.entries) for n, each in enumerate(code.code))
            ),
        ]
        m.d.sync += full.eq(full + self.built - self.free)
        with m.If(go):
            m.d.sync += [row.eq(Mux(is_last, 0, row + 1)), side.eq(side ^ is_last)]

        levels = tree_levels(config.lookups)
        stages = delay(m, go, now, 2 + levels)  # look-up, words on their grid, sum
        words = self._elaborate_banks(m, go, side)
        terms, wrong = self._elaborate_terms(m, stages, words, levels)
        sums = Totals(m, config.sums, stages, terms, wrong, timing.table_sums(config.lookups))
        m.d.comb += [sums.begins.eq(go & used.final), room.eq(sums.room)]
        link(m, sums.o, self.sum)
        return m

    def _elaborate_banks(self, m: Module, go, side) -> list[Value]:
        """The words of all lanes in the cycle after ``go``."""
        config, words = self.config, []
        for n in range(config.lookups):
            vector, stage = divmod(n, config.vq.stages)
            part, lane = divmod(vector, config.lanes)
            bank = add(m, f"bank_{n}", Memory1R1W(config.bank))
            is_here = (self.place.part == part) & (self.place.stage == stage)
            m.d.comb += [
                bank.read_en.eq(go),
                bank.read_addr.eq(Cat(self.code.p.code[n], side)),
                bank.write_en.eq(self.write & is_here),
                bank.write_addr.eq(Cat(self.place.row, self.place.side)),
                bank.write_data.eq(Value.cast(self.word[lane])),
            ]
            words.append(bank.read_data)
        return words

    def _elaborate_terms(self, m: Module, stages: list[Stage], words, levels: int):
        """The sum of each vector, and which vectors are wrong."""
        config, totals, infinite = self.config, [], []
        use = Signal(config.lookups, reset_less=True)
        m.d.sync += use.eq(self.code.p.use)
        for b in range(config.batch):
            # A lane that does not look up adds 0.
            used = [
                word.word_select(b, FP16.bits) & use[n].replicate(FP16.bits)
                for n, word in enumerate(words)
            ]
            infinite.append(any_of(word[: FP16.bits - 1] == FP16.infinity for word in used))
            terms, signs = word_terms(m, used)
            totals += add_tree(m, f"sum_{b}", terms, signs, levels)
        found = Cat(infinite)
        for level in range(1 + levels):
            later = Signal(config.batch, name=f"infinite_{level}", reset_less=True)
            m.d.sync += later.eq(found)
            found = later
        return totals, found | stages[-1].flags.beyond.replicate(config.batch)
