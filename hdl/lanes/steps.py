"""The steps of a lane: beats through registers into accumulators, sums out by a chain."""

import dataclasses

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value

from golden.timing import Timing
from hdl.bits import let


def lane_timing(stages: int) -> Timing:
    """Adding up overlaps giving: from a packet's last beat to the sum of column 0.

    stages: registers between a beat and the accumulators. Accumulator, chain and rounding follow.
    """
    return Timing(
        latency=stages + 3,
        start="a packet's last i",
        unit="beat",
        delays=(("from a sum to the next", 1),),
    )


@dataclasses.dataclass(frozen=True)
class Steps:
    """The steps that all columns of a lane take in a cycle.

    enter : bit n: the registers of stage n take a beat, from the stage before or from the input
    add : the accumulators take the beat of the last stage
    first : with ``add``: a packet begins
    load : the chain takes the accumulators, before an ``add`` of the same cycle
    shift : the chain moves by one column
    ready : the input is taken if it is valid
    offers : the chain holds a sum for the output
    """

    enter: Value
    add: Value
    first: Value
    load: Value
    shift: Value
    ready: Value
    offers: Value


def lane_steps(m: Module, stages: int, columns: int, *, valid, last, taken) -> Steps:
    """The steps of a lane of ``columns`` columns with ``stages`` registers before the accumulators.

    valid, last: of the beat offered. taken: the output takes a sum that ``offers`` shows. A packet
    is a beat or more, the final one with ``last``. Its sums wait in the accumulators until the
    chain has given those before. Nothing is lost and no cycle is idle while beats and ``taken``
    are there.
    """
    holds = [Signal(name=f"holds_{n}") for n in range(stages)]  # a beat is in stage n
    ends = [Signal(name=f"ends_{n}", reset_less=True) for n in range(stages)]  # with last
    is_open = Signal()  # the accumulators hold a part of this packet
    full = Signal()  # they hold a whole packet, not yet handed over
    left = Signal(range(columns + 1))  # sums in the chain

    shift = let(m, "shift", (left != 0) & taken)
    load = let(m, "load", full & ((left == 0) | (shift & (left == 1))))
    free = let(m, "moves", ~full | load)
    add = let(m, "add", holds[-1] & free)
    enter: list[Value] = []
    for n in reversed(range(stages)):
        free = let(m, f"free_{n}", ~holds[n] | free)
        before, before_ends = (holds[n - 1], ends[n - 1]) if n else (valid, last)
        enter.insert(0, let(m, f"enter_{n}", before & free))
        with m.If(free):
            m.d.sync += holds[n].eq(before)
        with m.If(enter[0]):
            m.d.sync += ends[n].eq(before_ends)
    with m.If(add):
        m.d.sync += [is_open.eq(~ends[-1]), full.eq(ends[-1])]
    with m.Elif(load):
        m.d.sync += full.eq(0)
    with m.If(load | shift):
        m.d.sync += left.eq(Mux(load, columns, left - 1))
    return Steps(
        enter=let(m, "enter", Cat(enter)),
        add=add,
        first=let(m, "first", ~is_open),
        load=load,
        shift=shift,
        ready=free,
        offers=let(m, "offers", left != 0),
    )
