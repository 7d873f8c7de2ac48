"""The engine that fills rows of the vector memory with entries of a table in data memory."""

import dataclasses
import enum

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream

from golden.config import Config, bounded, nested
from golden.fp16.format import FP16
from golden.kllm.config import VectorShape
from golden.kllm.isa import ROW_BYTES, CommandStatus, Index, Opcode
from golden.kllm.timing import load_at
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.kinds import NUMBER, index_of
from hdl.kllm.batch import entry_layout
from hdl.kllm.engine import ROW, command_stream, operand, row_write_layout, status_stream
from hdl.kllm.slots.choices import choice_reader
from hdl.ports import In, Out, Payload
from hdl.stream.queue import queue

_AHEAD = 4  # tokens whose reads are requested before their rows are written


def place_reader() -> dict:
    """A reader of the batch: ``entry`` is that of place ``index``, in the same cycle."""
    return {
        "index": Out(8, "Place of the batch that is looked at.", index_of("places")),
        "entry": In(entry_layout, "That place."),
    }


def read_layout(address_bits: int) -> Payload:
    """A command of the read port of the data memory: byte address and number of rows."""
    return Payload(
        address=(address_bits, "byte address of the first row", index_of("bytes")),
        words=(17, "rows wanted", NUMBER),
    )


data_layout = Payload(
    data=(ROW.size, "one row, element 0 in the low bits", FP16),
    error=(1, "the response was SLVERR or DECERR"),
    last=(1, "the command's final row"),
)


class _Rows(enum.IntEnum):
    """The rows that a token gets."""

    ENTRY = 0  # those of its entry
    ZERO = 1
    BEYOND = 2  # zeros, and RANGE
    NAN = 3
    WORD = 4  # the word of a choice, in all elements


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmLoadAtConfig(Config):
    """Sizes of the two memories and of the batch."""

    vectors: VectorShape = nested(VectorShape, "the vector memory")
    address_bits: int = bounded(40, 32, 64, "bits of a byte address of the data memory")
    places: int = bounded(8, 1, 64, "places of the batch")
    experts: int = bounded(0, 0, 16, "most choices of a place; 0: LOAD_AT knows none")

    @property
    def rows_layout(self) -> Payload:
        """The rows that a token gets."""
        if not self.experts:
            return Payload(kind=(2, "_Rows"))
        return Payload(kind=(3, "_Rows"), word=(FP16.bits, "of WORD", FP16))


class KllmLoadAt(Block):
    """LOAD_AT of golden.kllm.isa: rows of a token are an entry of a table, by its id or position.

    Token t of a command is that of place ``place + t`` of the batch: ``entry`` depends
    combinationally on ``index``. With ``experts`` the index may be the id of ``choice``, which is
    that of ``index`` and ``rank`` a cycle later. It needs no token at the place. Or the rows are
    the word of ``choice``, and nothing is read. Entry n begins at row ``address + n * rows`` of the
    data memory. Each token has its rows in turn, and the status has the faults of all of them:

        token                                        its rows          fault
        none at the place                            zeros
        its index is ``limit`` or more, or there     zeros             RANGE
        is no choice of the rank
        some row of its entry has an error, or the   NaN               BUS_ERROR
        entry ends above byte ``2**address_bits``

    Of the first two nothing is read, and neither is what ends above the memory. RANGE: rows or
    tokens is 0, a place is above ``places``, or a destination leaves the vector memory. Without
    ``experts`` a choice is RANGE too, and so is a place or rank that is not 0. Nothing is read
    or written then. The block requests the entries of the next tokens while rows of a token are
    written: one row per cycle. Golden: golden.kllm.machine.

    The first ``read`` comes 4 cycles after its command, 5 with ``experts``. A row is written in the
    cycle in which its data comes. After an error the block accepts all rows of the entry, then
    writes the token's rows again. The status comes one cycle after the last row. No combinational
    path leads from the read data to the read command.
    """

    tier = Tier.PART
    golden = "golden.kllm.machine:Machine"
    configs = FieldOf("kllm_load", "at", ("batch", "experts"))

    def __init__(self, config: KllmLoadAtConfig):
        super().__init__(
            config,
            {
                "command": command_stream(),
                "status": status_stream(),
                **place_reader(),
                **(choice_reader() if config.experts else {}),
                "read": Out(
                    stream.Signature(read_layout(config.address_bits)),
                    "Rows wanted of the data memory: byte address and number.",
                ),
                "data": In(stream.Signature(data_layout), "Those rows, in order."),
                "write": Out(stream.Signature(row_write_layout), "Rows of the destination."),
            },
        )

    @property
    def timing(self) -> Timing:
        """A token whose entry has fewer rows than 3 takes 3 cycles, and with ``experts`` 4."""
        return load_at(bool(self.config.experts))

    def elaborate(self, platform) -> Module:
        m = Module()
        o = {each: operand(self.command.p, Opcode.LOAD_AT, each) for each in _OPERANDS}
        faults = Signal(len(CommandStatus))
        begin = Signal()
        done = Signal()
        end = Signal(26)  # of the last token's rows
        m.d.comb += self.status.p.status.eq(faults)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    faults.eq(0),
                    end.eq(o["dst"] + o["stride"] * (o["tokens"] - 1)[:8] + o["rows"]),
                ]
                with m.If(self.command.valid):
                    m.next = "CHECK"
            with m.State("CHECK"):
                is_none = (o["rows"] == 0) | (o["tokens"] == 0)
                beyond = o["place"] + o["tokens"] > self.config.places
                if not self.config.experts:
                    beyond = beyond | o["index"][1] | (o["place"] != 0) | (o["rank"] != 0)
                with m.If(self.command.p.opcode != Opcode.LOAD_AT):
                    m.d.sync += faults.eq(int(CommandStatus.MALFORMED))
                    m.next = "STATUS"
                with m.Elif(is_none | beyond | (end > self.config.vectors.rows)):
                    m.d.sync += faults.eq(int(CommandStatus.RANGE))
                    m.next = "STATUS"
                with m.Else():
                    m.d.comb += begin.eq(1)
                    m.next = "TOKENS"
            with m.State("TOKENS"):
                with m.If(done):
                    m.next = "STATUS"
            with m.State("STATUS"):
                m.d.comb += [self.status.valid.eq(1), self.command.ready.eq(self.status.ready)]
                with m.If(self.status.ready):
                    m.next = "IDLE"

        kinds = queue(m, "kinds", self.config.rows_layout, _AHEAD)
        _request(m, self, o, begin, kinds.i)
        _write(m, self, o, begin, kinds.o, faults, done)
        return m


_OPERANDS = ("address", "rows", "index", "limit", "dst", "stride", "tokens", "place", "rank")


def _request(m: Module, block: KllmLoadAt, o, begin, kinds) -> None:
    """Looks at the places one after the other, requests their entries, and says what they get."""
    entry, read, has_experts = block.entry, block.read, bool(block.config.experts)
    place = Signal(8)
    token = Signal(8) if has_experts else place  # of the command
    number = Signal(len(o["limit"]))  # of the entry
    first = Signal(len(number) + len(o["rows"]))  # its first row in the table
    has_token = Signal()
    is_beyond = Signal()
    index = Signal(len(entry.token))
    row = Signal(len(first) + 1)
    leaves = Signal()  # Operands cannot reach the end of a larger memory.
    memory_rows = (1 << block.config.address_bits) // ROW_BYTES
    if memory_rows < (1 << len(row)) + (1 << len(o["rows"])):
        m.d.comb += leaves.eq(row + o["rows"] > memory_rows)
    wants = Signal()
    found = Signal()  # the place has an index
    beyond = Signal()  # which has no entry
    m.d.comb += [
        block.index.eq(place),
        row.eq(o["address"] + first),
        read.p.address.eq(Cat(Const(0, (ROW_BYTES - 1).bit_length()), row)),
        read.p.words.eq(o["rows"]),
    ]
    by_batch = Mux(o["index"] == Index.POSITION, entry.position, entry.token)
    inside = Mux(leaves, _Rows.NAN, _Rows.ENTRY)
    if has_experts:
        is_choice = o["index"][1]
        is_word = Signal()
        word = Signal(FP16.bits, reset_less=True)
        m.d.comb += [
            block.rank.eq(o["rank"]),
            index.eq(Mux(is_choice, block.choice.id, by_batch)),
            found.eq(Mux(is_choice, 1, entry.valid)),
            beyond.eq((index >= o["limit"]) | (is_choice & ~block.choice.valid)),
            is_word.eq(o["index"] == Index.CHOICE_VALUE),
            wants.eq(has_token & ~is_beyond & ~leaves & ~is_word),
            kinds.p.word.eq(word),
        ]
        inside = Mux(is_word, _Rows.WORD, inside)
    else:
        m.d.comb += [
            index.eq(by_batch),
            found.eq(entry.valid),
            beyond.eq(index >= o["limit"]),
            wants.eq(has_token & ~is_beyond & ~leaves),
        ]
    m.d.comb += kinds.p.kind.eq(
        Mux(has_token, Mux(is_beyond, _Rows.BEYOND, inside), _Rows.ZERO)
    )
    first_state = "CHOICE" if has_experts else "LOOK"
    with m.FSM(name="request"):
        with m.State("REST"):
            m.d.sync += token.eq(0)
            if has_experts:
                m.d.sync += place.eq(o["place"])
            with m.If(begin):
                m.next = first_state
        if has_experts:
            with m.State("CHOICE"):  # comes in the next cycle
                m.next = "LOOK"
        with m.State("LOOK"):
            m.d.sync += [has_token.eq(found), is_beyond.eq(beyond), number.eq(index)]
            if has_experts:
                m.d.sync += word.eq(block.choice.word)
            m.next = "SCALE"
        with m.State("SCALE"):
            m.d.sync += first.eq(number * o["rows"])
            m.next = "ASK"
        with m.State("ASK"):
            m.d.comb += [
                read.valid.eq(wants & kinds.ready),
                kinds.valid.eq(~wants | read.ready),
            ]
            with m.If(kinds.valid & kinds.ready):
                m.d.sync += token.eq(token + 1)
                if has_experts:
                    m.d.sync += place.eq(place + 1)
                m.next = first_state
                with m.If(token == o["tokens"] - 1):
                    m.next = "REST"


def _write(m: Module, block: KllmLoadAt, o, begin, kinds, faults, done) -> None:
    """Writes the rows of each token; ``done`` in the cycle of the last one."""
    write, given = block.write, block.data
    token = Signal(8)
    base = Signal(len(o["dst"]))  # the token's first row
    row = Signal(len(o["rows"]))
    error = Signal()  # of a row of the entry before this one
    again = Signal()  # the entry had an error: NaN in its place
    is_entry = Signal()
    is_final = Signal()
    failed = Signal()
    ends = Signal()  # the token has its rows
    m.d.comb += [
        is_entry.eq((kinds.p.kind == _Rows.ENTRY) & ~again),
        is_final.eq(row == o["rows"] - 1),
        failed.eq(error | given.p.error),
        write.valid.eq(kinds.valid & (given.valid | ~is_entry)),
        write.p.row.eq(base + row),
        given.ready.eq(kinds.valid & is_entry & write.ready),
        kinds.ready.eq(ends),
        done.eq(ends & (token == o["tokens"] - 1)),
    ]
    with m.If(is_entry):
        m.d.comb += write.p.word.as_value().eq(given.p.data)
    with m.Elif(again | (kinds.p.kind == _Rows.NAN)):
        m.d.comb += [word.eq(FP16.canonical_nan) for word in write.p.word]
    if block.config.experts:
        with m.Elif(kinds.p.kind == _Rows.WORD):
            m.d.comb += [word.eq(kinds.p.word) for word in write.p.word]
    with m.If(write.valid & write.ready):
        m.d.sync += [
            row.eq(Mux(is_final, 0, row + 1)),
            error.eq(is_entry & failed & ~is_final),
            again.eq(Mux(is_entry, failed & is_final, again & ~is_final)),
        ]
        m.d.comb += ends.eq(is_final & ~(is_entry & failed))
    with m.If(ends):
        m.d.sync += [token.eq(token + 1), base.eq(base + o["stride"])]
        with m.If(again | (kinds.p.kind == _Rows.NAN)):
            m.d.sync += faults.eq(faults | int(CommandStatus.BUS_ERROR))
        with m.If(kinds.p.kind == _Rows.BEYOND):
            m.d.sync += faults.eq(faults | int(CommandStatus.RANGE))
    with m.If(begin):
        m.d.sync += [token.eq(0), base.eq(o["dst"])]
