"""The accelerator with its host as one program."""

import functools
from pathlib import Path

from golden.axi.format import CACHE_REGISTERS, REGISTERS
from golden.kllm.engines import request_words
from golden.paging.format import Op
from hdl.kllm.accelerator import KllmAccelerator, KllmAcceleratorConfig
from hdl.kllm.lane.engine import KllmPeLane
from tb.native.build import Native, build_native

_MAIN = Path(__file__).resolve().parent / "main.cpp"


@functools.cache
def build_host(config: KllmAcceleratorConfig, threads: int = 1) -> Native:
    """The program around the accelerator of ``config``; once for each configuration.

    threads: of the simulation. The lanes take most of its time, so two threads share them evenly.
    """
    machine, cache = config.machine, config.machine.cache
    constants = {
        "PORTS": machine.ports.ports,
        "PORT_BYTES": machine.port_bits // 8,
        "ENGINES": machine.engines,
        "PAGES": cache.pages,
        "CACHE_PAGE_BYTES": cache.page_bytes,
        "KV_BYTES": config.attention_config.engine.mmu.data_bits // 8,
        "REQUEST_WORDS": len(request_words(Op.OPEN)),
        **{name: each.offset for name, each in (REGISTERS | CACHE_REGISTERS).items()},
    }
    ports = " ".join(f"X(weights_{n})" for n in range(machine.ports.ports))
    engines = range(machine.engines)
    pages = "X(kv)" if machine.engines == 1 else " ".join(f"X(kv_{n})" for n in engines)
    macros = {"WEIGHT_PORTS(X)": ports, "KV_PORTS(X)": pages}
    return build_native(
        KllmAccelerator(config), _MAIN, constants=constants, macros=macros,
        separate=(KllmPeLane,), threads=threads,
    )  # fmt: skip
