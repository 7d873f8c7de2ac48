"""The accelerator with its host as one program."""

import functools
from pathlib import Path

from hdl.kllm.accelerator import KllmAccelerator, KllmAcceleratorConfig
from hdl.kllm.lane.engine import KllmPeLane
from senbazuru.host.build import STEPS, VERILATED, chip_constants, chip_macros
from tb.native.build import Native, build_native

_MAIN = Path(__file__).resolve().parent / "main.cpp"


@functools.cache
def build_host(config: KllmAcceleratorConfig, threads: int = 1) -> Native:
    """The program around the accelerator of ``config``; once for each configuration.

    threads: of the simulation. The lanes take most of its time, so two threads share them evenly.
    """
    return build_native(
        KllmAccelerator(config), _MAIN, sources=(*STEPS, *VERILATED),
        constants=chip_constants(config), macros=chip_macros(config), separate=(KllmPeLane,),
        threads=threads,
    )  # fmt: skip
