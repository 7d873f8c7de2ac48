"""Codes of the encoder or of the host to the paged memory."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.config import Config, bounded, nested
from golden.million.config import NAMED
from golden.timing import Timing
from hdl.bits import after
from hdl.block import Block, Tier
from hdl.kinds import BYTES
from hdl.million.record_writer import MillionRecordWriterConfig
from hdl.million.shapes import SMALL
from hdl.ports import In, Out, Payload

RESTORE_LAYOUT = Payload(
    restored=(1, "the records come from restored, not from the encoder"),
    discard=(1, "the words of restored are taken and nothing is given"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionRestorerConfig(Config):
    """Records of an APPEND."""

    writer: MillionRecordWriterConfig = nested(MillionRecordWriterConfig)
    heads: int = bounded(8, 1, 128, "KV heads: records of an APPEND")

    @property
    def restored_layout(self) -> Payload:
        return Payload(
            data=(self.writer.data_bits, "bytes of the record, the first in the low bits", BYTES)
        )


class MillionRestorer(Block):
    """The records of an APPEND: the encoder's, or those of ``restored``.

    Each ``job`` covers ``heads`` records of ceil(M * nbits / data_bits) words each. A job without
    ``restored`` passes ``encoded_record`` and ``encoded_w`` on. A job with ``restored`` passes the
    words of ``restored`` on, and adds the sizes and ``last``. A job with ``discard`` takes as many
    words of ``restored`` and gives nothing.

    One word per cycle and one size per cycle, each in the cycle in which it comes. The two do not
    wait for each other. ``job`` is offered from the first word on, and is taken one cycle after
    the last word and the last size. The paths through the block are combinational, but for
    ``job.ready``: it depends on registers and on the job offered.
    Golden: golden.million.records.passed_words.

    The words of ``restored`` are K, then V, of one token after another, each with KV heads
    ascending. Each record begins with a new word. The host fills its last word up with zeros. The
    block does not look at the codes: an ATTEND finds a code beyond the entries of its codebook. A
    RESTORE has no status before its words are taken.
    """

    tier = Tier.PART
    golden = "golden.million.records:passed_words"
    default = MillionRestorerConfig()
    configs: ClassVar = {
        "smollm2": MillionRestorerConfig(
            writer=MillionRecordWriterConfig(pq=NAMED["4b_64"]), heads=3
        ),
        "small": MillionRestorerConfig(
            writer=MillionRecordWriterConfig(pq=SMALL, data_bits=64), heads=2
        ),
    }

    def __init__(self, config: MillionRestorerConfig):
        writer = config.writer
        super().__init__(
            config,
            {
                "job": In(
                    stream.Signature(RESTORE_LAYOUT), "APPENDs; halves of tokens to discard."
                ),
                "encoded_record": In(
                    stream.Signature(writer.record_layout), "Sizes of the encoder's records."
                ),
                "encoded_w": In(
                    stream.Signature(writer.w_layout), "Words of the encoder's records."
                ),
                "restored": In(
                    stream.Signature(config.restored_layout),
                    "Words of the host's records: per token K, then V; KV heads ascending.",
                ),
                "record": Out(stream.Signature(writer.record_layout), "Sizes of records."),
                "w": Out(stream.Signature(writer.w_layout), "Words of records."),
            },
        )

    @property
    def timing(self) -> Timing:
        """The words of an APPEND as they come, and a cycle in which its job is taken."""
        words = self.config.heads * self.config.writer.words
        return Timing(
            latency=0,
            interval=Fraction(words + 1, words),
            start="restored",
            end="w",
            unit="word",
            delays=(("from the last word of an APPEND to its job", 1),),
            words=(("restored", 1), ("w", 1)),
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        words, heads = config.writer.words, config.heads
        job, restored = self.job.p, self.restored
        at = Signal(range(max(2, words)))
        head = Signal(range(max(2, heads)))
        sizes = Signal(range(heads + 1))
        # of the job, all
        has_words = Signal()
        has_sizes = Signal()
        # a word may move; one moves
        opens = Signal()
        closes = Signal()
        is_last = at == words - 1
        m.d.comb += [
            has_sizes.eq((sizes == heads) | job.discard),
            opens.eq(self.job.valid & ~has_words),
            self.record.valid.eq(
                self.job.valid & ~has_sizes & (job.restored | self.encoded_record.valid)
            ),
            self.record.p.bytes.eq(
                Mux(job.restored, config.writer.pq.record_bytes, self.encoded_record.p.bytes)
            ),
            self.encoded_record.ready.eq(
                self.job.valid & ~has_sizes & ~job.restored & self.record.ready
            ),
            self.w.valid.eq(
                opens & ~job.discard & Mux(job.restored, restored.valid, self.encoded_w.valid)
            ),
            self.w.p.data.eq(Mux(job.restored, restored.p.data, self.encoded_w.p.data)),
            self.w.p.last.eq(Mux(job.restored, is_last, self.encoded_w.p.last)),
            self.encoded_w.ready.eq(opens & ~job.discard & ~job.restored & self.w.ready),
            restored.ready.eq(opens & (job.discard | (job.restored & self.w.ready))),
            closes.eq(
                (self.encoded_w.valid & self.encoded_w.ready) | (restored.valid & restored.ready)
            ),
            self.job.ready.eq(has_words & has_sizes),
        ]
        with m.If(self.record.valid & self.record.ready):
            m.d.sync += sizes.eq(sizes + 1)
        with m.If(self.job.valid & self.job.ready):
            m.d.sync += [sizes.eq(0), has_words.eq(0)]
        with m.If(closes):
            m.d.sync += at.eq(after(at, words))
            with m.If(is_last):
                m.d.sync += head.eq(after(head, heads))
                with m.If(head == heads - 1):
                    m.d.sync += has_words.eq(1)
        return m
