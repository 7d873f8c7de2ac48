"""Runs inside the simulator: OakenKvEngine under AXI's names, on cocotbext-axi's RAM.

Started by test_kv_engine_axi.py and senbazuru.runs.real. ``params``: "phases" as
golden.oaken.vectors.kv_script
makes them, "base", and "p_pauses". Writes kv.json: cycles, bytes over the bus, words compared.
"""

import json
import time
from pathlib import Path

import cocotb
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge, with_timeout
from cocotb.utils import get_sim_time
from cocotbext.axi import AxiBus, AxiRam

from golden.paging.format import Op
from tb.axi.support.buses import pauses, reset, sink, source, start_clock
from tb.bench import config, params
from tb.oaken.support.kv_host import Expected

PERIOD = 10  # ns


async def count_beats(dut, counts: dict[str, int]) -> None:
    """Transfers on R and W."""
    channels = {name: (dut[f"m_axi_{name}valid"], dut[f"m_axi_{name}ready"]) for name in ("r", "w")}
    while True:
        await RisingEdge(dut.aclk)
        await ReadOnly()
        for name, (valid, ready) in channels.items():
            counts[name] += bool(valid.value) and bool(ready.value)


@cocotb.test()
@cocotb.parametrize(p_pause=params["p_pauses"])
async def script(dut, p_pause):
    start_clock(dut)
    base, cache = params["base"], config.cache
    dut.base.value = base
    size = 1 << (base + cache.pages * cache.page_bytes - 1).bit_length()
    ram = AxiRam(
        AxiBus.from_prefix(dut, "m_axi"), dut.aclk, dut.aresetn, reset_active_level=False, size=size
    )
    requests = source(dut, "request", p_pause)
    kv = source(dut, "kv", p_pause)
    o, statuses = sink(dut, "o", p_pause), sink(dut, "status", p_pause)
    if p_pause:
        for half, channels in ((ram.read_if, ("ar", "r")), (ram.write_if, ("aw", "w", "b"))):
            for name in channels:
                getattr(half, f"{name}_channel").set_pause_generator(pauses(name, p_pause))
    await reset(dut)
    counts = {"r": 0, "w": 0}
    cocotb.start_soon(count_beats(dut, counts))

    started, compared = time.perf_counter(), 0
    cycles: dict[str, float] = {}
    last_field = config.o_layout["last"].offset
    for phase in params["phases"]:
        expected = Expected(config, [phase])
        begun = get_sim_time("ns")
        for request in phase["requests"]:
            await requests.send([request["payload"]])
            if request["op"] == Op.APPEND:
                await kv.send([beat & ~(1 << config.kv_layout["last"].offset)
                               for beat in request["kv"]])  # fmt: skip
        work = sum(len(each["o"]) + len(each["kv"]) + 400 for each in phase["requests"])
        limit = PERIOD * (20_000 + 40 * cache.streams + int(20 * work / (1 - p_pause) ** 2))
        for _ in phase["requests"]:
            frame = await with_timeout(statuses.recv(), limit, "ns")
            for word in frame.tdata:
                expected.statuses.take(word)
        cycles[phase.get("name", "all")] = (
            cycles.get(phase.get("name", "all"), 0) + (get_sim_time("ns") - begun) / PERIOD
        )
        while not o.empty():
            words = o.recv_nowait().tdata
            for n, word in enumerate(words):
                expected.take_o(word | (n == len(words) - 1) << last_field)
            compared += len(words) * config.lanes
        assert expected.is_empty
    await ClockCycles(dut.aclk, 60)
    assert o.empty()
    assert o.idle()
    assert statuses.empty()
    assert not dut.m_axi_arvalid.value
    assert not dut.m_axi_awvalid.value
    assert not dut.m_axi_wvalid.value
    assert dut.idle.value == 1
    assert int(dut.free_pages.value) == params["phases"][-1]["free_pages"]
    result = {
        "cycles": cycles,
        "bytes_r": counts["r"] * config.mmu.word_bytes,
        "bytes_w": counts["w"] * config.mmu.word_bytes,
        "words": compared,
        "simulated": get_sim_time("ns") / PERIOD,
        "seconds": time.perf_counter() - started,
    }
    Path("kv.json").write_text(json.dumps(result))
