"""Jobs of codes, decoded: a bank of codebook entries for each subspace and key."""

import dataclasses

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import bounded
from golden.fp16.format import FP16
from hdl.bits import any_of
from hdl.block import Block
from hdl.children import add
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.million.beats import is_dead
from hdl.million.layouts import code_layout
from hdl.million.shapes import VectorConfig
from hdl.ports import In, Out, Payload
from hdl.stream.queue import queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionDecodeLookupConfig(VectorConfig):
    """Codes, keys per cycle, and words of the codebook."""

    max_keys: int = bounded(32768, 1, 32768, "keys of a job")

    @property
    def bank(self) -> MemoryConfig:
        """Two buffers of a subspace's entries."""
        return MemoryConfig(depth=2 * self.pq.entries, width=FP16.bits * self.pq.sub)

    @property
    def codebook_layout(self) -> Payload:
        words = data.ArrayLayout(FP16.bits, self.rate.macs)
        return Payload(
            word=(words, "macs elements of a row, FP16", FP16), last=(1, "ends the codebook")
        )

    @property
    def code_layout(self) -> Payload:
        return code_layout(self.pq, self.rate)

    @property
    def job_parts(self) -> dict:
        return {
            "keys": (range(self.max_keys + 1), "keys of the job"),
            "entries": (range(self.pq.entries + 1), "entries of the codebook"),
            "switch": (1, "the next codebook is used from this job on; the first job needs it"),
        }

    @property
    def word_layout(self) -> data.ArrayLayout:
        vector = data.ArrayLayout(FP16.bits, self.pq.head_dim)
        return data.ArrayLayout(vector, self.rate.keys)


class MillionDecodeLookup(Block):
    """Gives for each beat of codes the elements of its keys, one cycle later; never stalled.

    Two buffers of codebooks: a packet of ``codebook`` fills the one that is not in use, row by row.
    A job with ``switch`` waits for a whole codebook, and frees the one before. ``begins``: the next
    job's beats come from the next cycle on; ``can_begin`` lets it. ``can_take`` lets a beat be
    taken, ``can_end`` lets a job end: with its last beat, or alone if it has no keys. Then a beat
    without keys is shown.
    """

    def __init__(self, config: MillionDecodeLookupConfig):
        pq, keys = config.pq, config.rate.keys
        super().__init__(
            config,
            {
                "codebook": In(stream.Signature(config.codebook_layout), "Rows of codebooks."),
                "job": In(stream.Signature(Payload(**config.job_parts)), "Begins a job."),
                "code": In(stream.Signature(config.code_layout), "Codes of its keys."),
                "can_begin": In(1, "A job may begin."),
                "can_take": In(1, "A beat may be taken."),
                "can_end": In(1, "A job may end."),
                "begins": Out(1, "A job begins."),
                "take": Out(1, "A beat of codes is taken."),
                "shown": Out(1, "Elements are here."),
                "first": Out(1, "They begin a job."),
                "last": Out(1, "They end a job."),
                "dead": Out(keys, "Slots beyond the keys."),
                "beyond": Out(data.ArrayLayout(pq.subspaces, keys), "Codes beyond the entries."),
                "bad_code": Out(1, "With last: the job has a code beyond the entries."),
                "word": Out(config.word_layout, "Elements of each key.", FP16),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        slot_bits = (config.rate.keys - 1).bit_length()
        kept = {
            "none": 1,
            "switch": 1,
            "last_key": range(config.max_keys),
            "entries": range(config.pq.entries + 1),
        }
        jobs = queue(m, "jobs", data.StructLayout(kept), 2)
        m.d.comb += [
            jobs.i.valid.eq(self.job.valid),
            self.job.ready.eq(jobs.i.ready),
            jobs.i.p.none.eq(self.job.p.keys == 0),
            jobs.i.p.switch.eq(self.job.p.switch),
            jobs.i.p.last_key.eq(self.job.p.keys - 1),
            jobs.i.p.entries.eq(self.job.p.entries),
        ]
        job = Signal(data.StructLayout(kept), reset_less=True)
        active = Signal()
        marker = Signal()
        final = Signal()
        opens = Signal()
        beats = Signal(range(max(2, -(-config.max_keys // config.rate.keys))))  # taken of this job
        is_there = self._codebooks(m, self.begins & jobs.o.p.switch)
        m.d.comb += [
            final.eq(beats == job.last_key[slot_bits:]),
            self.code.ready.eq(active & ~job.none & self.can_take & (~final | self.can_end)),
            self.take.eq(self.code.valid & self.code.ready),
            marker.eq(
                Mux(job.none, active & self.can_take & self.can_end, self.take & final)
            ),
            self.begins.eq(
                jobs.o.valid & self.can_begin & (~active | marker) & (is_there | ~jobs.o.p.switch)
            ),
            jobs.o.ready.eq(self.begins),
        ]  # fmt: skip
        m.d.sync += active.eq(self.begins | (active & ~marker))
        with m.If(self.begins):
            m.d.sync += [job.eq(jobs.o.p), beats.eq(0), opens.eq(1)]
        with m.Elif(self.take):
            m.d.sync += [beats.eq(beats + 1), opens.eq(0)]

        # What goes with the elements
        dead = Signal(config.rate.keys)
        found = Signal()  # a beat before had a bad code
        now = any_of(Value.cast(self.beyond))
        m.d.comb += dead.eq(
            Cat(
                is_dead(p, final, job.last_key[:slot_bits]) | job.none
                for p in range(config.rate.keys)
            )
        )
        m.d.comb += self.bad_code.eq(found | now)
        m.d.sync += [
            self.shown.eq(self.take | marker),
            self.first.eq(opens),
            self.last.eq(marker),
            self.dead.eq(dead),
        ]
        with m.If(self.shown):
            m.d.sync += found.eq(self.bad_code & ~self.last)
        for p, codes in enumerate(self.code.p.code):
            wrong = Cat(code >= job.entries for code in codes)
            alive = self.take & ~dead[p]
            m.d.sync += self.beyond[p].eq(wrong & alive.replicate(len(wrong)))
        return m

    def _codebooks(self, m: Module, switch) -> Value:
        """The banks; whether the buffer that is not in use is full. ``switch`` frees the other.

        A word is written one cycle after it came.
        """
        config, codebook = self.config, self.codebook
        # After a reset buffer 1 counts as in use and full: the first switch frees it.
        full = Signal(2, init=2)
        filling = Signal()
        using = Signal(init=1)
        row = Signal(config.pq.bits)
        part = Signal(range(max(2, config.parts)))
        taken = Signal()
        row_ends = Signal()
        m.d.comb += [
            codebook.ready.eq(~full.bit_select(filling, 1)),
            taken.eq(codebook.valid & codebook.ready),
            row_ends.eq(part == config.parts - 1),
        ]
        with m.If(taken):
            m.d.sync += [
                part.eq(Mux(row_ends, 0, part + 1)),
                row.eq(Mux(codebook.p.last, 0, row + row_ends)),
                filling.eq(filling ^ codebook.p.last),
            ]
        writes = Signal()
        last = Signal(reset_less=True)
        buffer = Signal(reset_less=True)
        write_row = Signal.like(row, reset_less=True)
        write_part = Signal.like(part, reset_less=True)
        word = Signal.like(codebook.p.word, reset_less=True)
        filled = Signal(2)
        freed = Signal(2)
        m.d.sync += [
            writes.eq(taken), last.eq(codebook.p.last), buffer.eq(filling),
            write_row.eq(row), write_part.eq(part), word.eq(codebook.p.word),
            full.eq((full | filled) & ~freed), using.eq(using ^ switch),
        ]  # fmt: skip
        m.d.comb += [
            filled.eq((writes & last) << buffer),
            freed.eq(switch << using),
        ]
        sub = config.pq.sub
        for p in range(config.rate.keys):
            for k in range(config.pq.subspaces):
                bank = add(m, f"bank_{p}_{k}", Memory1R1W(config.bank))
                place = k % config.group * sub
                m.d.comb += [
                    bank.read_en.eq(self.take),
                    bank.read_addr.eq(Cat(self.code.p.code[p][k], using)),
                    bank.write_en.eq(writes & (write_part == k // config.group)),
                    bank.write_addr.eq(Cat(write_row, buffer)),
                    bank.write_data.eq(Cat(word[place + i] for i in range(sub))),
                ]
                vector = Value.cast(self.word[p])
                m.d.comb += vector[FP16.bits * sub * k :][: FP16.bits * sub].eq(bank.read_data)
        return full.bit_select(~using, 1)
