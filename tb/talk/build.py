"""The accelerator with its host as one program."""

from pathlib import Path

from hdl.kllm.accelerator import KllmAccelerator, KllmAcceleratorConfig
from hdl.kllm.lane.engine import KllmPeLane
from tb.native.build import Native, build_native

__all__ = ["build_host"]

_MAIN = Path(__file__).resolve().parent / "main.cpp"


def build_host(config: KllmAcceleratorConfig, block: KllmAccelerator | None = None) -> Native:
    """``block`` replaces the accelerator of ``config``: one with a fault, say."""
    machine = config.machine
    constants = {
        "BITS_B": machine.bits_b,
        "COLUMNS": machine.columns,
        "ELEMENTS": machine.elements,
        "GROUP": machine.group_outputs,
        "LANES": machine.lanes,
        "LANE_WORDS": machine.layout.lane_words,
        "PORTS": machine.ports.ports,
        "PORT_BYTES": machine.port_bits // 8,
    }
    ports = " ".join(f"X(weights_{n})" for n in range(machine.ports.ports))
    macros = {"WEIGHT_PORTS(X)": ports}
    return build_native(
        block or KllmAccelerator(config), _MAIN, constants=constants, macros=macros,
        separate=(KllmPeLane,),
    )  # fmt: skip
