"""Runs inside the simulator, started by test_write_port.py: AxiWritePort on cocotbext-axi's RAM.

The RAM's model itself refuses a burst that crosses 4 KiB and a WLAST at a wrong beat.
"""

import cocotb
from cocotb.triggers import ClockCycles, with_timeout
from cocotbext.axi import AxiSlaveWrite, AxiWriteBus

from golden.axi.format import RESP_SLVERR
from golden.axi.reference import write_packet
from tb.axi.support.buses import pauses, reset, sink, source, start_clock
from tb.axi.support.memory import random_packets
from tb.axi.support.writes import answers, command, commands_of, errors_of_256, random_words
from tb.bench import Bench, config


class Ram(AxiSlaveWrite):
    """Keeps the bytes written; its error is SLVERR."""

    def __init__(self, dut, errors):
        super().__init__(
            AxiWriteBus.from_prefix(dut, "m_axi"), dut.aclk, dut.aresetn, reset_active_level=False
        )
        self.errors = errors
        self.bytes: dict[int, int] = {}

    async def _write(self, address, content):
        for k, byte in enumerate(content):
            self.bytes[address + k] = byte
        if self.errors(address - address % config.word_bytes) >= RESP_SLVERR:
            raise ValueError(f"no memory at {address:#x}")


@cocotb.test()
@cocotb.parametrize(p_pause=[0.0, 0.3, 0.8])
async def random_flow_on_a_foreign_ram(dut, p_pause):
    errors = errors_of_256(4, "foreign")
    ram = Ram(dut, errors)
    commands = source(dut, "command", p_pause)
    i = source(dut, "i", p_pause)
    done = sink(dut, "done", p_pause)
    if p_pause:
        for name, channel in (
            ("aw", ram.aw_channel), ("w", ram.w_channel), ("b", ram.b_channel),
        ):  # fmt: skip
            channel.set_pause_generator(pauses(name, p_pause))
    start_clock(dut)
    await reset(dut)
    rng = Bench.rng(None, "packets")
    packets = random_packets(rng, config, 40)
    contents = [random_words(rng, packet) for packet in packets]
    wanted = commands_of(packets)
    await commands.send([command(*each) for each in wanted])
    for words in filter(None, contents):
        await i.send(words)
    got = []
    while len(got) < len(wanted):
        got += await with_timeout(done.read(), 10, "ms")
    slave_errors = [resp and RESP_SLVERR for resp in answers(packets, errors)]
    assert got == slave_errors
    expected = {}
    for packet, words in zip(packets, contents, strict=True):
        written, _ = write_packet(packet, words, config.data_bits, config.address_bits)
        for part in written:
            expected.update(part)
    assert ram.bytes == expected
    await ClockCycles(dut.aclk, 40)
    assert done.empty()
    assert not dut.m_axi_awvalid.value
    assert not dut.m_axi_wvalid.value
