"""Entries to their slot, indices to the statistics."""

import dataclasses

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice
from golden.index.format import CODEBOOK_BITS_MAX, CODEBOOK_BITS_MIN, INT_BITS
from golden.kllm.isa import ROW_ELEMENTS
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, FieldOf, Tier
from hdl.kinds import NUMBER, index_of
from hdl.kllm.engine import entry_write_layout
from hdl.kllm.function.norm_stats import KllmNormStatsConfig
from hdl.kllm.quantize.payloads import tag_layout
from hdl.ports import In, Out, Payload
from hdl.stream.link import StreamView, link
from hdl.stream.queue import queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmEntryWriterConfig(Config):
    """Widths of an entry."""

    bits_a: int = bounded(4, CODEBOOK_BITS_MIN, CODEBOOK_BITS_MAX, "bits of an activation index")
    integer_bits: int = choice(8, (0, *INT_BITS), "bits of an unsigned integer; 0: no integers")

    @property
    def index_layout(self) -> data.StructLayout:
        index = data.ArrayLayout(self.bits_a, ROW_ELEMENTS)
        return Payload(
            index=(index, "index of each element", index_of("centroids")),
            tag=(tag_layout, "what goes with it"),
        )

    @property
    def value_layout(self) -> data.StructLayout:
        """The integer of each element, of 1 bit where there are no integers, and its tag."""
        value = data.ArrayLayout(max(self.integer_bits, 1), ROW_ELEMENTS)
        return Payload(
            value=(value, "integer of each element", NUMBER), tag=(tag_layout, "what goes with it")
        )

    @property
    def norms(self) -> KllmNormStatsConfig:
        """Statistics of as many indices; the longest token does not shape their words."""
        return KllmNormStatsConfig(bits_a=self.bits_a, elements=ROW_ELEMENTS)


class KllmEntryWriter(Block):
    """Rows of ``index`` or of ``value`` as rows of entries: 0 where not live, and at outliers.

    Rows of ``index`` with ``norm`` go to ``beat`` as well, with the same indices. An integer row
    has no outliers. A row of ``value`` goes first if both are offered.

    Latency 1 cycle, throughput 1 row per cycle. ``index.ready`` depends combinationally on
    ``index.p`` and on ``value.valid``. Nothing rounds.
    Golden: golden.kllm.quantizer_phases.entry_row.

    The quantizer never offers both: a change of kind waits (KllmTokenScheduler). A row of ``index``
    with ``norm`` waits until both queues have room. ``token_done`` is high in the cycle in which
    ``entries`` gives the last row of a token.
    """

    tier = Tier.PART
    golden = "golden.kllm.quantizer_phases:entry_row"
    configs = FieldOf("kllm_quantizer", "writer", ("table1", "small"))

    def __init__(self, config: KllmEntryWriterConfig):
        super().__init__(
            config,
            {
                "index": In(stream.Signature(config.index_layout), "Rows of indices."),
                "value": In(stream.Signature(config.value_layout), "Rows of integers."),
                "entries": Out(
                    stream.Signature(entry_write_layout(config.bits_a, config.integer_bits)),
                    "Rows of entries.",
                ),
                "beat": Out(
                    stream.Signature(config.norms.i_layout), "Rows of indices for the statistics."
                ),
                "token_done": Out(1, "The last row of a token is taken."),
            },
        )

    timing = Timing(latency=1, start="index or value", end="entries and beat", unit="row")

    def elaborate(self, platform) -> Module:
        m = Module()
        write_layout = self.entries.p.shape()
        layout = data.StructLayout({"last": 1, "write": write_layout})
        rows = queue(m, "entry_rows", layout, 2)
        beats = queue(m, "norm_beats", self.beat.p.shape(), 2)
        link(m, beats.o, self.beat)
        link(m, StreamView(rows.o.p.write, rows.o.valid, rows.o.ready), self.entries)

        tag = self.index.p.tag
        inlier = let(m, "inlier", tag.live & ~tag.outlier)
        index = [
            let(m, f"index_{e}", Mux(inlier[e], self.index.p.index[e], 0))
            for e in range(ROW_ELEMENTS)
        ]
        both = let(m, "both_ready", rows.i.ready & (beats.i.ready | ~tag.norm))
        m.d.comb += [
            self.index.ready.eq(both & ~self.value.valid),
            self.value.ready.eq(rows.i.ready),
            beats.i.valid.eq(self.index.valid & self.index.ready & tag.norm),
            beats.i.p.outlier.eq(tag.outlier),
            beats.i.p.last.eq(tag.last),
            *(beats.i.p.index[e].eq(each) for e, each in enumerate(index)),
            self.token_done.eq(rows.o.valid & rows.o.ready & rows.o.p.last),
        ]
        entry = Signal(layout)
        m.d.comb += Value.cast(rows.i.payload).eq(Value.cast(entry))

        def row(tag, values, outlier):
            write = entry.write
            return [
                entry.last.eq(tag.last),
                write.slot.eq(tag.slot),
                write.row.eq(tag.row),
                write.entries.outlier.eq(outlier),
                *(write.entries.value[e].eq(value) for e, value in enumerate(values)),
            ]

        m.d.comb += rows.i.valid.eq(self.index.valid & self.index.ready)
        m.d.comb += row(tag, index, tag.outlier)
        if self.config.integer_bits:
            other = self.value.p
            values = (Mux(other.tag.live[e], other.value[e], 0) for e in range(ROW_ELEMENTS))
            with m.If(self.value.valid):
                m.d.comb += rows.i.valid.eq(1)
                m.d.comb += row(other.tag, values, 0)
        return m
