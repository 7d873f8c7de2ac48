"""Builds the soak's program, runs it, and checks its log while it runs."""

import collections
import dataclasses
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from hdl.block import Block
from hdl.paging.layouts import REQUEST_LAYOUT
from hdl.paging.mmu import PagingMmu, PagingMmuConfig
from hdl.registry import find
from senbazuru.runs.soak.check import Checker, Mismatch
from tb.native.build import build_native

MAIN = Path(__file__).resolve().parent / "main.cpp"


def soak_config(forks: bool = True) -> PagingMmuConfig:
    """Small pages, few of them: straddles, trims and empty free lists happen all the time.

    A FORK takes a page for each stream. With a third more of them most FORKs succeed.
    """
    config = find("paging_mmu").configs["soak"]
    if not forks:
        return config
    return dataclasses.replace(
        config, cache=dataclasses.replace(config.cache, forks=True, pages=128)
    )


def constants(config: PagingMmuConfig) -> dict[str, int]:
    """The constants of the configuration that the program must know."""
    cache, kv = config.cache, config.cache.kv
    return {
        "ADDRESS_BITS": config.address_bits,
        "BURST_BEATS": config.burst_beats,
        "DATA_BYTES": config.data_bits // 8,
        "DENSE_BYTES": kv.named("dense").most,
        "FORKS": int(cache.forks),
        "HEADS": kv.heads,
        "LAYERS": cache.layers,
        "PAGES": cache.pages,
        "PAGE_BYTES": cache.page_bytes,
        "REQUEST_BITS": REQUEST_LAYOUT.size,
        "SCALE_BYTES": kv.named("scale").most,
        "SEQUENCES": cache.sequences,
        "SPARSE_MAX": kv.named("sparse").most,
        "SPARSE_MIN": kv.named("sparse").least,
    }


@dataclasses.dataclass
class Figures:
    """The counts of what a run has done."""

    requests: int
    seconds: float
    cycles: int
    write_bursts: int
    read_bursts: int
    write_errors: int
    read_errors: int
    drains: int
    pages_taken: int
    pages_shared: int
    most_pages: int
    most_shared: int
    bytes_written: int
    bytes_read: int
    statuses: dict[str, dict[str, int]]  # by op


def soak(
    requests: int,
    seed: int,
    *,
    config: PagingMmuConfig | None = None,
    block: Block | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Figures:
    """Run ``requests`` random requests; Mismatch says where hardware and model differ.

    ``block`` replaces the MMU of ``config``: one with a fault, say, and a configuration of its own.
    ``progress`` is called a few times a second with requests and cycles so far and the seconds
    since the start.
    """
    config = block.config if block else config or soak_config()
    native = build_native(block or PagingMmu(config), MAIN, constants=constants(config))
    checker = Checker(config.cache, config.data_bits, seed)
    start = shown = time.perf_counter()
    command = [str(native.executable), str(requests), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            while head := process.stdout.read(4):
                size = struct.unpack("<I", head)[0]
                checker.feed(process.stdout.read(size))
                now = time.perf_counter()
                if progress and now - shown > 0.5:
                    progress(checker.requests, checker.cycle, now - start)
                    shown = now
        finally:
            process.kill()
    if not checker.ended:
        raise Mismatch(f"cycle {checker.cycle}: the program ended too early")
    statuses: dict[str, dict[str, int]] = collections.defaultdict(dict)
    for (op, status), number in sorted(checker.statuses.items()):
        statuses[op][status] = number
    return Figures(
        requests=checker.requests,
        seconds=time.perf_counter() - start,
        pages_taken=checker.pages_taken,
        pages_shared=checker.pages_shared,
        most_pages=checker.most_pages,
        most_shared=checker.most_shared,
        bytes_written=checker.bytes_written,
        bytes_read=checker.bytes_read,
        statuses=dict(statuses),
        **checker.end,
    )
