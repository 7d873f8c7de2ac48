"""The cells of ``synth/fpga/cells.v`` side by side, as one module for a bench."""

import dataclasses

from amaranth import Module
from amaranth.lib import wiring

from golden.config import Config
from hdl.block import Block
from synth.fpga.netlist import CELLS

# Widths and write modes of the block RAMs of the bench: a pair of 36 bits, and each width alone.
RAMS = ((36, 36, 0), (36, 18, 0), (36, 9, 0), (18, 18, 0), (18, 18, 1), (18, 18, 2), (9, 9, 0),
        (4, 4, 1), (2, 2, 2), (1, 1, 0), (9, 36, 0))  # fmt: skip
FLIP_FLOPS = ((0, 0), (1, 0), (0, 1), (1, 1))  # SET, ASYNC
CARRY = 0x96AA  # of a bit of an adder: a ^ b where c is 0 and d is 1, and a for the carry
INITIAL = [(0x1F0F3 * n + 5) & 0x3FFFF for n in range(1024)]  # words of each RAM at the start


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellsConfig(Config):
    """There is nothing to choose."""


class Cells(Block):
    """One of each cell; ``clk`` is their clock. Its text is ``text``, not what it elaborates."""

    def __init__(self, config: CellsConfig):
        ins = {"x": 18, "y": 18, "signs": 2, "d": 1, "ce": 1, "lsr": 1, "gsr_n": 1, "ad_a": 14,
               "ad_b": 14, "di_a": 18, "di_b": 18, "we_a": 1, "we_b": 1, "ce_a": 1,
               "ce_b": 1, "wa": 4, "ra": 4}  # fmt: skip
        outs = {"p": 36, "sum": 9, "q": len(FLIP_FLOPS), "lut_ram": 1}
        outs |= {f"ram_{n}": 36 for n in range(len(RAMS))}
        super().__init__(
            config,
            {name: wiring.In(width) for name, width in ins.items()}
            | {name: wiring.Out(width) for name, width in outs.items()},
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.d.sync += self.p.eq(self.x)
        return m


def text(name: str) -> str:
    """Verilog of the module ``name``, and of the cells."""
    init = "".join(f"{word:018b}" for word in reversed(INITIAL))
    lines = [
        f"module {name}(input clk, rst, input [17:0] x, y, input [1:0] signs,",
        "  input d, ce, lsr, gsr_n, input [13:0] ad_a, ad_b, input [17:0] di_a, di_b,",
        "  input we_a, we_b, ce_a, ce_b, input [3:0] wa, ra, output [35:0] p, output [8:0] sum,",
        f"  output [{len(FLIP_FLOPS) - 1}:0] q, output lut_ram,",
        ", ".join(f"output [35:0] ram_{n}" for n in range(len(RAMS))) + ");",
        "  ecp5_multiplier m(.a(x), .b(y), .signed_a(signs[0]), .signed_b(signs[1]), .p(p));",
        "  wire [8:0] carry;",
        "  assign carry[0] = d, sum[8] = carry[8];",
        "  ecp5_lut_ram r(.init(16'h1234), .clk(clk), .we(we_a), .d(d), .wa(wa), .ra(ra),",
        "    .q(lut_ram));",
    ]
    lines += [
        f"  ecp5_carry c{n}(.init(16'h{CARRY:04x}), .a(x[{n}]), .b(y[{n}]), .c(1'b0), .d(1'b1), "
        f".cin(carry[{n}]), .s(sum[{n}]), .cout(carry[{n + 1}]));"
        for n in range(8)
    ]
    for n, (is_set, is_async) in enumerate(FLIP_FLOPS):
        lines.append(
            f"  ecp5_ff #({is_set}, {is_async}) f{n}(.clk(clk), .ce(ce), .lsr(lsr), "
            f".gsr_n(gsr_n), .d(d), .q(q[{n}]));"
        )
    for n, (width_a, width_b, mode) in enumerate(RAMS):
        writes = "1'b0" if 36 in (width_a, width_b) else "we_b"
        lines.append(
            f"  ecp5_block_ram #({width_a}, {width_b}, {mode}, {mode}) b{n}(.init(18432'b{init}), "
            f".clk_a(clk), .ce_a(ce_a), .we_a(we_a), .ad_a(ad_a), .di_a(di_a), .clk_b(clk), "
            f".ce_b(ce_b), .we_b({writes}), .ad_b(ad_b), .di_b(di_b), .do_a(ram_{n}[17:0]), "
            f".do_b(ram_{n}[35:18]));"
        )
    return "\n".join([CELLS.read_text(), *lines, "endmodule", ""])
