"""Outputs and statuses of the lanes: rows written, and one status per command."""

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.kllm.format import NO_OUTPUT, Status
from golden.kllm.isa import ROW_ELEMENTS, CommandStatus
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.kllm.engine import ROW, front_layout, row_write_layout, status_stream
from hdl.kllm.matmul.config import KllmMatmulConfig
from hdl.kllm.matmul.payloads import row_layout, supply_done_layout
from hdl.ports import In, Out
from hdl.walk import Walk

# Bits of a lane's status that a command reports by name. Any other fault is LANE_FAULT.
_NAMED = {
    Status.NONFINITE: CommandStatus.NONFINITE,
    Status.CODEBOOK_MISSING: CommandStatus.CODEBOOK_MISSING,
    Status.OVERFLOW: CommandStatus.OVERFLOW,
    Status.SCALE_NONFINITE: CommandStatus.SCALE_NONFINITE,
}
_LANE_FAULTS = int(NO_OUTPUT) & ~int(Status.NONFINITE | Status.CODEBOOK_MISSING)
_WITHOUT_OUTPUTS = int(
    CommandStatus.NONFINITE | CommandStatus.LANE_FAULT | CommandStatus.CODEBOOK_MISSING
)


class KllmMatmulCollect(Block):
    """Writes for each ticket, by group and token, the rows of every lane; then gives ``status``.

        V[dst + t * stride + row] = row of lane ``row % group_rows // lane_rows``

    The last row of a token is +0 from ``outputs`` on. The block discards later rows.

        ===============================  =======================================  ==================
        event                            status                                   destination
        ===============================  =======================================  ==================
        ticket.done                      ticket.fault                             not written
        ticket.void                      ticket.fault, after all jobs             not written
        a job with outputs               lanes' bits, by name or LANE_FAULT       its rows
        a job without outputs            the same; no bit of a job with outputs   NaN, all of it
        supply_done.error                BUS_ERROR alone                          NaN, all of it
        ===============================  =======================================  ==================

    A lane offers the status of a job before the first word of its next job. A row may therefore
    belong to the next job while this status waits: the block leaves it.

    With ``front`` the block tells which rows of a command are still to be written. It begins when
    no fault can fill the destination with NaN. That is when a row of it is written and all its
    weights have come (``come``). The command must be of one token of a slot. All of its jobs have
    the header, the indices and the outliers of the first one, which had outputs. So they have
    outputs too. A job's rows are told together, with its statuses.

    Latency: ``row`` to ``write`` 0 cycles; the last ``write`` of a command to ``status`` 3 cycles.
    Throughput 1 row per cycle, and 1 cycle for the statuses of each job. ``row.ready`` depends
    combinationally on ``write.ready``. Golden: golden.kllm.collect.collect.
    """

    tier = Tier.PART
    golden = "golden.kllm.collect:collect"
    configs = FieldOf("kllm_accelerator", "matmul_config", ("table1", "small"))
    checked = "small"

    def __init__(self, config: KllmMatmulConfig):
        front = {}
        if config.front:
            front = {
                "come": In(1, "All words of the supply's eldest job have come, without an error."),
                "front": Out(front_layout, "Rows that are still to be written."),
            }
        super().__init__(
            config,
            {
                **front,
                "ticket": In(stream.Signature(config.ticket_layout), "What to collect."),
                "row": In(stream.Signature(row_layout), "Rows of each lane.").array(config.lanes),
                "lane_status": In(
                    stream.Signature(config.lane.status_layout), "Statuses of each lane."
                ).array(config.lanes),
                "supply_done": In(
                    stream.Signature(supply_done_layout),
                    "One word per job of the supply: whether a read failed.",
                ),
                "write": Out(stream.Signature(row_write_layout), "Rows of the destination."),
                "status": status_stream(),
            },
        )

    timing = Timing(
        latency=0,
        start="row",
        end="write",
        unit="row",
        delays=(
            ("from ticket, as offered, to the first row", 1),
            ("of each job in addition", 1),
            ("from the last lane_status to status", 2),
        ),
    )

    def elaborate(self, platform) -> Module:
        m = Module()
        config, ticket, lanes = self.config, self.ticket.p, range(self.config.lanes)
        jobs = Walk(m, "jobs", groups=ticket.groups, tokens=ticket.tokens)
        rows = Walk(m, "rows", parts=config.lane_rows, lanes=config.lanes)  # of one job
        out_rows = Signal(13)
        fill = Walk(m, "fill", tokens=ticket.tokens, rows=out_rows)
        group_row = Signal(17)  # first row of this group within a token's destination
        token_row = Signal(17)  # first row of this token's destination
        lane = Signal(range(max(config.lanes, 2)))
        # row within the token; the same, or that of fill
        offset = Signal(18)
        place = Signal(18)
        m.d.comb += [
            out_rows.eq((ticket.outputs + (ROW_ELEMENTS - 1)) // ROW_ELEMENTS),
            lane.eq(rows.at.lanes),
            offset.eq(group_row + rows.at.lanes * config.lane_rows + rows.at.parts),
            place.eq(offset),
            self.write.p.row.eq(token_row + place),
        ]
        tail = ticket.outputs % ROW_ELEMENTS
        is_tail = (offset == out_rows - 1) & (tail != 0)
        chosen = Signal(ROW)
        m.d.comb += chosen.eq(Array(self.row[n].p.word.as_value() for n in lanes)[lane])
        for k in range(ROW_ELEMENTS):
            m.d.comb += self.write.p.word[k].eq(Mux(is_tail & (k >= tail), 0, chosen[k]))
        with m.If(jobs.start):
            m.d.sync += [group_row.eq(0), token_row.eq(ticket.dst)]
        with m.Elif(jobs.step & jobs.last.tokens):
            m.d.sync += [group_row.eq(group_row + config.group_rows), token_row.eq(ticket.dst)]
        with m.Elif(jobs.step | (fill.step & fill.wraps.rows)):
            m.d.sync += token_row.eq(token_row + ticket.stride)

        # A lane offers the status of a job before the first word of its next job. A row may
        # therefore belong to the next job while this status waits: it has to stay.
        statuses = self.lane_status
        is_silent = Signal()
        present = Signal()
        take = Signal()
        first = statuses[0]
        m.d.comb += [
            is_silent.eq(first.valid & ((first.p.as_value() & int(NO_OUTPUT)) != 0)),
            present.eq(Array(self.row[n].valid for n in lanes)[lane] & ~is_silent),
        ]
        with m.If(take):
            m.d.comb += Array(self.row[n].ready for n in lanes)[lane].eq(1)

        faults = Signal(len(CommandStatus))
        silent = Signal()
        bus_error = Signal()
        with m.FSM(name="collect") as fsm:
            with m.State("IDLE"):
                # Without a ticket, or with one that is done, the walk's counts may be 0. No step
                # follows then, and each cycle here starts the walk again.
                m.d.comb += [jobs.start.eq(1), rows.start.eq(1)]
                m.d.sync += [faults.eq(ticket.fault), silent.eq(0), bus_error.eq(0)]
                with m.If(self.ticket.valid):
                    m.next = "JOB"
                    with m.If(ticket.done):
                        m.next = "STATUS"
            with m.State("JOB"):
                wanted = (offset < out_rows) & ~ticket.void
                m.d.comb += [
                    self.write.valid.eq(present & wanted),
                    take.eq(present & (~wanted | self.write.ready)),
                    rows.step.eq(take),
                ]
                with m.If(take & rows.is_last):
                    m.next = "LANES"
                with m.If(is_silent):
                    m.d.sync += silent.eq(~ticket.void)
                    m.next = "LANES"
            with m.State("LANES"):
                m.d.comb += rows.start.eq(1)
                with m.If(Cat(status.valid for status in statuses).all()):
                    m.d.comb += [status.ready.eq(1) for status in statuses]
                    m.d.comb += jobs.step.eq(1)
                    m.d.sync += faults.eq(faults | Mux(ticket.void, 0, self._faults()))
                    m.next = "JOB"
                    with m.If(jobs.is_last):
                        m.next = "SUPPLY"
            with m.State("SUPPLY"):
                m.d.comb += [self.supply_done.ready.eq(1), fill.start.eq(1)]
                with m.If(self.supply_done.valid):
                    failed = self.supply_done.p.error & ~ticket.void
                    m.d.sync += bus_error.eq(failed)
                    m.next = "STATUS"
                    with m.If(failed | silent):
                        m.next = "FILL"
            with m.State("FILL"):
                m.d.comb += [
                    self.write.valid.eq(1),
                    place.eq(fill.at.rows),
                    *(self.write.p.word[k].eq(FP16.canonical_nan) for k in range(ROW_ELEMENTS)),
                    fill.step.eq(self.write.ready),
                ]
                with m.If(fill.step & fill.is_last):
                    m.next = "STATUS"
            with m.State("STATUS"):
                shown = Mux(silent, faults & _WITHOUT_OUTPUTS, faults)
                m.d.comb += [
                    self.status.valid.eq(1),
                    self.status.p.status.eq(Mux(bus_error, int(CommandStatus.BUS_ERROR), shown)),
                ]
                with m.If(self.status.ready):
                    m.d.comb += self.ticket.ready.eq(1)
                    m.next = "IDLE"
        if config.front:
            sound = (fsm.ongoing("JOB") | fsm.ongoing("LANES")) & ~silent
            self._tell(m, sound, group_row, out_rows)
        return m

    def _tell(self, m: Module, sound, group_row, out_rows) -> None:
        """Drives ``front``: a command becomes certain once, and is until its status is taken.

        sound: rows or statuses of a job come, and no job had none. Later ``come`` is of the next.
        """
        ticket = self.ticket.p
        wrote = Signal()  # the first job has outputs
        certain = Signal()
        with m.If(self.ticket.valid & self.ticket.ready):
            m.d.sync += [wrote.eq(0), certain.eq(0)]
        with m.Elif(sound):
            m.d.sync += [
                wrote.eq(wrote | (self.write.valid & self.write.ready)),
                certain.eq(certain | (wrote & self.come & ticket.ordered)),
            ]
        m.d.comb += [
            self.front.valid.eq(certain),
            self.front.next.eq(ticket.dst + group_row),
            self.front.end.eq(ticket.dst + out_rows),
        ]

    def _faults(self):
        """The CommandStatus bits of the lanes' statuses."""
        bits = self.lane_status[0].p.as_value()
        for status in self.lane_status[1:]:
            bits = bits | status.p.as_value()
        faults = Mux((bits & _LANE_FAULTS) != 0, int(CommandStatus.LANE_FAULT), 0)
        for source, target in _NAMED.items():
            faults = faults | Mux((bits & int(source)) != 0, int(target), 0)
        return faults
