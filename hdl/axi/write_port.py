"""AXI4 write manager: commands and packed bytes in, answers out (docs/blocks/axi_write_port.md)."""

import dataclasses
from typing import ClassVar, NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream

from golden.axi.format import BURST_INCR, CACHE_NORMAL, Resp
from golden.config import bounded
from golden.timing import Timing
from hdl.axi.port import AxiPortConfig
from hdl.axi.signature import Axi4Write, axi4_write
from hdl.block import Block
from hdl.kinds import BYTES, NUMBER, index_of
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import Queue, queue
from hdl.stream.skid import skid

_OWED_LAYOUT = data.StructLayout({"is_final": 1, "is_void": 1})


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxiWritePortConfig(AxiPortConfig):
    """Widths and bursts of one write port."""

    length_bits: int = bounded(24, 1, 32, "bits of a command's number of bytes")

    @property
    def write_signature(self) -> Axi4Write:
        return axi4_write(self.address_bits, self.data_bits, self.id_bits)

    @property
    def command_layout(self) -> data.StructLayout:
        return Payload(
            address=(self.address_bits, "byte address", index_of("bytes")),
            bytes=(self.length_bits, "bytes to write, 0..2**length_bits - 1", NUMBER),
            more=(1, "the packet goes on in the next command"),
        )

    @property
    def size_bits(self) -> int:
        """log2 of the bytes of a word."""
        return self.word_bytes.bit_length() - 1

    @property
    def place(self) -> range:
        """Places of a byte in its word."""
        return range(max(self.word_bytes, 2))

    @property
    def burst_words(self) -> int:
        """Words of the longest burst."""
        return min(self.burst_beats, self.page_words)

    @property
    def bytes_max(self) -> int:
        """Bytes of the longest command, and those before it in its first word."""
        return self.word_bytes - 1 + (1 << self.length_bits) - 1

    @property
    def burst_layout(self) -> data.StructLayout:
        """The port's record of a burst: its first word and its beats - 1."""
        return data.StructLayout({"addr": self.address_bits - self.size_bits, "len": 8})

    @property
    def beat_layout(self) -> data.StructLayout:
        """A beat of W, as the bus has it."""
        return data.StructLayout({"data": self.data_bits, "strb": self.word_bytes, "last": 1})

    @property
    def i_layout(self) -> data.StructLayout:
        return Payload(
            data=(self.data_bits, "bytes of the packet, the first in the low bits", BYTES),
            last=(1, "final word of the packet"),
        )

    @property
    def done_layout(self) -> data.StructLayout:
        return Payload(
            resp=(
                2,
                "0, or the worst response of the command's bursts: 2 (SLVERR) or 3 (DECERR)",
                Resp,
            )
        )


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
    """

    golden = "golden.axi.reference:write_packet"
    reference = "tests/axi/test_axi.py: test_packets_go_where_their_commands_say"
    default = AxiWritePortConfig()
    configs: ClassVar = {
        "small": AxiWritePortConfig(
            data_bits=64, id_bits=3, burst_beats=5, outstanding=3, length_bits=10
        ),
        "table1": AxiWritePortConfig(data_bits=1024, burst_beats=32),
    }

    def __init__(self, config: AxiWritePortConfig):
        super().__init__(
            config,
            {
                "command": In(
                    stream.Signature(config.command_layout),
                    "Where the next bytes of the packet go.",
                ),
                "i": In(
                    stream.Signature(config.i_layout), "The packets' bytes, packed into words."
                ),
                "done": Out(
                    stream.Signature(config.done_layout),
                    "One per command, in order: 0, or the worst response, 2 or 3.",
                ),
                "axi": Out(config.write_signature, "AXI4 write manager."),
                "misfit": Out(
                    1, "For one cycle: a packet had more or fewer words than its commands."
                ),
                "stray": Out(1, "For one cycle: a B that no burst requested came and was dropped."),
            },
        )

    timing = Timing(
        latency=3,
        start="command",
        end="axi__aw and axi__w",
        delays=(("from i to axi__w", 1), ("from axi__b to done", 1)),
    )

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        commands = skid(m, "commands", config.command_layout)
        link(m, self.command, commands.i)
        requests = skid(m, "requests", config.burst_layout)
        beats = skid(m, "beats", config.beat_layout)
        # For each burst not answered: does it end its command? Commands without bytes are
        # among them, so that answers come in order.
        owed = queue(m, "owed", _OWED_LAYOUT, config.outstanding)

        job, packet = _Job.of(config), _Packet.of(config)
        step = _issue(
            m, config, job, packet, self.i, beats.i.ready, requests.i.ready & owed.i.ready
        )
        word = _place(m, job, packet, step, self.i.p.data)
        beat, request, owes = beats.i.p, requests.i.p, owed.i.p
        m.d.comb += [
            beats.i.valid.eq(step.goes),
            beat.data.eq(word.data),
            beat.strb.eq(word.strb),
            beat.last.eq(Mux(step.begins, step.burst, job.left_in_burst) == 1),
            requests.i.valid.eq(step.goes & step.begins),
            request.addr.eq(Cat(job.offset, job.page)),
            request.len.eq(step.burst - 1),
            owed.i.valid.eq((step.goes & step.begins) | job.is_void),
            owes.is_final.eq(job.is_void | (step.burst == job.left)),
            owes.is_void.eq(job.is_void),
        ]

        # the command; the packet's last command
        ends = Signal()
        closes = Signal()
        m.d.comb += [
            ends.eq((step.goes & step.is_last) | (job.is_void & owed.i.ready)),
            closes.eq(ends & job.closing),
        ]
        _advance(m, config, job, step)
        with m.If(step.goes):
            m.d.sync += [packet.carry.eq(word.turned), packet.has_carry.eq(step.wants)]
        misfits = _close(m, packet, step, closes, self.i.p.last)
        m.d.sync += self.misfit.eq(misfits)
        _load(m, config, job, commands.o, ends)

        self._request(m, requests.o)
        link(m, beats.o, self.axi.w)
        self._answer(m, owed)
        return m

    def _request(self, m: Module, requests) -> None:
        """Bursts to AW."""
        config = self.config
        size = config.size_bits
        aw = self.axi.aw
        m.d.comb += [
            aw.valid.eq(requests.valid),
            requests.ready.eq(aw.ready),
            aw.p.addr.eq(Cat(Const(0, size), requests.p.addr)),
            aw.p.len.eq(requests.p.len),
            aw.p.size.eq(size),
            aw.p.burst.eq(BURST_INCR),
            aw.p.cache.eq(CACHE_NORMAL),
        ]

    def _answer(self, m: Module, owed: Queue) -> None:
        """B to ``done``: the worst response of a command's bursts."""
        b = self.axi.b
        head = owed.o.p
        answers = skid(m, "answers", self.config.done_layout)
        link(m, answers.o, self.done)
        is_asked = owed.o.valid
        worst = Signal(2)
        resp = Signal(2)
        takes = Signal()
        m.d.comb += [
            # A 3 outlasts a 2; EXOKAY, which nobody requested, is OKAY.
            resp.eq(worst | Mux(b.p.resp[1], b.p.resp, 0)),
            b.ready.eq(~is_asked | (~head.is_void & (~head.is_final | answers.i.ready))),
            takes.eq(b.valid & b.ready & is_asked),
            answers.i.valid.eq(is_asked & head.is_final & (head.is_void | b.valid)),
            answers.i.p.resp.eq(Mux(head.is_void, 0, resp)),
            owed.o.ready.eq(takes | (head.is_void & answers.i.ready)),
        ]
        with m.If(takes):
            m.d.sync += worst.eq(Mux(head.is_final, 0, resp))
        m.d.sync += self.stray.eq(b.valid & ~is_asked)


@dataclasses.dataclass(frozen=True)
class _Job:
    """The remainder of the command: ``left`` beats, to write from word ``offset`` of ``page``."""

    page: Signal
    offset: Signal  # words from the start of the page
    left: Signal  # beats
    is_void: Signal  # a command of 0 bytes waits for its place among the answers
    final: Signal  # the command's last byte in its last beat
    closing: Signal  # its end is the packet's
    left_in_burst: Signal  # beats; 0: the next beat begins a burst
    is_open: Signal  # the next command continues the packet
    turn: Signal  # place of the packet's first byte in a word of memory

    @classmethod
    def of(cls, config: AxiWritePortConfig) -> "_Job":
        offset_bits = config.page_words.bit_length() - 1
        page_bits = config.address_bits - offset_bits - config.size_bits
        return cls(
            page=Signal(page_bits, name="page", reset_less=True),
            offset=Signal(offset_bits, name="offset", reset_less=True),
            left=Signal(range(-(-config.bytes_max // config.word_bytes) + 1), name="left"),
            is_void=Signal(name="is_void"),
            final=Signal(config.place, name="final", reset_less=True),
            closing=Signal(name="closing", reset_less=True),
            left_in_burst=Signal(range(config.burst_words + 1), name="left_in_burst"),
            is_open=Signal(name="is_open"),
            turn=Signal(config.place, name="turn", reset_less=True),
        )


@dataclasses.dataclass(frozen=True)
class _Packet:
    """The packet that is being written."""

    has_ended: Signal  # its last word is taken
    has_carry: Signal  # bytes of a word taken wait in ``carry``; not at the packet's start
    carry: Signal
    is_short: Signal  # a beat found no word
    swallow: Signal  # its commands are done, its last word has not come

    @classmethod
    def of(cls, config: AxiWritePortConfig) -> "_Packet":
        return cls(
            has_ended=Signal(name="has_ended"),
            has_carry=Signal(name="has_carry"),
            carry=Signal(config.data_bits, name="carry", reset_less=True),
            is_short=Signal(name="is_short"),
            swallow=Signal(name="swallow"),
        )


class _Step(NamedTuple):
    """The beat of this cycle."""

    goes: Signal
    burst: Signal  # beats of the burst, if one begins
    begins: Signal  # the first beat of a burst
    is_last: Signal  # the last beat of the command
    asks: Signal  # the beat needs a word of the packet
    wants: Signal  # that word is still to come
    taken: Signal  # a word of the packet is taken


class _Word(NamedTuple):
    """A word of memory; ``turned``: the packet's word, its bytes at their places."""

    data: Value
    strb: Value
    turned: Value


def _issue(m: Module, config, job: _Job, packet: _Packet, i, free, burst_free) -> _Step:
    """Decide on the beat of this cycle, and drive ``i.ready``.

    free: there is a place for a beat; burst_free: for a burst and its answer.
    """
    room = Signal(range(config.page_words + 1))
    count, burst = (Signal(range(config.burst_words + 1), name=name) for name in ("count", "burst"))
    begins = Signal()
    is_last_beat = Signal()
    asks = Signal()
    wants = Signal()
    may = Signal()
    step = Signal()
    taken = Signal()
    m.d.comb += [
        room.eq(config.page_words - job.offset),
        count.eq(Mux(room < config.burst_words, room, config.burst_words)),
        burst.eq(Mux(job.left < count, job.left, count)),
        begins.eq(job.left_in_burst == 0),
        is_last_beat.eq(job.left == 1),
        # A packet's last beat may have all its bytes in ``carry``.
        asks.eq(~is_last_beat | ~job.closing | (job.final >= job.turn)),
        wants.eq(asks & ~packet.has_ended),
        may.eq((job.left != 0) & ~packet.swallow & free & (~begins | burst_free)),
        step.eq(may & (~wants | i.valid)),
        i.ready.eq((may & wants) | packet.swallow),
        taken.eq(i.valid & i.ready),
    ]
    return _Step(step, burst, begins, is_last_beat, asks, wants, taken)


def _place(m: Module, job: _Job, packet: _Packet, step: _Step, word) -> _Word:
    """Every byte of ``word`` at its place in a word of memory.

    Bytes that pass the word's end come round to the low places. The next beat takes them from
    ``carry``.
    """
    word_bytes = len(word) // 8
    turned = word
    for k in range(word_bytes.bit_length() - 1):
        stage = Signal(len(word), name=f"turned_{k}")
        m.d.comb += stage.eq(Mux(job.turn[k], turned.rotate_left(8 << k), turned))
        turned = stage
    low = Signal(word_bytes)
    inside = Signal(word_bytes)
    m.d.comb += [
        low.eq((Const(1) << job.turn) - 1),  # places of the word before
        inside.eq(Mux(step.is_last, (Const(2) << job.final) - 1, -1)),
    ]
    low_bits = Cat(bit.replicate(8) for bit in low)
    there = (low & packet.has_carry.replicate(word_bytes)) | (
        ~low & step.wants.replicate(word_bytes)
    )
    return _Word((packet.carry & low_bits) | (turned & ~low_bits), inside & there, turned)


def _advance(m: Module, config, job: _Job, step: _Step) -> None:
    """One beat further in the command."""
    with m.If(step.goes):
        m.d.sync += [
            job.offset.eq(job.offset + 1),
            job.left.eq(job.left - 1),
            job.left_in_burst.eq(Mux(step.begins, step.burst, job.left_in_burst) - 1),
        ]
        with m.If(job.offset == config.page_words - 1):
            m.d.sync += job.page.eq(job.page + 1)


def _close(m: Module, packet: _Packet, step: _Step, closes, last) -> Value:
    """End the packet when its commands end (``closes``), or when a word with ``last`` is taken.

    Returns whether the packet that closes had more or fewer words than its commands.
    """
    runs_short = Signal()
    misfits = Signal()
    m.d.comb += runs_short.eq(packet.is_short | (step.goes & step.asks & packet.has_ended))
    is_late = ~packet.has_ended & ~(step.taken & last)
    with m.If(closes):
        m.d.sync += [
            packet.has_carry.eq(0),
            packet.has_ended.eq(0),
            packet.is_short.eq(0),
            packet.swallow.eq(is_late),
        ]
        m.d.comb += misfits.eq(is_late | runs_short)
    with m.Else():
        m.d.sync += packet.is_short.eq(runs_short)
        with m.If(step.taken & last):
            m.d.sync += [packet.swallow.eq(0), packet.has_ended.eq(~packet.swallow)]
    return misfits


def _load(m: Module, config, job: _Job, commands, ends) -> None:
    """The next command, when none is there or the present one ``ends``."""
    size = config.size_bits
    command = commands.p
    start = Signal(config.place)
    end = Signal(range(max(config.bytes_max, 2)))
    m.d.comb += [
        commands.ready.eq(((job.left == 0) & ~job.is_void) | ends),
        start.eq(Mux(job.is_open, 0, command.address[:size])),
        end.eq(start + command.bytes - 1),  # not used when there are no bytes
    ]
    with m.If(commands.valid & commands.ready):
        m.d.sync += [
            Cat(job.offset, job.page).eq(command.address[size:]),
            job.final.eq(end[:size]),
        ]
        with m.If(command.bytes == 0):
            m.d.sync += [
                job.left.eq(0),
                job.is_void.eq(1),
                job.closing.eq(job.is_open & ~command.more),
                job.is_open.eq(job.is_open & command.more),
            ]
        with m.Else():
            m.d.sync += [
                job.left.eq(end[size:] + 1),
                job.is_void.eq(0),
                job.closing.eq(~command.more),
                job.is_open.eq(command.more),
            ]
            with m.If(~job.is_open):
                m.d.sync += job.turn.eq(start)
    with m.Elif(ends):
        m.d.sync += job.is_void.eq(0)
