"""Runs inside the simulator, started by mmu_rates.py: cycles of READs and APPENDs."""

import json
import os
from pathlib import Path

import cocotb

from golden.paging.format import Op
from golden.paging.mmu import Request
from tb.bench import config, params
from tb.paging.support.mmu_host import CHANNELS, Host, Shadow, random_records

KV = config.cache.kv


@cocotb.test()
async def rates(dut):
    """Cycles from the first request to the last word, for each latency and run of ``params``."""
    host = Host(dut, config)
    await host.reset()
    shadow = Shadow(host)
    lengths = sorted({run["tokens"] for run in params["runs"]})
    shadow.send(Request(Op.OPEN))
    await host.until(lambda: shadow.is_done)
    # A vector for each length: what is read is all that is there.
    pages = []
    for layer, tokens in enumerate(lengths):
        free, used = int(dut.free_pages.value), 0
        for token in range(tokens):
            records = random_records(host.rng, KV, params["outliers"])
            used += sum(map(len, records))
            shadow.send(Request(Op.APPEND, layer=layer, token=token), records)
        await host.until(lambda: shadow.is_done)
        taken = free - int(dut.free_pages.value)
        pages.append((tokens, taken * config.cache.page_bytes, used))
    appends = []
    for latency in params["append_latencies"]:
        # In another vector, so that what is read below stays as it is.
        host.latency = (latency, latency)
        count = params["appends"]
        for n in range(count):
            records = random_records(host.rng, KV, params["outliers"])
            shadow.send(Request(Op.APPEND, kv=1, token=len(appends) * count + n), records)
        start = host.cycle
        await host.until(lambda: shadow.is_done)
        appends.append((latency, (host.moved["status"][-1] - start) / count))
    results = []
    for latency in params["latencies"]:
        host.latency = (latency, latency)
        for run in params["runs"]:
            found = await reads(dut, host, shadow, run, lengths.index(run["tokens"]))
            results.append({**run, "memory_latency": latency, **found})
    out = {"reads": results, "appends": appends, "pages": pages}
    Path(os.environ["TB_DIR"], "rates.json").write_text(json.dumps(out))


async def reads(dut, host: Host, shadow: Shadow, run: dict, layer: int) -> dict:
    """A train of equal READs: their words by kind, bursts and cycles."""
    await host.until(lambda: dut.idle.value)
    for _ in range(20):
        await host.step()
    host.moved.clear()
    for n in range(run["reads"]):
        request = Request(Op.READ, n, layer=layer)
        shadow.send(request._replace(heads=run["heads"], token=run["tokens"]))
    await host.until(lambda: shadow.is_done)
    first = host.moved["request"][0]
    words = {name: len(host.moved[name]) for name in CHANNELS}
    return {
        "words": sum(words.values()),
        **{f"{name}_words": count for name, count in words.items()},
        "cycles": max(host.moved[name][-1] for name in CHANNELS) - first + 1,
        "bursts": len(host.moved["axi__ar"]),
        "latency": host.moved["axi__r"][0] - first,
        "status": host.moved["status"][-1] - first,
    }
