"""Words of a READ as codes of keys."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Module
from amaranth.lib import stream

from golden.axi.format import Resp
from golden.config import Config, nested, power_of_two
from golden.million.config import NAMED, PqShape, RateShape
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.children import add
from hdl.million.layouts import code_layout
from hdl.million.shapes import SMALL
from hdl.paging.layouts import word_layout
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.repack import StreamRepack, StreamRepackConfig

_BEAT_BYTES_MAX = 256  # that StreamRepack takes


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionCodeReaderConfig(Config):
    """Codes of a key, keys per beat, and width of a memory word."""

    pq: PqShape = nested(PqShape)
    rate: RateShape = nested(RateShape, "Only keys: their records have at most 256 bytes")
    data_bits: int = power_of_two(256, 64, 1024, "bits of a memory word")

    def __post_init__(self) -> None:
        if self.beat_bytes > _BEAT_BYTES_MAX:
            most, size = _BEAT_BYTES_MAX // self.pq.record_bytes, self.pq.record_bytes
            self._refuse("rate.keys", f"at most {most}, as a record has {size} bytes")

    @property
    def beat_bytes(self) -> int:
        """Bytes of the records of one beat."""
        return self.rate.keys * self.pq.record_bytes

    @property
    def repack(self) -> StreamRepackConfig:
        return StreamRepackConfig(
            in_bytes=self.data_bits // 8, out_bytes=self.beat_bytes, error_bits=2
        )

    @property
    def word_layout(self) -> Payload:
        return word_layout(self.data_bits)

    @property
    def code_layout(self) -> Payload:
        beat = code_layout(self.pq, self.rate)
        error = (2, "the worst RRESP up to the beat's last byte: 0, 2 (SLVERR) or 3 (DECERR)", Resp)
        return Payload(**beat.parts, error=error)


class MillionCodeReader(Block):
    """Beats of ``keys`` keys with ``subspaces`` codes each, from the words of a READ's transfer.

    A transfer is the records of a head's keys, back to back. It begins and ends at any byte of a
    word, and has at least one record. A record is the codes of one key, code 0 in the lowest bits,
    with zeros up to a whole byte. Codes beyond the last key of the transfer are 0.

    ``error``: the worst answer up to the beat's last byte. The codes of a beat with an error are
    what the memory gave. Contract: a transfer has whole records.

    Latency 2 cycles from the word that completes a beat. Throughput one beat per cycle, or one
    word per cycle, whichever has more bytes. No combinational path leads from an input to an
    output. Golden: golden.million.records.code_beats.

    At (32, 12) a record has 48 bytes, one and a half words of 256 bits. The records of a beat have
    at most 256 bytes, as StreamRepack takes no more.
    """

    tier = Tier.PART
    golden = "golden.million.records:code_beats"
    default = MillionCodeReaderConfig()
    configs: ClassVar = {
        "3b": MillionCodeReaderConfig(pq=NAMED["3b"]),
        "smollm2": MillionCodeReaderConfig(pq=NAMED["4b_64"]),
        "small": MillionCodeReaderConfig(
            pq=SMALL,
            rate=RateShape(macs=8, keys=2, queries=2, window_macs=8, lanes=8),
            data_bits=64,
        ),
    }

    def __init__(self, config: MillionCodeReaderConfig):
        super().__init__(
            config,
            {
                "word": In(stream.Signature(config.word_layout), "Words of the transfers."),
                "code": Out(stream.Signature(config.code_layout), "Codes of the keys, in order."),
            },
        )

    @property
    def timing(self) -> Timing:
        """The larger of beat and word moves in each cycle."""
        return Timing(
            latency=2,
            interval=max(Fraction(1), Fraction(8 * self.config.beat_bytes, self.config.data_bits)),
            start="word",
            end="code",
            unit="beat",
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        pq, code = config.pq, self.code.p
        repack = add(m, "repack", StreamRepack(config.repack))
        link(m, self.word, repack.i)
        m.d.comb += [
            self.code.valid.eq(repack.o.valid),
            repack.o.ready.eq(self.code.ready),
            code.last.eq(repack.o.p.last),
            code.error.eq(repack.o.p.error),
        ]
        for key in range(config.rate.keys):
            record = repack.o.p.data[8 * pq.record_bytes * key :][: pq.record_bits]
            for part in range(pq.subspaces):
                m.d.comb += code.code[key][part].eq(record.word_select(part, pq.bits))
        return m
