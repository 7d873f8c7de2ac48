"""Each command answers ``--help`` without torch, and its usage names the command.

Seen to fail with golden.llm.checkpoint imported at the top of golden/llm/pack.py, and without
``prog``.
"""

import json
import subprocess
import sys

import pytest

from tests.test_command import ROOT, commands, module_of

# One process that has imported what most commands import, but nothing heavy. A fork runs each.
SERVER = """
import importlib, json, os, runpy, sys
for module in ("numpy", "rich.console", "hdl.registry", "hdl.back.deliver", "tb.simulate.run"):
    importlib.import_module(module)
for line in sys.stdin:
    name, options, out, err = json.loads(line)
    child = os.fork()
    if not child:
        for path, number in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        sys.argv[1:] = options
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        finally:
            heavy = {"torch", "transformers", "matplotlib"} & sys.modules.keys()
            sys.stdout.flush()
            if heavy:
                print("imported", sorted(heavy), file=sys.stderr)
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Runner:
    """Runs command lines in forks of one process."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder, name, *options) -> tuple[int, str, str]:
        """Exit status, standard output and standard error of ``python -m name options``."""
        out, err = folder / "out", folder / "err"
        self.process.stdin.write(json.dumps([name, options, str(out), str(err)]) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        return status, out.read_text(), err.read_text()


@pytest.fixture(scope="module")
def runner():
    runner = Runner()
    yield runner
    with runner.process:
        runner.process.stdin.close()


@pytest.mark.parametrize("path", commands(), ids=module_of)
def test_help_imports_no_torch(path, runner, tmp_path):
    name = module_of(path)
    status, out, err = runner.run(tmp_path, name, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: python -m {name} ")


@pytest.mark.parametrize("path", commands(), ids=module_of)
def test_a_refused_option_is_one_line(path, runner, tmp_path):
    """Shown to fail on argparse's own parser, which prints the usage first."""
    name = module_of(path)
    option = "--seeds" if name == "tb.sweep" else "--no-such"
    status, out, err = runner.run(tmp_path, name, option)
    assert (status, out) == (2, "")
    assert err.startswith(f"{name}: ")
    assert err.count("\n") == 1


def test_the_process_that_forks_tells_what_a_command_imports(runner, tmp_path):
    """A command that imports torch is reported, and one that is missing ends with 1."""
    status, _, err = runner.run(tmp_path, "torch.version")
    assert (status, err.splitlines()[-1]) == (0, "imported ['torch']")
    (tmp_path / "next").mkdir()
    status, _, err = runner.run(tmp_path / "next", "golden.no_such_module")
    assert (status, "No module named" in err) == (1, True)
