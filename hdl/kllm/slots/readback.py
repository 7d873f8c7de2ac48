"""The engine that gives rows and slots to the host."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Signal
from amaranth.lib import stream

from golden.config import Config, bounded, nested
from golden.kllm import timing
from golden.kllm.config import SlotShape, VectorShape
from golden.kllm.isa import ROW_ELEMENTS, CommandStatus, Opcode
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.children import add
from hdl.kinds import BITS
from hdl.kllm.batch import chooser
from hdl.kllm.engine import (
    SLOT_LENGTH_BITS,
    command_stream,
    descriptor_layout,
    operand,
    row_read,
    slot_read,
    status_stream,
)
from hdl.kllm.slots.choices import choices_out
from hdl.kllm.slots.top_k import KllmTopK, KllmTopKConfig
from hdl.ports import Out, Payload
from hdl.stream.link import link

_WORDS = ROW_ELEMENTS // 2  # 32-bit words of a row
_ENTRY_WORDS = ROW_ELEMENTS // 4  # of a row of entries


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmReadbackConfig(Config):
    """Sizes of the vector memory and the slots that READ and READ_SLOT read."""

    vectors: VectorShape = nested(VectorShape, "the vector memory")
    slot: SlotShape = nested(SlotShape, "the slots")
    batch: int = bounded(0, 0, 64, "places of TOP_K; 0: no TOP_K")
    top: int = bounded(1, 1, 64, "most elements of which TOP_K draws one")
    experts: int = bounded(0, 0, 16, "most choices that TOP_K leaves; 0: none, as without batch")

    @property
    def top_k(self) -> KllmTopKConfig:
        return KllmTopKConfig(
            vectors=self.vectors, places=max(self.batch, 1), top=self.top, experts=self.experts
        )

    @property
    def has_choices(self) -> bool:
        """Whether the engine reads from the batch how a place chooses."""
        return self.batch > 0 and self.top > 1

    @property
    def has_experts(self) -> bool:
        """Whether TOP_K leaves choices."""
        return self.batch > 0 and self.experts > 0


def read_slot_cycles(length: int, outliers: int) -> int:
    """The cycles from a READ_SLOT to its status; memories answer in the next cycle, nothing stalls.

    A word takes a cycle. An outlier takes two: it is requested when the one before it has left.
    """
    rows = -(-length // ROW_ELEMENTS)
    return 11 + 5 * rows + 2 * outliers


class KllmReadback(Block):
    """READ and READ_SLOT of golden.kllm.isa, as words of 32 bits.

    With ``batch`` also TOP_K, by ``kllm_top_k``.

    READ gives each row as 8 words, lower position in the low half. READ_SLOT gives, in this order:

    1. length | outliers << 16
    2. scale | integer << 16
    3. rms_reciprocal
    4. mean
    5. 4 words of entries per row, a byte each
    6. one word of outlier mask per row
    7. one word per outlier

    RANGE: rows is 0, a row leaves the vector memory, no such slot. SLOT_MISMATCH: the slot holds
    nothing. Both give no words. One word per cycle of READ: the block requests a row while the
    row before it leaves. READ_SLOT takes 11 cycles, 5 per row and 2 per outlier
    (``read_slot_cycles``). Golden: golden.kllm.machine.

    The engine returns entries after a slot's length as the slot stores them: the quantizer writes 0
    there. READ gives a word per cycle if the memory answers within 8 cycles. The status comes after
    the last word is taken. So a host that takes no words stalls only this engine.
    """

    tier = Tier.PART
    golden = "golden.kllm.machine:slot_words"
    default = KllmReadbackConfig()
    configs: ClassVar = {
        "table1": KllmReadbackConfig(),
        "small": KllmReadbackConfig(vectors=VectorShape(rows=256), slot=SlotShape(slots=4)),
        "batch": KllmReadbackConfig(
            vectors=VectorShape(rows=256), slot=SlotShape(slots=4), batch=4, top=6
        ),
        "experts": KllmReadbackConfig(
            vectors=VectorShape(rows=256), slot=SlotShape(slots=4), batch=4, top=6, experts=4
        ),
    }

    def __init__(self, config: KllmReadbackConfig):
        super().__init__(
            config,
            {
                "command": command_stream("READ and READ_SLOT commands."),
                "status": status_stream(),
                **row_read("row", "rows of the vector memory"),
                **slot_read("slot", config.slot.bits_a, config.slot.integer_bits),
                **(chooser() if config.has_choices else {}),
                **(choices_out() if config.has_experts else {}),
                "o": Out(
                    stream.Signature(
                        Payload(
                            data=(
                                32,
                                "of READ two FP16 words, the lower position in the low half",
                                BITS,
                            )
                        )
                    ),
                    "Words for the host.",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.readback()

    def elaborate(self, platform) -> Module:
        m = Module()
        command = self.command.p
        src, slot = operand(command, Opcode.READ, "src"), operand(command, Opcode.READ_SLOT, "slot")
        faults = Signal(len(CommandStatus))
        at = _Place()
        held = Signal(descriptor_layout)
        entry_rows = Signal(11)
        sent = Signal()
        m.d.comb += [
            entry_rows.eq((held.length + (ROW_ELEMENTS - 1)) // ROW_ELEMENTS),
            sent.eq(self.o.valid & self.o.ready),
            self.row_request.p.row.eq(src + at.next_row),
            self.slot_slot.p.slot.eq(slot),
            self.slot_entry_request.p.slot.eq(slot),
            self.slot_entry_request.p.row.eq(at.next_row),
            self.slot_outlier_request.p.slot.eq(slot),
            self.slot_outlier_request.p.position.eq(at.outlier),
            at.next_row.eq(at.row + at.asked),
            self.status.p.status.eq(faults),
        ]
        starts = self.command.valid
        if self.config.batch:
            starts = starts & (command.opcode != Opcode.TOP_K)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    faults.eq(0), at.row.eq(0), at.asked.eq(0), at.part.eq(0), at.outlier.eq(0),
                ]  # fmt: skip
                with m.If(starts):
                    m.next = "CHECK"
            with m.State("CHECK"):
                _check(m, self.config, command, faults)
            with m.State("ROWS"):
                rows = operand(command, Opcode.READ, "rows")
                _rows(m, at, self.row_request, self.row_row, self.o, sent, rows)
            with m.State("DESCRIPTOR"):
                _ask_one(m, at, self.slot_slot)
                m.d.comb += self.slot_descriptor.ready.eq(1)
                with m.If(self.slot_descriptor.valid):
                    m.d.sync += [held.eq(self.slot_descriptor.p), at.asked.eq(0)]
                    with m.If(self.slot_descriptor.p.valid):
                        m.next = "HEAD"
                    with m.Else():
                        m.d.sync += faults.eq(int(CommandStatus.SLOT_MISMATCH))
                        m.next = "STATUS"
            _slot_states(m, self, at, held, entry_rows, sent)
            with m.State("STATUS"):
                m.d.comb += [self.status.valid.eq(1), self.command.ready.eq(self.status.ready)]
                with m.If(self.status.ready):
                    m.next = "IDLE"
        if self.config.batch:
            _choices(m, self)
        return m


def _choices(m: Module, block: KllmReadback) -> None:
    """The engine of TOP_K, which has the ports for the time of its commands."""
    engine = add(m, "top_k", KllmTopK(block.config.top_k))
    is_here = Signal()
    m.d.comb += [
        is_here.eq(block.command.p.opcode == Opcode.TOP_K),
        engine.command.p.eq(block.command.p),
        engine.row_row.p.eq(block.row_row.p),
    ]
    if block.config.has_choices:
        m.d.comb += [block.chooses.eq(engine.chooses), engine.choice.eq(block.choice)]
    if block.config.has_experts:
        link(m, engine.chosen, block.chosen)
    with m.If(is_here):
        link(m, engine.row_request, block.row_request)
        link(m, engine.o, block.o)
        link(m, engine.status, block.status)
        m.d.comb += [
            engine.command.valid.eq(block.command.valid),
            block.command.ready.eq(engine.command.ready),
            engine.row_row.valid.eq(block.row_row.valid),
            block.row_row.ready.eq(engine.row_row.ready),
        ]


@dataclasses.dataclass(frozen=True)
class _Place:
    """The progress of the command at hand."""

    row: Signal = dataclasses.field(default_factory=lambda: Signal(16, name="row"))
    asked: Signal = dataclasses.field(default_factory=lambda: Signal(range(3), name="asked"))
    next_row: Signal = dataclasses.field(default_factory=lambda: Signal(16, name="next_row"))
    part: Signal = dataclasses.field(default_factory=lambda: Signal(range(_WORDS), name="part"))
    outlier: Signal = dataclasses.field(
        default_factory=lambda: Signal(SLOT_LENGTH_BITS, name="outlier")
    )


def _ask_one(m: Module, at: _Place, request) -> None:
    """Offers a request until it is taken."""
    m.d.comb += request.valid.eq(at.asked == 0)
    with m.If(request.valid & request.ready):
        m.d.sync += at.asked.eq(1)


def _ask_rows(m: Module, at: _Place, request, rows, leaves) -> None:
    """Offers requests of this row and the next one. leaves: this row's last word is sent."""
    taken = Signal()
    m.d.comb += [
        request.valid.eq((at.asked != 2) & (at.next_row < rows)),
        taken.eq(request.valid & request.ready),
    ]
    m.d.sync += at.asked.eq(at.asked + taken - leaves)


def _advance(m: Module, at: _Place, rows, state: str) -> None:
    """The next row, or the next state after ``rows`` rows."""
    m.d.sync += [at.part.eq(0), at.row.eq(at.row + 1)]
    with m.If(at.row == rows - 1):
        m.d.sync += at.row.eq(0)
        m.next = state


def _check(m: Module, config: KllmReadbackConfig, command, faults) -> None:
    """State CHECK: the first fault, or the state in which reads begin."""
    src, rows = operand(command, Opcode.READ, "src"), operand(command, Opcode.READ, "rows")
    slot = operand(command, Opcode.READ_SLOT, "slot")
    m.next = "STATUS"
    with m.If(command.opcode == Opcode.READ):
        with m.If((rows == 0) | (src + rows > config.vectors.rows)):
            m.d.sync += faults.eq(int(CommandStatus.RANGE))
        with m.Else():
            m.next = "ROWS"
    with m.Elif(command.opcode == Opcode.READ_SLOT):
        with m.If(slot >= config.slot.slots):
            m.d.sync += faults.eq(int(CommandStatus.RANGE))
        with m.Else():
            m.next = "DESCRIPTOR"
    with m.Else():
        m.d.sync += faults.eq(int(CommandStatus.MALFORMED))


def _rows(m: Module, at: _Place, request, answer, o, sent, rows) -> None:
    """State ROWS: ``rows`` rows of the vector memory."""
    words = answer.p.word.as_value()
    leaves = Signal(name="row_leaves")
    m.d.comb += [
        o.valid.eq(answer.valid),
        o.p.data.eq(words.word_select(at.part, 32)),
        answer.ready.eq(o.ready & (at.part == _WORDS - 1)),
        leaves.eq(sent & (at.part == _WORDS - 1)),
    ]
    _ask_rows(m, at, request, rows, leaves)
    with m.If(sent):
        m.d.sync += at.part.eq(at.part + 1)
    with m.If(leaves):
        _advance(m, at, rows, "STATUS")


def _slot_states(m: Module, block: KllmReadback, at: _Place, held, entry_rows, sent) -> None:
    """States HEAD, ENTRIES, MASKS and OUTLIERS: the words of the slot of descriptor ``held``."""
    o = block.o
    with m.State("HEAD"):
        m.d.comb += o.valid.eq(1)
        with m.Switch(at.part):
            with m.Case(0):
                m.d.comb += [o.p.data[:16].eq(held.length), o.p.data[16:].eq(held.outliers)]
            with m.Case(1):
                m.d.comb += o.p.data.eq(Cat(held.scale, held.integer))
            with m.Case(2):
                m.d.comb += o.p.data.eq(held.rms_reciprocal)
            with m.Default():
                m.d.comb += o.p.data.eq(held.mean)
        with m.If(sent):
            m.d.sync += at.part.eq(at.part + 1)
            with m.If(at.part == 3):
                m.d.sync += at.part.eq(0)
                m.next = "ENTRIES"
    entries = block.slot_entries
    leaves = Signal(name="entries_leave")
    with m.State("ENTRIES"):
        with m.Switch(at.part):
            for n in range(_ENTRY_WORDS):
                with m.Case(n):
                    for k in range(4):
                        m.d.comb += o.p.data[8 * k : 8 * k + 8].eq(entries.p.value[4 * n + k])
        m.d.comb += [
            o.valid.eq(entries.valid),
            entries.ready.eq(o.ready & (at.part == _ENTRY_WORDS - 1)),
            leaves.eq(sent & (at.part == _ENTRY_WORDS - 1)),
        ]
        _ask_rows(m, at, block.slot_entry_request, entry_rows, leaves)
        with m.If(sent):
            m.d.sync += at.part.eq(at.part + 1)
        with m.If(leaves):
            _advance(m, at, entry_rows, "MASKS")
    with m.State("MASKS"):
        _ask_rows(m, at, block.slot_entry_request, entry_rows, sent)
        m.d.comb += [
            o.valid.eq(entries.valid),
            o.p.data.eq(entries.p.outlier),
            entries.ready.eq(o.ready),
        ]
        with m.If(sent):
            _advance(m, at, entry_rows, "OUTLIERS")
    with m.State("OUTLIERS"):
        with m.If(at.outlier == held.outliers):
            m.next = "STATUS"
        with m.Else():
            _ask_one(m, at, block.slot_outlier_request)
            m.d.comb += [
                o.valid.eq(block.slot_outlier.valid),
                o.p.data.eq(block.slot_outlier.p.word),
                block.slot_outlier.ready.eq(o.ready),
            ]
            with m.If(sent):
                m.d.sync += [at.asked.eq(0), at.outlier.eq(at.outlier + 1)]
