"""AXI4 write manager: commands and packed bytes in, answers out (docs/blocks/axi_write_port.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from golden.axi import timing
from golden.axi.format import BURST_INCR, CACHE_NORMAL
from golden.timing import Timing
from hdl.axi.port import AxiPortConfig
from hdl.axi.signature import Axi4Write, axi4_write
from hdl.block import Block
from hdl.emit import add
from hdl.stream.payload import pack, unpack
from hdl.stream.queue import queue
from hdl.stream.skid import StreamSkidBuffer, StreamSkidBufferConfig

__all__ = ["AxiWritePort", "AxiWritePortConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxiWritePortConfig(AxiPortConfig):
    """Widths and bursts of one write port."""

    length_bits: int = 24  # bits of a command's number of bytes, 1..32

    @property
    def write_signature(self) -> Axi4Write:
        return axi4_write(self.address_bits, self.data_bits, self.id_bits)

    @property
    def command_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {"address": self.address_bits, "bytes": self.length_bits, "more": 1}
        )

    @property
    def i_layout(self) -> data.StructLayout:
        return data.StructLayout({"data": self.data_bits, "last": 1})

    @property
    def done_layout(self) -> data.StructLayout:
        return data.StructLayout({"resp": 2})


class AxiWritePort(Block):
    """Writes packets of bytes: byte j of a packet to ``address`` + j, and no other byte.

    A packet is the words of ``i`` up to ``last``, first byte in the low bits of the first word.
    A command writes its next ``bytes`` bytes to any byte address. With ``more`` the following
    command writes the bytes after them, elsewhere. This one then ends, and that one begins, at a
    multiple of the word. The bytes up to the multiple are skipped, and the low bits of the address
    are taken as 0. Addresses wrap at ``2**address_bits``. ``done`` gives one answer per command, in
    order: 0, or the worst of its bursts' responses, 2 (SLVERR) or 3 (DECERR). A command of 0 bytes
    writes nothing and is answered 0.

    Bursts are as long as ``burst_beats``, the command's end and the next multiple of 4 KiB allow.
    AWVALID rises together with the burst's first WVALID, so no request waits for its data. A
    beat never waits for AWREADY of its own burst. Up to ``outstanding`` bursts are not answered
    yet, across commands too, all with ID 0.

    The port writes 1 word per cycle, over bursts, commands and packets, aligned or not, when
    ``burst_beats * outstanding`` words cover the memory's latency. A packet that ends in another
    word than it would aligned takes one beat more than it has words. Latency: from command to AW
    and W 3 cycles, from ``i`` 1; from a command's last B to ``done`` 1. No combinational path leads
    from an input to an output.

    ``misfit`` shows two kinds of packets. A packet may have fewer words than its commands need: the
    missing bytes are not strobed. It may have more: the port discards its further words up to
    ``last``. The port also discards a B that no burst requested, and ``stray`` shows it in the next
    cycle. A reset in mid-burst needs a reset of the bus too.
    Golden: golden.axi.reference.write_packet. Source: Arm IHI 0022H.

    Members
    -------
    command : In(stream)   address: bytes; bytes: 0..2**length_bits - 1; more
    i : In(stream)         data: data_bits; last
    done : Out(stream)     resp: 0, 2 or 3
    axi : Out(axi4_write)  aw, w, b: streams with the signals of AXI's channels
    misfit : Out           high for one cycle per such packet
    stray : Out            high for one cycle
    """

    meaning: ClassVar[dict[str, str]] = {
        "command": "Byte address and number of bytes to write; more: the packet goes on in the "
        "next command.",
        "i": "The packets' bytes, packed into words.",
        "done": "One per command, in order: 0, or the worst response, 2 or 3.",
        "axi": "AXI4 write manager.",
        "misfit": "For one cycle: a packet had more or fewer words than its commands.",
        "stray": "For one cycle: a B that no burst requested came and was dropped.",
    }

    def __init__(self, config: AxiWritePortConfig):
        super().__init__(
            config,
            {
                "command": In(stream.Signature(config.command_layout)),
                "i": In(stream.Signature(config.i_layout)),
                "done": Out(stream.Signature(config.done_layout)),
                "axi": Out(config.write_signature),
                "misfit": Out(1),
                "stray": Out(1),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.write_port()

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        word_bytes, page_words = config.word_bytes, config.page_words
        size = word_bytes.bit_length() - 1  # log2 of the bytes of a word
        offset_bits = page_words.bit_length() - 1
        most = min(config.burst_beats, page_words)
        place = range(max(word_bytes, 2))  # of a byte in its word

        layout = config.command_layout
        commands = add(m, "commands", StreamSkidBuffer(StreamSkidBufferConfig(width=layout.size)))
        pack(m, self.command, commands.i)
        requests_layout = data.StructLayout({"addr": config.address_bits - size, "len": 8})
        requests = add(
            m, "requests", StreamSkidBuffer(StreamSkidBufferConfig(width=requests_layout.size))
        )
        beats_layout = data.StructLayout({"data": config.data_bits, "strb": word_bytes})
        beats = add(m, "beats", StreamSkidBuffer(StreamSkidBufferConfig(width=beats_layout.size)))
        # For each burst not answered: does it end its command? Commands without bytes are
        # among them, so that answers come in order.
        owed_layout = data.StructLayout({"is_final": 1, "is_void": 1})
        owed = queue(m, "owed", owed_layout, config.outstanding)

        # The part of the command that is not written yet: from word ``offset`` of ``page`` on.
        page = Signal(config.address_bits - offset_bits - size, reset_less=True)
        offset = Signal(offset_bits, reset_less=True)
        most_bytes = word_bytes - 1 + (1 << config.length_bits) - 1
        left = Signal(range(-(-most_bytes // word_bytes) + 1))  # beats
        is_void = Signal()  # a command of 0 bytes waits for its place among the answers
        final = Signal(place, reset_less=True)  # the command's last byte in its last beat
        closing = Signal(reset_less=True)  # its end is the packet's
        left_in_burst = Signal(range(most + 1))  # beats; 0: the next beat begins a burst

        # The packet.
        is_open = Signal()  # the next command goes on with it
        turn = Signal(place, reset_less=True)  # place of its first byte in a word of memory
        has_ended = Signal()  # its last word is taken
        has_carry = Signal()  # bytes of a word taken wait in ``carry``; not at the packet's start
        carry = Signal(config.data_bits, reset_less=True)
        is_short = Signal()  # a beat found no word
        swallow = Signal()  # its commands are done, its last word has not come

        room, count = Signal(range(page_words + 1)), Signal(range(most + 1))
        burst = Signal(range(most + 1))  # beats of the burst that begins now
        begins, is_last_beat, asks, wants = Signal(), Signal(), Signal(), Signal()
        may, step, taken = Signal(), Signal(), Signal()
        m.d.comb += [
            room.eq(page_words - offset),
            count.eq(Mux(room < most, room, most)),
            burst.eq(Mux(left < count, left, count)),
            begins.eq(left_in_burst == 0),
            is_last_beat.eq(left == 1),
            # A packet's last beat may have all its bytes in ``carry``.
            asks.eq(~is_last_beat | ~closing | (final >= turn)),
            wants.eq(asks & ~has_ended),
            may.eq(
                (left != 0)
                & ~swallow
                & beats.i.ready
                & (~begins | (requests.i.ready & owed.i.ready))
            ),
            step.eq(may & (~wants | self.i.valid)),
            self.i.ready.eq((may & wants) | swallow),
            taken.eq(self.i.valid & self.i.ready),
        ]

        # Every byte goes to its place in a word of memory. Those that pass the word's end come
        # round to the low places, where the next beat takes them from ``carry``.
        turned = self.i.p.data
        for k in range(size):
            stage = Signal(config.data_bits, name=f"turned_{k}")
            m.d.comb += stage.eq(Mux(turn[k], turned.rotate_left(8 << k), turned))
            turned = stage
        low, inside = Signal(word_bytes), Signal(word_bytes)
        m.d.comb += [
            low.eq((Const(1) << turn) - 1),  # places of the word before
            inside.eq(Mux(is_last_beat, (Const(2) << final) - 1, -1)),
        ]
        low_bits = Cat(bit.replicate(8) for bit in low)
        beat = data.View(beats_layout, beats.i.p.data)
        request = data.View(requests_layout, requests.i.p.data)
        owes = owed.i.p
        m.d.comb += [
            beats.i.valid.eq(step),
            beats.i.p.last.eq(Mux(begins, burst, left_in_burst) == 1),
            beat.data.eq((carry & low_bits) | (turned & ~low_bits)),
            beat.strb.eq(
                inside
                & ((low & has_carry.replicate(word_bytes)) | (~low & wants.replicate(word_bytes)))
            ),
            requests.i.valid.eq(step & begins),
            request.addr.eq(Cat(offset, page)),
            request.len.eq(burst - 1),
            owed.i.valid.eq((step & begins) | is_void),
            owes.is_final.eq(is_void | (burst == left)),
            owes.is_void.eq(is_void),
        ]

        ends, closes, runs_short = Signal(), Signal(), Signal()
        m.d.comb += [
            ends.eq((step & is_last_beat) | (is_void & owed.i.ready)),
            closes.eq(ends & closing),
            runs_short.eq(is_short | (step & asks & has_ended)),
        ]
        m.d.sync += self.misfit.eq(0)
        with m.If(step):
            m.d.sync += [
                offset.eq(offset + 1),
                left.eq(left - 1),
                left_in_burst.eq(Mux(begins, burst, left_in_burst) - 1),
                carry.eq(turned),
                has_carry.eq(wants),
            ]
            with m.If(offset == page_words - 1):
                m.d.sync += page.eq(page + 1)
        with m.If(closes):
            is_late = ~has_ended & ~(taken & self.i.p.last)
            m.d.sync += [
                has_carry.eq(0),
                has_ended.eq(0),
                is_short.eq(0),
                swallow.eq(is_late),
                self.misfit.eq(is_late | runs_short),
            ]
        with m.Else():
            m.d.sync += is_short.eq(runs_short)
            with m.If(taken & self.i.p.last):
                m.d.sync += [swallow.eq(0), has_ended.eq(~swallow)]

        command = data.View(layout, commands.o.p.data)
        start, end = Signal(place), Signal(range(max(most_bytes, 2)))
        m.d.comb += [
            commands.o.ready.eq(((left == 0) & ~is_void) | ends),
            start.eq(Mux(is_open, 0, command.address[:size])),
            end.eq(start + command.bytes - 1),  # not used when there are no bytes
        ]
        with m.If(commands.o.valid & commands.o.ready):
            m.d.sync += [
                Cat(offset, page).eq(command.address[size:]),
                final.eq(end[:size]),
            ]
            with m.If(command.bytes == 0):
                m.d.sync += [
                    left.eq(0),
                    is_void.eq(1),
                    closing.eq(is_open & ~command.more),
                    is_open.eq(is_open & command.more),
                ]
            with m.Else():
                m.d.sync += [
                    left.eq(end[size:] + 1),
                    is_void.eq(0),
                    closing.eq(~command.more),
                    is_open.eq(command.more),
                ]
                with m.If(~is_open):
                    m.d.sync += turn.eq(start)
        with m.Elif(ends):
            m.d.sync += is_void.eq(0)

        aw, w = self.axi.aw, self.axi.w
        request = data.View(requests_layout, requests.o.p.data)
        m.d.comb += [
            aw.valid.eq(requests.o.valid),
            requests.o.ready.eq(aw.ready),
            aw.p.addr.eq(Cat(Const(0, size), request.addr)),
            aw.p.len.eq(request.len),
            aw.p.size.eq(size),
            aw.p.burst.eq(BURST_INCR),
            aw.p.cache.eq(CACHE_NORMAL),
        ]
        unpack(m, beats.o, w)
        self._answer(m, owed)
        return m

    def _answer(self, m: Module, owed) -> None:
        """B to ``done``: the worst response of a command's bursts."""
        b = self.axi.b
        head = owed.o.p
        answers = add(m, "answers", StreamSkidBuffer(StreamSkidBufferConfig(width=2)))
        unpack(m, answers.o, self.done)
        is_asked, worst, resp = owed.o.valid, Signal(2), Signal(2)
        takes = Signal()
        m.d.comb += [
            # A 3 outlasts a 2; EXOKAY, which nobody requested, is OKAY.
            resp.eq(worst | Mux(b.p.resp[1], b.p.resp, 0)),
            b.ready.eq(~is_asked | (~head.is_void & (~head.is_final | answers.i.ready))),
            takes.eq(b.valid & b.ready & is_asked),
            answers.i.valid.eq(is_asked & head.is_final & (head.is_void | b.valid)),
            answers.i.p.data.eq(Mux(head.is_void, 0, resp)),
            answers.i.p.last.eq(1),
            owed.o.ready.eq(takes | (head.is_void & answers.i.ready)),
        ]
        with m.If(takes):
            m.d.sync += worst.eq(Mux(head.is_final, 0, resp))
        m.d.sync += self.stray.eq(b.valid & ~is_asked)
