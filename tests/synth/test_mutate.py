"""tb.mutate: faults are shared out, selected and named as the report says."""

import re

import pytest

from hdl.registry import all_blocks
from tb import mutate


def test_every_block_has_tests_to_judge_it():
    for name in all_blocks():
        assert mutate.test_file(name).exists()


def test_faults_are_shared_by_weight_within_limits():
    assert mutate._shares({"top": 3.0, "child": 1.0}, {"top": 99, "child": 99}, 8) == {
        "top": 6,
        "child": 2,
    }
    assert mutate._shares({"top": 3.0, "child": 1.0}, {"top": 2, "child": 99}, 8)["child"] == 6
    assert mutate._shares({"top": 1.0}, {"top": 3}, 8) == {"top": 3}
    counts = mutate.allocate(["a", "b"], 9, {"a": 1, "b": 2})
    assert counts == {"a": 3, "b": 6}


def test_the_added_port_becomes_a_register_set_by_a_plusarg():
    verilog = (
        "module dut(clk, i, o, mutant_select);\n"
        "  input [2:0] mutant_select;\n"
        "  wire [2:0] mutant_select;\n"
        "endmodule\n"
    )
    text = mutate._select_by_plusarg(verilog, 3)
    assert "module dut(clk, i, o);" in text
    assert '$value$plusargs("mutant=%d", mutant_select)' in text
    assert len(re.findall("reg ", text)) == 1
    assert "input" not in text


def test_collected_simulations_are_those_that_must_pass():
    # test_add.py also holds a test of a deliberately wrong word, which is to fail
    recordings = mutate.collect("fp16_add", 1)
    assert recordings
    assert not any("wrong" in recording.test for recording in recordings)
    assert all(recording.module == "tb.fp16.check_operator" for recording in recordings)


@pytest.mark.parametrize("number", [0, 1])
def test_tables_count_every_fault(number):
    fault = mutate.Mutant("b", "t", 1, "m", True, "inv or Y[0]", "w[0]", "assign a|b", "mutate")
    fault.outcome = ("killed", "survived")[number]
    assert mutate.summary([fault]) == [("b", [1, 1 - number, 0, number], [0, 0, 0, 0])]
    tables = mutate.page_tables([fault], 1, 60)
    assert ("`m`" in tables["survivors"]) is bool(number)


def test_a_block_whose_tests_fail_without_a_fault_is_named(monkeypatch, capsys):
    """It failed before: the line of such a block was "0 of 0 killed" and no other said more."""

    def examine(name, count, seed, jobs, report, *, prove):
        raise RuntimeError(f"{name}: test_x fails without a fault: full_rate")

    monkeypatch.setattr(mutate, "examine", examine)
    monkeypatch.setattr(mutate, "REPORT_DIR", mutate.ROOT / "build" / "mutants-of-a-test")
    monkeypatch.setenv("COLUMNS", "200")
    assert mutate.main(["stream_skid", "stream_fork"]) == 1
    printed = capsys.readouterr().out
    assert "0 of 0" not in printed
    assert "stream_skid: NOT EXAMINED" in printed
    assert "not examined: stream_skid, stream_fork" in printed
