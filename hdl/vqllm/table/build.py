"""Tables of the products of vectors with the entries of codebooks, slice by slice."""

from amaranth import Module, Signal
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.index.format import SCALE_EXPONENT_MIN, CodebookFault
from golden.index.timing import TABLE_ROUNDING, table_lane
from hdl.block import Block
from hdl.children import add
from hdl.index.codebook_store import IndexCodebookStore
from hdl.index.stages import Stage, delay
from hdl.index.table_lane import IndexTableLane
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.operands import VqOperands
from hdl.vqllm.table.config import VqTableGemvConfig
from hdl.walk import Walk


class VqTableBuild(Block):
    """Gives, for each slice of a job, each stage and each entry, the entries of its tables.

    ``slice`` comes with the first of them, ``built`` with the last. At most two slices are in use,
    from ``slice`` to ``free``, and take both sides in turn.
    """

    def __init__(self, config: VqTableGemvConfig):
        store, operands = config.store, config.operands
        super().__init__(
            config,
            {
                "load_info": In(stream.Signature(store.info_layout), "Begins a load."),
                "load": In(stream.Signature(store.load_layout), "Entries, stage by stage."),
                "loaded": Out(1, "A complete load without faults waits for a switch."),
                "load_fault": Out(len(CodebookFault), "Faults of the load.", CodebookFault),
                "x": In(stream.Signature(operands.x_layout), "Vectors, one after another."),
                "job": In(stream.Signature(config.job_layout), "Which rows and columns."),
                "free": In(1, "The oldest slice has been looked up."),
                "begins": Out(1, "A slice begins; there is room for it."),
                "slice": Out(config.slice_layout, "Its rows, and what they need."),
                "write": Out(1, "Write the words into the tables."),
                "place": Out(config.place_layout, "Which tables, and where."),
                "word": Out(config.words_layout, "The words.", FP16),
                "built": Out(1, "The slice is complete with this word."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        operands = add(m, "operands", VqOperands(config.operands))
        store = add(m, "store", IndexCodebookStore(config.store))
        link(m, self.x, operands.x)
        link(m, self.load, store.load)
        jobs = queue(m, "jobs", config.job_layout, 2)
        link(m, self.job, jobs.i)
        m.d.comb += [
            self.loaded.eq(store.loaded),
            self.load_fault.eq(store.load_fault),
            # A load that waits for its switch is not replaced.
            store.load_info.p.eq(self.load_info.p),
            store.load_info.valid.eq(self.load_info.valid & ~store.loaded),
            self.load_info.ready.eq(store.load_info.ready & ~store.loaded),
        ]

        # Which entry is taken
        job = Signal(config.job_layout, reset_less=True)
        bad = Signal(config.batch, reset_less=True)
        begin = Signal()
        go = Signal()
        side = Signal()
        opens = Signal(init=1)
        held = Signal(range(3))  # slices in use
        walk = Walk(
            m, "walk", slices=job.beats, stages=config.vq.stages, rows=store.entries,
            parts=config.parts,
        )  # fmt: skip
        ends = walk.wraps.stages
        now = Signal(config.build_layout)
        m.d.comb += [
            begin.eq(
                jobs.o.valid
                & (walk.done | (go & walk.is_last))
                & (~jobs.o.p.next_x | operands.ready)
                & (~jobs.o.p.switch | store.loaded)
            ),
            jobs.o.ready.eq(begin),
            walk.start.eq(begin),
            walk.step.eq(go),
            go.eq(~walk.done & (~opens | (held != 2))),
            operands.swap.eq(begin & jobs.o.p.next_x),
            operands.read.eq(go & opens),
            operands.place.eq(job.offset + walk.at.slices),
            store.swap.eq(begin & jobs.o.p.switch),
            store.scan_en.eq(go),
            store.scan_addr.eq(walk.at.rows + walk.at.stages * config.vq.entries),
            now.place.side.eq(side),
            now.place.part.eq(walk.at.parts),
            now.place.stage.eq(walk.at.stages),
            now.place.row.eq(walk.at.rows),
            now.grid.eq(store.exponent - SCALE_EXPONENT_MIN),
            now.ends.eq(ends),
            self.begins.eq(go & opens),
            self.slice.last_row.eq(job.rows - 1),
            self.slice.entries.eq(store.entries),
            self.slice.first.eq(job.first & (walk.at.slices == 0)),
            self.slice.final.eq(job.final & walk.last.slices),
            self.slice.bad.eq(bad),
        ]
        m.d.sync += held.eq(held + self.begins - self.free)
        with m.If(begin):
            m.d.sync += [job.eq(jobs.o.p), bad.eq(operands.bad)]
        with m.If(go):
            m.d.sync += [opens.eq(ends), side.eq(side ^ ends)]

        # The words of x and of the codebook are there in the next cycle.
        stages = delay(m, go, now, 1 + table_lane(config.vq.size))
        self._elaborate_lanes(m, stages, store.scan_data, operands.word)
        return m

    def _elaborate_lanes(self, m: Module, stages: list[Stage], entry, vectors) -> None:
        """An entry of the codebook with ``lanes`` neighbours of each vector."""
        config, read, out = self.config, stages[0].flags, stages[-1]
        bits = FP16.bits * config.vq.size
        for b in range(config.batch):
            word = Value.cast(vectors[b]).word_select(read.place.part, config.lanes * bits)
            for k in range(config.lanes):
                lane = add(m, f"lane_{k}_{b}", IndexTableLane(config.lane))
                m.d.comb += [
                    Value.cast(lane.x).eq(word[k * bits : (k + 1) * bits]),
                    Value.cast(lane.c).eq(entry),
                    lane.grid.eq(stages[-1 - TABLE_ROUNDING].flags.grid),
                    self.word[k][b].eq(lane.y),
                ]
        m.d.comb += [
            self.write.eq(out.valid),
            self.place.eq(out.flags.place),
            self.built.eq(out.valid & out.flags.ends),
        ]
