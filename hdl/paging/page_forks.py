"""The page table's forks: sequences that have pages in common (docs/blocks/paging_page_table.md).

The chain of a stream is linked through its pages. The chains of a parent and of its children have
the parent's full pages in common, and go on elsewhere. So the entry of a child names its tip, the
last page that it has from its parent, and the page after it.
"""

import dataclasses

from amaranth import Array, Module, Mux, Signal
from amaranth.utils import bits_for

from golden.paging.config import CacheConfig
from golden.paging.format import PageOp, Status
from hdl.memory.config import MemoryConfig
from hdl.paging.layouts import FORKING, OPEN


def sharers(config: CacheConfig) -> MemoryConfig:
    """Counts for each page the streams that have it, but one: at most the other sequences."""
    return MemoryConfig(depth=config.pages, width=bits_for(config.sequences - 1))


@dataclasses.dataclass(frozen=True)
class Forks:
    """The fork under way, and the steps of the table that only forks have.

    ``t`` is the table's machine. A parent is no child, so its chains follow their links.
    """

    children: Array  # of each sequence: FORK has made it
    active: Signal
    parent: Signal
    child: Signal
    token: Signal
    done: Signal  # streams that the child has
    slot: Signal  # of the next one
    from_vector: Signal
    to_vector: Signal
    from_stream: Signal
    to_stream: Signal
    copy: Signal  # FORK_STREAM: the page in place of the last one
    at: Signal  # FORK_STREAM: the page to be shared
    to_share: Signal  # FORK_STREAM: pages from ``at`` on

    def is_parent(self, t):
        """Whether the command's sequence is the parent of the fork under way."""
        return self.active & (self.parent == t.given.sequence)

    def is_child(self, t):
        """Whether the command's sequence is the child of the fork under way."""
        return self.active & (self.child == t.given.command.sequence)

    def follower(self, entry, page, link):
        return Mux(entry.has_tip & (page == entry.tip), entry.own, link)

    def let_go(self, m: Module, t, page) -> None:
        others = t.rams.sharers.read_data
        with m.If(others == 0):
            t.release(page)
        with m.Else():
            t.put(t.rams.sharers, page, others - 1)

    def commit(self, m: Module, t):
        """The child's fields of the entry; returns whether the new page is linked to the last.

        The link of the tip is the parent's.
        """
        entry, logged, after = t.rams.entry, t.rams.logged, t.after
        is_at_tip = entry.has_tip & (entry.last == entry.tip)
        m.d.comb += [
            after.has_tip.eq(entry.has_tip),
            after.tip.eq(entry.tip),
            after.own.eq(Mux(is_at_tip, logged.page, entry.own)),
        ]
        return (entry.pages != 0) & ~is_at_tip

    def trim(self, m: Module, t) -> None:
        """The child's fields of the entry when its first page goes."""
        left, after = t.left, t.after
        m.d.comb += [
            after.has_tip.eq(left.has_tip & (left.first != left.tip)),
            after.tip.eq(left.tip),
            after.own.eq(left.own),
        ]

    def decode(self, m: Module, t, of_slot) -> None:
        """Cases of DECODE."""
        command, given, finish, get = t.given.command, t.given, t.finish, t.get
        each = t.config.streams // t.config.sequences
        with m.Case(PageOp.NEXT):
            with m.If((command.page >= t.config.pages) | ~given.layer_fits | ~given.slot_fits):
                finish(Status.BAD_REQUEST)
            with m.Elif(~given.is_open):
                finish(Status.SEQUENCE_UNKNOWN)
            with m.Else():
                get(t.rams.entries, of_slot)
                m.next = "NEXT"
        with m.Case(PageOp.FORK):
            with m.If(~given.is_open):
                finish(Status.SEQUENCE_UNKNOWN)
            with m.Elif(self.active | self.children[given.sequence]):
                finish(Status.BAD_REQUEST)
            with m.Elif(~t.sequences.vacant.any()):
                finish(Status.TABLE_FULL)
            with m.Elif(command.token > t.config.max_tokens):
                finish(Status.BEYOND_LENGTH)
            with m.Else():
                self._begin(m, t)
        with m.Case(PageOp.FORK_STREAM):
            with m.If(~self.active | (self.done == each)):
                finish(Status.BAD_REQUEST)
            with m.Else():
                get(t.rams.entries, self.from_stream)
                get(t.rams.tokens, self.from_vector)
                get(t.rams.chain, t.free.head)
                m.next = "FORK_STREAM"
        with m.Case(PageOp.FORK_END):
            with m.If(~self.active | (self.done != each)):
                finish(Status.BAD_REQUEST)
            with m.Else():
                finish()
                m.d.sync += [t.sequences.states[self.child].eq(OPEN), self.active.eq(0)]

    def _begin(self, m: Module, t) -> None:
        """The lowest vacant sequence becomes a child."""
        config, sequences, parent = t.config, t.sequences, t.given.sequence
        child, starts = sequences.lowest, sequences.starts
        vectors, streams = 2 * config.layers, config.streams // config.sequences
        t.finish(sequence=child)
        m.d.sync += [
            sequences.states[child].eq(FORKING),
            starts[child].eq(starts[parent]),
            self.children[child].eq(1),
            self.active.eq(1),
            self.parent.eq(parent),
            self.child.eq(child),
            self.token.eq(t.given.command.token),
            self.done.eq(0),
            self.slot.eq(0),
            self.from_vector.eq(parent * vectors),
            self.to_vector.eq(child * vectors),
            self.from_stream.eq(parent * streams),
            self.to_stream.eq(child * streams),
        ]

    def next_page(self, m: Module, t) -> None:
        with m.State("NEXT"):
            t.finish(page=t.follower(t.rams.entry, t.given.command.page))

    def free_stream(self, m: Module, t) -> None:
        """Two states: the entry goes; its pages, one in each cycle."""
        given, entry, left = t.given, t.rams.entry, t.left
        owned, sequence = t.sequences.owned, given.sequence
        with m.State("FREE_STREAM"):
            t.put(t.rams.entries, given.index, t.empty)
            with m.If(given.command.slot == t.config.kv.slots - 1):
                t.put(t.rams.tokens, given.vector, 0)
            m.d.sync += [owned[sequence].eq(owned[sequence] - entry.pages), left.eq(entry)]
            with m.If(entry.pages == 0):
                t.finish()
            with m.Else():
                t.get_link(entry.first)
                m.next = "FREE_PAGE"
        with m.State("FREE_PAGE"):
            follower = t.follower(left, left.first)
            t.let_go(left.first)
            m.d.sync += [left.first.eq(follower), left.pages.eq(left.pages - 1)]
            with m.If(left.pages == 1):
                t.finish()
            with m.Else():
                t.get_link(follower)

    def fork_stream(self, m: Module, t) -> None:
        """Two states: a page in place of the last one; the full pages, one in each cycle."""
        rams, entry, left, free = t.rams, t.rams.entry, t.left, t.free
        tokens = rams.tokens.read_data
        with m.State("FORK_STREAM"):
            is_partial = entry.end != t.config.page_bytes
            m.d.sync += [
                left.eq(entry),
                self.copy.eq(free.head),
                self.at.eq(entry.first),
                self.to_share.eq(entry.pages - is_partial),
            ]
            with m.If(tokens != self.token):
                t.finish(Mux(tokens > self.token, Status.TOKEN_ORDER, Status.BEYOND_LENGTH))
            with m.Elif(is_partial & (free.pages == 0)):
                t.finish(Status.OUT_OF_PAGES)
            with m.Else():
                with m.If(is_partial):
                    t.get(rams.infos, entry.last)
                    m.d.sync += [
                        free.head.eq(rams.chain.read_data),
                        free.pages.eq(free.pages - 1),
                    ]
                t.get_link(entry.first)
                m.next = "FORK_SHARE"
        with m.State("FORK_SHARE"):
            link = rams.chain.read_data
            with m.If(left.end != t.config.page_bytes):
                t.put(rams.infos, self.copy, rams.infos.read_data)
            with m.If(self.to_share != 0):
                t.put(rams.sharers, self.at, rams.sharers.read_data + 1)
            m.d.sync += [self.at.eq(link), self.to_share.eq(self.to_share - 1)]
            with m.If(self.to_share <= 1):
                self._end_stream(m, t)
            with m.Else():
                t.get_link(link)

    def _end_stream(self, m: Module, t) -> None:
        """The child has the stream: its entry, and the answer."""
        config, left, after = t.config, t.left, t.after
        owned, slots = t.sequences.owned, config.kv.slots
        is_partial = left.end != config.page_bytes
        shares = self.to_share != 0
        m.d.comb += [
            after.first.eq(Mux(is_partial & ~shares, self.copy, left.first)),
            after.last.eq(Mux(is_partial, self.copy, left.last)),
            after.pages.eq(left.pages),
            after.bytes.eq(left.bytes),
            after.end.eq(left.end),
            after.has_tip.eq(shares),
            after.tip.eq(self.at),
            after.own.eq(self.copy),
        ]
        t.put(t.rams.entries, self.to_stream, after)
        t.finish(
            page=Mux(is_partial, left.last, 0),
            page2=Mux(is_partial, self.copy, 0),
            bytes=Mux(is_partial, left.end, 0),
            skip=config.streams // config.sequences - 1 - self.done,
        )
        m.d.sync += [
            owned[self.child].eq(owned[self.child] + left.pages),
            self.done.eq(self.done + 1),
            self.slot.eq(self.slot + 1),
            self.from_stream.eq(self.from_stream + 1),
            self.to_stream.eq(self.to_stream + 1),
        ]
        with m.If(self.slot == slots - 1):
            t.put(t.rams.tokens, self.to_vector, self.token)
            m.d.sync += [
                self.slot.eq(0),
                self.from_vector.eq(self.from_vector + 1),
                self.to_vector.eq(self.to_vector + 1),
            ]


def forks(config: CacheConfig, words) -> Forks:
    """The registers; ``words`` are the table's."""
    sequence = range(max(config.sequences, 2))
    vector = range(max(config.vectors, 2))
    stream = range(config.streams)
    children = Array(Signal(name=f"is_child_{n}", reset_less=True) for n in range(config.sequences))
    fork_active = Signal()
    fork_parent = Signal(sequence, reset_less=True)
    fork_child = Signal(sequence, reset_less=True)
    fork_token = Signal(words.token, reset_less=True)
    fork_done = Signal(range(config.streams // config.sequences + 1), reset_less=True)
    fork_slot = Signal(range(max(config.kv.slots, 2)), reset_less=True)
    from_vector = Signal(vector, reset_less=True)
    to_vector = Signal(vector, name="fork_to_vector", reset_less=True)
    from_stream = Signal(stream, reset_less=True)
    to_stream = Signal(stream, name="fork_to_stream", reset_less=True)
    copy = Signal(words.page, reset_less=True)
    share_at = Signal(words.page, reset_less=True)
    to_share = Signal(range(config.pages + 1), reset_less=True)
    return Forks(
        children, fork_active, fork_parent, fork_child, fork_token, fork_done, fork_slot,
        from_vector, to_vector, from_stream, to_stream, copy, share_at, to_share,
    )  # fmt: skip
