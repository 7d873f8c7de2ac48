"""Runs inside the simulator, started by test_accelerator_axi.py: the wrapped KllmAccelerator.

Host and memories are cocotbext-axi's models, which are not ours. ``params``: "programs" as
test_accelerator.as_vectors makes them.
"""

import logging

import cocotb
from cocotb.triggers import ClockCycles, with_timeout
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiReadBus, AxiSlaveRead

from golden.axi.format import ID_WORD, REGISTERS, RESP_OKAY, RESP_SLVERR
from golden.kllm.isa import Unit
from tb.axi.support.buses import pauses, reset, start_clock
from tb.bench import config, params
from tb.kllm.support.host import Report
from tb.kllm.support.rebase import counted, rebase
from tb.kllm.support.reports import compare


class Memory(AxiSlaveRead):
    """One address space: ``data`` from 0 on; words of ``errors`` and beyond it answer SLVERR."""

    def __init__(self, dut, name: str):
        super().__init__(
            AxiReadBus.from_prefix(dut, f"m_axi_{name}"), dut.aclk, dut.aresetn,
            reset_active_level=False,
        )  # fmt: skip
        self.data, self.errors = b"", set()
        self.log.setLevel(logging.ERROR)

    async def _read(self, address, length):
        if address // length in self.errors or address + length > len(self.data):
            raise ValueError(f"no memory at {address:#x}")
        return self.data[address : address + length]


class Chip:
    """The accelerator with its host and memories."""

    def __init__(self, dut, chance: float):
        self.dut = dut
        bus = AxiLiteBus.from_prefix(dut, "s_axil_host")
        self.host = AxiLiteMaster(bus, dut.aclk, dut.aresetn, reset_active_level=False)
        self.host.write_if.log.setLevel(logging.ERROR)
        self.host.read_if.log.setLevel(logging.ERROR)
        names = ["data", *(f"weights_{n}" for n in range(config.machine.ports.ports))]
        self.memories = [Memory(dut, name) for name in names]
        if chance:
            for name, memory in zip(names, self.memories, strict=True):
                memory.ar_channel.set_pause_generator(pauses(f"{name} ar", chance))
                memory.r_channel.set_pause_generator(pauses(f"{name} r", chance))
            writes, reads = self.host.write_if, self.host.read_if
            for name, channel in {
                "aw": writes.aw_channel, "w": writes.w_channel, "b": writes.b_channel,
                "ar": reads.ar_channel, "r": reads.r_channel,
            }.items():  # fmt: skip
                channel.set_pause_generator(pauses(name, chance))

    async def write(self, name: str, word: int) -> int:
        data = word.to_bytes(4, "little")
        answer = await with_timeout(self.host.write(REGISTERS[name].offset, data), 100, "us")
        return int(answer.resp)

    async def read(self, name: str) -> tuple[int, int]:
        answer = await with_timeout(self.host.read(REGISTERS[name].offset, 4), 100, "us")
        return int.from_bytes(answer.data, "little"), int(answer.resp)

    async def send(self, words) -> None:
        """Writes command words by LEVELS, so that no word is ever refused."""
        room = 0
        for word in words:
            while not room:
                levels, _ = await self.read("LEVELS")
                room = levels & 0xFFFF
            assert await self.write("COMMAND", word) == RESP_OKAY
            room -= 1

    async def take(self, reports: int, words: int):
        got, taken = [], []
        while len(got) < reports or len(taken) < words:
            levels, _ = await self.read("LEVELS")
            for _ in range(levels >> 16 & 0x7FFF):
                word, resp = await self.read("STATUS")
                assert resp == RESP_OKAY
                got.append(Report(word >> 16, word >> 13 & 7, word & 0x1FFF, 0))
            if levels >> 31:
                word, resp = await self.read("READBACK")
                assert resp == RESP_OKAY
                taken.append(word)
        return got, taken

    async def execute(self, program, base) -> None:
        for memory, data, errors in zip(
            self.memories,
            (program["data"], *program["weights"]),
            (program["data_faults"], *program["weight_faults"]),
            strict=True,
        ):
            memory.data, memory.errors = data, {address for address, _ in errors}
        sender = cocotb.start_soon(self.send(rebase(program["words"], base)))
        got, taken = await self.take(len(program["results"]), len(program["readback"]))
        await sender
        compare(got, taken, program["results"], program["readback"])


@cocotb.test()
@cocotb.parametrize(chance=[0.0, 0.4])
async def programs(dut, chance):
    """Programs in turn without a reset between them; nothing is left at the end."""
    chip = Chip(dut, chance)
    start_clock(dut)
    await reset(dut)
    assert await chip.read("ID") == (ID_WORD, RESP_OKAY)
    base = [0] * len(Unit)
    for program in params["programs"]:
        await with_timeout(cocotb.start_soon(chip.execute(program, base)), 10, "ms")
        base = [a + b for a, b in zip(base, counted(program["words"]), strict=True)]
    await ClockCycles(dut.aclk, 50)
    assert dut.idle.value == 1
    assert await chip.read("CONTROL") == (2, RESP_OKAY)  # bit 1: idle
    assert await chip.read("STATUS") == (0, RESP_SLVERR)
    assert await chip.read("READBACK") == (0, RESP_SLVERR)
