"""A packed layer as tb_layer takes it. Before the simulation."""

import itertools

import numpy as np
import torch

from golden.kllm.assembler import Assembler
from golden.kllm.config import MachineConfig
from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.machine import Machine
from golden.llm.pack import Pack
from tb.kllm.support.rebase import counted, rebase


def _state_program(config: MachineConfig, base: list[int]) -> list[int]:
    """READ of all rows and READ_SLOT of all slots, after ``base[unit]`` commands of each unit."""
    assembler = Assembler(config)
    assembler.read(src=0, rows=config.vector_rows)
    for slot in range(config.slots):
        assembler.read_slot(slot=slot)
    return rebase(assembler.words(), base)


def _final_state(pack: Pack, config: MachineConfig) -> dict:
    """Rows to begin with, and what the state is afterwards: program, words read back, results.

    All rows begin with random words. So a row that no command writes must keep them.
    """
    machine = Machine(config, pack.data, pack.ports)
    rows = np.random.default_rng(1).integers(0, 1 << 16, (config.vector_rows, ROW_ELEMENTS))
    machine.vector[:] = torch.from_numpy(rows)
    for number, words in enumerate(pack.programs):
        if number:
            for memory, appended in zip(
                (machine.data, *machine.weights),
                (pack.append_data, *pack.append_ports),
                strict=True,
            ):
                for address, word in appended:
                    raw = word.to_bytes(memory.word_bytes, "little")
                    memory.write(address, np.frombuffer(raw, dtype=np.uint8))
        status = [result.word for result in machine.run(words)]
        assert (status, machine.readback) == (pack.status[number], pack.readback[number])
    program = _state_program(config, counted(list(itertools.chain(*pack.programs))))
    results = [(each.tag, int(each.unit), int(each.status)) for each in machine.run(program)]
    fill = Assembler(config)
    fill.load(address=0, dst=0, rows=config.vector_rows)
    return {
        "rows": rows.astype("<u2").tobytes(),
        "fill": fill.words(),
        "words": program,
        "readback": machine.readback,
        "results": results,
    }


def parameters(pack: Pack, config: MachineConfig, latency: int) -> dict:
    """A pack as tb_layer takes it: no golden types cross into the simulator."""
    nothing: list = [[] for _ in range(1 + len(pack.ports))]
    appended = [pack.append_data, *pack.append_ports]
    parts = [
        {
            "words": words,
            "readback": readback,
            "results": [(word >> 16, word >> 13 & 7, word & 0x1FFF) for word in status],
            "append": append,
        }
        for words, readback, status, append in zip(
            pack.programs, pack.readback, pack.status, (nothing, appended), strict=True
        )
    ]
    return {
        "data": pack.data.tobytes(),
        "ports": [port.tobytes() for port in pack.ports],
        "parts": parts,
        "state": _final_state(pack, config),
        "latency": latency,
    }
