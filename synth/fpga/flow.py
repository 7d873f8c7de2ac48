"""A block on a device: synthesis, then placement and routing for each seed.

Yosys' ``synth_ecp5`` maps the flattened harness, nextpnr-ecp5 places and routes it. A clock is that
of the slowest path between flip-flops after routing, at the slow corner of the device.
"""

import collections
import dataclasses
import functools
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hdl.back.verilog import Design
from hdl.target import BLOCK_BITS, current
from synth.fpga.devices import CELLS, Device
from synth.fpga.harness import BLOCK, TOP, harness
from synth.fpga.tools import FpgaError, run_tool, run_yosys

# Cells of Yosys -> the name that the tables have.
MAPPED = {
    "LUT4": "LUT", "CCU2C": "carry", "TRELLIS_FF": "FF", "DP16KD": "block RAM",
    "MULT18X18D": "DSP", "TRELLIS_DPR16X4": "LUT RAM",
}  # fmt: skip
# Memory1R1W as Verilog: its module, and the last bit and word of its memory.
_RAM = re.compile(
    r"^module (memory1_?r1_?w\w*)\((?:(?!^endmodule).)*?^  reg \[(\d+):0\] words \[(\d+):0\];",
    re.MULTILINE | re.DOTALL,
)
# LUTs of a slice that a cell takes: a carry has two, a LUT RAM four and its write port two.
_COMB = {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 6}


@dataclasses.dataclass(frozen=True)
class Mapped:
    """Cells after synthesis, harness included.

    cells : by the names of MAPPED; units : LUTs of a slice by the block's instances
    """

    cells: Mapping[str, int]
    units: Mapping[str, int]
    seconds: float
    megabytes: int

    @property
    def comb(self) -> int:
        """LUTs of slices that it takes before packing."""
        by_name = {MAPPED[cell]: count for cell, count in _COMB.items()}
        return sum(self.cells[name] * count for name, count in by_name.items())


@dataclasses.dataclass(frozen=True)
class CriticalPath:
    """The slowest path between two flip-flops. start, end : in names of the source"""

    start: str
    end: str
    logic_ns: float
    routing_ns: float


@dataclasses.dataclass(frozen=True)
class Routed:
    """A placed and routed design. cells : by the names of devices.CELLS"""

    seed: int
    mhz: float
    path: CriticalPath
    cells: Mapping[str, int]
    seconds: float
    megabytes: int


@dataclasses.dataclass(frozen=True)
class Report:
    """A block on a device."""

    name: str
    configuration: Mapping[str, Any]
    device: str
    tools: str
    mapped: Mapped
    routed: tuple[Routed, ...]

    @functools.cached_property
    def mhz(self) -> float:
        """The median over all seeds."""
        return statistics.median(each.mhz for each in self.routed)

    @functools.cached_property
    def median(self) -> Routed:
        """The run whose clock is next to the median."""
        return min(self.routed, key=lambda each: abs(each.mhz - self.mhz))

    def to_json(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        if self.routed:
            clocks = [each.mhz for each in self.routed]
            plain["mhz"] = {"median": self.mhz, "low": min(clocks), "high": max(clocks)}
        return plain


def synthesize(design: Design, folder: Path) -> Mapped:
    """Maps a block in its harness; leaves ``design.json`` in the folder. YosysError: it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "block.v").write_text(design.verilog)
    (folder / "harness.v").write_text(harness(design.description))
    ran = run_yosys(
        f"read_verilog block.v harness.v\n{block_rams(design.verilog)}"
        f"synth_ecp5 -top {TOP} -json design.json\n",
        folder, "synthesis",
    )  # fmt: skip
    made = json.loads((folder / "design.json").read_text())["modules"][TOP]["cells"]
    cells = collections.Counter(each["type"] for each in made.values())
    units: collections.Counter[str] = collections.Counter()
    for name, each in made.items():
        units[unit_of(name)] += _COMB.get(each["type"], 0)
    found = {name: cells[cell] for cell, name in MAPPED.items()}
    return Mapped(found, dict(units.most_common(12)), ran.seconds, ran.megabytes)


def block_rams(verilog: str) -> str:
    """Commands of Yosys: of target fpga, RAMs of BLOCK_BITS and more are block RAM.

    Yosys would make shallow ones of LUTs, and leave most of the device's block RAM without use. A
    word that is read while it is written is unspecified (Memory1R1W): no logic gives the old one.
    """
    if current() != "fpga":
        return ""
    commands = []
    for module, width, depth in _RAM.findall(verilog):
        if (int(width) + 1) * (int(depth) + 1) >= BLOCK_BITS:
            commands.append(
                f'setattr -set ram_style "block" -set no_rw_check 1 {module}/m:words\n'
            )
    return "".join(commands)


def unit_of(cell: str) -> str:
    """The block's instance that a cell is of: ``scaler`` of ``dut.scaler.x_LUT4_Z``."""
    parts = cell.lstrip("\\").split(".")
    if parts[0] != BLOCK:
        return "harness"
    return parts[1] if len(parts) > 2 else "its own"


def check_room(name: str, mapped: Mapped, device: Device) -> None:
    """FpgaError: the device has too few cells; the line says how many, and which unit has most."""
    wanted = {"TRELLIS_COMB": mapped.comb, "TRELLIS_FF": mapped.cells["FF"],
              "DP16KD": mapped.cells["block RAM"], "MULT18X18D": mapped.cells["DSP"]}  # fmt: skip
    for cell, count in wanted.items():
        has = device.cells[cell]
        if count > has:
            unit, most = max(mapped.units.items(), key=lambda each: each[1])
            raise FpgaError(
                f"{name} takes {count:,} {cell} of {device.name}, which has {has:,} "
                f"({100 * count / has:.0f} %); most LUTs are of {unit}: {most:,}"
            )


def place_and_route(
    folder: Path, device: Device, seed: int, options: Sequence[str], design: str = "design"
) -> Routed:
    """Places and routes ``DESIGN.json`` of the folder; ``options`` are of nextpnr-ecp5.

    FpgaError: it fails. A clock below the goal is no failure.
    """
    stem = f"route{seed}"
    ran = run_tool(
        "nextpnr-ecp5",
        [
            device.flag, "--package", device.package, "--speed", device.speed, "--seed", str(seed),
            "--json", f"{design}.json", "--timing-allow-fail", "--report", f"{stem}.json", *options,
        ],
        folder, stem,
    )  # fmt: skip
    return routed(json.loads((folder / f"{stem}.json").read_text()), seed, ran.seconds,
                  ran.megabytes)  # fmt: skip


def routed(found: Mapping[str, Any], seed: int, seconds: float, megabytes: int) -> Routed:
    """The figures of nextpnr's report."""
    clocks = [each["achieved"] for each in found["fmax"].values()]
    if not clocks:
        raise FpgaError("nextpnr-ecp5: no path between two flip-flops has a clock")
    cells = {name: found["utilization"][cell]["used"] for name, cell in CELLS.items()}
    path = worst_path(found["critical_paths"])
    return Routed(seed, round(min(clocks), 2), path, cells, seconds, megabytes)


def worst_path(paths: Sequence[Mapping[str, Any]]) -> CriticalPath:
    """The longest path of one clock, from flip-flop to flip-flop."""
    own = [each for each in paths if each["from"] == each["to"] and "async" not in each["from"]]
    steps = max((each["path"] for each in own), key=lambda p: sum(step["delay"] for step in p))
    routing = sum(step["delay"] for step in steps if step["type"] == "routing")
    logic = sum(step["delay"] for step in steps) - routing
    return CriticalPath(
        source_name(steps[0]["from"]["cell"]), source_name(steps[-1]["to"]["cell"]),
        round(logic, 2), round(routing, 2),
    )  # fmt: skip


def source_name(cell: str) -> str:
    """A register or RAM in names of the source: ``scaler.tag`` of ``dut.scaler.tag_TRELLIS_FF_Q``.

    Yosys names a cell by the net that it drives, and what it has of its own follows in capitals.
    """
    name = re.sub(r"(_(TRELLIS_FF|DP16KD|MULT18X18D|LUT4|CCU2C|L6MUX21|PFUMX|TRELLIS_DPR16X4)).*",
                  "", cell)  # fmt: skip
    return name.removeprefix(f"{BLOCK}.")


def measure(
    name: str, design: Design, device: Device, folder: Path, *, seeds: Sequence[int], mhz: float,
    tools: str, mapped: Mapped | None = None, on_step: Callable[[str], None] = lambda text: None,
) -> Report:  # fmt: skip
    """A block on a device, for each seed; without seeds its synthesis alone.

    mapped : of an earlier call whose files are in the folder
    """
    if mapped is None:
        on_step("synthesis")
        mapped = synthesize(design, folder)
    made = []
    if seeds:
        check_room(name, mapped, device)
    for seed in seeds:
        on_step(f"placement and routing, seed {seed}")
        goal = ("--freq", f"{mhz:g}", "--lpf-allow-unconstrained")
        made.append(place_and_route(folder, device, seed, goal))
    configuration = json.loads(json.dumps(design.description["configuration"]))
    return Report(name, configuration, device.name, tools, mapped, tuple(made))
