"""Our FP16 units next to Berkeley HardFloat's, by one script.

HardFloat is Verilog of John R. Hauser, release 1, 2019 (BSD licence). The package pymtl3-hardfloat
carries it. Its units take a recoded format, so each is measured with and without its converters.
The rounding mode is constant, nearest even, and the flags are left open: as in our units.
"""

import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from golden.config import Config
from golden.markers import table
from hdl.back.verilog import convert
from hdl.block import Block
from hdl.fp16.add import FpAdd, FpAddConfig
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.fp16.mul import FpMul, FpMulConfig
from synth.area import DFF_28NM, Libraries, abc_script, load_libraries, types_of
from synth.modules import LEVELS
from synth.tables.common import Tables
from synth.yosys import run

_FILES = ("HardFloat_primitives", "HardFloat_rawFN", "isSigNaNRecFN", "fNToRecFN", "recFNToFN")
# unit -> (our class and its configuration, operands, HardFloat's module, more of its ports)
_UNITS: dict[str, tuple[Callable[[Any], Block], Config, str, str, str]] = {
    "add": (FpAdd, FpAddConfig(stages=0), "ab", "addRecFN", ".subOp(1'b0)"),
    "mul": (FpMul, FpMulConfig(stages=0), "ab", "mulRecFN", ""),
    "fma": (FpFma, FpFmaConfig(stages=0), "abc", "mulAddRecFN", ".op(2'b00)"),
}


@dataclasses.dataclass(frozen=True)
class _Mapped:
    um2: float
    levels: int


def _wrapper(module: str, operands: str, ports: str, *, recoded: bool) -> str:
    """A module ``top`` around HardFloat's ``module`` for binary16, nearest even."""
    bits = 17 if recoded else 16
    lines = [
        f"module top(input [{bits - 1}:0] {', '.join(operands)}, output [{bits - 1}:0] y);",
        "  wire [16:0] r_y;",
    ]
    for name in operands:
        lines.append(f"  wire [16:0] r_{name};")
        lines.append(
            f"  assign r_{name} = {name};"
            if recoded
            else f"  fNToRecFN #(5, 11) to_{name}({name}, r_{name});"
        )
    more = f"{ports}, " if ports else ""
    taken = ", ".join(f".{name}(r_{name})" for name in operands)
    lines.append(
        f"  {module} #(5, 11) unit(.control(1'b1), {more}{taken}, .roundingMode(3'b000), "
        ".out(r_y), .exceptionFlags());"
    )
    lines.append("  assign y = r_y;" if recoded else "  recFNToFN #(5, 11) from_y(r_y, y);")
    return "\n".join([*lines, "endmodule", ""])


def _map(read: list[str], top: str, files: dict[str, str], libraries: Libraries) -> _Mapped:
    liberties = [f"{n}.lib" for n in range(len(libraries.texts))]
    script = [
        *read,
        f"synth -noabc -flatten -top {top}",
        abc_script(liberties, ";print_stats"),
        "opt_clean -purge",
        "tee -q -o stat.json stat -json",
        "",
    ]
    with tempfile.TemporaryDirectory(prefix="hardfloat-") as name:
        folder = Path(name)
        for file, text in {**files, **dict(zip(liberties, libraries.texts, strict=True))}.items():
            (folder / file).write_text(text)
        log = run("\n".join(script), folder)
        stat = json.loads((folder / "stat.json").read_text())
    cells = types_of(stat["modules"]["\\" + top])
    levels = [int(found) for found in LEVELS.findall(log)]
    area = sum(libraries.library.cells[kind].area * number for kind, number in cells.items())
    return _Mapped(area, max(levels))


def hardfloat_tables(source: Path, libraries: Libraries) -> dict[str, str]:
    """Section ``hardfloat``. ``source``: the folder with HardFloat's ``addRecFN.v``."""
    for _, _, _, file, _ in _UNITS.values():
        if not (source / f"{file}.v").is_file():
            raise ValueError(f"--hardfloat must be a folder with {file}.v, not {source}")
    include = f"-I{source.resolve()} -I{(source / 'RISCV').resolve()}"
    nand2, flip_flop = libraries.library.nand2.area, libraries.library.flip_flop.area
    rows = []
    for unit, (component, config, operands, module, ports) in _UNITS.items():
        design = convert(component(config), f"fp16_{unit}")
        found = {
            f"fp16_{unit}, 0 stages": _map(
                ["read_verilog design.v"], design.name, {"design.v": design.verilog}, libraries
            )
        }
        theirs = " ".join(f"{(source / name).resolve()}.v" for name in (*_FILES, module))
        for label, recoded in (("IEEE 754 to IEEE 754", False), ("recoded to recoded", True)):
            text = _wrapper(module, operands, ports, recoded=recoded)
            found[f"HardFloat {module}, {label}"] = _map(
                [f"read_verilog {include} {theirs}", "read_verilog top.v"],
                "top", {"top.v": text}, libraries,
            )  # fmt: skip
        for label, mapped in found.items():
            rows.append(
                (
                    label,
                    f"{mapped.um2:,.0f}",
                    f"{mapped.um2 / nand2 / 1000:.2f}",
                    f"{mapped.um2 / flip_flop * DFF_28NM:,.0f}",
                    f"{mapped.levels}",
                )
            )
    head = ("unit, combinational", "um2, table", "kGE", "um2, 28 nm eq.", "levels")
    return {"hardfloat": table(head, rows)}


def _make(options) -> tuple[dict[str, str], float]:
    if options.hardfloat is None:
        raise ValueError("--hardfloat must name a folder of HardFloat's Verilog: none is given")
    return hardfloat_tables(options.hardfloat, load_libraries()), 0.0


TABLES = {"hardfloat": Tables(("hardfloat",), _make)}
