"""Exact rows to records of codes in the paged memory."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, nested
from golden.million.config import MillionConfig
from golden.million.format import PAGED, Status
from golden.paging.format import Kv
from golden.paging.format import Op as PagingOp
from golden.timing import Timing
from hdl.bits import after
from hdl.block import Block, Tier
from hdl.children import add
from hdl.kinds import NUMBER, index_of
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.million.layouts import (
    ENTRIES_BITS,
    EXPONENT_SHAPE,
    KEYS_BITS,
    RING_BITS,
    slot_bits,
)
from hdl.million.restorer import RESTORE_LAYOUT
from hdl.million.shapes import SMALL_CACHE, SMOLLM2_CACHE
from hdl.paging.layouts import REQUEST_LAYOUT as PAGING_REQUEST_LAYOUT
from hdl.paging.layouts import STATUS_LAYOUT as PAGING_STATUS_LAYOUT
from hdl.ports import In, Out, Payload


def row_layout(config: MillionConfig) -> Payload:
    """The place of a row: the window, and its row there."""
    return Payload(
        slot=(slot_bits(config), "window of the KV head", index_of("slots")),
        row=(RING_BITS + 1, "row of the window", index_of("rows")),
        kv=(1, "0: K, 1: V", Kv),
    )


def million_status(m: Module, name: str, status) -> Signal:
    """golden.million.format.Status of a golden.paging.format.Status."""
    found = Signal(4, name=name)
    with m.Switch(status):
        for paging, own in PAGED.items():
            with m.Case(paging):
                m.d.comb += found.eq(own)
        with m.Default():
            m.d.comb += found.eq(Status.BAD_REQUEST)
    return found


def _progress_layout() -> data.StructLayout:
    return data.StructLayout({"coded": KEYS_BITS, "place": RING_BITS, "has_k": 1})


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionEncodeControlConfig(Config):
    """The cache whose vectors are encoded."""

    cache: MillionConfig = nested(MillionConfig)

    @property
    def vectors(self) -> int:
        """(sequence, layer)."""
        return self.cache.sequences * self.cache.layers

    @property
    def vector_bits(self) -> int:
        return max(1, (self.vectors - 1).bit_length())

    @property
    def job_layout(self) -> Payload:
        return Payload(
            vector=(self.vector_bits, "(sequence, layer)", index_of("vectors")),
            sequence=(8, "number of the sequence", index_of("sequences")),
            layer=(8, "layer of the model", index_of("layers")),
            slot=(slot_bits(self.cache), "window of KV head 0", index_of("slots")),
            until=(KEYS_BITS, "tokens that have codes afterwards", NUMBER),
            clear=(1, "the sequence is new: nothing is encoded yet"),
            entries=(ENTRIES_BITS, "entries of each codebook", NUMBER),
            exponent_k=(EXPONENT_SHAPE, "log2 of the scale of K's codebooks"),
            exponent_v=(EXPONENT_SHAPE, "log2 of the scale of V's codebooks"),
            restored=(1, "one token's codes come from the host: no vector is encoded"),
            discard=(1, "with restored: they are taken and nothing is done"),
        )

    @property
    def encode_layout(self) -> Payload:
        return Payload(
            kv=(1, "0: K, 1: V", Kv),
            head=(range(max(2, self.cache.head.heads)), "KV head", index_of("heads")),
            entries=(ENTRIES_BITS, "entries of each codebook", NUMBER),
            exponent=(EXPONENT_SHAPE, "log2 of the scale of the codebooks"),
        )


class MillionEncodeControl(Block):
    """Encodes the rows of a (sequence, layer) until ``until`` tokens have codes.

    Per token, first K then V, the block requests an APPEND of the paged memory. Per KV head it
    requests a row of the window and a job of the encoder. MillionRestorer sends the codes to the
    memory, with a job ``restore`` for each APPEND. Token i lies in place i mod places of the ring.
    The block knows how far each (sequence, layer) is, K and V apart.

    A job with ``restored`` appends the codes of one token from the host instead. Each of K and V
    takes one job ``restore``: it discards the codes of a side that has some, or that follows a
    failure. With ``discard`` it discards both.

    ``done`` comes once per job, with the status of the last APPEND. A job that fails leaves the
    rows that were not encoded to the next job: nothing is encoded twice. A job with ``clear``
    begins a new sequence and encodes nothing.

    A token takes the encoder's time for 2 * heads vectors, and twice the answer of the memory. An
    APPEND takes heads + 2 cycles where no port stalls.
    No combinational path leads from an input to an output.
    Golden: golden.million.encode.Encoding.

    A failure that golden.million.format.Status names is the status of the job. Another one is
    BAD_REQUEST. The next job tries that vector again: after a failure of V it begins with V of this
    token. A failure of a restored token ends nothing, because the other side still takes its job
    ``restore``. The ring has a place for the one token that a configuration without recent tokens
    encodes at once. Memory keeps the progress, so each vector needs ``clear`` after a reset. A
    restored APPEND takes 3 cycles, and a discarded side 2.
    """

    tier = Tier.PART
    golden = "golden.million.encode:Encoding"
    default = MillionEncodeControlConfig()
    configs: ClassVar = {
        "smollm2": MillionEncodeControlConfig(cache=SMOLLM2_CACHE),
        "small": MillionEncodeControlConfig(cache=SMALL_CACHE),
    }

    def __init__(self, config: MillionEncodeControlConfig):
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "What to encode."),
                "fetch": Out(stream.Signature(row_layout(config.cache)), "Rows to encode."),
                "encode": Out(stream.Signature(config.encode_layout), "How to encode them."),
                "append": Out(stream.Signature(PAGING_REQUEST_LAYOUT), "APPENDs of the codes."),
                "restore": Out(
                    stream.Signature(RESTORE_LAYOUT), "Where the codes come from: MillionRestorer."
                ),
                "ended": In(stream.Signature(PAGING_STATUS_LAYOUT), "Statuses of the APPENDs."),
                "done": Out(
                    stream.Signature(Payload(status=(4, "golden.million.format.Status", Status))),
                    "How the job ended.",
                ),
                "idle": Out(1, "No job is under way."),
            },
        )

    @property
    def timing(self) -> Timing:
        """A token, K and V: an APPEND, a cycle per head, and the answer."""
        return Timing(
            latency=2,
            interval=Fraction(2 * (self.config.cache.head.heads + 2)),
            start="job",
            end="append",
            unit="token",
            delays=(
                ("from the last status of a job to done", 3),
                ("from job to done with clear", 2),
                ("from job to done with discard", 6),
                ("per side of a restored token", 3),
                ("per side that is discarded", 2),
            ),
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        cache = config.cache
        shape = MemoryConfig(depth=config.vectors, width=_progress_layout().size)
        memory = add(m, "progress", Memory1R1W(shape))
        job = Signal(config.job_layout, reset_less=True)
        now = Signal(_progress_layout(), reset_less=True)
        head = Signal(range(max(2, cache.head.heads)))
        status = Signal(4, reset_less=True)
        side = Signal(2, reset_less=True)  # of a restored token: K, V, both are done
        appends = Signal()
        ends = Signal()
        m.d.comb += [
            appends.eq(~job.discard & (~job.restored | (side == now.has_k))),
            ends.eq(Mux(job.restored, side == 2, now.coded >= job.until)),
            self.restore.p.restored.eq(job.restored),
            self.restore.p.discard.eq(~appends),
            memory.read_addr.eq(self.job.p.vector),
            memory.write_addr.eq(job.vector),
            memory.write_data.eq(now),
            self.append.p.op.eq(PagingOp.APPEND),
            self.append.p.tag.eq(now.has_k),
            self.append.p.sequence.eq(job.sequence),
            self.append.p.layer.eq(job.layer),
            self.append.p.kv.eq(now.has_k),
            self.append.p.token.eq(now.coded),
            self.fetch.p.slot.eq(job.slot + head),
            self.fetch.p.row.eq(now.place + cache.window.sinks),
            self.fetch.p.kv.eq(now.has_k),
            self.encode.p.kv.eq(now.has_k),
            self.encode.p.head.eq(head),
            self.encode.p.entries.eq(job.entries),
            self.encode.p.exponent.eq(Mux(now.has_k, job.exponent_v, job.exponent_k)),
            self.done.p.status.eq(status),
        ]
        found = million_status(m, "found", self.ended.p.status)
        with m.FSM() as fsm:
            m.d.comb += self.idle.eq(fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                m.d.comb += [self.job.ready.eq(1), memory.read_en.eq(self.job.valid)]
                m.d.sync += [job.eq(self.job.p), status.eq(Status.OK), now.eq(0), side.eq(0)]
                with m.If(self.job.valid):
                    m.next = "LOAD"
                    with m.If(self.job.p.discard):
                        m.next = "TOKEN"
                    with m.Elif(self.job.p.clear):
                        m.next = "KEEP"
            with m.State("LOAD"):
                m.d.sync += now.eq(memory.read_data)
                m.next = "TOKEN"
            with m.State("TOKEN"):
                m.d.comb += self.append.valid.eq(appends & ~ends)
                with m.If(ends):
                    m.next = "KEEP"
                    with m.If(job.discard):  # its vector may be none
                        m.next = "DONE"
                with m.Elif(self.append.ready | ~appends):
                    m.next = "HEADS"
            self._elaborate_heads(m, job, head, appends, side)
            with m.State("ANSWER"):
                m.d.comb += self.ended.ready.eq(1)
                m.d.sync += status.eq(found)
                with m.If(self.ended.valid):
                    m.next = "TOKEN"
                    with m.If(found == Status.OK):
                        m.d.sync += now.has_k.eq(~now.has_k)
                        with m.If(now.has_k):
                            m.d.sync += [
                                now.coded.eq(now.coded + 1),
                                now.place.eq(after(now.place, cache.window.places)),
                            ]
                    with m.Elif(~job.restored):
                        m.next = "KEEP"
            with m.State("KEEP"):
                m.d.comb += memory.write_en.eq(1)
                m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.done.valid.eq(1)
                with m.If(self.done.ready):
                    m.next = "IDLE"
        return m

    def _elaborate_heads(self, m: Module, job, head, appends, side) -> None:
        """Rows and jobs of the encoder, head by head; the job ``restore`` at the same time."""
        fetched = Signal()
        encoded = Signal()
        sent = Signal()
        is_last = Signal()
        m.d.comb += is_last.eq(job.restored | (head == self.config.cache.head.heads - 1))
        with m.State("HEADS"):
            m.d.comb += [
                self.fetch.valid.eq(~fetched & ~job.restored),
                self.encode.valid.eq(~encoded & ~job.restored),
                self.restore.valid.eq(~sent),
            ]
            for each, flag in ((self.fetch, fetched), (self.encode, encoded)):
                with m.If(each.ready):
                    m.d.sync += flag.eq(1)
            with m.If(self.restore.ready):
                m.d.sync += sent.eq(1)
            is_taken = (fetched | self.fetch.ready) & (encoded | self.encode.ready) | job.restored
            with m.If(is_taken & (~is_last | sent | self.restore.ready)):
                m.d.sync += [fetched.eq(0), encoded.eq(0), head.eq(Mux(is_last, 0, head + 1))]
                with m.If(is_last):
                    m.d.sync += [sent.eq(0), side.eq(side + 1)]
                    m.next = "ANSWER"
                    with m.If(~appends):
                        m.next = "TOKEN"
