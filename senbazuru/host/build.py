"""The library of the host, and a Verilated chip for it, each compiled once."""

import functools
from collections.abc import Callable
from pathlib import Path

from hdl.block import Block
from hdl.kllm.accelerator import KllmAccelerator, KllmAcceleratorConfig
from hdl.kllm.lane.engine import KllmPeLane
from tb.native.build import build_library, build_native

_HERE = Path(__file__).resolve().parent
HEADER = _HERE / "senbazuru.h"
CHIP_HEADER = _HERE / "verilated" / "verilated.h"
# Steps of the chip, without the scheduling of requests.
STEPS = tuple(
    _HERE / name
    for name in (
        "senbazuru.h", "registers.h", "image.h", "image.cpp", "device.h", "device.cpp", "names.cpp",
    )
)  # fmt: skip
_SCHEDULING = tuple(_HERE / name for name in ("scheduler.h", "scheduler.cpp", "engine.cpp"))
# What a program around a Verilated chip includes.
VERILATED = tuple(_HERE / "verilated" / name for name in ("chip.h", "backend.h"))


def chip_constants(config: KllmAcceleratorConfig) -> dict[str, int]:
    """Sizes of the memories of ``config``, for "chip.h"."""
    machine, cache = config.machine, config.machine.cache
    return {
        "PORTS": machine.ports.ports,
        "PORT_BYTES": machine.port_bits // 8,
        "ENGINES": machine.engines,
        "PAGES": cache.pages,
        "CACHE_PAGE_BYTES": cache.page_bytes,
        "KV_BYTES": config.attention_config.engine.mmu.data_bits // 8,
    }


def chip_macros(config: KllmAcceleratorConfig) -> dict[str, str]:
    """Names of the ports of ``config``, for "chip.h"."""
    machine = config.machine
    engines = range(machine.engines)
    return {
        "WEIGHT_PORTS(X)": " ".join(f"X(weights_{n})" for n in range(machine.ports.ports)),
        "KV_PORTS(X)": "X(kv)" if machine.engines == 1 else " ".join(f"X(kv_{n})" for n in engines),
    }


@functools.cache
def build_host_library() -> Path:
    """The functions of "senbazuru.h"."""
    return build_library("senbazuru", (*STEPS, *_SCHEDULING))


# Makes the block of a configuration.
Accelerator = Callable[[KllmAcceleratorConfig], Block]


@functools.cache
def build_chip(
    config: KllmAcceleratorConfig, threads: int = 1, accelerator: Accelerator = KllmAccelerator
) -> Path:
    """The functions of "verilated.h" for the accelerator of ``config``; accelerator: its class."""
    source = _HERE / "verilated" / "verilated.cpp"
    headers = (HEADER, _HERE / "registers.h", CHIP_HEADER, *VERILATED)
    return build_native(
        accelerator(config), source, sources=headers, shared=True,
        constants=chip_constants(config), macros=chip_macros(config), separate=(KllmPeLane,),
        threads=threads,
    ).executable  # fmt: skip
