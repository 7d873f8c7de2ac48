"""Runs inside the simulator, started by test_mmu.py: pages and cycles of FORKs of a prompt."""

import cocotb

from golden.paging.format import Op, Status
from golden.paging.mmu import Request
from hdl.paging.mmu_control import mmu_fork_cycles
from tb.bench import config, params
from tb.paging.support.mmu_host import Host, Shadow, random_records
from tb.paging.tb_mmu import CALM, KV, VECTORS, partial_streams

OUTLIERS = 0.1  # share of the longest record's bytes beyond the shortest
STREAMS = config.cache.streams // config.cache.sequences


@cocotb.test()
async def prompt(dut):
    """A child takes the last pages alone; FORK and FREE take the cycles of the page's table."""
    host = Host(dut, config, name="prompt", **CALM)
    await host.reset()
    shadow = Shadow(host)
    tokens = params["tokens"]
    shadow.send(Request(Op.OPEN))
    await host.until(lambda: shadow.is_done)
    for token in range(tokens):
        for layer, kv in VECTORS:
            request = Request(Op.APPEND, 0, 0, layer, kv, token=token)
            shadow.send(request, random_records(host.rng, KV, OUTLIERS))
    await host.until(lambda: shadow.is_done)
    used = config.cache.pages - int(dut.free_pages.value)

    async def timed(request: Request) -> int:
        shadow.send(request)
        await host.until(lambda: shadow.is_done)
        assert shadow.results[-1][1] == Status.OK
        return host.moved["status"][-1] - host.moved["request"][-1]

    copies = partial_streams(shadow.open[0])
    # All pages as if one stream had them: a bound for any split.
    streams = [used] + [1] * (STREAMS - 1)
    for latency in (1, 100):
        host.latency = (latency, latency)
        free, before = int(dut.free_pages.value), len(host.moved["axi__w"])
        took = await timed(Request(Op.FORK, 0, 0, token=tokens))
        taken, words = free - int(dut.free_pages.value), len(host.moved["axi__w"]) - before
        dut._log.info(f"{used} pages, child {taken}, {words} words, {latency}: {took} cycles")
        assert taken == copies
        assert took <= mmu_fork_cycles(streams, copies, words, latency)
    for sequence in (0, 2, 1):
        took = await timed(Request(Op.FREE, 0, sequence))
        dut._log.info(f"FREE: {took} cycles")
    assert int(dut.free_pages.value) == config.cache.pages
