"""The MMU's read channel of one kind of record: transfers in, bursts out, words back."""

import dataclasses

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.axi.format import PAGE_BYTES as AXI_BOUNDARY
from golden.axi.format import Resp
from golden.config import Config, bounded, flag, power_of_two
from golden.paging.format import PageOp
from hdl.block import Block
from hdl.kinds import NUMBER, index_of
from hdl.paging.layouts import word_layout
from hdl.paging.page_table import PAGE_COMMAND_LAYOUT, PAGE_RESPONSE_LAYOUT
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue

_RAM_FROM = 32  # words of a queue from which on it is a RAM

# The stream that a command of the page table names.
STREAM_FIELDS = ("sequence", "layer", "kv", "slot")


def transfer_layout(forks: bool) -> data.StructLayout:
    """Consecutive bytes along a chain of pages; with forks the chain depends on the stream."""
    stream = {name: PAGE_COMMAND_LAYOUT.parts[name] for name in STREAM_FIELDS} if forks else {}
    return Payload(
        page=(20, "first page", index_of("pages")),
        offset=(17, "first byte within the page, below page_bytes", index_of("bytes")),
        bytes=(32, "bytes along the chain of pages, 1 or more", NUMBER),
        final=(1, "the last transfer of its READ on this channel"),
        **stream,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagingMmuChannelConfig(Config):
    """Widths of a channel and its queue."""

    data_bits: int = power_of_two(256, 64, 1024, "bits of a memory word")
    address_bits: int = bounded(40, 32, 64, "bits of a byte address")
    page_bytes: int = power_of_two(4096, 256, 65536, "bytes of a page")
    burst_beats: int = bounded(64, 1, 256, "words of the longest burst")
    depth: int = bounded(256, 4, 4096, "words of the queue")
    reads: int = bounded(8, 1, 16, "READs under way")
    forks: bool = flag(False, "NEXT names the stream")

    @property
    def word_bytes(self) -> int:
        return self.data_bits // 8

    @property
    def page_words(self) -> int:
        return self.page_bytes // self.word_bytes

    @property
    def boundary_words(self) -> int:
        """Words between two addresses that no burst crosses: a page, 4 KiB at most."""
        return min(self.page_bytes, AXI_BOUNDARY) // self.word_bytes

    @property
    def burst_words(self) -> int:
        """Words of the longest burst that this channel requests."""
        return min(self.burst_beats, self.boundary_words, self.depth)

    @property
    def place_layout(self) -> data.StructLayout:
        """The properties of a burst's words that are known at its request."""
        return Payload(
            first=(range(self.word_bytes), "first byte of the burst's first word"),
            end=(range(self.word_bytes + 1), "one past the last byte of its last word"),
            is_end=(1, "the burst ends its transfer"),
            final=(1, "the last transfer of its READ on this channel"),
        )

    @property
    def burst_layout(self) -> data.StructLayout:
        return Payload(
            address=(self.address_bits, "byte address", index_of("bytes")),
            words=(range(257), "words of the burst"),
            place=(self.place_layout, "what its words hold"),
        )

    @property
    def i_layout(self) -> data.StructLayout:
        final = (1, "the word is the last of its READ on this channel, if it is a last one")
        return Payload(**word_layout(self.data_bits).parts, final=final)


class PagingMmuChannel(Block):
    """Cuts transfers into bursts along their pages, and gives their words in order.

    A burst stays within a page and within 4 KiB. It is offered only when the queue has room for
    all its words, so ``i`` never waits. NEXT fetches the number of the next page as soon as a
    transfer is known to go beyond its page. Meanwhile the page before is being read.

    ``error`` of ``i`` is the word's response; on ``o`` it is the worst so far in the transfer.
    ``done`` has one word for each READ: the worst response of its transfers. It comes when the last
    word of the last of them has been taken; ``done`` has room for ``reads``.

    A transfer's first burst is offered 2 cycles after it; others every 2 cycles.
    """

    def __init__(self, config: PagingMmuChannelConfig):
        super().__init__(
            config,
            {
                "transfer": In(
                    stream.Signature(transfer_layout(config.forks)), "Bytes along a chain of pages."
                ),
                "base": In(config.address_bits, "Byte address of page 0.", index_of("bytes")),
                "command": Out(stream.Signature(PAGE_COMMAND_LAYOUT), "NEXT, to the page table."),
                "response": In(stream.Signature(PAGE_RESPONSE_LAYOUT), "Its answers."),
                "burst": Out(stream.Signature(config.burst_layout), "Words to read."),
                "i": In(stream.Signature(config.i_layout), "The words of all bursts, in order."),
                "o": Out(
                    stream.Signature(word_layout(config.data_bits)),
                    "The same words, as they are taken.",
                ),
                "done": Out(
                    stream.Signature(
                        Payload(
                            error=(
                                2,
                                "worst response of the READ: 0, 2 (SLVERR) or 3 (DECERR)",
                                Resp,
                            )
                        )
                    ),
                    "A READ's last word was taken: the worst response.",
                ),
            },
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        taken = self._elaborate_queue(m)
        self._elaborate_bursts(m, taken)
        return m

    def _elaborate_bursts(self, m: Module, taken) -> None:
        config = self.config
        size = config.word_bytes.bit_length() - 1  # log2 of the bytes of a word
        page_words, boundary = config.page_words, config.boundary_words

        page = Signal(20, reset_less=True)
        position = Signal(range(page_words), reset_less=True)  # word of the page
        left = Signal(33 - size, reset_less=True)  # words of the transfer
        first = Signal(size, reset_less=True)
        end = Signal(size + 1, reset_less=True)
        final = Signal(reset_less=True)
        credit = Signal(range(config.depth + 1), init=config.depth)  # words that have room

        # The page after this one.
        follower = Signal(20, reset_less=True)
        asking = Signal()
        awaiting = Signal()
        has_follower = Signal()
        m.d.comb += [
            self.command.valid.eq(asking),
            self.command.p.op.eq(PageOp.NEXT),
            self.command.p.page.eq(page),
            self.response.ready.eq(1),
        ]
        with m.If(asking & self.command.ready):
            m.d.sync += [asking.eq(0), awaiting.eq(1)]
        with m.If(awaiting & self.response.valid):
            m.d.sync += [awaiting.eq(0), has_follower.eq(1), follower.eq(self.response.p.page)]

        transfer = self.transfer.p
        named = {}
        if config.forks:
            named = {
                name: Signal.like(transfer[name], name=f"its_{name}", reset_less=True)
                for name in STREAM_FIELDS
            }
            m.d.comb += [self.command.p[name].eq(its) for name, its in named.items()]
        span = Signal(34)  # bytes from the start of the first word to the transfer's end
        m.d.comb += span.eq(transfer.offset[:size] + transfer.bytes)

        words = Signal(range(config.burst_words + 1), reset_less=True)
        address = Signal(config.address_bits, reset_less=True)
        room = Signal(range(boundary + 1))
        most = Signal.like(words)
        fits = Signal()
        is_end = Signal(reset_less=True)
        is_page_end = Signal(reset_less=True)
        rest = Signal(range(page_words + 1))  # words of the page from position on
        m.d.comb += [
            room.eq(boundary - position[: (boundary - 1).bit_length()]),
            most.eq(Mux(room < config.burst_words, room, config.burst_words)),
            fits.eq(left <= most),
            rest.eq(page_words - position),
        ]
        asked = Signal(range(config.burst_words + 1))
        m.d.sync += credit.eq(credit + taken - asked)
        burst = self.burst.p
        m.d.comb += [
            burst.address.eq(address),
            burst.words.eq(words),
            burst.place.first.eq(first),
            burst.place.end.eq(Mux(is_end, end, config.word_bytes)),
            burst.place.is_end.eq(is_end),
            burst.place.final.eq(final),
        ]
        with m.FSM():
            with m.State("TRANSFER"):
                m.d.comb += self.transfer.ready.eq(1)
                m.d.sync += [
                    page.eq(transfer.page),
                    position.eq(transfer.offset[size:]),
                    left.eq((span + config.word_bytes - 1)[size:]),
                    first.eq(transfer.offset[:size]),
                    end.eq((span - 1)[:size] + 1),
                    final.eq(transfer.final),
                    *(its.eq(transfer[name]) for name, its in named.items()),
                ]
                with m.If(self.transfer.valid):
                    m.next = "SIZE"
            with m.State("SIZE"):
                m.d.sync += [
                    words.eq(Mux(fits, left, most)),
                    is_end.eq(fits),
                    is_page_end.eq(most == rest),
                    address.eq(self.base + Cat(position, page) * config.word_bytes),
                ]
                # Only in this state: while an answer is awaited the condition cannot come up anew.
                with m.If((left > rest) & ~asking & ~awaiting & ~has_follower):
                    m.d.sync += asking.eq(1)
                m.next = "ASK"
            with m.State("ASK"):
                # Credit only grows while a burst is waiting: valid does not fall.
                m.d.comb += self.burst.valid.eq(credit >= words)
                with m.If(self.burst.valid & self.burst.ready):
                    m.d.comb += asked.eq(words)
                    m.d.sync += [
                        left.eq(left - words),
                        position.eq(position + words),
                        first.eq(0),
                    ]
                    with m.If(is_end):
                        m.next = "TRANSFER"
                    with m.Elif(is_page_end):
                        m.next = "PAGE"
                    with m.Else():
                        m.next = "SIZE"
            with m.State("PAGE"):
                with m.If(has_follower):
                    m.d.sync += [page.eq(follower), has_follower.eq(0)]
                    m.next = "SIZE"

    def _elaborate_queue(self, m: Module):
        """The words in flight to ``o``; returns whether one is taken."""
        config = self.config
        words = queue(
            m,
            "queue",
            config.i_layout,
            config.depth,
            storage="memory" if config.depth > _RAM_FROM else "flipflop",
        )
        kept = [name for name in config.i_layout.members if name not in ("error", "final")]
        # Codes other than SLVERR (2) and DECERR (3) are no errors.
        worst = Signal(2)
        error = Signal(2)
        code = self.i.p.error
        m.d.comb += error.eq(worst | Mux(code[1], code, 0))
        m.d.comb += [
            words.i.valid.eq(self.i.valid),
            self.i.ready.eq(words.i.ready),
            words.i.p.error.eq(error),
            words.i.p.final.eq(self.i.p.final),
            *(words.i.p[name].eq(self.i.p[name]) for name in kept),
        ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += worst.eq(Mux(self.i.p.last, 0, error))

        link(m, words.o, self.o, discard=("final",))
        final = words.o.p.final
        taken = Signal()
        m.d.comb += taken.eq(words.o.valid & self.o.ready)

        # 2 | 3 is 3, so that the worst response is the OR of all.
        done = queue(m, "done_queue", self.done.payload.shape(), config.reads)
        total = Signal(2)
        m.d.comb += [
            done.i.valid.eq(taken & self.o.p.last & final),
            done.i.p.error.eq(total | self.o.p.error),
        ]
        link(m, done.o, self.done)
        with m.If(taken & self.o.p.last):
            m.d.sync += total.eq(Mux(final, 0, total | self.o.p.error))
        return taken
