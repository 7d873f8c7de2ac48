"""tb.simulate.bytecode: a source that changes twice within a second runs its new text.

Shown to fail: one folder for all states; no folder shared by the libraries; folders kept for ever.
"""

import os
import subprocess
import sys
import time

from tb.simulate.bytecode import _KEPT, bytecode_folder
from tb.simulate.run import ROOT
from tb.simulate.runner import Runner


def test_a_source_of_the_same_size_and_second_runs_anew(tmp_path):
    (tmp_path / "tb").mkdir()
    source = tmp_path / "tb" / "tbm.py"
    second = int(time.time()) - 100

    def run(text: str) -> str:
        source.write_text(f"import json\nX = {text}\nprint(X, json.__cached__)\n")
        os.utime(source, (second, second))
        environment = dict(os.environ) | {
            "PYTHONPYCACHEPREFIX": str(bytecode_folder(tmp_path, tmp_path / "kept")),
            "PYTHONDONTWRITEBYTECODE": "",
        }
        command = [sys.executable, "-c", "import tb.tbm"]
        found = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return found.stdout.split()[0]

    # Two states, although size and time of change are the same.
    assert run("1 + 1") == "2"
    assert len(list((tmp_path / "kept").rglob("tbm.*.pyc"))) == 1
    assert run("1 - 1") == "0"
    kept = tmp_path / "kept"
    assert len(list(kept.rglob("tbm.*.pyc"))) == 2
    libraries = list(kept.rglob("json/__init__.*.pyc"))
    assert [path.relative_to(kept).parts[0] for path in libraries] == ["library"]
    for number in range(2 * _KEPT):
        run(f"1 + {number}")
    assert len(list(kept.iterdir())) == 1 + 1 + _KEPT  # the libraries, this state, earlier ones


def test_an_unchanged_tree_keeps_its_folder(tmp_path):
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / "x.py").write_text("")
    first = bytecode_folder(tmp_path, tmp_path / "kept")
    assert bytecode_folder(tmp_path, tmp_path / "kept") == first
    (tmp_path / "tb" / "y.py").write_text("")
    assert bytecode_folder(tmp_path, tmp_path / "kept") != first


def test_the_simulator_takes_it(monkeypatch):
    runner = Runner()
    monkeypatch.setattr(Runner.__base__, "_set_env_test", lambda _: None)
    runner.env = {}
    runner._set_env_test()
    assert runner.env["PYTHONPYCACHEPREFIX"] == str(
        bytecode_folder(ROOT, ROOT / "build" / "pycache")
    )
