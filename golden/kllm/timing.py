"""Timing of KLLM's blocks, as functions of their numbers."""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from golden.index.timing import table
from golden.kllm.isa import MatmulMode
from golden.timing import Timing

__all__ = [
    "LaneJob",
    "LaneShape",
    "concat",
    "dispatcher",
    "function_control",
    "function_cycles",
    "function_decode",
    "function_pipeline",
    "integer_quantizer",
    "lane_cycles",
    "lane_dense",
    "lane_finish",
    "lane_latency",
    "lane_steps",
    "load",
    "matmul",
    "matmul_supply",
    "norm_stats",
    "orizuru",
    "outlier",
    "pe_lane",
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneShape:
    """What a lane's cycles depend on.

    words, integer_words: words of bins per column, that are reduced one per cycle. together: each
    column has its own MAC, so all columns are reduced at the same time (counter=sram).
    """

    columns: int
    elements: int
    words: int
    integer_words: int
    together: bool = False

    def words_of(self, mode: MatmulMode) -> int:
        """Words of bins per column of a job; 0: the job bypasses the counters."""
        if mode == MatmulMode.DIRECT:
            return 0
        return self.integer_words if mode == MatmulMode.INTEGER else self.words

    def gap(self, mode: MatmulMode) -> int:
        """Cycles from the output of a column to that of the next."""
        return 1 if self.together else max(self.words_of(mode), 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneJob:
    """steps: ``lane_steps``; outputs: 1 to the lane's columns; mode: what the elements are."""

    steps: int
    outputs: int
    mode: MatmulMode = MatmulMode.KMEANS


def lane_steps(length: int, elements: int, outliers: Iterable[int] = ()) -> int:
    """Cycles that the beats of ``length`` elements take: max(1, o) of a beat with o outliers.

    outliers: their positions, 0..length - 1.
    """
    per_beat = Counter(position // elements for position in outliers)
    return sum(max(1, per_beat[beat]) for beat in range(-(-length // elements)))


def lane_latency(shape: LaneShape, mode: MatmulMode) -> int:
    """Cycles from a job's last beat to its first output, in an idle lane."""
    return 7 if mode == MatmulMode.DIRECT else 10 + shape.words_of(mode)


def lane_cycles(shape: LaneShape, job: LaneJob, jobs: int = 1) -> int:
    """Cycles from the first beat of w to the last y of ``jobs`` equal jobs at full rate.

        2 + (steps - 1) + latency + (outputs - 1) * gap + (jobs - 1) * max(steps, reduce, 2)

    The weight buffer takes 2 cycles. ``reduce`` is ``columns * gap``. Reducing a job overlaps
    counting the next. The register of the status takes a word every 2 cycles. With ``together`` a
    further job takes up to 4 cycles more, for the ends of packets in the RAMs. The result is then
    the most, unless ``jobs`` is 1.
    """
    first = 2 + job.steps - 1 + lane_latency(shape, job.mode)
    reduce = max(shape.columns * shape.gap(job.mode), shape.words_of(job.mode))
    further = max(job.steps, reduce, 2) + (4 if shape.together else 0)
    return first + (job.outputs - 1) * shape.gap(job.mode) + (jobs - 1) * further


def lane_dense(shape: LaneShape) -> Timing:
    """From a packet's last beat to the sum of column 0; counting overlaps reducing."""
    integer = (("in integer mode", 6 + shape.integer_words),) if shape.integer_words else ()
    return Timing(
        latency=6 + shape.words,
        start="a packet's last i",
        unit="beat",
        delays=(*integer, ("from a sum to the next", shape.gap(MatmulMode.KMEANS))),
    )


def lane_finish(stages: int) -> Timing:
    """``stages`` registers of the scaler. A status takes 1 cycle after the last y."""
    return Timing(
        latency=stages,
        start="s_b",
        end="y",
        unit="column",
        delays=(("from a job's last y to its status", 1),),
    )


def pe_lane(shape: LaneShape) -> Timing:
    """Of one job in an idle lane; ``lane_cycles`` has those of a sequence."""
    modes = [("of a direct product", MatmulMode.DIRECT)]
    if shape.integer_words:
        modes.append(("of integers", MatmulMode.INTEGER))
    return Timing(
        latency=lane_latency(shape, MatmulMode.KMEANS),
        start="a job's last a",
        end="y",
        unit="beat",
        delays=(
            *((what, lane_latency(shape, mode)) for what, mode in modes),
            ("from a column's y to the next", shape.gap(MatmulMode.KMEANS)),
            ("from a job's last y to its status", 1),
        ),
    )
