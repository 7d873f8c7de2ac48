"""Timing of KLLM's blocks, as functions of their numbers."""

import dataclasses
from fractions import Fraction

from golden.index.timing import table
from golden.timing import Timing

__all__ = [
    "concat",
    "dispatcher",
    "function_control",
    "function_cycles",
    "function_decode",
    "function_pipeline",
    "integer_quantizer",
    "load",
    "matmul",
    "matmul_supply",
    "norm_stats",
    "orizuru",
    "outlier",
    "readback",
    "result_rows",
    "row_reader",
    "scaler",
    "slot_fetch",
    "slot_fill",
    "slot_memory",
    "slot_rows",
    "vector_lanes",
    "weight_buffer",
    "weight_stripe",
    "weight_supply",
]

_ROW = 16  # elements


def vector_lanes(width: int) -> Timing:
    """``width`` elements per cycle."""
    return Timing(
        latency=5,
        interval=Fraction(_ROW, width),
        start="a",
        unit="row",
        delays=(
            ("from weight to o", 4),
            ("from a to score", 1),
            ("from a to element", 1),
            ("per row of elements", _ROW),
        ),
    )


def row_reader(depth: int) -> Timing:
    """``depth`` rows may be on order. The memory's latency is not included."""
    return Timing(
        latency=1,
        start="a_row",
        unit="row",
        delays=(
            ("from walk to the first request", 1),
            ("from a_request to a_row, the most at full rate", depth - 2),
            ("from i to o", 1),
        ),
    )


def slot_fetch() -> Timing:
    """The memory's latency is not included."""
    return Timing(
        latency=1, start="answer", unit="request", delays=(("from walk to the first request", 2),)
    )


def slot_fill(bits_a: int, slots: int, function: int) -> int:
    """Cycles of ``fill``: 2**bits_a products per slot, for slot 0 ``function`` cycles longer."""
    entries = 1 << bits_a
    return max(entries + function, (slots - 1) * 2 * entries) + 1


def slot_rows(width: int, stages: int) -> Timing:
    """Rows of slot 1, and single words: rows of slot 0 wait for their outliers' function."""
    cycles = function_cycles(stages).values()
    rows = table(width, _ROW)
    return dataclasses.replace(
        rows,
        start="entries_1",
        end="rows_1",
        delays=(
            ("from element to y, the least", min(cycles)),
            ("from element to y, the most", max(cycles)),
        ),
    )


def result_rows(width: int) -> Timing:
    """``width`` elements per cycle."""
    return Timing(
        latency=1,
        interval=Fraction(_ROW, width),
        start="the last word of a row",
        end="write",
        unit="row",
        delays=(("per row of elements", _ROW), ("from walk to the first word", 1)),
    )


def function_control() -> Timing:
    """A job on rows. Slots add their descriptors and tables, SOFTMAX its passes."""
    return Timing(
        latency=1,
        interval=Fraction(4),
        start="job, as offered,",
        end="walk_d",
        unit="job",
        delays=(("from job to status, without the time of the phases", 3),),
    )


def function_decode() -> Timing:
    """One command at a time; the next one after its job."""
    return Timing(latency=7, interval=Fraction(8), start="command", end="job", unit="command")


def concat() -> Timing:
    """A beat of pairs leaves in the cycle after both of its inputs came."""
    return Timing(latency=1, start="i_a", unit="beat")


def scaler(stages: int) -> Timing:
    """``stages`` registers from the sums to the output."""
    return Timing(latency=stages)


def outlier() -> Timing:
    """From the word with last to the sum of column 0; columns leave one per cycle."""
    return Timing(latency=3)


def integer_quantizer(stages: int, parts: int, scale_steps: int) -> Timing:
    """A row is divided in ``parts``; the scale takes ``scale_steps`` steps of a division."""
    return Timing(
        latency=stages + parts - 1,
        interval=Fraction(parts),
        unit="row",
        delays=(("from largest to scale", scale_steps + 2),),
    )


def dispatcher(command_words: int) -> Timing:
    """From a command's last word to its engine, where the command waits for none before it."""
    return Timing(
        latency=5,
        interval=Fraction(command_words + 2),
        start="a command's last word",
        end="command_k.valid",
        unit="command",
    )


def load() -> Timing:
    return Timing(latency=2, start="command", end="read", unit="row")


def readback(words: int) -> Timing:
    """Of READ, with a memory that answers in 1 cycle; each further cycle adds one per row.

    A row gives ``words`` words. The engine then waits for the answer with the next row.
    """
    return Timing(
        latency=2,
        interval=Fraction(words + 1, words),
        start="command",
        end="row_request (memory of 1 cycle)",
    )


def slot_memory() -> Timing:
    return Timing(latency=2, start="a request", end="its answer", unit="read and one write")


def weight_stripe(ports: int, slots: int) -> Timing:
    return Timing(
        latency=0, interval=Fraction(1, min(ports, slots)), start="data_p", end="slot_s"
    )


def weight_supply(setup_cycles: int, ports: int, slots: int) -> Timing:
    """``setup_cycles``: a division of the job's groups, a digit per cycle."""
    return Timing(
        latency=setup_cycles,
        interval=Fraction(1, min(ports, slots)),
        start="job",
        end="read_p",
        unit="port word",
    )


def weight_buffer() -> Timing:
    """Of a job of one group: from the last word of its first beat to that beat."""
    return Timing(latency=3, start="a beat's last word", end="w", unit="beat")


def orizuru(levels: int, architecture: str) -> Timing:
    """From a token's last beat to the first pop, and from pop to pop of one tree."""
    parallel = architecture == "parallel"
    return Timing(
        latency=3 + levels if parallel else 2 + max(levels, 2),
        interval=Fraction(levels if parallel else levels + 1),
        start="x",
        end="pop_max and pop_min",
        unit="pop",
    )


def norm_stats(reduce_cycles: int, rms_cycles: int, layer_cycles: int) -> Timing:
    """``reduce_cycles`` from the last beat to the next job; then the floating-point part."""
    return Timing(
        latency=reduce_cycles + rms_cycles,
        latency_max=reduce_cycles + layer_cycles,
        start="a token's last beat",
        unit="beat",
        delays=(("from a token's last beat to the next job", reduce_cycles),),
    )


def function_cycles(stages: int) -> dict[str, int]:
    """Cycles of each function, ``stages`` registers per operator."""
    operators = {
        "EXP": 2, "RECIPROCAL": 3, "SQRT": 3, "RSQRT": 3, "SILU": 6, "GELU": 9,
    }  # fmt: skip
    return {"IDENTITY": 1, "RELU": 1} | {name: n * stages for name, n in operators.items()}


def function_pipeline(stages: int) -> Timing:
    """Words of one function follow each other; ``function_cycles`` has each function's."""
    cycles = function_cycles(stages).values()
    return Timing(latency=min(cycles), latency_max=max(cycles))


def matmul_supply(groups: int, tokens: int = 0, answer: int = 0) -> int:
    """Cycles from an offered MATMUL to its supply job: the engine idle, no stall.

    ``tokens`` descriptors, each ``answer`` cycles after its request; DIRECT reads none: 0. The
    engine counts the ``groups`` of outputs, one per cycle.
    """
    descriptors = tokens + answer + 1 if tokens else 0
    return 4 + groups + descriptors


def matmul() -> Timing:
    """The least latency: DIRECT of one group. ``matmul_supply`` has that of each command."""
    return Timing(
        latency=matmul_supply(1),
        start="command.valid",
        end="supply",
        unit="beat",
        delays=(
            ("from supply to slot_entry_request, without fold_norm", 2),
            ("from a row's last y_0 to its write", 1),
            ("from a command's last write to its status", 3),
        ),
    )
