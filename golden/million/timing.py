"""Timing of the blocks of product-quantized attention, as functions of their numbers."""

import dataclasses
from fractions import Fraction

from golden.index.timing import adder_levels, table_lane, tree_levels
from golden.million.bounds import Bound
from golden.million.config import PqShape, RateShape
from golden.timing import Timing

SCORE_ROUNDING = 4  # cycles of the rounding of a score
BETWEEN_ATTENDS = 12  # cycles that the first total of an ATTEND waits for the last output before
BETWEEN_SUMS = 6  # cycles from one sum of the window to the next, at least


def query_splitter(beats: int) -> Timing:
    """The beats of a group, and one cycle in which the next job is taken."""
    return Timing(
        latency=0,
        interval=Fraction(beats + 1, beats),
        start="query",
        end="q",
        unit="beat",
        delays=(("from the last beat of a group to slopes", 1),),
        words=(("query", 1), ("q", 1)),
    )


def attend_control() -> Timing:
    """A group: split, read of K, read of V, slopes, group, a cycle each."""
    return Timing(
        latency=5,
        interval=Fraction(5),
        start="job",
        end="group",
        unit="group",
        delays=(
            ("from slopes to group", 1),
            ("per refused group", 3),
            ("per ATTEND in addition", 2),
        ),
    )


def code_reader(beat_bytes: int, word_bytes: int) -> Timing:
    """From the word that completes a beat; the larger of beat and word moves in each cycle."""
    return Timing(
        latency=2,
        interval=max(Fraction(1), Fraction(beat_bytes, word_bytes)),
        start="word",
        end="code",
        unit="beat",
    )


def decode_engine(head_dim: int) -> Timing:
    """Of the keys; the values have their own."""
    return dataclasses.replace(decode_keys(head_dim), start="k_code", end="k_score")


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


def encode_control(heads: int) -> Timing:
    """A token, K and V: an APPEND, a cycle per head, and the answer."""
    return Timing(
        latency=2,
        interval=Fraction(2 * (heads + 2)),
        start="job",
        end="append",
        unit="token",
        delays=(
            ("from the last status of a job to done", 3),
            ("from job to done with clear", 2),
            ("from job to done with discard", 6),
            ("per side of a restored token", 3),
            ("per side that is discarded", 2),
        ),
    )


def kv_writer(heads: int, beats: int) -> Timing:
    """A token: its job, then 2 * heads rows of one cycle and their beats, then the answer."""
    return Timing(
        latency=0,
        interval=Fraction(2 + 2 * heads * (1 + beats), 2 * heads * beats),
        start="kv",
        end="x",
        unit="beat",
        delays=(
            ("from job to the first row", 1),
            ("from row to its first beat", 1),
            ("from the last beat of a token to done", 1),
        ),
        words=(("kv", 1), ("x", 1)),
    )


def control() -> Timing:
    """An ATTEND whose codebooks are in use."""
    return Timing(latency=6, interval=Fraction(8), start="request", end="begun", unit="ATTEND")


def verdict() -> Timing:
    return Timing(
        latency=0,
        start="total",
        end="result",
        unit="group",
        delays=(
            ("from begun to the first result", 1),
            ("from begun to the status of a refused ATTEND", 1),
            ("from the last of given and read_end to status", 2),
        ),
    )


def loader(beats: int) -> Timing:
    """``beats`` of them are a word of a store."""
    return Timing(
        latency=1,
        start="codebook",
        end="word_k",
        unit="beat",
        delays=(
            ("from load to the first beat", 2),
            ("from the last beat of K to the first of V", 3),
            ("from the last word to status", 1),
        ),
        words=(("codebook", 1), ("word_k", Fraction(1, beats))),
    )


def record_writer(words: int) -> Timing:
    """The words of a record one after another; its size with the first."""
    return Timing(latency=1, interval=Fraction(words), start="code", end="w", unit="vector")


def restorer(heads: int, words: int) -> Timing:
    """The words of an APPEND as they come, and a cycle in which its job is taken."""
    return Timing(
        latency=0,
        interval=Fraction(heads * words + 1, heads * words),
        start="restored",
        end="w",
        unit="word",
        delays=(("from the last word of an APPEND to its job", 1),),
        words=(("restored", 1), ("w", 1)),
    )


def score_engine(subspaces: int) -> Timing:
    """Look-up, terms, levels of the tree, the sum with the distance's term, rounding, queue."""
    latency = 1 + 1 + adder_levels(subspaces) + 1 + SCORE_ROUNDING + 1
    return Timing(
        latency=latency,
        start="code",
        end="score",
        unit="beat",
        delays=(
            ("from the last entry to the first code", 2),
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


def value_engine(entries: int, parts: int, queries: int) -> Timing:
    """Of jobs whose beats are fewer than the products of their finish."""
    finish = value_finish(entries, parts, queries)
    return Timing(
        latency=(entries - 1) * queries + 7,
        interval=Fraction(value_interval(0, finish)),
        start="the last weight",
        end="sum",
        unit="job",
        delays=(("from the last weight to end", 4),),
    )


def window(queries: int, steps: int, window_macs: int) -> Timing:
    """A step of a row is multiplied by each query in turn; scores and values side by side.

    ``window_macs`` products and the distance's term are added by a tree.

    A sum follows the last weight by a cycle per exact key. The next ones come at the pace of the
    keys, but not more often than ``between sums``.
    """
    return Timing(
        latency=queries * steps + 10 + tree_levels(window_macs + 1),
        interval=Fraction(queries * steps),
        start="job",
        end="window_score",
        unit="exact key",
        delays=(
            ("from the last window_weight to sum, and one per exact key", 5),
            ("between sums, at least", BETWEEN_SUMS),
        ),
    )


def table_depth(sub: int) -> int:
    """From the request of a codebook word to its entries: read, row, products, sum, rounding."""
    return 1 + 1 + 1 + table_lane(sub)


def table_builder(sub: int) -> Timing:
    """The queries are written, the entries wait in a RAM: 1 and 2 cycles more."""
    return Timing(latency=1 + table_depth(sub) + 2, start="q", end="entry", unit="entry")


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
    """From a codebook word granted to the nearest index with it."""
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
    """Of ``groups`` groups in a long train of ATTENDs; interval : of ``group_interval``."""
    return groups * interval


def attention(stages: dict[str, Fraction]) -> Timing:
    """Of ``attention_stages``: the slowest decides."""
    return Timing(
        latency=3,
        interval=max(stages.values()),
        start="the last o of an ATTEND",
        end="its status",
        unit="group",
    )
