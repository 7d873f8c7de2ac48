"""Runs inside the simulator, started by test_write_port.py: AxiWritePort on cocotbext-axi's RAM.

The RAM's model itself refuses a burst that crosses 4 KiB and a WLAST at a wrong beat.
"""

import cocotb
from cocotb.triggers import ClockCycles, with_timeout
from cocotbext.axi import AxiSlaveWrite, AxiWriteBus

from golden.axi.format import RESP_OKAY
from golden.axi.reference import write_packet
from tb.axi.support.buses import pauses, reset, sink, source, start_clock
from tb.axi.support.memory import random_packets
from tb.axi.support.writes import answers, command, commands_of, errors_of_256, random_words
from tb.bench import Bench, config


class Ram(AxiSlaveWrite):
    """Keeps the bytes written; a burst's answer is the worst response of its words."""

    def __init__(self, dut, errors):
        super().__init__(
            AxiWriteBus.from_prefix(dut, "m_axi"), dut.aclk, dut.aresetn, reset_active_level=False
        )
        self.errors = errors
        self.bytes: dict[int, int] = {}
        self.worst = RESP_OKAY
        send = self.b_channel.send

        async def send_worst(b):  # the model itself knows no error but SLVERR
            b.bresp, self.worst = self.worst, RESP_OKAY
            await send(b)

        self.b_channel.send = send_worst

    async def _write(self, address, content):
        for k, byte in enumerate(content):
            self.bytes[address + k] = byte
        self.worst = max(self.worst, self.errors(address - address % config.word_bytes))


@cocotb.test()
@cocotb.parametrize(p_pause=[0.0, 0.3, 0.8])
async def random_flow_on_a_foreign_ram(dut, p_pause):
    errors = errors_of_256(8, "foreign")
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
    assert got == answers(packets, errors)
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
