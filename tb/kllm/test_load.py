"""KllmLoad against golden.kllm.machine: rows of a memory whose reads may fail.

Shown to fail:

- a range check one row too lax;
- an error of the last row only;
- an error kept for the next command;
- a fill one row short;
- a row's number without bit 8 (only with the most rows);
- addresses of half a row;
- addresses that wrap at the end of the data memory.
"""

import numpy as np
import pytest
import torch

from golden.kllm.config import MachineConfig, VectorShape
from golden.kllm.isa import CommandStatus, Opcode, encode
from golden.kllm.machine import Machine
from golden.words import alternating, join
from hdl.kllm.room import BLOCKS
from hdl.kllm.slots.load import KllmLoad, KllmLoadConfig
from tb.kllm.support.commands import command_payload, row_of
from tb.simulate.run import simulate

CONFIGS = {
    "small": BLOCKS["kllm_load"].configs["small"],
    "odd": KllmLoadConfig(vectors=VectorShape(rows=77), address_bits=33),
    "all_rows": KllmLoadConfig(vectors=VectorShape(rows=65536), address_bits=32),
    "all_addresses": KllmLoadConfig(vectors=VectorShape(rows=77), address_bits=37),
}
NAN_ROW = row_of([0x7E00] * 16)
MEMORY_ROWS = 1400


def made(config, seed):
    """Commands with what each must give, and the memory; the rows as golden leaves them."""
    rng = np.random.default_rng([seed, 71])
    # The top rows of the data memory, where a command's address can reach them.
    end = 1 << config.address_bits - 5
    base = end - MEMORY_ROWS if config.address_bits <= 37 else 0
    machine = Machine(MachineConfig(vectors=config.vectors), np.zeros(0, np.uint8))
    memory = rng.integers(0, 256, 32 * MEMORY_ROWS, dtype=np.uint8)
    errors = set((base + rng.permutation(200)[:12]).tolist())  # the rows after them have none
    machine.data.data, machine.data.faults = memory, {row - base for row in errors}
    words = {
        base + n: (int.from_bytes(row.tobytes(), "little"), base + n in errors)
        for n, row in enumerate(memory.reshape(-1, 32))
    }
    last = config.vectors.rows
    cases = [(base + 210, 60, last - 60), (base, 1, 0), (base + 3, 0, 0), (base, 2, last - 1)]
    cases += [(base + 210, 2, last - 2), (base, min(last + 1, 65535), 2)]
    cases += [(base + MEMORY_ROWS - 1, 1, last - 1), (base, 65535, last - 1)]
    cases += [(base + row, 1, 5) for row in sorted(row - base for row in errors)[:2]]
    for _ in range(30):
        rows = int(rng.integers(1, 40))
        dst = int(rng.integers(0, last - rows + 2))
        cases.append((base + int(rng.integers(0, MEMORY_ROWS - 40)), rows, min(dst, 65535)))
    cases += [(base + 210, rows, 0) for rows in alternating(min(last, MEMORY_ROWS - 210))]
    if config.address_bits <= 37:  # sources that end one row after the memory, and at its last
        cases += [(end - 1, 2, 9), (end - 40, 41, 3), (end - 41, 41, 5)]
    if config.address_bits < 37:  # sources that begin after it
        cases += [(end, 1, 4), (base + end + 210, 3, 7), ((1 << 32) - 1, 20, 11)]
    program = []
    seen = set()
    for address, rows, dst in cases:
        operands = {"address": address, "rows": rows, "dst": dst}
        step = {
            "command": command_payload(encode(Opcode.LOAD, 0, {}, operands)),
            "read": [],
            "write": [],
        }
        local = encode(Opcode.LOAD, 0, {}, operands | {"address": address - base})
        status = machine.step(local).status
        seen.add(status)
        if status != CommandStatus.RANGE:
            if address + rows <= end:
                step["read"] = [32 * address | rows << config.address_bits]
                step["write"] = [
                    join((dst + n, 16), (words[address + n][0], 256)) for n in range(rows)
                ]
            if status:
                step["write"] += [join((dst + n, 16), (NAN_ROW, 256)) for n in range(rows)]
            golden = machine.vector[dst : dst + rows].tolist()
            final = [row_of(row) for row in golden]
            assert [word >> 16 for word in step["write"][-rows:]] == final
        step["status"] = [int(status)]
        program.append(step)
    assert seen == {CommandStatus(0), CommandStatus.RANGE, CommandStatus.BUS_ERROR}
    program.append(
        {"command": int(Opcode.READ), "read": [], "write": [],
         "status": [int(CommandStatus.MALFORMED)]}
    )  # fmt: skip
    return program, words


@pytest.mark.parametrize("name", CONFIGS)
def test_load(name, seed):
    config = CONFIGS[name]
    program, memory = made(config, seed)
    params = {"program": program, "memory": memory}
    simulate(KllmLoad(config), "tb.kllm.tb_load", params=params, seed=seed)


def test_rows_are_little_endian():
    """The two lowest bytes of the memory's row store element 0 of a row."""
    data = np.arange(32, dtype=np.uint8)
    machine = Machine(MachineConfig(), data)
    machine.step(encode(Opcode.LOAD, 0, {}, {"address": 0, "rows": 1, "dst": 9}))
    assert torch.equal(machine.vector[9], torch.arange(16) * 0x202 + 0x100)
