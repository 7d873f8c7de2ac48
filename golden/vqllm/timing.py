"""Timing of the blocks of VQ-LLM, as functions of their numbers."""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import numpy as np

from golden.attention.timing import weights
from golden.index.timing import table_lane, tree_levels
from golden.timing import Timing
from golden.vqllm.config import AttendShape, Budget, MatrixShape, Plan, VqShape, Work
from golden.vqllm.format import DESCRIPTOR_BITS

ROW_ROUNDING = 2  # cycles of the rounding of a sum
ROW_SCALING = 2  # cycles of its product with the scale of its row


def codebook_cache() -> Timing:
    """Tiers, reads, words, queue in two cycles, answer: of a beat on chip without conflicts."""
    return Timing(latency=6, start="look", end="entry", unit="beat")


def dequantizer() -> Timing:
    """Sum, rounding."""
    return Timing(latency=2, unit="beat")


def exchange(pieces: int, in_place: bool = False) -> Timing:
    """The timing to the first of a beat's ``pieces`` words.

    In place, a cycle for each step comes first.
    """
    return Timing(
        latency=pieces + 1 if in_place else 1,
        interval=Fraction(pieces),
        unit="beat",
        words=(("i", 1), ("o", pieces)),
    )


def layout_buffer(pieces: int) -> Timing:
    """A beat is written while it waits; then read, and its first word shown."""
    return Timing(
        latency=2, interval=Fraction(pieces), unit="beat", words=(("i", 1), ("o", pieces))
    )


def layout_latency(fusion: str, pieces: int) -> int:
    """The cycles from a beat's entries to its first word; ``pieces`` cycles write a buffer."""
    if fusion == "none":
        return 0
    if fusion == "exchange":
        return exchange(pieces).latency
    return layout_buffer(pieces).latency + pieces - 1


# Plans: expected cycles from a histogram of the look-ups, never from the look-ups themselves

_EXACT = 100  # states of the exact count: beyond, the stages of a beat draw from their mean


def tier_chances(counts: np.ndarray, tiers: tuple[int, int, int]) -> np.ndarray:
    """The chance of each place of a look-up: (tiles, stages, banks + 2), banks, memory, registers.

    counts: (tiles, stages, entries) in the order of the indices; tiers: registers, shared, banks.
    """
    registers, shared, banks = tiers
    share = counts / counts.sum(-1, keepdims=True)
    tiles, stages, _ = counts.shape
    found = np.zeros((tiles, stages, banks + 2))
    found[..., banks] = share[..., shared:].sum(-1)
    found[..., banks + 1] = share[..., :registers].sum(-1)
    for stage in range(stages):
        first = (registers + stage) % banks  # bank of the first entry that is in SRAM
        some = share[:, stage, registers:shared]
        some = np.pad(some, ((0, 0), (first, -(first + some.shape[-1]) % banks)))
        found[:, stage, :banks] = some.reshape(tiles, -1, banks).sum(1)
    return found


def beat_chances(chances: np.ndarray, lanes: int) -> np.ndarray:
    """Chances that a beat takes at most 1, 2, .. cycles: (tiles, lanes * stages).

    Each stage has ``lanes`` look-ups in a beat, drawn independently by ``tier_chances``. The count
    is exact for few states. For more, all stages draw from the mean of their chances.

    No bank, nor memory, has more than t look-ups: that chance is a coefficient of a product of
    polynomials. Each bank has one of them, which ends at the power t.
    """
    tiles, stages, tiers = chances.shape
    if stages > 1 and (lanes + 1) ** stages > _EXACT:
        return beat_chances(chances.mean(1, keepdims=True), lanes * stages)
    most = lanes * stages
    shape = (lanes + 1,) * stages
    ways = np.zeros((tiles, most, *shape))  # by the number of look-ups of each stage
    ways[(..., *(0,) * stages)] = 1
    for tier in range(tiers):
        limited = tier < tiers - 1  # any number may be in registers
        after = np.zeros_like(ways)
        for taken in np.ndindex(*shape):
            least = max(sum(taken), 1) - 1 if limited else 0
            if least >= most:
                continue
            weight = np.ones(tiles)
            for stage, count in enumerate(taken):
                weight = weight * chances[:, stage, tier] ** count / math.factorial(count)
            if not weight.any():
                continue
            target = tuple(slice(count, None) for count in taken)
            source = tuple(slice(None, lanes + 1 - count) for count in taken)
            weight = weight.reshape(tiles, *(1,) * (stages + 1))
            after[(slice(None), slice(least, None), *target)] += (
                weight * ways[(slice(None), slice(least, None), *source)]
            )
        ways = after
    found = ways[(..., *(lanes,) * stages)] * float(math.factorial(lanes)) ** stages
    return np.clip(found, 0, 1)


def beat_cycles(chances: np.ndarray, least: int = 1) -> np.ndarray:
    """Expected cycles of a beat, at least ``least``: (tiles,), of ``beat_chances``."""
    return least + (1 - chances[:, least - 1 :]).sum(-1)


def beat_variance(chances: np.ndarray, least: int = 1) -> np.ndarray:
    """Variance of the cycles that ``beat_cycles`` expects: (tiles,)."""
    beyond = 1 - chances[:, least - 1 :]
    steps = 2 * (least + np.arange(beyond.shape[1])) + 1
    square = least**2 + (steps * beyond).sum(-1)
    return np.maximum(0, square - beat_cycles(chances, least) ** 2)


def beat_floor(chances: np.ndarray, lanes: int) -> np.ndarray:
    """A lower bound of ``beat_cycles`` of the same beat that is quick to find: (tiles,)."""
    # A little less, so that no rounding of a float puts it above.
    return np.maximum(1, lanes * chances[..., :-1].sum(1).max(-1)) * (1 - 1e-9)


@dataclasses.dataclass(frozen=True)
class Beats:
    """Expected beats of a plan, by the look-ups of each stage in them: means over the tiles."""

    cycles: dict[int, float]  # of their look-ups
    variance: dict[int, float]  # of them
    waits: dict[int, float]  # chance that a beat looks up in memory
    far: float  # share of the look-ups that go to memory


def sum_bits(vq: VqShape, columns: int) -> int:
    """Bits of an exact sum of products of FP16 words with elements of the matrix."""
    return 66 + (vq.largest - 1).bit_length() + (columns - 1).bit_length()


IN_FLIGHT = 16  # beats between the look-up and the answer of memory
FAR_IN_FLIGHT = 64  # entries of memory of a core on their way
_PORT_BURSTS = (64, 256)  # least and most that the port of the cores has in flight
_ANSWER = 12  # from the look-up to the answer of memory, beside its latency
LOAD_IN_FLIGHT = 64  # words of codebooks of a core on their way
_ASK = 8  # from the room for a word to its request, and from the word to its entry
_LOAD = 5  # cycles of a load beside its entries: from the switch before it, and to its switch
_FIRST_LOAD = 10  # the same of the first load, beside the latency of memory
_BURST_WORDS = 16  # of codebooks or codes that come in turn
_CODES_IN_FLIGHT = 64  # words of codes of a core on their way
_JOB = 8  # from a job to what its first descriptor asks for, beside the latency of memory
_NEXT_PART = 9  # from a descriptor to the next one, beside the latency of memory


def port_bursts(cores: int, far: int) -> int:
    """Bursts in flight at the port of cores with ``far`` entries of memory in flight each."""
    least, most = _PORT_BURSTS
    return min(most, max(least, cores * far))


@dataclasses.dataclass(frozen=True)
class Job:
    """Parts of tiles that the busiest core works on one after another.

    passes: of the columns, with ``count / passes`` such parts each; loads: each part brings its own
    codebooks; cores: that have such a part, too; whole: vectors of a row in the parts of all these;
    books: codebooks that all these have at a time
    """

    count: int
    passes: int
    rows: int
    vectors: int
    loads: bool
    cores: int
    whole: int
    books: int


def core_jobs(work: Work, plan: Plan) -> list[Job]:
    """Jobs of the busiest core: row part 0 and column part 0 of each tile."""
    lanes = plan.lookups // work.matrix.vq.stages
    return _core_jobs(work.matrix, plan.cores // plan.split, plan.split, plan.rows, lanes)


@functools.lru_cache(1 << 12)
def _core_jobs(
    shape: MatrixShape, row_parts: int, split: int, job_rows: int, lanes: int
) -> list[Job]:
    down, along = shape.grid
    each = shape.tile_vectors
    # Parts of the columns one after another, their vectors, and those of all cores.
    if split == 1:
        last = shape.vectors - (along - 1) * each
        mine, widths = along, [(1, last, last), (along - 1, each, each)]
    elif along >= split:  # some cores have one tile more than others
        whole, more = divmod(along, split)
        mine, widths = whole + (more > 0), [(whole, each, split * each), (1, each, more * each)]
    else:  # the columns are cut between beats
        beats = math.ceil(math.ceil(shape.vectors / lanes) / split)
        mine, widths = 1, [(1, min(shape.vectors, beats * lanes), shape.vectors)]
    jobs = []
    for tiles, height in [
        (down - 1, shape.tile_rows),
        (1, shape.rows - (down - 1) * shape.tile_rows),
    ]:
        rows = math.ceil(height / row_parts)
        whole, rest = divmod(rows, job_rows)
        for chunks, size in ((whole, job_rows), (1 if rest else 0, rest)):
            for columns, width, whole in widths:
                parts = min(split, math.ceil(whole / min(width, lanes if along < split else width)))
                books = parts if along >= split else min(parts, along)
                # With one tile along the columns, the codebooks stay for all jobs of its rows.
                passes = tiles * chunks
                jobs.append(
                    Job(
                        passes * columns, passes, size, width, mine > 1, parts * row_parts, whole,
                        books,
                    )
                )  # fmt: skip
    return [job for job in jobs if job.count and job.cores]


def _followers(jobs: list[Job]) -> list[Job]:
    """Finds the job after the last part of each kind of a pass: the next kind, or the first."""
    found = []
    for job in jobs:
        own = [each for each in jobs if (each.rows, each.passes) == (job.rows, job.passes)]
        found.append(own[(own.index(job) + 1) % len(own)])
    return found


def job_beats(work: Work, plan: Plan, job: Job) -> list[tuple[int, int]]:
    """Beats of a job, and the look-ups of each stage in them: full beats, and the last of rows."""
    lanes = plan.lookups // work.matrix.vq.stages
    full, rest = divmod(job.vectors, lanes)
    return [each for each in ((job.rows * full, lanes), (job.rows * bool(rest), rest)) if each[0]]


def codebook_loads(work: Work, plan: Plan) -> int:
    """Loads of codebooks by the busiest core."""
    jobs = core_jobs(work, plan)
    if jobs[0].loads:
        return sum(job.count for job in jobs)
    return work.matrix.grid[0]


def moved_bits(work: Work, plan: Plan) -> int:
    """Bits of partial sums between cores, and of the codebooks that all cores load."""
    shape, vq = work.matrix, work.matrix.vq
    outputs = shape.rows * work.vectors * work.heads * sum_bits(vq, shape.columns)
    return plan.split * outputs + loaded_bits(work, plan)


def loaded_bits(work: Work, plan: Plan) -> int:
    """Bits of the codebooks that all cores load, once through the work."""
    vq = work.matrix.vq
    codebook = vq.stages * plan.shared * vq.size * 16
    if work.operation == "attention":
        return 2 * work.heads * work.matrix.vectors * codebook
    return codebook_loads(work, plan) * plan.cores * codebook


def beat_least(work: Work, plan: Plan) -> int:
    """Cycles that a beat is held: groups of vectors times pieces of a layout."""
    pieces = work.matrix.vq.size // plan.need if plan.need else 1
    if work.operation == "gemv":
        return pieces
    return pieces * min(math.ceil(work.vectors / plan.side), plan.groups)


def _excess(mean: float, variance: float) -> float:
    """Expected positive part of a normal number."""
    if variance <= 0:
        return max(0.0, mean)
    sigma = math.sqrt(variance)
    z = mean / sigma
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return sigma * density + mean * (1 + math.erf(z / math.sqrt(2))) / 2


def _held_cycles(looked: float, variance: float, held: int) -> float:
    """Mean cycles of a beat that is held for ``held`` cycles after its look-ups.

    The look-ups of the beats in flight go on meanwhile. So a beat with a full bank costs nothing
    where others are faster.
    """
    if held == 1:
        return looked
    return held + _excess(IN_FLIGHT * (looked - held), IN_FLIGHT * variance) / IN_FLIGHT


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of a job on the busiest core."""

    beats: int
    cycles: float  # of its look-ups, with what they wait for
    far: float  # look-ups of memory


class _Decoding:
    """The reads and cycles of a plan's engines that decode the vectors of a matrix.

    lanes : vectors of a beat
    pieces : words of a beat in its layout
    held : groups of vectors that a beat is held for
    repeats : times that all codes are read
    beat_bytes, word_bytes : of the codes of a beat, and of a word of memory
    book, load : words of memory of the codebooks of a load, and its cycles
    described : words of memory of a descriptor
    answer : cycles from a look-up to the answer of memory
    row_parts : cores that share the rows
    start : cycles before the first look-up
    """

    def __init__(self, work: Work, plan: Plan, budget: Budget, beats: Beats):
        vq = work.matrix.vq
        self.work, self.plan, self.budget, self.beats = work, plan, budget, beats
        self.lanes = plan.lookups // vq.stages
        self.pieces = vq.size // plan.need if plan.need else 1
        self.held = beat_least(work, plan) // self.pieces
        self.repeats = math.ceil(math.ceil(work.vectors / plan.side) / self.held)
        self.beat_bytes = math.ceil(plan.lookups * vq.code_bits / 8)
        self.word_bytes = budget.data_bits // 8
        self.book = vq.load_words(plan.shared, self.word_bytes)
        entries = vq.load_beats(plan.shared, self.word_bytes, plan.banks)
        self.load = load_cycles(entries, self.book, budget.latency)
        self.described = math.ceil(DESCRIPTOR_BITS / budget.data_bits)
        self.answer = budget.latency + _ANSWER
        self.row_parts = plan.cores // plan.split
        self.jobs = core_jobs(work, plan)
        self.followers = _followers(self.jobs)
        self.start = self._start(self.jobs[0])

    def _start(self, job: Job) -> float:
        """The last codes of a core come after its codebooks."""
        rounds = _BURST_WORDS * (math.ceil(self.book / _BURST_WORDS) - 1)
        after = min(_BURST_WORDS, max(0.0, self.codes(job) / job.cores - rounds))
        return self.budget.latency + _FIRST_LOAD + max(self.load, self.turn(job) - after)

    def codes(self, job: Job) -> float:
        """Words of codes of all cores that have such a job."""
        beats = math.ceil(job.whole / self.lanes)
        return job.rows * self.row_parts * beats * self.beat_bytes / self.word_bytes

    def turn(self, job: Job) -> float:
        """Words of memory between a core's codebooks and its next ones, of all cores.

        Codebooks that several cores load are read once.
        """
        ahead = min(_BURST_WORDS * math.ceil(self.book / _BURST_WORDS), _CODES_IN_FLIGHT)
        words = job.books * self.book + job.cores * self.described
        return words + min(self.codes(job), job.cores * ahead)

    def next_load(self, job: Job) -> float:
        """Cycles of the load for ``job``, which goes on during the part before it."""
        return max((self.load + _LOAD) * job.loads, self.turn(job) * job.loads)

    def part(self, job: Job) -> _Part:
        beats, cycles, far = self.beats, 0.0, 0.0
        whole, held_beats = 0, IN_FLIGHT - 1  # that may begin before a beat has its answer
        for count, filled in job_beats(self.work, self.plan, job):
            whole += count
            variance, waits = beats.variance[filled], beats.waits[filled]
            expected = _held_cycles(beats.cycles[filled], variance, self.held * self.pieces)
            late = _excess(self.answer - held_beats * expected, held_beats * variance)
            cycles += count * (expected + late * waits / (1 + held_beats * waits))
            far += count * filled * self.work.matrix.vq.stages * beats.far
        cycles = max(cycles, far * (self.budget.latency + _FAR) / FAR_IN_FLIGHT)
        return _Part(whole, cycles, far)

    def looked(self, parts: Sequence[_Part]) -> tuple[float, float]:
        """Cycles of the look-ups of all parts, and of those of the last one.

        No load follows the last part, and its last answers of memory end it.
        """
        looked, spent = 0.0, 0.0
        for job, follower, part in zip(self.jobs, self.followers, parts, strict=True):
            spent = max(part.cycles, self.next_load(follower))
            looked += (job.count - job.passes) * max(part.cycles, self.next_load(job))
            looked += job.passes * spent
        job = self.jobs[-1]
        words = job.rows * self.row_parts * job.whole * self.work.matrix.vq.stages
        answers = words * self.beats.far
        ending = max(parts[-1].cycles, self.answer * min(1.0, answers) + answers)
        return looked + (ending - spent), ending

    def known(self, ending: float) -> float:
        """Cycles to the end of the last part: each descriptor is read after the one before it."""
        latency = self.budget.latency
        parts = sum(job.count for job in self.jobs) * self.repeats
        known = ending + (parts - 1) * (latency + _NEXT_PART) + latency + _FIRST_LOAD
        return known + (self.load if self.jobs[-1].loads or parts == 1 else 0)

    def memory(self, parts: Sequence[_Part]) -> float:
        """The last codebooks come near the end, and their beats follow.

        No single entry comes before the first codebooks, and before it only the words of two parts.
        """
        jobs, shape, latency = self.jobs, self.work.matrix, self.budget.latency
        beat_bytes, word_bytes = self.beat_bytes, self.word_bytes
        words = 0.0
        for job, part in zip(jobs, parts, strict=True):
            held = part.beats * beat_bytes
            beside = self.described + math.ceil(held / word_bytes) - held / word_bytes
            words += job.count * job.cores * beside
            words += self.book * job.count * job.books * job.loads
        if not jobs[0].loads:
            words += self.book * shape.grid[0] * jobs[0].books
        words += shape.rows * _row_beats(shape, self.lanes) * beat_bytes / word_bytes
        answers = shape.rows * shape.vectors * shape.vq.stages * self.beats.far
        words += answers
        early = self.turn(jobs[0]) + self.turn(self.followers[0])
        bursts = port_bursts(self.plan.cores, FAR_IN_FLIGHT)
        trips = answers * max(1.0, (latency + _FAR) / bursts)
        tail = max(0.0, parts[-1].cycles - parts[-1].far * self.plan.cores) * jobs[-1].loads
        singles = self.answer * min(1.0, answers) + max(trips, words - early)
        return max((latency + words) * self.repeats + tail, self.start + singles * self.repeats)

    @property
    def reduction(self) -> float:
        """No sum comes before the first codebooks."""
        cores = max(1, self.plan.split / self.plan.lanes)
        return self.start + self.work.matrix.rows * cores * self.held * self.repeats

    @property
    def through(self) -> int:
        """Cycles from a beat of codes to its row."""
        vq = self.work.matrix.vq
        core = gemv_core(self.lanes * (self.plan.need or vq.size), vq.summed)
        laid = layout_latency(self.plan.fusion, self.pieces)
        return core.latency + 1 + row_finish(False).latency + laid


def plan_terms(work: Work, plan: Plan, budget: Budget, beats: Beats) -> dict[str, float]:
    """Cycles by resource, and the fill: the work takes their maximum, and the fill.

    Look-ups have conflicts, accesses to memory, waits for memory, and loads that outlast the work.
    """
    if work.operation == "attention":
        return _attention_terms(work, plan, budget)
    if plan.method == "tables":
        return _table_terms(work, plan, budget)
    engine = _Decoding(work, plan, budget, beats)
    parts = [engine.part(job) for job in engine.jobs]
    looked, ending = engine.looked(parts)
    products = sum(job.count * part.beats for job, part in zip(engine.jobs, parts, strict=True))
    return {
        "memory": engine.memory(parts),
        "look-ups": max(engine.start + looked * engine.repeats, engine.known(ending)),
        "products": float(products * engine.pieces * engine.held * engine.repeats),
        "reduction": engine.reduction,
        "fill": float(_JOB + budget.latency + engine.through),
    }


def _row_beats(shape: MatrixShape, lanes: int) -> int:
    """Beats of a row of the matrix."""
    along = shape.grid[1]
    last = shape.vectors - (along - 1) * shape.tile_vectors
    return (along - 1) * math.ceil(shape.tile_vectors / lanes) + math.ceil(last / lanes)


def plan_bound(work: Work, plan: Plan, budget: Budget) -> dict[str, float]:
    """Cycles that no dataflow of the plan's sizes goes below, by resource.

    Each code is read once, and each codebook once, as far as it is held on chip.
    """
    shape, vq = work.matrix, work.matrix.vq
    tables = plan.method == "tables"
    halves = 2 * work.heads if work.operation == "attention" else 1
    held = math.prod(shape.grid) * vq.stages * plan.shared * vq.size * 16
    codes = shape.rows * shape.vectors * vq.stages
    passes = math.ceil(work.vectors / plan.side)
    lanes = plan.cores * plan.lookups
    macs = lanes // vq.stages * (plan.need or vq.size)
    products = shape.rows * shape.columns * passes / macs
    if tables:
        products = passes * vq.stages * plan.shared * shape.vectors / plan.builders
    return {
        "memory": halves * (shape.code_bits + held) / budget.data_bits,
        "look-ups": halves * codes * (passes if tables else 1) / lanes,
        "products": halves * products,
    }


def _table_terms(work: Work, plan: Plan, budget: Budget) -> dict[str, float]:
    """A slice is a beat's vectors: its tables are made while those before are looked up.

    vq_table_gemv has no memory port. What feeds it is taken to read descriptors, codebooks and
    codes as vq_gemv does, so both methods have the same terms.
    """
    shape, vq = work.matrix, work.matrix.vq
    passes = math.ceil(work.vectors / plan.side)
    lanes = plan.lookups // vq.stages
    tables = Tables(
        size=vq.size, entries=plan.shared, stages=vq.stages, lookups=plan.lookups,
        lanes=plan.builders,
    )  # fmt: skip
    word_bytes, beat_bytes = budget.data_bits // 8, math.ceil(plan.lookups * vq.code_bits / 8)
    book = vq.load_words(plan.shared, word_bytes)
    load = load_cycles(vq.stages * plan.shared + 2, book, budget.latency)  # an entry per cycle
    described = math.ceil(DESCRIPTOR_BITS / budget.data_bits)
    jobs = core_jobs(work, plan)
    looked, built, words, last, spent = 0.0, 0, 0.0, 0.0, 0.0
    for job in jobs:
        slices = math.ceil(job.vectors / lanes)
        words += job.count * (described + math.ceil(slices * job.rows * beat_bytes / word_bytes))
        built += job.count * slices * tables.build
        spent = slices * float(tables.slice(job.rows))
        # The next codebooks are loaded meanwhile.
        looked += job.count * max(spent, load * job.loads)
        last = float(tables.slice(job.rows)) - job.rows  # no tables follow the last slice
    looked -= max(0.0, load - spent) * jobs[-1].loads  # and no load
    words += codebook_loads(work, plan) * book
    x_beats = plan.side * math.ceil(shape.vectors / lanes)
    start = max(float(x_beats), budget.latency + _FIRST_LOAD + load)
    parts = sum(job.count for job in jobs) * passes
    known = spent + (parts - 1) * (budget.latency + _NEXT_PART) + budget.latency + _FIRST_LOAD
    known += load if jobs[-1].loads or parts == 1 else 0
    through = tables.wait + table_gemv(plan.lookups, False).latency
    return {
        "memory": (budget.latency + words) * passes,
        "look-ups": max(start + tables.build + passes * looked - last, known),
        "products": float(passes * built),
        "reduction": start + shape.rows * passes,
        "fill": float(_JOB + budget.latency + through),
    }


def _attention_terms(work: Work, plan: Plan, budget: Budget) -> dict[str, float]:
    """Passes of as many channel groups as look-ups: a token of a pass takes a cycle.

    The first codebooks come before the first token, or the last tokens after the last codes.
    """
    shape, vq = work.matrix, work.matrix.vq
    halves = 2 * work.heads * math.ceil(work.vectors / plan.side)  # K and V
    passes = math.ceil(shape.vectors / plan.lookups)
    books = math.ceil(plan.lookups * plan.shared * vq.size * 16 / budget.data_bits)
    codes = math.ceil(shape.rows * plan.lookups * vq.code_bits / budget.data_bits)
    fill = _attend_fill(plan.lookups * vq.size, plan.side * (shape.columns + 1), budget.latency)
    return {
        "memory": float(halves * passes * (books + codes)),
        "look-ups": float(halves * passes * shape.rows),
        "products": float(halves * passes * shape.rows),
        "fill": float(fill + min(books, max(0, shape.rows - codes))),
    }


def dense_cycles(work: Work, budget: Budget) -> int:
    """Cycles of the same work with weights of 16 bits: all multipliers, and the port at full rate.

    A descriptor and the first words come after the latency of memory, as those of a plan do.
    """
    shape = work.matrix
    words = 16 * shape.rows * shape.columns / budget.data_bits
    products = shape.rows * shape.columns * work.vectors / budget.multipliers
    if work.operation == "attention":
        fill = _attend_fill(budget.multipliers, work.vectors * (shape.columns + 1), budget.latency)
        return math.ceil(2 * work.heads * max(words, products)) + fill
    through = row_sums(budget.multipliers).latency + row_finish(False).latency
    return math.ceil(max(words, products)) + _JOB + 2 * budget.latency + through


def row_sums(macs: int) -> Timing:
    """Words, products in two cycles, their sum, the row's, queue in two cycles."""
    return Timing(latency=3 + tree_levels(macs) + 3, start="w", end="sum", unit="beat")


def row_finish(scaled: bool) -> Timing:
    """Rounding, and the scale of the row."""
    latency = ROW_ROUNDING + ROW_SCALING * scaled
    return Timing(latency=latency, start="sum", end="y", unit="row")


def gemv_core(macs: int, summed: bool, fusion: str = "none", pieces: int = 1) -> Timing:
    """The timing of a row's last beat, all of whose entries are on chip, without conflicts.

    The words of a beat after its first one come on top, a cycle each.
    """
    parts = [codebook_cache(), row_sums(macs)]
    parts += [dequantizer()] * summed
    latency = sum(part.latency for part in parts) + layout_latency(fusion, pieces)
    return Timing(latency=latency, interval=Fraction(pieces), start="code", end="sum", unit="beat")


def attend_pass(shape: AttendShape, tokens: int, entries: int) -> dict[str, int]:
    """Cycles of a pass of vq_attention by resource; codebooks and codes share the memory port."""
    return {
        "memory": shape.book_words(entries) + shape.code_words(tokens),
        "tokens": tokens,
    }


def attend_bound(shape: AttendShape, tokens: int, entries: int) -> int:
    """Fewest cycles of a KV head among others: the passes of K and of V, one after another."""
    return 2 * shape.passes * max(attend_pass(shape, tokens, entries).values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tables:
    """The tables' work per cycle in an engine of tables, of codebooks of ``entries`` entries."""

    size: int
    entries: int
    stages: int
    lookups: int
    lanes: int

    @property
    def build(self) -> int:
        """Cycles in which the tables of a slice begin: ``lanes`` of its vectors in each."""
        return self.entries * self.lookups // self.lanes

    @property
    def wait(self) -> int:
        """The cycles from after the last entry to the first look-up: read, lane, table."""
        return 1 + table_lane(self.size)

    def slice(self, rows: int) -> Fraction:
        """Cycles of a slice of ``rows`` rows among many: of its look-ups or of its tables.

        With both nearly alike, two slices take both and the pipeline of the tables.
        """
        both = Fraction(rows + self.build + self.wait, 2)
        return max(Fraction(rows), Fraction(self.build), both)


def table_sums(lookups: int) -> int:
    """The cycles from a beat of codes to its sums: read, grid, tree, sum, queue in two cycles."""
    return 2 + tree_levels(lookups) + 3


def table_gemv(lookups: int, scaled: bool) -> Timing:
    """The timing of a beat of the final slice of a row, whose tables are built."""
    latency = table_sums(lookups) + row_finish(scaled).latency
    return Timing(latency=latency, start="code", end="y", unit="beat")


def table_cycles(
    tables: Tables,
    tiles: Iterable[tuple[int, int]],
    x_beats: int,
    *,
    scaled: bool = False,
    is_switched: bool = False,
) -> int:
    """Cycles of tiles of (rows, slices) that are jobs one after another, to the last result.

    All streams are there from cycle 0 on. x_beats: words of all vectors. is_switched: each tile has
    codebooks of its own, which are loaded during the tile before it.
    """
    load = tables.stages * tables.entries
    begun, last = -1, max(1, x_beats)  # the job before; the last entry before it, or x
    free = before = 0
    for number, (rows, slices) in enumerate(tiles):
        begin = last
        if number == 0 or is_switched:
            begin = max(begin, begun + 2 + load)
        begun, entry = begin, begin + 1
        for _ in range(slices):
            entry = max(entry, before)  # the tables before the last ones are free
            code = max(entry + tables.build + tables.wait, free)
            before, free = free, code + rows
            entry += tables.build
        last = entry - 1
    return free + table_gemv(tables.lookups, scaled).latency


def attend_fill(shape: AttendShape, tokens: int, entries: int, memory_latency: int) -> int:
    """Cycles of a train of KV heads beyond the bounds of its heads, but for the switches.

    The first codebook comes before the first token, and the last tokens after the last codebook.
    One head waits for its weights, and for its outputs at an element per cycle.
    """
    outputs = shape.queries * (shape.pq.head_dim + 1)
    alone = min(tokens, shape.book_words(entries))
    return alone + _attend_fill(shape.part.head_dim, outputs, memory_latency)


def _attend_fill(macs: int, outputs: int, memory_latency: int) -> int:
    """The fill for ``macs`` channels of a pass, and for outputs that leave in as many cycles."""
    requested = 20  # cycles of the control, of the ports, and of the queues of words
    scores = row_sums(macs).latency + row_finish(False).latency
    softmax = weights().latency + weights().delay("from the last score to row")
    return requested + memory_latency + scores + softmax + outputs + 24


def reduce() -> Timing:
    """Sum, queue: of the last sums of a row."""
    return Timing(latency=1, start="part_0", end="sum", unit="row")


@dataclasses.dataclass(frozen=True)
class PartWork:
    """The work of a core for one part of a tile.

    cycles : of its look-ups: over beats the fullest bank, or memory, and at least one per beat
    words : of memory for codes and for entries beyond n_shared
    load : entries that are loaded first, of all stages; 0: none
    load_beats : cycles in which the cache takes them
    load_words : words of memory for them, header included
    far : look-ups in memory among the cycles
    products : cycles in which its beats are multiplied
    book : number of these codebooks among those of the matrix
    """

    cycles: float
    words: float = 0
    load: int = 0
    load_beats: int = 0
    load_words: int = 0
    far: float = 0
    products: int = 0
    book: int = 0


@dataclasses.dataclass(frozen=True)
class GemvPath:
    """The delays that a result of vq_gemv waits for.

    core_latency : of gemv_core
    scaled : each row has a scale
    latency : of memory, from request to word
    far : entries of memory of a core in flight
    """

    core_latency: int
    scaled: bool
    latency: int
    far: int = 64

    @property
    def through(self) -> int:
        """Cycles from the last beat of a job to its last result."""
        return self.core_latency + reduce().latency + row_finish(self.scaled).latency

    def trips(self, count: float) -> float:
        """Cycles of ``count`` look-ups in memory, ``far`` of them in flight."""
        return count * (self.latency + _FAR) / self.far


def gemv_cycles(
    cores: Sequence[Sequence[PartWork]], path: GemvPath, *, rows: int, split: int, lanes: int
) -> float:
    """Predicted cycles of a job of vq_gemv that is alone, from the job to its last result.

    cores: the parts of each core in order, as golden.vqllm.format.Layout.of_core gives them.
    Every core goes through its parts: the codebooks of a part are loaded while the part before is
    at work. All cores share one word of memory per cycle, and one adder of sums. Codebooks that
    several cores load are read once.
    """
    # All cores ask for their first codebooks at once, and bursts of each come in turn.
    asked = {parts[0].book for parts in cores if parts and parts[0].load}
    end = max((_core_end(parts, path, len(asked)) for parts in cores), default=0)
    words = sum(part.words for parts in cores for part in parts)
    words += read_once(cores, lambda part: part.load_words)
    begin = _DESCRIPTOR + path.latency
    added = rows * max(1, -(-split // lanes))
    return max(end, begin + path.latency + words, begin + added) + path.through


def gemv_fill(beats: int, words: int, path: GemvPath) -> int:
    """Cycles of a job in which no look-up goes.

    The first load has ``words`` words of memory, and the cache takes its entries in ``beats``
    cycles.
    """
    load = math.ceil(load_cycles(beats, words, path.latency))
    return _DESCRIPTOR + 2 * path.latency + _BOOK + load + _LOADED + path.through


def load_cycles(beats: int, words: int, latency: int) -> float:
    """Cycles of a load alone, from its header on: of the cache, or of the words in flight."""
    return max(beats, words - 1, words * (latency + _ASK) / LOAD_IN_FLIGHT)


_DESCRIPTOR = 8  # from a job to what its first descriptor asks for, and the latency of memory
_LATER = 9  # from a descriptor to the next one, and the latency of memory
_BOOK = 6  # from there to the first entry of codebooks, and the latency of memory
_LOADED = 4  # from the last entry to the first beat
_SWITCH = 6  # from that beat to the first entry of the next load
_CODES = 10  # from a descriptor to its first beat, and the latency of memory
_FAR = 5  # of an entry of memory beyond the latency of memory


def read_once(cores: Sequence[Sequence[PartWork]], size: Callable[[PartWork], int]) -> int:
    """The ``size`` of all loads; each codebook as often as the core that loads it most."""
    found: Counter[int] = Counter()
    for parts in cores:
        own: Counter[int] = Counter()
        for part in parts:
            own[part.book] += size(part)
        found |= own
    return found.total()


def _core_end(parts: Sequence[PartWork], path: GemvPath, first_books: int) -> float:
    """The end of a core's last beat; ``first_books`` are read at the same time as its own."""
    latency = path.latency
    known, loaded, used, end = 0.0, 0.0, 0.0, 0.0
    for n, part in enumerate(parts):
        known += latency + (_LATER if n else _DESCRIPTOR)
        start = max(end, known + latency + _CODES if part.words else known)
        if part.load:
            load = load_cycles(part.load_beats, part.load_words, latency)
            if n == 0:
                load = max(load, first_books * part.load_words - 1)
            loaded = max(known + latency + _BOOK, used + _SWITCH) + load
            used = start = max(start, loaded + _LOADED)
        end = start + max(part.cycles, part.products, path.trips(part.far))
    return end + (latency + _FAR if parts and parts[-1].far else 0)
