"""``python -m sim.memory``: shares and waits of memories by ``sim.dram``, and chips with them.

A chip's file assumes the ``efficiency`` of its memory. The tables put that next to what a bus gives
a stream of reads. Weights are consecutive bytes. K and V are in pages at random places, and cores
read them by the bursts of ``sim.requests``.
"""

import functools
import json
import random
from collections.abc import Callable, Iterator, Mapping

from golden import command
from golden.config import ConfigError
from golden.markers import table
from golden.oaken.config import KvShape
from sim.constant import Constant
from sim.dram import (
    ORDERS,
    PS,
    Dram,
    Read,
    arriving,
    dram_of,
    in_flight,
    known,
    place,
    scattered,
    sequential,
    serve,
    timings_of,
)
from sim.dram_rows import compared, rows_of
from sim.engine import Engine, engine_of
from sim.engines.kllm import Kllm
from sim.hardware import MEMORIES
from sim.model import find_model
from sim.requests import Window, bursts_of, read_of
from sim.tables import print_tables
from sim.validate import PAGE
from sim.work import Pass

_READS = 20_000  # of a stream
_INTERLEAVES = (256, 1024, 4096)  # bytes of a bus before the next one's
_CORES = 512  # that read at once
_PAGE = 4096
_KV = KvShape(heads=1, head_dim=128, block=64)
_TOKENS, _OUTLIERS = 1024, 0.1
_LOADS = (0.2, 0.4, 0.6, 0.8, 0.9)


def refreshes(dram: Dram) -> tuple[str, ...]:
    """The ways of refresh that a standard has."""
    return ("all", "bank") if dram.trfc_bank else ("all",)


def cache_stream(
    dram: Dram, buses: int, interleave: int, order: str, *, cores: int = _CORES, seed: int = 0
) -> list[Read]:
    """The reads of one of ``buses`` buses while cores read K and V of a head.

    Each core has a window of ``sim.requests`` and its own pages of 4 KiB, which lie anywhere. The
    bursts of all cores come in the order of their requests, a core's from a random cycle on.
    ConfigError: ``interleave`` is no multiple of a read, or does not divide a page.
    """
    if interleave % dram.access or interleave < dram.access or _PAGE % interleave:
        raise ConfigError(
            f"interleave must be a multiple of {dram.access} bytes that divides a page of {_PAGE}, "
            f"not {interleave}"
        )
    if buses < 1:
        raise ConfigError(f"buses must be 1 or more, not {buses}")
    window, drawn = Window(), random.Random(seed)
    log = bursts_of(window, [read_of(window, _KV, _TOKENS, _OUTLIERS, 1)])
    starts = [drawn.randrange(4096) for _ in range(cores)]
    every = sorted(
        (start + burst.at, core, burst) for core, start in enumerate(starts) for burst in log
    )
    pages: dict[tuple[int, int, int, int], int] = {}

    def addresses() -> Iterator[int]:
        for _, core, burst in every:
            key = (core, burst.kind, burst.run, burst.page)
            if key not in pages:
                pages[key] = drawn.randrange(1 << 26)
            first = pages[key] * _PAGE + burst.position * window.word_bytes
            for address in range(first, first + burst.words * window.word_bytes, dram.access):
                part, within = divmod(address, interleave)
                if part % buses == 0:
                    yield part // buses * interleave + within

    return [Read(*place(dram, address, order)) for address in addresses()]


@functools.cache
def sequential_share(dram: Dram, refresh: str) -> float:
    """The share of the pins that consecutive reads get, by the better order of banks."""
    return max(
        serve(dram, sequential(dram, _READS, each), refresh=refresh).share for each in ORDERS
    )


@functools.cache
def cache_share(dram: Dram, buses: int, interleave: int, refresh: str) -> float:
    """The share of the pins that reads of K and V get, by the better order of banks."""
    return max(
        serve(dram, cache_stream(dram, buses, interleave, each), refresh=refresh).share
        for each in ORDERS
    )


def bus_of(engine: Engine) -> tuple[Dram, int]:
    """A bus of a chip's memory, and how many it has. ConfigError: its kind has no timings."""
    memory = engine.memory
    buses = int(timings_of(memory.kind)["buses"].base)
    return dram_of(memory.kind, memory.constants["bandwidth"].base), buses * memory.channels


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def shares() -> str:
    """Shares of the pins by standard, stream and refresh, next to what the files assume."""
    rows = []
    for kind in known():
        dram = dram_of(kind)
        buses = 80 if kind.startswith("hbm") else 64
        stated = json.loads((MEMORIES / f"{kind}.json").read_text())["efficiency"]
        assumed = Constant(**stated).interval
        for refresh in refreshes(dram):
            cells = [cache_share(dram, buses, each, refresh) for each in _INTERLEAVES]
            rows.append(
                [
                    f"{kind}, {'each bank' if refresh == 'bank' else 'all banks'}",
                    f"{100 * assumed.low:.0f} .. {100 * assumed.high:.0f} %",
                    _percent(1 - dram.trfc / dram.trefi) if refresh == "all" else "",
                    _percent(sequential_share(dram, refresh)), *map(_percent, cells),
                ]
            )  # fmt: skip
    head = ["refresh of", "assumed", "1 - tRFC / tREFI", "consecutive"]
    return table([*head, *(f"pages, {each} B a bus" for each in _INTERLEAVES)], rows)


def loaded() -> str:
    """Waits of a read in nanoseconds by load, all banks refreshed at once: mean, and 95 %."""
    rows = []
    for kind in ("hbm2e", "lpddr5x"):
        dram = dram_of(kind)
        streams = {
            "consecutive, 2 KiB together": (sequential(dram, _READS), 2048 // dram.access),
            "pieces of 256 B": (scattered(dram, _READS, 256, order="columns"), 256 // dram.access),
        }
        for name, (reads, together) in streams.items():
            cells = []
            for load in _LOADS:
                found = serve(dram, arriving(dram, reads, load, together))
                cells.append(f"{found.mean:.0f}, {found.percentile(0.95):.0f}")
            alone = (dram.trcd + dram.tcl + dram.burst) / 1e3
            rows.append([f"{kind}: {name}", f"{alone:.0f}", *cells])
    return table(["stream", "one read", *(f"{100 * each:.0f} %" for each in _LOADS)], rows)


def mixed(parts: Mapping[str, float], shares_of: Mapping[str, float]) -> float:
    """The share of bytes that take different shares one after the other."""
    whole = sum(parts.values())
    return whole / sum(amount / shares_of[name] for name, amount in parts.items())


_CHIPS = (
    ("kllm-a4", 1, 128), ("kllm-a4", 1, 4096), ("oaken-hbm", 16, 1024), ("oaken-hbm", 16, 4096),
    ("oaken-lpddr", 16, 1024), ("oaken-lpddr", 64, 4096),
)  # fmt: skip


@functools.cache
def port_share(dram: Dram, together: int, flights: int, latency: int) -> float:
    """The share of the pins that a port gets for weights, by the better order of banks."""
    return max(
        in_flight(dram, sequential(dram, _READS, each), together, flights, latency)
        for each in ORDERS
    )


def _consecutive(engine: Engine, refresh: str) -> float:
    """The share of consecutive reads; of KLLM, with the bursts that its ports have in flight."""
    dram, buses = bus_of(engine)
    if not isinstance(engine, Kllm) or refresh != "all":
        return sequential_share(dram, refresh)
    timings, channels = engine.timings, engine.memory.channels
    burst = timings.burst_beats * engine.machine.ports.bits // 8
    together = max(1, burst * channels // buses // dram.access)
    latency = round(engine.memory.latency * PS)
    return port_share(dram, together, timings.outstanding, latency)


_CASES = (("all", 256), ("all", 4096), ("bank", 256), ("bank", 4096))


def chips() -> str:
    """Tokens per second of LLaMA-2-7B with the file's efficiency, and with that of the streams."""
    model, rows = find_model("llama-2-7b"), []
    for name, batch, context in _CHIPS:
        engine, step = engine_of(name), Pass.decode(batch, context)
        dram, buses = bus_of(engine)
        cost = engine.cost(model, step)
        moved = cost.traffic()
        cache = moved["kv_read"] + moved["kv_written"]
        parts = {"pages": cache, "rest": sum(moved.values()) - cache}
        cells = [f"{batch / cost.seconds:.0f}"]
        for refresh, interleave in _CASES:
            found = {
                "pages": cache_share(dram, buses, interleave, refresh),
                "rest": _consecutive(engine, refresh),
            }
            share = mixed(parts, found)
            changes = {"memory.efficiency.value": share, "memory.efficiency.high": 1.0}
            speed = batch / engine_of(name, changes).cost(model, step).seconds
            gain = 100 * (speed * cost.seconds / batch - 1)
            cells.append(f"{_percent(share)}: {speed:.0f} ({gain:+.1f} %)")
        assumed = engine.memory.constants["efficiency"].base
        rows.append([f"{name}, batch {batch} after {context}", _percent(assumed), *cells])
    cases = (f"{'each bank' if how == 'bank' else 'all banks'}, {size} B" for how, size in _CASES)
    return table(["chip", "assumed", "tokens/s", *cases], rows)


TABLES: dict[str, Callable[[], str]] = {
    "sim_dram_rows": lambda: compared(rows_of()),
    "sim_dram_shares": shares,
    "sim_dram_loaded": loaded,
    "sim_dram_chips": chips,
}


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    return print_tables("sim.memory", __doc__ or "", TABLES, PAGE, arguments)


if __name__ == "__main__":
    command.run("sim.memory", main)
