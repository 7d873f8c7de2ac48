"""A block with one AXI4 port inside the simulator, with its memory and its bench."""

import random

import cocotb

from golden.axi.format import RESP_OKAY
from tb.axi.support.memory import Ram
from tb.bench import Bench


def base_of(name: str, config) -> int:
    """An address of page 0, another one for each ``name``, configuration and seed.

    config: of a memory management unit, with ``cache`` and ``address_bits``. Every page is below
    ``2**address_bits``.
    """
    rng = random.Random(f"{cocotb.RANDOM_SEED} base {name} {config}")
    page, pages = config.cache.page_bytes, config.cache.pages
    return rng.randrange((1 << config.address_bits) // page - pages + 1) * page


class RamHost:
    """Block, memory and bench together; the block has the ports ``axi`` and ``base``.

    faults: (first byte address, one beyond the last, response) of words that memory refuses
    """

    def __init__(self, dut, sources, sinks, signature, base: int, *, latency: int = 5):
        self.dut, self.base = dut, base
        self.bench = Bench(dut, sources=sources, sinks=sinks)
        self.faults: list[tuple[int, int, int]] = []
        self.ram = Ram(dut, "axi", signature, latency, self._response)
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


class PagedRamHost(RamHost):
    """A block with a memory management unit of ``config``.

    Its page 0 is at another address for each ``name`` and ``latency``.

    AssertionError: the block reads or writes outside of its pages.
    """

    def __init__(self, dut, sources, sinks, config, name: str, *, latency: int = 5):
        base = base_of(f"{name} {latency}", config)
        super().__init__(dut, sources, sinks, config.axi_signature, base, latency=latency)
        self._size = config.cache.pages * config.cache.page_bytes

    def _response(self, address: int) -> int:
        assert 0 <= address - self.base < self._size, f"{address:#x} is outside of the pages"
        return super()._response(address)

    def refuse(self, faults) -> None:
        """``faults`` as in a script, where page 0 is at address 0."""
        self.faults = [(low + self.base, high + self.base, resp) for low, high, resp in faults]
