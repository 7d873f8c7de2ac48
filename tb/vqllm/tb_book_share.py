"""Runs inside the simulator, started by test_book_share.py: readers of bursts, and a memory.

``params["phases"]``: bursts of each reader, and what the manager has to request for them.
"""

import cocotb
import numpy as np

from golden.axi.format import BURST_INCR, CACHE_NORMAL, RESP_OKAY, RESP_SLVERR
from golden.words import layout_word
from tb.axi.support.memory import Ram
from tb.bench import Bench, config, params

PHASES, READERS = params["phases"], range(config.readers)
ASKS, WORDS = ([f"reader_{k}__{name}" for k in READERS] for name in ("ar", "r"))
WORD_BYTES = config.data_bits // 8


class Host:
    def __init__(self, dut, latency: int = 3):
        self.bench = Bench(dut, sources=(*ASKS, "axi__r"), sinks=(*WORDS, "axi__ar"))
        self.ram = Ram(dut, "axi", config.axi_signature, latency, self.response)
        self.task = None

    @staticmethod
    def response(address: int) -> int:
        return RESP_SLVERR if address // WORD_BYTES % 7 == 3 else RESP_OKAY

    async def start(self):
        if self.task:
            self.task.cancel()
        self.ram.clear()
        await self.bench.reset()
        self.task = cocotb.start_soon(self.ram.run())
        return self

    def _asked(self, bursts) -> list[int]:
        return [
            layout_word(
                self.ram.shapes["ar"], addr=address, len=beats - 1, burst=BURST_INCR,
                size=(WORD_BYTES - 1).bit_length(), cache=CACHE_NORMAL,
            )
            for address, beats in bursts
        ]  # fmt: skip

    def _words(self, bursts) -> list[int]:
        return [
            layout_word(
                self.ram.shapes["r"], resp=self.response(where), last=int(n == beats - 1),
                data=int.from_bytes(self.ram.peek(where, WORD_BYTES), "little"),
            )
            for address, beats in bursts
            for n in range(beats)
            for where in [address + n * WORD_BYTES]
        ]  # fmt: skip

    async def run(self, phase, **flow):
        self.bench.dut.clear.value = phase.get("clear", 0)
        self.ram.beats.clear()
        self.ram.requests.clear()
        words = [self._words(bursts) for bursts in phase["lists"]]
        found = await self.bench.run(
            {
                **{ASKS[k]: self._asked(bursts) for k, bursts in enumerate(phase["lists"])},
                "axi__r": self.ram.beats,
            },
            {**{WORDS[k]: len(words[k]) for k in READERS}, "axi__ar": None},
            **flow,
        )
        if flow.get("stop_at") is None:
            for k in READERS:
                found.check(WORDS[k], words[k])
            asked = sum(map(len, phase["lists"]))
            assert max(map(len, phase["lists"])) <= len(self.ram.requests) <= asked
        return found


@cocotb.test()
@cocotb.parametrize(
    (
        ("p_idle", "p_stall", "latency"),
        [(0.0, 0.0, 1), (0.5, 0.0, 9), (0.1, 0.7, 2), (0.9, 0.3, 30)],
    )
)
async def random_flow(dut, p_idle, p_stall, latency):
    """Readers are idle, and the manager's requests wait; readers take each word at once."""
    host = await Host(dut, latency).start()
    idle = {**dict.fromkeys(ASKS, p_idle), "axi__r": p_idle / 2}
    stall = {**dict.fromkeys(WORDS, 0.0), "axi__ar": p_stall}
    for phase in PHASES:
        await host.run(phase, p_idle=idle, p_stall=stall)


@cocotb.test()
async def common_bursts(dut):
    """The number and the cycles of requests are as expected, without idle cycles."""
    for phase in PHASES:
        host = await Host(dut).start()
        found = await host.run(phase)
        if phase["requests"] is not None:
            assert len(host.ram.requests) == phase["requests"], host.ram.requests
        if phase["steps"] is not None and config.bursts > phase["requests"]:
            assert np.diff([0, *found.cycles["axi__ar"]]).tolist() == phase["steps"]


@cocotb.test()
async def reset_in_mid_burst(dut):
    host = await Host(dut).start()
    rng = host.bench.rng("cuts")
    for _ in range(10):
        await host.run(PHASES[0], p_idle=0.2, stop_at=rng.randrange(1, 60))
        await host.start()
    for phase in PHASES[:3]:
        await host.run(phase)
