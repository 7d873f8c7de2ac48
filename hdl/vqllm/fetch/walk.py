"""Descriptors of a core, one after another: checked, and given to those who read and look up."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.vqllm.format import DESCRIPTOR, Fault
from hdl.bits import any_of
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.fetch.config import VqFetchConfig
from hdl.vqllm.memory_port import VqReader

_LAYOUT = data.StructLayout(DESCRIPTOR)
_BIT = {fault: fault.value.bit_length() - 1 for fault in Fault}


class VqFetchWalk(Block):
    """Gives for each stripe of a job and each piece: ``piece``, ``code``, ``load`` for codebooks.

    A part with a wrong descriptor is void: it has one beat in each row, without codes. Codebooks
    that follow it are loaded anyway.
    """

    def __init__(self, config: VqFetchConfig):
        reader = config.reader(max(4, config.descriptor_words))
        command = reader.port.command_layout
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "What to walk."),
                "piece": Out(stream.Signature(config.piece_layout), "Parts, in order."),
                "code": Out(stream.Signature(command), "Where the codes of a part are."),
                "load": Out(stream.Signature(config.load_layout), "Codebooks to load."),
                "axi": Out(reader.axi_signature, "AXI4 manager: descriptors."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        reader = add(m, "reader", VqReader(config.reader(max(4, config.descriptor_words))))
        link(m, reader.axi.ar, self.axi.ar)
        link(m, self.axi.r, reader.axi.r)
        jobs = queue(m, "jobs", config.job_layout, 2)
        link(m, self.job, jobs.i)
        words, step = config.descriptor_words, config.cores * config.image.descriptor_bytes

        job = Signal(config.job_layout, reset_less=True)
        address = Signal(config.address_bits, reset_less=True)
        left, share = Signal.like(job.rows), Signal.like(job.rows)
        piece = Signal.like(job.pieces)
        begins = Signal()
        known = Signal()
        tile = Signal(DESCRIPTOR["tile"], reset_less=True)
        bits = Signal(words * config.core.cache.data_bits, reset_less=True)
        resp = Signal(2)
        found = _LAYOUT(bits[: _LAYOUT.size])
        fault = Signal(len(Fault))
        stripe = Signal.like(job.rows)
        is_last = Signal()
        m.d.comb += [
            stripe.eq(Mux(left < job.stripe, left, job.stripe)),
            is_last.eq(piece == job.pieces - 1),
            reader.command.p.address.eq(address),
            reader.command.p.words.eq(words),
        ]
        out, sent, takes = self._elaborate_out(m, job, found, share, fault, resp, known)
        m.d.comb += [
            out.first.eq(piece == 0),
            out.final.eq(is_last),
            out.begins.eq(begins),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += jobs.o.ready.eq(1)
                m.d.sync += [
                    job.eq(jobs.o.p),
                    address.eq(jobs.o.p.descriptors),
                    left.eq(jobs.o.p.rows),
                    piece.eq(0),
                    begins.eq(1),
                    known.eq(0),
                ]
                with m.If(jobs.o.valid):
                    m.next = "STRIPE"
            with m.State("STRIPE"):
                m.d.sync += [share.eq((stripe + job.later) >> job.shift), resp.eq(0)]
                m.next = "READ"
                with m.If(job.void):
                    m.next = "CHECK"
            with m.State("READ"):
                m.d.comb += reader.command.valid.eq(share != 0)
                with m.If(share == 0):  # the last stripe has fewer rows than cores
                    m.next = "IDLE"
                with m.Elif(reader.command.ready):
                    m.d.sync += address.eq(address + step)
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.d.comb += reader.o.ready.eq(1)
                with m.If(reader.o.valid):
                    m.d.sync += [
                        bits.eq(Cat(bits, reader.o.p.data)[-len(bits) :]),
                        resp.eq(resp | reader.o.p.resp),
                    ]
                    with m.If(reader.o.p.last):
                        m.next = "CHECK"
            with m.State("CHECK"):
                m.d.sync += fault.eq(self._faults(job, found, resp, known, tile))
                m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += takes.eq(1)
                with m.If(sent):
                    m.d.sync += [begins.eq(0), piece.eq(Mux(is_last, 0, piece + 1)), resp.eq(0)]
                    with m.If(fault.any()):
                        m.d.sync += known.eq(0)
                    with m.Elif(found.beats != 0):
                        m.d.sync += [known.eq(1), tile.eq(found.tile)]
                    m.next = "READ"
                    with m.If(is_last):
                        m.d.sync += left.eq(left - stripe)
                        m.next = "STRIPE"
                        with m.If(left == stripe):
                            m.next = "IDLE"
        return m

    def _faults(self, job, found, resp, known, tile):
        """The faults of a descriptor; one that memory refused has no other."""
        config, cache = self.config, self.config.core.cache
        aligned = config.image.word_bytes.bit_length() - 1
        is_used = found.beats != 0
        shape = is_used & any_of([
            (found.offset + found.beats) * config.core.pieces > job.words,
            (found.tail == 0) | (found.tail > config.core.vectors),
            found.words == 0,
            (found.shared == 0) | (found.shared > cache.shared),
            found.registers > cache.registers,
            found.registers > found.shared,
            found.code[:aligned].any() | found.book[:aligned].any(),
        ])  # fmt: skip
        switch = is_used & known & (found.load == (found.tile == tile))
        tensor = found.tensor != job.tensor
        bits = [Const(0, 1)] * len(Fault)
        bits[_BIT[Fault.SHAPE]] = shape & ~tensor
        bits[_BIT[Fault.TENSOR]] = tensor
        bits[_BIT[Fault.SWITCH]] = switch & ~tensor
        refused = 1 << _BIT[Fault.NO_DESCRIPTOR]
        return Mux(job.void, Fault.JOB.value, Mux(resp[1], refused, Cat(bits)))

    def _elaborate_out(self, m: Module, job, found, share, fault, resp, known):
        """A part goes to all who need it in one cycle."""
        config = self.config
        piece = queue(m, "pieces", config.piece_layout, 4)
        code = queue(m, "codes", self.code.p.shape(), 4)
        load = queue(m, "loads", config.load_layout, 2)
        for name, each in (("piece", piece), ("code", code), ("load", load)):
            link(m, each.o, getattr(self, name))
        takes = Signal()
        sent = Signal()
        void = Signal()
        loads = Signal()
        p = piece.i.p
        m.d.comb += [
            void.eq(fault.any() | (found.beats == 0)),
            loads.eq(~void & (found.load | ~known)),
            sent.eq(takes & piece.i.ready & code.i.ready & load.i.ready),
            piece.i.valid.eq(sent),
            code.i.valid.eq(sent & ~void),
            load.i.valid.eq(sent & loads),
            p.rows.eq(share),
            p.offset.eq(Mux(void, 0, found.offset)),
            p.beats.eq(Mux(void, 1, found.beats)),
            p.tail.eq(found.tail),
            p.words.eq(job.words),
            p.load.eq(loads),
            p.void.eq(void),
            p.status.fault.eq(fault),
            p.status.resp.eq(resp),
            code.i.p.address.eq(found.code),
            code.i.p.words.eq(found.words),
            load.i.p.book.eq(found.book),
            load.i.p.tensor.eq(found.tensor),
            load.i.p.tile.eq(found.tile),
            load.i.p.bounds.registers.eq(found.registers),
            load.i.p.bounds.shared.eq(found.shared),
        ]
        return p, sent, takes
