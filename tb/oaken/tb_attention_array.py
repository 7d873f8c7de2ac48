"""Runs inside the simulator, started by test_attention_array.py: several engines and memories.

``params``: as tb_attention's. Each engine has a memory of its own, with a latency of its own.
"""

import functools
import itertools
import json
from pathlib import Path

import cocotb

from golden.oaken.format import record_bytes
from golden.oaken.timing import kv_token_append_cycles
from golden.paging.format import Op
from tb.bench import config, params
from tb.oaken.support.attention_host import Attends, Host, Rate

SCRIPTS = params["scripts"]
BUSES = tuple(f"axi_{n}" for n in range(config.engines))
make = functools.partial(Host, mmu=config.part.engine.mmu, buses=BUSES)


async def started(dut, name: str, latencies) -> Host:
    given = list(itertools.islice(itertools.cycle(latencies), len(BUSES)))
    return await make(dut, name, latencies=given).start()


def stalls(host: Host, p: float, slow: int | None = None) -> dict[str, dict[str, float]]:
    """Chances of each stream; those of the bus of engine ``slow`` nearly always wait."""
    names = {"p_idle": host.bench.sources, "p_stall": host.bench.sinks}
    bus = None if slow is None else BUSES[slow]
    return {
        key: {name: 0.95 if name.partition("__")[0] == bus else p for name in streams}
        for key, streams in names.items()
    }


contract = Attends(params["before"], params["runs"], make)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
@cocotb.parametrize(latencies=[(1, 1), (1, 60), (60, 1)], p=[0.0, 0.4])
async def random_script(dut, latencies, p):
    """Runs of attends during APPENDs, TRIMs and FREEs, on memories of different latency."""
    host = await started(dut, f"random_script {p}", latencies)
    await host.script(SCRIPTS["random"], **stalls(host, p))


@cocotb.test()
@cocotb.parametrize(slow=list(range(len(BUSES))), name=["long", "beside"])
async def one_is_slow(dut, slow, name):
    """One memory hardly answers, in long runs of attends: nothing waits for ever."""
    host = await started(dut, f"{name} {slow}", [1])
    await host.script(SCRIPTS[name], **stalls(host, 0.0, slow))


@cocotb.test()
@cocotb.parametrize(name=[*params["directed"]], p=[0.0, 0.4])
async def directed(dut, name, p):
    """Errors and refusals of one engine; changes between two READs; the ends of lengths."""
    host = await started(dut, f"{name} {p}", (5, 9))
    await host.script(SCRIPTS[name], **stalls(host, p))


@cocotb.test()
async def one_order(dut):
    """A request that is no APPEND is alone; statuses come in the order of the requests."""
    host = await started(dut, "one_order", (1, 40))
    for phase in SCRIPTS["order"]:
        flow = await host.phase(phase)
        assert flow.words["status"] == [request["status"] for request in phase["requests"]]


def check_train(cycles, phase, latency: int) -> None:
    """The statuses of APPENDs follow each other at the pace of the pages."""
    if not all(request["op"] == Op.APPEND for request in phase["requests"]):
        return
    kv, mmu = config.cache.kv, config.part.engine.mmu
    # A record begins anywhere in a word.
    words = -(-8 * record_bytes(kv.part_blocks, kv.block, 0) // mmu.data_bits) + 1
    most = kv_token_append_cycles([words] * kv.slots, latency)
    apart = [after - before for before, after in itertools.pairwise(cycles)]
    assert all(each <= most for each in apart), (apart, most)


@cocotb.test(skip="rates" not in SCRIPTS)
async def rates(dut):
    """Cycles from an attend to the end of its run, those of the block's timing, and of APPENDs."""
    measured = []
    for latency in params["latencies"]:
        host = await started(dut, "rates", [latency])
        for phase in SCRIPTS["rates"]:
            flow = await host.phase(phase)
            if "rates" not in phase:
                if params["kept_up"]:  # else an MMU of one APPEND and one burst is a cycle slower
                    check_train(flow.cycles["status"], phase, latency)
                continue
            rate = Rate.of(config.part, phase, flow, latency)
            measured.append(rate.measured)
            if latency in params["kept_up"] and rate.is_exact:
                assert rate.whole == rate.due, rate
        host.stop()
    Path("rates.json").write_text(json.dumps(measured))
