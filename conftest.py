"""Shared by tests/ and tb/: the seeds, and the processor time of each test."""

import contextlib
import gc
import os
import random
import re
import resource
import sys
from pathlib import Path

import pytest

from tb.simulate.bytecode import bytecode_folder

ROOT = Path(__file__).parent
BUILD = ROOT / "build"


def pytest_addoption(parser):
    parser.addoption("--seed", default="1", help="seed of vectors and stalls, or 'random'")
    parser.addoption(
        "--seeds", type=int, default=1, help="so many seeds from --seed on, next to each other"
    )
    parser.addoption(
        "--wave", action="store_true", help="each simulation writes an FST file (tb.simulate.waves)"
    )
    parser.addoption("--testfloat", default=None, help="folder of Berkeley TestFloat vectors")
    parser.addoption("--seeded-only", action="store_true", help="only tests that use the seed")
    parser.addoption("--leave-out", help="a file of ids, a line each: tests that do not run")
    parser.addoption(
        "--all-cases", action="store_true", help="also the cases that ``telling`` leaves out"
    )
    parser.addoption("--passed", help="a file that takes the id of each test that passes")


def _has_own_seeds(item):
    """It is parametrized with seeds, so those of the command line do not reach it."""
    marks = item.iter_markers("parametrize")
    return any("seed" in str(mark.args[0]).replace(",", " ").split() for mark in marks)


def _case(item) -> str:
    """Its id among the cases of its function, without a seed of ``--seeds``; "" without cases."""
    return re.sub(r"-?seed\d+$", "", item.callspec.id) if hasattr(item, "callspec") else ""


def _is_told(item) -> bool:
    """Whether ``make test`` runs it: its function has no ``telling``, or that names its case."""
    mark = item.get_closest_marker("telling")
    return mark is None or _case(item) in mark.args


def _check_telling(items):
    """UsageError: ``telling`` names a case that its function does not have."""
    cases: dict[str, set[str]] = {}
    wanted: dict[str, set[str]] = {}
    for item in items:
        mark = item.get_closest_marker("telling")
        if mark is not None:
            name = item.nodeid.partition("[")[0]
            cases.setdefault(name, set()).add(_case(item))
            wanted[name] = set(mark.args)
    for name, each in wanted.items():
        missing = sorted(each - cases[name])
        if missing:
            raise pytest.UsageError(f"{name}: telling must name its cases, not {missing}")


@pytest.hookimpl(tryfirst=True)  # all cases are there, whatever -k then selects
def pytest_collection_modifyitems(config, items):
    names_cases = any("::" in each for each in config.args)
    if not names_cases:
        _check_telling(items)
    seeded_only, file = config.getoption("--seeded-only"), config.getoption("--leave-out")
    named = set(Path(file).read_text().splitlines()) if file else ()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    takes_all = config.getoption("--all-cases") or names_cases
    for item in items:
        is_seeded = "seed" in getattr(item, "fixturenames", ()) and not _has_own_seeds(item)
        goes = item.nodeid in named or (seeded_only and not is_seeded)
        goes = goes or not (takes_all or _is_told(item))
        (left_out if goes else kept).append(item)
    if left_out:
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)


def pytest_configure(config):
    # Workers of pytest-xdist get the controller's seed through the option itself.
    given = config.getoption("--seed")
    if given == "random":
        config.option.seed = str(random.SystemRandom().randrange(1, 2**31))
    elif not re.fullmatch(r"[0-9]{1,10}", given) or int(given) >= 2**31:
        raise pytest.UsageError(f"--seed must be 0..{2**31 - 1} or 'random', not {given!r}")
    count, most = config.getoption("--seeds"), 2**31 - int(config.option.seed)
    if not 1 <= count <= most:
        raise pytest.UsageError(f"--seeds must be 1..{most}, not {count}")
    if count > 1:
        os.environ["TB_RESIDENT"] = "1"  # tb.simulate.resident
    if config.getoption("--passed") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Passed(config.getoption("--passed")))
    if config.getoption("--wave"):
        if count > 1:
            raise pytest.UsageError("--wave is for one seed: it does not go with --seeds")
        os.environ["TB_WAVE"] = "1"  # tb.simulate.waves
    os.environ["SENBAZURU_YOSYS_RESIDENT"] = "1"  # hdl.back.yosys
    # Workers, and the commands that tests start, would compile every module anew.
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(bytecode_folder(ROOT, BUILD / "pycache")))


@pytest.hookimpl(trylast=True)  # the last parameter varies first: a test's seeds follow each other
def pytest_generate_tests(metafunc):
    count, first = metafunc.config.getoption("--seeds"), int(metafunc.config.getoption("--seed"))
    if count > 1 and "seed" in metafunc.fixturenames and not _has_own_seeds(metafunc.definition):
        seeds = range(first, first + count)
        metafunc.parametrize("seed", seeds, ids=[f"seed{each}" for each in seeds])


def pytest_collection_finish(session):
    # The collector need not look again at modules and tests. It looked at them after each emission.
    gc.collect()
    gc.freeze()


def pytest_report_header(config):
    count = config.getoption("--seeds")
    more = f", {count} from there on" if count > 1 else ""
    return f"seed: {config.getoption('--seed')}{more}"


@pytest.fixture(scope="session")
def seed(request) -> int:
    return int(request.config.getoption("--seed"))


_spent = pytest.StashKey[float]()


def _processor_seconds() -> float:
    """User and system seconds of this process and of all its children, ended or not."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + _seconds_of_residents()


def _seconds_of_residents() -> float:
    """Those of the children that still run, such as hdl.back.yosys, and of their children."""
    seconds, children = 0.0, []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has just ended
            children += (task / "children").read_text().split()
    for child in children:
        with contextlib.suppress(OSError):  # it has just ended
            # The name, in parentheses, may hold a space.
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2].split()
            seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[_spent] = _processor_seconds()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    # A property of the test in the file of --junitxml: python -m senbazuru.runs.build_report rooms.
    if call.when == "teardown":
        spent = _processor_seconds() - item.stash[_spent]
        item.user_properties.append(("processor", f"{spent:.3f}"))
        waves = sys.modules.get("tb.simulate.waves")
        for file in waves.new_files() if waves else ():
            item.user_properties.append(("wave", str(file)))


class _Passed:
    """Adds the id of each test that passes to a file, in the process that starts the workers."""

    def __init__(self, path):
        self._path, self._called = Path(path), set()

    def pytest_runtest_logreport(self, report):
        if report.passed and report.when == "call":
            self._called.add(report.nodeid)
        elif report.passed and report.when == "teardown" and report.nodeid in self._called:
            with self._path.open("a") as names:
                names.write(f"{report.nodeid}\n")


def pytest_terminal_summary(terminalreporter):
    reports = [each for group in terminalreporter.stats.values() for each in group]
    for report in reports:
        if getattr(report, "when", "") == "teardown":
            for name, value in report.user_properties:
                if name == "wave":
                    terminalreporter.write_line(f"wave: {value} ({report.nodeid})")
