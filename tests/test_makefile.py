"""Tests of what make passes on.

Shown to fail: an empty --prompt where the user gave no PROMPT; two processes whatever JOBS is; the
variables of an outer `make test JOBS=8`.
"""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def without(name: str) -> dict[str, str]:
    """The environment without a variable, and without those of the make that runs this test."""
    gone = {name, "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES"}
    return {each: value for each, value in os.environ.items() if each not in gone}


@pytest.mark.parametrize(
    ("words", "environment", "passed"),
    [
        ([], {}, ""),
        (["PROMPT="], {}, '--prompt "$PROMPT"'),
        (["PROMPT=a b"], {}, '--prompt "$PROMPT"'),
        ([], {"PROMPT": "a b"}, '--prompt "$PROMPT"'),
    ],
)
def test_prompt(words, environment, passed):
    given = without("PROMPT") | environment
    command = ["make", "--dry-run", "talk", *words]
    said = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=True)
    (line,) = (line for line in said.stdout.splitlines() if "senbazuru.talk" in line)
    assert " ".join(line.split()).partition("-m senbazuru.talk")[2].strip() == passed


@pytest.mark.parametrize("target", ["test", "test-all", "tests", "tb"])
def test_jobs(target):
    for words, processes in (([], "2"), (["JOBS=5"], "5")):
        command = ["make", "--dry-run", target, *words]
        said = subprocess.run(
            command, cwd=ROOT, env=without("JOBS"), capture_output=True, text=True, check=True
        )
        assert f"-n {processes} " in said.stdout
