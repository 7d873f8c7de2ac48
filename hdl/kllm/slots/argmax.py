"""The engine that finds the largest element of each token."""

import dataclasses

from amaranth import Cat, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, nested
from golden.fp16.format import FP16
from golden.kllm.config import VectorShape
from golden.kllm.isa import NOBODY, ROW_ELEMENTS, CommandStatus, Opcode
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.children import add
from hdl.kinds import BITS
from hdl.kllm.engine import command_stream, operand, row_read, status_stream
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import Out, Payload

ID_BITS = 25  # of an operand of 24 bits and a position

# The best of some elements: ``key`` orders them as numbers.
_Best = data.StructLayout({"valid": 1, "key": signed(FP16.bits), "id": ID_BITS})


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmArgmaxConfig(Config):
    """Size of the vector memory, and the tokens that have a best element."""

    vectors: VectorShape = nested(VectorShape, "the vector memory")
    places: int = bounded(8, 1, 64, "tokens of a command")


class KllmArgmax(Block):
    """ARGMAX of golden.kllm.isa: the best element of each token, kept from command to command.

    Elements are compared as numbers, and NaN is left out. Of equal ones the lowest id is best. A
    row of 16 elements per cycle, from token to token without a gap, then 2 cycles per word of
    ``o``. RANGE: length or tokens is 0, tokens is above ``places``, or a row leaves the vector
    memory. Nothing changes then. NONFINITE: an element is NaN. After reset no token has a best one.
    Golden: golden.kllm.argmax.

    The first row is requested 2 cycles after its command. A row passes two levels of comparisons,
    two more, and the comparison with the best before: a cycle each. The block always takes the
    rows that it has requested. The status comes 3 cycles after the last row, or after the last
    word of ``o`` is taken.
    """

    tier = Tier.PART
    golden = "golden.kllm.argmax:fold"
    configs = FieldOf("kllm_readback", "argmax", ("batch",))

    def __init__(self, config: KllmArgmaxConfig):
        super().__init__(
            config,
            {
                "command": command_stream(),
                "status": status_stream(),
                **row_read("row", "rows of the vector memory"),
                "o": Out(
                    stream.Signature(Payload(data=(32, "an id; all ones: there is none", BITS))),
                    "Ids of the tokens' best elements, for the host.",
                ),
            },
        )

    timing = Timing(
        latency=2,
        start="command",
        end="row_request",
        unit="row",
        delays=(("from the last row to status, or to o with 1 more", 3), ("per word of o", 2)),
    )

    def elaborate(self, platform) -> Module:
        m = Module()
        o = {each: operand(self.command.p, Opcode.ARGMAX, each) for each in _OPERANDS}
        faults = Signal(len(CommandStatus))
        rows = Signal(13)
        end = Signal(26)  # of the last token's rows
        begin = Signal()
        done = Signal()
        place = Signal(8)  # whose id is given
        is_given = Signal()
        held = _held(m, self.config)
        m.d.comb += [
            self.status.p.status.eq(faults),
            rows.eq((o["length"] + (ROW_ELEMENTS - 1)) // ROW_ELEMENTS),
            self.o.p.data.eq(Mux(held.has.bit_select(place, 1), held.read.id, NOBODY)),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    faults.eq(0),
                    place.eq(0),
                    end.eq(o["src"] + o["stride"] * (o["tokens"] - 1)[:8] + rows),
                ]
                with m.If(self.command.valid):
                    m.next = "CHECK"
            with m.State("CHECK"):
                is_none = (o["length"] == 0) | (o["tokens"] == 0)
                beyond = (o["tokens"] > self.config.places) | (end > self.config.vectors.rows)
                m.next = "STATUS"
                with m.If(self.command.p.opcode != Opcode.ARGMAX):
                    m.d.sync += faults.eq(int(CommandStatus.MALFORMED))
                with m.Elif(is_none | beyond):
                    m.d.sync += faults.eq(int(CommandStatus.RANGE))
                with m.Else():
                    m.d.comb += begin.eq(1)
                    m.next = "ROWS"
            with m.State("ROWS"):
                with m.If(done):
                    m.next = "STATUS"
                    with m.If(o["end"]):
                        m.next = "LOOK"
            with m.State("LOOK"):
                m.d.comb += is_given.eq(1)
                m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.d.sync += place.eq(place + 1)
                    m.next = "LOOK"
                    with m.If(place == o["tokens"] - 1):
                        m.next = "STATUS"
            with m.State("STATUS"):
                m.d.comb += [self.status.valid.eq(1), self.command.ready.eq(self.status.ready)]
                with m.If(self.status.ready):
                    m.next = "IDLE"
        _ask(m, self, o, rows, begin)
        row = _first_levels(m, self, o, rows, begin)
        m.d.comb += [
            held.look.eq(is_given | (row.valid & row.is_first)),
            held.place.eq(Mux(is_given, place, row.token)),
        ]
        _last_levels(m, o, row, held, faults, done)
        return m


_OPERANDS = ("src", "stride", "tokens", "length", "first", "begin", "end")


@dataclasses.dataclass(frozen=True)
class _Held:
    """The best of each token, in a RAM."""

    has: Signal  # a bit for each token that has one
    look: Signal  # ``read`` is that of token ``place`` from the next cycle on
    place: Signal
    read: data.View
    ram: Memory1R1W


@dataclasses.dataclass(frozen=True)
class _Row:
    """A row of a token, its elements reduced to four."""

    valid: Signal
    best: tuple[data.View, ...]
    is_nan: Signal
    token: Signal
    number: Signal
    is_first: Signal
    is_final: Signal


def _held(m: Module, config: KllmArgmaxConfig) -> _Held:
    stored = data.StructLayout({"key": signed(FP16.bits), "id": ID_BITS})
    ram = add(m, "best_ram", Memory1R1W(MemoryConfig(depth=config.places, width=stored.size)))
    look, place = Signal(name="look"), Signal(8, name="look_at")
    m.d.comb += [ram.read_en.eq(look), ram.read_addr.eq(place)]
    has = Signal(config.places, name="has_best")
    return _Held(has, look, place, stored(ram.read_data), ram)


def _walk(m: Module, name: str, moves, o, rows, begin) -> tuple[Signal, Signal, Value]:
    """(token, row, whether it is the token's final one), a row further when ``moves``."""
    token = Signal(8, name=f"{name}_token")
    row = Signal(len(rows), name=f"{name}_row")
    is_final = Signal(name=f"{name}_final")
    m.d.comb += is_final.eq(row == rows - 1)
    with m.If(moves):
        m.d.sync += row.eq(row + 1)
        with m.If(is_final):
            m.d.sync += [row.eq(0), token.eq(token + 1)]
    with m.If(begin):
        m.d.sync += [row.eq(0), token.eq(0)]
    return token, row, is_final


def _ask(m: Module, block: KllmArgmax, o, rows, begin) -> None:
    """Requests the rows of all tokens, one after the other."""
    request = block.row_request
    asks = Signal()
    taken = Signal()
    base = Signal(len(o["src"]))  # the token's first row
    token, row, is_final = _walk(m, "ask", taken, o, rows, begin)
    m.d.comb += [
        request.valid.eq(asks),
        request.p.row.eq(base + row),
        taken.eq(asks & request.ready),
    ]
    with m.If(taken & is_final):
        m.d.sync += [base.eq(base + o["stride"]), asks.eq(token != o["tokens"] - 1)]
    with m.If(begin):
        m.d.sync += [asks.eq(1), base.eq(o["src"])]


def _better(m: Module, name: str, first, second):
    """The better one of two; the first of equal ones."""
    best = Signal(first.shape(), name=name)
    is_second = second.valid & (~first.valid | (second.key > first.key))
    m.d.comb += best.eq(Mux(is_second, second, first))
    return best


def _rounds(m: Module, name: str, some: list, count: int) -> list:
    """``some``, each pair reduced to its better one, ``count`` times."""
    for n in range(count):
        some = [
            _better(m, f"{name}_{n}_{k}", *some[2 * k : 2 * k + 2]) for k in range(len(some) // 2)
        ]
    return some


def _first_levels(m: Module, block: KllmArgmax, o, rows, begin) -> _Row:
    """Takes rows; of each four elements the best one, in a register."""
    given = block.row_row
    token, number, is_final = _walk(m, "row", given.valid, o, rows, begin)
    left = Signal(len(o["length"]) + 1)  # elements from this row on
    m.d.comb += [given.ready.eq(1), left.eq(o["length"] - (number << 4))]
    layout = data.StructLayout(
        {"valid": 1, "key": signed(FP16.bits), "place": range(ROW_ELEMENTS)}
    )
    elements, nan = [], []
    for n, word in enumerate(given.p.word):
        magnitude = word[: FP16.bits - 1]
        is_here = Signal(name=f"is_here_{n}")
        is_nan = Signal(name=f"is_nan_{n}")
        element = Signal(layout, name=f"element_{n}")
        m.d.comb += [
            is_here.eq(n < left),
            is_nan.eq(magnitude > FP16.infinity),
            element.valid.eq(is_here & ~is_nan),
            element.key.eq(Mux(word[-1], -magnitude, magnitude)),
            element.place.eq(n),
        ]
        elements.append(element)
        nan.append(is_here & is_nan)
    four = _rounds(m, "of_row", elements, 2)
    row = _Row(
        valid=Signal(name="row_valid"),
        best=tuple(Signal(layout, name=f"best_{n}", reset_less=True) for n in range(len(four))),
        is_nan=Signal(name="row_is_nan", reset_less=True),
        token=Signal(8, name="token_of_row", reset_less=True),
        number=Signal(len(number), name="number_of_row", reset_less=True),
        is_first=Signal(name="row_is_first", reset_less=True),
        is_final=Signal(name="row_is_final", reset_less=True),
    )
    m.d.sync += [
        row.valid.eq(given.valid),
        *(kept.eq(found) for kept, found in zip(row.best, four, strict=True)),
        row.is_nan.eq(Cat(nan).any()),
        row.token.eq(token),
        row.number.eq(number),
        row.is_first.eq(number == 0),
        row.is_final.eq(is_final),
    ]
    return row


def _last_levels(m: Module, o, row: _Row, held: _Held, faults, done) -> None:
    """The best of a row, in a register, against that of the token before it."""
    (of_row,) = _rounds(m, "of_four", list(row.best), 2)
    valid, is_nan, is_first, is_final = (
        Signal(name=name) for name in ("fold", "fold_is_nan", "fold_is_first", "fold_is_final")
    )
    token = Signal(8, name="fold_token", reset_less=True)
    found = Signal(_Best, reset_less=True)  # of the row
    running = Signal(_Best, reset_less=True)  # of the token's rows before it
    m.d.sync += [
        valid.eq(row.valid),
        is_nan.eq(row.is_nan),
        is_first.eq(row.is_first),
        is_final.eq(row.is_final),
        token.eq(row.token),
        found.valid.eq(of_row.valid),
        found.key.eq(of_row.key),
        found.id.eq(o["first"] + (row.number << 4) + of_row.place),
    ]
    before = Signal(_Best)
    best = Signal(_Best)
    wins = Signal()
    lower = (found.key == before.key) & (found.id < before.id)
    m.d.comb += [
        before.eq(running),
        wins.eq(found.valid & (~before.valid | (found.key > before.key) | lower)),
        best.eq(Mux(wins, found, before)),
        held.ram.write_en.eq(valid & is_final),
        held.ram.write_addr.eq(token),
        held.ram.write_data.eq(Cat(best.key, best.id)),
        done.eq(valid & is_final & (token == o["tokens"] - 1)),
    ]
    with m.If(is_first):
        m.d.comb += [
            before.valid.eq(held.has.bit_select(token, 1) & ~o["begin"]),
            before.key.eq(held.read.key),
            before.id.eq(held.read.id),
        ]
    with m.If(valid):
        m.d.sync += running.eq(best)
        with m.If(is_nan):
            m.d.sync += faults.eq(int(CommandStatus.NONFINITE))
        with m.If(is_final):
            m.d.sync += held.has.bit_select(token, 1).eq(best.valid)
