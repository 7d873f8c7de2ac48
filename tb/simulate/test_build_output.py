"""The files of ``python -m hdl.build`` in a user's own flow: cocotb-test, Verilator, no helper.

Shown to fail: with the sum's sign inverted in cocotb_build_output.py.
"""

import hashlib
import os
import sys

import pytest
from cocotb_test.simulator import run

from hdl.build import main
from tb.simulate.run import ROOT, SIM_DIR, tool_environment


def test_fp16_add_as_a_user_takes_it(tmp_path, seed, monkeypatch):
    assert main(["fp16_add", "stages=1", "-o", str(tmp_path)]) == 0
    for name, value in tool_environment().items():
        monkeypatch.setenv(name, value)
    # A run this short is not worth the time of an optimizing compiler.
    monkeypatch.setenv("MAKEFLAGS", tool_environment()["MAKEFLAGS"].replace("-O2", "-O0"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    # Its makefile names files of this environment: another environment builds aside.
    environment = hashlib.sha256(sys.prefix.encode()).hexdigest()[:8]
    try:
        run(
            simulator="verilator",
            verilog_sources=[str(tmp_path / "fp16_add.v")],
            toplevel="fp16_add",
            module="tb.simulate.cocotb_build_output",
            sim_build=str(SIM_DIR / f"build_output_{environment}"),
            compile_args=["-Wno-WIDTH"],
            seed=seed,
        )
    except SystemExit as failure:
        pytest.fail(f"cocotb-test: exit {failure.code}")
