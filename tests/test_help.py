"""Each command answers ``--help`` without torch, and its usage names the command.

Seen to fail with golden.checkpoint imported at the top of golden/pack.py, and without ``prog``.
"""

import subprocess
import sys

import pytest

from tests.test_command import ROOT, commands, module_of

SCRIPT = """
import runpy, sys
name = sys.argv[1]
sys.argv[1:] = ["--help"]
try:
    runpy.run_module(name, run_name="__main__", alter_sys=True)
finally:
    heavy = {"torch", "transformers", "matplotlib"} & sys.modules.keys()
    print("imported", sorted(heavy), file=sys.stderr)
"""


@pytest.mark.parametrize("path", commands(), ids=module_of)
def test_help_imports_no_torch(path):
    name = module_of(path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "imported []\n")
    assert done.stdout.startswith(f"usage: python -m {name} ")


@pytest.mark.parametrize("path", commands(), ids=module_of)
def test_a_refused_option_is_one_line(path):
    """Shown to fail on argparse's own parser, which prints the usage first."""
    name = module_of(path)
    done = subprocess.run(
        [sys.executable, "-m", name, "--seeds" if name == "tb.sweep" else "--no-such"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{name}: ")
    assert done.stderr.count("\n") == 1
