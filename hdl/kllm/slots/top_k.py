"""The engine that finds the largest elements of each token, and chooses one of them."""

import dataclasses
from typing import ClassVar

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, nested
from golden.fp16.format import FP16
from golden.kllm.config import VectorShape
from golden.kllm.format import ID_BITS, KEY_ZERO
from golden.kllm.isa import NOBODY, ROW_ELEMENTS, CommandStatus, Opcode
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, Tier
from hdl.children import add
from hdl.kinds import BITS
from hdl.kllm.batch import chooser
from hdl.kllm.engine import command_stream, operand, row_read, status_stream
from hdl.kllm.slots.choices import choices_out
from hdl.kllm.slots.draw import KllmDraw, KllmDrawConfig, rank_layout
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import Out, Payload

_OPERANDS = ("src", "stride", "tokens", "length", "first", "place", "begin", "end", "route")
_MOST = (1 << rank_layout.size) - 1  # better than every element


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmTopKConfig(Config):
    """Size of the vector memory, the tokens that have best elements, and how many of them."""

    vectors: VectorShape = nested(VectorShape, "the vector memory")
    places: int = bounded(8, 1, 64, "places of the batch")
    top: int = bounded(64, 1, 64, "most elements of which one is drawn; 1: the largest is taken")
    experts: int = bounded(0, 0, 16, "most elements that stay as choices; 0: no choices")

    @property
    def size(self) -> int:
        """Elements of a list."""
        return max(self.top, self.experts)

    @property
    def draw(self) -> KllmDrawConfig:
        return KllmDrawConfig(top=max(self.top, 2))

    @property
    def number_bits(self) -> int:
        """Bits of the number of an element in its list."""
        return (self.size - 1).bit_length()


class KllmTopK(Block):
    """TOP_K of golden.kllm.isa: the best elements of each token, kept from command to command.

    Elements are compared as numbers, and NaN is left out. Of equal ones the lower id is better.
    Place ``chooses`` has ``choice.k`` best elements, and one without ``top`` has a single one. At
    ``end`` ``o`` is the id of one of them: the best, or where k is above 1 one that ``kllm_draw``
    draws. With ``experts``, a command with ``route`` keeps so many elements of each place. At
    ``end`` these are ``chosen``, the best one last, and ``o`` has none. RANGE: length or tokens is
    0, a place is above ``places``, a row leaves the vector memory, or route is above ``experts``.
    Nothing changes then. NONFINITE: an element is NaN. After reset no token has a best one. Golden:
    golden.kllm.top_k.

    One list of ``size`` elements is in registers, the best first, and the lists of all places are
    in a RAM. A token's list comes into the registers before its rows, an element per cycle, and
    goes back after them. Of a row the elements count that are above the worst of the list. Its best
    one enters the list first. Where k is above 1 the others follow in their order, one per cycle,
    and the next rows wait. Otherwise each row takes a cycle.

    The first row is requested 2 cycles after its command. A row without such elements takes two
    levels of comparisons and two more, a cycle each. The delays are those of a list of k elements.
    n of them, or 1 if there are none, come from the command before, and 2 more cycles pass then
    where k is above 1.
    """

    tier = Tier.PART
    golden = "golden.kllm.top_k:fold"
    default = KllmTopKConfig()
    configs: ClassVar = {
        "default": KllmTopKConfig(),
        "greedy": KllmTopKConfig(top=1),
        "small": KllmTopKConfig(vectors=VectorShape(rows=256), places=3, top=6),
        "experts": KllmTopKConfig(vectors=VectorShape(rows=256), places=4, top=3, experts=5),
    }

    def __init__(self, config: KllmTopKConfig):
        super().__init__(
            config,
            {
                "command": command_stream(),
                "status": status_stream(),
                **row_read("row", "rows of the vector memory"),
                **(chooser() if config.top > 1 else {}),
                **(choices_out() if config.experts else {}),
                "o": Out(
                    stream.Signature(Payload(data=(32, "an id; all ones: there is none", BITS))),
                    "An id of each token, for the host.",
                ),
            },
        )

    timing = Timing(
        latency=2,
        start="command",
        end="row_request",
        unit="row",
        delays=(
            ("from the last row to status or o, and k more", 4),
            ("from o to status", 1),
            ("from the last row of a token to the next one's, and k and n more", 3),
        ),
    )

    def elaborate(self, platform) -> Module:
        m = Module()
        o = {each: operand(self.command.p, Opcode.TOP_K, each) for each in _OPERANDS}
        faults = Signal(len(CommandStatus))
        rows = Signal(13)
        end = Signal(26)  # of the last token's rows
        begin = Signal()
        token = Signal(8)
        place = Signal(9)
        held = _held(m, self.config)
        m.d.comb += [
            self.status.p.status.eq(faults),
            rows.eq((o["length"] + (ROW_ELEMENTS - 1)) // ROW_ELEMENTS),
            place.eq(o["place"] + token),
        ]
        k = Const(1, 1)
        if self.config.top > 1:
            k = self.choice.k
            m.d.comb += self.chooses.eq(place)
        routes = Const(0, 1)
        beyond_experts = o["route"] != 0
        if self.config.experts:
            routes = o["route"] != 0
            beyond_experts = o["route"] > self.config.experts
            k = Mux(routes, o["route"][: self.config.experts.bit_length()], k)
        work = _Work(o, token, place[:8], k, held, _Elements(m, self.config.size), routes)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    faults.eq(0),
                    token.eq(0),
                    end.eq(o["src"] + o["stride"] * (o["tokens"] - 1)[:8] + rows),
                ]
                with m.If(self.command.valid):
                    m.next = "CHECK"
            with m.State("CHECK"):
                is_none = (o["length"] == 0) | (o["tokens"] == 0)
                beyond = o["place"] + o["tokens"] > self.config.places
                m.next = "STATUS"
                with m.If(self.command.p.opcode != Opcode.TOP_K):
                    m.d.sync += faults.eq(int(CommandStatus.MALFORMED))
                with m.Elif(is_none | beyond | beyond_experts | (end > self.config.vectors.rows)):
                    m.d.sync += faults.eq(int(CommandStatus.RANGE))
                with m.Else():
                    m.d.comb += begin.eq(1)
                    m.next = "LIST"
            _list_states(m, self, work)
            with m.State("STATUS"):
                m.d.comb += [self.status.valid.eq(1), self.command.ready.eq(self.status.ready)]
                with m.If(self.status.ready):
                    m.next = "IDLE"
        _ask(m, self, o, rows, begin)
        _rows(m, self, work, rows, begin, faults)
        return m


@dataclasses.dataclass(frozen=True)
class _Held:
    """The lists of all places, in a RAM, and how many elements each has."""

    counts: list[Signal]
    ram: Memory1R1W


def _held(m: Module, config: KllmTopKConfig) -> _Held:
    depth = config.places << config.number_bits
    ram = add(m, "lists", Memory1R1W(MemoryConfig(depth=depth, width=rank_layout.size)))
    counts = [Signal(range(config.size + 1), name=f"count_{n}") for n in range(config.places)]
    return _Held(counts, ram)


class _Elements:
    """The list of a token, the best first: a new element moves those after it.

    The first ones, which a token with fewer than ``top`` does not use, are above every element.
    """

    def __init__(self, m: Module, top: int) -> None:
        self.list = [Signal(rank_layout, name=f"element_{n}", reset_less=True) for n in range(top)]
        self.new = Signal(rank_layout, name="new_element", reset_less=True)
        self.clears, self.leaves = Signal(name="list_clears"), Signal(name="list_leaves")
        self.enters = Signal(name="new_element_enters")
        self.k = Signal(range(top + 1), name="list_k")
        values = [self.new.as_value(), *(each.as_value() for each in self.list)]
        below = [let(m, f"is_below_{n}", values[0] > each) for n, each in enumerate(values[1:])]
        for n, each in enumerate(self.list):
            with m.If(self.clears):
                m.d.sync += each.eq(Mux(self.k + n < top, _MOST, 0))
            with m.Elif(self.leaves):
                m.d.sync += each.eq(values[n])
            with m.Elif(self.enters & below[n]):
                m.d.sync += each.eq(Mux(below[n - 1], values[n], values[0]) if n else values[0])

    @property
    def worst(self):
        return self.list[-1]


@dataclasses.dataclass(frozen=True)
class _Work:
    """A token of a command: its operands, number, place and k; its list in RAM and in registers.

    routes : its list are choices of the place
    takes : rows come now; ends: all of them have come; comes: the RAM shows an element of the list
    """

    o: dict[str, Value]
    token: Signal
    place: Value
    k: Value
    held: _Held
    elements: _Elements
    routes: Value
    takes: Signal = dataclasses.field(default_factory=lambda: Signal(name="takes_rows"))
    ends: Signal = dataclasses.field(default_factory=lambda: Signal(name="rows_end"))
    comes: Signal = dataclasses.field(default_factory=lambda: Signal(name="stored_comes"))


def _done(m: Module, work: _Work) -> None:
    """The next token, or the status."""
    m.d.sync += work.token.eq(work.token + 1)
    m.next = "LIST"
    with m.If(work.token == work.o["tokens"] - 1):
        m.next = "STATUS"


def _list_states(m: Module, block: KllmTopK, work: _Work) -> None:
    """States LIST, ROWS, DRAIN, STORE, GIVE and DRAW of a token."""
    config, elements, ram, k = block.config, work.elements, work.held.ram, work.k
    number = Signal(range(max(config.size, 2)), name="list_number")
    count = Signal(range(config.size + 1), name="list_count")
    best = Signal(rank_layout, name="best_element", reset_less=True)
    address = Cat(number[: config.number_bits], work.place)
    m.d.comb += [
        elements.k.eq(k),
        count.eq(Mux(work.o["begin"], 0, Array(work.held.counts)[work.place])),
        ram.read_addr.eq(address),
        ram.write_addr.eq(address),
        ram.write_data.eq(elements.worst),
    ]
    m.d.sync += work.comes.eq(0)
    with m.State("LIST"):
        m.d.comb += [ram.read_en.eq(number < count), elements.clears.eq(number == 0)]
        m.d.sync += [work.comes.eq(number < count), number.eq(number + 1)]
        with m.If(number + 1 >= count):
            m.d.sync += number.eq(0)
            m.next = "ROWS"
    with m.State("ROWS"):
        m.d.comb += work.takes.eq(1)
        with m.If(work.ends):
            m.next = "DRAIN"
    with m.State("DRAIN"):
        m.d.sync += number.eq(k - 1)
        m.next = "STORE"
    stores = Const(1)
    if config.experts:
        stores = _choose(m, block, work, number)
    with m.State("STORE"):
        m.d.comb += [ram.write_en.eq(stores), elements.leaves.eq(stores)]
        if config.experts:
            m.d.comb += block.chosen.valid.eq(work.routes & work.o["end"])
        with m.If(stores):
            m.d.sync += [number.eq(number - 1), best.eq(elements.worst)]
        with m.If(stores & (number == 0)):
            m.d.sync += number.eq(0)
            for n, each in enumerate(work.held.counts):
                with m.If(work.place == n):
                    m.d.sync += each.eq(k)
            with m.If(~work.o["end"] | work.routes):
                _done(m, work)
            with m.Elif((k == 1) | (elements.worst.as_value() == 0)):
                m.next = "GIVE"
            with m.Else():
                m.next = "DRAW"
    with m.State("GIVE"):
        m.d.comb += [
            block.o.valid.eq(1),
            block.o.p.data.eq(Mux(best.as_value() == 0, NOBODY, ~best.rest)),
        ]
        with m.If(block.o.ready):
            _done(m, work)
    with m.State("DRAW"):
        if config.top > 1:
            _draw(m, block, work, number)


def _choose(m: Module, block: KllmTopK, work: _Work, number: Signal) -> Value:
    """Offers a choice with each element that is stored; 1 when the element may leave its list."""
    chosen = block.chosen
    stores = Signal(name="element_is_stored")
    m.d.comb += [
        chosen.p.place.eq(work.place),
        chosen.p.rank.eq(number),
        chosen.p.count.eq(work.k),
        chosen.p.element.eq(work.elements.worst),
        stores.eq(~(work.routes & work.o["end"]) | chosen.ready),
    ]
    return stores


def _draw(m: Module, block: KllmTopK, work: _Work, number: Signal) -> None:
    """State DRAW: the list, twice, from the RAM to ``kllm_draw``; its id to the host."""
    draw = add(m, "draw", KllmDraw(block.config.draw))
    is_fed, is_last, is_second, is_read = (
        Signal(name=f"draw_{name}") for name in ("is_fed", "is_last", "is_second", "is_read")
    )
    moves = Signal(name="draw_moves")
    m.d.comb += [
        draw.choice.eq(block.choice),
        draw.i.valid.eq(is_fed),
        draw.i.p.rank.eq(work.held.ram.read_data),
        draw.i.p.last.eq(is_last),
        moves.eq(~is_fed | draw.i.ready),
        work.held.ram.read_en.eq(moves & ~is_read),
        block.o.valid.eq(draw.o.valid),
        block.o.p.data.eq(draw.o.p.id),
        draw.o.ready.eq(block.o.ready),
    ]
    with m.If(moves):
        m.d.sync += [is_fed.eq(~is_read), is_last.eq(number == work.k - 1)]
        with m.If(~is_read):
            m.d.sync += number.eq(number + 1)
            with m.If(number == work.k - 1):
                m.d.sync += [number.eq(0), is_second.eq(1), is_read.eq(is_second)]
    with m.If(draw.o.valid & block.o.ready):
        m.d.sync += [is_second.eq(0), is_read.eq(0)]
        _done(m, work)


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


def _ask(m: Module, block: KllmTopK, o, rows, begin) -> None:
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
    m.d.comb += best.eq(Mux(second.key > first.key, second, first))
    return best


def _rounds(m: Module, name: str, some: list, count: int) -> list:
    """``some``, each pair reduced to its better one, ``count`` times."""
    for n in range(count):
        some = [
            _better(m, f"{name}_{n}_{k}", *some[2 * k : 2 * k + 2]) for k in range(len(some) // 2)
        ]
    return some


# An element of a row; of NaN and of what is after the length the key is 0.
_element_layout = data.StructLayout({"key": FP16.bits, "place": range(ROW_ELEMENTS)})


class _Row:
    """A row in registers: the keys of its elements, and the id of the first one."""

    def __init__(self, m: Module, name: str, moves, is_final, base, keys) -> None:
        self.valid = Signal(name=f"{name}_valid")
        self.is_final = _kept(m, f"{name}_is_final", is_final, moves)
        self.base = _kept(m, f"{name}_base", base[:ID_BITS], moves)
        self.keys = [_kept(m, f"{name}_key_{n}", each, moves) for n, each in enumerate(keys)]


def _kept(m: Module, name: str, value, enable) -> Signal:
    """A register of ``value``."""
    shape = value.shape() if isinstance(value, data.View) else len(value)
    kept = Signal(shape, name=name, reset_less=True)
    with m.If(enable):
        m.d.sync += kept.eq(value)
    return kept


def _rows(m: Module, block: KllmTopK, work: _Work, rows, begin, faults) -> None:
    """Takes rows; of each four elements the best one."""
    o, given = work.o, block.row_row
    taken, moves = Signal(name="row_taken"), Signal(name="row_moves")
    _, number, is_final = _walk(m, "row", taken, o, rows, begin)
    left = Signal(len(o["length"]) + 1)  # elements from this row on
    m.d.comb += left.eq(o["length"] - (number << 4))
    elements, nan = [], []
    for n, word in enumerate(given.p.word):
        magnitude = word[: FP16.bits - 1]
        is_here = let(m, f"is_here_{n}", n < left)
        is_nan = let(m, f"is_nan_{n}", magnitude > FP16.infinity)
        element = Signal(_element_layout, name=f"row_element_{n}")
        key = Mux(word[-1], KEY_ZERO - magnitude, KEY_ZERO + magnitude)
        m.d.comb += [
            element.key.eq(Mux(is_here & ~is_nan, key[: FP16.bits], 0)),
            element.place.eq(n),
        ]
        elements.append(element)
        nan.append(is_here & is_nan)
    keys = [each.key for each in elements]
    row = _Row(m, "first", taken, is_final, o["first"] + (number << 4), keys)
    four = [
        _kept(m, f"best_{n}", each, taken)
        for n, each in enumerate(_rounds(m, "of_row", elements, 2))
    ]
    has_nan = _kept(m, "has_nan", Cat(nan).any(), taken)
    m.d.comb += [
        taken.eq(given.valid & given.ready),
        given.ready.eq(~row.valid | moves),
    ]
    with m.If(taken | moves):
        m.d.sync += row.valid.eq(taken)
    with m.If(moves & has_nan):
        m.d.sync += faults.eq(int(CommandStatus.NONFINITE))
    (best,) = _rounds(m, "of_four", four, 2)
    _one_by_one(m, work, row, best.place, moves)


def _one_by_one(m: Module, work: _Work, before: _Row, best: Value, moves: Signal) -> None:
    """Elements of a row that are above the worst of the list: number ``best`` first."""
    elements = work.elements
    row = _Row(m, "second", moves, before.is_final, before.base, before.keys)
    first = _kept(m, "best_place", best, moves)
    is_first, is_late, is_over = (
        Signal(name=f"row_is_{name}") for name in ("first", "late", "over")
    )
    mask, rest = (Signal(ROW_ELEMENTS, name=f"elements_{name}") for name in ("left", "after"))
    place = Signal(range(ROW_ELEMENTS), name="element_place")
    # One that is as good as the worst counts where the ids of its row begin below that one's.
    is_lower = let(m, "row_is_lower", ~before.base > elements.worst.rest)
    above = [
        (key != 0) & (Cat(is_lower, key) > Cat(Const(0, 1), elements.worst.key))
        for key in before.keys
    ]
    m.d.comb += place.eq(first)
    with m.If(~is_first):
        for n in reversed(range(ROW_ELEMENTS)):
            with m.If(mask[n]):
                m.d.comb += place.eq(n)
    m.d.comb += [
        rest.eq(Mux(work.k == 1, 0, mask & ~(1 << place))),
        is_over.eq(row.valid & ~rest.any()),
        work.ends.eq(is_over & row.is_final),
        # Elements of the list that are on their way would let more count.
        moves.eq(
            before.valid
            & work.takes
            & (~row.valid | (is_over & ~row.is_final))
            & ((work.k == 1) | ~(work.comes | is_late))
        ),
    ]
    m.d.sync += [is_first.eq(moves), is_late.eq(work.comes)]
    with m.If(moves):
        m.d.sync += [row.valid.eq(1), mask.eq(Cat(above))]
    with m.Else():
        m.d.sync += mask.eq(rest)
        with m.If(is_over):
            m.d.sync += row.valid.eq(0)
    key = Array(row.keys)[place]
    number = (row.base + place)[:ID_BITS]
    m.d.sync += [
        elements.enters.eq(work.comes | (row.valid & mask.any())),
        elements.new.eq(Mux(work.comes, work.held.ram.read_data, Cat(~number, key))),
    ]
