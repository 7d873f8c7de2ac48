"""Files with which LibreLane lays a block out: ``python -m synth.report NAME --kit FOLDER``.

| file | content |
|---|---|
| ``config.json`` | LibreLane's configuration variables |
| ``NAME.sdc`` | the clock, and inputs and outputs that take no time of it |
| ``NAME.v`` | every module but RAMs |
| ``NAME_rams.v`` | RAMs as black boxes; only where the block has RAMs |
| ``NAME_rams.csv`` | their words, bits and ports: the macros to bring |

Clock and die come from the placed estimate. The project does not run LibreLane. Names and types of
the variables are those of its version 3.0.10 (https://github.com/librelane/librelane, commit
bf8cc13c3b6314a099fabac208393d323cc5bfe2, ``librelane/config/flow.py`` and ``librelane/steps``).
"""

import json
import math
from collections.abc import Iterable
from typing import Any

from hdl.back.licence import LICENCE
from hdl.back.verilog import Design
from hdl.kit.texts import constraints, ram_table
from hdl.memory.config import MemoryConfig
from synth.area import is_macro
from synth.liberty import LibraryError
from synth.modules import module_texts, stub
from synth.placed import PlacedReport
from synth.technology import Technology

# Over the estimate: LibreLane has a clock tree, hold buffers and corners, and may repair wires.
MARGIN = 1.25
# Sites and rows around the core: LibreLane's LEFT_MARGIN_MULT and BOTTOM_MARGIN_MULT.
_MARGIN_SITES, _MARGIN_ROWS = 12, 4
_DENSER = 10  # per cent: placement density over utilisation, LibreLane's default without padding


def check_technology(technology: Technology) -> None:
    """LibraryError: LibreLane has no process design kit of ``technology``."""
    if not technology.pdk:
        raise LibraryError(f"--kit: LibreLane has no process design kit of {technology.name}")


def configuration(report: PlacedReport, clock: str, has_rams: bool) -> dict[str, Any]:
    """Content of config.json: ns, um and per cent. ``clock`` is empty for a block without one."""
    technology, die = report.technology, report.die
    width = die.width + 2 * _MARGIN_SITES * technology.site.width
    height = die.height + 2 * _MARGIN_ROWS * technology.site.height
    utilisation = round(100 * report.utilisation)
    made: dict[str, Any] = {
        "DESIGN_NAME": report.name,
        "PDK": technology.pdk,
        "STD_CELL_LIBRARY": technology.scl,
        "VERILOG_FILES": [f"dir::{report.name}.v"],
        "CLOCK_PORT": clock or None,
        "CLOCK_PERIOD": period(report),
        "PNR_SDC_FILE": f"dir::{report.name}.sdc",
        "SIGNOFF_SDC_FILE": f"dir::{report.name}.sdc",
        "FP_SIZING": "absolute",
        "DIE_AREA": [0, 0, math.ceil(width), math.ceil(height)],
        "FP_CORE_UTIL": utilisation,
        "PL_TARGET_DENSITY_PCT": min(95, utilisation + _DENSER),
    }
    if has_rams:
        made["EXTRA_VERILOG_MODELS"] = [f"dir::{report.name}_rams.v"]
    return made


def period(report: PlacedReport) -> float:
    """ns of the worst of all paths with wires, with the margin, up to whole hundredths."""
    return math.ceil(100 * MARGIN * max((path.ns for path in report.paths), default=0.01)) / 100


def _verilog(modules: Iterable[str]) -> str:
    return "\n".join([f"// {LICENCE}", *modules])


def layout_files(design: Design, report: PlacedReport) -> dict[str, str]:
    """Name of each file -> its text. LibraryError: ``check_technology`` refuses it."""
    check_technology(report.technology)
    name = report.name
    macros = {module.name: module.block for module in design.modules[:-1]
              if is_macro(module.block)}  # fmt: skip
    texts = module_texts(design.verilog)
    ports = [port["name"] for port in design.description["ports"] if port["role"] == "clock"]
    made = configuration(report, "".join(ports[:1]), bool(macros))
    sdc = [
        f"set clock_period {made['CLOCK_PERIOD']:g}",
        "set input_delay 0",
        "set output_delay 0",
        "",
    ]
    # LibreLane sets this variable until the clock has its tree.
    ideal = "[info exists ::env(OPENLANE_SDC_IDEAL_CLOCKS)] && $::env(OPENLANE_SDC_IDEAL_CLOCKS)"
    ends = [
        f"set_load {report.fo4.load_pf:.6f} [all_outputs]",
        f"if {{!({ideal})}} {{ set_propagated_clock [get_clocks clk] }}",
        "",
    ]
    files = {
        "config.json": json.dumps(made, indent=2) + "\n",
        f"{name}.sdc": "\n".join(sdc) + constraints(design.description) + "\n".join(ends),
        f"{name}.v": _verilog(text for module, text in texts.items() if module not in macros),
    }
    if macros:
        rams = [each for each in design.description["memories"] if each["module"] in macros]
        bits = {module: block.config.lane_bits for module, block in macros.items()
                if isinstance(block.config, MemoryConfig)}  # fmt: skip
        files[f"{name}_rams.v"] = _verilog(stub(texts[module]) for module in macros)
        files[f"{name}_rams.csv"] = ram_table({"memories": rams}, bits)
    return files
