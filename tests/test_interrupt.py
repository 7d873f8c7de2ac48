"""Ctrl-C in commands of synth and tb: one line, exit status 130, and no Yosys or compiler is left.

Stand-ins of Yosys, of the compiler and of the prover sleep. Shown to fail: a traceback, and Yosys,
in a session of its own, went on; tb.formal began every proof that waited.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_command import hear_interrupt

ROOT = Path(__file__).resolve().parent.parent
CHILD = "import os, time; open(f'child-{os.getpid()}', 'w'); time.sleep(1000)"
BEGIN = f"""
import subprocess, sys
from pathlib import Path
from golden import command
import synth.yosys
CHILD = "import os; os.chdir({{!r}}); ".format(str(Path.cwd())) + {CHILD!r}
synth.yosys.TOOLS["pyosys"] = CHILD
synth.yosys.default_tool = lambda: "pyosys"
def child(*_, **__):
    subprocess.run([sys.executable, "-c", CHILD], check=True)
"""
CASES = {
    "synth.report": """
from synth import report
report.default_tool = synth.yosys.default_tool
def main():
    return report.main(["stream_register"])
""",
    "synth.compare": """
from hdl.registry import configuration, find
from hdl.back.verilog import convert
from synth import modules
from synth.area import load_libraries
modules.default_tool = synth.yosys.default_tool
def main():
    config = configuration("kllm_concat", "small", [])
    block = find("kllm_concat").component(config)
    modules.map_modules(convert(block, "kllm_concat"), load_libraries())
""",
    "senbazuru.runs.demo": """
import tb.simulate.run
from hdl.stream.register import StreamRegister, StreamRegisterConfig
tb.simulate.run.SIM_DIR = tb.simulate.run.EMIT_DIR = Path.cwd()
tb.simulate.run.compile_model = child
def main():
    tb.simulate.run.build_model(StreamRegister(StreamRegisterConfig(width=8)))
""",
    "tb.formal": """
from tb.formal import __main__ as formal
formal.check = child
def main():
    return formal.main(["--jobs", "1"])
""",
}


@pytest.mark.parametrize("name", CASES)
def test_ctrl_c(name, tmp_path):
    script = f"{BEGIN}{CASES[name]}command.run({name!r}, main)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_interrupt,
    )
    for _ in range(1500):
        if list(tmp_path.glob("child-*")) or process.poll() is not None:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, errors.strip()) == (130, f"{name}: interrupted")
    begun = list(tmp_path.glob("child-*"))
    assert 1 <= len(begun) <= 2  # no more than ran at once
    for each in begun:
        with pytest.raises(ProcessLookupError):
            os.kill(int(each.name.removeprefix("child-")), 0)
