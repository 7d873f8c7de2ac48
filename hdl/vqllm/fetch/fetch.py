"""Codebooks and codes of a core from an image in memory (docs/blocks/vq_fetch.md)."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream

from golden.index.format import CodebookFault
from golden.vqllm.format import Fault
from hdl.bits import flag_word, let
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.stream.repack import StreamRepack, StreamRepackConfig
from hdl.vqllm.fetch.config import VqFetchConfig
from hdl.vqllm.fetch.load import VqFetchLoad
from hdl.vqllm.fetch.walk import VqFetchWalk
from hdl.vqllm.memory_port import VqReader
from hdl.walk import Walk


class VqFetch(Block):
    """Reads for each job the codebooks, codes and jobs of a core from the image of a matrix.

    Descriptors, codebooks and codes are read ahead, also those of the next job. Its first beat
    waits for ``go_on``. A codebook is loaded while the one before is in use. The order of the parts
    and the fields of a descriptor are those of golden.vqllm.format.

    | wrong | effect |
    |---|---|
    | a descriptor: refused, of another matrix, a number out of range | its rows are wrong |
    | codebooks: refused, of another tile, a wrong entry | all rows until the next load are wrong |
    | codes: refused, too few, beyond the codebook | the rows of these beats are wrong |

    Wrong rows are told to the core, with ``wrong`` in their beats. ``status`` has all faults of the
    beats so far, until ``clear``. Codes of a part beyond its rows are dropped.

    A beat per cycle while memory gives a word per cycle.
    Source: VQ-LLM, sections V and VI; decisions 0207 and 0208. Golden: golden.vqllm.image.image.
    """

    def __init__(self, config: VqFetchConfig):
        core, cache = config.core, config.core.cache
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Matrices."),
                "go_on": In(1, "The next job may begin."),
                "load_info": Out(stream.Signature(cache.info_layout), "Begins a load of the core."),
                "load": Out(stream.Signature(cache.load_layout), "Entries, stage by stage."),
                "loaded": In(1, "The core has a load that waits for a switch."),
                "load_fault": In(len(CodebookFault), "Faults of the core's load.", CodebookFault),
                "code": Out(stream.Signature(core.code_layout), "Codes of the core."),
                "core_job": Out(stream.Signature(core.sums.job_layout), "Jobs of the core."),
                "status": Out(config.status_layout, "Faults of the job."),
                "clear": In(1, "No faults from the next cycle on."),
                "axi": Out(
                    cache.axi_signature, ("descriptors", "codebooks", "codes")
                ).array(3),
            },
        )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        walk = add(m, "walk", VqFetchWalk(config))
        load = add(m, "load", VqFetchLoad(config))
        reader = add(m, "reader", VqReader(config.reader(config.ahead)))
        for k, each in enumerate((walk, load, reader)):
            link(m, each.axi.ar, self.axi[k].ar)
            link(m, self.axi[k].r, each.axi.r)
        link(m, self.job, walk.job)
        link(m, walk.load, load.load)
        link(m, walk.code, reader.command)
        link(m, load.info, self.load_info)
        link(m, load.entry, self.load)
        m.d.comb += [load.waits.eq(self.loaded), load.fault.eq(self.load_fault)]

        image = config.image
        repack = add(m, "repack", StreamRepack(StreamRepackConfig(
            in_bytes=image.word_bytes, out_bytes=image.beat_bytes, error_bits=2,
        )))  # fmt: skip
        m.d.comb += [
            repack.i.valid.eq(reader.o.valid),
            reader.o.ready.eq(repack.i.ready),
            repack.i.p.data.eq(reader.o.p.data),
            repack.i.p.end.eq(image.word_bytes),
            repack.i.p.error.eq(reader.o.p.resp),
            repack.i.p.last.eq(reader.o.p.last),
        ]
        self._elaborate_beats(m, walk.piece, load.loaded, repack.o)
        return m

    def _elaborate_beats(self, m: Module, pieces, loaded, codes) -> None:
        """The beats of one part after another."""
        config = self.config
        piece = Signal(config.piece_layout, reset_less=True)
        entries = Signal.like(loaded.p.entries, reset_less=True)
        starts = Signal()
        go = Signal()
        may_begin = Signal()
        # no sound codebooks; the first beat of a load
        poisoned = Signal()
        switch = Signal()
        ended = Signal()
        drains = Signal()
        wrong = Signal()
        walk = Walk(m, "beats", rows=piece.rows, beats=piece.beats)
        jobs = queue(m, "core_jobs", self.core_job.p.shape(), 2)
        link(m, jobs.o, self.core_job)
        job, needs = jobs.i.p, pieces.p
        m.d.comb += [
            starts.eq(
                pieces.valid & jobs.i.ready & ~drains
                & (walk.done | (go & walk.is_last & (piece.void | ended | codes.p.last)))
                & (~needs.load | loaded.valid)
                & (~needs.begins | may_begin)
            ),
            pieces.ready.eq(starts),
            loaded.ready.eq(starts & needs.load),
            walk.start.eq(starts),
            walk.step.eq(go),
            jobs.i.valid.eq(starts),
            job.offset.eq(needs.offset * config.core.pieces),
            job.beats.eq(needs.beats * config.core.pieces),
            job.rows.eq(needs.rows),
            job.first.eq(needs.first),
            job.final.eq(needs.final),
            job.next_x.eq(needs.begins),
            job.words.eq(needs.words),
        ]  # fmt: skip
        with m.If(self.go_on):
            m.d.sync += may_begin.eq(1)
        with m.Elif(starts & needs.begins):
            m.d.sync += may_begin.eq(0)

        # Of a beat
        lanes, stages = config.core.cache.lookups, config.core.cache.vq.stages
        bits = config.core.cache.vq.code_bits
        is_coded = Signal()
        short = Signal()
        code = [codes.p.data.word_select(k, bits) for k in range(lanes)]
        tail = [piece.tail > v for v in range(lanes // stages)]
        use = Cat(~walk.last.beats | tail[k // stages] for k in range(lanes))
        sound = let(m, "sound", is_coded & ~poisoned)
        index = [each[config.core.cache.vq.point_bits :] for each in code]
        over = let(m, "over", use & Cat(index[k] >= entries for k in range(lanes)))
        beyond = let(m, "beyond", sound & over.any())
        p = self.code.p
        m.d.comb += [
            is_coded.eq(~piece.void & ~ended),
            short.eq(codes.p.bytes != config.image.beat_bytes),
            self.code.valid.eq(~walk.done & (~is_coded | codes.valid)),
            go.eq(self.code.valid & self.code.ready),
            codes.ready.eq((go & is_coded) | drains),
            wrong.eq(
                piece.status.fault.any()
                | (~piece.void & (poisoned | ended | short | beyond | codes.p.error.any()))
            ),
            p.use.eq(Mux(sound, use & ~over, 0)),
            p.switch.eq(switch),
            p.wrong.eq(wrong),
            *(p.code[k].eq(code[k]) for k in range(lanes)),
        ]
        self._elaborate_faults(m, go, {
            Fault.CODE: go & beyond,
            Fault.NO_CODE: go & is_coded & codes.p.error.any(),
            Fault.SHAPE: go & ~piece.void & (ended | short),
        }, Mux(go & is_coded, codes.p.error, 0), starts, needs, loaded)  # fmt: skip
        with m.If(go):
            m.d.sync += switch.eq(0)
            with m.If(is_coded):
                m.d.sync += ended.eq(codes.p.last)
            with m.If(walk.is_last):
                m.d.sync += [ended.eq(0), drains.eq(is_coded & ~codes.p.last)]
        with m.If(drains & codes.valid & codes.p.last):
            m.d.sync += drains.eq(0)
        with m.If(starts):
            m.d.sync += piece.eq(needs)
            with m.If(needs.load):
                m.d.sync += [
                    entries.eq(loaded.p.entries),
                    switch.eq(loaded.p.swap),
                    poisoned.eq(loaded.p.status.fault.any()),
                ]

    def _elaborate_faults(self, m: Module, go, faults, resp, starts, needs, loaded) -> None:
        """Faults of parts, of loads and of beats since ``clear``."""
        status = let(m, "found", Mux(starts, needs.status.as_value(), 0))
        load = let(m, "of_load", Mux(starts & needs.load, loaded.p.status.as_value(), 0))
        beat = let(m, "of_beat", Cat(flag_word(faults), resp))
        kept = Mux(self.clear, 0, self.status.as_value())
        m.d.sync += self.status.as_value().eq(kept | status | load | beat)
