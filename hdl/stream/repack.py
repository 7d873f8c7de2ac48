"""Bytes of words of one size as words of another (docs/blocks/stream_repack.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.timing import Timing
from hdl.block import Block
from hdl.kinds import BITS, BYTES
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.payload import LAST
from hdl.stream.skid import skid


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamRepackConfig(Config):
    """Sizes of the words; any ratio."""

    in_bytes: int = bounded(64, 1, 256, "bytes of a word of i")
    out_bytes: int = bounded(12, 1, 256, "bytes of a word of o")
    error_bits: int = bounded(1, 1, 8, "bits of error")

    @property
    def i_layout(self) -> data.StructLayout:
        return Payload(
            data=(8 * self.in_bytes, "bytes, the first in the low bits", BYTES),
            first=(range(max(2, self.in_bytes)), "first byte of the word that counts"),
            end=(range(self.in_bytes + 1), "one past the last byte that counts"),
            error=(self.error_bits, "not 0: its bytes were read with an error", BITS),
            last=LAST,
        )

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(
            data=(8 * self.out_bytes, "bytes, the first in the low bits; 0 after the last", BYTES),
            bytes=(range(self.out_bytes + 1), "bytes that count, 1..out_bytes"),
            error=(self.error_bits, "the union of the errors of its bytes", BITS),
            last=LAST,
        )


class StreamRepack(Block):
    """Bytes ``first``..``end - 1`` of every word of ``i``, joined, in words of ``out_bytes``.

    A packet's words of ``o`` are full but for the last one: ``bytes`` of it count, the others are
    0. ``error``: each bit that a word of ``i`` had with which some byte came. A word without
    bytes (``end`` <= ``first``) gives nothing. A packet may have no bytes, or its last words may
    have none when all bytes before are gone. It then ends in a word of ``o`` with ``bytes`` 0.
    ``end`` above ``in_bytes`` counts as ``in_bytes``.

    Holds ``in_bytes + out_bytes - 1`` bytes and two words of ``o``. One word of ``i`` and one of
    ``o`` per cycle as long as neither has to wait for bytes or room. A packet's first word is
    taken in the cycle in which the last word of the packet before leaves the byte buffer. The first
    ``o`` comes 2 cycles after the word of ``i`` that completes it. No combinational path leads from
    an input to an output. Golden: ``golden.stream.reference.repack``.
    """

    golden = "golden.stream.reference:repack"
    reference = "tests/stream/test_stream.py: test_repack_keeps_bytes"
    default = StreamRepackConfig()
    configs: ClassVar = {
        "smallest": StreamRepackConfig(in_bytes=1, out_bytes=1),
        "odd": StreamRepackConfig(in_bytes=5, out_bytes=3),
        "gather": StreamRepackConfig(in_bytes=16, out_bytes=64),
    }

    def __init__(self, config: StreamRepackConfig):
        super().__init__(
            config,
            {
                "i": In(
                    stream.Signature(config.i_layout),
                    "Bytes first..end - 1 of each word; error goes with them.",
                ),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "The bytes joined: words full but for a packet's last.",
                ),
            },
        )
        # State that the proofs in tb/formal speak of.
        held = config.in_bytes + config.out_bytes - 1
        self.count = Signal(range(held + 1))  # bytes held
        self.held = Signal(8 * held)  # the oldest in the low bits; 0 from count on
        self.has_ended = Signal()  # the packet's last word is taken
        # Bytes beyond the next word of o all came in one word, as i is taken only when it reaches
        # into that word. So two errors tell what goes with every byte.
        self.error = Signal(config.error_bits)  # of all bytes held
        self.error_newest = Signal(config.error_bits)  # of the newest byte held

    # From the word with the last byte of a word of o to that word; sizes decide the ratio.
    timing = Timing(latency=2, start="the word of i that completes a word of o")

    def add_buffer(self, m: Module):
        """Adds the buffer of the words of ``o``; the proofs look at what goes in."""
        return skid(m, "words", self.config.o_layout)

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        size, out = config.in_bytes, config.out_bytes
        count, has_ended, held = self.count, self.has_ended, self.held
        capacity = len(held) // 8
        words = self.add_buffer(m)

        # Bytes of the word on i that count, from place 0 on.
        i = self.i.p
        end = Signal(range(size + 1))
        fresh = Signal(range(size + 1))
        is_beyond = i.end > size if size + 1 < 1 << len(end) else Const(0)
        m.d.comb += [
            end.eq(Mux(is_beyond, size, i.end)),
            fresh.eq(Mux(end > i.first, end - i.first, 0)),
        ]
        counts = Signal(size)
        m.d.comb += counts.eq((Const(1) << end) - 1)
        bytes_in = Signal(8 * size)
        m.d.comb += bytes_in.eq(i.data & Cat(bit.replicate(8) for bit in counts))
        placed = bytes_in
        for bit in range(len(i.first)):
            stage = Signal(8 * size, name=f"aligned_{bit}")
            m.d.comb += stage.eq(Mux(i.first[bit], placed >> (8 << bit), placed))
            placed = stage

        is_final = Signal()
        emits = Signal()
        takes = Signal()
        is_more = Signal()
        rest = Signal(range(capacity + 1))  # bytes that stay; below out_bytes when i is taken
        m.d.comb += [
            is_more.eq(count > out if capacity > out else 0),  # than one word of o
            is_final.eq(has_ended & ~is_more),
            words.i.valid.eq(has_ended | (count >= out)),
            emits.eq(words.i.valid & words.i.ready),
            rest.eq(Mux(emits, Mux(is_more, count - out, 0), count)),
            self.i.ready.eq(Mux(has_ended, emits & is_final, rest < out)),
            takes.eq(self.i.valid & self.i.ready),
        ]
        for bit in range((out - 1).bit_length()):
            stage = Signal(8 * capacity, name=f"placed_{bit}")
            m.d.comb += stage.eq(Mux(rest[bit], placed << (8 << bit), placed))
            placed = stage
        m.d.sync += [
            held.eq(Mux(emits, held >> 8 * out, held) | (placed & takes.replicate(8 * capacity))),
            count.eq(rest + Mux(takes, fresh, 0)),
        ]
        # A word without bytes leaves no error.
        bits = config.error_bits
        stays = Mux(emits, is_more.replicate(bits) & self.error_newest, self.error)
        comes = takes & (fresh != 0)
        m.d.sync += self.error.eq(stays | (comes.replicate(bits) & i.error))
        with m.If(comes):
            m.d.sync += self.error_newest.eq(i.error)
        with m.If(takes):
            m.d.sync += has_ended.eq(i.last)
        with m.Elif(emits & is_final):
            m.d.sync += has_ended.eq(0)

        bytes_out = Signal(range(out + 1))
        m.d.comb += [
            bytes_out.eq(Mux(is_more, out, count)),
            words.i.p.data.eq(held[: 8 * out]),
            words.i.p.bytes.eq(bytes_out),
            words.i.p.error.eq(self.error),
            words.i.p.last.eq(is_final),
        ]
        link(m, words.o, self.o)
        return m
