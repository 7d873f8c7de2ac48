"""``python -m senbazuru.runs.board NAME``: a block on a ULX3S, and its routed netlist compared.

The block gets a UART (synth.fpga.link). The command writes ``top.bit`` and ``top.svf`` for the
board, ``host.py`` for the host, and the routed netlist. Then it drives that netlist at the pins of
the board with the words of the block's kit, and compares every answer with golden. ``--flip SEED``
turns one bit of a LUT round first: then words must differ, and the status is 1.
"""

import contextlib
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from golden import command
from golden.config import ConfigError
from golden.files import claimed_folder
from hdl.arguments import folder, whole
from hdl.back.verilog import convert
from hdl.kit.kits import vectors
from hdl.registry import configuration, find
from synth.fpga.board import TOP, Placed, place
from synth.fpga.netlist import read_routed, routed_verilog
from synth.fpga.tools import FpgaError, check_tools
from synth.yosys import YosysError
from tb.board.pins import Pins, compiled
from tb.board.play import Played, check_playable, play


def flipped(found: dict[str, Any], seed: int) -> tuple[dict[str, Any], str]:
    """A routed netlist with one bit of a LUT of the block turned round, and what it was."""
    cells = found["modules"][TOP]["cells"]
    names = sorted(
        name
        for name, each in cells.items()
        if each["type"] == "TRELLIS_COMB"
        and name.startswith("bridge.block.")
        and each["parameters"].get("MODE", "LOGIC") == "LOGIC"
        and each["connections"].get("F")
    )
    draw = random.Random(seed)
    name, bit = draw.choice(names), draw.randrange(16)
    init = cells[name]["parameters"]["INITVAL"]
    made = f"{init[:bit]}{'10'[int(init[bit])]}{init[bit + 1 :]}"
    cells[name]["parameters"]["INITVAL"] = made
    return found, f"bit {15 - bit} of {name}"


def checked(design: Any, placed: Placed, words: Any, seed: int | None) -> tuple[Played, int, str]:
    """Golden words at the pins of the routed netlist; cycles; the bit that was turned round."""
    text = ""
    if seed is None:
        verilog = read_routed(placed.folder / "routed.json", TOP)
    else:
        found, text = flipped(json.loads((placed.folder / "routed.json").read_text()), seed)
        verilog = routed_verilog(found, TOP)
    with Pins(compiled(verilog)) as pins:
        played = play(design.description, words, pins)
        return played, pins.cycle, text


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.board", description=__doc__)
    parser.add_argument("name", help="block with streams (python -m hdl.build --list shows all)")
    parser.add_argument("assignments", nargs="*", metavar="field=value")
    parser.add_argument("--config", metavar="NAMED", help="start from a named configuration")
    parser.add_argument("--no-check", action="store_true", help="write the files alone")
    parser.add_argument("--flip", type=whole(0), metavar="SEED", help="turn one bit of a LUT round")
    parser.add_argument("-o", dest="directory", type=folder, metavar="DIR",
                        help="default: build/board/NAME")  # fmt: skip
    options = parser.parse_intermixed_args(arguments)
    target = options.directory or Path("build/board") / options.name
    progress = Console(stderr=True)
    outputs = contextlib.ExitStack()
    try:
        check_tools()
        config = configuration(options.name, options.config, options.assignments)
        design = convert(find(options.name).component(config), options.name)
        words = None if options.no_check else vectors(options.name, config)
        if not options.no_check:
            check_playable(design.description, words)
        outputs.enter_context(claimed_folder(target))
        with progress.status(f"{options.name}: synthesis, placement, routing"):
            placed = place(design, target)
        print(f"{options.name}: {placed.cells['LUT']:,} LUTs, {placed.mhz:.1f} MHz, "
              f"{target / 'top.bit'}")  # fmt: skip
        if options.no_check:
            return 0
        began = time.monotonic()
        with progress.status(f"{options.name}: the routed netlist at its pins"):
            played, cycles, turned = checked(design, placed, words, options.flip)
    except (ConfigError, FpgaError, YosysError, RuntimeError, ValueError, OSError) as error:
        print(f"senbazuru.runs.board: {error}", file=sys.stderr)
        return 2
    finally:
        outputs.close()
    if turned:
        print(f"turned round: {turned}")
    print(
        f"{played.sent:,} words sent, {played.compared:,} compared, {played.differ:,} differ; "
        f"{cycles:,} cycles, {time.monotonic() - began:.0f} s"
    )
    if played.differ:
        print(played.first)
    return 1 if played.differ else 0


if __name__ == "__main__":
    command.run("senbazuru.runs.board", main)
