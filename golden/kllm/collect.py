"""The words and reports of the matmul engine's collection, from the outputs of the lanes."""

import dataclasses
from collections.abc import Sequence

from golden.fp16.format import FP16
from golden.kllm.format import NO_OUTPUT, Status
from golden.kllm.isa import ROW_ELEMENTS, CommandStatus, row_count

_NAMED = {
    Status.NONFINITE: CommandStatus.NONFINITE,
    Status.CODEBOOK_MISSING: CommandStatus.CODEBOOK_MISSING,
    Status.OVERFLOW: CommandStatus.OVERFLOW,
    Status.SCALE_NONFINITE: CommandStatus.SCALE_NONFINITE,
}
_LANE_FAULTS = NO_OUTPUT & ~(Status.NONFINITE | Status.CODEBOOK_MISSING)
_WITHOUT_OUTPUTS = (
    CommandStatus.NONFINITE | CommandStatus.LANE_FAULT | CommandStatus.CODEBOOK_MISSING
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ticket:
    """A command whose outputs are collected.

    done: it has none, and ends with ``fault``. void: its outputs are dropped, and it ends so too.
    """

    fault: int = 0
    dst: int = 0
    stride: int = 0
    tokens: int = 1
    outputs: int = 1
    groups: int = 1
    done: int = 0
    void: int = 0


def command_faults(status: Status) -> CommandStatus:
    """CommandStatus bits of a lane's status."""
    faults = CommandStatus.LANE_FAULT if status & _LANE_FAULTS else CommandStatus(0)
    for bit, named in _NAMED.items():
        faults |= named if status & bit else CommandStatus(0)
    return faults


def collect(
    ticket: Ticket,
    rows: Sequence[Sequence[Sequence[list[int]]]],
    statuses: Sequence[Status],
    group_rows: int,
    is_bus_error: bool = False,
) -> tuple[list[tuple[int, list[int]]], CommandStatus]:
    """(writes, status): each write is (row, words), in order.

    - rows[job][lane]: rows of a lane, for each group, for each token; a job whose status has a bit
      of NO_OUTPUT has no lanes. The first rows of all lanes are written first.
    - statuses[job]: bits of all lanes together
    - group_rows: rows of a job with outputs
    """
    if ticket.done or ticket.void:
        return [], CommandStatus(ticket.fault)
    writes, out_rows = [], row_count(ticket.outputs)
    tail = ticket.outputs % ROW_ELEMENTS
    faults, silent = CommandStatus(ticket.fault), False
    for job, (made, status) in enumerate(zip(rows, statuses, strict=True)):
        group, token = divmod(job, ticket.tokens)
        faults |= command_faults(status)
        silent |= bool(status & NO_OUTPUT)
        places = [
            (part, lane)
            for part in range(max(map(len, made), default=0))
            for lane in range(len(made))
        ]
        for part, lane in places:
            words, place = made[lane][part], group * group_rows + lane * len(made[lane]) + part
            if place < out_rows:
                kept = tail if tail and place == out_rows - 1 else ROW_ELEMENTS
                row = ticket.dst + token * ticket.stride + place
                writes.append((row & 0xFFFF, words[:kept] + [0] * (ROW_ELEMENTS - kept)))
    if silent or is_bus_error:
        writes += [
            (ticket.dst + t * ticket.stride + row & 0xFFFF, [FP16.canonical_nan] * ROW_ELEMENTS)
            for t in range(ticket.tokens)
            for row in range(out_rows)
        ]
    if is_bus_error:
        return writes, CommandStatus.BUS_ERROR
    return writes, faults & _WITHOUT_OUTPUTS if silent else faults
