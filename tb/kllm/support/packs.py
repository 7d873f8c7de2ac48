"""Layers as tb_layer takes them. Before the simulation."""

import dataclasses
from typing import Protocol

import numpy as np
import torch

from golden.kllm.assembler import Assembler
from golden.kllm.config import MachineConfig
from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.layer.host import Part, counted_after, replay
from golden.kllm.machine import Machine


class Recorded(Protocol):
    """A LayerRun or its Pack: it has what a host did after reset, and what golden made of it."""

    @property
    def data(self) -> np.ndarray: ...
    @property
    def requests(self) -> list[tuple[list[int], int]]: ...
    @property
    def parts(self) -> list[Part]: ...


def _fields(word: int) -> tuple[int, int, int]:
    """(tag, unit, status) of a status word."""
    return word >> 16, word >> 13 & 7, word & 0x1FFF


def _final_state(
    recorded: Recorded, ports: list[np.ndarray], config: MachineConfig
) -> dict[str, object]:
    """Rows to begin with, and what the state is afterwards: program, words read back, results.

    All rows begin with random words. So a row that no command writes must keep them.
    """
    machine = Machine(config, recorded.data, ports)
    shape = config.vector_rows, ROW_ELEMENTS
    rows = np.random.default_rng(1).integers(0, 1 << 16, shape)
    machine.vector[:] = torch.from_numpy(rows)
    replay(machine, recorded.requests, recorded.parts)
    state = Assembler(config)
    state.read(src=0, rows=config.vector_rows)
    for slot in range(config.slots):
        state.read_slot(slot=slot)
    program = counted_after(state.words(), [machine.issued[unit] for unit in machine.issued])
    results = machine.run(program)
    fill = Assembler(config)
    fill.load(address=0, dst=0, rows=config.vector_rows)
    return {
        "rows": rows.astype("<u2").tobytes(),
        "fill": fill.words(),
        "words": program,
        "readback": machine.readback,
        "results": [_fields(result.word) for result in results],
    }


def parameters(
    recorded: Recorded, ports: list[np.ndarray], config: MachineConfig, latency: int
) -> dict[str, object]:
    """A recorded layer as tb_layer takes it: no golden types cross into the simulator."""
    parts = [dataclasses.asdict(part) for part in recorded.parts]
    for part in parts:
        part["results"] = [_fields(word) for word in part.pop("status")]
    return {
        "data": recorded.data.tobytes(),
        "ports": [port.tobytes() for port in ports],
        "requests": recorded.requests,
        "parts": parts,
        "state": _final_state(recorded, ports, config),
        "latency": latency,
    }
