"""``.ci/setup``: one line where something is missing; the disk that the build of torch needs.

A stand-in for Python plays venv and pip, and one for df the free disk. Shown to fail: 5 GB free and
the CUDA build of torch, which filled the disk in the middle of the set-up.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTHON = """#!/bin/sh
case "$*" in
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    *--dry-run*) [ -z "$TORCH" ] || echo "Would install torch-$TORCH" ;;
    "-m pip install "*) echo "$*" >> ran ;;
esac
"""
DF = """#!/bin/sh
echo Filesystem 1024-blocks Used Available Capacity Mounted
echo /dev/disk 9 9 $FREE 9% /
"""


@pytest.fixture(params=["tree", "a tree"])
def set_up(request, tmp_path):
    """Run .ci/setup in a copy of the tree's set-up with so much disk and that build of torch.

    The tree may have a space in its path, the environment none: Verilator's scripts allow none.
    """
    tree = tmp_path / request.param
    (tree / "tools").mkdir(parents=True)
    shutil.copytree(ROOT / ".ci", tree / ".ci")
    for name, text in (("python", PYTHON), ("df", DF)):
        (tree / "tools" / name).write_text(text)
        (tree / "tools" / name).chmod(0o755)

    def run(gigabytes: float, torch: str, venv: str = str(tmp_path / "venv")):
        environment = {
            **os.environ,
            "PATH": f"{tree / 'tools'}{os.pathsep}{os.environ['PATH']}",
            "SENBAZURU_PYTHON": str(tree / "tools" / "python"),
            "FREE": str(int(gigabytes * 1_000_000)),
            "TORCH": torch,
        }
        done = subprocess.run(
            [tree / ".ci" / "setup", venv],
            cwd=tree, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        installed = (tree / "ran").exists()
        assert (tree / venv / "ready").exists() == installed == (done.returncode == 0)
        return done.returncode, done.stderr

    return run


@pytest.mark.parametrize(
    ("gigabytes", "torch"), [(9, "2.13.0"), (8, "2.13.0+cu130"), (4, "2.13.0+cpu"), (1.5, "")]
)
def test_enough_disk(set_up, gigabytes, torch):
    """An empty name says that torch is installed already."""
    assert set_up(gigabytes, torch) == (0, "")


@pytest.mark.parametrize(
    ("gigabytes", "torch", "needs"),
    [
        (0.9, "", "1 GB of disk are needed here, 0 GB are free"),
        (3.9, "2.13.0+cpu", "4 GB of disk are needed here, 3 GB are free"),
        (
            5,
            "2.13.0",
            (
                "8 GB of disk are needed here for torch's CUDA build (4 for its CPU build: "
                "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu), 5 GB are free"
            ),
        ),
    ],
)
def test_too_little_disk_is_one_line(set_up, gigabytes, torch, needs):
    assert set_up(gigabytes, torch) == (1, f"setup: {needs}\n")


def test_an_environment_in_a_path_with_a_space_is_refused(set_up, tmp_path):
    """Shown to fail: the set-up took minutes, and then Verilator cut its path at the space."""
    status, errors = set_up(9, "2.13.0+cpu", ".venv")
    if (tmp_path / "tree").exists():
        assert (status, errors) == (0, "")
    else:
        place = f"{tmp_path}/a tree/.venv; give another: make VENV=/path/venv"
        message = f"setup: Verilator does not run from a path with a space: {place}\n"
        assert (status, errors) == (1, message)
