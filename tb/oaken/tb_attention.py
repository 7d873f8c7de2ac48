"""Runs inside the simulator, started by test_attention.py: attends, requests, and a memory.

``params``: "scripts", phases by name as golden.oaken.vectors.attention makes them; "before" and
"runs" of the contract. Addresses of the scripts begin at 0, those of the memory at any base. The
memory has each of "latencies" in ``rates``, which writes rates.json. At those of "kept_up" no beat
comes late.
"""

import functools
import json
from pathlib import Path

import cocotb

from tb.bench import config, params
from tb.oaken.support.attention_host import Attends, Host, Rate

SCRIPTS = params["scripts"]
DIRECTED = ("errors", "between", "lengths", "beside", "forks")
make = functools.partial(Host, mmu=config.engine.mmu, buses=("axi",))


async def started(dut, name: str, latency: int = 5) -> Host:
    return await make(dut, f"{name} {latency}", latencies=[latency]).start()


contract = Attends(params["before"], params["runs"], make)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test(skip="random" not in SCRIPTS)
@cocotb.parametrize(
    (
        ("p_idle", "p_stall", "latency"),
        [
            (0.0, 0.0, 1),
            (0.3, 0.3, 9),
            ({"request": 0.5, "kv": 0.0, "attend": 0.9, "q": 0.0, "axi__r": 0.5, "axi__b": 0.0},
             0.0, 20),
            (0.0, {"o": 0.9, "status": 0.5, "attended": 0.5, "axi__ar": 0.0, "axi__aw": 0.8,
                   "axi__w": 0.5}, 40),
        ],
    )
)  # fmt: skip
async def random_script(dut, p_idle, p_stall, latency):
    """Runs of attends during APPENDs, TRIMs and FREEs, right and wrong."""
    host = await started(dut, f"random_script {p_stall}", latency)
    await host.script(SCRIPTS["random"], p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
@cocotb.parametrize(name=[each for each in DIRECTED if each in SCRIPTS], p=[0.0, 0.4])
async def directed(dut, name, p):
    """Every status and result, changes between two READs, the ends of lengths, other requests."""
    host = await started(dut, f"{name} {p}")
    await host.script(SCRIPTS[name], p_idle=p, p_stall=p)


@cocotb.test(skip="races" not in SCRIPTS)
async def races(dut):
    """A TRIM so many cycles after an attend that ends a run: between its K and V, or after both."""
    host = await started(dut, "races")
    found = []
    for phase in SCRIPTS["races"]:
        if "orders" in phase:
            found.append(await host.race(phase, 2 * len(found)))
        else:
            await host.phase(phase)
    assert found == sorted(found), "the later TRIM comes earlier"
    assert {*found} == {0, 1}


@cocotb.test(skip="rates" not in SCRIPTS)
async def rates(dut):
    """Cycles from an attend to the end of its run, at four latencies of memory.

    They are those of the block's timing where memory keeps up, the rows of a stretch cover what
    follows it, and a READ its look-ups. No run is faster.
    """
    measured = []
    for latency in params["latencies"]:
        host = await started(dut, "rates", latency)
        for phase in SCRIPTS["rates"]:
            flow = await host.phase(phase)
            if "rates" not in phase:
                continue
            rate = Rate.of(config, phase, flow, latency)
            measured.append(rate.measured)
            if latency in params["kept_up"] and rate.is_exact:
                assert rate.whole == rate.due, rate
            elif rate.is_covered:
                assert rate.whole >= rate.due, rate
        host.stop()
    Path("rates.json").write_text(json.dumps(measured))
