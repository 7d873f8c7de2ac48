"""A routed netlist compared with golden, as it is or with one bit turned round."""

import json
import random
from typing import TYPE_CHECKING, Any

from hdl.back.verilog import Design
from hdl.kit.episodes import Vectors
from synth.fpga.board import TOP, Placed
from synth.fpga.netlist import read_routed, routed_verilog
from tb.board.pins import Pins, compiled
from tb.board.play import Played, play

if TYPE_CHECKING:
    from golden.kllm.programs import Program


def flipped(found: dict[str, Any], seed: int) -> tuple[dict[str, Any], str]:
    """A routed netlist with one bit of a LUT of the block turned round, and what it was.

    ValueError: the block has no LUT.
    """
    cells = found["modules"][TOP]["cells"]
    names = sorted(
        name
        for name, each in cells.items()
        if each["type"] == "TRELLIS_COMB"
        and name.startswith("bridge.block.")
        and each["parameters"].get("MODE", "LOGIC") == "LOGIC"
        and each["connections"].get("F")
    )
    if not names:
        raise ValueError("no LUT of the block is in the routed netlist: no bit to turn round")
    draw = random.Random(seed)
    name, bit = draw.choice(names), draw.randrange(16)
    init = cells[name]["parameters"]["INITVAL"]
    made = f"{init[:bit]}{'10'[int(init[bit])]}{init[bit + 1 :]}"
    cells[name]["parameters"]["INITVAL"] = made
    return found, f"bit {15 - bit} of {name}"


def checked(
    design: Design, placed: Placed, words: "Vectors | Program", seed: int | None
) -> tuple[Played, int, str]:
    """Golden words at the pins of the routed netlist; cycles; the bit that was turned round.

    words : of a kit, or a program of the accelerator
    """
    text = ""
    if seed is None:
        verilog = read_routed(placed.folder / "routed.json", TOP)
    else:
        found, text = flipped(json.loads((placed.folder / "routed.json").read_text()), seed)
        verilog = routed_verilog(found, TOP)
    with Pins(compiled(verilog)) as pins:
        if isinstance(words, Vectors):
            played = play(design.description, words, pins)
        else:
            from tb.board.accelerator import play_program

            played = play_program(design.description, words, pins)
        return played, pins.cycle, text
