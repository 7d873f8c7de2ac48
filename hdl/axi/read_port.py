"""AXI4 read manager: commands in, words out (docs/blocks/axi_read_port.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.axi import timing
from golden.axi.format import BURST_INCR, CACHE_NORMAL, Resp
from golden.config import bounded, flag
from golden.timing import Timing
from hdl.axi.port import AxiPortConfig
from hdl.axi.signature import Axi4Read, axi4_read
from hdl.block import Block
from hdl.kinds import BYTES, NUMBER, index_of
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.stream.skid import skid


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxiReadPortConfig(AxiPortConfig):
    """Widths and bursts of one read port."""

    length_bits: int = bounded(24, 1, 32, "bits of a command's number of words")
    buffered: bool = flag(True, "a skid buffer between R and o: no combinational path")
    responses: bool = flag(False, "o has the response itself in place of error")

    @property
    def read_signature(self) -> Axi4Read:
        return axi4_read(self.address_bits, self.data_bits, self.id_bits)

    @property
    def command_layout(self) -> data.StructLayout:
        return Payload(
            address=(self.address_bits, "byte address, a multiple of the word", index_of("bytes")),
            words=(self.length_bits, "words to read, 0..2**length_bits - 1", NUMBER),
        )

    @property
    def o_layout(self) -> data.StructLayout:
        answer: dict = {"error": (1, "the response was SLVERR or DECERR")}
        if self.responses:
            answer = {"resp": (2, "response of the bus", Resp)}
        return Payload(
            data=(self.data_bits, "word of memory, its first byte in the low bits", BYTES),
            **answer,
            last=(1, "the command's final word"),
        )


class AxiReadPort(Block):
    """``o`` = the ``words`` words from byte ``address`` on, for each command in order.

    The low log2(data_bits / 8) bits of ``address`` are taken as 0; addresses wrap at
    ``2**address_bits``. ``last`` marks the command's final word; a command of 0 words gives
    nothing. Bursts are as long as ``burst_beats``, the command's end and the next multiple of
    4 KiB allow. Up to ``outstanding`` of them are requested ahead, across commands too. All have
    ID 0, so data come in order. ``error``: the beat's response was SLVERR or DECERR. Its word
    passes as it came, and the command goes on to its end. With ``responses``, ``o`` has the
    response ``resp`` in place of ``error``.

    1 word per cycle when ``burst_beats * outstanding`` words cover the memory's latency. ARVALID
    two cycles after a command; ``o`` one cycle after R, in the same cycle without ``buffered``.
    RREADY falls only because ``o`` is stalled. No combinational path leads from an input to an
    output but, without ``buffered``, between R and ``o``. The port discards a beat that no burst
    requested, and ``stray`` shows it in the next cycle. RLAST is believed. A reset in
    mid-burst needs a reset of the bus too.
    Golden: golden.axi.reference.read_words. Source: Arm IHI 0022H.
    """

    golden = "golden.axi.reference:read_words"
    reference = "tests/axi/test_axi.py: test_words_wrap_and_carry_errors"
    default = AxiReadPortConfig()
    configs: ClassVar = {
        "small": AxiReadPortConfig(
            data_bits=64, id_bits=3, burst_beats=5, outstanding=3, length_bits=10
        ),
        "table1": AxiReadPortConfig(data_bits=1024, burst_beats=32),
    }

    def __init__(self, config: AxiReadPortConfig):
        super().__init__(
            config,
            {
                "command": In(
                    stream.Signature(config.command_layout),
                    "Byte address and number of words to read.",
                ),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "The words in order; error: SLVERR or DECERR; last: the command's final word.",
                ),
                "axi": Out(config.read_signature, "AXI4 read manager."),
                "stray": Out(
                    1, "For one cycle: a beat that no burst requested came and was dropped."
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.read_port(self.config.buffered)

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        size = config.word_bytes.bit_length() - 1  # log2 of the bytes of a word
        page_words = config.page_words
        offset_bits = page_words.bit_length() - 1
        most = min(config.burst_beats, page_words)

        # The part of the command that is not requested yet, from word ``offset`` of ``page`` on.
        page = Signal(config.address_bits - offset_bits - size, reset_less=True)
        offset = Signal(offset_bits, reset_less=True)
        left = Signal(config.length_bits)
        beats = Signal(range(most + 1))  # of the burst to request now
        room = Signal(range(page_words + 1))
        is_final = Signal()
        issue = Signal()

        layout = data.StructLayout({"addr": len(page) + len(offset), "len": 8})
        requests = skid(m, "requests", layout)
        # For each burst in flight: does its last word end the command?
        bursts = queue(m, "bursts", 1, config.outstanding)

        m.d.comb += [
            room.eq(page_words - offset),
            beats.eq(Mux(room < most, room, most)),
            is_final.eq(left <= beats),
        ]
        count = Signal(range(most + 1))
        m.d.comb += [
            count.eq(Mux(is_final, left, beats)),
            issue.eq((left != 0) & requests.i.ready & bursts.i.ready),
            self.command.ready.eq((left == 0) | (issue & is_final)),
        ]
        m.d.comb += [
            requests.i.valid.eq(issue),
            requests.i.p.addr.eq(Cat(offset, page)),
            requests.i.p.len.eq(count - 1),
            bursts.i.valid.eq(issue),
            bursts.i.p.eq(is_final),
        ]
        with m.If(issue):
            m.d.sync += [offset.eq(offset + count), left.eq(left - count)]
            with m.If(count == room):
                m.d.sync += page.eq(page + 1)
        with m.If(self.command.valid & self.command.ready):
            m.d.sync += [
                Cat(offset, page).eq(self.command.p.address[size:]),
                left.eq(self.command.p.words),
            ]

        ar, r = self.axi.ar, self.axi.r
        m.d.comb += [
            ar.valid.eq(requests.o.valid),
            requests.o.ready.eq(ar.ready),
            ar.p.addr.eq(Cat(Const(0, size), requests.o.p.addr)),
            ar.p.len.eq(requests.o.p.len),
            ar.p.size.eq(size),
            ar.p.burst.eq(BURST_INCR),
            ar.p.cache.eq(CACHE_NORMAL),
        ]

        is_asked = bursts.o.valid
        sink = self.o
        if config.buffered:
            words = skid(m, "words", config.o_layout)
            link(m, words.o, self.o)
            sink = words.i
        m.d.comb += [
            sink.p.data.eq(r.p.data),
            # SLVERR, DECERR
            sink.p.resp.eq(r.p.resp) if config.responses else sink.p.error.eq(r.p.resp[1]),
            sink.p.last.eq(r.p.last & bursts.o.p),
            sink.valid.eq(r.valid & is_asked),
            r.ready.eq(sink.ready | ~is_asked),
            bursts.o.ready.eq(r.valid & r.ready & r.p.last),
        ]
        m.d.sync += self.stray.eq(r.valid & ~is_asked)
        return m
