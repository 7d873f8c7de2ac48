"""Runs inside the simulator, started by test_cells.py: random inputs to cells of an ECP5.

What is expected follows from the vendor's guides, word by word and bit by bit:

- Block RAM (FPGA-TN-02204): an address has 14 bits. A port of 18 bits has its byte enables in bits
  0 and 1. One of 36 bits has them in bits 0 to 3. NORMAL keeps the output while it writes,
  WRITETHROUGH shows the new word, READBEFOREWRITE the old one.
- Multiplier (FPGA-TN-02205): the product of 18 x 18 bits, each signed or not.
- Slice (FPGA-DS-02012): set and reset at the edge or at once, distributed RAM of 16 words.
"""

import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, Timer

from tb.bench import config  # noqa: F401, the setup of the run is there
from tb.board.cells import FLIP_FLOPS, INITIAL, RAMS

CYCLES = 4000
BELOW = {36: 5, 18: 4, 9: 3, 4: 2, 2: 1, 1: 0}  # bits of an address below the word's number


class Ram:
    """Bits by address: byte n of 9 bits is bits 9 * n; widths below 9 leave the ninth out."""

    def __init__(self, width_a, width_b, mode):
        self.widths, self.mode = {"a": width_a, "b": width_b}, mode
        self.bytes = [word >> 9 * half & 0x1FF for word in INITIAL for half in (0, 1)]
        self.shown: dict[str, int | None] = {"a": None, "b": None}

    def read(self, width: int, address: int) -> int:
        number = address >> BELOW[width]
        if width >= 9:
            count = width // 9
            first = number * count
            return sum(self.bytes[first + n] << 9 * n for n in range(count))
        bit = number * width
        return self.bytes[bit // 8] >> bit % 8 & (1 << width) - 1

    def write(self, width: int, address: int, data: int) -> None:
        number = address >> BELOW[width]
        if width >= 9:
            count = width // 9
            for n in range(count):
                if count == 1 or address >> n & 1:
                    self.bytes[number * count + n] = data >> 9 * n & 0x1FF
            return
        bit = number * width
        mask = (1 << width) - 1 << bit % 8
        self.bytes[bit // 8] = self.bytes[bit // 8] & ~mask | (data << bit % 8) & mask

    def step(self, given: dict[str, int]) -> None:
        """An edge: reads see the words before it."""
        before = list(self.bytes)
        writes = {}
        for port in self.widths:
            has_write = port == "a" or 36 not in self.widths.values()
            writes[port] = given[f"we_{port}"] and given[f"ce_{port}"] and has_write
        for port, width in self.widths.items():
            address, enabled = given[f"ad_{port}"], given[f"ce_{port}"]
            if port == "a" and 36 in self.widths.values():
                continue  # its output is that of the pair, or nobody's
            old = self.read(width, address)
            if not enabled:
                continue
            if not writes[port] or self.mode == 2:
                self.shown[port] = old
            elif self.mode == 1:
                data = given[f"di_{port}"]
                self.write(width, address, data)
                self.shown[port] = self.read(width, address)
                self.bytes = list(before)
        for port, width in self.widths.items():
            if writes[port]:
                data = given[f"di_{port}"]
                if width == 36:
                    data |= given["di_b"] << 18
                self.write(width, given[f"ad_{port}"], data)


@cocotb.test()
async def cells(dut):
    """Every output after every edge, where it is defined."""
    draw = random.Random(cocotb.RANDOM_SEED)
    names = ("x", "y", "signs", "d", "ce", "lsr", "gsr_n", "ad_a", "ad_b", "di_a", "di_b", "we_a",
             "we_b", "ce_a", "ce_b", "wa", "ra")  # fmt: skip
    rams = [Ram(*each) for each in RAMS]
    bits = [0x1234 >> n & 1 for n in range(16)]
    held = [is_set for is_set, _ in FLIP_FLOPS]
    dut.rst.value = 0
    for name in names:
        getattr(dut, name).value = 1 if name == "gsr_n" else 0
    Clock(dut.clk, 10, "ns").start(start_high=False)
    await FallingEdge(dut.clk)
    for _ in range(CYCLES):
        given = {name: draw.getrandbits(len(getattr(dut, name))) for name in names}
        given["gsr_n"] = int(draw.random() < 0.9)
        # Few addresses, so that ports meet; never a write where the other port looks.
        given["ad_a"] = draw.randrange(4) << 5 | draw.getrandbits(5)
        given["ad_b"] = (given["ad_a"] ^ 1 << 5) & ~0x1F | draw.getrandbits(5)
        for name, value in given.items():
            getattr(dut, name).value = value
        await Timer(1, "ns")
        check_products(dut, given)
        for n, (is_set, is_async) in enumerate(FLIP_FLOPS):
            if is_async and (given["lsr"] or not given["gsr_n"]):
                held[n] = is_set
        found = int(dut.q.value)
        assert found == sum(bit << n for n, bit in enumerate(held)), "flip-flops before the edge"
        assert int(dut.lut_ram.value) == bits[given["ra"]], "distributed RAM"
        await FallingEdge(dut.clk)
        for n, (is_set, _) in enumerate(FLIP_FLOPS):
            if given["lsr"] or not given["gsr_n"]:
                held[n] = is_set
            elif given["ce"]:
                held[n] = given["d"]
        if given["we_a"]:
            bits[given["wa"]] = given["d"]
        for n, ram in enumerate(rams):
            ram.step(given)
            check_ram(int(getattr(dut, f"ram_{n}").value), ram)


def check_products(dut, given):
    """The multiplier, and eight bits of an adder."""
    factors = []
    for n, name in enumerate("xy"):
        value = given[name]
        is_negative = given["signs"] >> n & 1 and value >> 17
        factors.append(value - (1 << 18) if is_negative else value)
    product = factors[0] * factors[1] & (1 << 36) - 1
    assert int(dut.p.value) == product, f"{factors}: a product"
    total = (given["x"] & 0xFF) + (given["y"] & 0xFF) + given["d"]
    assert int(dut.sum.value) == total, "a sum of carries"


def check_ram(found: int, ram: Ram) -> None:
    """The output of each port; a pair of 36 bits has its lower half at port a."""
    for port, at in (("a", 0), ("b", 18)):
        shown = ram.shown[port]
        if shown is None:
            continue
        if ram.widths[port] == 36:
            got = found
        else:
            got = found >> at & (1 << ram.widths[port]) - 1
        assert got == shown, f"RAM of {ram.widths}, mode {ram.mode}, port {port}"
