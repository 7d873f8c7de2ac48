"""Codebooks and codes of the passes of attention, from one memory port."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from hdl.axi.read_port import AxiReadPort
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.attend.config import VqAttentionConfig
from hdl.vqllm.cache.read_share import VqReadShare, VqReadShareConfig


class VqAttendFetch(Block):
    """Reads for each job the passes of K, then those of V: their codebooks, and their codes.

    ``book`` and ``code`` each have a packet per pass. Codes are requested first: a pass needs few
    of them in each cycle, and the codebooks of the next pass fill the port meanwhile.
    """

    def __init__(self, config: VqAttentionConfig):
        word = stream.Signature(config.word_layout)
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.fetch_layout), "Where codes and codebooks are."),
                "book": Out(word, "Words of codebooks, a packet per pass."),
                "code": Out(word, "Words of codes, a packet per pass."),
                "axi": Out(config.port.read_signature, "AXI4 manager."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        shape = config.shape
        share = add(
            m,
            "share",
            VqReadShare(
                VqReadShareConfig(
                    room=config.words,
                    outstanding=config.outstanding,
                    address_bits=config.address_bits,
                    data_bits=shape.data_bits,
                )
            ),
        )
        link(m, share.axi.ar, self.axi.ar)
        link(m, self.axi.r, share.axi.r)
        queues = {name: queue(m, f"{name}_jobs", config.fetch_layout, 2) for name in _READERS}
        can_take = queues["code"].i.ready & queues["book"].i.ready
        m.d.comb += self.job.ready.eq(can_take)
        for k, name in enumerate(_READERS):
            jobs = queues[name]
            m.d.comb += [
                jobs.i.valid.eq(self.job.valid & can_take),
                jobs.i.p.as_value().eq(self.job.p.as_value()),
            ]
            port = add(m, f"{name}_port", AxiReadPort(config.port))
            link(m, port.axi.ar, share.reader[k].ar)
            link(m, share.reader[k].r, port.axi.r)
            words = queue(m, f"{name}_words", config.word_layout, config.words, storage="memory")
            link(m, port.o, words.i)
            out = getattr(self, name)
            link(m, words.o, out)
            m.d.comb += share.gone[k].eq(out.valid & out.ready)
            self._commands(m, name, jobs.o, port.command)
        return m

    def _commands(self, m: Module, name: str, jobs, command) -> None:
        """A command for each pass of K, then of V."""
        config, shape = self.config, self.config.shape
        job = jobs.p
        if name == "book":
            row = shape.book_words(1)
            words = Signal(config.port.length_bits, name="book_count")
            m.d.comb += words.eq(job.entries * row)
            first = {"k": job.books_k, "v": job.books_v}
            step = words << (shape.data_bits // 8).bit_length() - 1
        else:
            words = Signal(config.port.length_bits, name="code_count")
            if shape.token_bits < shape.data_bits:
                each = shape.data_bits // shape.token_bits
                m.d.comb += words.eq((job.tokens + (each - 1)) >> each.bit_length() - 1)
            else:
                m.d.comb += words.eq(job.tokens * (shape.token_bits // shape.data_bits))
            first, step = {"k": job.codes_k, "v": job.codes_v}, job.stride
        busy = Signal(name=f"{name}_busy")
        is_v = Signal(name=f"{name}_is_v")
        at = Signal(range(max(2, shape.passes)), name=f"{name}_at")
        address = Signal(config.address_bits, name=f"{name}_address", reset_less=True)
        is_last = at == shape.passes - 1
        takes = command.valid & command.ready
        m.d.comb += [
            command.valid.eq(busy),
            command.p.address.eq(address),
            command.p.words.eq(words),
            jobs.ready.eq(takes & is_last & is_v),
        ]
        with m.If(~busy):
            m.d.sync += [busy.eq(jobs.valid), address.eq(first["k"]), at.eq(0), is_v.eq(0)]
        with m.Elif(takes):
            m.d.sync += [
                address.eq(Mux(is_last, first["v"], address + step)),
                at.eq(Mux(is_last, 0, at + 1)),
                is_v.eq(is_v | is_last),
                busy.eq(~(is_last & is_v)),
            ]


_READERS = ("code", "book")  # the first one goes first
