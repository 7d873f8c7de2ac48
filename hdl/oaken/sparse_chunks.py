"""Words of sparse records in aligned chunks."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, power_of_two
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, Tier
from hdl.kinds import BYTES
from hdl.paging.layouts import word_layout
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenSparseChunksConfig(Config):
    """Sizes of words and chunks."""

    data_bits: int = power_of_two(512, 64, 1024, "bits of a memory word")
    chunk_bytes: int = power_of_two(32, 8, 128, "bytes of a chunk, at most a word's")

    def __post_init__(self) -> None:
        if 8 * self.chunk_bytes > self.data_bits:
            self._refuse("chunk_bytes", f"at most data_bits / 8 = {self.data_bits // 8}")

    @property
    def pieces(self) -> int:
        """Pieces of a word, each of which gives at most one chunk."""
        return self.data_bits // 8 // self.chunk_bytes

    @property
    def i_layout(self) -> data.StructLayout:
        return word_layout(self.data_bits)

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(
            data=(8 * self.chunk_bytes, "bytes of the transfer, the first in the low bits", BYTES),
            bytes=(range(self.chunk_bytes + 1), "bytes that count"),
            last=(1, "final chunk of the transfer"),
            error=(1, "a byte of the chunk was read with an error"),
        )


class OakenSparseChunks(Block):
    """The bytes ``first .. end - 1`` of each word, in chunks of at most ``chunk_bytes`` bytes.

    The block cuts a word at the multiples of ``chunk_bytes``. A chunk has the valid bytes of one
    piece, the first in the low bits. Bytes above ``bytes`` are 0. A word without bytes gives one
    chunk of 0 bytes. ``last`` is set on the final chunk of a word with ``last``. ``error`` is set
    on every chunk of a word with an error.

    While ``drop`` is high, the block discards the remainder of each word. It then gives at most
    one more chunk per word, of unspecified bytes, until a chunk with ``last`` is on ``o``. ``drop``
    may fall only with that chunk's transfer.

    1 chunk per cycle, also across words; latency 1 cycle. ``i.ready`` depends combinationally on
    ``o.ready``, ``drop`` and its own payload, and on no valid of an input.
    Source: Oaken, section 5. Golden: golden.oaken.dequantize.sparse_chunks.

    So the block discards a transfer in one cycle per word. It accepts a word with its final piece.
    """

    tier = Tier.PART
    golden = "golden.oaken.dequantize:sparse_chunks"
    default = OakenSparseChunksConfig()
    configs: ClassVar = {
        "widest": OakenSparseChunksConfig(data_bits=1024, chunk_bytes=128),
        "small": OakenSparseChunksConfig(data_bits=64, chunk_bytes=8),
    }

    def __init__(self, config: OakenSparseChunksConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.i_layout), "Words of consecutive transfers."),
                "drop": In(1, "High: the remainder of the transfer is of no use."),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "Bytes of the transfers; last: of the transfer.",
                ),
            },
        )

    timing = Timing(latency=1, unit="chunk")

    def elaborate(self, platform) -> Module:
        m = Module()
        chunk, pieces = self.config.chunk_bytes, self.config.pieces
        word = self.i.p
        place_bits = chunk.bit_length() - 1
        valid = Signal()
        o = {
            name: Signal.like(self.o.p[name], name=name, reset_less=True)
            for name in self.config.o_layout.members
        }
        m.d.comb += self.o.valid.eq(valid)
        m.d.comb += [self.o.p[name].eq(each) for name, each in o.items()]
        free = let(m, "free", ~valid | self.o.ready)

        end_piece = let(m, "end_piece", (word.end - (word.end != 0))[place_bits:])
        piece = Signal(range(max(pieces, 2)))
        # of its word
        is_first = Signal(init=1)
        is_final = Signal()
        if pieces > 1:
            following = Signal(range(pieces))
            m.d.comb += piece.eq(Mux(is_first, word.first[place_bits:], following))
            with m.If(free & self.i.valid):
                m.d.sync += following.eq(piece + 1)
        # The block does not cut short the word after the transfer's last chunk.
        m.d.comb += is_final.eq((piece >= end_piece) | (self.drop & ~(valid & o["last"])))
        begin = let(m, "begin", Mux(is_first, word.first[:place_bits], 0))
        stop = let(m, "chunk_end", Mux(is_final, word.end - (end_piece << place_bits), chunk))
        is_empty = let(m, "is_empty", word.end <= word.first)
        length = Signal(range(chunk + 1))
        m.d.comb += length.eq(Mux(is_empty, 0, stop - begin))
        source = let(m, "source", word.data.word_select(piece, 8 * chunk))
        aligned = let(m, "aligned", source >> Cat(Const(0, 3), begin))
        mask = Cat((length > k).replicate(8) for k in range(chunk))
        m.d.comb += self.i.ready.eq(free & is_final)
        with m.If(free):
            m.d.sync += valid.eq(self.i.valid)
            with m.If(self.i.valid):
                m.d.sync += [
                    o["data"].eq(aligned & mask),
                    o["bytes"].eq(length),
                    o["last"].eq(word.last & is_final),
                    o["error"].eq(word.error.any()),
                    is_first.eq(is_final),
                ]
        return m
