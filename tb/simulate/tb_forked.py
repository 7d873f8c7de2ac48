"""Runs inside the simulator, started by test_run.py: the simulator ends before its test."""

import os
import signal

import cocotb

from tb.bench import Bench


@cocotb.test()
async def ends_the_simulator(dut):
    await Bench.started(dut)
    os.kill(os.getpid(), signal.SIGSEGV)
