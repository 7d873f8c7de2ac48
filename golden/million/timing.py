"""Timing of the blocks of product-quantized attention, as functions of their numbers."""

from fractions import Fraction

from golden.index.timing import adder_levels, tree_levels
from golden.million.bounds import Bound
from golden.million.config import PqShape, RateShape
from golden.timing import Timing

SCORE_ROUNDING = 4  # cycles of the rounding of a score
BETWEEN_ATTENDS = 12  # cycles that the first total of an ATTEND waits for the last output before
BETWEEN_SUMS = 6  # cycles from one sum of the window to the next, at least


def decode_keys(head_dim: int) -> Timing:
    """Look-up, products, levels of the tree, slope * distance, rounding, queue."""
    return Timing(
        latency=1 + 1 + adder_levels(head_dim) + 1 + SCORE_ROUNDING + 1,
        start="code",
        end="score",
        unit="beat",
        delays=(
            ("from the last word of a codebook to its first code", 3),
            ("from the last of the queries, or from a job, to its first code", 2),
            ("from the last code to end", 2),
        ),
    )


def decode_values() -> Timing:
    """Look-up, products, sum: from a job's last beat to its first sums."""
    return Timing(
        latency=3,
        start="code",
        end="sum",
        unit="beat",
        delays=(
            ("from the last word of a codebook to its first code", 3),
            ("from a job to its first code", 2),
            ("from the last sums to the first code of the next job", 1),
            ("from the last code to end", 2),
        ),
    )


def value_finish(entries: int, parts: int, queries: int) -> int:
    """Products of a job, each of ``macs`` elements: one per cycle."""
    return entries * parts * queries


def value_interval(beats: int, finish: int) -> int:
    """Cycles from one job to the next, of jobs with as many beats and as long a finish.

    Counting into one set of bins overlaps the finish of the other; each set is free 4 cycles after
    its last beat and its finish.
    """
    beats = max(beats, 1)
    return max(beats, finish + 1, -(-(beats + finish + 3) // 2))


def output(queries: int, head_dim: int, lanes: int, elements: int) -> Timing:
    """Reciprocals of all queries, then ``elements`` elements per cycle.

    Nine stages lead from an element's sums to its output, and one to the beat.
    """
    beats = queries * head_dim // lanes
    return Timing(
        latency=queries + 23 + lanes // elements,
        interval=Fraction(lanes, elements),
        start="total",
        end="o",
        unit="beat",
        delays=(
            ("from total to the next, at least", queries + 16 + beats * lanes // elements),
            ("from the last past to o, at least", 11 + lanes // elements),
        ),
    )


def encoder_depth(sub: int) -> int:
    """The cycles from a codebook word granted to the nearest index with it."""
    return 1 + 1 + 2 + tree_levels(sub) + 2 + 1


def pq_encoder(entries: int, parts: int, sub: int) -> Timing:
    """A whole codebook, every read granted: x written, read requested, words, then the queue."""
    words = entries * parts
    after_last = encoder_depth(sub) + 1
    return Timing(
        latency=1 + words + after_last,
        interval=Fraction(words),
        start="x",
        end="code",
        unit="vector",
        delays=(("from the last codebook word granted to code", after_last),),
    )


def attention_stages(
    pq: PqShape, rate: RateShape, elements: int, exact: int, groups: int
) -> dict[str, Fraction]:
    """Cycles from one group to the next in each part of the block, in a long train of ATTENDs.

    Tokens in codes are so few that their number decides nothing (golden.million.bounds).

    elements : of the outputs per cycle
    exact : rows that a group attends
    groups : of an ATTEND

    The splitter takes queries * head_dim / lanes + 3 cycles, always less than ``output``.
    """
    finish = value_finish(pq.entries, rate.parts(pq), rate.queries)
    sums = rate.queries * pq.head_dim // rate.window_macs
    ends = output(rate.queries, pq.head_dim, rate.lanes, elements)
    return {
        "build": Fraction(finish),
        "finish": Fraction(finish + 1),
        # The last key of each sum waits until the sum before is taken.
        "window": Fraction(max(sums * exact + (exact >= BETWEEN_SUMS), sums * BETWEEN_SUMS)),
        "output": ends.delay("from total to the next, at least")
        + Fraction(BETWEEN_ATTENDS, groups),
    }


def group_interval(
    pq: PqShape,
    rate: RateShape,
    found: Bound,
    *,
    elements: int,
    exact: int,
    groups: int,
    apart: bool,
) -> Fraction:
    """Cycles from one group of queries to the next, in a long train of ATTENDs.

    found : what the engines must do for its keys in codes
    elements, exact, groups : as in ``attention_stages``
    apart : codes of K and of V at the same time. Without it, scores and values take turns.
    """
    codes = found.memory if apart else max(found.memory, found.score + found.value)
    engines = max(found.interval, codes)
    return max(Fraction(engines), *attention_stages(pq, rate, elements, exact, groups).values())


def attend_cycles(interval: Fraction, groups: int) -> Fraction:
    """The cycles of ``groups`` groups in a long train of ATTENDs.

    interval : of ``group_interval``
    """
    return groups * interval
