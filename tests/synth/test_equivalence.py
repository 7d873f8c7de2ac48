"""tb.equivalence: unreachable cases are proved equivalent, and visible faults are not.

Shown to fail: a memory of which the addresses are not compared.
"""

import pytest

from synth.yosys import run
from tb import equivalence, mutate

ABC = mutate._native_abc()

# The second stage inverts a word whose first[4] is set and first[3] is not: there is no such word.
PIPELINE = """
module top(input clk, input i__valid, input [3:0] i__payload, input o__ready, input rst,
           output i__ready, output o__valid, output [3:0] o__payload);
  reg [4:0] first; reg [3:0] second; reg valid_1, valid_2;
  wire take_2 = ~valid_2 | o__ready, take_1 = ~valid_1 | take_2;
  wire [3:0] picked; wire never;
  assign i__ready = take_1, o__valid = valid_2, o__payload = second;
  \\$and #(.A_WIDTH(1), .B_WIDTH(1), .Y_WIDTH(1), .A_SIGNED(0), .B_SIGNED(0))
    both (.A(first[4]), .B(~first[3]), .Y(never));
  \\$mux #(.WIDTH(4)) pick (.A(first[3:0]), .B(~first[3:0]), .S(never), .Y(picked));
  always @(posedge clk) begin
    if (take_1) begin first <= {i__payload[3] & i__payload[2], i__payload}; valid_1 <= i__valid; end
    if (take_2) begin second <= picked; valid_2 <= valid_1; end
    if (rst) begin valid_1 <= 0; valid_2 <= 0; end
  end
endmodule
"""

# While nothing is written the address does not matter.
MEMORY = """
module top(input clk, input write, input [2:0] at, input [3:0] data, output reg [3:0] o);
  reg [3:0] words [0:7];
  wire [2:0] place;
  \\$and #(.A_WIDTH(3), .B_WIDTH(3), .Y_WIDTH(3), .A_SIGNED(0), .B_SIGNED(0))
    pick (.A(at), .B({3{write}}), .Y(place));
  always @(posedge clk) begin
    if (write) words[place] <= data;
    o <= words[at];
  end
endmodule
"""

# ``last`` never is without ``first``. The box may use either at any time.
BOXES = """
(* blackbox *) module box(input clk, input a, input b, output [1:0] y);
endmodule
module top(input clk, input rst, input i, output [1:0] o);
  reg first, last; wire also;
  \\$or #(.A_WIDTH(1), .B_WIDTH(1), .Y_WIDTH(1), .A_SIGNED(0), .B_SIGNED(0))
    pick (.A(first), .B(last), .Y(also));
  box inner (.clk(clk), .a(also), .b(last), .y(o));
  always @(posedge clk) begin
    if (rst) begin first <= 0; last <= 0; end
    else begin first <= first | i; last <= first & o[0]; end
  end
endmodule
"""


def verdict(tmp_path, verilog: str, fault: str) -> str:
    (tmp_path / "design.v").write_text(verilog)
    run(
        "read_verilog -icells design.v\nhierarchy -check -top top\nproc\nflatten\n"
        "opt -nodffe -nosdff\nmemory -nomap\nopt_clean\nwrite_rtlil base.il\n",
        tmp_path,
    )
    return equivalence.judge(
        tmp_path, "top", f"mutate {fault}", "equal", ABC, 10, boxes="blackbox" in verilog
    )


@pytest.mark.skipif(ABC is None, reason="the native Yosys is not installed")
@pytest.mark.parametrize(
    ("verilog", "fault", "expected"),
    [
        (PIPELINE, "-mode const0 -module top -cell pick -port S -portbit 0", "equivalent"),
        (PIPELINE, "-mode inv -module top -cell pick -port B -portbit 2", "equivalent"),
        (PIPELINE, "-mode const1 -module top -cell pick -port S -portbit 0", "differs"),
        (PIPELINE, "-mode const1 -module top -cell both -port B -portbit 0", "differs"),
        (MEMORY, "-mode const1 -module top -cell pick -port B -portbit 0", "equivalent"),
        (BOXES, "-mode const0 -module top -cell pick -port B -portbit 0", "equivalent"),
        (BOXES, "-mode const0 -module top -cell pick -port A -portbit 0", "undecided"),
        (MEMORY, "-mode inv -module top -cell pick -port A -portbit 0", "differs"),
    ],
)
def test_judge(tmp_path, verilog, fault, expected):
    assert verdict(tmp_path, verilog, fault) == expected


def test_a_graph_folds_constants_and_shares_nodes():
    aig = equivalence.Aig()
    a, b = aig.free(), aig.free()
    assert aig.both(a, a ^ 1) == 0
    assert aig.both(a, 1) == aig.both(a, a) == a
    assert aig.both(a, b) == aig.both(b, a)
    assert aig.differ(a, a) == 0
    assert aig.differ(a, a ^ 1) == 1
