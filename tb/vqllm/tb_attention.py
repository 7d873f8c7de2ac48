"""Runs inside the simulator, started by test_attention.py: requests, and their memory.

``params``: "scripts", each with "memory", "faults" and "phases" (tb.vqllm.support.attention);
"fill" and "heads", the bound of each request of the last script.
"""

import cocotb

from golden.axi.format import RESP_OKAY
from tb.axi.support.memory import Ram
from tb.bench import Bench, config, params
from tb.contract import block_timing

SOURCES = ("book", "request", "q", "axi__r")
SINKS = ("o", "status", "axi__ar")
SCRIPT, TRAIN = params["scripts"][0], params["scripts"][-1]
FEW = {**SCRIPT["phases"][0], "requests": SCRIPT["phases"][0]["requests"][:6]}


class Host:
    """Block, memory and bench together."""

    def __init__(self, dut, script, latency: int = 5):
        self.dut, self.script = dut, script
        self.bench = Bench(dut, sources=SOURCES, sinks=SINKS)
        self.ram = Ram(dut, "axi", config.port.read_signature, latency, self._response)
        self.task = None

    def _response(self, address: int) -> int:
        found = (resp for low, high, resp in self.script["faults"] if low <= address < high)
        return max(found, default=RESP_OKAY)

    async def start(self):
        for at, content in self.script["memory"]:
            self.ram.poke(at, bytes.fromhex(content))
        await self.restart()
        return self

    async def restart(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self.ram.clear()
        await self.bench.reset(1)
        self.task = cocotb.start_soon(self.ram.run())

    async def phase(self, phase, **flow):
        """Books, then requests; every output and every status is golden's."""
        await self.bench.run({"book": phase["books"]}, {})
        requests = phase["requests"]
        self.ram.beats.clear()
        found = await self.bench.run(
            {
                "request": [each["request"] for each in requests],
                "q": [word for each in requests for word in each["q"]],
                "axi__r": self.ram.beats,
            },
            {
                "o": sum(len(each["o"]) for each in requests),
                "status": len(requests),
                "axi__ar": None,
            },
            **flow,
        )
        if flow.get("stop_at") is None:
            found.check("o", [word for each in requests for word in each["o"]])
            found.check("status", [each["status"] for each in requests])
        return found


@cocotb.test()
@cocotb.parametrize(
    (
        ("p_idle", "p_stall", "latency"),
        [(0.0, 0.0, 1), (0.4, 0.4, 9), (0.0, 0.8, 3), (0.8, 0.0, 30)],
    )
)
async def random_flow(dut, p_idle, p_stall, latency):
    host = await Host(dut, SCRIPT, latency).start()
    for phase in SCRIPT["phases"]:
        await host.phase(phase, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def uneven_flow(dut):
    """Each stream in turn is slow."""
    for slow in ("request", "q", "axi__r", *SINKS):
        host = await Host(dut, SCRIPT).start()
        idle = {name: 0.9 * (name == slow) for name in SOURCES}
        stall = {name: 0.9 * (name == slow) for name in SINKS}
        await host.phase(FEW, p_idle=idle, p_stall=stall)


@cocotb.test()
async def late_ready(dut):
    host = await Host(dut, SCRIPT).start()
    await host.phase(SCRIPT["phases"][0], p_stall=0.3, late_ready=True)


@cocotb.test()
async def reset_in_mid_request(dut):
    host = await Host(dut, SCRIPT).start()
    rng = host.bench.rng("cuts")
    for _ in range(6):
        await host.phase(SCRIPT["phases"][0], p_stall=0.3, stop_at=rng.randrange(3, 900))
        await host.restart()
    await host.phase(SCRIPT["phases"][0])


@cocotb.test()
async def full_rate(dut):
    """A train of heads takes 1.05 x its bound and the fill; a status follows the last output."""
    host = await Host(dut, TRAIN, params["latency"]).start()
    (phase,) = TRAIN["phases"]
    found = await host.phase(phase)
    spent = found.cycles["o"][-1] - found.cycles["request"][0]
    limit = 1.05 * sum(params["heads"]) + params["fill"]
    assert spent <= limit, (spent, params["heads"], params["fill"])
    ends, o = [], 0
    for each in phase["requests"]:
        o += len(each["o"])
        ends.append(found.cycles["o"][o - 1])
    for status, end in zip(found.cycles["status"], ends, strict=True):
        assert status - end == block_timing().latency
