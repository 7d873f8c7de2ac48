"""KLLM's chips with Oaken's cache: the area that a user has, alone and in a batch."""

import dataclasses

from golden.kllm.config import MachineConfig
from golden.markers import table
from hdl.kllm.accelerator import KllmAccelerator, KllmAcceleratorConfig
from synth.modules import MappedDesign
from synth.tables.common import Tables, cacti_mm2, mm2
from synth.tables.kllm import mapped

_NAMES = ("smollm2_cache", "smollm2_cache3", "smollm2_wide")


def alone(machine: MachineConfig) -> MachineConfig:
    """The machine with a batch of one place, and pages of one sequence."""
    pages = machine.cache.pages // machine.cache.sequences
    cache = dataclasses.replace(machine.cache, sequences=1, pages=pages)
    return dataclasses.replace(machine, batch=1, cache=cache)


def users_table(chips: dict[str, tuple[MachineConfig, MappedDesign]]) -> str:
    """Section ``kllm_users``: each chip by its name."""
    head = (
        "chip", "users", "lanes", "attention engines", "logic, mm2", "RAM, KB", "RAM, CACTI, mm2",
        "all, CACTI, mm2", "mm2 per user",
    )  # fmt: skip
    rows = []
    for name, (machine, design) in chips.items():
        cost = design.total()
        logic, _ = mm2(cost, design.scale_28nm)
        ram = cacti_mm2(design)
        rows.append(
            (
                name,
                f"{machine.batch}",
                f"{machine.lanes}",
                f"{machine.engines}",
                f"{logic:.2f}",
                f"{cost.ram_bits / 8192:,.0f}",
                f"{ram:.2f}",
                f"{logic + ram:.2f}",
                f"{(logic + ram) / machine.batch:.2f}",
            )
        )
    return table(head, rows)


def _map_users() -> tuple[dict[str, str], float]:
    """The table, and the seconds of mapping its modules."""
    configs = {
        name: config
        for name, config in KllmAccelerator.configs.items()
        if isinstance(config, KllmAcceleratorConfig)
    }
    one = configs[_NAMES[0]]
    chips = {f"`{_NAMES[0]}` of one user": dataclasses.replace(one, machine=alone(one.machine))}
    chips |= {f"`{name}`": configs[name] for name in _NAMES}
    found = {}
    for name, config in chips.items():
        found[name] = config.machine, mapped(KllmAccelerator(config), "kllm_accelerator")
    seconds = sum(design.seconds for _, design in found.values())
    return {"kllm_users": users_table(found)}, seconds


TABLES = {"users": Tables(("kllm_users",), lambda options: _map_users())}
