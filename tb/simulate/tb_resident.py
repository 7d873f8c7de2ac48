"""Runs inside the simulator, started by test_run.py: what a job of a resident simulator sees."""

import os
from pathlib import Path

import cocotb

from tb.bench import Bench, params, vectors


@cocotb.test()
async def sees_its_own_job(dut):
    bench = await Bench.started(dut)
    Path(os.environ["TB_DIR"], "seen").write_text(
        f"{os.getpid()} {params['job']} {vectors['of'][0]} {bench.rng('x').random()}"
    )
    assert params["passes"], f"job {params['job']} is to fail"
