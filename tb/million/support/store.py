"""A memory of codebook words at read_en, read_addr and read_data, inside the simulator."""

import random

import cocotb
from cocotb.triggers import FallingEdge, RisingEdge

from tb.simulate.ports import Signal


async def serve(dut, words, *, grant=None, log=None) -> None:
    """Answer reads for ever: the word in the cycle after the read, junk in all others.

    log: a list that takes the address of each read that is granted.
    words: of the memory; with a port read_kv the lists of words of K and of V.
    grant: chance of a read being granted (port read_grant); None: the block has no such port.
    """
    rng = random.Random(f"{cocotb.RANDOM_SEED} store")
    en, address, data_port = (Signal(dut[f"read_{name}"]) for name in ("en", "addr", "data"))
    kv = Signal(dut.read_kv) if hasattr(dut, "read_kv") else None
    granted = None if grant is None else Signal(dut.read_grant)
    data = rng.getrandbits(data_port.width)
    await RisingEdge(dut.clk)  # until the first edge of a reset read_en and the address are random
    while True:
        await FallingEdge(dut.clk)
        data_port.put(data)
        # read_en comes from a register: it has been there since the rising edge.
        reads = en.get()
        if granted is not None:
            reads = int(reads and rng.random() < grant())
            granted.put(reads)
        if reads and log is not None:
            log.append(address.get())
        memory = words if kv is None else words[kv.get()]
        data = memory[address.get()] if reads else rng.getrandbits(data_port.width)
