"""The engine of the lanes: matrix products of slots or rows with streamed weights.

docs/blocks/kllm_matmul.md
"""

from amaranth import Module
from amaranth.lib import stream

from golden.kllm.timing import matmul_supply
from golden.timing import Timing
from hdl.block import Block, FieldOf
from hdl.children import add
from hdl.kllm.engine import (
    command_stream,
    front_layout,
    release_layout,
    row_read,
    row_write_layout,
    slot_read,
    status_stream,
)
from hdl.kllm.matmul.collect import KllmMatmulCollect
from hdl.kllm.matmul.config import KllmMatmulConfig, KllmMatmulPhaseConfig
from hdl.kllm.matmul.entries import KllmEntryWalk
from hdl.kllm.matmul.gather import KllmRowGather
from hdl.kllm.matmul.issue import KllmMatmulIssue
from hdl.kllm.matmul.jobs import KllmJobWalk
from hdl.kllm.matmul.outliers import KllmOutlierWalk
from hdl.kllm.matmul.payloads import (
    supply_done_layout,
    supply_job_layout,
    supply_rms_layout,
)
from hdl.kllm.matmul.rows import KllmRowWalk
from hdl.ports import In, Out
from hdl.stream.link import StreamView, link
from hdl.stream.queue import queue


class KllmMatmul(Block):
    """LANE_CODEBOOK and MATMUL of golden.kllm.isa: see there and in docs/kllm-commands.md.

    For each group of ``lanes * columns`` output channels, for each token: one job on all lanes.
    A job of KMEANS or INTEGER has the entries and outliers of a slot. A job of DIRECT has words of
    rows, each of them an outlier. The engine gathers the outputs of each lane into rows.

    The next command overlaps the last group: the engine checks it, requests its weights and offers
    its first job. DIRECT and LANE_CODEBOOK read rows. So they wait until the last output of the
    command before them is written. A MATMUL requests its weights as soon as it is offered. The
    engine waits neither for ``release`` nor for the codebook before it. With the field ``front`` it
    tells which rows of a certain command are still to be written (KllmMatmulCollect).

        ============================================  ========================================
        condition                                     effect
        ============================================  ========================================
        a command is refused                          no reads
        SLOT_MISMATCH, ABORTED; CODEBOOK_MISSING      the weights are read and have no effect
        after a bad packet of the needed kind
        BUS_ERROR, or a NONFINITE element of DIRECT   the destination is the canonical NaN
        ============================================  ========================================

    Source: KLLM, section IV-A. Golden: golden.kllm.machine.
    """

    golden = "golden.kllm.machine:Machine"
    reference = "tests/kllm/test_layer.py: test_head_program"
    configs = FieldOf("kllm_accelerator", "matmul_config", ("table1", "small"))

    def __init__(self, config: KllmMatmulConfig):
        lane = config.lane
        front = {}
        if config.front:
            front = {
                "come": In(1, "All words of the supply's eldest job have come, without an error."),
                "front": Out(front_layout, "Rows that a certain command still writes."),
            }
        super().__init__(
            config,
            {
                **front,
                "command": command_stream("LANE_CODEBOOK and MATMUL commands."),
                "release": In(
                    stream.Signature(release_layout),
                    "One word per command, when it may run. Taken together with the command.",
                ),
                "status": status_stream(),
                **row_read("row", "rows of the vector memory"),
                "write": Out(stream.Signature(row_write_layout), "Rows of the destination."),
                **slot_read("slot", lane.bits_a, lane.integer_bits),
                "job": Out(stream.Signature(lane.job_layout), "Jobs of the lanes."),
                "a": Out(stream.Signature(lane.a_layout), "Activation entries of the jobs."),
                "x": Out(stream.Signature(lane.value_layout), "Outlier words of the jobs."),
                "codebook": Out(
                    stream.Signature(lane.packet_layout), "Codebook packets of the lanes."
                ),
                "supply": Out(stream.Signature(supply_job_layout), "Weights wanted."),
                "supply_rms": Out(
                    stream.Signature(supply_rms_layout), "Factor of each token's weight scales."
                ),
                "supply_done": In(
                    stream.Signature(supply_done_layout), "One word per job of the supply."
                ),
                "y": In(stream.Signature(lane.word_layout), "Outputs of lane {0}.").array(
                    config.lanes
                ),
                "lane_status": In(
                    stream.Signature(lane.status_layout), "Statuses of lane {0}."
                ).array(config.lanes),
            },
        )

    # The least latency: DIRECT of one group. ``matmul_supply`` has that of each command.
    timing = Timing(
        latency=matmul_supply(1),
        start="command.valid",
        end="supply",
        unit="beat",
        delays=(
            ("from the last slot_descriptor to slot_entry_request, without fold_norm", 3),
            ("from a row's last y_0 to its write", 1),
            ("from a command's last write to its status", 3),
            ("from a packet's last codebook to the turn of the next command", 2),
        ),
    )

    def elaborate(self, platform) -> Module:
        m, config, none = Module(), self.config, KllmMatmulPhaseConfig()
        issue = add(m, "issue", KllmMatmulIssue(config))
        jobs = add(m, "jobs", KllmJobWalk(config.lane))
        entries = add(m, "entries", KllmEntryWalk(config.lane))
        outliers = add(m, "outliers", KllmOutlierWalk(none))
        rows = add(m, "rows", KllmRowWalk(config.row_walk_config))
        collect = add(m, "collect", KllmMatmulCollect(config))
        tickets = queue(m, "tickets", config.ticket_layout, depth=2)

        m.d.comb += [
            issue.is_idle.eq(tickets.level == 0),
            *(walk.start.eq(issue.start) for walk in (jobs, entries)),
            *(walk.work.eq(issue.work) for walk in (jobs, entries)),
            rows.start.eq(issue.row_start),
            rows.work.eq(issue.row_work),
            issue.done.eq(jobs.done & entries.done & rows.done & outliers.idle),
        ]
        for source, sink in (
            (self.command, issue.command),
            (self.release, issue.release),
            (issue.codebook, self.codebook),
            (issue.supply, self.supply),
            (issue.supply_rms, self.supply_rms),
            (issue.ticket, tickets.i),
            (jobs.job, self.job),
            (jobs.count, outliers.count),
            (entries.entry_request, self.slot_entry_request),
            (self.slot_entries, entries.entries),
            (entries.a, self.a),
            (outliers.outlier_request, self.slot_outlier_request),
            (self.slot_outlier, outliers.outlier),
            (rows.read_request, self.row_request),
            (self.row_row, rows.read_row),
            (tickets.o, collect.ticket),
            (self.supply_done, collect.supply_done),
            (collect.write, self.write),
            (collect.status, self.status),
        ):
            link(m, source, sink)

        if config.front:
            m.d.comb += [collect.come.eq(self.come), self.front.eq(collect.front)]

        # One client of descriptors: the issue requests none while the walk of the jobs runs.
        with m.If(jobs.done):
            link(m, issue.slot, self.slot_slot)
            link(m, self.slot_descriptor, issue.descriptor)
        with m.Else():
            link(m, jobs.slot, self.slot_slot)
            link(m, self.slot_descriptor, jobs.descriptor)

        by_row = config.lane.packet_words > 1
        if by_row:
            m.d.comb += rows.by_row.eq(issue.is_codebook)
        with m.If(issue.is_codebook):
            link(m, rows.row if by_row else rows.o, issue.packet)
        with m.Elif(issue.work.direct):
            words = StreamView.of(rows.o.p.word, config.lane.value_layout, rows.o)
            link(m, words, self.x)
        with m.Else():
            link(m, outliers.x, self.x)

        for n in range(config.lanes):
            gather = add(m, f"gather_{n}", KllmRowGather(none))
            link(m, self.y[n], gather.y)
            link(m, gather.o, collect.row[n])
            link(m, self.lane_status[n], collect.lane_status[n])
        return m
