"""The MMU's READs: look-ups, a channel for each kind of record, one read port."""

import dataclasses
import functools
import itertools
import operator

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, flag, nested
from golden.paging.config import RecordKind, RecordShape, VectorRecords
from golden.paging.format import Kv, Op, PageOp, Status
from hdl.axi.read_port import AxiReadPort, AxiReadPortConfig
from hdl.axi.signature import Axi4Read, axi4_read, pass_channels
from hdl.block import Block
from hdl.children import add
from hdl.kinds import BITS, NUMBER, index_of
from hdl.paging.layouts import STATUS_LAYOUT, TOKEN_BITS, info_layout, word_layout
from hdl.paging.mmu_channel import (
    STREAM_FIELDS,
    PagingMmuChannel,
    PagingMmuChannelConfig,
    transfer_layout,
)
from hdl.paging.page_table import PAGE_COMMAND_LAYOUT, PAGE_RESPONSE_LAYOUT
from hdl.ports import In, Out, Payload
from hdl.stream.arbiter import arbiter
from hdl.stream.link import link
from hdl.stream.queue import queue

READ_LAYOUT = Payload(
    tag=(8, "comes back with the status", BITS),
    sequence=(8, "number of the sequence", index_of("sequences")),
    layer=(8, "layer of the model", index_of("layers")),
    kv=(1, "0: K, 1: V", Kv),
    head=(8, "first head", index_of("heads")),
    heads=(8, "number of heads", NUMBER),
    token=(TOKEN_BITS, "one past the last position", NUMBER),
    status=(4, "not OK: refused already", Status),
)


@dataclasses.dataclass(frozen=True)
class Outlet:
    """A stream of the words of one kind of record."""

    kind: RecordKind
    kv: Kv | None = None  # the READs that it serves; None: all

    @property
    def name(self) -> str:
        return self.kind.name if self.kv is None else f"{self.kind.name}_{self.kv.name.lower()}"

    def only(self, kv, value) -> Value:
        """``value``, or 0 for a READ of ``kv`` that has no words here."""
        return value if self.kv is None else Mux(kv == self.kv, value, 0)


def outlets(kv: RecordShape, kv_apart: bool) -> tuple[Outlet, ...]:
    """One for each kind of record, or with ``kv_apart`` one for its K and one for its V."""
    which = tuple(Kv) if kv_apart else (None,)
    return tuple(Outlet(kind, each) for kind in kv.kinds for each in which)


def _slot(kv: RecordShape, kind: RecordKind, head):
    """The slot of ``kind``, of ``head`` where each head has one."""
    if kind in kv.per_vector:
        return kv.slot(kind.name)
    low_bits = len(kv.per_head).bit_length() - 1
    return Cat(Const(kv.per_head.index(kind), low_bits), head) if low_bits else head


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagingMmuLookupConfig(Config):
    """The choice of one of a head's streams, and how many READs wait."""

    kv: RecordShape = nested(VectorRecords, kind=RecordShape)
    kind: str = "dense"  # one of kv's kinds per head
    reads: int = bounded(8, 1, 16, "READs under way")
    forks: bool = flag(False, "a transfer names its stream")

    def __post_init__(self) -> None:
        self._check_choice("kind", tuple(kind.name for kind in self.kv.per_head))


class PagingMmuLookup(Block):
    """The transfers of a READ on one channel: for each head, where its records lie.

    READs that were found good come on ``i``, which has room for ``reads``. Two transfers are
    looked up ahead.
    """

    def __init__(self, config: PagingMmuLookupConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(READ_LAYOUT), "READs that were found good."),
                "command": Out(stream.Signature(PAGE_COMMAND_LAYOUT), "READ, to the page table."),
                "response": In(stream.Signature(PAGE_RESPONSE_LAYOUT), "Its answers."),
                "transfer": Out(
                    stream.Signature(transfer_layout(config.forks)),
                    "Where each head's records lie.",
                ),
            },
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        kv = self.config.kv
        requests = queue(m, "requests", READ_LAYOUT, self.config.reads)
        layout = transfer_layout(self.config.forks)
        transfers = queue(m, "transfers", layout, 2)
        link(m, self.i, requests.i)
        link(m, transfers.o, self.transfer)
        request = requests.o.p
        done = Signal(8)  # heads of this READ that are looked up
        head = Signal(8)
        is_final = Signal()
        m.d.comb += [
            head.eq(request.head + done),
            is_final.eq(done + 1 == request.heads),
            self.command.p.op.eq(PageOp.READ),
            self.command.p.sequence.eq(request.sequence),
            self.command.p.layer.eq(request.layer),
            self.command.p.kv.eq(request.kv),
            self.command.p.slot.eq(_slot(kv, kv.named(self.config.kind), head)),
            self.command.p.token.eq(request.token),
            self.response.ready.eq(1),
        ]
        transfer = Signal(layout, reset_less=True)
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
                if self.config.forks:
                    m.d.sync += [transfer[f].eq(self.command.p[f]) for f in STREAM_FIELDS]
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

    kv: RecordShape = dataclasses.field(default_factory=VectorRecords)
    data_bits: int = 256
    address_bits: int = 40
    page_bytes: int = 4096
    burst_beats: int = 64
    outstanding: int = 16
    reads: int = 8
    beats: tuple[int, ...] = (256, 128, 64)
    kv_apart: bool = False
    forks: bool = False

    @property
    def outlets(self) -> tuple["Outlet", ...]:
        """The channels, those of one kind side by side."""
        return outlets(self.kv, self.kv_apart)

    @property
    def clients(self) -> tuple[str, ...]:
        """Users of the page table, the front first; look-ups before walks, which read ahead."""
        lookups = [f"{each.name}_lookup" for each in self.outlets if each.kind in self.kv.per_head]
        return ("front", *lookups, *(f"{each.name}_walk" for each in self.outlets))

    def channel(self, kind: RecordKind) -> PagingMmuChannelConfig:
        return PagingMmuChannelConfig(
            data_bits=self.data_bits,
            address_bits=self.address_bits,
            page_bytes=self.page_bytes,
            burst_beats=self.burst_beats,
            depth=self.beats[self.kv.kinds.index(kind)],
            reads=self.reads,
            forks=self.forks,
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
    """READs in order: status, what comes, and its words on a channel for each kind of record.

    The front looks up whether a READ goes ahead, how many tokens it has, and where the records are
    that the vector has once. It hands the READ to the channels, and gives ``info`` of each head.
    Then each channel proceeds alone. A channel whose consumer stalls stops neither the others nor
    ``info``, as far as READs are accepted. The caller ensures that at most ``reads`` READs are
    between ``i`` and ``status``.
    """

    def __init__(self, config: PagingMmuReaderConfig):
        word = stream.Signature(word_layout(config.data_bits))
        members = {
            "i": In(stream.Signature(READ_LAYOUT), "READs."),
            "status": Out(
                stream.Signature(STATUS_LAYOUT), "How each ended, after its last word was taken."
            ),
            "base": In(config.address_bits, "Byte address of page 0.", index_of("bytes")),
            "info": Out(
                stream.Signature(info_layout(config.kv)),
                "What the next transfers of each head are.",
            ),
            **{each.name: Out(word, _outlet_meaning(each)) for each in config.outlets},
            "axi": Out(config.read_signature, "AXI4 read manager."),
        }
        if config.forks:
            any_channel = config.channel(config.kv.kinds[0])
            members["copy_burst"] = In(
                stream.Signature(any_channel.burst_layout), "FORK: words to be copied."
            )
            members["copy_word"] = Out(stream.Signature(any_channel.i_layout), "These words.")
        clients = len(config.clients)
        members["command"] = Out(
            stream.Signature(PAGE_COMMAND_LAYOUT),
            tuple(f"Commands of {client} to the page table." for client in config.clients),
        ).array(clients)
        members["response"] = In(
            stream.Signature(PAGE_RESPONSE_LAYOUT), "Answers to command {0}."
        ).array(clients)
        super().__init__(config, members)

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self.config
        channels = {each: self._elaborate_channel(m, each) for each in config.outlets}
        lookups = {
            each: self._elaborate_lookup(m, each, channels[each])
            for each in config.outlets
            if each.kind in config.kv.per_head
        }
        parts = {"tag": 8, "sequence": 8, "status": 4} | ({"kv": 1} if config.kv_apart else {})
        ends = queue(m, "ends", data.StructLayout(parts), config.reads)
        self._elaborate_front(m, channels, lookups, ends)
        # Each asks for words, and takes them.
        users = [(channel.burst, channel.i) for channel in channels.values()]
        if config.forks:
            users.append((self.copy_burst, self.copy_word))
        self._elaborate_memory(m, users)
        self._elaborate_status(m, channels, ends)
        return m

    def _elaborate_channel(self, m: Module, outlet: Outlet):
        name = outlet.name
        channel = add(m, f"{name}_channel", PagingMmuChannel(self.config.channel(outlet.kind)))
        self._join_client(m, channel, f"{name}_walk")
        m.d.comb += channel.base.eq(self.base)
        link(m, channel.o, getattr(self, name))
        return channel

    def _elaborate_lookup(self, m: Module, outlet: Outlet, channel):
        config = self.config
        shape = PagingMmuLookupConfig(
            kv=config.kv, kind=outlet.kind.name, reads=config.reads, forks=config.forks
        )
        lookup = add(m, f"{outlet.name}_finder", PagingMmuLookup(shape))
        self._join_client(m, lookup, f"{outlet.name}_lookup")
        link(m, lookup.transfer, channel.transfer)
        return lookup

    def _join_client(self, m: Module, part, client: str) -> None:
        place = self.config.clients.index(client)
        link(m, part.command, self.command[place])
        link(m, self.response[place], part.response)

    def _elaborate_front(self, m: Module, channels, lookups, ends) -> None:
        config, kv = self.config, self.config.kv
        requests = queue(m, "requests", READ_LAYOUT, config.reads)
        infos = queue(m, "infos", info_layout(kv), 4)
        link(m, self.i, requests.i)
        link(m, infos.o, self.info)
        layout = transfer_layout(config.forks)
        owned = {}  # transfers of records that the vector has once
        for each in config.outlets:
            if each.kind in kv.per_vector:
                owned[each] = queue(m, f"{each.name}_transfers", layout, config.reads)
                link(m, owned[each].o, channels[each].transfer)
        front = _front(kv, requests.o.p, layout)
        request = front.request
        once, by_head = _plan(kv)
        self._elaborate_command(m, front, [*once, *by_head])
        end, info = ends.i.p, infos.i.p
        m.d.comb += [
            end.tag.eq(request.tag),
            end.sequence.eq(request.sequence),
            end.status.eq(front.status),
            *([end.kv.eq(request.kv)] if config.kv_apart else []),
            *(each.i.p.eq(front.transfers[outlet.kind.name]) for outlet, each in owned.items()),
            *(lookup.i.payload.eq(request) for lookup in lookups.values()),
            info.tag.eq(request.tag),
            info.head.eq(front.head),
            info.tokens.eq(front.tokens),
            *(info[field].eq(front.skips[name]) for name, field in kv.skips.items()),
            info.first.eq(front.done == 0),
            info.last.eq(front.is_final),
        ]
        sinks = [(outlet, each.i) for outlet, each in (*owned.items(), *lookups.items())]
        have_room = Signal()
        m.d.comb += have_room.eq(_all_of(sinks, request.kv, "ready"))
        told = by_head[0].state if by_head else "TELL"
        with m.FSM():
            with m.State("START"):
                m.d.sync += front.status.eq(request.status)
                with m.If(requests.o.valid):
                    m.next = once[0].state
                    with m.If(request.status != Status.OK):
                        m.next = "REFUSE"
            for step, after in itertools.pairwise([*once, "GO"]):
                self._ask(m, front, step, after)
            with m.State("REFUSE"):
                m.d.comb += [ends.i.valid.eq(1), requests.o.ready.eq(ends.i.ready)]
                with m.If(ends.i.ready):
                    m.next = "START"
            with m.State("GO"):
                for outlet, sink in sinks:
                    m.d.comb += sink.valid.eq(outlet.only(request.kv, have_room))
                with m.If(have_room):
                    m.next = told
            for step, after in itertools.pairwise([*by_head, "TELL"]):
                self._ask(m, front, step, after)
            with m.State("TELL"):
                m.d.comb += infos.i.valid.eq(1)
                with m.If(infos.i.ready):
                    m.d.sync += front.done.eq(front.done + 1)
                    m.next = told
                    with m.If(front.is_final):
                        # Not before: a status tells that this READ's look-ups are done too.
                        m.d.comb += [ends.i.valid.eq(1), requests.o.ready.eq(1)]
                        m.d.sync += front.done.eq(0)
                        m.next = "START"

    def _elaborate_command(self, m: Module, front: "_Front", steps: list["_Step"]) -> None:
        """The command of each step to the page table; the last READ's where none is asked."""
        command, request, kv = self.command[0].p, front.request, self.config.kv
        m.d.comb += [front.head.eq(request.head + front.done)]
        m.d.comb += front.is_final.eq(front.done + 1 == request.heads)
        op, slot, token = PageOp.READ, None, request.token
        for step in reversed(steps):
            if step.kind is None:
                op, token = Mux(step.asks, PageOp.SET_START, op), Mux(step.asks, 0, token)
            elif slot is None:
                slot = _slot(kv, step.kind, front.head)
            else:
                slot = Mux(step.asks, _slot(kv, step.kind, front.head), slot)
        m.d.comb += [
            command.op.eq(op),
            command.sequence.eq(request.sequence),
            command.layer.eq(request.layer),
            command.kv.eq(request.kv),
            command.slot.eq(slot),
            command.token.eq(token),
            self.response[0].ready.eq(1),
        ]

    def _ask(self, m: Module, front: "_Front", step: "_Step", after) -> None:
        """Two states: ``step``'s command, and what its answer says; then ``after``."""
        command, response = self.command[0], self.response[0]
        with m.State(step.state):
            m.d.comb += [command.valid.eq(1), step.asks.eq(1)]
            with m.If(command.ready):
                m.next = f"{step.state} ANSWER"
        with m.State(f"{step.state} ANSWER"):
            if step.is_once:
                m.d.sync += front.status.eq(response.p.status)
            if step.kind is None:
                m.d.sync += front.tokens.eq(front.request.token - response.p.skip)
            elif step.gives_tokens:
                m.d.sync += front.tokens.eq(response.p.skip)
            if step.kind is not None and step.kind.name in front.skips:
                m.d.sync += front.skips[step.kind.name].eq(response.p.skip)
            if step.kind is not None and step.kind.name in front.transfers:
                transfer = front.transfers[step.kind.name]
                m.d.sync += [
                    transfer.page.eq(response.p.page),
                    transfer.offset.eq(response.p.offset),
                    transfer.bytes.eq(response.p.bytes),
                    transfer.final.eq(1),
                ]
                if self.config.forks:
                    given = front.request
                    m.d.sync += [
                        transfer.sequence.eq(given.sequence),
                        transfer.layer.eq(given.layer),
                        transfer.kv.eq(given.kv),
                        transfer.slot.eq(self.config.kv.slot(step.kind.name)),
                    ]
            with m.If(response.valid):
                m.next = after.state if isinstance(after, _Step) else after
                if step.is_once:
                    with m.If(response.p.status != Status.OK):
                        m.next = "REFUSE"

    def _elaborate_memory(self, m: Module, users) -> None:
        """Bursts of the users in turn through one port; their words back to them."""
        config = self.config
        burst_layout = users[0][0].p.shape()
        turns = arbiter(m, "turns", burst_layout, len(users))
        for (burst, _), turn in zip(users, turns.i, strict=True):
            link(m, burst, turn)
        port = add(m, "port", AxiReadPort(config.port))
        # A burst in the port and its registers waits here as well: two more than are outstanding.
        depth = config.outstanding + 4
        owned_layout = data.StructLayout(
            {"place": burst_layout.members["place"], "source": len(turns.source)}
        )
        places = queue(m, "places", owned_layout, depth)
        m.d.comb += [
            port.command.valid.eq(turns.o.valid & places.i.ready),
            port.command.p.address.eq(turns.o.p.address),
            port.command.p.words.eq(turns.o.p.words),
            places.i.valid.eq(turns.o.valid & port.command.ready),
            places.i.p.place.eq(turns.o.p.place),
            places.i.p.source.eq(turns.source),
            turns.o.ready.eq(port.command.ready & places.i.ready),
        ]
        pass_channels(m, port.axi, self.axi)

        place, source = places.o.p.place, places.o.p.source
        is_first = Signal(init=1)  # word of its burst
        step = Signal()
        sinks = [sink for _, sink in users]
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

    def _elaborate_status(self, m: Module, channels, ends) -> None:
        """A READ is over when all channels have given their last word."""
        end = ends.o.p
        kv = end.kv if self.config.kv_apart else None
        dones = [(outlet, channel.done) for outlet, channel in channels.items()]
        errors = [outlet.only(kv, done.p.error) for outlet, done in dones]
        refused = Signal()
        over = Signal()
        worst = Signal(2)  # 2 | 3 is 3
        status = Signal(4)
        m.d.comb += [
            refused.eq(end.status != Status.OK),
            over.eq(_all_of(dones, kv, "valid")),
            worst.eq(functools.reduce(operator.or_, errors)),
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
        for outlet, done in dones:
            ends_it = ends.o.valid & ~refused & over & self.status.ready
            m.d.comb += done.ready.eq(outlet.only(kv, ends_it))


def _all_of(streams, kv, name: str) -> Value:
    """Whether ``name`` is high at each of the streams that serve ``kv``."""
    bits = [(outlet, getattr(each, name)) for outlet, each in streams]
    return Cat(bit if o.kv is None else bit | (kv != o.kv) for o, bit in bits).all()


def _outlet_meaning(outlet: Outlet) -> str:
    whose = "" if outlet.kv is None else f" of {outlet.kv.name}"
    return f"Transfers of the {outlet.kind.name} records{whose}."


@dataclasses.dataclass(frozen=True)
class _Step:
    """A command of the front to the page table: READ of ``kind``'s slot, or what the start is."""

    state: str
    kind: RecordKind | None  # None: the start
    asks: Signal
    is_once: bool  # for each READ; else for each head
    gives_tokens: bool = False


def _plan(kv: RecordShape) -> tuple[list[_Step], list[_Step]]:
    """The steps for each READ, and those for each of its heads.

    A READ takes a step for each record that the vector has once: its place. Its tokens come from
    the first look-up of a fixed kind, of the first head where no other is. Where no kind is fixed,
    they come from the sequence's start. A head takes a step for each variable kind: its skip.
    """
    kinds: list[RecordKind | None] = list(kv.per_vector)
    counted = next((kind for kind in kv.kinds[len(kv.per_head) :] if kind.is_fixed), None)
    if counted is None:
        counted = next((kind for kind in kv.per_head if kind.is_fixed), None)
        if counted is None and not kinds:
            kinds.append(kv.per_head[0])  # whether the READ goes ahead
        kinds.append(counted)
    once = [
        _Step(
            f"ASK {kind.name if kind else 'the start'}",
            kind,
            Signal(name=f"asks_{kind.name if kind else 'start'}"),
            True,
            kind == counted,
        )
        for kind in kinds
    ]
    by_head = [
        _Step(f"ASK {kind.name} of a head", kind, Signal(name=f"asks_{kind.name}_of_head"), False)
        for kind in kv.per_head
        if not kind.is_fixed
    ]
    return once, by_head


@dataclasses.dataclass(frozen=True)
class _Front:
    """The READ at work."""

    request: data.View
    status: Signal
    tokens: Signal
    done: Signal  # heads that are told
    head: Signal
    is_final: Signal
    transfers: dict[str, Signal]  # of the records that the vector has once
    skips: dict[str, Signal]  # by variable kind


def _front(kv: RecordShape, request, layout) -> _Front:
    names = [kind.name for kind in kv.per_vector]
    transfers = {name: Signal(layout, name=f"{name}_transfer", reset_less=True) for name in names}
    status = Signal(4, reset_less=True)
    tokens = Signal(TOKEN_BITS, reset_less=True)
    skips = {name: Signal(TOKEN_BITS, name=f"skip_{name}", reset_less=True) for name in kv.skips}
    done = Signal(8)
    head = Signal(8)
    is_final = Signal()
    return _Front(request, status, tokens, done, head, is_final, transfers, skips)
