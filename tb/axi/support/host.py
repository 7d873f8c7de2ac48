"""Inside the simulator: a block with one AXI4 port, its memory and its bench."""

import random

import cocotb

from golden.axi.format import RESP_OKAY
from tb.axi.support.memory import Ram
from tb.bench import Bench

__all__ = ["RamHost", "random_base"]


def random_base(rng: random.Random, mmu) -> int:
    """An address of page 0: every page is below ``2**address_bits``."""
    cache = mmu.cache
    step = max(cache.page_bytes, 4096)  # where AXI's bursts end
    room = (1 << mmu.address_bits) - cache.pages * cache.page_bytes
    return rng.randrange(room // step + 1) * step


class RamHost:
    """Block, memory and bench together; the block has the ports ``axi`` and ``base``.

    faults: (first byte address, one beyond the last, response) of words that memory refuses
    """

    def __init__(
        self, dut, sources, sinks, signature, base: int, *, latency: int = 5, salt: str = ""
    ):
        self.dut, self.base = dut, base
        self.bench = Bench(dut, sources=sources, sinks=sinks)
        self.faults: list[tuple[int, int, int]] = []
        self.ram = Ram(dut, "axi", signature, latency, self._response, salt)
        self.running = None

    def _response(self, address: int) -> int:
        found = (response for low, high, response in self.faults if low <= address < high)
        return max(found, default=RESP_OKAY)

    async def start(self):
        self.dut.base.value = self.base
        await self.bench.reset()
        self.running = cocotb.start_soon(self.ram.run())
        return self

    async def stop(self) -> None:
        """Reset of the block and of its bus; bytes in memory stay."""
        self.running.cancel()
        self.ram.clear()
        await self.bench.reset(1)
        self.running = cocotb.start_soon(self.ram.run())
