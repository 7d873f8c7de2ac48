"""A block on a board with a UART: the top, and the files that its tools take.

The board is a ULX3S with an ECP5 of 85,000 LUTs. Its clock has 25 MHz. ``synth.fpga.link`` says
which bytes go over the UART, 8 bits and one stop bit at BAUD. An LED is lit while the block is not
in reset.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from amaranth import Cat, ClockSignal, Const, Elaboratable, Instance, Module, Signal
from amaranth.lib import io
from amaranth.lib.cdc import FFSynchronizer

from hdl.back.verilog import Design
from synth.fpga.devices import DEVICES
from synth.fpga.flow import block_rams, place_and_route
from synth.fpga.host import host_text
from synth.fpga.link import ACCEPTED, BAUD, READ, RESET, End, ends_of
from synth.fpga.tools import FpgaError, run_tool, run_yosys

CLOCK_HZ = 25_000_000
CYCLES = CLOCK_HZ // BAUD  # of a bit
TOP = "top"


class Receiver(Elaboratable):
    """Bytes of ``line``: ``valid`` for a cycle in the middle of a good stop bit."""

    def __init__(self, cycles: int):
        self.cycles = cycles
        self.line = Signal(init=1)
        self.data = Signal(8)
        self.valid = Signal()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        line = Signal(init=1)
        m.submodules += FFSynchronizer(self.line, line, init=1)
        wait = Signal(range(2 * self.cycles))
        left = Signal(range(10))  # bits of data and the stop bit
        m.d.sync += self.valid.eq(0)
        with m.If(left == 0):
            with m.If(~line):  # the start bit: the middle of bit 0 comes after 1.5 bits
                m.d.sync += [left.eq(9), wait.eq(self.cycles + self.cycles // 2 - 2)]
        with m.Elif(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        with m.Else():
            m.d.sync += [wait.eq(self.cycles - 1), left.eq(left - 1)]
            with m.If(left == 1):
                m.d.sync += self.valid.eq(line)
            with m.Else():
                m.d.sync += self.data.eq(Cat(self.data[1:], line))
        return m


class Transmitter(Elaboratable):
    """Bytes to ``line``; a byte is taken where ``valid`` and ``ready`` are 1."""

    def __init__(self, cycles: int):
        self.cycles = cycles
        self.line = Signal(init=1)
        self.data = Signal(8)
        self.valid = Signal()
        self.ready = Signal()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        wait = Signal(range(self.cycles))
        left = Signal(range(11))
        bits = Signal(9)
        m.d.comb += self.ready.eq(left == 0)
        with m.If(self.ready):
            with m.If(self.valid):
                m.d.sync += [
                    self.line.eq(0), bits.eq(Cat(self.data, 1)), left.eq(10),
                    wait.eq(self.cycles - 1),
                ]  # fmt: skip
        with m.Elif(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        with m.Else():
            m.d.sync += [
                wait.eq(self.cycles - 1), left.eq(left - 1), self.line.eq(bits[0]),
                bits.eq(Cat(bits[1:], 1)),
            ]  # fmt: skip
        return m


class Bridge(Elaboratable):
    """Frames of ``received`` to the block, and what it gives to ``sent`` (synth.fpga.link)."""

    def __init__(self, description: Mapping[str, Any], received: Receiver, sent: Transmitter):
        self.name = description["name"]
        self.ports = description["ports"]
        self.ends = ends_of(description)
        self.received, self.sent = received, sent
        self.reset = Signal(init=1)
        self.signals = {
            port["name"]: Signal(port["width"], name=f"block_{n}")
            for n, port in enumerate(self.ports)
            if port["role"] not in ("clock", "reset")
        }

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        connected: dict[str, Any] = {}
        for port in self.ports:
            direction = "i" if port["direction"] == "input" else "o"
            signal = {"clock": ClockSignal(), "reset": self.reset}.get(port["role"])
            found = self.signals[port["name"]] if signal is None else signal
            connected[f"{direction}_{port['name']}"] = found
        m.submodules.block = Instance(self.name, **connected)
        full = [Signal(name=f"full_{n}") for n in range(len(self.ends.inputs))]
        accepted = [Signal(name=f"accepted_{n}") for n in range(len(self.ends.inputs))]
        asked = Signal()
        m.d.sync += self.reset.eq(0)
        for end, has_word, is_accepted in zip(self.ends.inputs, full, accepted, strict=True):
            if not end.is_stream:
                continue
            ready = self.signals[end.ready] if end.ready else 1
            if end.valid:
                m.d.comb += self.signals[end.valid].eq(has_word)
            with m.If(has_word & ready):
                m.d.sync += [has_word.eq(0), is_accepted.eq(1)]
        self._send(m, accepted, asked)
        self._receive(m, full, asked)
        with m.If(self.reset):
            m.d.sync += [each.eq(0) for each in (*full, *accepted)]
        return m

    def _receive(self, m: Module, full: list[Signal], asked: Signal) -> None:
        """A frame: its first byte, then the bytes of its payload into their register."""
        data, valid = self.received.data, self.received.valid
        kind, left = Signal(8), Signal(range(max(end.bytes for end in self.ends.inputs) + 2))
        words = [Signal(8 * end.bytes, name=f"word_{n}") for n, end in enumerate(self.ends.inputs)]
        for end, word in zip(self.ends.inputs, words, strict=True):
            if end.payload is not None:
                m.d.comb += self.signals[end.payload].eq(word)
        with m.If(valid & (left == 0)):
            m.d.sync += kind.eq(data)
            with m.Switch(data):
                for n, end in enumerate(self.ends.inputs):
                    with m.Case(n):
                        m.d.sync += left.eq(end.bytes)
                        if not end.bytes:
                            m.d.sync += full[n].eq(1)
                with m.Case(RESET):
                    m.d.sync += self.reset.eq(1)
                with m.Case(READ):
                    m.d.sync += asked.eq(1)
        with m.Elif(valid):
            m.d.sync += left.eq(left - 1)
            with m.Switch(kind):
                for n, end in enumerate(self.ends.inputs):
                    if end.payload is not None:
                        with m.Case(n):
                            m.d.sync += words[n].eq(Cat(words[n][8:], data))
                            if end.is_stream:
                                m.d.sync += full[n].eq(left == 1)

    def _send(self, m: Module, accepted: list[Signal], asked: Signal) -> None:
        """The next frame, as soon as the one before has gone: acceptances first."""
        ends = self.ends
        size = max([end.bytes for end in ends.sinks] + [(ends.output_bits + 7) // 8])
        word, left = Signal(8 * (size + 1)), Signal(range(size + 2))
        m.d.comb += [self.sent.data.eq(word[:8]), self.sent.valid.eq(left != 0)]
        with m.If(self.sent.valid & self.sent.ready):
            m.d.sync += [word.eq(word[8:]), left.eq(left - 1)]
        chosen = m.If
        idle = left == 0
        for n, each in enumerate(accepted):
            with chosen(idle & each):
                m.d.sync += [each.eq(0), word.eq(ACCEPTED + n), left.eq(1)]
            chosen = m.Elif
        for n, end in enumerate(ends.sinks):
            with chosen(idle & self._valid(end)):
                if end.ready:
                    m.d.comb += self.signals[end.ready].eq(1)
                payload = [self.signals[end.payload]] if end.payload else []
                m.d.sync += [word.eq(Cat(Const(n, 8), *payload)), left.eq(1 + end.bytes)]
            chosen = m.Elif
        values = [self.signals[end.name] for end in ends.outputs]
        with chosen(idle & asked):
            m.d.sync += [
                asked.eq(0), word.eq(Cat(Const(READ, 8), *values)),
                left.eq(1 + (ends.output_bits + 7) // 8),
            ]  # fmt: skip

    def _valid(self, end: End) -> Any:
        return self.signals[end.valid] if end.valid else 1


class Board(Elaboratable):
    """The top: pins of the board, UART, bridge and block."""

    def __init__(self, description: Mapping[str, Any], verilog: str, cycles: int = CYCLES):
        self.description, self.verilog, self.cycles = description, verilog, cycles

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        platform.add_file(f"{self.description['name']}.v", self.verilog)
        pins = dict.fromkeys(("rx", "tx", "rts", "dtr"), "-")
        uart = platform.request("uart", 0, dir=pins)
        m.submodules.rx = rx = io.Buffer("i", uart.rx)
        m.submodules.tx = tx = io.Buffer("o", uart.tx)
        m.submodules.led = led = io.Buffer("o", platform.request("led", 0, dir="-"))
        m.submodules.receiver = receiver = Receiver(self.cycles)
        m.submodules.transmitter = transmitter = Transmitter(self.cycles)
        m.submodules.bridge = bridge = Bridge(self.description, receiver, transmitter)
        m.d.comb += [
            receiver.line.eq(rx.i), tx.o.eq(transmitter.line), led.o.eq(~bridge.reset),
        ]  # fmt: skip
        return m


@contextmanager
def _tools_named() -> Iterator[None]:
    """Amaranth looks for the tools before it writes the files; here they run later."""
    names = ("YOSYS", "NEXTPNR_ECP5", "ECPPACK", "OPENFPGALOADER")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, sys.executable))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def board_files(description: Mapping[str, Any], verilog: str) -> dict[str, str]:
    """Name -> text: RTLIL of the top, Verilog of the block, pins, and the script of Yosys."""
    from amaranth_boards.ulx3s import ULX3S_85F_Platform

    with _tools_named():
        plan = ULX3S_85F_Platform().build(
            Board(description, verilog), name=TOP, do_build=False, verbose=True
        )
    found = {
        name: text if isinstance(text, str) else text.decode() for name, text in plan.files.items()
    }
    return {name: found[name] for name in found if name.endswith((".il", ".v", ".lpf", ".ys"))}


@dataclasses.dataclass(frozen=True)
class Placed:
    """A board's files in ``folder``, and the clock after routing in MHz."""

    folder: Path
    mhz: float
    cells: Mapping[str, int]


def place(design: Design, folder: Path, seed: int = 1) -> Placed:
    """Makes ``top.bit``, ``top.svf``, ``host.py`` and the routed netlist ``routed.json``.

    FpgaError: the design does not fit, or its clock is slower than the board's. YosysError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in board_files(design.description, design.verilog).items():
        (folder / name).write_text(text)
    (folder / f"{design.name}.json").write_text(json.dumps(design.description, indent=1))
    (folder / "host.py").write_text(host_text())
    script = (folder / f"{TOP}.ys").read_text()
    run_yosys(
        script.replace("synth_ecp5", f"{block_rams(design.verilog)}synth_ecp5", 1), folder,
        "synthesis",
    )  # fmt: skip
    options = (
        "--lpf", f"{TOP}.lpf", "--write", "routed.json", "--textcfg", f"{TOP}.config",
    )  # fmt: skip
    found = place_and_route(folder, DEVICES["ecp5-85f"], seed, options, TOP)
    if found.mhz * 1e6 < CLOCK_HZ:
        raise FpgaError(
            f"{design.name}: routed for {found.mhz:.1f} MHz; the board has {CLOCK_HZ / 1e6:g}"
        )
    run_tool(
        "ecppack",
        ["--compress", "--input", f"{TOP}.config", "--bit", f"{TOP}.bit", "--svf", f"{TOP}.svf"],
        folder, "pack",
    )  # fmt: skip
    return Placed(folder, found.mhz, found.cells)
