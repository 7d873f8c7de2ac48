"""Timing of KLLM's blocks, as functions of their numbers."""

import dataclasses
import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

from golden.attention.timing import StreamCycles, StreamShape, softmax
from golden.axi.timing import read_port
from golden.index.timing import table_row
from golden.kllm.isa import MatmulMode, Norm
from golden.oaken.timing import kv_token_append_cycles, kv_token_append_latency
from golden.timing import Timing

_ROW = 16  # elements


def vector_lanes(width: int, functions: int = 1) -> Timing:
    """``width`` elements per cycle, ``functions`` of those that leave as elements."""
    return Timing(
        latency=5,
        interval=Fraction(_ROW, width),
        start="a",
        unit="row",
        delays=(
            ("from weight to o", 4),
            ("from a to score", 1),
            ("from a to element", 1),
            ("per row of elements", _ROW // functions),
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


def loader() -> Timing:
    """The memory's latency is not included."""
    return Timing(latency=2, start="command", end="read", unit="row")


def load_at(has_choices: bool) -> Timing:
    """has_choices: the block reads choices, a cycle before it knows a token's entry."""
    look = int(has_choices)
    return Timing(
        latency=4 + look,
        start="command",
        end="read",
        unit="row",
        delays=(("from a token's request to the next one's", 3 + look),),
    )


def bank_turns(first: Sequence[int], second: Sequence[int], banks: int) -> int:
    """Cycles in which two readers get their rows, if each could take one per cycle.

    A bank gives a row per cycle. Two readers that want rows of one bank have it in turn.
    """
    at, latest, cycles = [0, 0], [0] * banks, 0
    while at[0] < len(first) or at[1] < len(second):
        wants = {
            n: rows[at[n]] % banks for n, rows in enumerate((first, second)) if at[n] < len(rows)
        }
        for n, bank in wants.items():
            if wants.get(1 - n) != bank or latest[bank] != n:
                at[n] += 1
        for bank in set(wants.values()):
            both = list(wants.values()).count(bank) == 2
            given = 1 - latest[bank] if both else next(n for n in wants if wants[n] == bank)
            latest[bank] = given
        cycles += 1
    return cycles


def choice_cycles(k: int, rows: float, tokens: int, answer: int = 2) -> float:
    """Cycles from a TOP_K that leaves ``k`` choices of each token to its status.

    rows : the sum over a token's rows of max(n, 1), n the elements that enter its list
    answer : cycles after which the memory answers
    """
    token = rows + k + 3
    return answer + 2 + token + (tokens - 1) * token


def result_rows(width: int, functions: int = 1) -> Timing:
    """``width`` elements per cycle, ``functions`` of those that come as elements."""
    return Timing(
        latency=1,
        interval=Fraction(_ROW, width),
        start="the last word of a row",
        end="write",
        unit="row",
        delays=(("per row of elements", _ROW // functions), ("from walk to the first word", 1)),
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


def dispatcher(command_words: int) -> Timing:
    """The timing from a command's last word to its engine; the command waits for none before it."""
    return Timing(
        latency=5,
        interval=Fraction(command_words + 2),
        start="a command's last word",
        end="command_k.valid",
        unit="command",
    )


def readback() -> Timing:
    """The timing of READ: a row is on order while the words of the row before it leave."""
    return Timing(latency=2, start="command", end="row_request")


def orizuru(levels: int, architecture: str, stages: int = 1) -> Timing:
    """The timing from a token's last beat to the first pop, and from pop to pop of one tree.

    stages : cycles of a tournament
    """
    parallel = architecture == "parallel"
    return Timing(
        latency=3 + levels if parallel else 1 + max(levels, 2) + stages,
        interval=Fraction(levels if parallel else levels * stages + 1),
        start="x",
        end="pop_max and pop_min",
        unit="pop",
        words=(("pop_max", 1), ("pop_min", 1)),
    )


def function_cycles(stages: int) -> dict[str, int]:
    """Cycles of each function, ``stages`` registers per operator."""
    operators = {
        "EXP": 2, "RECIPROCAL": 3, "SQRT": 3, "RSQRT": 3, "SILU": 6, "GELU": 9,
        "TANH": 3, "GELU_ERF": 3, "QUICK_GELU": 3,
    }  # fmt: skip
    return {"IDENTITY": 1, "RELU": 1} | {name: n * stages for name, n in operators.items()}


def matmul_supply(groups: int) -> int:
    """Cycles from an offered MATMUL to its supply job: the engine idle, no stall.

    The engine counts the ``groups`` of outputs, one per cycle. It does not wait for ``release``.
    """
    return 4 + groups


def weights_latency() -> int:
    """Cycles from a supply job to the first beat of weights at the lanes, at least.

    The memory's latency is not included. The supply takes 4 cycles (``setup_cycles`` of a job whose
    words need no division), its port 3, and the lanes' buffers 3.
    """
    port = read_port(buffered=True)
    return 4 + port.latency + port.delay("from axi__r to o") + 3


def scales_free(scaler: int = 6) -> int:
    """Cycles by which a group's scales leave their buffer before the group's last output.

    They pass the 3 registers of the product with ``rms``, and the lane's scaler.
    """
    return 3 + scaler


def matmul_ticket(tokens: int = 0, answer: int = 0) -> int:
    """Cycles to the ticket of a MATMUL from its turn, or from the cycle after its supply job.

    The later of the two counts. Its turn comes with its release, and after the codebook before it.
    ``tokens`` descriptors, each ``answer`` cycles after its request; DIRECT reads none: 0.
    """
    return 1 + (tokens + answer + 1 if tokens else 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneTiming:
    """The numbers that a lane's cycles depend on.

    words, integer_words: words of bins per column, that are reduced one per cycle. digits: cycles
    of a beat of integers in a lane without bins (counter=select), else 0. Such a lane has 1 word
    per column, its sum. outlier_parts: cycles of an outlier. scaler: cycles of the scaler.
    """

    columns: int
    elements: int
    words: int
    integer_words: int
    digits: int = 0
    outlier_parts: int = 1
    scaler: int = 6

    def cycles_of(self, job: "LaneJob") -> int:
        """Cycles in which the beats of a job enter the lane."""
        return job.steps * max(self.digits * (job.mode == MatmulMode.INTEGER), 1)

    def words_of(self, mode: MatmulMode) -> int:
        """Words of bins per column of a job; 0: the job bypasses the counters."""
        if mode == MatmulMode.DIRECT:
            return 0
        return self.integer_words if mode == MatmulMode.INTEGER else self.words

    def gap(self, mode: MatmulMode) -> int:
        """Cycles from the output of a column to that of the next."""
        return max(self.words_of(mode), 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneJob:
    """steps: ``lane_steps``; outputs: 1 to the lane's columns; mode: what the elements are.

    Of lanes whose outliers take several cycles: ``before``, steps before the first outlier, None
    without one; ``ends``: the last beat has one.
    """

    steps: int
    outputs: int
    mode: MatmulMode = MatmulMode.KMEANS
    before: int | None = None
    ends: bool = False


def lane_steps(
    length: int, elements: int, outliers: Iterable[int] = (), parts: int = 1
) -> int:
    """Cycles that the beats of ``length`` elements take: max(1, o * parts) with o outliers.

    outliers: their positions, 0..length - 1; parts: cycles of each.
    """
    per_beat = Counter(position // elements for position in outliers)
    return sum(max(1, parts * per_beat[beat]) for beat in range(-(-length // elements)))


def lane_latency(shape: LaneTiming, mode: MatmulMode, ends: bool = False) -> int:
    """Cycles from a job's last beat to its first output, in an idle lane.

    ends: the last beat has an outlier.
    """
    parts = shape.outlier_parts
    if mode == MatmulMode.DIRECT:
        return shape.scaler + (4 if parts == 1 else 2 + parts)
    dense = shape.scaler + (5 if shape.digits else 7 + shape.words_of(mode))
    return max(dense, shape.scaler + 2 + parts) if ends and parts > 1 else dense


def lane_cycles(shape: LaneTiming, job: LaneJob, jobs: int = 1) -> int:
    """Cycles from the first beat of w to the last y of ``jobs`` equal jobs at full rate.

        2 + (steps - 1) + latency + (outputs - 1) * gap + (jobs - 1) * max(steps, reduce, 2)

    With counter=select a step of integers takes ``digits`` cycles. The weight buffer takes 2
    cycles. ``reduce`` is ``columns * gap``. Reducing a job overlaps counting the next. The register
    of the status takes a word every 2 cycles. If outliers take several cycles, the first outlier of
    a job, or its last step, waits until the sums of the job before have left.
    """
    steps = shape.cycles_of(job)
    first = 2 + steps - 1 + lane_latency(shape, job.mode)
    further = max(steps, shape.columns * shape.gap(job.mode), 2)
    if shape.outlier_parts > 1:
        is_direct = job.mode == MatmulMode.DIRECT
        if is_direct or job.ends:  # its steps count the cycles of the last outlier
            latency = lane_latency(shape, job.mode, ends=True)
            first = 2 + steps - shape.outlier_parts + latency
        before = steps - 1 if job.before is None else job.before
        # From the last step to its first sum: the dense sums are there before those of outliers,
        # unless the last steps have none. Where the last step is the one that waits, they are too.
        leave = 2
        if not is_direct and before < steps - 1:
            leave = max(2, 5 - shape.outlier_parts) if job.ends else 4
        further = max(further, steps + shape.columns + leave - 1 - (0 if is_direct else before))
    return first + (job.outputs - 1) * shape.gap(job.mode) + (jobs - 1) * further


@dataclasses.dataclass(frozen=True)
class FunctionCycles:
    """Cycles from a command of the functional unit to its status, no stall, no other command.

    width : elements per cycle
    bits_a : bits of an index
    stages : registers of an operator of the element functions
    answer : cycles from a request to its answer, the same for all clients; 1 to 4
    functions : elements per cycle of FUNCTION
    """

    width: int
    bits_a: int
    stages: int
    answer: int
    functions: int = 1

    @property
    def refused(self) -> int:
        """The cycles of a command refused by opcode, operands, or for want of a codebook."""
        return function_decode().latency + function_control().latency

    @property
    def codebook(self) -> int:
        return self._walk

    def rows(self, rows: int) -> int:
        """BINARY of so many rows in all, and AXPY with an immediate scalar."""
        return self._walk + vector_lanes(self.width).latency + self._passes(rows) + 2

    def axpy(self, rows: int) -> int:
        """The cycles with a slot's negated mean: its descriptor, then a product of 2 registers."""
        return self.rows(rows) + self.answer + 5

    def rotary(self, rows: int) -> int:
        """The first result waits for the second row of its pair."""
        return self.rows(rows) + 1

    def softmax(self, rows: int, tokens: int, bad: int = 0) -> int:
        """``tokens`` tokens of ``rows`` rows; ``bad`` of them are left out as NONFINITE."""
        passes, lanes, core = self._passes(rows), vector_lanes(self.width), softmax()
        read = 2 + self.answer  # from a walk to its first row
        largest = read + lanes.delay("from a to score") + passes - 1 + core.latency
        total = largest + read + lanes.latency + passes - 1
        total += core.delay("from the last difference to total")
        weights = total + core.delay("from total to the first weight") + passes - 1
        written = weights + lanes.delay("from weight to o") + result_rows(self.width).latency
        return self.refused + 1 + (tokens - bad) * (written + 2) + bad * (largest + 2)

    def function(self, rows: int, name: str) -> int:
        """FUNCTION: ``functions`` elements per cycle, those after the length too."""
        lanes = vector_lanes(self.width, self.functions)
        start = self._walk + lanes.delay("from a to element")
        passes = rows * lanes.delay("per row of elements")
        return start + passes - 1 + function_cycles(self.stages)[name] + 3

    def slots(
        self, outliers: list[int], name: str, second: list[int] | None = None
    ) -> tuple[int, int]:
        """(least, most) cycles of ACTIVATE, or with a second slot of GLU.

        outliers, second: outliers of each row of a slot. The least: only outliers of the first slot
        take time, as rows of the second are looked up while the first one's table is filled. The
        most: those of both slots do, and the functions of the last outliers end after all rows
        before them have left.
        """
        function = function_cycles(self.stages)[name]
        slots = 1 if second is None else 2
        tables = self.refused + slots * (self.answer + 1) + 1
        started = tables + slot_fill(self.bits_a, slots, function)
        # One client reads the rows of both slots in turn.
        first = started + 2 + self.answer + slot_fetch().latency + slots - 1
        after = row_reader(2).delay("from i to o") + vector_lanes(self.width).latency
        after += self._passes(1) + 3
        both = outliers if second is None else list(map(operator.add, outliers, second))
        least, most = (first + self._table(each, slots) + after for each in (outliers, both))
        return least, most + (function - 1 if any(both) else 0)

    def _table(self, outliers: list[int], slots: int) -> int:
        """The cycles from the first row at a table to the last one out of it."""
        rows = 0
        for n, count in enumerate(outliers):
            rows = max(rows, n * slots) + table_row(self.width, _ROW, count)
        return rows

    @property
    def _walk(self) -> int:
        """The cycles from a command on rows to the first row at the lanes."""
        return self.refused + 1 + self.answer + row_reader(2).latency

    def _passes(self, rows: int) -> int:
        return rows * _ROW // self.width


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizerCycles:
    """Cycles from a command of Unit.QUANTIZE to its status, at most; 0 or more tokens fail.

    The engine is idle, the memory answers ``answer`` cycles after a request, and no stream stalls.
    The first token takes the pipeline's length. Each further token takes the longest of its steps.
    These are reached by tokens whose outliers are neighbours.

    thresholds : midpoints of a codebook
    scaling : cycles in which they are scaled for a token
    row : cycles of a row in the clustering
    trees, norms : timing of the trees and of the statistics
    parts : cycles of an integer row in the dividers
    scale : cycles from the largest element of an integer token to its scale
    """

    thresholds: int
    scaling: int
    trees: Timing
    norms: Timing
    parts: int
    scale: int
    answer: int = 2
    row: int = 1

    def quantize(
        self, *, rows: int, tokens: int, outliers: int, crowded: int, full: int, pops: int | None,
        norm: int,
    ) -> int:
        """QUANTIZE of ``tokens`` tokens of ``rows`` rows.

        outliers : of a token that take the statistics a cycle each: at most all of them, of spread
            ones those of ``crowded``; crowded : those that are not the first of their row
        full : rows with 5 outliers or more, 0 counts as 1. Four wait for the statistics; these take
        the next one 2 cycles later, when they know of the row's outliers.
        pops : max(k_max, k_min); None: OFFLINE
        """
        late = self.answer - 2
        clustered = rows * self.row
        first = clustered + self.scaling + 15 + late
        steps = [self.scaling + 3, clustered + crowded + 1]
        if pops is not None:
            popped = pops * math.ceil(self.trees.interval) + 1
            first += rows + popped + self.trees.latency + 2 + late
            steps += [rows + self.trees.latency + 2, popped + self.trees.latency - 2]
        if norm == Norm.NONE:
            first += crowded
        else:
            reduce = self.norms.delay("from a token's last beat to the next job")
            total = self.norms.latency_max if norm == Norm.LAYER else self.norms.latency
            assert total is not None
            full = max(full, 1)
            first += total + outliers + full - 1
            steps += [clustered + outliers + full + reduce, total - reduce + 7]
        return first + (tokens - 1) * max(steps)

    def integer(self, rows: int, tokens: int) -> int:
        """QUANTIZE_INTEGER: each row passes the dividers in ``parts`` cycles."""
        divided = rows * self.parts
        first = rows + divided + self.scale + 20 + 2 * (self.answer - 2)
        return first + (tokens - 1) * max(divided, rows + 4, self.scale + 1)

    def codebook(self) -> int:
        """ACTIVATION_CODEBOOK: its words leave one per cycle."""
        return 2 * self.thresholds + 12 + self.answer

    def refused(self, slots: int = 0) -> int:
        """A command that reads nothing; ``slots`` become not valid."""
        return 5 + max(1, 2 * slots)


# Of a command of the unit CACHE for one token, from its start to its end. APPEND: without its rows
# and what follows them in the cache. ATTEND: without the memory's latency and the stream of rows.
_APPEND, _ATTEND = 13, 49
_SCALE_STAGES = 9  # of Oaken's quantizer
_LONG = 256  # rows of a job, from which on it takes as much longer as its rows take
# Several engines: of the queues on the way of a request, and of an attend (oaken_attention_array).
_REQUEST, _QUEUES = 2, 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheCycles:
    """Cycles of APPEND and ATTEND. ``memory``: cycles from a request of the pages to its answer.

    A record of K or V has ``bytes`` of the pages, more with more outliers. Records follow each
    other in the words of ``word_bytes``, of which the memory gives one per cycle. ``ahead`` of them
    may wait for their rows. With several engines ``shape``, ``slots``, ``rows`` and bytes are those
    of one. They work at the same time, and their outputs leave one after the other.
    """

    shape: StreamShape
    slots: int  # records of a vector
    rows: int  # of the vector memory that a vector has
    word_bytes: int
    ahead: int = 256
    engines: int = 1

    def words(self, amount: float) -> float:
        """The mean words that ``amount`` bytes touch, which begin anywhere in a word."""
        return (amount + self.word_bytes - 1) / self.word_bytes

    def append(self, tokens: int, memory: int, size: float) -> int:
        """The vectors follow each other at the pace of the pages. size: bytes of a record."""
        words, beats = round(self.words(size)), self.shape.beats * self.slots
        lone = kv_token_append_latency(
            self.shape.lanes, _SCALE_STAGES, beats, self.slots, words, memory
        )
        train = kv_token_append_cycles([words] * self.slots, memory)
        queues = _REQUEST if self.engines > 1 else 0
        return _APPEND + self.rows + queues + lone + (tokens - 1) * train

    def attend(self, rows: Sequence[int], memory: int, sizes: tuple[float, float]) -> float:
        """``rows``: cached tokens that each token attends to, its own included.

        sizes : bytes of a record of K, and of V
        """
        counts = [count for count in rows for _ in range(self.slots)]
        stream = StreamCycles(self.shape)
        stream.run([min(count, _LONG) for count in counts])
        moved = 2 * self.shape.row * sum(max(count - _LONG, 0) for count in counts)
        run = stream.cycles["status"][-1] - stream.cycles["rows"][0] + self.shape.turns
        # The first job's queries come after their sinks.
        first = _ATTEND + self.shape.sinks
        return first + self._others + memory + run + moved + self._stalls(counts, sizes)

    def _stalls(self, counts: Sequence[int], sizes: tuple[float, float]) -> float:
        """Cycles in which rows wait for the words of their records.

        The stretches are K0 K1 V0 K2 V1 .. V. The memory goes on while words have room. So it
        does between K and V of a lone job, and while rows take longer than their words.
        """
        order = [(counts[0], sizes[0])]
        for before, count in itertools.pairwise(counts):
            order += [(count, sizes[0]), (before, sizes[1])]
        order.append((counts[-1], sizes[1]))
        between = self.shape.timing().delay("from K to V of a run of one job")
        came = end = alone = 0.0
        for n, (count, size) in enumerate(order):
            begin = end + (between if n == 1 and len(counts) == 1 else 0)
            words = self.words(count * size)
            came = max(came + words, begin + words - self.ahead)
            alone += begin - end + count * self.shape.row
            end = max(begin + count * self.shape.row, came)
        return end - alone

    @property
    def _others(self) -> int:
        """Cycles in which the outputs of the other engines leave, after those of the first."""
        if self.engines == 1:
            return 0
        return _QUEUES + (self.engines - 1) * self.slots * self.shape.outputs
