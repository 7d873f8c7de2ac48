"""tb.faults.equivalence: unreachable cases are proved equivalent, and visible faults are not.

Shown to fail by these defects:

- The addresses of a memory are not compared.
- A pipeline takes the last words that it looks at for equal.
- Registers start at zero.
- A word is taken for loaded, or for zero, before its first load.
- Graphs of one size are taken for one graph.
- A counterexample of ``local`` is taken for a fault that shows.
"""

import functools
import itertools
import random

import pytest

from synth.yosys import native_abc, run
from tb.faults import equivalence

ABC = native_abc()

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

# ``last`` never is without ``first``. The box may use either after the first cycle.
BOXES = """
(* blackbox *) module box(input clk, input a, input b, output [1:0] y);
endmodule
module top(input clk, input rst, input i, output [1:0] o);
  reg first, last; wire also;
  \\$or #(.A_WIDTH(1), .B_WIDTH(1), .Y_WIDTH(1), .A_SIGNED(0), .B_SIGNED(0))
    pick (.A(first), .B(last), .Y(also));
  box inner (.clk(clk), .a(also & ~rst), .b(last), .y(o));
  always @(posedge clk) begin
    if (rst) begin first <= 0; last <= 0; end
    else begin first <= first | i; last <= first & o[0]; end
  end
endmodule
"""

# The box sees the registers before their reset too.
BOX_IN_RESET = BOXES.replace("also & ~rst", "also")

# Without its reset the register may keep the one that it starts with.
RESET = """
module top(input clk, input rst, input a, output reg o);
  wire n;
  \\$mux #(.WIDTH(1)) pick (.A(o & a), .B(1'b0), .S(rst), .Y(n));
  always @(posedge clk) o <= n;
endmodule
"""

# No word that is loaded has only its upper bit set. The one that it starts with may.
START = """
module top(input clk, input rst, input e, input [1:0] i, output o);
  reg [1:0] w;
  \\$and #(.A_WIDTH(1), .B_WIDTH(1), .Y_WIDTH(1), .A_SIGNED(0), .B_SIGNED(0))
    both (.A(w[1]), .B(~w[0]), .Y(o));
  always @(posedge clk) if (e) w <= {i[1] & i[0], i[0]};
endmodule
"""

# ``last`` never is without ``first``, but only because of what ``last`` loads.
TWO = """
module top(input clk, input rst, input i, input [7:0] x, output o);
  reg first, last; reg [7:0] c;
  \\$or #(.A_WIDTH(1), .B_WIDTH(1), .Y_WIDTH(1), .A_SIGNED(0), .B_SIGNED(0))
    pick (.A(first), .B(last), .Y(o));
  always @(posedge clk) begin
    if (rst) begin first <= 0; last <= 0; end
    else begin first <= first | (i & c == x); last <= first & (i ^ c[0]); end
    c <= c + x;
  end
endmodule
"""


def chain(registers: int, enable: str = "") -> str:
    """Registers in a row, each with an input; all load at ``enable``."""
    loads = "".join(f"r[{n}] <= r[{n - 1}] ^ c[{n}]; " for n in range(1, registers))
    return f"""
module top(input clk, input e, input a, input b, input [{registers}:0] c, output o);
  reg [{registers - 1}:0] r; wire y; assign o = r[{registers - 1}];
  \\$and #(.A_WIDTH(1), .B_WIDTH(1), .Y_WIDTH(1), .A_SIGNED(0), .B_SIGNED(0))
    both (.A(a), .B(b), .Y(y));
  always @(posedge clk) {enable} begin r[0] <= y; {loads} end
endmodule
"""


STUCK = "-mode const0 -module top -cell both -port Y -portbit 0"
INVERTED = "-mode inv -module top -cell both -port Y -portbit 0"


def verdict(tmp_path, verilog: str, fault: str) -> str:
    (tmp_path / "design.v").write_text(verilog)
    run(
        "read_verilog -icells design.v\nhierarchy -check -top top\nproc\nflatten\n"
        "opt -nodffe -nosdff\nmemory -nomap\nopt_clean\nwrite_rtlil base.il\n",
        tmp_path,
    )
    setting = equivalence.Setting(tmp_path, "top", ABC, 10, boxes="blackbox" in verilog)
    return equivalence.judge(setting, f"mutate {fault}", "equal")


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
        (BOX_IN_RESET, "-mode const0 -module top -cell pick -port B -portbit 0", "undecided"),
        (MEMORY, "-mode inv -module top -cell pick -port A -portbit 0", "differs"),
        (RESET, "-mode const0 -module top -cell pick -port S -portbit 0", "differs"),
        (RESET, "-mode const1 -module top -cell pick -port S -portbit 0", "equivalent"),
        (START, STUCK, "differs"),
        (START.replace("(e)", "(e | rst)"), STUCK, "equivalent"),
        (TWO, "-mode const0 -module top -cell pick -port B -portbit 0", "equivalent"),
        (chain(3, "if (e)"), INVERTED, "differs"),
        (chain(6, "if (e)"), INVERTED, "differs"),
        (chain(equivalence.CYCLES + 3), INVERTED, "differs"),
    ],
)
def test_judge(tmp_path, verilog, fault, expected):
    assert verdict(tmp_path, verilog, fault) == expected


@pytest.mark.skipif(ABC is None, reason="the native Yosys is not installed")
def test_a_graph_that_is_too_large_is_undecided(tmp_path, monkeypatch):
    """``local`` finds a counterexample of what ``sequential`` would prove."""
    monkeypatch.setattr(equivalence, "LARGEST", 40)
    fault = "-mode const0 -module top -cell pick -port B -portbit 0"
    assert verdict(tmp_path, TWO, fault) == "undecided"


@pytest.mark.skipif(ABC is None, reason="the native Yosys is not installed")
def test_graphs_of_one_size_are_both_judged(tmp_path, monkeypatch):
    def graph(is_high: bool):
        aig = equivalence.Aig()
        a, b = aig.free(), aig.free()
        one, two = aig.both(a, b), aig.both(a, b ^ 1)
        return aig, aig.both(one, b) if is_high else aig.both(one, two)

    graphs = {"local": graph(True), "sequential": graph(False)}
    assert len({len(aig.kinds) for aig, _ in graphs.values()}) == 1
    monkeypatch.setattr(
        equivalence, "proofs",
        lambda netlist, is_cut: ((name, 1, lambda e=each: e) for name, each in graphs.items()),
    )  # fmt: skip
    said: list[str] = []
    setting = equivalence.Setting(tmp_path, "top", ABC, 5)
    found = equivalence.settle(None, setting, "x", is_cut=False, say=said.append)
    assert (found, len(said)) == ("equivalent", 2)


REGISTERS, DESIGNS = 5, 12


def random_netlist(rng: random.Random, *, is_reset: bool) -> equivalence.Netlist:
    """A few gates and registers, most of them in a row, and a fault at one gate."""
    cells, bits = {}, itertools.count(100)
    inputs = {"rst": 2, "e": 3, "a": 4, "b": 5, equivalence.SELECT: 6}

    def cell(kind: str, **pins: int) -> int:
        output = "Q" if "D" in pins else "Y"
        out = pins.pop(output, None) or next(bits)
        pins[output] = out
        cells[f"c{len(cells)}"] = {
            "type": kind, "connections": {name: [bit] for name, bit in pins.items()}
        }  # fmt: skip
        return out

    def both(a: int, b: int) -> int:
        return cell("$_AND_", A=a, B=b)

    def negated(a: int) -> int:
        return cell("$_NOT_", A=a)

    states = list(range(10, 10 + REGISTERS))
    enable = both(3, rng.choice((3, 4, states[-1])))
    if is_reset:
        enable = negated(both(negated(enable), negated(2)))
    fault_at = rng.randrange(REGISTERS)
    for n, q in enumerate(states):
        words = [states[n - 1] if n else 4, rng.choice((3, 4, 5)), rng.choice(states)]
        rng.shuffle(words)
        words = [negated(bit) if rng.random() < 0.4 else bit for bit in words]
        d = both(words[0], words[1])
        d = negated(both(negated(d), negated(words[2]))) if rng.random() < 0.5 else d
        if n == fault_at:
            # Stuck at 0 or inverted, always or where a register or input is high.
            where = both(6, rng.choice((6, *words, *states, 4)))
            if rng.random() < 0.6:
                d = both(d, negated(where))
            else:
                d = negated(
                    both(negated(both(d, negated(where))), negated(both(negated(d), where)))
                )
        if is_reset and rng.random() < 0.8:
            d = both(d, negated(2))
        if rng.random() < 0.6:
            cell("$_DFFE_PP_", D=d, E=enable, Q=q)
        else:
            cell("$_DFF_P_", D=d, Q=q)
    valid, payload = states[-1], both(states[-2], rng.choice(states))
    ports = {name: {"direction": "input", "bits": [bit]} for name, bit in inputs.items()
             if is_reset or name != "rst"}  # fmt: skip
    outputs = {"o__valid": valid, "o__payload": payload}
    if rng.random() < 0.3:
        outputs = {"o": both(valid, payload)}
    ports |= {name: {"direction": "output", "bits": [bit]} for name, bit in outputs.items()}
    return equivalence.Netlist({"cells": cells, "ports": ports})


def shows(netlist: equivalence.Netlist) -> bool:
    """Every pair of states that equal ones lead to is visited, and every input applied."""

    @functools.cache
    def step(state: tuple[int, ...], inputs: tuple[int, ...], fault: int):
        values = {**dict(zip((2, 3, 4, 5), inputs, strict=True)), netlist.select: fault}
        values.update(zip(netlist.registers, state, strict=True))

        def value(bit: int) -> int:
            if bit not in values:
                a, *other = netlist.gates[bit]
                values[bit] = 1 - value(a) if other == [None] else value(a) & value(other[0])
            return values[bit]

        after = tuple(
            value(each.d) if each.enable is None or value(each.enable) else old
            for each, old in zip(netlist.registers.values(), state, strict=True)
        )
        shown = {name: value(bit) for (name, _), bit in netlist.outputs.items()}
        if not shown.get("o__valid", 1):
            shown["o__payload"] = 0
        return after, shown

    words = list(itertools.product((0, 1), repeat=4))
    starts = list(itertools.product((0, 1), repeat=REGISTERS))
    edge = {(state, state) for state in starts}
    if netlist.reset is not None:
        edge = {tuple(step(state, each, fault)[0] for fault in (0, 1))
                for state in starts for each in words if each[0]}  # fmt: skip
    seen = set(edge)
    while edge:
        later = set()
        for one, two in edge:
            for each in words:
                (one_after, shown), (two_after, other) = step(one, each, 0), step(two, each, 1)
                if shown != other:
                    return True
                later.add((one_after, two_after))
        edge = later - seen
        seen |= edge
    return False


@pytest.mark.skipif(ABC is None, reason="the native Yosys is not installed")
@pytest.mark.parametrize("is_reset", [False, True])
def test_every_proof_is_true_of_small_designs(tmp_path, monkeypatch, seed, is_reset):
    """``sequential`` finds the truth. No other proof succeeds for a fault that shows."""
    monkeypatch.setattr(equivalence, "LEVELS", 4)
    monkeypatch.setattr(equivalence, "CYCLES", 2)
    rng = random.Random(f"{seed} {is_reset}")
    for _ in range(DESIGNS):
        netlist = random_netlist(rng, is_reset=is_reset)
        is_seen = shows(netlist)
        graphs = {}
        for name, _share, build in equivalence.proofs(netlist, is_cut=True):
            aig, wrong = build()
            graphs[aig.encode(wrong)] = name
        for graph, name in graphs.items():
            if name == "sequential" or is_seen:
                found = equivalence._prove(ABC, graph, tmp_path / "x.aig", 5)
                assert (found != "equivalent") == is_seen, name
                assert name != "sequential" or (found == "differs") == is_seen


def test_a_graph_folds_constants_and_shares_nodes():
    aig = equivalence.Aig()
    a, b = aig.free(), aig.free()
    assert aig.both(a, a ^ 1) == 0
    assert aig.both(a, 1) == aig.both(a, a) == a
    assert aig.both(a, b) == aig.both(b, a)
    assert aig.differ(a, a) == 0
    assert aig.differ(a, a ^ 1) == 1
