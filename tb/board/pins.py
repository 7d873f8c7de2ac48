"""A routed netlist as a program, and the bytes of its UART.

The program is compiled once for each netlist and kept under build/pins.
"""

import hashlib
import re
import struct
import subprocess
from pathlib import Path

import filelock

from synth.fpga.board import CYCLES, TOP
from tb.simulate.compile import tool_environment
from tb.simulate.run import ROOT

FOLDER = ROOT / "build" / "pins"
_SOURCE = Path(__file__).parent / "pins.cpp"
_PINS = {"PINS_CLOCK": "clk25_0__io", "PINS_RX": "uart_0__rx__io", "PINS_TX": "uart_0__tx__io"}


def compiled(verilog: str, cycles: int = CYCLES) -> Path:
    """The program of a netlist. RuntimeError: it does not compile. cycles : of a bit"""
    identity = f"{verilog}\0{_SOURCE.read_text()}\0{cycles}"
    folder = FOLDER / hashlib.sha256(identity.encode()).hexdigest()[:20]
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / "lock"):
        if not (folder / "complete").exists():
            (folder / f"{TOP}.v").write_text(verilog)
            named = {key: re.sub("__", "___05F", pin) for key, pin in _PINS.items()}
            flags = " ".join(f"-D{k}={v}" for k, v in (named | {"PINS_BIT": cycles}).items())
            command = [
                "verilator", "--cc", "--exe", "--build", "-j", "2", "-O3", "--top-module", TOP,
                "--prefix", "Vtop", "--Mdir", ".", "-o", "pins", "-Wno-fatal", "-Wno-lint",
                "-Wno-style", "--no-assert", "--x-assign", "fast", "--x-initial", "fast",
                "--output-split", "20000", "-CFLAGS", f"-O1 {flags}", f"{TOP}.v", str(_SOURCE),
            ]  # fmt: skip
            with (folder / "log").open("w") as log:
                made = subprocess.run(
                    command, cwd=folder, env=tool_environment(), stdout=log,
                    stderr=subprocess.STDOUT, check=False,
                )  # fmt: skip
            if made.returncode:
                raise RuntimeError(f"the routed netlist does not compile, see {folder / 'log'}")
            (folder / "complete").touch()
    return folder / "pins"


class Pins:
    """A board that runs: what ``synth.fpga.link`` says goes in and out as bytes."""

    def __init__(self, program: Path):
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.cycle = 0

    def __enter__(self) -> "Pins":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def send(self, data: bytes) -> bytes:
        """Sends bytes one after the other; gives those that have come meanwhile."""
        return self._exchange(struct.pack("<cI", b"S", len(data)) + data)

    def receive(self, count: int, cycles: int) -> bytes:
        """Runs until ``count`` bytes have come, for ``cycles`` cycles at most; gives the bytes."""
        return self._exchange(struct.pack("<cIQ", b"R", count, cycles))

    def _exchange(self, command: bytes) -> bytes:
        given, made = self._process.stdin, self._process.stdout
        assert given is not None
        assert made is not None
        try:
            given.write(command)
            given.flush()
        except BrokenPipeError:
            pass  # the program has ended, and says why
        head = made.read(4)
        if len(head) < 4:
            _, error = self._process.communicate()
            raise AssertionError(f"the board has stopped: {error.decode().strip()}")
        (count,) = struct.unpack("<I", head)
        data = made.read(count)
        (self.cycle,) = struct.unpack("<Q", made.read(8))
        return data
