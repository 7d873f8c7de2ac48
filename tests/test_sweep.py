"""tb.sweep: failures are found and tabled, finished seeds are kept, bad input is one line.

Shown to fail:

- a failing seed that leaves exit status 0;
- results that are not kept;
- tests without a seed run at every seed;
- ``-k`` in the place of the two workers and of tb;
- a test that reads the option instead of the fixture;
- a key that ignores the sources;
- tests that passed before an interruption and run again, or are not counted; one that failed and
  does not.
"""

import argparse
import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest

from tb import sweep

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
from pathlib import Path

def test_seeded(seed):
    with (Path(__file__).parent / "ran").open("a") as ran:
        ran.write(f"{seed} ")
    assert seed not in (5, 7), f"not of {seed}"

def test_unseeded():
    with (Path(__file__).parent / "ran").open("a") as ran:
        ran.write("unseeded ")
"""


@pytest.fixture
def benches(tmp_path):
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "test_two.py").write_text(TESTS)
    return tmp_path


def run(benches, *options, together=1):
    folder = ["--folder", str(benches / "kept")]
    pytest_options = ["-n", "0", "-p", "no:cacheprovider", str(benches / "test_two.py")]
    return sweep.main([*options, "--together", str(together), *folder, *pytest_options])


def test_failures_are_tabled_and_finished_seeds_kept(benches, capsys):
    ran = benches / "ran"
    assert run(benches, "--first", "4", "--seeds", "3") == 1
    assert ran.read_text() == "4 unseeded 5 6 "
    shown = capsys.readouterr().out
    assert "3 seeds (4, 5, 6), 4 tests, 1 failed." in shown
    # The name begins with the path from the tree's root to the bench.
    assert re.search(r"\| `\S*test_two\.test_seeded` \| 5 \| AssertionError: not of 5 \|", shown)
    (report,) = (benches / "kept").glob("*/report.md")
    assert report.read_text() in shown
    # Resumes: of the new range only seed 7 is missing.
    assert run(benches, "--first", "4", "--seeds", "4") == 1
    assert ran.read_text() == "4 unseeded 5 6 7 "
    row = r"\| `\S*test_two\.test_seeded` \| 5, 7 \| AssertionError: not of 5 \|"
    assert re.search(row, report.read_text())
    assert run(benches, "--first", "6", "--seeds", "1") == 0


def test_seeds_of_one_run_are_told_apart(benches, capsys):
    """Each test runs at all seeds in turn. Shown to fail: every failure counted at the first."""
    with (benches / "test_two.py").open("a") as tests:
        tests.write(
            "import pytest\n"
            "@pytest.mark.parametrize('n', [1, 2])\n"
            "def test_wide(n, seed):\n    assert (n, seed) != (2, 6)\n"
        )
    assert run(benches, "--first", "4", "--seeds", "4", together=3) == 1
    assert (benches / "ran").read_text() == "4 5 6 unseeded 7 "
    shown = capsys.readouterr().out
    assert "4 seeds (4, 5, 6, 7), 13 tests, 3 failed." in shown
    assert re.search(r"\| `\S*test_two\.test_seeded` \| 5, 7 \| ", shown)
    assert re.search(r"\| `\S*test_two\.test_wide\[2\]` \| 6 \| ", shown)
    counts = {
        seed: len(
            json.loads(next((benches / "kept").glob(f"*/seed-{seed}.json")).read_text())["failed"]
        )
        for seed in range(4, 8)
    }
    assert counts == {4: 0, 5: 1, 6: 1, 7: 1}


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_passed_before_an_interruption_does_not_run_again(workers, benches, capsys):
    with (benches / "test_two.py").open("a") as tests:
        tests.write(
            "import os, pytest\n"
            "@pytest.mark.parametrize('n', ['a, b'])\n"
            "def test_wide(n, seed):\n"
            "    ended = Path(__file__).parent / 'ended'\n"
            "    if seed == 6 and not ended.exists():\n"
            "        ended.touch()\n"
            "        os.kill(int(os.environ['SWEEP_TEST_PYTEST']), 9)\n"
            "        os._exit(3)\n"
        )
    shutil.copy(benches / "conftest.py", benches / "root.py")
    (benches / "conftest.py").write_text(
        "import os\nfrom root import *\n"
        "os.environ.setdefault('SWEEP_TEST_PYTEST', str(os.getpid()))\n"
    )
    options = ["--first", "4", "--seeds", "3", "--together", "3"]
    folder = ["--folder", str(benches / "kept"), "-n", workers, "-p", "no:cacheprovider"]
    command = [*options, *folder, "--dist", "no", str(benches / "test_two.py")]
    assert sweep.main(command) == 2
    assert "pytest ended with -9" in capsys.readouterr().err
    (passed,) = (benches / "kept").glob("*/seed-4-6.passed")
    with passed.open("a") as names:
        names.write("a line that is c")
    before = (benches / "ran").read_text()
    assert before == "4 5 6 unseeded "
    assert sweep.main(command) == 1
    assert (benches / "ran").read_text() == before + "5 ", "only what failed runs again"
    shown = capsys.readouterr().out
    assert "seeds 4 to 6: 5 tests have passed already" in shown
    assert "3 seeds (4, 5, 6), 7 tests, 1 failed." in shown
    assert not passed.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seed": 4}'])
def test_a_damaged_seed_runs_again(text, tmp_path, monkeypatch):
    """Shown to fail: JSONDecodeError and KeyError."""
    ran = []

    def run_seeds(seeds, arguments, folder, seeded_only):
        ran.extend(seeds)
        return [{"seed": seed, "tests": 1, "failed": {}, "seconds": 1} for seed in seeds]

    monkeypatch.setattr(sweep, "run_seeds", run_seeds)
    command = ["--first", "4", "--seeds", "2", "--together", "1", "--folder", str(tmp_path)]
    assert sweep.main(command) == 0
    (kept,) = tmp_path.rglob("seed-4.json")
    kept.write_text(text)
    assert sweep.main(command) == 0
    assert ran == [4, 5, 4]


@pytest.mark.parametrize("given", ["foo", "-3", "1.5", "", str(2**31), "9" * 5000])
def test_a_seed_that_is_no_seed_is_one_line(given):
    """Shown to fail: each test of a run ended with the ValueError of int()."""
    path = importlib.util.spec_from_file_location("root_conftest", ROOT / "conftest.py")
    root = importlib.util.module_from_spec(path)
    path.loader.exec_module(root)

    class Config:
        option = argparse.Namespace(seed=given, seeds=1, wave=False, passed=None)

        def getoption(self, name):
            return getattr(self.option, name.removeprefix("--"))

    with pytest.raises(
        pytest.UsageError, match=r"^--seed must be 0\.\.2147483647 or 'random', not"
    ):
        root.pytest_configure(Config())
    for good in ("0", "2147483647", "random"):
        Config.option.seed = good
        root.pytest_configure(Config())
        assert 0 <= int(Config.option.seed) < 2**31


def test_only_the_fixture_reads_the_seed():
    """A sweep runs the tests that name the fixture ``seed``. Others would run at one seed only."""
    files = [f for room in ("tb", "senbazuru", "tests") for f in (ROOT / room).rglob("*.py")]
    reads = re.compile(r"""getoption\(["'](--)?seed|option\.seed\b|getfixturevalue\(["']seed""")
    found = [file for file in files if reads.search(file.read_text())]
    assert found in ([], [Path(__file__)]), found


def test_a_run_that_cannot_start_is_one_line(benches, capsys):
    (benches / "test_two.py").write_text("import nothing_of_this_name\n")
    assert run(benches, "--seeds", "1") == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "seed 2: pytest ended with 2" in message


def test_key_is_of_arguments_and_sources(tmp_path):
    (tmp_path / "tb").mkdir()
    bench = tmp_path / "tb" / "test_x.py"
    bench.write_text("first")
    keys = {sweep.sources_key(["tb"], tmp_path), sweep.sources_key(["tb", "-x"], tmp_path)}
    bench.write_text("second")
    assert len({*keys, sweep.sources_key(["tb"], tmp_path)}) == 3


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [
        ([], "-n 2 --dist worksteal tb senbazuru"),
        (["-k", "tb"], "-n 2 --dist worksteal -k tb tb senbazuru"),
        (["-x", "tb/stream"], "-n 2 --dist worksteal -x tb/stream"),
        (["tb/simulate/test_run.py::test_x", "-n", "0"], "tb/simulate/test_run.py::test_x -n 0"),
        (["-n1"], "-n1 tb senbazuru"),
    ],
)
def test_arguments_add_to_the_defaults(arguments, whole):
    assert " ".join(sweep.with_defaults(arguments)) == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--folder", ""], "argument --folder: must name a folder, not ''"),
        (["--seeds", "0"], "seeds must be 1..2147483646, not 0"),
        (["--first", "0"], "first must be 1..2147483647, not 0"),
        (["--first", "2147483647", "--seeds", "2"], "seeds must be 1..1, not 2"),
    ],
)
def test_bad_input(options, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        sweep.main(options)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
