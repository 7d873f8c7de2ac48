"""Runs inside the simulator, started by test_build_output.py: sums that anyone can check."""

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

SUMS = (
    (0x3C00, 0x3C00, 0x4000),  # 1 + 1 = 2
    (0x3C00, 0xBC00, 0x0000),  # 1 - 1 = +0
    (0x7BFF, 0x7BFF, 0x7C00),  # overflow
    (0x0001, 0x0001, 0x0002),  # subnormals
    (0x7C00, 0xFC00, 0x7E00),  # infinities of both signs: the canonical NaN
)


@cocotb.test()
async def adds(dut):
    Clock(dut.clk, 10, "ns").start(start_high=False)
    dut.rst.value, dut.i__valid.value, dut.o__ready.value = 1, 0, 1
    await FallingEdge(dut.clk)
    await FallingEdge(dut.clk)
    dut.rst.value, dut.i__valid.value = 0, 1
    for a, b, y in SUMS:
        dut.i__payload.value = b << 16 | a
        await FallingEdge(dut.clk)
        assert dut.o__valid.value
        assert int(dut.o__payload.value) == y
