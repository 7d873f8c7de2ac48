"""Fewest cycles of an ATTEND: what each engine must do, and which of them decides. Pure Python.

The queries of a KV head are in ceil(group / queries) groups. Every group passes tables, scores,
values and the end of the sums, in this order. Different groups may be in different engines.
"""

import dataclasses

from golden.million.config import MillionConfig, PqShape, RateShape


@dataclasses.dataclass(frozen=True)
class Bound:
    """Cycles of one group in each engine; ``groups`` of a KV head.

    build: tables of its queries; score, value: its keys; finish: sums of the bins times the
    codebook; memory: the words of the codes of K and V
    """

    build: int
    score: int
    value: int
    finish: int
    memory: int
    groups: int

    @property
    def limit(self) -> str:
        """The engine that takes longest; of equal ones the first."""
        names = ("build", "score", "value", "finish", "memory")
        return max(names, key=lambda name: getattr(self, name))

    @property
    def interval(self) -> int:
        """The cycles from one group to the next, with every engine at work."""
        return int(getattr(self, self.limit))

    @property
    def fill(self) -> int:
        """The first group's cycles beyond ``interval``: no engine begins before the one ahead ends.

        The maximum of all scores comes before the first value. Codes are read meanwhile.
        """
        through = self.build + max(self.score + self.value, self.memory) + self.finish
        return through - self.interval

    @property
    def head(self) -> int:
        """A KV head among others."""
        return self.groups * self.interval

    def attend(self, heads: int) -> int:
        """``heads`` KV heads with nothing before and nothing after them."""
        return heads * self.head + self.fill


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def bound(pq: PqShape, rate: RateShape, group: int, keys: int, data_bits: int) -> Bound:
    """Bounds ``group`` queries of a KV head on ``keys`` keys in codes, in words of ``data_bits``.

    A codebook of 2**bits entries has 2**bits * head_dim elements, and each engine multiplies
    ``rate.macs`` of them per cycle with each query of a group. Score and value take ``rate.keys``
    keys per cycle, whatever the number of queries. Exact rows, rounding and pipelines are left out.
    """
    products = _ceil(pq.entries * pq.head_dim, rate.macs) * rate.queries
    beats = _ceil(keys, rate.keys)
    return Bound(
        build=products,
        score=beats,
        value=beats,
        finish=products,
        memory=2 * _ceil(8 * keys * pq.record_bytes, data_bits),
        groups=_ceil(group, rate.queries),
    )


def load_beats(config: MillionConfig, lanes: int) -> int:
    """Beats of a LOAD of whole codebooks, one per cycle."""
    return 2 * config.books * config.pq.entries * config.pq.head_dim // lanes


def step_bound(
    config: MillionConfig, rate: RateShape, keys: int, data_bits: int, layers: int
) -> int:
    """A decoding step of ``layers`` layers, each with a LOAD, an APPEND and an ATTEND.

    A layer needs the outputs of the one before, so that ATTENDs do not overlap. The codebooks of a
    layer come during the ATTEND of another, so that the longer one counts.
    """
    found = bound(config.pq, rate, config.head.group, keys, data_bits)
    return layers * max(found.attend(config.head.heads), load_beats(config, rate.lanes))
