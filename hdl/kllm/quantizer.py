"""The engine of Unit.QUANTIZE: vectors to activation slots (docs/blocks/kllm_quantizer.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, enum, stream
from amaranth.lib.wiring import Out

from golden.config import Config
from golden.fp16.format import FP16, FP32
from golden.index.format import INT_BITS, K_MAX
from golden.kllm.isa import ROW_ELEMENTS, CommandStatus, Norm, Opcode, OutlierMode
from hdl.block import Block
from hdl.emit import add
from hdl.fp16.compare import total_order_key
from hdl.fp16.shift import let
from hdl.index.nearest import IndexNearest, IndexNearestConfig
from hdl.kllm.engine import (
    ROW,
    SLOT_LENGTH_BITS,
    command_stream,
    entry_write_layout,
    operand,
    outlier_write_layout,
    row_read,
    status_stream,
)
from hdl.kllm.integer_quantizer import KllmIntegerQuantizer, KllmIntegerQuantizerConfig
from hdl.kllm.norm_stats import KllmNormStats, KllmNormStatsConfig
from hdl.kllm.orizuru import KllmOrizuru, KllmOrizuruConfig
from hdl.kllm.slot_memory import descriptor_write_layout
from hdl.stream.fifo import StreamFifo, StreamFifoConfig

__all__ = ["KllmQuantizer", "KllmQuantizerConfig"]

_STATUS_BITS = len(CommandStatus)
_MAGNITUDE_BITS = FP16.bits - 1
_ONE = FP32.bias << FP32.frac_bits
_ROWS_BITS = 11  # rows of a token: ceil(K_MAX / ROW_ELEMENTS) is 1024
_LARGEST_CODEBOOK_WORD = FP16.bias << FP16.frac_bits  # 1.0
_ALL = (1 << ROW_ELEMENTS) - 1  # elements of a row
_TOKENS_AHEAD = 2  # tokens whose first pass may be ahead of the second
_TOKENS_BEHIND = 4  # tokens in the second pass or waiting for their descriptor


class _Kind(enum.Enum, shape=2):
    """Where the outliers and the scale of a token come from."""

    ONLINE = 0
    OFFLINE = 1
    INTEGER = 2
    CODEBOOK = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmQuantizerConfig(Config):
    """Sizes of the quantizer."""

    bits_a: int = 4  # bits of an activation index, 2..4
    integer_bits: int = 8  # bits of an unsigned integer, 4 or 8; 0 leaves QUANTIZE_INTEGER out
    vector_rows: int = 4096  # rows of the vector memory, 2..65536
    slots: int = 16  # activation slots, 1..256
    slot_elements: int = 4096  # longest token, 16..16383
    outliers_max: int = 64  # most outliers of a token, 1..16383
    orizuru: str = KllmOrizuruConfig.architecture  # of the two trees: parallel or shared
    integer_lanes: int = 4  # dividers of QUANTIZE_INTEGER, 1, 2, 4, 8 or 16

    def __post_init__(self) -> None:
        self._check_range("bits_a", 2, 4)
        self._check_choice("integer_bits", (0, *INT_BITS))
        self._check_range("vector_rows", 2, 1 << 16)
        self._check_range("slots", 1, 256)
        self._check_range("slot_elements", ROW_ELEMENTS, K_MAX)
        self._check_range("outliers_max", 1, K_MAX)
        self._check_choice("orizuru", ("parallel", "shared"))
        self._check_power_of_two("integer_lanes", 1, ROW_ELEMENTS)

    @property
    def centroids(self) -> int:
        return 2**self.bits_a

    @property
    def orizuru_config(self) -> KllmOrizuruConfig:
        return KllmOrizuruConfig(
            n_max=self.slot_elements, elements=ROW_ELEMENTS, architecture=self.orizuru
        )

    @property
    def clustering_config(self) -> IndexNearestConfig:
        return IndexNearestConfig(
            bits_a=self.bits_a, elements=ROW_ELEMENTS, tag_bits=self.beat_layout.size
        )

    @property
    def norm_config(self) -> KllmNormStatsConfig:
        return KllmNormStatsConfig(
            bits_a=self.bits_a, elements=ROW_ELEMENTS, k_max=self.slot_elements
        )

    @property
    def integer_config(self) -> KllmIntegerQuantizerConfig:
        return KllmIntegerQuantizerConfig(
            int_bits=self.integer_bits,
            elements=ROW_ELEMENTS,
            lanes=self.integer_lanes,
            tag_bits=self.beat_layout.size,
        )

    @property
    def beat_layout(self) -> data.StructLayout:
        """What goes with a row through clustering or division."""
        return data.StructLayout(
            {
                "slot": 8,
                "row": 10,
                "outlier": ROW_ELEMENTS,
                "live": ROW_ELEMENTS,  # within the length
                "norm": 1,
                "last": 1,
            }
        )

    @property
    def entries_layout(self) -> data.StructLayout:
        return entry_write_layout(self.bits_a, self.integer_bits)

    def bound(self, length: int, online: bool) -> int:
        """Rows read for one token: both passes, or the second alone."""
        return (2 if online else 1) * -(-length // ROW_ELEMENTS)


# A token on its way from the first pass to the second.
_token_layout = data.StructLayout(
    {
        "kind": _Kind,
        "dead": 1,  # nothing is read
        "touches": 1,  # its slot is written, be it as not valid
        "status": _STATUS_BITS,
        "end": 1,  # of its command
        "row": 16,
        "rows": _ROWS_BITS,
        "length": SLOT_LENGTH_BITS,
        "slot": 8,
        "norm": 2,
        "epsilon": FP32.bits,
        "upper": FP16.bits,
        "lower": FP16.bits,
    }
)
_first_layout = data.StructLayout({"integer": 1, "rows": _ROWS_BITS, "tail": range(ROW_ELEMENTS)})
# One side's outliers: key beyond this one, or (tie) equal to it and at or before its position.
_bound_layout = data.StructLayout(
    {"on": 1, "tie": 1, "key": FP16.bits, "position": SLOT_LENGTH_BITS}
)
# The token in the second pass.
_second_layout = data.StructLayout(
    {
        "kind": _Kind,
        "rows": _ROWS_BITS,
        "tail": range(ROW_ELEMENTS),  # last element of the last row
        "slot": 8,
        "norm": 1,
        "s": FP16.bits,
        "largest": _bound_layout,
        "smallest": _bound_layout,
    }
)
_finish_layout = data.StructLayout(
    {
        "kind": _Kind,
        "rows": 1,  # a second pass was made
        "touches": 1,
        "status": _STATUS_BITS,
        "end": 1,
        "norm": 1,
        "slot": 8,
        "length": SLOT_LENGTH_BITS,
        "s": FP16.bits,
    }
)
# An outlier's way to its slot. ``mark`` ends a token: position is the count, word the status.
_outlier_layout = data.StructLayout({"mark": 1, **outlier_write_layout.members})
_outcome_layout = data.StructLayout({"outliers": SLOT_LENGTH_BITS, "status": _STATUS_BITS})


class KllmQuantizer(Block):
    """Runs ACTIVATION_CODEBOOK, QUANTIZE and QUANTIZE_INTEGER of golden.kllm.isa.

    QUANTIZE reads each token twice. First pass, ONLINE only: Orizuru finds the k_max largest and
    k_min smallest words and the scale. Their order is strict, so the last word popped from each
    tree with its position tells every outlier from every inlier: no mask is kept. Second pass:
    each row is compared with these two, its inliers are clustered, its outliers stored in ascending
    position, and the norm statistics counted. OFFLINE the thresholds take the place of the popped
    words and there is no first pass. QUANTIZE_INTEGER: the first pass finds the maximum, the second
    divides by the scale. The roundings are those of the blocks that it is made of.

    A row with o outliers takes max(1, o) cycles of the second pass, an integer row ``16 /
    integer_lanes``. The first pass of a token overlaps the second of those before it, across
    commands too; a codebook, or a change between QUANTIZE and QUANTIZE_INTEGER, waits until the
    tokens before it are in their slots. Statistics of a token overlap the next.

    Status, per command: RANGE and OUTLIER_COUNT (k_max + k_min >= length) together, before anything
    is read; CODEBOOK_MISSING (no codebook, or the latest had a word beyond -1..1, which its
    ACTIVATION_CODEBOOK reported as RANGE); MALFORMED (not an opcode of this unit). These touch no
    slot. Per token: NONFINITE, NEGATIVE, OUTLIER_COUNT (more than ``outliers_max``): its slot is
    made not valid, the other tokens are quantized, and the status is that of all together. Entries
    and outliers of a token that fails may have been written.
    Source: KLLM, sections III-A, III-C2, IV-A, IV-C. Golden: golden.kllm.quantizer.

    Members
    -------
    command : In(stream)          engine.command_layout
    first_request, first_row      read client of the vector memory, first pass
    second_request, second_row    read client, second pass and codebooks
    entries : Out(stream)         entry rows: slot, row, entries
    outlier : Out(stream)         outlier words: slot, position, word
    descriptor : Out(stream)      slot, descriptor: after the token's entries and outliers
    status : Out(stream)          CommandStatus of a command
    """

    meaning: ClassVar[dict[str, str]] = {
        "command": "Commands of Unit.QUANTIZE.",
        "first_request": "Rows of the vector memory wanted by the first pass.",
        "first_row": "Those rows, in order.",
        "second_request": "Rows wanted by the second pass and for codebooks.",
        "second_row": "Those rows, in order.",
        "entries": "Indices or integers of 16 elements, and which are outliers.",
        "outlier": "Outlier words of a slot, ascending position.",
        "descriptor": "What the slot holds, written last.",
        "status": "CommandStatus bits, one word per command.",
    }

    def __init__(self, config: KllmQuantizerConfig):
        super().__init__(
            config,
            {
                "command": command_stream(),
                **row_read("first"),
                **row_read("second"),
                "entries": Out(stream.Signature(config.entries_layout)),
                "outlier": Out(stream.Signature(outlier_write_layout)),
                "descriptor": Out(stream.Signature(descriptor_write_layout)),
                "status": status_stream(),
            },
        )

    @property
    def throughput(self) -> str:
        return f"{ROW_ELEMENTS} elements per cycle in each pass"

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self.config
        self.orizuru = add(m, "orizuru", KllmOrizuru(config.orizuru_config))
        self.clustering = add(m, "clustering", IndexNearest(config.clustering_config))
        self.norms = add(m, "norms", KllmNormStats(config.norm_config))
        self.integers = None
        if config.integer_bits:
            self.integers = add(m, "integers", KllmIntegerQuantizer(config.integer_config))
        self.tokens = _queue(m, "tokens", _token_layout, _TOKENS_AHEAD)
        self.finish = _queue(m, "finish", _finish_layout, _TOKENS_BEHIND)
        self._elaborate_commands(m)
        self._elaborate_first_pass(m)
        self._elaborate_second_pass(m)
        self._elaborate_rows(m)
        self._elaborate_entries(m)
        self._elaborate_finish(m)
        return m

    def _elaborate_commands(self, m: Module) -> None:
        """Commands to tokens, and the row requests of the first pass."""
        config = self.config
        command = self.command.p

        # Where two commands share an operand it stands in the same place.
        latched = []

        def field(name: str):
            value = operand(command, Opcode.QUANTIZE, name)
            held = Signal(len(value), name=name, reset_less=True)
            latched.append(held.eq(value))
            return held

        src, stride, tokens, length, slot = map(
            field, ("src", "stride", "tokens", "length", "slot")
        )
        k_max, k_min, thresholds, norm, epsilon = map(
            field, ("k_max", "k_min", "thresholds", "norm", "epsilon")
        )
        kind = Signal(_Kind, reset_less=True)
        unknown = Signal(reset_less=True)
        upper, lower = thresholds[16:], thresholds[:16]

        offset = Signal(24, reset_less=True)
        rows = let(m, "rows", (length + (ROW_ELEMENTS - 1)) >> 4)
        is_codebook = let(m, "is_codebook", kind == _Kind.CODEBOOK)
        is_online = let(m, "is_online", kind == _Kind.ONLINE)
        is_integer = let(m, "is_integer", kind == _Kind.INTEGER)
        infinite = [word[:_MAGNITUDE_BITS] >= FP16.infinity for word in (upper, lower)]
        wrong = Signal()
        m.d.comb += wrong.eq(
            Mux(
                is_codebook,
                src + 2 > config.vector_rows,
                (tokens == 0)
                | (length == 0)
                | (length > config.slot_elements)
                | (src + offset + rows > config.vector_rows)
                | (slot + tokens > config.slots)
                | (~is_integer & (norm > max(Norm)))
                | ((kind == _Kind.OFFLINE) & (infinite[0] | infinite[1])),
            )
        )
        outliers = let(m, "outliers", k_max + k_min)
        fault = Signal(_STATUS_BITS)
        with m.If(unknown):
            m.d.comb += fault.eq(CommandStatus.MALFORMED.value)
        with m.Else():
            m.d.comb += fault.eq(
                Mux(wrong, CommandStatus.RANGE.value, 0)
                | Mux(is_online & (outliers >= length), CommandStatus.OUTLIER_COUNT.value, 0)
            )
        status = Signal(_STATUS_BITS, reset_less=True)
        dead, touches = Signal(reset_less=True), Signal(reset_less=True)

        row = Signal(16, reset_less=True)  # first row of the token, then of those still to request
        base = Signal(16, reset_less=True)
        rows_left = Signal(_ROWS_BITS, reset_less=True)
        to_read = Signal()  # this token has a first pass
        self.contexts = contexts = _queue(m, "contexts", _first_layout, _TOKENS_AHEAD)
        token = self.tokens.i
        job = self.orizuru.job
        self.first_read = Signal()
        m.d.comb += [
            to_read.eq((is_online | is_integer) & ~dead),
            token.p.kind.eq(kind),
            token.p.dead.eq(dead),
            token.p.touches.eq(touches),
            token.p.status.eq(status),
            token.p.end.eq(~touches | (tokens == 1)),
            token.p.row.eq(base),
            token.p.rows.eq(Mux(is_codebook, 2, rows)),
            token.p.length.eq(length),
            token.p.slot.eq(slot),
            token.p.norm.eq(norm),
            token.p.epsilon.eq(epsilon),
            token.p.upper.eq(upper),
            token.p.lower.eq(lower),
            contexts.i.p.integer.eq(is_integer),
            contexts.i.p.rows.eq(rows),
            contexts.i.p.tail.eq((length - 1)[:4]),
            job.p.length.eq(length),
            job.p.k_max.eq(k_max),
            job.p.k_min.eq(k_min),
            self.first_request.p.row.eq(row),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.command.ready.eq(1)
                m.d.sync += latched
                m.d.sync += unknown.eq(0)
                with m.Switch(command.opcode):
                    with m.Case(Opcode.ACTIVATION_CODEBOOK):
                        m.d.sync += kind.eq(_Kind.CODEBOOK)
                    with m.Case(Opcode.QUANTIZE):
                        mode = operand(command, Opcode.QUANTIZE, "mode")
                        online = mode == OutlierMode.ONLINE
                        m.d.sync += kind.eq(Mux(online, _Kind.ONLINE, _Kind.OFFLINE))
                    if config.integer_bits:
                        with m.Case(Opcode.QUANTIZE_INTEGER):
                            m.d.sync += kind.eq(_Kind.INTEGER)
                    with m.Default():
                        m.d.sync += unknown.eq(1)
                with m.If(self.command.valid):
                    m.next = "LAST_TOKEN"
            with m.State("LAST_TOKEN"):
                m.d.sync += offset.eq(stride * (tokens - 1)[: len(tokens)])
                m.next = "CHECK"
            with m.State("CHECK"):
                too_many = is_online & (outliers > config.outliers_max)
                m.d.sync += [
                    status.eq(Mux(fault != 0, fault, 0)),
                    dead.eq(fault != 0),
                    touches.eq((fault == 0) & ~is_codebook),
                    base.eq(src),
                ]
                with m.If((fault == 0) & too_many):
                    m.d.sync += [status.eq(CommandStatus.OUTLIER_COUNT.value), dead.eq(1)]
                m.next = "TOKEN"
            with m.State("TOKEN"):
                others = contexts.i.ready & (job.ready | ~is_online)
                m.d.comb += [
                    token.valid.eq(~to_read | others),
                    contexts.i.valid.eq(to_read & token.ready & (job.ready | ~is_online)),
                    job.valid.eq(to_read & is_online & token.ready & contexts.i.ready),
                ]
                m.d.sync += [row.eq(base), rows_left.eq(rows)]
                with m.If(token.valid & token.ready):
                    m.d.sync += [
                        base.eq(base + stride),
                        slot.eq(slot + 1),
                        tokens.eq(tokens - 1),
                    ]
                    with m.If(to_read):
                        m.next = "ROWS"
                    with m.Elif(token.p.end):
                        m.next = "IDLE"
            with m.State("ROWS"):
                m.d.comb += self.first_request.valid.eq(1)
                with m.If(self.first_request.ready):
                    m.d.sync += [row.eq(row + 1), rows_left.eq(rows_left - 1)]
                    with m.If(rows_left == 1):
                        m.next = "TOKEN"
                        with m.If(tokens == 0):
                            m.next = "IDLE"

    def _elaborate_first_pass(self, m: Module) -> None:
        """Rows to the trees or to the maximum; what comes of it for the second pass."""
        context = self.contexts.o
        trees = self.orizuru
        rows_done = Signal(_ROWS_BITS)
        is_last = let(m, "first_last", rows_done == context.p.rows - 1)
        integer_ready = Signal()
        m.d.comb += [
            trees.x.valid.eq(self.first_row.valid & context.valid & ~context.p.integer),
            trees.x.p.word.eq(self.first_row.p.word),
            trees.x.p.last.eq(is_last),
            self.first_row.ready.eq(
                context.valid & Mux(context.p.integer, integer_ready, trees.x.ready)
            ),
        ]
        take = let(m, "first_take", self.first_row.valid & self.first_row.ready)
        m.d.comb += context.ready.eq(take & is_last)
        with m.If(take):
            m.d.sync += rows_done.eq(Mux(is_last, 0, rows_done + 1))

        # The last pop of either tree, then the token's done word.
        self.found = Signal()  # a token's bounds stand here
        self.found_take = Signal()
        self.found_bad = Signal(reset_less=True)
        self.found_s = Signal(FP16.bits, reset_less=True)
        self.found_bound = []
        free = let(m, "found_free", ~self.found | self.found_take)
        take_done = let(m, "take_done", trees.done.valid & free)
        m.d.comb += trees.done.ready.eq(free)
        for name, pops in (("largest", trees.pop_max), ("smallest", trees.pop_min)):
            bound = Signal(_bound_layout, name=f"found_{name}", reset_less=True)
            ended = Signal(name=f"{name}_ended")
            word = Signal(FP16.bits, name=f"{name}_word", reset_less=True)
            index = Signal(SLOT_LENGTH_BITS, name=f"{name}_index", reset_less=True)
            # After its last pop a tree waits here until the token is done.
            m.d.comb += pops.ready.eq(~ended)
            with m.If(pops.valid & pops.ready):
                m.d.sync += [word.eq(pops.p.word), index.eq(pops.p.index), ended.eq(pops.p.last)]
            with m.If(take_done):
                m.d.sync += [
                    bound.on.eq(ended),
                    bound.tie.eq(1),
                    bound.key.eq(total_order_key(word)),
                    bound.position.eq(index),
                    ended.eq(0),
                ]
            self.found_bound.append(bound)
        with m.If(take_done):
            m.d.sync += [
                self.found.eq(1),
                self.found_bad.eq(trees.done.p.status.as_value() != 0),
                self.found_s.eq(trees.done.p.scale),
            ]
        with m.Elif(self.found_take):
            m.d.sync += self.found.eq(0)

        # The maximum of magnitudes: of a row, then of the token, then to the divider.
        self.integer_fault = Signal(_STATUS_BITS, reset_less=True)
        if self.integers is None:
            return
        held, held_last, complete = Signal(), Signal(reset_less=True), Signal()
        row_largest = Signal(_MAGNITUDE_BITS, reset_less=True)
        row_fault = Signal(_STATUS_BITS, reset_less=True)
        largest = Signal(_MAGNITUDE_BITS)
        fault = Signal(_STATUS_BITS)
        live = _live(m, "first_live", is_last, context.p.tail)
        words = [
            let(m, f"first_word_{e}", Mux(live[e], self.first_row.p.word[e], 0))
            for e in range(ROW_ELEMENTS)
        ]
        magnitudes = [word[:_MAGNITUDE_BITS] for word in words]
        nonfinite = Cat(word >= FP16.infinity for word in magnitudes).any()
        negative = Cat(word[-1] & word[:_MAGNITUDE_BITS].any() for word in words).any()
        level = magnitudes
        while len(level) > 1:
            level = [
                let(m, f"larger_{len(level)}_{k}", Mux(a > b, a, b))
                for k, (a, b) in enumerate(zip(level[::2], level[1::2], strict=True))
            ]
        m.d.comb += integer_ready.eq(~complete & ~(held & held_last))
        m.d.sync += [
            held.eq(take & context.p.integer),
            held_last.eq(is_last),
            row_largest.eq(level[0]),
            row_fault.eq(
                Mux(nonfinite, CommandStatus.NONFINITE.value, 0)
                | Mux(negative, CommandStatus.NEGATIVE.value, 0)
            ),
        ]
        with m.If(held):
            m.d.sync += [
                largest.eq(Mux(row_largest > largest, row_largest, largest)),
                fault.eq(fault | row_fault),
                complete.eq(held_last),
            ]
        m.d.comb += [
            self.integers.largest.valid.eq(complete),
            self.integers.largest.p.word.eq(largest),
        ]
        with m.If(complete & self.integers.largest.ready):
            # The divider is busy until the second pass takes the scale, and this with it.
            m.d.sync += [self.integer_fault.eq(fault), complete.eq(0), largest.eq(0), fault.eq(0)]

    def _elaborate_second_pass(self, m: Module) -> None:
        """Takes tokens in order with what the first pass found; requests their rows."""
        token, finish = self.tokens.o, self.finish.i
        t = token.p
        self.codebook_ok = Signal()
        self.in_flight = Signal(range(2 * _TOKENS_BEHIND + 2))
        self.leave = Signal()  # a token has left the finish queue
        self.second = Signal(_second_layout, reset_less=True)
        self.second_wanted, self.second_take = Signal(), Signal()
        epsilon = Signal(FP32.bits, reset_less=True)
        length = Signal(SLOT_LENGTH_BITS, reset_less=True)
        layer_norm = Signal(reset_less=True)
        latest = Signal(_Kind, reset_less=True)  # kind of the latest token in the second pass

        is_online = let(m, "token_online", t.kind == _Kind.ONLINE)
        is_offline = let(m, "token_offline", t.kind == _Kind.OFFLINE)
        is_integer = let(m, "token_integer", t.kind == _Kind.INTEGER)
        is_kmeans = let(m, "token_kmeans", is_online | is_offline)

        # Blocks are shared in order: another kind of token waits until all before it have left.
        def shared(kind):
            return Mux(kind == _Kind.ONLINE, _Kind.OFFLINE, kind)

        same = let(m, "same", (shared(t.kind) == shared(latest)) & ~(t.kind == _Kind.CODEBOOK))
        settled = let(m, "settled", same | (self.in_flight == 0) | (t.dead & ~t.touches))
        magnitudes = [word[:_MAGNITUDE_BITS] for word in (t.upper, t.lower)]
        offline_s = Mux(magnitudes[0] > magnitudes[1], magnitudes[0], magnitudes[1])
        s = Signal(FP16.bits)
        status = Signal(_STATUS_BITS)
        found = Signal()
        integer_s = Const(0, FP16.bits)
        integer_valid = Const(0, 1)
        if self.integers is not None:
            integer_s, integer_valid = self.integers.scale.p.word, self.integers.scale.valid
        with m.If(is_online):
            m.d.comb += [
                found.eq(self.found),
                s.eq(self.found_s),
                status.eq(Mux(self.found_bad, CommandStatus.NONFINITE.value, 0)),
            ]
        with m.Elif(is_integer):
            m.d.comb += [
                found.eq(integer_valid),
                s.eq(integer_s),
                status.eq(self.integer_fault),
            ]
        with m.Else():
            m.d.comb += [found.eq(1), s.eq(offline_s)]

        scale_wanted, job_wanted = Signal(), Signal()
        rows_left = Signal(_ROWS_BITS)
        row = Signal(16, reset_less=True)
        busy = let(m, "busy", self.second_wanted | scale_wanted | job_wanted | (rows_left != 0))
        missing = let(m, "missing", is_kmeans & t.touches & ~self.codebook_ok)
        go = Signal()  # a second pass is made
        take = Signal()
        total = Signal(_STATUS_BITS)
        with m.If(missing):
            m.d.comb += total.eq(CommandStatus.CODEBOOK_MISSING.value)
        with m.Elif(t.dead):
            m.d.comb += total.eq(t.status)
        with m.Else():
            m.d.comb += total.eq(status)
        m.d.comb += [
            take.eq(token.valid & (t.dead | found) & settled & ~busy & finish.ready),
            token.ready.eq(take),
            finish.valid.eq(take),
            self.found_take.eq(take & is_online & ~t.dead),
            go.eq(~t.dead & (total == 0)),
            finish.p.kind.eq(t.kind),
            finish.p.rows.eq(go),
            finish.p.touches.eq(t.touches & ~missing),
            finish.p.status.eq(total),
            finish.p.end.eq(t.end),
            finish.p.norm.eq(go & is_kmeans & (t.norm != Norm.NONE)),
            finish.p.slot.eq(t.slot),
            finish.p.length.eq(t.length),
            finish.p.s.eq(s),
        ]
        if self.integers is not None:
            m.d.comb += self.integers.scale.ready.eq(take & is_integer & ~t.dead)
        m.d.sync += self.in_flight.eq(self.in_flight + take - self.leave)
        second = self.second
        with m.If(take):
            with m.If(t.touches | ~t.dead):
                m.d.sync += latest.eq(t.kind)
            m.d.sync += [
                self.second_wanted.eq(go),
                scale_wanted.eq(go & is_kmeans),
                job_wanted.eq(finish.p.norm),
                rows_left.eq(Mux(go, t.rows, 0)),
                row.eq(t.row),
                length.eq(t.length),
                epsilon.eq(t.epsilon),
                layer_norm.eq(t.norm == Norm.LAYER),
                second.kind.eq(t.kind),
                second.rows.eq(t.rows),
                second.tail.eq((t.length - 1)[:4]),
                second.slot.eq(t.slot),
                second.norm.eq(finish.p.norm),
                second.s.eq(s),
            ]
            # IEEE: neither zero is beyond a threshold of zero, whatever their signs.
            for bound, online, word, zero in (
                (second.largest, self.found_bound[0], t.upper, 0),
                (second.smallest, self.found_bound[1], t.lower, FP16.sign_bit),
            ):
                is_zero = ~word[:_MAGNITUDE_BITS].any()
                m.d.sync += bound.eq(online)
                with m.If(is_offline):
                    m.d.sync += [
                        bound.on.eq(1),
                        bound.tie.eq(0),
                        bound.key.eq(total_order_key(Mux(is_zero, Const(zero, 16), word))),
                    ]
                with m.Elif(~is_online):
                    m.d.sync += bound.on.eq(0)
        with m.Else():
            with m.If(self.second_take):
                m.d.sync += self.second_wanted.eq(0)
            with m.If(self.clustering.scale.ready):
                m.d.sync += scale_wanted.eq(0)
            with m.If(self.norms.job.ready):
                m.d.sync += job_wanted.eq(0)
            with m.If(self.second_request.valid & self.second_request.ready):
                m.d.sync += [row.eq(row + 1), rows_left.eq(rows_left - 1)]
        m.d.comb += [
            self.second_request.valid.eq(rows_left != 0),
            self.second_request.p.row.eq(row),
            self.clustering.scale.valid.eq(scale_wanted),
            self.clustering.scale.p.word.eq(second.s),
            self.norms.job.valid.eq(job_wanted),
            self.norms.job.p.length.eq(length),
            self.norms.job.p.s.eq(second.s),
            self.norms.job.p.epsilon.eq(epsilon),
            self.norms.job.p.layer_norm.eq(layer_norm),
            # OFFLINE the number is not known before the last row.
            self.norms.job.p.outliers.eq(KllmNormStats.OUTLIERS_OF_MASK),
        ]

    def _elaborate_rows(self, m: Module) -> None:
        """Rows of the second pass: compare, then a beat and one outlier per cycle."""
        config = self.config
        now = Signal(_second_layout, reset_less=True)
        active = Signal()
        row = Signal(10)
        a_valid, a_free, b_valid, b_free = Signal(), Signal(), Signal(), Signal()
        take = let(m, "second_row_take", self.second_row.valid & active & a_free)
        is_last = let(m, "second_last", row == now.rows - 1)
        m.d.comb += [
            self.second_row.ready.eq(active & a_free),
            self.second_take.eq(self.second_wanted & (~active | (take & is_last))),
            a_free.eq(~a_valid | b_free),
        ]
        with m.If(self.second_take):
            m.d.sync += [now.eq(self.second), active.eq(1)]
        with m.Elif(take & is_last):
            m.d.sync += active.eq(0)
        with m.If(take):
            m.d.sync += row.eq(Mux(is_last, 0, row + 1))

        # Stage A: each word against both bounds.
        carried = data.StructLayout(
            {
                "kind": _Kind,
                "row": 10,
                "last": 1,
                "slot": 8,
                "norm": 1,
                "s": FP16.bits,
                "live": ROW_ELEMENTS,
                "word": ROW,
            }
        )
        a = Signal(carried, reset_less=True)
        beyond = Signal(ROW_ELEMENTS, reset_less=True)
        nonfinite = Signal(ROW_ELEMENTS, reset_less=True)
        live = _live(m, "second_live", is_last, now.tail)
        with m.If(a_free):
            m.d.sync += a_valid.eq(take)
        flags = []
        for name, bound, greater in (
            ("largest", now.largest, True),
            ("smallest", now.smallest, False),
        ):
            place = bound.position[4:]
            # With equal keys a lower position is the larger one.
            row_before, row_here = row < place, row == place
            element = bound.position[:4]
            if greater:
                beside, sure = _up_to(element), row_before
            else:
                beside = (Const(_ALL, ROW_ELEMENTS) << element)[:ROW_ELEMENTS]
                sure = ~row_before & ~row_here
            tie = let(
                m,
                f"{name}_tie",
                bound.tie.replicate(ROW_ELEMENTS)
                & (sure.replicate(ROW_ELEMENTS) | Mux(row_here, beside, 0)),
            )
            for e in range(ROW_ELEMENTS):
                key = total_order_key(self.second_row.p.word[e])
                over = (key > bound.key) if greater else (key < bound.key)
                flags.append(
                    let(
                        m,
                        f"{name}_{e}",
                        bound.on & (over | (tie[e] & (key == bound.key))),
                    )
                )
        words = self.second_row.p.word
        is_nan = Cat(word[:_MAGNITUDE_BITS] > FP16.infinity for word in words)
        either = Cat(flags[:ROW_ELEMENTS]) | Cat(flags[ROW_ELEMENTS:])
        with m.If(take):
            m.d.sync += [
                a.kind.eq(now.kind),
                a.row.eq(row),
                a.last.eq(is_last),
                a.slot.eq(now.slot),
                a.norm.eq(now.norm),
                a.s.eq(now.s),
                a.live.eq(live),
                a.word.eq(words),
                beyond.eq(either & live & ~is_nan),
                nonfinite.eq(Cat(word[:_MAGNITUDE_BITS] >= FP16.infinity for word in words) & live),
            ]
            with m.If(now.kind == _Kind.CODEBOOK):
                # A codebook's words leave one by one, as outliers do.
                centroids = (1 << config.centroids) - 1
                m.d.sync += beyond.eq(Mux(row == 0, centroids, centroids >> 1))

        # Stage B: its beat, and what is to do of its outliers, lowest position first.
        b = Signal(carried, reset_less=True)
        mask = Signal(ROW_ELEMENTS, reset_less=True)
        todo = Signal(ROW_ELEMENTS, reset_less=True)
        b_nonfinite = Signal(reset_less=True)
        beat_sent = Signal()
        clustering, norms, integers = self.clustering, self.norms, self.integers
        is_codebook = let(m, "b_codebook", b.kind == _Kind.CODEBOOK)
        is_integer = let(m, "b_integer", b.kind == _Kind.INTEGER)
        any_left = let(m, "any_left", todo.any())
        rest = let(m, "todo_rest", todo & (todo - 1)[:ROW_ELEMENTS])
        one_left = let(m, "one_left", any_left & ~rest.any())
        word = Signal(FP16.bits)
        lowest = let(m, "lowest", todo & ~rest)
        m.d.comb += word.eq(
            Cat(
                Cat(b.word[e][bit] & lowest[e] for e in range(ROW_ELEMENTS)).any()
                for bit in range(FP16.bits)
            )
        )
        self.outliers = queue = _queue(m, "outliers", _outlier_layout, 4)
        self.norm_words = norm_words = _queue(
            m, "norm_words", data.StructLayout({"word": FP16.bits}), 4
        )
        count = Signal(SLOT_LENGTH_BITS)
        over, bad = Signal(), Signal()  # more than fit; nonfinite, or beyond -1..1 in a codebook
        full = let(m, "slot_full", count == config.outliers_max)
        beat_ready, beat_take = Signal(), Signal()
        beat_valid = let(m, "beat_valid", b_valid & ~beat_sent & ~is_codebook)
        word_take, mark_take, row_done = Signal(), Signal(), Signal()
        word_ready = Signal()
        store = let(m, "store", ~is_codebook & ~full)
        with m.If(~is_codebook):
            m.d.comb += word_ready.eq((queue.i.ready | full) & (norm_words.i.ready | ~b.norm))
        with m.Elif(b.row == 0):
            m.d.comb += word_ready.eq(norms.codebook.ready)
        with m.Else():
            m.d.comb += word_ready.eq(clustering.midpoints.ready)
        wrong = let(
            m,
            "b_wrong",
            Mux(
                is_codebook,
                any_left & (word[:_MAGNITUDE_BITS] > _LARGEST_CODEBOOK_WORD),
                b_nonfinite,
            ),
        )
        mark_status = Mux(
            bad | wrong,
            Mux(
                is_codebook,
                Const(CommandStatus.RANGE.value, _STATUS_BITS),
                Const(CommandStatus.NONFINITE.value, _STATUS_BITS),
            ),
            0,
        ) | Mux(over, CommandStatus.OUTLIER_COUNT.value, 0)
        m.d.comb += [
            beat_take.eq(beat_valid & beat_ready),
            word_take.eq(b_valid & any_left & word_ready),
            mark_take.eq(
                b_valid & b.last & ~any_left & (beat_sent | is_codebook | beat_take) & queue.i.ready
            ),
            row_done.eq(
                Mux(
                    b.last,
                    mark_take,
                    b_valid
                    & (beat_sent | is_codebook | beat_take)
                    & (~any_left | (one_left & word_take)),
                )
            ),
            b_free.eq(~b_valid | row_done),
            queue.i.valid.eq((word_take & store) | mark_take),
            queue.i.p.mark.eq(~any_left),
            queue.i.p.slot.eq(b.slot),
            queue.i.p.position.eq(count),
            queue.i.p.word.eq(Mux(any_left, word, mark_status)),
            norm_words.i.valid.eq(word_take & ~is_codebook & b.norm),
            norm_words.i.p.word.eq(word),
            norms.codebook.valid.eq(b_valid & is_codebook & any_left & (b.row == 0)),
            norms.codebook.p.word.eq(word),
            norms.codebook.p.last.eq(one_left),
            clustering.midpoints.valid.eq(b_valid & is_codebook & any_left & (b.row != 0)),
            clustering.midpoints.p.word.eq(word),
            clustering.midpoints.p.last.eq(one_left),
        ]
        with m.If(b_free):
            m.d.sync += [
                b_valid.eq(a_valid),
                b.eq(a),
                mask.eq(beyond),
                todo.eq(beyond),
                b_nonfinite.eq(nonfinite.any()),
                beat_sent.eq(0),
            ]
        with m.Else():
            m.d.sync += beat_sent.eq(beat_sent | beat_take)
            with m.If(word_take):
                m.d.sync += todo.eq(rest)
        with m.If(mark_take):
            m.d.sync += [count.eq(0), over.eq(0), bad.eq(0)]
            with m.If(is_codebook):
                m.d.sync += self.codebook_ok.eq(~(bad | wrong))
        with m.Elif(b_valid):
            m.d.sync += bad.eq(bad | wrong)
            with m.If(word_take & ~is_codebook):
                m.d.sync += [count.eq(count + ~full), over.eq(over | full)]

        tag = config.beat_layout
        beats = [clustering.x]
        m.d.comb += [
            clustering.x.valid.eq(beat_valid & ~is_integer),
            clustering.x.p.word.eq(b.word),
            clustering.x.p.last.eq(b.last),
            beat_ready.eq(clustering.x.ready),
        ]
        if integers is not None:
            beats.append(integers.i)
            m.d.comb += [
                integers.i.valid.eq(beat_valid & is_integer),
                integers.i.p.word.eq(b.word),
                integers.i.p.s.eq(b.s),
                beat_ready.eq(Mux(is_integer, integers.i.ready, clustering.x.ready)),
            ]
        for beat in beats:
            view = data.View(tag, beat.p.tag)
            m.d.comb += [
                view.slot.eq(b.slot),
                view.row.eq(b.row),
                view.outlier.eq(mask),
                view.live.eq(b.live),
                view.norm.eq(b.norm),
                view.last.eq(b.last),
            ]

    def _elaborate_entries(self, m: Module) -> None:
        """Entries to their slot, indices to the statistics."""
        config = self.config
        clustering, integers, norms = self.clustering, self.integers, self.norms
        layout = data.StructLayout({"last": 1, "write": config.entries_layout})
        queue = _queue(m, "entry_rows", layout, 2)
        norm_layout = norms.i.p.shape()
        beats = _queue(m, "norm_beats", norm_layout, 2)
        tag = data.View(config.beat_layout, clustering.o.p.tag)
        inlier = let(m, "inlier", tag.live & ~tag.outlier)
        index = [
            let(m, f"index_{e}", Mux(inlier[e], clustering.o.p.index[e], 0))
            for e in range(ROW_ELEMENTS)
        ]
        both = let(m, "both_ready", queue.i.ready & (beats.i.ready | ~tag.norm))
        entry = Signal(layout)
        write = entry.write
        m.d.comb += [
            queue.i.p.eq(entry),
            clustering.o.ready.eq(both),
            beats.i.valid.eq(clustering.o.valid & both & tag.norm),
            beats.i.p.outlier.eq(tag.outlier),
            beats.i.p.last.eq(tag.last),
            norms.i.valid.eq(beats.o.valid),
            beats.o.ready.eq(norms.i.ready),
            norms.i.p.eq(beats.o.p),
            norms.x.valid.eq(self.norm_words.o.valid),
            self.norm_words.o.ready.eq(norms.x.ready),
            norms.x.p.word.eq(self.norm_words.o.p.word),
        ]
        m.d.comb += [beats.i.p.index[e].eq(value) for e, value in enumerate(index)]

        def row(view, values, outlier):
            return [
                write.slot.eq(view.slot),
                write.row.eq(view.row),
                entry.last.eq(view.last),
                write.entries.outlier.eq(outlier),
                *(write.entries.value[e].eq(value) for e, value in enumerate(values)),
            ]

        if integers is None:
            m.d.comb += queue.i.valid.eq(clustering.o.valid & both)
            m.d.comb += row(tag, index, tag.outlier)
        else:
            # Never both: a change of kind waits until all rows have left.
            other = data.View(config.beat_layout, integers.o.p.tag)
            m.d.comb += integers.o.ready.eq(queue.i.ready)
            with m.If(integers.o.valid):
                values = (Mux(other.live[e], integers.o.p.value[e], 0) for e in range(ROW_ELEMENTS))
                m.d.comb += queue.i.valid.eq(1)
                m.d.comb += row(other, values, Const(0, ROW_ELEMENTS))
            with m.Else():
                m.d.comb += queue.i.valid.eq(clustering.o.valid & both)
                m.d.comb += row(tag, index, tag.outlier)

        self.token_written = Signal()
        m.d.comb += [
            self.entries.valid.eq(queue.o.valid),
            queue.o.ready.eq(self.entries.ready),
            self.entries.p.eq(queue.o.p.write),
            self.token_written.eq(queue.o.valid & queue.o.ready & queue.o.p.last),
        ]

    def _elaborate_finish(self, m: Module) -> None:
        """Outliers to their slot; a token's descriptor, a command's status."""
        queue = self.outliers.o
        outcomes = _queue(m, "outcomes", _outcome_layout, _TOKENS_BEHIND)
        m.d.comb += [
            self.outlier.valid.eq(queue.valid & ~queue.p.mark),
            self.outlier.p.slot.eq(queue.p.slot),
            self.outlier.p.position.eq(queue.p.position),
            self.outlier.p.word.eq(queue.p.word),
            outcomes.i.valid.eq(queue.valid & queue.p.mark),
            outcomes.i.p.outliers.eq(queue.p.position),
            outcomes.i.p.status.eq(queue.p.word),
            queue.ready.eq(Mux(queue.p.mark, outcomes.i.ready, self.outlier.ready)),
        ]
        finish, outcome = self.finish.o, outcomes.o
        f = finish.p
        is_codebook = f.kind == _Kind.CODEBOOK
        written = Signal(range(2 * _TOKENS_BEHIND + 2))  # tokens whose entries are all taken
        entries_done = let(m, "entries_done", is_codebook | (written != 0))
        complete = let(
            m,
            "complete",
            ~f.rows | (outcome.valid & entries_done & (self.norms.o.valid | ~f.norm)),
        )
        status = let(m, "token_status", f.status | Mux(f.rows, outcome.p.status, 0))
        total = Signal(_STATUS_BITS)
        end = Signal(reset_less=True)
        slot_word = Signal(descriptor_write_layout, reset_less=True)
        take = Signal()
        m.d.comb += [
            self.leave.eq(take),
            finish.ready.eq(take),
            outcome.ready.eq(take & f.rows),
            self.norms.o.ready.eq(take & f.norm),
            self.descriptor.p.eq(slot_word),
            self.status.p.status.eq(total),
        ]
        m.d.sync += written.eq(written + self.token_written - (take & f.rows & ~is_codebook))
        with m.FSM():
            with m.State("WAIT"):
                descriptor = slot_word.descriptor
                m.d.sync += [
                    slot_word.slot.eq(f.slot),
                    descriptor.valid.eq(status == 0),
                    descriptor.integer.eq(f.kind == _Kind.INTEGER),
                    descriptor.length.eq(f.length),
                    descriptor.outliers.eq(outcome.p.outliers),
                    descriptor.scale.eq(f.s),
                    descriptor.rms_reciprocal.eq(
                        Mux(f.norm, self.norms.o.p.rms_reciprocal, Const(_ONE, FP32.bits))
                    ),
                    descriptor.mean.eq(Mux(f.norm, self.norms.o.p.mean, 0)),
                    end.eq(f.end),
                ]
                with m.If(finish.valid & complete):
                    m.d.comb += take.eq(1)
                    m.d.sync += total.eq(total | status)
                    with m.If(f.touches):
                        m.next = "DESCRIPTOR"
                    with m.Elif(f.end):
                        m.next = "STATUS"
            with m.State("DESCRIPTOR"):
                m.d.comb += self.descriptor.valid.eq(1)
                with m.If(self.descriptor.ready):
                    m.next = "WAIT"
                    with m.If(end):
                        m.next = "STATUS"
            with m.State("STATUS"):
                m.d.comb += self.status.valid.eq(1)
                with m.If(self.status.ready):
                    m.d.sync += total.eq(0)
                    m.next = "WAIT"


class _Port:
    """One end of a queue: a stream whose payload has fields."""

    def __init__(self, port, payload):
        self.valid, self.ready, self.p = port.valid, port.ready, payload


class _Queue:
    def __init__(self, fifo, layout: data.StructLayout):
        self.i = _Port(fifo.i, data.View(layout, fifo.i.p.data))
        self.o = _Port(fifo.o, data.View(layout, fifo.o.p.data))


def _queue(m: Module, name: str, layout: data.StructLayout, depth: int) -> _Queue:
    fifo = add(m, name, StreamFifo(StreamFifoConfig(width=layout.size, depth=depth)))
    return _Queue(fifo, layout)


def _live(m: Module, name: str, is_last, tail) -> Signal:
    """Which elements of a row are within the length; ``tail``: the last one of the last row."""
    return let(m, name, Mux(is_last, _up_to(tail), Const(_ALL, ROW_ELEMENTS)))


def _up_to(element):
    """Mask of the elements of a row up to this one."""
    return ((Const(2) << element) - 1)[:ROW_ELEMENTS]
