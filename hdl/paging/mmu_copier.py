"""The MMU's copies of pages, which a FORK makes."""

import dataclasses

from amaranth import Module, Signal
from amaranth.lib import data, stream

from golden.axi.format import Resp
from golden.config import Config
from hdl.axi.write_port import AxiWritePortConfig
from hdl.block import Block
from hdl.children import add
from hdl.kinds import NUMBER, index_of
from hdl.paging.mmu_channel import PagingMmuChannel, PagingMmuChannelConfig
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue

COPY_LAYOUT = Payload(
    source=(20, "page to be copied", index_of("pages")),
    target=(20, "page that becomes its copy", index_of("pages")),
    bytes=(17, "bytes from the page's start on, 1 or more", NUMBER),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagingMmuCopierConfig(Config):
    """Widths and queues of the copying; fields as in PagingMmuConfig."""

    channel: PagingMmuChannelConfig = dataclasses.field(default_factory=PagingMmuChannelConfig)
    port: AxiWritePortConfig = dataclasses.field(default_factory=AxiWritePortConfig)

    @property
    def copied_layout(self) -> data.StructLayout:
        return Payload(resp=(2, "worst response of the copies", Resp))


class PagingMmuCopier(Block):
    """The first bytes of a page to another page, through the reader's port and the writer's.

    A write begins when its first word is there, so the writer waits for no memory but for that
    of further bursts. The words of the next page are read meanwhile. Words of a failed read are
    written too: what is wrong about them is in ``worst``.
    """

    def __init__(self, config: PagingMmuCopierConfig):
        channel = config.channel
        super().__init__(
            config,
            {
                "i": In(stream.Signature(COPY_LAYOUT), "Pages to be copied."),
                "base": In(channel.address_bits, "Byte address of page 0.", index_of("bytes")),
                "burst": Out(stream.Signature(channel.burst_layout), "Words to read."),
                "word": In(stream.Signature(channel.i_layout), "The words of all bursts."),
                "command": Out(stream.Signature(config.port.command_layout), "Where a copy is."),
                "w": Out(stream.Signature(config.port.i_layout), "Its bytes."),
                "is_writing": In(1, "Some write of a copy is not answered."),
                "copied": In(config.copied_layout, "The worst answer so far."),
                "forget": In(1, "All copies from now on belong to another FORK."),
                "is_idle": Out(1, "All copies are made and answered."),
                "worst": Out(config.copied_layout, "Of the reads and writes of a FORK."),
            },
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        channel = add(m, "channel", PagingMmuChannel(self.config.channel))
        targets = queue(m, "targets", COPY_LAYOUT, 2)
        given = Signal()
        taken = Signal()
        m.d.comb += [
            given.eq(self.i.valid & self.i.ready),
            self.i.ready.eq(targets.i.ready & channel.transfer.ready),
            targets.i.valid.eq(self.i.valid & channel.transfer.ready),
            targets.i.p.eq(self.i.p),
            channel.transfer.valid.eq(self.i.valid & targets.i.ready),
            channel.transfer.p.page.eq(self.i.p.source),
            channel.transfer.p.bytes.eq(self.i.p.bytes),
            channel.transfer.p.final.eq(1),
            channel.base.eq(self.base),
            channel.done.ready.eq(1),
        ]
        link(m, channel.burst, self.burst)
        link(m, self.word, channel.i)

        # A command when the first word is there, then the words.
        is_begun = Signal()
        target, word = targets.o.p, channel.o
        m.d.comb += [
            self.command.valid.eq(word.valid & targets.o.valid & ~is_begun),
            self.command.p.address.eq(self.base + target.target * self.config.channel.page_bytes),
            self.command.p.bytes.eq(target.bytes),
            self.w.valid.eq(word.valid & is_begun),
            self.w.p.data.eq(word.p.data),
            self.w.p.last.eq(word.p.last),
            word.ready.eq(self.w.ready & is_begun),
            taken.eq(word.valid & word.ready & word.p.last),
            targets.o.ready.eq(taken),
        ]
        with m.If(self.command.valid & self.command.ready):
            m.d.sync += is_begun.eq(1)
        with m.If(taken):
            m.d.sync += is_begun.eq(0)
        self._elaborate_end(m, given, taken, channel.done)
        return m

    def _elaborate_end(self, m: Module, given, taken, done) -> None:
        """Whether all is over, and how."""
        under_way = Signal(range(8))  # copies whose last word is not written
        worst = Signal(2)  # 2 | 3 is 3
        read = Signal(2)
        written = Signal(2)
        m.d.sync += [
            under_way.eq(under_way + given - taken),
            worst.eq((worst | read | written) & (~self.forget).replicate(2)),
        ]
        with m.If(done.valid):
            m.d.comb += read.eq(done.p.error)
        with m.If(self.is_writing):
            m.d.comb += written.eq(self.copied.resp)
        m.d.comb += [
            self.is_idle.eq((under_way == 0) & ~self.is_writing & ~done.valid),
            self.worst.resp.eq(worst),
        ]
