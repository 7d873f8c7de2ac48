"""A top with six pins around a block with any number of ports.

    so = the outputs of a cycle, shifted out;  the inputs = what ``si`` has shifted in

Each input of the block comes from a flip-flop of one long register, and each output goes to one. So
the paths from and to the ports are measured, and no tool can remove logic. The harness takes as
many flip-flops as the block has bits of ports, and a LUT for each bit of its outputs.
"""

import re
from collections.abc import Mapping
from typing import Any

from golden.config import ConfigError

TOP = "harness"
BLOCK = "dut"  # instance of the block, the first part of the names of its cells
_PLAIN = re.compile(r"[A-Za-z_]\w*")


def harness(description: Mapping[str, Any]) -> str:
    """Verilog of the top, from the JSON of ``hdl.build``. ConfigError: a port without a role."""
    ports = description["ports"]
    for port in ports:
        if not port.get("role"):
            raise ConfigError(f"{description['name']}: port {port['name']} must have a role")
    inputs = [
        p for p in ports if p["direction"] == "input" and p["role"] not in ("clock", "reset")
    ]
    outputs = [p for p in ports if p["direction"] == "output"]
    connected = [
        f".{_escaped(p['name'])}({'clk' if p['role'] == 'clock' else 'reset'})"
        for p in ports
        if p["role"] in ("clock", "reset")
    ]
    sizes = []
    for register, group in (("given", inputs), ("made", outputs)):
        at = 0
        for port in group:
            connected.append(f".{_escaped(port['name'])}({register}[{at} +: {port['width']}])")
            at += port["width"]
        sizes.append(max(at, 1))
    given, made = sizes
    return f"""\
module {TOP}(input clk, input rst, input si, input shift, output reg so);
  reg reset;
  reg [{given - 1}:0] given;
  wire [{made - 1}:0] made;
  reg [{made - 1}:0] held;
  always @(posedge clk) begin
    reset <= rst;
    given <= {{given, si}};
    held <= shift ? {{held, 1'b0}} : made;
    so <= held[{made - 1}];
  end
  {_escaped(description["name"])} {BLOCK}(
    {", ".join(connected)}
  );
endmodule
"""


def _escaped(name: str) -> str:
    """A name as Verilog takes it."""
    return name if _PLAIN.fullmatch(name) else f"\\{name} "
