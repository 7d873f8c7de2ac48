"""Counts of KLLM's programs, and their energy. Pure Python.

    energy of a pass = sum of count * pJ + (clock * flip-flops + leakage) * time + DRAM

A count is named ``PART: WHAT``. The parts are PARTS, and their sum is the total.

| count | of it there are |
|---|---|
| lanes: lane product | elements of a beat, in each column of each lane; an integer has its digits |
| lanes: row look-up | beats of a lane |
| lanes: outlier product | outliers of a token, in each column; of DIRECT all elements |
| lanes: output | columns of each lane, for each token and group |
| lanes: weight bit | bits of the beats that a lane takes |
| quantizer: index | elements of each QUANTIZE and QUANTIZE_INTEGER |
| quantizer: tree word, tree pop | elements of a first pass; outliers that it finds |
| functions: ... | words of results; FUNCTION and ACTIVATE by their function |
| cache: record element | elements of K and V that APPEND writes |
| cache: element of a record | elements of K and V that ATTEND reads |
| cache: attention product | products of queries and K, and of weights and V |
| dispatcher: command | commands |
| sram: read ..., write ... | words of a RAM, by ``sim.energy.area.rams`` |
| links: ... | bits that go half the side of the chip |

Each of these has an event of its own, but for two. SQRT and RECIPROCAL count as RSQRT, whose
operators they use. The row look-up of 32 columns is taken for any number: it carries the weight
indices of all.

Nothing counts norm statistics, codebooks that go to the lanes, words to the host, and the unit that
draws tokens. Nor does it count RAMs of queues, of page tables and of attention.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

from golden.config import ConfigError
from golden.kllm.format import integer_digits
from golden.kllm.isa import (
    COMMAND_WORDS,
    COMMANDS,
    ROW_ELEMENTS,
    Binary,
    Function,
    MatmulMode,
    Opcode,
    decode,
    row_count,
)
from golden.sram import ram
from sim.constant import Interval
from sim.energy.area import Chip, area, parts, rams
from sim.energy.table import MEASURED, EventTable
from sim.kllm.units import CommandCycles

# Where the figures of a part are from.
ORIGINS = {
    **dict.fromkeys(("lanes", "quantizer", "functions", "cache", "dispatcher"), MEASURED),
    "sram": "CACTI 7, 28 nm",
    "links": "assumed: half the side of the chip, by a capacitance per mm",
    "clock": MEASURED,
    "leakage": "measured at 25 C, of 130 nm and of 7 nm",
    "dram": "the hardware file",
    "dram static": "the hardware file",
}
PARTS = ("lanes", "quantizer", "functions", "cache", "dispatcher", "sram", "links")

_PASS_BY = (Function.IDENTITY, Function.RELU)  # words that no event is of
_FUNCTION_EVENTS = {
    **{each: f"function {each.name}" for each in Function if each not in _PASS_BY},
    Function.SQRT: "function RSQRT",
    Function.RECIPROCAL: "function RSQRT",
}
_BINARY_EVENTS = {
    Binary.ADD: "lanes SUM",
    Binary.MULTIPLY: "lanes PRODUCT",
    Binary.MINIMUM: "lanes BOUND",
    Binary.MAXIMUM: "lanes BOUND",
}
# pJ of a bit and a millimetre: C V**2 / 2 for each bit that changes. C is 0.296 pF/mm, between
# those of 35 nm and 25 nm in github.com/tanner-andrulis/accelergy-wire-plugin. low: 0.8 V, a
# quarter of the bits changes; value: 0.9 V, half; high: 1 V, all.
WIRE_PJ = Interval(0.296 * 0.8**2 / 8, 0.296 * 0.9**2 / 4, 0.296 / 2)

Counts = dict[str, float]


def _add(counts: Counts, name: str, number: float) -> None:
    if number:
        counts[name] = counts.get(name, 0.0) + number


def counts_of(words: Sequence[int], cycles: CommandCycles) -> Counts:
    """Counts of a program's commands."""
    made: Counts = {}
    outliers: dict[int, int] = {}  # of the token in each slot
    for at in range(0, len(words), COMMAND_WORDS):
        opcode, _, _, operands = decode(list(words[at : at + COMMAND_WORDS]))
        o = dict(operands)
        _add(made, "dispatcher: command", 1)
        _rows(made, opcode, o, cycles)
        if opcode in (Opcode.QUANTIZE, Opcode.QUANTIZE_INTEGER):
            for slot in range(o["slot"], o["slot"] + max(o["tokens"], 1)):
                outliers[slot] = o.get("k_max", 0) + o.get("k_min", 0)
            _quantize(made, opcode, o, cycles)
        elif opcode == Opcode.MATMUL:
            kept = outliers.get(o["slot"], 0) if o["mode"] == MatmulMode.KMEANS else 0
            _product(made, o, kept, cycles)
        elif opcode in (Opcode.APPEND, Opcode.ATTEND):
            _cache(made, opcode, o, cycles)
        else:
            _function(made, opcode, o, cycles)
    return made


def _rows(made: Counts, opcode: Opcode, o: dict[str, int], cycles: CommandCycles) -> None:
    """Rows of the vector memory; a QUANTIZE with a first pass reads its rows twice."""
    access = COMMANDS[opcode].access(o, cycles.machine)
    reads = sum(count for _, count in access.reads("rows"))
    writes = sum(count for _, count in access.writes("rows"))
    if opcode == Opcode.QUANTIZE and cycles.two_passes(o):
        reads *= 2
    _add(made, "sram: read vectors", reads)
    _add(made, "sram: write vectors", writes)
    _add(made, "links: rows", 16.0 * ROW_ELEMENTS * (reads + writes))


def _quantize(made: Counts, opcode: Opcode, o: dict[str, int], cycles: CommandCycles) -> None:
    tokens = max(o["tokens"], 1)
    rows = row_count(o["length"]) * tokens
    found = (o.get("k_max", 0) + o.get("k_min", 0)) * tokens
    _add(made, "quantizer: index", rows * ROW_ELEMENTS)
    _add(made, "sram: write entries", rows)
    _add(made, "sram: write outliers", found)
    if opcode == Opcode.QUANTIZE and cycles.two_passes(o):
        _add(made, "quantizer: tree word", rows * ROW_ELEMENTS)
        _add(made, "quantizer: tree pop", found)
        _add(made, "sram: write trees", rows * ROW_ELEMENTS)
        _add(made, "sram: read trees", found * ROW_ELEMENTS)


def _product(made: Counts, o: dict[str, int], outliers: int, cycles: CommandCycles) -> None:
    machine = cycles.machine
    jobs, lanes, columns = cycles.jobs(o), machine.lanes, machine.columns
    beats = -(-o["length"] // machine.elements)
    bits = columns * machine.elements * machine.bits_b
    products = float(outliers)
    if o["mode"] == MatmulMode.DIRECT:
        products = float(o["length"])
    else:
        is_integer = o["mode"] == MatmulMode.INTEGER
        digits = integer_digits(machine.integer_bits, machine.bits_a) if is_integer else 1
        taken = float(jobs * beats * digits * lanes)
        _add(made, "lanes: row look-up", taken * machine.elements / ROW_ELEMENTS)
        _add(made, "lanes: lane product", taken * columns * machine.elements)
        read = jobs * -(-o["length"] // ROW_ELEMENTS)
        _add(made, "sram: read entries", read)
        _add(made, "links: entries", float(read * ROW_ELEMENTS * machine.bits_a * lanes))
    _add(made, "lanes: outlier product", jobs * products * lanes * columns)
    _add(made, "lanes: output", jobs * lanes * columns)
    _add(made, "lanes: weight bit", float(jobs * beats * lanes * bits))
    groups = jobs / max(o["tokens"], 1)
    _add(made, "sram: write weights", groups * beats * lanes)
    _add(made, "sram: read weights", float(jobs * beats * lanes))
    image = machine.image_words(o["length"], o["outputs"])
    _add(made, "links: weights", float(image * machine.ports.ports * machine.port_bits))


def _cache(made: Counts, opcode: Opcode, o: dict[str, int], cycles: CommandCycles) -> None:
    kv = cycles.machine.cache.kv
    if opcode == Opcode.APPEND:
        written = float(o["tokens"] * kv.elements)
        _add(made, "cache: record element", written)
        _add(made, "links: records", 4.0 * written)
        return
    attended = sum(cycles.attended(o))
    _add(made, "cache: element of a record", 2.0 * attended * kv.elements)
    _add(made, "cache: attention product", 2.0 * attended * o["heads"] * kv.head_dim)
    _add(made, "links: records", 2 * 4.0 * attended * kv.elements)


def _function(made: Counts, opcode: Opcode, o: dict[str, int], cycles: CommandCycles) -> None:
    words = float(row_count(o.get("length", 0)) * ROW_ELEMENTS * max(o.get("tokens", 1), 1))
    if opcode == Opcode.ROTARY:
        _add(made, "functions: lanes ROTATE", o["heads"] * o["head_size"])
    elif opcode == Opcode.BINARY:
        _add(made, f"functions: {_BINARY_EVENTS[Binary(o['op'])]}", words)
    elif opcode == Opcode.AXPY:
        _add(made, "functions: lanes SUM", words)
    elif opcode == Opcode.SOFTMAX:
        _add(made, "functions: exponential", words)
        _add(made, "functions: lanes PRODUCT", words)
    elif opcode in (Opcode.FUNCTION, Opcode.ACTIVATE, Opcode.GLU):
        event = _FUNCTION_EVENTS.get(Function(o["function"]))
        if event:
            of = words if opcode == Opcode.FUNCTION else float(1 << cycles.machine.bits_a)
            _add(made, f"functions: {event}", of)
        if opcode != Opcode.FUNCTION:
            _add(made, "sram: read entries", words / ROW_ELEMENTS * (1 + (opcode == Opcode.GLU)))
        if opcode == Opcode.GLU:
            _add(made, "functions: lanes PRODUCT", words)


@dataclasses.dataclass(frozen=True)
class KllmEnergy:
    """Energy of counts on a chip. ConfigError: no row or event is of such a chip."""

    chip: Chip
    table: EventTable

    @functools.cached_property
    def area(self) -> Interval:
        """Square metres."""
        return area(self.chip)

    @functools.cached_property
    def _rams(self) -> Mapping[str, tuple[float, float]]:
        """pJ of a read and of a write of each RAM."""
        found = {}
        for each in rams(self.chip):
            made = ram("1r1w", each.words, each.bits)
            found[each.name] = (made.read_pj, made.write_pj)
        return found

    @functools.cached_property
    def _distance(self) -> Interval:
        """Millimetres: half the side of the chip."""
        return Interval(*(math.sqrt(x) * 1e3 / 2 for x in dataclasses.astuple(self.area)))

    def pj(self, count: str) -> Interval:
        """Picojoules of one of ``count``."""
        part, _, what = count.partition(": ")
        if part == "sram":
            kind, _, name = what.partition(" ")
            return Interval.of(self._rams[name][kind == "write"])
        if part == "links":
            low, value, high = dataclasses.astuple(self._distance)
            return Interval(WIRE_PJ.low * low, WIRE_PJ.value * value, WIRE_PJ.high * high)
        return self.table.pj(what)

    @functools.cached_property
    def watts_static(self) -> dict[str, Interval]:
        """Joules of the clock for each cycle, and watts of leakage."""
        made = parts(self.chip)
        kge, flip_flops = (sum(getattr(p, name) for p in made) for name in ("kge", "flip_flops"))
        return {
            "clock": self.table.clock_pj * (flip_flops * 1e-12),
            "leakage": self.table.leakage_mw * (kge * 1e-3),
        }

    def joules(
        self, counts: Mapping[str, float], seconds: float, clock: float
    ) -> dict[str, Interval]:
        """Gives joules by PARTS, clock and leakage. clock: of the chip, in hertz."""
        made = dict.fromkeys(PARTS, Interval.of(0.0))
        for name, number in counts.items():
            part = name.partition(": ")[0]
            if part not in made:
                raise ConfigError(f"count must be of {', '.join(PARTS)}, not {name!r}")
            made[part] = made[part] + self.pj(name) * (number * 1e-12)
        static = self.watts_static
        made["clock"] = static["clock"] * (seconds * clock)
        made["leakage"] = static["leakage"] * seconds
        return made
