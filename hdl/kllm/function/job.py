"""Payloads between the phases of the functional unit: jobs, operations, walks over rows."""

import enum

from amaranth import Module, Mux, Signal, Value

from golden.fp16.format import FP16
from golden.kllm.format import Operation
from golden.kllm.isa import CommandStatus, Function
from hdl.kinds import NUMBER, index_of
from hdl.kllm.function.pipeline import FUNCTION_BITS
from hdl.ports import Payload
from hdl.walk import Walk


class Kind(enum.IntEnum):
    """The things that a command works on."""

    ROWS = 0  # rows of the vector memory
    SOFTMAX = 1  # rows of the vector memory, each token in three passes
    SLOTS = 2  # one or two activation slots
    CODEBOOK = 3  # one row, into the table of centroids


# ``tokens`` tokens of ``steps`` rows, of which step k of token t is row first + k + t * stride. In
# pairs a step is two rows, the other being second + k + t * stride. tokens, steps: 1 or more.
row_walk_layout = Payload(
    first=(16, "first row", index_of("rows")),
    second=(16, "pairs: first row of the other row of each step", index_of("rows")),
    stride=(16, "rows from one token to the next", NUMBER),
    steps=(13, "rows or pairs of a token, 1 or more", NUMBER),
    tokens=(8, "tokens, 1 or more", NUMBER),
    pair=(1, "a step is two rows"),
)

# The rows of results. tail: elements of the last row of a token, 0: 16; single: one per transfer.
result_walk_layout = Payload(
    rows=(row_walk_layout, "rows in their order"),
    tail=(4, "elements of the last row of a token, 0: 16", NUMBER),
    single=(1, "elements of functions per transfer, not one beat"),
)

# A command, decoded. Its fields are constant while it is offered, which is while it runs.
job_layout = Payload(
    status=(len(CommandStatus), "RANGE or MALFORMED; 0: it may run", CommandStatus),
    kind=(Kind, "Kind"),
    operation=(Operation, "what the lanes compute"),
    function=(FUNCTION_BITS, "golden.kllm.isa.Function", Function),
    derives=(1, "scalar is the negated mean of slot a"),
    scalar=(16, "FP16 scalar, if not derived", FP16),
    two_slots=(1, "the command has two slots"),
    table=(1, "CODEBOOK: number of the codebook", index_of("codebooks")),
    slot_a=(8, "first slot", index_of("slots")),
    slot_b=(8, "second slot", index_of("slots")),
    length=(16, "elements of a token", NUMBER),
    tokens=(8, "tokens, 1 or more", NUMBER),
    rows=(13, "rows of a token", NUMBER),
    steps=(13, "rows of a token, or pairs of rows", NUMBER),
    a_first=(16, "first row of a", index_of("rows")),
    a_stride=(16, "rows from one token of a to the next", NUMBER),
    b_first=(16, "first row of b", index_of("rows")),
    b_second=(16, "pairs: first row of the other row of each step of b", index_of("rows")),
    b_stride=(16, "rows from one token of b to the next", NUMBER),
    d_first=(16, "first row of the results", index_of("rows")),
    d_stride=(16, "rows from one token of the results to the next", NUMBER),
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
