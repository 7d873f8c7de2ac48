"""tb.faults.toggles: bits without both edges, of the block's modules, in all tests of a design."""

import pytest

from tb.faults import toggles
from tb.faults.mutate import Recording

VERILOG = """\
module dut (
  input  wire         clk,
  input  wire [12:0]  row__payload,               // Begins a row.
  output wire         row__ready,
  output reg [3:0]    done,
  output reg          stray                       // Of no row.
);
  reg [127:0] words [0:255];
  reg signal_1;
  reg [3:0] count;
  wire [3:0] sum;
endmodule
"""
WRAPPED = """\
module dut_axi (
  (* X_INTERFACE_PARAMETER = "A:B, C" *) input aclk,
  input [5:0] s_axil_awaddr
);
endmodule
"""


def point(module: str, name: str, number: int) -> str:
    keys = {"f": "dut.v", "l": "7", "t": "toggle", "page": f"v_toggle/{module}", "o": name}
    text = "".join(f"\x01{key}\x02{value}" for key, value in keys.items())
    return f"C '{text}' {number}\n"


def test_edges_are_those_of_the_module_over_its_instances():
    coverage = (
        point("dut", "row___05Fpayload[3]:0->1", 2)
        + point("dut", "row___05Fpayload[3]:0->1", 5)
        + point("dut", "signal_1:1->0", 0)
        + point("other", "signal_1:1->0", 9)
        + "# SystemC::Coverage-3\n"
    )
    assert toggles.edges(coverage, "dut") == {
        ("row__payload", 3, "0->1"): 7,
        ("signal_1", 0, "1->0"): 0,
    }


def test_inputs_and_registers_are_reported_and_wires_are_not():
    """Shown to fail: a bit that rises and never falls; ``output reg`` left out."""
    counted = {("row__payload", 12, "0->1"): 1, ("row__payload", 12, "1->0"): 0}
    counted |= {("row__payload", bit, "0->1"): 0 for bit in (0, 1, 2)}
    counted |= {("signal_1", 0, "0->1"): 3, ("count", 3, "1->0"): 0, ("sum", 1, "1->0"): 0}
    counted |= {("clk", 0, "0->1"): 9, ("done", 2, "0->1"): 0, ("stray", 0, "0->1"): 1}
    assert toggles.never_change(VERILOG, counted) == {
        "row__payload": "12,2:0",
        "done": "2",
        "count": "3",
    }
    del counted["stray", 0, "0->1"]
    with pytest.raises(RuntimeError, match="stray was not counted"):
        toggles.never_change(VERILOG, counted)
    counted = {("aclk", 0, "0->1"): 0, ("s_axil_awaddr", 5, "1->0"): 0}
    assert toggles.never_change(WRAPPED, counted) == {"aclk": "0", "s_axil_awaddr": "5"}


def test_tests_of_one_design_are_one_group():
    class Part:
        def __init__(self, config):
            self.config = config

    recordings = [Recording(f"t{n}", Part(n % 2), "m", {}) for n in range(5)]
    recordings.append(Recording("t5", Part(0), "m", {}, "axi"))
    groups = [[each.test for each in group] for group in toggles.by_design(recordings)]
    assert groups == [["t0", "t2", "t4"], ["t1", "t3"], ["t5"]]


def test_a_run_resumes_and_names_a_block_that_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(toggles, "TOGGLES_DIR", tmp_path)
    monkeypatch.setattr(toggles.tb.simulate.run, "ROOT", tmp_path)
    examined = []

    def examine(name, seed):
        examined.append(name)
        if name == "fp16_mul":
            raise AssertionError("tb.x failed, see y\nmore")
        return {"test_a": {"count": "3"}, "test_b": {}}

    monkeypatch.setattr(toggles, "examine", examine)
    key = iter(["now"] * 3 + ["now", "later"] + ["now"] * 9)
    monkeypatch.setattr(toggles, "sources_key", lambda _: next(key))
    assert toggles.main(["fp16_add", "fp16_mul"]) == 1
    assert toggles.main(["fp16_add"]) == 0
    assert examined == ["fp16_add", "fp16_mul"]
    found = capsys.readouterr()
    file = tmp_path / "now" / "1" / "fp16_add.json"
    file.write_text('{"test_a": 3}')  # damaged
    assert toggles.main(["fp16_add"]) == 0
    assert examined[2:] == ["fp16_add"]
    assert found.err == "fp16_mul: not examined: tb.x failed, see y\n"
    assert "fp16_add test_a: count[3]\nfp16_add test_b: every bit changes\n" in found.out


def test_a_block_that_is_unknown_is_one_line(capsys):
    assert toggles.main(["no_block"]) == 2
    assert capsys.readouterr().err == "tb.faults.toggles: no block is called 'no_block'\n"


@pytest.mark.parametrize("seed", ["-1", "x"])
def test_seeds(seed, capsys):
    with pytest.raises(SystemExit):
        toggles.main(["--seed", seed])
    assert capsys.readouterr().err.count("\n") == 1
