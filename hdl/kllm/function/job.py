"""Payloads between the phases of the functional unit: jobs, operations, walks over rows."""

import enum

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data

from golden.kllm.format import Operation
from golden.kllm.isa import CommandStatus
from hdl.walk import Walk

__all__ = ["Kind", "RowWalk", "job_layout", "result_walk_layout", "row_walk_layout"]


class Kind(enum.IntEnum):
    """What a command works on."""

    ROWS = 0  # rows of the vector memory
    SOFTMAX = 1  # rows of the vector memory, each token in three passes
    SLOTS = 2  # one or two activation slots
    CODEBOOK = 3  # one row, into the table of centroids


# ``tokens`` tokens of ``steps`` rows, of which step k of token t is row first + k + t * stride. In
# pairs a step is two rows, the other being second + k + t * stride. tokens, steps: 1 or more.
row_walk_layout = data.StructLayout(
    {"first": 16, "second": 16, "stride": 16, "steps": 13, "tokens": 8, "pair": 1}
)

# The rows of results. tail: elements of the last row of a token, 0: 16; single: one per transfer.
result_walk_layout = data.StructLayout({"rows": row_walk_layout, "tail": 4, "single": 1})

# A command, decoded. Its fields are constant while it is offered, which is while it runs.
job_layout = data.StructLayout(
    {
        "status": len(CommandStatus),  # RANGE or MALFORMED; 0: it may run
        "kind": Kind,
        "operation": Operation,
        "function": 3,
        "derives": 1,  # scalar is the negated mean of slot a
        "scalar": 16,  # if not derived
        "two_slots": 1,
        "table": 1,  # of a CODEBOOK
        "slot_a": 8,
        "slot_b": 8,
        "length": 16,  # elements of a token
        "tokens": 8,
        "rows": 13,  # of a token
        "steps": 13,  # rows of a token, or pairs of rows
        "a_first": 16,
        "a_stride": 16,
        "b_first": 16,
        "b_second": 16,
        "b_stride": 16,
        "d_first": 16,
        "d_stride": 16,
    }
)


class RowWalk:
    """The rows of a walk, begun by ``start``, one per ``step``.

    Parameters
    ----------
    start : valid of a walk; it may come when ``done``
    payload : row_walk_layout
    step : the row was used; ignored once ``done``

    Attributes
    ----------
    row : the row; last_step : it is of the last step of its token; done : there is none
    pair : steps are pairs of rows
    """

    def __init__(self, m: Module, name: str, *, start: Value, payload, step: Value):
        held = Signal(row_walk_layout, name=name, reset_less=True)
        walk = Walk(
            m, f"{name}_walk", tokens=held.tokens, steps=held.steps, halves=Mux(held.pair, 2, 1)
        )
        self.done, self.last_step, self.pair = walk.done, walk.last.steps, held.pair
        self.row = Signal(16, name=f"{name}_row")
        m.d.comb += [
            walk.start.eq(start),
            walk.step.eq(step),
            self.row.eq(Mux(walk.at.halves[0], held.second, held.first) + walk.at.steps),
        ]
        with m.If(start):
            m.d.sync += held.eq(payload)
        with m.Elif(step & walk.wraps.steps):
            m.d.sync += [
                held.first.eq(held.first + held.stride),
                held.second.eq(held.second + held.stride),
            ]
