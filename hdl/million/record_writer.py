"""Codes of vectors to words of the paged memory."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, nested, power_of_two
from golden.million.config import NAMED, PqShape
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kinds import BYTES, NUMBER, index_of
from hdl.million.shapes import SMALL
from hdl.paging.layouts import BYTES_BITS
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionRecordWriterConfig(Config):
    """Codes of a vector, and width of a memory word."""

    pq: PqShape = nested(PqShape)
    data_bits: int = power_of_two(256, 64, 1024, "bits of a memory word")

    @property
    def words(self) -> int:
        """Memory words of a record."""
        return -(-8 * self.pq.record_bytes // self.data_bits)

    @property
    def code_layout(self) -> Payload:
        codes = data.ArrayLayout(self.pq.bits, self.pq.subspaces)
        return Payload(code=(codes, "code of each subspace", index_of("entries")))

    @property
    def record_layout(self) -> Payload:
        return Payload(bytes=(BYTES_BITS, "bytes of the record", NUMBER))

    @property
    def w_layout(self) -> Payload:
        return Payload(
            data=(self.data_bits, "bytes of the record, the first in the low bits", BYTES),
            last=(1, "final word of the record"),
        )


class MillionRecordWriter(Block):
    """The record of a vector: its codes, subspace 0 lowest, filled up with zeros to whole words.

    One ``record`` with its size per vector, then ceil(M * nbits / data_bits) words ``w``. One word
    per cycle, the first one cycle after ``code``. The next vector is taken with the last word. The
    only combinational paths lead from ``w.ready`` and ``record.ready`` to ``code.ready``.
    Golden: golden.index.codes.pack.
    """

    tier = Tier.PART
    golden = "golden.index.codes:pack"
    default = MillionRecordWriterConfig()
    configs: ClassVar = {
        "3b": MillionRecordWriterConfig(pq=NAMED["3b"]),
        "smollm2": MillionRecordWriterConfig(pq=NAMED["4b_64"]),
        "small": MillionRecordWriterConfig(pq=SMALL, data_bits=64),
    }

    def __init__(self, config: MillionRecordWriterConfig):
        super().__init__(
            config,
            {
                "code": In(stream.Signature(config.code_layout), "Codes of vectors."),
                "record": Out(stream.Signature(config.record_layout), "Sizes of records."),
                "w": Out(stream.Signature(config.w_layout), "Words of records."),
            },
        )

    @property
    def timing(self) -> Timing:
        """The words of a record one after another; its size with the first."""
        return Timing(
            latency=1, interval=Fraction(self.config.words), start="code", end="w", unit="vector"
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        size = config.words * config.data_bits
        held = Signal(size, reset_less=True)
        has_record = Signal()
        has_words = Signal()
        ends = Signal()
        at = Signal(range(max(2, config.words)))
        is_last = at == config.words - 1
        m.d.comb += [
            self.record.valid.eq(has_record),
            self.record.p.bytes.eq(config.pq.record_bytes),
            self.w.valid.eq(has_words),
            self.w.p.data.eq(held[: config.data_bits]),
            self.w.p.last.eq(is_last),
            ends.eq(has_words & self.w.ready & is_last),
            self.code.ready.eq((~has_words | ends) & (~has_record | self.record.ready)),
        ]
        with m.If(has_words & self.w.ready):
            m.d.sync += [
                held.eq(held >> config.data_bits),
                at.eq(Mux(is_last, 0, at + 1)),
                has_words.eq(~is_last),
            ]
        with m.If(self.record.ready):
            m.d.sync += has_record.eq(0)
        with m.If(self.code.valid & self.code.ready):
            codes = self.code.p.code.as_value()
            m.d.sync += [
                held.eq(Cat(codes, Const(0, size - len(codes))) if size > len(codes) else codes),
                has_record.eq(1),
                has_words.eq(1),
            ]
        return m
