"""Kits of the index room."""

from itertools import accumulate

from golden.index.vectors.histogram_parallel import counter_vectors
from golden.index.vectors.nearest import unit_vectors
from golden.index.vectors.reducer import reducer_vectors
from golden.index.vectors.table import table_vectors
from hdl.kit.episodes import Vectors
from hdl.kit.words import SEED, Kit, phases, plain, rows, sliced


def _reducer(config) -> Vectors:
    vectors, params = reducer_vectors(config, SEED)
    ends = list(accumulate(params["beats"]))
    packets = {"i": ends, "o": range(1, len(ends) + 1)}
    covers = "counts and weights: usual, subnormal, of one sign, that cancel, at ties"
    return Vectors(episodes=[plain(covers, sliced(rows(vectors, "i", "o"), packets, 60))])


def _histogram(config) -> Vectors:
    vectors, params = counter_vectors(config, SEED)
    beats, words = (list(accumulate(column)) for column in zip(*params["packets"], strict=True))
    flow = params["flow"]
    covers = "packets of every length, elements left out, integers where the block has them"
    some = sliced(rows(vectors, "i", "o"), {"i": beats, "o": words}, min(flow, 24))
    return Vectors(episodes=[plain(covers, some)])


def _nearest(config) -> Vectors:
    vectors, params = unit_vectors(config, SEED)
    covers = {phase: f"tokens with midpoints of kind {phase}" for phase in params["phases"]}
    return Vectors(episodes=phases(vectors, covers, "midpoints"))


def _table(config) -> Vectors:
    vectors, params = table_vectors(config, SEED)
    covers = {str(n): f"rows with table {n}" for n in range(params["phases"])}
    return Vectors(episodes=phases(vectors, covers, "table"))


KITS = {
    "index_reducer": Kit(vectors=_reducer),
    "index_histogram_parallel": Kit(vectors=_histogram, shown="small"),
    "index_nearest": Kit(vectors=_nearest, shown="small"),
    "index_table": Kit(vectors=_table, shown="small"),
}
