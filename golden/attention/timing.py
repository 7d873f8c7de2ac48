"""Timing of the attention blocks."""

import dataclasses
from fractions import Fraction

from golden.index.timing import tree_levels
from golden.timing import Timing


def softmax() -> Timing:
    """Beats of a row: each packet moves one per cycle, the row in three passes."""
    return Timing(
        latency=3,
        start="the last score",
        end="maximum",
        unit="beat of each packet",
        delays=(
            ("from row to the first score", 1),
            ("from maximum to the first difference", 1),
            ("from the last difference to total", 19),
            ("from total to the first weight", 2),
            ("from the last weight to row", 1),
        ),
    )


def weights() -> Timing:
    """Cycles of a row: collected at the pace of its scores, then given beat by beat."""
    return Timing(
        latency=11,
        start="the last score",
        end="the first weight",
        unit="beat of each packet",
        delays=(
            ("from row to the first score", 1),
            ("from the last score to row", 3),
            ("from the last weight to total", 1),
        ),
    )


CAP_STAGES = (2, 4, 3, 6)  # of a cap: product, exponential, sums, quotient


_PRODUCT = 9  # cycles from a product to its score, without the levels of the tree
_WEIGHT = 11  # from the last score to the first weight
_NEXT_ROW = 3  # from the last score to a softmax's next row
_JOB = 2  # from the last product of V to the start of the output
_INVERSE = 13  # from there to the first sum, and one per query
_DIVISION = 9  # from a sum to its output
_JOBS = 4  # in flight
_PHASES = 2  # that wait


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamShape:
    """The numbers that decide the cycles of AttentionStream."""

    lanes: int  # elements of a row per beat
    beats: int  # of a row
    turns: int  # cycles of a beat
    queries: int  # of all heads
    cells: int  # beats of q, or of o, per word of products
    max_rows: int
    sinks: int = 0  # beats of q with the sinks of a job, before its queries
    caps: bool = False  # scores pass a cap

    @property
    def row(self) -> int:
        """Cycles of a row."""
        return self.beats * self.turns

    @property
    def outputs(self) -> int:
        """Beats of o of a job, and of q without sinks."""
        return self.row * self.cells

    @property
    def score(self) -> int:
        """Cycles from the last product of a row of K to its score."""
        return _PRODUCT + tree_levels(self.lanes) + (sum(CAP_STAGES) if self.caps else 0)

    @property
    def weight(self) -> int:
        """Cycles from the last score to the first weight: that of a sink comes before."""
        return _WEIGHT + (self.sinks > 0)

    def timing(self) -> Timing:
        """A row passes at its pace; what lies between the stretches of rows is a delay."""
        sums = _JOB + _INVERSE + self.queries
        return Timing(
            latency=sums + _DIVISION,
            interval=Fraction(self.row),
            start="the last of rows",
            end="o",
            unit="row",
            words=(("rows", self.beats),),
            delays=(
                ("from K to V of a run of one job", self.score + self.weight),
                ("from the first to the second K of a run", self.score + _NEXT_ROW + 1),
                ("from V to the next V at least, and one per beat of o", sums + 1),
                ("from the last of o to status", 1),
            ),
        )

    def interval(self, rows: int) -> int:
        """Cycles from one job to the next in a long run of jobs of ``rows`` rows each.

        V waits until the sums before are taken, and an output begins when the one before ends.
        """
        sums = self.row * rows + _JOB + _INVERSE + self.queries + self.outputs
        output = _INVERSE + self.queries + self.outputs + _DIVISION + 1
        return max(2 * self.row * rows, sums, output)

    def run(self, rows: int, jobs: int) -> int:
        """Cycles from the first row to the last status of a run of ``jobs`` jobs of ``rows`` rows.

        Exact where a stretch of rows is as long as what follows it: the weights of a job, the sums
        of the job before.
        """
        end = _JOB + _INVERSE + self.queries + _DIVISION + self.outputs
        if jobs == 1:
            return 2 * self.row * rows + self.score + self.weight - 1 + end
        gaps = self.score + _NEXT_ROW + _JOB + _INVERSE + self.queries + self.outputs
        return 2 * self.row * rows * jobs + gaps + end


class StreamCycles:
    """The cycle of each transfer of AttentionStream when no source idles and no sink stalls.

    ``run(rows)`` adds a run of jobs with so many rows each. It follows what each part waits for.
    """

    def __init__(self, shape: StreamShape):
        self.shape = shape
        self.cycles: dict[str, list[int]] = {name: [] for name in ("job", "rows", "o", "status")}
        self._order = 0  # next cycle of the order of rows
        self._begun: list[int] = []  # cycle in which each stretch of rows began
        self._free = (-1, False, False)  # end of the stretch before; whether it was of K, had rows
        self._row = 0  # earliest cycle of the softmax's next row
        self._room = 0  # earliest cycle in which the sums are free
        self._loaded: list[int] = []  # cycle in which the queries of each job are there
        self._released: list[int] = []  # last cycle in which they are needed
        self._started: list[int] = []  # cycle in which each output began

    def run(self, rows: list[int]) -> None:
        """Adds a run."""
        keys: list[int] = []  # end of K of each job
        for n, count in enumerate(rows):
            at = len(self.cycles["job"])
            if at >= _JOBS:
                self._order = max(self._order, self._started[at - _JOBS] + 1)
            self._order += 1
            keys.append(self._keys(at, count))
            if n:
                self._values(rows[n - 1], keys[n - 1], at - 1)
            else:
                self._order += 1
            self.cycles["job"].append(self._order)
            self._order += 1
        self._values(rows[-1], keys[-1], at)

    def _is_refused(self, count: int) -> bool:
        return not 1 <= count <= self.shape.max_rows

    def _offered(self, of_key: bool, count: int) -> int:
        """The earliest cycle in which the next stretch may begin."""
        pushed = self._order
        if len(self._begun) >= _PHASES:
            pushed = max(pushed, self._begun[-_PHASES] + 1)
        self._order = pushed + 1
        end, was_key, had_rows = self._free
        follows = had_rows and count and not (of_key and was_key)
        return max(pushed + 1, end if follows else end + 1)

    def _move(self, first: int, count: int) -> int:
        """The rows of a stretch from cycle ``first`` on; the cycle of its last product."""
        turns = self.shape.turns
        last = first + count * self.shape.row - 1
        self.cycles["rows"] += range(first + turns - 1, last + 1, turns)
        return last

    def _keys(self, job: int, count: int) -> int:
        shape = self.shape
        first = self._loaded[-1] if job else 0  # of the job's beats of q
        freed = self._released[job - 2] + 1 if job >= 2 else 0
        if shape.sinks:  # they wait for their place, and the queries wait behind them
            words = max(first, freed) + shape.sinks + shape.cells
        else:
            words = max(first + shape.cells, freed)
        self._loaded.append(words + (shape.row - 1) * shape.cells)
        begin = max(self._offered(True, count), self._loaded[job] + 1)
        if not self._is_refused(count):
            begin = max(begin, self._row)
        self._begun.append(begin)
        end = self._move(begin + 1, count) if count else begin
        self._released.append(end)
        self._free = end, True, count > 0
        if not self._is_refused(count):
            self._row = end + shape.score + _NEXT_ROW
        return end

    def _values(self, count: int, keys: int, job: int) -> None:
        shape, refused = self.shape, self._is_refused(count)
        begin = self._offered(False, count)
        first = begin + 1
        if not refused:
            begin = max(begin, self._room)
            first = max(begin + 1, keys + shape.score + shape.weight)
        self._begun.append(begin)
        end = self._move(first, count) if count else begin
        self._free = end, False, count > 0
        start = end + _JOB
        if job:
            start = max(start, self.cycles["status"][-1] + 1)
        self._started.append(start)
        sums = start + _INVERSE + shape.queries
        if not refused:
            self._room = sums + shape.outputs
        given = range(sums + _DIVISION, sums + _DIVISION + shape.outputs)
        self.cycles["o"] += given
        self.cycles["status"].append(given[-1] + 1)
