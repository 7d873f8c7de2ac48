"""Cycles of KLLM's commands, each alone. They are golden's: no formula is written twice.

| commands | cycles |
|---|---|
| QUANTIZE, QUANTIZE_INTEGER, ACTIVATION_CODEBOOK | golden.kllm.timing.QuantizerCycles |
| BINARY, ROTARY, SOFTMAX, FUNCTION, GLU, ACTIVATE, AXPY | golden.kllm.timing.FunctionCycles |
| MATMUL | golden.kllm.timing.lane_cycles of its jobs, and words of the ports |
| APPEND, ATTEND | golden.kllm.timing.CacheCycles |
| LOAD, READ, READ_SLOT | golden.kllm.bounds and the delays of ``Timings`` |
| LANE_CODEBOOK, WEIGHT_BASE | the same |
| LOAD_AT | golden.kllm.timing.load_at, and the delays of a LOAD |
| TOP_K that leaves choices | golden.kllm.timing.choice_cycles |

Outliers lie anywhere in a token. The model spreads them evenly over rows, so those of a row follow
a binomial distribution, and it takes the mean of what they cost. The best elements of a TOP_K lie
anywhere too: ``entering`` is a mean.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from golden.attention.timing import StreamShape
from golden.axi.timing import read_interval
from golden.config import Config, ConfigError, bounded, choice, flag, power_of_two, real
from golden.index.timing import multipliers_max
from golden.kllm.bounds import CYCLES, Rates
from golden.kllm.config import MachineConfig
from golden.kllm.format import groups, integer_digits
from golden.kllm.isa import (
    ROW_ELEMENTS,
    Function,
    Index,
    MatmulMode,
    Norm,
    Opcode,
    OutlierMode,
    row_count,
    slot_word_count,
)
from golden.kllm.timing import (
    CacheCycles,
    FunctionCycles,
    LaneJob,
    LaneTiming,
    QuantizerCycles,
    bank_turns,
    choice_cycles,
    lane_cycles,
    load_at,
    loader,
    matmul_supply,
    matmul_ticket,
    orizuru,
    readback,
    scales_free,
    weights_latency,
)
from golden.oaken.format import record_bytes
from golden.timing import Timing

_FOLDER = Path(__file__).parent.parent / "calib"
TIMINGS = "kllm_timings.json"
# From the start of a QUANTIZE to its first request of a row (tb/kllm/test_accelerator.py).
QUANTIZE_READS = 5
_SCALES = 2  # groups whose scales a weight buffer holds
LANE_BEATS = 10  # of weights that a lane holds: 8 in its queue, 2 in registers
RANGED = ("lanes", "ports", "latency", "hidden", "context")  # of the runs of a fit
JUDGES, RANGES = "judges", "ranges.json"  # of runs that no fit may use
# Delays that ``python -m sim.calibrate --fit`` finds.
FITTED = ("load", "lanes", "start", "finish", "turn", "overlap", "status", "read", "read_word")


OUTLIERS = 0.1  # of the elements of K and V: Oaken's groups of 4, 90 and 6 %

Operands = Mapping[str, int]
Outliers = float | Mapping[int, tuple[float, float]]  # of all K and V; by layer: of K, of V


@dataclasses.dataclass(frozen=True, kw_only=True)
class Units(Config):
    """The units as they are built, and delays that their pages state. tests/sim compares with hdl.

    The defaults are those of ``kllm_accelerator``.
    """

    counter: str = choice(
        "select", ("select", "flipflop"), "of a lane; flipflop has the paper's bins"
    )
    macs: int = power_of_two(32, 1, 256, "of a reducer; flipflop alone has one")
    function_width: int = power_of_two(8, 1, 16, "elements per cycle")
    functions: int = choice(1, (1, 2, 4, 8), "elements per cycle of FUNCTION")
    function_stages: int = bounded(2, 1, 8, "registers of an operator")
    integer_lanes: int = power_of_two(4, 1, ROW_ELEMENTS, "dividers")
    threshold_multipliers: int = bounded(5, 1, 15, "thresholds scaled per cycle")
    orizuru_stages: int = bounded(1, 1, 4, "cycles of a tournament of 16")
    clustering_parts: int = power_of_two(1, 1, ROW_ELEMENTS, "cycles of a row in the clustering")
    outlier_parts: int = power_of_two(1, 1, ROW_ELEMENTS, "cycles of an outlier in a lane")
    scaler_stages: int = choice(6, (6, 9, 12), "cycles of a lane's scaler")
    queue: int = bounded(4, 3, 64, "commands that wait for each unit")
    packet_words: int = choice(1, (1, ROW_ELEMENTS), "words of LANE_CODEBOOK per cycle")
    ahead: bool = flag(False, "QUANTIZE and FUNCTION begin with the rows that they wait for")
    banks: int = choice(1, (1, 2, 4), "of the vector memory, each a row per cycle")
    online: bool = flag(True, "outliers by Orizuru; false: by thresholds, KLLM-S")
    cache_bits: int = power_of_two(512, 64, 1024, "bits of a word of the pages' memory")
    attention_lanes: int = choice(64, (16, 32, 64), "elements of K or V per cycle")
    attention_macs: int = bounded(64, 16, 512, "products per cycle of ATTEND")
    attention_words: int = bounded(256, 4, 4096, "words of K and V that wait for their rows")

    def lane(self, machine: MachineConfig) -> LaneTiming:
        """The numbers that the lanes' cycles depend on."""
        if self.counter == "select":
            digits = integer_digits(machine.integer_bits, machine.bits_a)
            words = integer_words = 1
        else:
            digits = 0
            bins = machine.columns << machine.bits_b
            words = max(1, (bins << machine.bits_a) // self.macs // machine.columns)
            integer_words = max(1, bins // self.macs // machine.columns)
        return LaneTiming(
            columns=machine.columns,
            elements=machine.elements,
            words=words,
            integer_words=integer_words,
            digits=digits,
            outlier_parts=self.outlier_parts,
            scaler=self.scaler_stages,
        )

    def quantizer(self, machine: MachineConfig) -> QuantizerCycles:
        """Cycles of the quantizer's commands."""
        thresholds = (1 << machine.bits_a) - 1
        levels = max(2, math.ceil(math.log(machine.slot_elements, ROW_ELEMENTS) - 1e-9))
        reduce, rms, layer = _NORMS[machine.bits_a]
        return QuantizerCycles(
            thresholds=thresholds,
            scaling=-(
                -thresholds // min(self.threshold_multipliers, multipliers_max(machine.bits_a))
            ),
            trees=orizuru(levels, "shared", self.orizuru_stages),
            norms=Timing(
                latency=rms,
                latency_max=layer,
                delays=(("from a token's last beat to the next job", reduce),),
            ),
            parts=ROW_ELEMENTS // self.integer_lanes,
            scale=16,
            row=self.clustering_parts,
        )

    def cache(self, machine: MachineConfig) -> CacheCycles:
        """Cycles of the unit CACHE's commands."""
        kv, lanes = machine.cache_part.kv, self.attention_lanes
        queries = kv.part_heads * machine.queries
        shape = StreamShape(
            lanes=lanes,
            beats=-(-kv.part_heads * kv.head_dim // lanes),
            turns=machine.queries * lanes // self.attention_macs,
            queries=queries,
            cells=self.attention_macs // ROW_ELEMENTS,
            max_rows=machine.cache.max_tokens,
            sinks=row_count(queries) if machine.cache.sinks else 0,
            caps=machine.cache.caps,
        )
        return CacheCycles(
            shape=shape, slots=kv.slots, rows=row_count(kv.elements),
            word_bytes=self.cache_bits // 8, ahead=self.attention_words, engines=machine.engines,
        )  # fmt: skip


# Of the statistics, by bits of an index: reducing, RMS, LayerNorm (kllm_norm_stats).
_NORMS = {2: (14, 64, 90), 3: (18, 68, 94), 4: (26, 76, 102)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timings(Config):
    """Delays around the commands, in cycles, all of the whole accelerator.

    latency : from a request of the memories to its first word
    command : from one command of the host to the next
    load : of a LOAD without its rows and the latency
    lanes : of a LANE_CODEBOOK without its words
    start, finish : of a MATMUL before its first beat, and after its last output
    turn : from the end of a command to the start of the next one of its unit
    overlap : by which a command of the quantizer is decoded during the one before it
    status : from the end of a command to the start of one of another unit that waits for it
    read, read_word : of READ and READ_SLOT, and of each word
    word : from a port's word to the next; above 1 where the memory is slower than the ports
    poll : from one word that the host reads to the next
    readback : words that wait for the host
    burst_beats, outstanding : words of a burst of a port, and bursts in flight
    """

    latency: int = bounded(40, 0, 1 << 20)
    command: int = bounded(48, 0, 1 << 20)
    load: int = bounded(6, 0, 1 << 20)
    lanes: int = bounded(2, 0, 1 << 20)
    start: int = bounded(6, 0, 1 << 20)
    finish: int = bounded(14, 0, 1 << 20)
    turn: int = bounded(3, 0, 1 << 20)
    overlap: int = bounded(6, 0, 1 << 20)
    status: int = bounded(4, 0, 1 << 20)
    read: int = bounded(16, 0, 1 << 20)
    read_word: float = real(1.2, 0.0, 1000.0)
    word: float = real(1.0, 1.0, 1e6)
    poll: int = bounded(6, 1, 1 << 20)
    readback: int = bounded(256, 1, 1 << 16)
    burst_beats: int = bounded(32, 1, 256)
    outstanding: int = bounded(4, 1, 16)

    @classmethod
    def fitted(cls, folder: Path = _FOLDER, **others: Any) -> "Timings":
        """The delays of ``sim.calibrate --fit``; others: fields that are not fitted.

        ConfigError: no or another file.
        """
        return cls(**_fitted(folder)[1], **others)

    @property
    def interval(self) -> float:
        """Cycles from a port's word to the next, of the memory and of the bursts in flight."""
        return max(
            self.word, float(read_interval(self.burst_beats, self.outstanding, self.latency))
        )


@dataclasses.dataclass(frozen=True)
class Fit:
    """The runs that the delays were fitted on: their commit, least and largest of their numbers."""

    commit: str
    ranges: Mapping[str, tuple[int, int]]


def fit_of(folder: Path = _FOLDER) -> Fit:
    """ConfigError: as ``fitted``."""
    return _fitted(folder)[0]


def measured_ranges(folder: Path = _FOLDER) -> Mapping[str, tuple[int, int]]:
    """Least and largest of the numbers of ``RANGED``: of the runs of the fit and of the judges.

    ConfigError: as ``fitted``; odd ranges of the judges.
    """
    known, file = fit_of(folder).ranges, folder / JUDGES / RANGES
    if not file.exists():
        return known
    try:
        judged = json.loads(file.read_text())
        return {
            name: (min(low, int(judged[name][0])), max(high, int(judged[name][1])))
            for name, (low, high) in known.items()
        }
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"{file}: no ranges of sim.calibrate --judge: {error!r}") from None


def _fitted(folder: Path) -> tuple[Fit, dict[str, Any]]:
    file = folder / TIMINGS
    try:
        found = json.loads(file.read_text())
        commit, ranges = found.pop("commit"), found.pop("ranges", None)
        is_known = isinstance(commit, str) and isinstance(ranges, dict)
        if not is_known or set(found) != set(FITTED) or set(ranges) != set(RANGED):
            names = ", ".join(RANGED)
            raise ConfigError(
                f"{file}: must have commit, ranges of {names}, {', '.join(FITTED)}"
            )
        made = {name: (int(low), int(high)) for name, (low, high) in ranges.items()}
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(f"{file}: no delays of sim.calibrate --fit: {error!r}") from None
    return Fit(commit, made), found


class CommandCycles:
    """Cycles of every command on one machine.

    context : cached tokens of the sequence whose next tokens the commands take
    separate : each token is the next one of a sequence of its own, all with so many cached tokens
    lengths : in the place of both, the tokens that each place of the batch attends to
    outliers : share of the elements of K and V that have an entry in their records
    """

    def __init__(
        self, machine: MachineConfig, units: Units, timings: Timings, context: int = 0,
        separate: bool = False, outliers: Outliers = OUTLIERS,
        lengths: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.machine, self.units, self.timings = machine, units, timings
        self.context, self.separate, self.outliers = context, separate, outliers
        self.lengths = lengths
        self.cache = units.cache(machine) if machine.batch else None
        self.lane = units.lane(machine)
        self.quantizer = units.quantizer(machine)
        self.function = FunctionCycles(
            units.function_width, machine.bits_a, units.function_stages, 2, units.functions
        )
        self.rates = Rates(
            None if units.counter == "select" else units.macs,
            units.function_width,
            units.integer_lanes,
            units.functions,
            units.packet_words,
        )
        self._jobs = functools.cache(self._job_cycles)
        self._bank_turns = functools.cache(functools.partial(bank_turns, banks=units.banks))

    def bound(self, opcode: Opcode, o: Operands) -> int:
        """The bound of golden.kllm.bounds."""
        return CYCLES[opcode](o, self.machine, self.rates)[0]

    def of(self, opcode: Opcode, o: Operands) -> float:
        """Cycles from a command's start to its end, where nothing else runs."""
        t = self.timings
        if opcode == Opcode.LOAD:
            return t.load + t.latency + o["rows"]
        if opcode == Opcode.LOAD_AT:
            return self._load_at(o)
        if opcode == Opcode.TOP_K and o["route"]:
            return choice_cycles(o["route"], entering(o["length"], o["route"]), o["tokens"])
        if opcode == Opcode.TOP_K:
            return t.read + row_count(o["length"]) * o["tokens"]
        if opcode in (Opcode.LANE_CODEBOOK, Opcode.WEIGHT_BASE):
            return t.lanes + self.bound(opcode, o)
        if opcode == Opcode.ACTIVATION_CODEBOOK:
            return self.quantizer.codebook()
        if opcode == Opcode.QUANTIZE:
            return self._quantize(o)
        if opcode == Opcode.QUANTIZE_INTEGER:
            return self.quantizer.integer(row_count(o["length"]), max(o["tokens"], 1))
        if opcode == Opcode.MATMUL:
            return self.compute(o)
        if self.cache and opcode == Opcode.APPEND:
            size = self._record_bytes(o["layer"])[o["kv"]]
            return self.cache.append(o["tokens"], t.latency, size)
        if self.cache and opcode == Opcode.ATTEND:
            return self.cache.attend(self.attended(o), t.latency, self._record_bytes(o["layer"]))
        if opcode in (Opcode.READ, Opcode.READ_SLOT):
            words = read_words(opcode, o)
            return t.read + math.ceil(t.read_word * words) if words else readback().latency
        return self._function(opcode, o)

    def _load_at(self, o: Operands) -> float:
        """The entries of the tokens follow each other; the word of a choice is not read."""
        ((_, apart),) = (timing := load_at(bool(self.machine.experts))).delays
        later = timing.latency - loader().latency
        reads = 0 if o["index"] == Index.CHOICE_VALUE else self.timings.latency
        more = (o["tokens"] - 1) * max(o["rows"], apart)
        return self.timings.load + later + reads + o["rows"] + more

    def attended(self, o: Operands) -> list[int]:
        """Tokens that each place of an ATTEND attends to."""
        if self.lengths is not None:
            return list(self.lengths[o["place"] : o["place"] + o["tokens"]])
        first = self.context + 1
        return [first + (0 if self.separate else n) for n in range(o["tokens"])]

    def _record_bytes(self, layer: int) -> tuple[float, float]:
        """Mean bytes of a record of K and of V of a layer."""
        kv = self.machine.cache_part.kv
        least = record_bytes(kv.part_blocks, kv.block, 0)
        found = self.outliers
        of_k, of_v = (found, found) if isinstance(found, float) else found[layer]
        elements = kv.part_heads * kv.head_dim
        return least + of_k * elements, least + of_v * elements

    def row_reads(self, opcode: Opcode, o: Operands) -> int:
        """Rows that a command reads of the vector memory, each as often as it is read.

        Commands of long waits, such as SOFTMAX, are left out: others read between their rows.
        """
        rows = row_count(o["length"]) * max(o.get("tokens", 1), 1) if "length" in o else 0
        if opcode in (Opcode.BINARY, Opcode.AXPY):
            return 2 * rows
        if opcode == Opcode.ROTARY:
            return 2 * row_count(o["heads"] * o["head_size"])
        if opcode == Opcode.QUANTIZE:
            return rows * (2 if self.two_passes(o) else 1)
        if opcode == Opcode.QUANTIZE_INTEGER:
            return rows
        if opcode == Opcode.LANE_CODEBOOK:
            return row_count(self.machine.kmeans_words)
        if opcode == Opcode.WEIGHT_BASE:
            return 1
        if opcode in (Opcode.APPEND, Opcode.ATTEND, Opcode.TOP_K):
            return self.bound(opcode, o)
        return o["rows"] if opcode == Opcode.READ else 0

    def read_pace(self, opcode: Opcode, o: Operands) -> float:
        """Cycles in which a command of the functional unit reads ``row_reads``, if it is alone."""
        rows = self.row_reads(opcode, o)
        if opcode in (Opcode.BINARY, Opcode.AXPY, Opcode.ROTARY):
            alone = rows / 2 * ROW_ELEMENTS / self.units.function_width
            return max(alone, self._turns(o)) if opcode == Opcode.ROTARY else alone
        if opcode == Opcode.FUNCTION:
            return rows * ROW_ELEMENTS / self.units.functions
        return rows

    def _turns(self, o: Operands) -> int:
        """Cycles in which a ROTARY gets its rows: the pairs of a head, and their angles."""
        half = row_count(o["head_size"]) // 2
        pairs = [n + second for n in range(half) for second in (0, half)]
        own = [o["src"] + 2 * half * head + n for head in range(o["heads"]) for n in pairs]
        angles = [o["sin" if n >= half else "cos"] + n % half for n in pairs] * o["heads"]
        return self._bank_turns(tuple(own), tuple(angles))

    # MATMUL.

    def steps(self, o: Operands) -> float:
        """Cycles in which a job's beats enter a lane.

        An outlier takes ``outlier_parts``, and one that is not the first of its beat one more.
        ``o["outliers"]``: of a token.
        """
        length, parts = o["length"], self.units.outlier_parts
        beats = -(-length // self.machine.elements)
        if o["mode"] == MatmulMode.DIRECT:
            return length * parts
        outliers = o.get("outliers", 0)
        return beats + crowded(outliers, beats) + (parts - 1) * outliers

    def _job_cycles(self, mode: int, steps: float) -> tuple[float, float]:
        """The cycles of one job, and of each further one; between whole steps a mean."""
        low = math.floor(steps)
        if low != steps:
            below, above = (self._jobs(mode, low + n) for n in (0, 1))
            share = steps - low
            one, further = (a + share * (b - a) for a, b in zip(below, above, strict=True))
            return one, further
        job = LaneJob(steps=low, outputs=self.machine.columns, mode=MatmulMode(mode))
        one, two = (lane_cycles(self.lane, job, n) for n in (1, 2))
        return one, two - one

    def jobs(self, o: Operands) -> int:
        return groups(o["outputs"], self.machine.group_outputs) * max(o["tokens"], 1)

    def compute(self, o: Operands) -> float:
        """The cycles of a MATMUL whose weights are there."""
        one, further = self._jobs(o["mode"], self.steps(o))
        t = self.timings
        ticket = matmul_ticket(0 if o["mode"] == MatmulMode.DIRECT else o["tokens"], 2)
        return t.start + ticket + one + (self.jobs(o) - 1) * further + t.finish

    def supply(self, o: Operands) -> int:
        """The cycles from the offer of a MATMUL to the first beat of its weights."""
        count = groups(o["outputs"], self.machine.group_outputs)
        return matmul_supply(count) + weights_latency() + self.timings.latency

    def product(self, o: Operands, words: int, came: float, begin: float) -> tuple[float, float]:
        """The times at which the last word of a MATMUL has come and the MATMUL ends.

        words : of a port; came : when the first one comes; begin : when the MATMUL may run

        A buffer keeps a beat until it goes to the lane for the last token. That is ``LANE_BEATS``
        beats before the lane takes it. If there is one token, the first beats go when they come.
        The lanes take a group's beats for each token in turn, for the first one as they come. A
        group's words end with its scales. They have room when those of the group two before have
        left.
        """
        count, tokens = groups(o["outputs"], self.machine.group_outputs), max(o["tokens"], 1)
        beats = max(-(-o["length"] // self.machine.elements), 1)  # of a group
        one, further = self._jobs(o["mode"], self.steps(o))
        ticket = matmul_ticket(0 if o["mode"] == MatmulMode.DIRECT else o["tokens"], 2)
        interval = self.timings.interval  # of words; a beat is there with its last one
        step = words / count * interval / beats  # cycles from a beat to the next
        ends: list[float] = []  # of the groups in the lanes
        last, end = came - min(step, interval), begin + self.timings.start + ticket
        for group in range(count):
            if group > _SCALES:
                outputs = ends[group - 1 - _SCALES] + one - further
                last = max(last, outputs - scales_free(self.units.scaler_stages))
            last += beats * step
            for number in self._places(group * beats, beats, tokens):
                before, offset = divmod(number - self.machine.replay_beats, beats)
                free = ends[before] - further + (offset + 1 - LANE_BEATS) * further / beats
                last = max(last, free + ((group + 1) * beats - number) * step)
            end = max(end + further, last) + (tokens - 1) * further
            ends.append(end)
        return last, end + one - further + self.timings.finish

    def first_rows(self, o: Operands) -> float:
        """Cycles from a MATMUL's begin to the rows of its first group."""
        one, _ = self._jobs(o["mode"], self.steps(o))
        return self.timings.start + matmul_ticket(o["tokens"], 2) + one

    def group_cycles(self, o: Operands) -> float:
        """Cycles of each further group of a MATMUL of one token."""
        return self._jobs(o["mode"], self.steps(o))[1]

    def after_rows(self, opcode: Opcode, o: Operands, rows: int) -> int:
        """Cycles from the last ``rows`` rows that a command waits for, told at once, to its end.

        QUANTIZE reads one more row of its first pass, and then does all that follows that.
        """
        if opcode == Opcode.QUANTIZE:
            return self._quantize(o) - row_count(o["length"]) - QUANTIZE_READS
        count = row_count(o["heads"] * o["head_size"] if "heads" in o else o["length"])
        length = ROW_ELEMENTS * min(rows, count)
        given = {"heads": 1, "head_size": length} if "heads" in o else {"length": length}
        return self._function(opcode, {**o, **given}) - self.function.refused - 1

    def _places(self, first: int, beats: int, tokens: int) -> list[int]:
        """Beats of a group, whose first is ``first``, one of which waits longest for its place.

        They are the first and the last one that take places of one group, and those of the group
        after that. None where the other is of the same group.
        """
        least = self.machine.replay_beats + (LANE_BEATS if tokens == 1 else 0)
        start, end = max(first, least), first + beats
        end = min(end, first + self.machine.replay_beats)
        after = start + (self.machine.replay_beats - start) % beats  # the next group's first place
        found = (start, after - 1, after, end - 1)
        return [number for number in found if start <= number < end]

    def tail(self, o: Operands) -> float:
        """The cycles from the last beat of a MATMUL to its end."""
        one, _ = self._jobs(o["mode"], 1)
        return one + self.timings.finish

    # QUANTIZE.

    def two_passes(self, o: Operands) -> bool:
        """Whether a QUANTIZE finds its outliers by Orizuru, before its second pass."""
        return self.units.online and o["mode"] == OutlierMode.ONLINE

    def _quantize(self, o: Operands) -> int:
        """Each bank of the vector memory gives a row per cycle to the passes of tokens that follow.
        """
        rows, tokens = row_count(o["length"]), max(o["tokens"], 1)
        outliers = o["k_max"] + o["k_min"]
        # Those that are not the first of their row; the others pass the statistics with it.
        shared = round(crowded(outliers, rows))
        online = self.two_passes(o)
        one, two = (
            self.quantizer.quantize(
                rows=rows,
                tokens=count,
                outliers=shared,
                crowded=shared,
                full=0,
                pops=max(o["k_max"], o["k_min"]) if online else None,
                norm=Norm(o["norm"]),
            )
            for count in (1, 2)
        )
        read = rows * (2 if online else 1) / self.units.banks
        return one + (tokens - 1) * max(two - one, math.ceil(read))

    # The functional unit.

    def _function(self, opcode: Opcode, o: Operands) -> int:
        cycles = self.function
        rows = row_count(o["length"]) if "length" in o else 0
        if opcode == Opcode.BINARY:
            return cycles.rows(rows * max(o["tokens"], 1))
        if opcode == Opcode.AXPY:
            return cycles.axpy(rows) if o["scalar"] else cycles.rows(rows)
        if opcode == Opcode.ROTARY:
            rows = row_count(o["heads"] * o["head_size"])
            passes = math.ceil(rows * ROW_ELEMENTS / self.units.function_width)
            return cycles.rotary(rows) + max(0, self._turns(o) - passes)
        if opcode == Opcode.SOFTMAX:
            return cycles.softmax(rows, max(o["tokens"], 1))
        if opcode == Opcode.FUNCTION:
            return cycles.function(rows, Function(o["function"]).name)
        if opcode in (Opcode.GLU, Opcode.ACTIVATE):
            none = [0] * rows
            second = none if opcode == Opcode.GLU else None
            return cycles.slots(none, Function(o["function"]).name, second)[0]
        return cycles.codebook


def read_words(opcode: Opcode, o: Operands) -> int:
    """Words that a command of READ gives; ``words`` of READ_SLOT is ``slot_words``."""
    if opcode == Opcode.TOP_K:
        return 0 if o["route"] else o["tokens"] * o["end"]
    return 8 * o["rows"] if opcode == Opcode.READ else o["words"]


def rows_loaded(opcode: Opcode, o: Operands) -> int:
    """Rows that a command of LOAD reads of the data memory."""
    if opcode == Opcode.LOAD:
        return o["rows"]
    if opcode == Opcode.LOAD_AT and o["index"] != Index.CHOICE_VALUE:
        return o["rows"] * o["tokens"]
    return 0


def entering(length: int, k: int) -> float:
    """The sum over a token's rows of max(n, 1), n of its elements among the ``k`` best so far.

    It is a mean, where each order of the elements is as likely as another.
    """
    total = 0.0
    for first in range(0, length, ROW_ELEMENTS):
        count = min(first + ROW_ELEMENTS, length)
        best = min(k, count)
        total += best * (count - first) / count + math.comb(first, best) / math.comb(count, best)
    return total


def slot_words(o: Operands) -> int:
    """Words that READ_SLOT gives of a slot that a command of the quantizer has written."""
    return slot_word_count(o["length"], o.get("k_max", 0) + o.get("k_min", 0))


def crowded(outliers: float, rows: int) -> float:
    """The mean number of ``outliers`` that are not the first of their row, spread evenly."""
    if not outliers:
        return 0.0
    return float(outliers - rows * (1 - (1 - 1 / rows) ** outliers))
