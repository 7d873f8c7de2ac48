"""Runs inside the simulator, started by test_read_port.py: AxiReadPort on cocotbext-axi's RAM.

The RAM's model itself refuses a burst that crosses 4 KiB.
"""

import cocotb
from cocotb.triggers import ClockCycles, with_timeout
from cocotbext.axi import AxiReadBus, AxiSlaveRead

from golden.axi.format import RESP_OKAY
from golden.axi.reference import read_words
from golden.words import join
from tb.axi.support.buses import pauses, reset, sink, source, start_clock
from tb.axi.support.memory import Words, random_commands
from tb.bench import Bench, config


class Ram(AxiSlaveRead):
    """Answers with ``words``; its error is SLVERR, with 0 for data."""

    def __init__(self, dut, words: Words):
        super().__init__(
            AxiReadBus.from_prefix(dut, "m_axi"), dut.aclk, dut.aresetn, reset_active_level=False
        )
        self.words = words

    async def _read(self, address, length):
        word, response = self.words(address)
        if response != RESP_OKAY:
            raise ValueError(f"no memory at {address:#x}")
        return word.to_bytes(length, "little")


@cocotb.test()
@cocotb.parametrize(p_pause=[0.0, 0.3, 0.8])
async def random_flow(dut, p_pause):
    words = Words(config.data_bits, errors=20)
    ram = Ram(dut, words)
    commands = source(dut, "command", p_pause)
    o = sink(dut, "o", p_pause)
    if p_pause:
        ram.ar_channel.set_pause_generator(pauses("ar", p_pause))
        ram.r_channel.set_pause_generator(pauses("r", p_pause))
    start_clock(dut)
    await reset(dut)
    rng = Bench.rng(None, "commands")
    wanted = random_commands(rng, config, 40)
    await commands.send(
        [
            join((address, config.address_bits), (count, config.length_bits))
            for address, count in wanted
        ]
    )

    def fetch(address):
        word, response = words(address)
        return (word, response) if response == RESP_OKAY else (0, response)

    for address, count in wanted:
        golden = [
            join((data, config.data_bits), (error, 1))
            for data, error, _ in read_words(
                fetch, address, count, config.data_bits, config.address_bits
            )
        ]
        if golden:
            got = await with_timeout(o.recv(), 1, "ms")
            assert list(got.tdata) == golden, f"{count} words at {address:#x}"
    await ClockCycles(dut.aclk, 40)
    assert o.empty()
    assert o.idle()
    assert not dut.m_axi_arvalid.value
