"""``python -m senbazuru.runs.board NAME``: a block on a ULX3S, and its routed netlist compared.

The block gets a UART (synth.fpga.link). The command writes ``top.bit`` and ``top.svf`` for the
board, ``host.py`` for the host, and the routed netlist. Then it drives that netlist at the pins of
the board with the words of the block's kit, and compares every answer with golden. The status is 1
if a word differs. ``--flip SEED`` turns one bit of a LUT round first. ``--all`` does so for each
block of a kit without a memory, and makes the table of docs/fpga.md. It keeps what is done, with a
hash of Verilog, configuration and target. The status is 2 if a block fails; the others are done.

Of ``kllm_accelerator`` it takes one without a unit CACHE. The words are those of a token of
a small random model whose host attends, and the host is its memory too.
"""

import argparse
import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from golden import command
from golden.config import ConfigError
from golden.files import claimed_folder, kept_json, replacing
from golden.markers import table
from hdl.arguments import add_page, check_page, folder, whole, write_page
from hdl.back.verilog import Design, convert
from hdl.kit.episodes import Vectors
from hdl.kit.kits import all_kits, shown, vectors
from hdl.registry import configuration, find
from hdl.target import TARGETS, built_for
from synth.fpga.board import place
from synth.fpga.tools import FpgaError, check_tools, versions
from synth.yosys import YosysError
from tb.board.check import checked
from tb.board.play import check_playable
from tb.simulate.run import ROOT

if TYPE_CHECKING:
    from golden.kllm.programs import Program

ACCELERATOR = "kllm_accelerator"  # its host is its memory
PAGE = ROOT / "docs" / "fpga.md"


def all_boards() -> list[str]:
    """Blocks with words and without a memory, at the configurations of their kits."""
    found = []
    for name in all_kits():
        words = vectors(name, shown(name))
        if words is not None and not words.memories:
            found.append(name)
    return found


_FAILURES = (ConfigError, FpgaError, YosysError, RuntimeError, AssertionError, ValueError, OSError)
_FIELDS = {"block", "made_of", "cells", "mhz", "sent", "compared", "differ", "cycles", "seconds"}


def _design(name: str, config: Any, target: str) -> Design:
    with built_for(target):
        return convert(find(name).component(config), name)


def made_of(design: Design, config: Any, target: str) -> str:
    """Hash of what a board and its words follow from."""
    fields = json.dumps(config.describe(), sort_keys=True)
    parts = (versions(), target, type(config).__name__, fields, design.verilog)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _reason(error: Exception) -> str:
    """One line that is never empty; the type is in it where the message alone says too little."""
    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, _FAILURES) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _token(config: Any) -> "Program":
    """A token of a small random model whose host attends.

    ValueError: the accelerator has a unit CACHE, or several memories of weights.
    """
    from tb.kllm.support.hosted import hosted_program

    machine = config.machine
    if machine.batch or machine.ports.ports > 1:
        raise ValueError(
            f"{ACCELERATOR}: a board takes one without a unit CACHE and with one port, not batch "
            f"{machine.batch} and {machine.ports.ports} ports"
        )
    return hosted_program(machine, [7, 31], layers=1)


def measure(
    name: str, config: Any, folder: Path, seed: int | None = None, design: Design | None = None,
    target: str = "asic",
) -> dict[str, Any]:
    """Makes a board's files, and compares its routed netlist with golden."""
    design = design or _design(name, config, target)
    words: Vectors | Program
    if name == ACCELERATOR:
        words = _token(config)
    else:
        found = vectors(name, config)
        check_playable(design.description, found)
        assert found is not None
        words = found
    with built_for(target):
        placed = place(design, folder)
    began = time.monotonic()
    played, cycles, turned = checked(design, placed, words, seed)
    return {
        "block": name, "configuration": config.describe(),
        "made_of": made_of(design, config, target), "cells": dict(placed.cells),
        "mhz": placed.mhz, "sent": played.sent, "compared": played.compared,
        "differ": played.differ, "first": played.first, "cycles": cycles, "turned": turned,
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def board_table(found: Sequence[Mapping[str, Any]]) -> str:
    """A row for each board whose netlist was compared."""
    cells = ("LUT", "FF", "block RAM", "DSP")
    rows = [
        (
            f"`{each['block']}`", *(f"{each['cells'][name]:,}" for name in cells),
            f"{each['mhz']:.1f}", f"{each['sent']:,}", f"{each['compared']:,}",
            f"{each['differ']:,}", f"{each['cycles']:,}",
        )
        for each in found
    ]  # fmt: skip
    head = ("block", *cells, "MHz", "words sent", "compared", "differ", "cycles")
    return table(head, rows)


def _line(found: Mapping[str, Any], folder: Path) -> str:
    turned = f"turned round: {found['turned']}\n" if found["turned"] else ""
    first = f"\n{found['first']}" if found["differ"] else ""
    return (
        f"{found['block']}: {found['cells']['LUT']:,} LUTs, {found['mhz']:.1f} MHz, "
        f"{folder / 'top.bit'}\n{turned}{found['sent']:,} words sent, {found['compared']:,} "
        f"compared, {found['differ']:,} differ; {found['cycles']:,} cycles, "
        f"{found['seconds']:.0f} s{first}"
    )


def _kept(file: Path) -> dict[str, Any] | None:
    """A board's figures; None: there are none that its table can show."""
    found = kept_json(file)
    if not isinstance(found, dict) or not found.keys() >= _FIELDS:
        return None
    try:
        board_table([found])
    except (KeyError, TypeError, ValueError):  # of another version
        return None
    return found


def _every_board(
    keep: Path, progress: Console, kept_only: bool, target: str
) -> tuple[list[dict[str, Any]], int]:
    """(figures, failures): measures all boards whose file under ``keep`` is not ``made_of`` now."""
    made, failures = [], 0
    for name in all_boards():
        stem = name if target == "asic" else f"{name}-{target}"
        file, config = keep / f"{stem}.json", shown(name)
        found = _kept(file)
        if not kept_only:
            try:
                with progress.status(name):
                    design = _design(name, config, target)
                    if found is None or found["made_of"] != made_of(design, config, target):
                        found = measure(name, config, keep / stem, design=design, target=target)
                        with replacing(file) as part:
                            part.write_text(json.dumps(found, indent=1))
                        print(_line(found, keep / stem), flush=True)
            except Exception as error:  # whatever it is, it is of this block alone
                print(f"{name}: {_reason(error)}", file=sys.stderr)
                failures += 1
                continue
        if found is not None:
            made.append(found)
    return made, failures


def _check_no_memory(design: Design) -> None:
    """ValueError: the block is an AXI4 manager, to which a board gives no memory."""
    for each in design.description["streams"]:
        bus, _, channel = each["name"].rpartition("__")
        if channel in ("ar", "aw") and each["direction"] == "output":
            raise ValueError(f"{design.name}: a board has no memory for {bus}")


def _check_options(parser: command.Parser, options: argparse.Namespace) -> None:
    """Ends the program where an option would have no effect."""
    if options.all == bool(options.name) or (options.page and not options.all):
        parser.error("one of NAME and --all is needed; --page is of --all")
    of_one = {"--config": options.config, "--no-check": options.no_check}
    of_one |= {"--flip": options.flip is not None, "field=value": options.assignments}
    for option, is_given in of_one.items():
        if options.all and is_given:
            parser.error(f"--all goes without {option}")
    if options.page and options.target != "asic":
        parser.error("--page is of --target asic")
    if options.kept_only and not options.all:
        parser.error("--kept-only is of --all")
    if options.no_check and options.flip is not None:
        parser.error("--no-check goes without --flip: it compares nothing")


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.board", description=__doc__)
    parser.add_argument("name", nargs="?", help="block with streams")
    parser.add_argument("assignments", nargs="*", metavar="field=value")
    parser.add_argument("--config", metavar="NAMED", help="start from a named configuration")
    parser.add_argument("--all", action="store_true", help="each block of a kit without a memory")
    parser.add_argument("--target", choices=TARGETS, default="asic", help="as synth.fpga's")
    parser.add_argument("--kept-only", action="store_true", help="with --all: measure nothing")
    parser.add_argument("--no-check", action="store_true", help="write the files alone")
    parser.add_argument("--flip", type=whole(0), metavar="SEED", help="turn one bit of a LUT round")
    parser.add_argument("-o", dest="directory", type=folder, metavar="DIR",
                        help="default: build/board/NAME, or build/board with --all")  # fmt: skip
    add_page(parser, PAGE)
    options = parser.parse_intermixed_args(arguments)
    check_page(parser, options.page, ("fpga_boards",))
    _check_options(parser, options)
    target = options.directory or Path("build/board") / (options.name or "")
    progress = Console(stderr=True)
    outputs = contextlib.ExitStack()
    try:
        check_tools()
        outputs.enter_context(claimed_folder(target))
        if options.all:
            found, failures = _every_board(target, progress, options.kept_only, options.target)
            print(board_table(found))
            write_page(options.page, {"fpga_boards": board_table(found)})
            if failures:
                return 2
            return 1 if any(each["differ"] for each in found) else 0
        config = configuration(options.name, options.config, options.assignments)
        with progress.status(options.name):
            design = _design(options.name, config, options.target)
            if options.no_check:
                if options.name != ACCELERATOR:
                    _check_no_memory(design)
                with built_for(options.target):
                    placed = place(design, target)
                print(f"{options.name}: {placed.mhz:.1f} MHz, {target / 'top.bit'}")
                return 0
            made = measure(options.name, config, target, options.flip, design, options.target)
    except _FAILURES as error:
        print(f"senbazuru.runs.board: {_reason(error)}", file=sys.stderr)
        return 2
    finally:
        outputs.close()
    print(_line(made, target))
    return 1 if made["differ"] else 0


if __name__ == "__main__":
    command.run("senbazuru.runs.board", main)
