"""The MMU's READs: look-ups, three channels, one read port."""

import dataclasses
from typing import ClassVar

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from golden.config import Config
from golden.paging.config import VectorRecords, VectorShape
from golden.paging.format import Op, PageOp, Status
from hdl.axi.read_port import AxiReadPort, AxiReadPortConfig
from hdl.axi.signature import Axi4Read, axi4_read, pass_channels
from hdl.block import Block
from hdl.emit import add
from hdl.paging.layouts import INFO_LAYOUT, STATUS_LAYOUT, TOKEN_BITS, word_layout
from hdl.paging.mmu_channel import TRANSFER_LAYOUT, PagingMmuChannel, PagingMmuChannelConfig
from hdl.paging.page_table import PAGE_COMMAND_LAYOUT, PAGE_RESPONSE_LAYOUT
from hdl.stream.arbiter import StreamArbiter, StreamArbiterConfig
from hdl.stream.link import link
from hdl.stream.payload import pack
from hdl.stream.queue import queue

__all__ = [
    "CHANNELS",
    "CLIENTS",
    "READ_LAYOUT",
    "PagingMmuLookup",
    "PagingMmuLookupConfig",
    "PagingMmuReader",
    "PagingMmuReaderConfig",
]

CHANNELS = ("dense", "sparse", "scale")
# Clients of the page table: look-ups come before walks along chains, which are requested ahead.
CLIENTS = ("front", "dense_lookup", "sparse_lookup", "dense_walk", "sparse_walk", "scale_walk")

READ_LAYOUT = data.StructLayout(
    {
        "tag": 8,
        "sequence": 8,
        "layer": 8,
        "kv": 1,
        "head": 8,
        "heads": 8,
        "token": TOKEN_BITS,
        "status": 4,  # not OK: refused already
    }
)
_END_LAYOUT = data.StructLayout({"tag": 8, "sequence": 8, "status": 4})


def table_client(name: str) -> dict:
    """Members for the requests of a part of the MMU to the page table: a command, its answer."""
    return {
        f"{name}_command": Out(stream.Signature(PAGE_COMMAND_LAYOUT)),
        f"{name}_response": In(stream.Signature(PAGE_RESPONSE_LAYOUT)),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagingMmuLookupConfig(Config):
    """Which of a head's two streams, and how many READs wait."""

    is_sparse: bool = False
    reads: int = 8  # READs under way, 1..16

    def __post_init__(self) -> None:
        self._check_bool("is_sparse")
        self._check_range("reads", 1, 16)


class PagingMmuLookup(Block):
    """The transfers of a READ on one channel: for each head, where its records lie.

    READs that were found good come on ``i``, which has room for ``reads``. Two transfers are
    looked up ahead.

    Members
    -------
    i : In(stream)          READ_LAYOUT
    command : Out(stream), response : In(stream)  to the page table
    transfer : Out(stream)  TRANSFER_LAYOUT, one per head
    """

    meaning: ClassVar[dict[str, str]] = {
        "i": "READs that were found good.",
        "command": "READ, to the page table.",
        "response": "Its answers.",
        "transfer": "Where each head's records lie.",
    }

    def __init__(self, config: PagingMmuLookupConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(READ_LAYOUT)),
                "command": Out(stream.Signature(PAGE_COMMAND_LAYOUT)),
                "response": In(stream.Signature(PAGE_RESPONSE_LAYOUT)),
                "transfer": Out(stream.Signature(TRANSFER_LAYOUT)),
            },
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        requests = queue(m, "requests", READ_LAYOUT, self.config.reads)
        transfers = queue(m, "transfers", TRANSFER_LAYOUT, 2)
        link(m, self.i, requests.i)
        link(m, transfers.o, self.transfer)
        request = requests.o.p
        done = Signal(8)  # heads of this READ that are looked up
        head, is_final = Signal(8), Signal()
        m.d.comb += [
            head.eq(request.head + done),
            is_final.eq(done + 1 == request.heads),
            self.command.p.op.eq(PageOp.READ),
            self.command.p.sequence.eq(request.sequence),
            self.command.p.layer.eq(request.layer),
            self.command.p.kv.eq(request.kv),
            self.command.p.slot.eq(Cat(Const(self.config.is_sparse, 1), head)),
            self.command.p.token.eq(request.token),
            self.response.ready.eq(1),
        ]
        transfer = Signal(TRANSFER_LAYOUT, reset_less=True)
        m.d.comb += transfers.i.p.eq(transfer)
        with m.FSM():
            with m.State("ASK"):
                m.d.comb += self.command.valid.eq(requests.o.valid)
                with m.If(self.command.valid & self.command.ready):
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.d.sync += [
                    transfer.page.eq(self.response.p.page),
                    transfer.offset.eq(self.response.p.offset),
                    transfer.bytes.eq(self.response.p.bytes),
                    transfer.final.eq(is_final),
                ]
                with m.If(self.response.valid):
                    m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += [
                    transfers.i.valid.eq(1),
                    requests.o.ready.eq(transfers.i.ready & is_final),
                ]
                with m.If(transfers.i.ready):
                    m.d.sync += done.eq(Mux(is_final, 0, done + 1))
                    m.next = "ASK"
        return m


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagingMmuReaderConfig(Config):
    """Widths and queues of the MMU's reading side; fields as in PagingMmuConfig."""

    kv: VectorShape = dataclasses.field(default_factory=VectorRecords)
    data_bits: int = 256
    address_bits: int = 40
    page_bytes: int = 4096
    burst_beats: int = 64
    outstanding: int = 16
    reads: int = 8
    dense_beats: int = 256
    sparse_beats: int = 128
    scale_beats: int = 64

    def channel(self, name: str) -> PagingMmuChannelConfig:
        return PagingMmuChannelConfig(
            data_bits=self.data_bits,
            address_bits=self.address_bits,
            page_bytes=self.page_bytes,
            burst_beats=self.burst_beats,
            depth=getattr(self, f"{name}_beats"),
            reads=self.reads,
        )

    @property
    def port(self) -> AxiReadPortConfig:
        # Not buffered: its words and the responses of R are there in one cycle, and its words
        # never wait, since their places in the queues are kept.
        return AxiReadPortConfig(
            address_bits=self.address_bits,
            data_bits=self.data_bits,
            burst_beats=self.burst_beats,
            outstanding=self.outstanding,
            length_bits=9,
            buffered=False,
        )

    @property
    def read_signature(self) -> Axi4Read:
        return axi4_read(self.address_bits, self.data_bits)


class PagingMmuReader(Block):
    """READs in order: status, what comes, and its words on three channels.

    The front looks up whether a READ goes ahead and how many tokens it has. It hands the READ to
    the channels, and gives ``info`` of each head. Then each channel proceeds alone. A channel whose
    consumer stalls stops neither the others nor ``info``, as far as READs are accepted. The caller
    ensures that at most ``reads`` READs are between ``i`` and ``status``.

    Members
    -------
    i : In(stream)        READ_LAYOUT
    status : Out(stream)  STATUS_LAYOUT, when the READ's last word has been taken
    base : In             byte address of page 0
    CLIENT_command : Out(stream), CLIENT_response : In(stream)  to the page table, for all CLIENTS
    info, dense, sparse, scale, axi  as in PagingMmu
    """

    meaning: ClassVar[dict[str, str]] = {}

    def __init__(self, config: PagingMmuReaderConfig):
        word = stream.Signature(word_layout(config.data_bits))
        members = {
            "i": In(stream.Signature(READ_LAYOUT)),
            "status": Out(stream.Signature(STATUS_LAYOUT)),
            "base": In(config.address_bits),
            "info": Out(stream.Signature(INFO_LAYOUT)),
            **{name: Out(word) for name in CHANNELS},
            "axi": Out(config.read_signature),
        }
        for client in CLIENTS:
            members |= table_client(client)
        self.meaning = dict.fromkeys(members, "As in PagingMmu.")
        super().__init__(config, members)

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self.config
        self.channels = {}
        for name in CHANNELS:
            channel = add(m, f"{name}_channel", PagingMmuChannel(config.channel(name)))
            self._join_client(m, channel, f"{name}_walk")
            m.d.comb += channel.base.eq(self.base)
            link(m, channel.o, getattr(self, name))
            self.channels[name] = channel
        self.lookups = {}
        for name in ("dense", "sparse"):
            lookup = add(
                m,
                f"{name}_finder",
                PagingMmuLookup(
                    PagingMmuLookupConfig(is_sparse=name == "sparse", reads=config.reads)
                ),
            )
            self._join_client(m, lookup, f"{name}_lookup")
            link(m, lookup.transfer, self.channels[name].transfer)
            self.lookups[name] = lookup
        ends = queue(m, "ends", _END_LAYOUT, config.reads)
        self._elaborate_front(m, ends)
        self._elaborate_memory(m)
        self._elaborate_status(m, ends)
        return m

    def _join_client(self, m: Module, part, client: str) -> None:
        link(m, part.command, getattr(self, f"{client}_command"))
        link(m, getattr(self, f"{client}_response"), part.response)

    def _elaborate_front(self, m: Module, ends) -> None:
        config = self.config
        requests = queue(m, "requests", READ_LAYOUT, config.reads)
        infos = queue(m, "infos", INFO_LAYOUT, 4)
        scales = queue(m, "scales", TRANSFER_LAYOUT, config.reads)
        link(m, self.i, requests.i)
        link(m, infos.o, self.info)
        link(m, scales.o, self.channels["scale"].transfer)
        request = requests.o.p
        scale = Signal(TRANSFER_LAYOUT, reset_less=True)
        status = Signal(4, reset_less=True)
        tokens = Signal(TOKEN_BITS, reset_less=True)
        skip = Signal(TOKEN_BITS, reset_less=True)
        done = Signal(8)  # heads of this READ that are told
        head, is_final = Signal(8), Signal()
        asks_scale = Signal()
        command, response = self.front_command, self.front_response
        m.d.comb += [
            head.eq(request.head + done),
            is_final.eq(done + 1 == request.heads),
            command.p.op.eq(PageOp.READ),
            command.p.sequence.eq(request.sequence),
            command.p.layer.eq(request.layer),
            command.p.kv.eq(request.kv),
            command.p.slot.eq(Mux(asks_scale, 2 * config.kv.heads, Cat(Const(1, 1), head))),
            command.p.token.eq(request.token),
            response.ready.eq(1),
        ]
        end = ends.i.p
        m.d.comb += [
            end.tag.eq(request.tag),
            end.sequence.eq(request.sequence),
            end.status.eq(status),
            scales.i.p.eq(scale),
        ]
        for lookup in self.lookups.values():
            m.d.comb += lookup.i.payload.eq(request)
        m.d.comb += [
            infos.i.p.tag.eq(request.tag),
            infos.i.p.head.eq(head),
            infos.i.p.tokens.eq(tokens),
            infos.i.p.skip.eq(skip),
            infos.i.p.first.eq(done == 0),
            infos.i.p.last.eq(is_final),
        ]
        sinks = [scales.i, *(lookup.i for lookup in self.lookups.values())]
        have_room = Signal()
        m.d.comb += have_room.eq(Cat(sink.ready for sink in sinks).all())
        with m.FSM():
            with m.State("START"):
                m.d.sync += status.eq(request.status)
                with m.If(requests.o.valid):
                    m.next = "ASK_SCALE"
                    with m.If(request.status != Status.OK):
                        m.next = "REFUSE"
            with m.State("ASK_SCALE"):
                m.d.comb += [command.valid.eq(1), asks_scale.eq(1)]
                with m.If(command.ready):
                    m.next = "GET_SCALE"
            with m.State("GET_SCALE"):
                m.d.sync += [
                    status.eq(response.p.status),
                    tokens.eq(response.p.skip),
                    scale.page.eq(response.p.page),
                    scale.offset.eq(response.p.offset),
                    scale.bytes.eq(response.p.bytes),
                    scale.final.eq(1),
                ]
                with m.If(response.valid):
                    m.next = "GO"
                    with m.If(response.p.status != Status.OK):
                        m.next = "REFUSE"
            with m.State("REFUSE"):
                m.d.comb += [ends.i.valid.eq(1), requests.o.ready.eq(ends.i.ready)]
                with m.If(ends.i.ready):
                    m.next = "START"
            with m.State("GO"):
                m.d.comb += [sink.valid.eq(have_room) for sink in sinks]
                with m.If(have_room):
                    m.next = "ASK_SPARSE"
            with m.State("ASK_SPARSE"):
                m.d.comb += command.valid.eq(1)
                with m.If(command.ready):
                    m.next = "GET_SPARSE"
            with m.State("GET_SPARSE"):
                m.d.sync += skip.eq(response.p.skip)
                with m.If(response.valid):
                    m.next = "TELL"
            with m.State("TELL"):
                m.d.comb += infos.i.valid.eq(1)
                with m.If(infos.i.ready):
                    m.d.sync += done.eq(done + 1)
                    m.next = "ASK_SPARSE"
                    with m.If(is_final):
                        # Not before: a status tells that this READ's look-ups are done too.
                        m.d.comb += [ends.i.valid.eq(1), requests.o.ready.eq(1)]
                        m.d.sync += done.eq(0)
                        m.next = "START"

    def _elaborate_memory(self, m: Module) -> None:
        """Bursts of the channels in turn through one port; their words back to the channels."""
        config = self.config
        burst_layout = config.channel("dense").burst_layout
        turns = add(
            m,
            "turns",
            StreamArbiter(StreamArbiterConfig(width=burst_layout.size, inputs=len(CHANNELS))),
        )
        for k, name in enumerate(CHANNELS):
            pack(m, self.channels[name].burst, getattr(turns, f"i_{k}"))
        port = add(m, "port", AxiReadPort(config.port))
        place_layout = config.channel("dense").place_layout
        # A burst in the port and its registers waits here as well: two more than are outstanding.
        depth = config.outstanding + 4
        owned_layout = data.StructLayout({"place": place_layout, "source": len(turns.o.p.source)})
        places = queue(m, "places", owned_layout, depth)
        burst = data.View(burst_layout, turns.o.p.data)
        m.d.comb += [
            port.command.valid.eq(turns.o.valid & places.i.ready),
            port.command.p.address.eq(burst.address),
            port.command.p.words.eq(burst.words),
            places.i.valid.eq(turns.o.valid & port.command.ready),
            places.i.p.place.eq(burst.place),
            places.i.p.source.eq(turns.o.p.source),
            turns.o.ready.eq(port.command.ready & places.i.ready),
        ]
        pass_channels(m, port.axi, self.axi)

        place, source = places.o.p.place, places.o.p.source
        is_first = Signal(init=1)  # word of its burst
        step = Signal()
        sinks = [self.channels[name].i for name in CHANNELS]
        m.d.comb += [
            port.o.ready.eq(Array(sink.ready for sink in sinks)[source] & places.o.valid),
            step.eq(port.o.valid & port.o.ready),
            places.o.ready.eq(step & port.o.p.last),
        ]
        with m.If(step):
            m.d.sync += is_first.eq(port.o.p.last)
        for k, sink in enumerate(sinks):
            m.d.comb += [
                sink.valid.eq(port.o.valid & places.o.valid & (source == k)),
                sink.p.data.eq(port.o.p.data),
                sink.p.first.eq(Mux(is_first, place.first, 0)),
                sink.p.end.eq(Mux(port.o.p.last, place.end, config.data_bits // 8)),
                sink.p.error.eq(self.axi.r.p.resp),
                sink.p.last.eq(port.o.p.last & place.is_end),
                sink.p.final.eq(place.final),
            ]

    def _elaborate_status(self, m: Module, ends) -> None:
        """A READ is over when all three channels have given their last word."""
        end = ends.o.p
        dones = [self.channels[name].done for name in CHANNELS]
        refused, over = Signal(), Signal()
        worst = Signal(2)  # 2 | 3 is 3
        status = Signal(4)
        m.d.comb += [
            refused.eq(end.status != Status.OK),
            over.eq(Cat(done.valid for done in dones).all()),
            worst.eq(dones[0].p.error | dones[1].p.error | dones[2].p.error),
            self.status.valid.eq(ends.o.valid & (refused | over)),
            self.status.p.tag.eq(end.tag),
            self.status.p.op.eq(Op.READ),
            self.status.p.sequence.eq(end.sequence),
            self.status.p.status.eq(status),
            ends.o.ready.eq(self.status.ready & (refused | over)),
        ]
        with m.If(refused):
            m.d.comb += status.eq(end.status)
        with m.Elif(worst[1]):
            m.d.comb += status.eq(Mux(worst[0], Status.DECODE_ERROR, Status.SLAVE_ERROR))
        for done in dones:
            m.d.comb += done.ready.eq(ends.o.valid & ~refused & over & self.status.ready)
