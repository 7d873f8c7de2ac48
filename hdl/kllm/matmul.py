"""The engine of the lanes: matrix products of slots or rows with streamed weights.

docs/blocks/kllm_matmul.md
"""

import dataclasses
from typing import ClassVar

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from golden.config import Config
from golden.fp16.format import FP16, FP32
from golden.index.format import K_MAX
from golden.kllm.format import (
    NO_OUTPUT,
    Status,
    integer_packet_length,
    kmeans_packet_length,
)
from golden.kllm.isa import ROW_ELEMENTS, Codebook, CommandStatus, MatmulMode, Opcode
from hdl.block import Block
from hdl.emit import add
from hdl.kllm.engine import (
    ROW,
    SLOT_LENGTH_BITS,
    command_stream,
    operand,
    row_read,
    row_write_layout,
    slot_read,
    status_stream,
)
from hdl.kllm.pe_lane import KllmPeLaneConfig
from hdl.stream.fifo import StreamFifo, StreamFifoConfig

__all__ = ["KllmMatmul", "KllmMatmulConfig", "supply_job_layout"]

_ROW_BITS = 16
_ONE = FP16.bias << FP16.frac_bits
_STATUS_BITS = len(CommandStatus)

# What the weight supply is told of a matmul.
supply_job_layout = data.StructLayout(
    {"address": 32, "beats": SLOT_LENGTH_BITS, "groups": 16, "tokens": 8, "fold": 1}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmMatmulConfig(Config):
    """Sizes of what the engine drives."""

    lanes: int = 16  # 1..64
    lane: KllmPeLaneConfig = dataclasses.field(default_factory=KllmPeLaneConfig)
    vector_rows: int = 4096  # rows of the vector memory, 1..65536
    slots: int = 16  # activation slots, 1..256
    slot_elements: int = 4096  # longest token of a slot, 1..16383
    replay_beats: int = 256  # longest tokens that several may share weights, in beats, 1..16383

    def __post_init__(self) -> None:
        self._check_range("lanes", 1, 64)
        if not isinstance(self.lane, KllmPeLaneConfig):
            self._refuse("lane", "a KllmPeLaneConfig")
        if self.lane.columns % ROW_ELEMENTS:
            self._refuse("lane", f"one whose columns are a multiple of {ROW_ELEMENTS}")
        if ROW_ELEMENTS % self.lane.elements:
            self._refuse("lane", f"one whose elements divide {ROW_ELEMENTS}")
        self._check_range("vector_rows", 1, 1 << _ROW_BITS)
        self._check_range("slots", 1, 256)
        self._check_range("slot_elements", 1, min(K_MAX, self.lane.k_max))
        self._check_range("replay_beats", 1, K_MAX)

    @property
    def group_rows(self) -> int:
        """Rows that one group of all lanes gives."""
        return self.lanes * self.lane.columns // ROW_ELEMENTS


class KllmMatmul(Block):
    """LANE_CODEBOOK and MATMUL of golden.kllm.isa: see there and in docs/kllm-commands.md.

    For each group of ``lanes * columns`` output channels, for each token: one job on all lanes,
    whose entries and outliers come from a slot (KMEANS, INTEGER) or whose elements are all
    outliers read from rows (DIRECT). Outputs are gathered per lane into rows. While the lanes
    reduce the last group the next command is checked, its weights are asked for and its first
    job is offered; DIRECT and LANE_CODEBOOK, which read rows, wait until the last output of the
    command before them is written.

    A command that is refused asks for nothing. A fault that only the running command shows
    (BUS_ERROR, a NONFINITE element of DIRECT) ends with the whole destination filled with the
    canonical NaN. Source: KLLM, section IV-A. Golden: golden.kllm.machine.

    Members
    -------
    command, status              as hdl.kllm.engine says
    row_..., write, slot_...     clients of the vector memory and of the slots
    job, a, x, codebook : Out    shared streams of kllm_lane_array
    y_l, lane_status_l : In      of each lane
    supply : Out                 address, beats, groups, tokens, fold: a job of kllm_weight_supply
    supply_rms : Out             rms_reciprocal of each token, when fold is set
    supply_done : In             error: the supply has handed over all that was asked for; the
                                 configuration admits no job that it refuses
    """

    meaning: ClassVar[dict[str, str]] = {}

    def __init__(self, config: KllmMatmulConfig):
        lane = config.lane
        members = {
            "command": command_stream(),
            "status": status_stream(),
            **row_read("row"),
            "write": Out(stream.Signature(row_write_layout)),
            **slot_read("slot", lane.bits_a, lane.integer_bits),
            "job": Out(stream.Signature(lane.job_layout)),
            "a": Out(stream.Signature(lane.a_layout)),
            "x": Out(stream.Signature(lane.value_layout)),
            "codebook": Out(stream.Signature(lane.word_layout)),
            "supply": Out(stream.Signature(supply_job_layout)),
            "supply_rms": Out(stream.Signature(data.StructLayout({"word": FP32.bits}))),
            "supply_done": In(stream.Signature(data.StructLayout({"error": 1, "refused": 1}))),
        }
        self.meaning = {
            "command": "LANE_CODEBOOK and MATMUL commands.",
            "status": "One word of CommandStatus bits per command.",
            "row_request": "Rows of the vector memory wanted.",
            "row_row": "Those rows, in order.",
            "write": "Rows of the destination.",
            "slot_slot": "Descriptors wanted.",
            "slot_descriptor": "Those descriptors, in order.",
            "slot_entry_request": "Entry rows wanted.",
            "slot_entries": "Those rows, in order.",
            "slot_outlier_request": "Outlier words wanted.",
            "slot_outlier": "Those words, in order.",
            "job": "Jobs of the lanes.",
            "a": "Activation entries of the jobs.",
            "x": "Outlier words of the jobs.",
            "codebook": "Codebook packets of the lanes.",
            "supply": "Weights wanted.",
            "supply_rms": "Factor of each token's weight scales.",
            "supply_done": "One word per job of the supply: whether a read failed.",
        }
        for n in range(config.lanes):
            members[f"y_{n}"] = In(stream.Signature(lane.word_layout))
            members[f"lane_status_{n}"] = In(stream.Signature(lane.status_layout))
            self.meaning[f"y_{n}"] = f"Outputs of lane {n}."
            self.meaning[f"lane_status_{n}"] = f"Statuses of lane {n}."
        super().__init__(config, members)

    @property
    def latency(self) -> str:
        return "a dozen cycles of checks, then that of the lanes"

    @property
    def throughput(self) -> str:
        return "one beat of entries per cycle in, one row per cycle out"

    def elaborate(self, platform) -> Module:
        m = Module()
        self._elaborate_issue(m)
        self._elaborate_collect(m)
        return m

    # What the two halves tell each other about a command.
    _ticket = data.StructLayout(
        {
            "fault": _STATUS_BITS,
            "dst": _ROW_BITS,
            "stride": 16,
            "tokens": 8,
            "outputs": 16,
            "groups": 16,
            "done": 1,  # nothing to collect: a codebook, or a refused command
        }
    )

    def _elaborate_issue(self, m: Module) -> None:
        """Checks a command, then walks its jobs, entries and outliers."""
        config, lane = self.config, self.config.lane
        elements = lane.elements
        command = self.command.p
        self.tickets = tickets = add(
            m, "tickets", StreamFifo(StreamFifoConfig(width=self._ticket.size, depth=2))
        )
        ticket = Signal(self._ticket)
        send_ticket = Signal()
        m.d.comb += [
            tickets.i.valid.eq(send_ticket),
            tickets.i.p.data.eq(ticket),
            tickets.i.p.last.eq(1),
        ]
        self.collecting = Signal()  # the other half has a ticket
        is_idle = Signal()
        m.d.comb += is_idle.eq((tickets.level == 0) & ~self.collecting)

        def of(opcode, name):
            return operand(command, opcode, name)

        mode = of(Opcode.MATMUL, "mode")
        tokens = of(Opcode.MATMUL, "tokens")
        length = of(Opcode.MATMUL, "length")
        outputs = of(Opcode.MATMUL, "outputs")
        dst, stride = of(Opcode.MATMUL, "dst"), of(Opcode.MATMUL, "stride")
        src, src_stride = of(Opcode.MATMUL, "src"), of(Opcode.MATMUL, "src_stride")
        slot, fold = of(Opcode.MATMUL, "slot"), of(Opcode.MATMUL, "fold_norm")
        direct, integer = mode == MatmulMode.DIRECT, mode == MatmulMode.INTEGER
        kind = of(Opcode.LANE_CODEBOOK, "kind")
        codebook_src = of(Opcode.LANE_CODEBOOK, "src")

        # Registered sizes of the command at hand, and its range check.
        in_rows, out_rows = Signal(11), Signal(13)
        beats = Signal(SLOT_LENGTH_BITS)
        packet = Signal(range(max(kmeans_packet_length(4, 4), 32) + 1))
        m.d.sync += [
            in_rows.eq((length + (ROW_ELEMENTS - 1)) // ROW_ELEMENTS),
            out_rows.eq((outputs + (ROW_ELEMENTS - 1)) // ROW_ELEMENTS),
            beats.eq((length + (elements - 1)) // elements),
            packet.eq(
                Mux(
                    kind == Codebook.KMEANS,
                    kmeans_packet_length(lane.bits_a, lane.bits_b, lane.product),
                    integer_packet_length(lane.bits_b),
                )
            ),
        ]
        longest = Mux(direct, min(config.slot_elements, lane.outliers_max), config.slot_elements)
        span = Signal(26)
        src_span = Signal(26)
        m.d.sync += [span.eq(stride * (tokens - 1)[:8]), src_span.eq(src_stride * (tokens - 1)[:8])]
        range_fault, codebook_range_fault = Signal(), Signal()
        no_integers = Const(int(not lane.integer_bits))
        m.d.comb += [
            range_fault.eq(
                (mode == 3)
                | (tokens == 0)
                | (length == 0)
                | (length > longest)
                | (outputs == 0)
                | (dst + span + out_rows > config.vector_rows)
                | Mux(
                    direct,
                    (src + src_span + in_rows > config.vector_rows) | fold,
                    slot + tokens > config.slots,
                )
                | ((tokens > 1) & (beats > config.replay_beats))
                | (integer & no_integers)
            ),
            codebook_range_fault.eq(
                (codebook_src + (packet + (ROW_ELEMENTS - 1)) // ROW_ELEMENTS > config.vector_rows)
                | ((kind == Codebook.INTEGER) & no_integers)
            ),
        ]

        loaded, loaded_kind = Signal(), Signal(Codebook)
        groups, group_outputs = Signal(16), Signal(17)
        token = Signal(9)
        answered = Signal(9)
        mismatch = Signal()
        word, bad_word = Signal.like(packet), Signal()
        running = Signal()  # the walkers have work
        m.d.comb += [
            ticket.dst.eq(dst),
            ticket.stride.eq(stride),
            ticket.tokens.eq(tokens),
            ticket.outputs.eq(outputs),
            ticket.groups.eq(groups),
        ]
        # The packet of LANE_CODEBOOK, and the rows of DIRECT, come as words of rows.
        row_word, row_free = Signal(FP16.bits), Signal()
        place = Signal(range(ROW_ELEMENTS))
        m.d.comb += row_word.eq(self.row_row.p.word.as_value().word_select(place, FP16.bits))
        requested = Signal(_ROW_BITS + 1)  # rows asked for
        packet_rows = (packet + (ROW_ELEMENTS - 1)) // ROW_ELEMENTS

        job_done, a_done, x_done = Signal(), Signal(), Signal()
        start = Signal()
        # Room for every token: the supply may take the last factors only when the lanes have taken
        # weights, and the lanes get their jobs after the last factor.
        factors = add(
            m,
            "factors",
            StreamFifo(
                StreamFifoConfig(width=FP32.bits, depth=max(3, config.slots), storage="memory")
            ),
        )
        m.d.comb += [
            self.supply_rms.valid.eq(factors.o.valid),
            self.supply_rms.p.word.eq(factors.o.p.data),
            factors.o.ready.eq(self.supply_rms.ready),
        ]

        def end(fault) -> None:
            """The ticket says that nothing is to be collected, and the command is over."""
            m.d.comb += [ticket.fault.eq(fault), ticket.done.eq(1), send_ticket.eq(1)]
            with m.If(tickets.i.ready):
                m.next = "END"

        with m.FSM(name="issue"):
            with m.State("IDLE"):
                m.d.sync += [
                    token.eq(0), answered.eq(0), mismatch.eq(0), groups.eq(0),
                    group_outputs.eq(0), word.eq(0), bad_word.eq(0), requested.eq(0), place.eq(0),
                ]  # fmt: skip
                with m.If(self.command.valid):
                    m.next = "SIZE"
            with m.State("SIZE"):
                with m.If(command.opcode == Opcode.LANE_CODEBOOK):
                    with m.If(is_idle):
                        m.next = "CODEBOOK_CHECK"
                with m.Elif(command.opcode == Opcode.MATMUL):
                    with m.If(~direct | is_idle):
                        m.next = "CHECK"
                with m.Else():
                    end(int(CommandStatus.MALFORMED))
            with m.State("CODEBOOK_CHECK"):
                with m.If(codebook_range_fault):
                    end(int(CommandStatus.RANGE))
                with m.Else():
                    m.d.sync += loaded.eq(0)
                    m.next = "CODEBOOK"
            with m.State("CODEBOOK"):
                m.d.comb += [
                    self.row_request.valid.eq(requested < packet_rows),
                    self.row_request.p.row.eq(codebook_src + requested),
                    self.codebook.valid.eq(self.row_row.valid),
                    self.codebook.p.word.eq(row_word),
                    self.codebook.p.last.eq(word == packet - 1),
                    row_free.eq((place == ROW_ELEMENTS - 1) | (word == packet - 1)),
                    self.row_row.ready.eq(self.codebook.ready & row_free),
                ]
                with m.If(self.row_request.valid & self.row_request.ready):
                    m.d.sync += requested.eq(requested + 1)
                with m.If(self.codebook.valid & self.codebook.ready):
                    m.d.sync += [
                        word.eq(word + 1),
                        place.eq(place + 1),
                        bad_word.eq(bad_word | (row_word[:-1] > _ONE)),
                    ]
                    with m.If(self.codebook.p.last):
                        m.next = "CODEBOOK_END"
            with m.State("CODEBOOK_END"):
                end(Mux(bad_word, int(CommandStatus.RANGE), 0))
                m.d.sync += [loaded.eq(~bad_word), loaded_kind.eq(kind)]

            with m.State("CHECK"):
                missing = ~loaded | (
                    loaded_kind != Mux(integer, int(Codebook.INTEGER), int(Codebook.KMEANS))
                )
                with m.If(range_fault | missing):
                    end(
                        Mux(
                            range_fault,
                            int(CommandStatus.RANGE),
                            int(CommandStatus.CODEBOOK_MISSING),
                        )
                    )
                with m.Elif(direct):
                    m.next = "GROUPS"
                with m.Else():
                    m.next = "DESCRIPTORS"
            with m.State("DESCRIPTORS"):
                descriptor = self.slot_descriptor.p
                m.d.comb += [
                    self.slot_slot.valid.eq(token < tokens),
                    self.slot_slot.p.slot.eq(slot + token),
                    self.slot_descriptor.ready.eq(1),
                ]
                with m.If(self.slot_slot.valid & self.slot_slot.ready):
                    m.d.sync += token.eq(token + 1)
                with m.If(self.slot_descriptor.valid):
                    wrong = (
                        ~descriptor.valid
                        | (descriptor.length != length)
                        | (descriptor.integer != integer)
                    )
                    m.d.sync += [mismatch.eq(mismatch | wrong), answered.eq(answered + 1)]
                with m.If(answered == tokens):
                    m.d.sync += [token.eq(0), answered.eq(0)]
                    with m.If(mismatch):
                        m.next = "MISMATCH"
                    with m.Else():
                        m.next = "GROUPS"
            with m.State("MISMATCH"):
                end(int(CommandStatus.SLOT_MISMATCH))
            with m.State("GROUPS"):
                with m.If(group_outputs < outputs):
                    m.d.sync += [
                        groups.eq(groups + 1),
                        group_outputs.eq(group_outputs + config.lanes * lane.columns),
                    ]
                with m.Else():
                    m.next = "SUPPLY"
            with m.State("SUPPLY"):
                m.d.comb += [
                    self.supply.valid.eq(1),
                    self.supply.p.address.eq(of(Opcode.MATMUL, "weights")),
                    self.supply.p.beats.eq(beats),
                    self.supply.p.groups.eq(groups),
                    self.supply.p.tokens.eq(tokens),
                    self.supply.p.fold.eq(fold),
                ]
                with m.If(self.supply.ready):
                    m.next = "TICKET"
            with m.State("TICKET"):
                m.d.comb += send_ticket.eq(1)
                with m.If(tickets.i.ready):
                    with m.If(fold):
                        m.next = "RMS"
                    with m.Else():
                        m.d.comb += start.eq(1)
                        m.next = "RUN"
            with m.State("RMS"):
                m.d.comb += [
                    self.slot_slot.valid.eq(token < tokens),
                    self.slot_slot.p.slot.eq(slot + token),
                    self.slot_descriptor.ready.eq(factors.i.ready),
                    factors.i.valid.eq(self.slot_descriptor.valid),
                    factors.i.p.data.eq(self.slot_descriptor.p.rms_reciprocal),
                    factors.i.p.last.eq(1),
                ]
                with m.If(self.slot_slot.valid & self.slot_slot.ready):
                    m.d.sync += token.eq(token + 1)
                with m.If(factors.i.valid & factors.i.ready):
                    m.d.sync += answered.eq(answered + 1)
                with m.If(answered == tokens):
                    m.d.comb += start.eq(1)
                    m.next = "RUN"
            with m.State("RUN"):
                m.d.comb += running.eq(1)
                with m.If(job_done & a_done & x_done):
                    m.next = "END"
            with m.State("END"):
                m.d.comb += self.command.ready.eq(1)
                m.next = "IDLE"

        # Jobs: for each group, for each token. x_counts tells the outlier walker how many.
        x_counts = add(
            m,
            "x_counts",
            StreamFifo(StreamFifoConfig(width=8 + SLOT_LENGTH_BITS, depth=4)),
        )
        job_group, job_token = Signal(16), Signal(8)
        asked, have = Signal(), Signal()  # the descriptor of this job
        job_sent, count_sent = Signal(), Signal()
        held_scale, held_outliers = Signal(FP16.bits), Signal(SLOT_LENGTH_BITS)
        m.d.comb += [
            self.job.valid.eq(running & ~job_done & have & ~job_sent),
            self.job.p.length.eq(length),
            self.job.p.outliers.eq(Mux(direct, length, held_outliers)),
            self.job.p.s_a.eq(Mux(direct, _ONE, held_scale)),
            self.job.p.last_column.eq(lane.columns - 1),
            self.job.p.integer.eq(integer),
            x_counts.i.valid.eq(running & ~job_done & have & ~count_sent & ~direct),
            x_counts.i.p.data.eq(Cat(held_outliers, (slot + job_token)[:8])),
            x_counts.i.p.last.eq(1),
        ]
        with m.If(start):
            m.d.sync += [
                job_group.eq(0), job_token.eq(0), job_done.eq(0), asked.eq(direct),
                have.eq(direct), job_sent.eq(0), count_sent.eq(direct),
            ]  # fmt: skip
        with m.If(running & ~job_done):
            with m.If(~asked):
                m.d.comb += [
                    self.slot_slot.valid.eq(1),
                    self.slot_slot.p.slot.eq(slot + job_token),
                ]
                with m.If(self.slot_slot.ready):
                    m.d.sync += asked.eq(1)
            with m.If(asked & ~have):
                m.d.comb += self.slot_descriptor.ready.eq(1)
                with m.If(self.slot_descriptor.valid):
                    m.d.sync += [
                        have.eq(1),
                        held_scale.eq(self.slot_descriptor.p.scale),
                        held_outliers.eq(self.slot_descriptor.p.outliers),
                    ]
            job_gone = job_sent | (self.job.valid & self.job.ready)
            count_gone = count_sent | (x_counts.i.valid & x_counts.i.ready)
            m.d.sync += [job_sent.eq(job_gone), count_sent.eq(count_gone)]
            with m.If(have & job_gone & count_gone):
                m.d.sync += [
                    job_sent.eq(0), count_sent.eq(direct), asked.eq(direct), have.eq(direct),
                ]  # fmt: skip
                with m.If(job_token == tokens - 1):
                    m.d.sync += [job_token.eq(0), job_group.eq(job_group + 1)]
                    with m.If(job_group == groups - 1):
                        m.d.sync += job_done.eq(1)
                with m.Else():
                    m.d.sync += job_token.eq(job_token + 1)

        # Entries: requests run ahead of the beats made of the answers.
        ask_group, ask_token, ask_row = Signal(16), Signal(8), Signal(11)
        ask_done = Signal()
        beat_group, beat_token, beat = Signal(16), Signal(8), Signal(SLOT_LENGTH_BITS)
        sub_beats = ROW_ELEMENTS // elements
        sub = Signal(range(max(sub_beats, 2)))
        with m.If(start):
            m.d.sync += [
                ask_group.eq(0), ask_token.eq(0), ask_row.eq(0), ask_done.eq(direct),
                beat_group.eq(0), beat_token.eq(0), beat.eq(0), sub.eq(0), a_done.eq(0),
            ]  # fmt: skip
        m.d.comb += [
            self.slot_entry_request.valid.eq(running & ~ask_done),
            self.slot_entry_request.p.slot.eq(slot + ask_token),
            self.slot_entry_request.p.row.eq(ask_row),
        ]
        with m.If(self.slot_entry_request.valid & self.slot_entry_request.ready):
            m.d.sync += ask_row.eq(ask_row + 1)
            with m.If(ask_row == in_rows - 1):
                m.d.sync += [ask_row.eq(0), ask_token.eq(ask_token + 1)]
                with m.If(ask_token == tokens - 1):
                    m.d.sync += [ask_token.eq(0), ask_group.eq(ask_group + 1)]
                    with m.If(ask_group == groups - 1):
                        m.d.sync += ask_done.eq(1)
        entries = self.slot_entries.p
        value_bits = len(entries.value[0])
        is_last_beat = beat == beats - 1
        here = Signal(SLOT_LENGTH_BITS + 1)  # position of the beat's first element
        values = Cat(entries.value).word_select(sub, elements * value_bits)
        mask = entries.outlier.word_select(sub, elements)
        inside = Cat(here + e < length for e in range(elements))
        m.d.comb += [
            here.eq(beat * elements),
            self.a.valid.eq(running & ~a_done & (direct | self.slot_entries.valid)),
            self.a.p.value.as_value().eq(Mux(direct, 0, values)),
            self.a.p.outlier.eq(Mux(integer, 0, Mux(direct, (1 << elements) - 1, mask)) & inside),
            self.a.p.last.eq(is_last_beat),
            self.slot_entries.ready.eq(
                running & ~a_done & ~direct & self.a.ready & (is_last_beat | (sub == sub_beats - 1))
            ),
        ]
        with m.If(self.a.valid & self.a.ready):
            m.d.sync += beat.eq(beat + 1)
            if sub_beats > 1:
                m.d.sync += sub.eq(sub + 1)
            with m.If(is_last_beat):
                m.d.sync += [beat.eq(0), sub.eq(0), beat_token.eq(beat_token + 1)]
                with m.If(beat_token == tokens - 1):
                    m.d.sync += [beat_token.eq(0), beat_group.eq(beat_group + 1)]
                    with m.If(beat_group == groups - 1):
                        m.d.sync += a_done.eq(1)

        # Outliers of slots, or the rows of DIRECT.
        x_position = Signal(SLOT_LENGTH_BITS)
        x_slot, x_count = Signal(8), Signal(SLOT_LENGTH_BITS)
        m.d.comb += Cat(x_count, x_slot).eq(x_counts.o.p.data)
        x_wanted, x_given = Signal(24), Signal(24)  # outlier words asked for and given
        row_group, row_token, row = Signal(16), Signal(8), Signal(11)
        row_base = Signal(_ROW_BITS)
        rows_done = Signal()
        word_group, word_token, x_word = Signal(16), Signal(8), Signal(SLOT_LENGTH_BITS)
        words_done = Signal()
        with m.If(start):
            m.d.sync += [
                x_position.eq(0), x_wanted.eq(0), x_given.eq(0),
                row_group.eq(0), row_token.eq(0), row.eq(0), row_base.eq(src), rows_done.eq(0),
                word_group.eq(0), word_token.eq(0), x_word.eq(0), words_done.eq(0), place.eq(0),
            ]  # fmt: skip
        with m.If(running & ~direct):
            m.d.comb += [
                self.slot_outlier_request.valid.eq(x_counts.o.valid & (x_position != x_count)),
                self.slot_outlier_request.p.slot.eq(x_slot),
                self.slot_outlier_request.p.position.eq(x_position),
                x_counts.o.ready.eq(x_position == x_count),
                self.x.valid.eq(self.slot_outlier.valid),
                self.x.p.word.eq(self.slot_outlier.p.word),
                self.slot_outlier.ready.eq(self.x.ready),
                x_done.eq(job_done & (x_counts.level == 0) & (x_wanted == x_given)),
            ]
            with m.If(self.slot_outlier_request.valid & self.slot_outlier_request.ready):
                m.d.sync += [x_position.eq(x_position + 1), x_wanted.eq(x_wanted + 1)]
            with m.If(x_counts.o.valid & x_counts.o.ready):
                m.d.sync += x_position.eq(0)
            with m.If(self.x.valid & self.x.ready):
                m.d.sync += x_given.eq(x_given + 1)
        with m.If(running & direct):
            is_last_word = x_word == length - 1
            m.d.comb += [
                self.row_request.valid.eq(~rows_done),
                self.row_request.p.row.eq(row_base + row),
                self.x.valid.eq(self.row_row.valid),
                self.x.p.word.eq(row_word),
                self.row_row.ready.eq(self.x.ready & ((place == ROW_ELEMENTS - 1) | is_last_word)),
                x_done.eq(words_done),
            ]
            with m.If(self.row_request.valid & self.row_request.ready):
                m.d.sync += row.eq(row + 1)
                with m.If(row == in_rows - 1):
                    m.d.sync += [
                        row.eq(0), row_token.eq(row_token + 1), row_base.eq(row_base + src_stride),
                    ]  # fmt: skip
                    with m.If(row_token == tokens - 1):
                        m.d.sync += [
                            row_token.eq(0), row_base.eq(src), row_group.eq(row_group + 1),
                        ]  # fmt: skip
                        with m.If(row_group == groups - 1):
                            m.d.sync += rows_done.eq(1)
            with m.If(self.x.valid & self.x.ready):
                m.d.sync += [x_word.eq(x_word + 1), place.eq(place + 1)]
                with m.If(is_last_word):
                    m.d.sync += [x_word.eq(0), place.eq(0), word_token.eq(word_token + 1)]
                    with m.If(word_token == tokens - 1):
                        m.d.sync += [word_token.eq(0), word_group.eq(word_group + 1)]
                        with m.If(word_group == groups - 1):
                            m.d.sync += words_done.eq(1)

    def _elaborate_collect(self, m: Module) -> None:
        """Gathers the outputs of each job into rows and ends each command with its status."""
        config, lane = self.config, self.config.lane
        lanes = config.lanes
        tickets = self.tickets
        ticket = data.View(self._ticket, tickets.o.p.data)

        # Each lane's words to rows: one row waits while the next is gathered.
        row_valid = [Signal(name=f"row_valid_{n}") for n in range(lanes)]
        rows = [Signal(ROW, name=f"row_{n}", reset_less=True) for n in range(lanes)]
        row_take = [Signal(name=f"row_take_{n}") for n in range(lanes)]
        for n in range(lanes):
            y = getattr(self, f"y_{n}")
            gathered = Signal(range(ROW_ELEMENTS), name=f"gathered_{n}")
            words = [
                Signal(FP16.bits, name=f"gathered_{n}_{k}", reset_less=True)
                for k in range(ROW_ELEMENTS - 1)
            ]
            is_full = gathered == ROW_ELEMENTS - 1
            m.d.comb += y.ready.eq(~is_full | ~row_valid[n] | row_take[n])
            with m.If(row_take[n]):
                m.d.sync += row_valid[n].eq(0)
            with m.If(y.valid & y.ready):
                m.d.sync += gathered.eq(gathered + 1)
                for k, word in enumerate(words):
                    with m.If(gathered == k):
                        m.d.sync += word.eq(y.p.word)
                with m.If(is_full):
                    m.d.sync += [rows[n].as_value().eq(Cat(*words, y.p.word)), row_valid[n].eq(1)]

        statuses = [getattr(self, f"lane_status_{n}") for n in range(lanes)]
        all_statuses = Signal(len(Status))
        any_bits = statuses[0].p.as_value()
        for status in statuses[1:]:
            any_bits = any_bits | status.p.as_value()
        m.d.comb += all_statuses.eq(any_bits)

        per_lane = lane.columns // ROW_ELEMENTS  # rows of a job and lane
        group, token = Signal(16), Signal(8)
        which, part = Signal(range(max(lanes, 2))), Signal(range(max(per_lane, 2)))
        group_row = Signal(17)  # first row of this group within a token's destination
        token_row = Signal(_ROW_BITS + 1)  # first row of this token's destination
        fill_row = Signal(13)
        out_rows = Signal(13)
        faults, silent, bus_error = Signal(_STATUS_BITS), Signal(), Signal()
        m.d.comb += out_rows.eq((ticket.outputs + (ROW_ELEMENTS - 1)) // ROW_ELEMENTS)

        offset = Signal(18)
        m.d.comb += offset.eq(group_row + which * per_lane + part)
        tail = ticket.outputs % ROW_ELEMENTS
        chosen = Signal(ROW)
        m.d.comb += chosen.eq(Array(row.as_value() for row in rows)[which])
        is_tail = (offset == out_rows - 1) & (tail != 0)
        for k in range(ROW_ELEMENTS):
            m.d.comb += self.write.p.word[k].eq(Mux(is_tail & (k >= tail), 0, chosen[k]))

        next_token = Signal()  # the job is over
        with m.If(next_token):
            with m.If(token == ticket.tokens - 1):
                m.d.sync += [
                    token.eq(0),
                    token_row.eq(ticket.dst),
                    group.eq(group + 1),
                    group_row.eq(group_row + config.group_rows),
                ]
            with m.Else():
                m.d.sync += [token.eq(token + 1), token_row.eq(token_row + ticket.stride)]

        with m.FSM(name="collect"):
            with m.State("IDLE"):
                m.d.sync += [
                    group.eq(0), token.eq(0), which.eq(0), part.eq(0), group_row.eq(0),
                    token_row.eq(ticket.dst), fill_row.eq(0), faults.eq(0), silent.eq(0),
                    bus_error.eq(0),
                ]  # fmt: skip
                with m.If(tickets.o.valid):
                    m.d.sync += faults.eq(ticket.fault)
                    m.next = "JOB"
                    with m.If(ticket.done):
                        m.next = "STATUS"
            with m.State("JOB"):
                # A lane offers the status of a job before the first word of its next job. A row may
                # therefore belong to the next job while this status waits: it has to stay.
                is_silent = statuses[0].valid & ((statuses[0].p.as_value() & int(NO_OUTPUT)) != 0)
                present = Array(row_valid)[which] & ~is_silent
                wanted = offset < out_rows
                m.d.comb += [
                    self.write.valid.eq(present & wanted),
                    self.write.p.row.eq(token_row + offset),
                ]
                with m.If(present & (~wanted | self.write.ready)):
                    m.d.comb += Array(row_take)[which].eq(1)
                    m.d.sync += which.eq(which + 1)
                    with m.If(which == lanes - 1):
                        m.d.sync += [which.eq(0), part.eq(part + 1)]
                        with m.If(part == per_lane - 1):
                            m.d.sync += part.eq(0)
                            m.next = "LANES"
                with m.If(is_silent):
                    m.d.sync += silent.eq(1)
                    m.next = "LANES"
            with m.State("LANES"):
                with m.If(Cat(status.valid for status in statuses).all()):
                    m.d.comb += [status.ready.eq(1) for status in statuses]
                    m.d.comb += next_token.eq(1)
                    others = int(NO_OUTPUT) & ~int(Status.NONFINITE | Status.CODEBOOK_MISSING)
                    m.d.sync += faults.eq(
                        faults
                        | Mux((all_statuses & others) != 0, int(CommandStatus.LANE_FAULT), 0)
                        | _flag(all_statuses, Status.NONFINITE, CommandStatus.NONFINITE)
                        | _flag(
                            all_statuses, Status.CODEBOOK_MISSING, CommandStatus.CODEBOOK_MISSING
                        )
                        | _flag(all_statuses, Status.OVERFLOW, CommandStatus.OVERFLOW)
                        | _flag(all_statuses, Status.SCALE_NONFINITE, CommandStatus.SCALE_NONFINITE)
                    )
                    m.next = "JOB"
                    with m.If((token == ticket.tokens - 1) & (group == ticket.groups - 1)):
                        m.next = "SUPPLY"
            with m.State("SUPPLY"):
                m.d.comb += self.supply_done.ready.eq(1)
                m.d.sync += [token.eq(0), token_row.eq(ticket.dst)]
                with m.If(self.supply_done.valid):
                    m.d.sync += bus_error.eq(self.supply_done.p.error)
                    m.next = "STATUS"
                    with m.If(self.supply_done.p.error | silent):
                        m.next = "FILL"
            with m.State("FILL"):
                m.d.comb += [
                    self.write.valid.eq(1),
                    self.write.p.row.eq(token_row + fill_row),
                    *(self.write.p.word[k].eq(FP16.canonical_nan) for k in range(ROW_ELEMENTS)),
                ]
                with m.If(self.write.ready):
                    m.d.sync += fill_row.eq(fill_row + 1)
                    with m.If(fill_row == out_rows - 1):
                        m.d.sync += fill_row.eq(0)
                        m.d.comb += next_token.eq(1)
                        with m.If(token == ticket.tokens - 1):
                            m.next = "STATUS"
            with m.State("STATUS"):
                failed = int(
                    CommandStatus.NONFINITE
                    | CommandStatus.LANE_FAULT
                    | CommandStatus.CODEBOOK_MISSING
                )
                m.d.comb += [
                    self.status.valid.eq(1),
                    self.status.p.status.eq(
                        Mux(
                            bus_error,
                            int(CommandStatus.BUS_ERROR),
                            Mux(silent, faults & failed, faults),
                        )
                    ),
                ]
                with m.If(self.status.ready):
                    m.d.comb += tickets.o.ready.eq(1)
                    m.next = "IDLE"
            m.d.comb += self.collecting.eq(tickets.o.valid)


def _flag(bits, source: Status, target: CommandStatus):
    return Mux((bits & int(source)) != 0, int(target), 0)
