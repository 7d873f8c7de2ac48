"""Runs inside the simulator, started by test_table_gemv.py: matrices one after another."""

import itertools

import cocotb

from golden.index.format import CodebookFault
from tb.bench import params
from tb.contract import Contract, block_timing

MATRICES = params["matrices"]
STREAMS = tuple(MATRICES[0]["words"])
WORDS = {name: [word for each in MATRICES for word in each["words"][name]] for name in STREAMS}
ENDS = {
    name: list(itertools.accumulate(len(each["words"][name]) for each in MATRICES))
    for name in STREAMS
}
MASKS = {"y": WORDS.pop("mask")}
ENDS.pop("mask")
CAUSES = [
    end - len(each["words"]["code"]) + cause
    for each, end in zip(MATRICES, ENDS["code"], strict=True)
    for cause in each["causes"]
]


class Matrices(Contract):
    """A matrix takes the cycles that golden's timing says, and each result its latency."""

    def check_timing(self, flow, packets=None) -> None:
        latency, taken = block_timing().latency, flow.cycles["code"]
        for n, cycle in enumerate(flow.cycles["y"]):
            assert cycle - taken[CAUSES[n]] == latency, f"y {n}"
        found = flow.cycles["y"][ENDS["y"][0] - 1]
        assert found + 1 == MATRICES[0]["cycles"], (found, MATRICES[0]["cycles"])


contract = Matrices(WORDS, packets=ENDS, some=3, cuts=[*range(1, 8), 60, 131, 280], masks=MASKS)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def cycles_of_each_matrix(dut):
    bench = contract.bench(dut)
    for number, matrix in enumerate(MATRICES):
        await contract.restart(bench)
        words = dict(matrix["words"])
        masks = words.pop("mask")
        offers = {name: words[name] for name in words if name != "y"}
        found = await bench.run(offers, {"y": len(words["y"])})
        found.check("y", words["y"], masks=masks)
        spent = found.cycles["y"][-1] + 1
        assert spent == matrix["cycles"], (number, spent, matrix["cycles"])


@cocotb.test()
async def loads_with_faults(dut):
    """Each is reported, and the job waits for the sound one after them."""
    bench = contract.bench(dut)
    await contract.restart(bench)
    words = dict(MATRICES[0]["words"])
    masks, info, load = words.pop("mask"), words["load_info"], words["load"]
    first = len(load) // len(info)
    wrong = [
        (load[: first - 1], 0, CodebookFault.SHAPE),
        (load[:first], 0x7C00, CodebookFault.NONFINITE),
        (load[:first], 0x3C01, CodebookFault.MAGNITUDE),
    ]
    last = 1 << int(dut.load__payload.value.range.left)
    for entries, word, fault in wrong:
        bad = [(each & ~(last | 0xFFFF)) | (word or each & 0xFFFF) for each in entries]
        bad[-1] |= last
        await bench.run({"load_info": info[:1], "load": bad}, {})
        assert int(dut.load_fault.value) == fault
        assert not dut.loaded.value
    offers = {name: words[name] for name in words if name != "y"}
    found = await bench.run(offers, {"y": len(words["y"])})
    found.check("y", words["y"], masks=masks)
    assert int(dut.load_fault.value) == 0
