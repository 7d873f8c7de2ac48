"""What make passes on.

Shown to fail: an empty --prompt where the user gave no PROMPT; two processes whatever JOBS is.
"""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


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
    given = {name: value for name, value in os.environ.items() if name != "PROMPT"}
    command = ["make", "--dry-run", "talk", *words]
    said = subprocess.run(
        command, cwd=ROOT, env=given | environment, capture_output=True, text=True, check=True
    )
    (line,) = (line for line in said.stdout.splitlines() if "tb.talk" in line)
    assert " ".join(line.split()).partition("-m tb.talk")[2].strip() == passed


@pytest.mark.parametrize("target", ["test", "tests", "tb"])
def test_jobs(target):
    for words, processes in (([], "2"), (["JOBS=5"], "5")):
        command = ["make", "--dry-run", target, *words]
        environment = {name: value for name, value in os.environ.items() if name != "JOBS"}
        said = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        assert f"-n {processes} " in said.stdout
