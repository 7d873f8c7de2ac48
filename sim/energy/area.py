"""Area of a KLLM chip by its configuration, from the rows of docs/area.md. Pure Python.

A row of the mapped chip follows a number of the configuration:

    row(chip) = row(table1) + (number(chip) - number(table1)) * slope

The slope is that between ``table1`` and ``smollm2_cache``, the chips that the page has, for rows of
SLOPES. A row of SHARES is as many times that of its chip as the number is. Other rows are the same
in all chips. RAM is bits, whose area is that page's assumption: low, middle or high.

No row has the logic of ``extra`` and ``experts``, and of caps and sinks: an area leaves it out.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from golden.config import ConfigError
from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.format import activation_entry_bits
from golden.kllm.isa import ROW_ELEMENTS
from sim.constant import Interval
from sim.kllm.units import Units

# A link to docs/area.md, of which an installation has a copy here.
_PAGE = Path(__file__).resolve().parent.parent / "claims" / "area.md"
RAM_UM2 = Interval(0.52, 4.14, 8.24)  # of a bit, by docs/area.md: buffers of KLLM's Table I
BASES = {"kllm_chip": "table1", "kllm_paged": "smollm2_cache"}  # section of the page -> its chip


@dataclasses.dataclass(frozen=True)
class Part:
    """Logic of a row of the chip."""

    name: str
    kge: float
    flip_flops: float


@dataclasses.dataclass(frozen=True)
class Ram:
    """Equal RAMs: how many, and the words and bits of each."""

    name: str
    count: int
    words: int
    bits: int

    @property
    def all_bits(self) -> float:
        return float(self.count * self.words * self.bits)


@dataclasses.dataclass(frozen=True)
class Chip:
    """A machine, and the units that it is built with."""

    machine: MachineConfig
    units: Units

    @property
    def beat_bits(self) -> int:
        lane = self.machine.lane
        return lane.columns * lane.elements * lane.bits_b

    @property
    def engines(self) -> int:
        return self.machine.engines if self.machine.batch else 0


_BOTH = ("kllm_chip", "kllm_paged")
_LANE = "IdxCounter and MAC"
_NAND2, _FLIP_FLOP, _FLIP_FLOP_28 = 3.7536, 20.0192, 2.65  # um2 in Sky130, and in 28 nm
_COLUMN, _ELEMENT, _LOOK_UP = 15.56, 9.39, 77.53  # kGE of a column, a word of a row, the rest
_WEIGHT_BIT = 0.008  # kGE of a flip-flop with enable, which carries a bit of a weight index
_STRAIGHT = 0.001  # of the weight stripe without a rotation
# Row -> the number that it is proportional to, from ``table1``.
SHARES: dict[str, Callable[[Chip], float]] = {
    _LANE: lambda c: c.machine.lanes * lane_kge(c.machine),
    "outlier path of the lanes": lambda c: c.machine.lanes * c.machine.columns,
    "scaler of the lanes": lambda c: c.machine.lanes,
    "Wgt Buffer": lambda c: c.machine.lanes * c.beat_bits,
    "control and FIFOs of the lanes": lambda c: c.machine.lanes,
    "broadcast to the lanes": lambda c: c.machine.lanes,
    "skid buffers and wiring": lambda c: c.machine.lanes,
    "weight stripe": lambda c: _rotated(c.machine),
}
# Row -> the number that it follows, on a line through both chips.
SLOPES: dict[str, Callable[[Chip], float]] = {
    "AXI": lambda c: c.machine.ports.ports * c.machine.port_bits,
    "matmul engine": lambda c: c.machine.lanes,
    "Orizuru": lambda c: math.log2(c.machine.slot_elements),
    "weight supply": lambda c: c.machine.ports.ports,
}
# Of the unit CACHE: proportional, from ``smollm2_cache``.
CACHE: dict[str, Callable[[Chip], float]] = {
    "K and V: attention": lambda c: c.engines * c.units.attention_macs,
    "K and V: dequantization": lambda c: c.engines * c.units.attention_lanes,
    "K and V: quantization": lambda c: c.engines * c.units.attention_lanes,
    "K and V: records to words and back": lambda c: c.engines,
    "K and V: requests, thresholds, statuses": lambda c: c.engines,
    "K and V: control of the attention engine": lambda c: c.engines,
    "K and V: paged MMU": lambda c: c.engines,
    "unit CACHE and batch": lambda c: float(c.machine.batch > 0),
    "fetch of programs": lambda c: float(c.machine.batch > 0),
    "TOP_K": lambda c: float(c.machine.batch > 0),
}
_FUNCTION_WORD = 18.08  # kGE of a word per cycle of the functional unit: widths 8 and 4 differ by 4


def lane_kge(machine: MachineConfig) -> float:
    """Look-up and columns of a lane, by the modules of ``kllm_modules``."""
    carried = machine.columns * machine.elements * machine.bits_b
    full = 32 * 16 * 4
    look_up = _LOOK_UP + (carried - full) * _WEIGHT_BIT + machine.elements * _ELEMENT
    return look_up + machine.columns * _COLUMN * machine.elements / 16


def _rotated(machine: MachineConfig) -> float:
    """Bits that change their place from port to lane; almost none where words go straight."""
    bits = machine.ports.ports * machine.port_bits
    straight = machine.beat_words % machine.ports.ports == 0 and machine.ports.ports <= 4
    return bits * (_STRAIGHT if straight else 1.0)


@functools.cache
def page_rows(section: str) -> Mapping[str, Part]:
    """Rows of a section of docs/area.md. ConfigError: the page lacks it."""
    begin, end = f"<!-- generated: {section} -->\n", "<!-- end generated -->"
    text = _PAGE.read_text()
    if begin not in text:
        raise ConfigError(f"{_PAGE.name}: has no section {section}")
    found = {}
    for line in text.split(begin)[1].split(end)[0].splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        first = 2 if section == "kllm_chip" else 1
        if re.fullmatch(r"[\d,.]+", cells[first]) and "total" not in cells[0]:
            kge, flip_flops = (float(each.replace(",", "")) for each in cells[first : first + 2])
            found[cells[0]] = Part(cells[0], kge, flip_flops)
    return found


@functools.cache
def base(section: str) -> Chip:
    """The chip of a section, with the units that it was mapped with."""
    machine = MACHINES[BASES[section]]
    return Chip(machine, Units(attention_macs=192, attention_lanes=64))


def _along(first: float, second: float, x: float, low: float, high: float) -> float:
    """A line through (low, first) and (high, second); never below 0."""
    return max(0.0, first + (x - low) * (second - first) / (high - low))


def _scaled(part: Part, factor: float) -> Part:
    return Part(part.name, part.kge * factor, part.flip_flops * factor)


def parts(chip: Chip) -> tuple[Part, ...]:
    """Logic of a chip. ConfigError: it has what no row is of."""
    check(chip)
    one, other = (base(section) for section in _BOTH)
    rows, cached = page_rows("kllm_chip"), page_rows("kllm_paged")
    made = []
    for name, part in rows.items():
        if name.startswith("Orizuru, not"):
            continue
        if name in SHARES:
            made.append(_scaled(part, SHARES[name](chip) / SHARES[name](one)))
        elif name in SLOPES:
            x, low, high = (SLOPES[name](each) for each in (chip, one, other))
            kge = _along(part.kge, cached[name].kge, x, low, high)
            flip_flops = _along(part.flip_flops, cached[name].flip_flops, x, low, high)
            made.append(Part(name, kge, flip_flops))
        elif name == "Functional Unit":
            factor = 1 + (chip.units.function_width - 8) * _FUNCTION_WORD / part.kge
            made.append(_scaled(part, factor))
        else:
            made.append(part)
    for name, number in CACHE.items():
        factor = number(chip) / number(other)
        if factor:
            made.append(_scaled(cached[name], factor))
    return tuple(made)


def check(chip: Chip) -> None:
    """ConfigError: no row of the page is of such units."""
    for name, value in (("counter", "select"), ("functions", 1), ("banks", 1), ("packet_words", 1)):
        if getattr(chip.units, name) != value:
            raise ConfigError(
                f"{name} must be {value} for an area by configuration, not "
                f"{getattr(chip.units, name)}"
            )


def rams(chip: Chip) -> tuple[Ram, ...]:
    """The RAMs of a chip; those of queues and of page tables as ``smollm2_cache`` has them."""
    machine, slot = chip.machine, chip.machine.slot
    entry = ROW_ELEMENTS * (activation_entry_bits(slot.bits_a, slot.integer_bits) + 1)
    made = [
        Ram("weights", machine.lanes, machine.replay_beats, chip.beat_bits),
        Ram("vectors", 1, machine.vector_rows, 16 * ROW_ELEMENTS),
        Ram("entries", 1, slot.slots * slot.rows, entry),
        Ram("outliers", 1, slot.slots * slot.outliers_max, 16),
        Ram("trees", 1, slot.elements, 37),  # docs/area.md: 18.6 KB of 4,096, 7.0 KB of 1,536
        Ram("rows of softmax", 1, machine.softmax_elements, 16),
        Ram("queues of the lanes", machine.lanes, 64, 256),
        Ram("other queues", 1, 64, 640),
    ]
    if chip.engines:
        made += [
            Ram("attention", chip.engines, 512, 428),  # 20.3, 3.4, 2.0 and 0.9 KB
            Ram("page table", chip.engines, 4352, 166),  # 88.1 KB
        ]
    return tuple(made)


def logic_mm2(kge: float) -> float:
    """Square millimetres at 28 nm, by docs/area.md: a plain flip-flop has 2.65 um2."""
    return kge * 1e3 * _NAND2 * _FLIP_FLOP_28 / _FLIP_FLOP / 1e6


def area(chip: Chip) -> Interval:
    """Square metres; the interval is that of the RAM's assumption. ConfigError: as ``parts``."""
    logic = logic_mm2(sum(part.kge for part in parts(chip)))
    bits = sum(ram.all_bits for ram in rams(chip))
    return Interval(*(logic * 1e-6 + bits * um2 * 1e-12 for um2 in (
        RAM_UM2.low, RAM_UM2.value, RAM_UM2.high
    )))  # fmt: skip
