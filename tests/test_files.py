"""golden.files: outputs of two runs, modes, full disks, empty folders; commands that claim theirs.

Seen to fail:

- a lock that is kept after the run, or whose file stays;
- a lock taken after the work;
- a folder that stays after a refusal;
- the mode of safetensors' own file.
"""

import errno
import importlib
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from golden.config import ConfigError
from golden.files import claimed, claimed_folder, made_folder, replacing
from golden.kllm import assembler
from golden.llm import pack
from golden.llm.eval import calibrate as learner
from golden.llm.eval import command as evaluation
from golden.llm.oaken import profile
from golden.llm.qet import __main__ as qet
from golden.llm.reports import codebooks
from golden.llm.reports.million import __main__ as million
from golden.markers import rewrite
from hdl.pages import documents as pages
from senbazuru.runs import lane_power, power
from sim import calibrate as sim_calibrate
from sim import compare, run, sweep
from synth import baseline, report
from tb import together
from tb.faults import mutate

ROOT = Path(__file__).resolve().parent.parent
HOLD = """
import sys
from pathlib import Path
from golden.files import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(file: Path) -> subprocess.Popen:
    """Another process that has claimed ``file`` until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


# ---- the helper


def test_a_claim_of_another_process_is_refused_until_it_ends(tmp_path):
    file = tmp_path / "rows.json"
    with (
        holder(file),
        pytest.raises(ConfigError, match=f"another run writes {file}: wait until it ends"),
        claimed(file),
    ):
        raise AssertionError
    with claimed(file):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_killed_run_leaves_no_claim(tmp_path):
    file = tmp_path / "rows.json"
    process = holder(file)
    process.kill()
    process.communicate()
    with claimed(file):
        pass
    assert list(tmp_path.iterdir()) == []


def test_other_files_of_a_folder_are_free(tmp_path):
    with claimed(tmp_path / "a", None, tmp_path / "b"), claimed(tmp_path / "c"):
        pass
    with pytest.raises(ConfigError, match="two outputs are the file"), claimed(
        tmp_path / "a", tmp_path / ".." / tmp_path.name / "a"
    ):  # fmt: skip
        raise AssertionError


def test_a_device_is_no_output():
    with pytest.raises(ConfigError, match="not the device /dev/null"), claimed(Path("/dev/null")):
        raise AssertionError


def test_turns_are_taken(tmp_path):
    """Each adds one to a number; without turns some are lost."""
    file = tmp_path / "number"
    file.write_text("0")
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from golden.files import in_turn, replacing\n"
        "file = Path(sys.argv[1])\n"
        "for _ in range(40):\n"
        "    with in_turn(file):\n"
        "        number = int(file.read_text())\n"
        "        with replacing(file) as part:\n"
        "            part.write_text(str(number + 1))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(file)], env=environment) for _ in "abc"
    ]
    assert [each.wait() for each in processes] == [0, 0, 0]
    assert file.read_text() == "120"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_of_another_run_is_refused(tmp_path):
    folder = tmp_path / "a" / "b"
    with claimed_folder(folder):
        line = f"another run writes into {folder}"
        with pytest.raises(ConfigError, match=line), claimed_folder(folder):
            raise AssertionError
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_folders_with_files_stay(tmp_path):
    with claimed_folder(tmp_path / "a" / "b"):
        (tmp_path / "a" / "file").touch()
    assert [each.name for each in (tmp_path / "a").iterdir()] == ["file"]
    with pytest.raises(ConfigError, match="not the file"), made_folder(tmp_path / "a" / "file"):
        raise AssertionError
    with pytest.raises(ConfigError), made_folder(tmp_path / "c" / ("n" * 300)):
        raise AssertionError
    assert not (tmp_path / "c").exists()


def test_the_mode_is_that_of_the_umask(tmp_path):
    """Whatever a library gives: safetensors writes 0600."""
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a") as part:
            part.unlink()
            part.touch(0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_an_error_names_the_file(tmp_path):
    """A full disk names none, and a missing folder names the file aside."""
    with pytest.raises(OSError, match="No space left") as caught, replacing(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == str(tmp_path / "a")
    with pytest.raises(OSError, match="No such file") as caught, replacing(tmp_path / "no" / "a"):
        raise AssertionError
    assert str(caught.value).endswith(f"No such file or directory: '{tmp_path}/no/a'")
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="Is a directory") as caught, replacing(tmp_path / "a"):
        pass
    assert str(caught.value).endswith(f"Is a directory: '{tmp_path}/a'")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_page_keeps_what_another_run_has_filled_meanwhile(tmp_path):
    """A section's function takes minutes, in which another run fills another section."""
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- generated: a -->\n<!-- end generated -->\n"
        "<!-- generated: b -->\n<!-- end generated -->\n"
    )

    def slow() -> str:
        rewrite(page, {"b": "two\n"})
        return "one\n"

    rewrite(page, {"a": slow})
    assert "one\n" in page.read_text()
    assert "two\n" in page.read_text()

    def never() -> str:
        raise AssertionError("the page has no such section")

    with pytest.raises(ValueError, match="no section 'c'"):
        rewrite(page, {"a": never, "c": "three\n"})


# ---- the commands


def _no_work(*_, **__):
    raise AssertionError("the work has begun")


@pytest.fixture
def idle(monkeypatch):
    """A command that begins its work fails here."""
    for module, name in (
        (evaluation, "load"), (learner, "load"), (run, "Run"), (compare, "compare"),
        (sweep, "points"), (report, "synthesize"), (power, "bench_of"), (mutate, "examine_all"),
        (qet, "_quantize"), (qet, "_restore"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, _no_work)
    monkeypatch.setattr("golden.llm.checkpoint.load", _no_work)
    monkeypatch.setattr("golden.llm.checkpoint.layer_count", _no_work)
    monkeypatch.setattr(power, "load_libraries", lambda *_: [])
    monkeypatch.setattr(power, "delays_of", lambda *_: (None, type("Fo4", (), {"cell": ""})))
    monkeypatch.setattr(power, "Energies", lambda *_: {"": None})


CHIP = ["--hw", "kllm-a4", "--model", "llama-2-7b"]
FILES = {
    "eval": (evaluation.main, ["-o", "{file}"]),
    "eval --resume": (evaluation.main, ["-o", "{file}", "--resume"]),
    "eval --plot": (evaluation.main, ["--plot", "{file}.svg"]),
    "eval --csv": (evaluation.main, ["--csv", "{file}"]),
    "eval --latex": (evaluation.main, ["--latex", "{file}"]),
    "calibrate": ("golden.llm.calibrate", ["--method", "oaken", "-o", "{file}"]),
    "profile": (profile.main, ["-o", "{file}"]),
    "qet quantize": (qet.main, ["quantize", "no.npy", "-o", "{file}"]),
    "qet restore": (qet.main, ["restore", "no.qet", "-o", "{file}"]),
    "sim.run --csv": (run.main, [*CHIP, "--csv", "{file}"]),
    "sim.run --plot": (run.main, [*CHIP, "--plot", "{file}"]),
    "sim.compare --plot": (compare.main, [*CHIP, "--plot", "{file}"]),
    "sim.sweep -o": (sweep.main, ["no.json", "-o", "{file}"]),
    "sim.sweep --csv": (sweep.main, ["no.json", "-o", "{tmp}/o", "--csv", "{file}"]),
    "synth.report": (report.main, ["stream_skid", "-o", "{tmp}"]),
    "senbazuru.runs.power": (
        power.main,
        ["stream_skid", "any", "--liberty", "x", "--clock-ns", "1", "-o", "{tmp}"],
    ),
}
PLACES = {
    "synth.report": "stream_skid/synth.json",
    "senbazuru.runs.power": "stream_skid/power.json",
    "eval --plot": "out.svg",
}


@pytest.mark.parametrize("name", FILES)
def test_a_second_run_on_one_file_is_refused_before_its_work(name, idle, tmp_path, capsys):
    from golden.llm import calibrate

    main, arguments = FILES[name]
    main = calibrate.main if main == "golden.llm.calibrate" else main
    file = tmp_path / PLACES.get(name, "out")
    file.parent.mkdir(exist_ok=True)
    filled = [each.format(tmp=tmp_path, file=tmp_path / "out") for each in arguments]
    with claimed(file):
        assert main(filled) == 2
    assert capsys.readouterr().err.endswith(f"another run writes {file}: wait until it ends\n")
    assert not file.exists()


FOLDERS = {
    "layer": ["--layer", "0"],
    "all": ["--all"],
    "million": ["--block", "million_attention"],
    "vq": ["--block", "vq_gemv"],
    "qet": ["--block", "qet_dequant_gemv", "--file", "no.qet"],
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_second_pack_into_one_folder_is_refused_before_its_work(name, idle, tmp_path, capsys):
    folder = tmp_path / "pack"
    with claimed_folder(folder):
        assert pack.main([*FOLDERS[name], "-o", str(folder)]) == 2
    line = f"golden.llm.pack: another run writes into {folder}: wait until it ends\n"
    assert capsys.readouterr().err == line


def test_a_second_run_of_faults_is_refused(idle, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mutate, "REPORT_DIR", tmp_path / "mutate")
    with claimed_folder(tmp_path / "mutate"):
        assert mutate.main(["stream_skid"]) == 2
    assert capsys.readouterr().err.startswith("tb.faults.mutate: another run writes into")


MEASURING = sorted(
    file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for file in (ROOT / "senbazuru" / "runs").rglob("*.py")
    if "--json" in file.read_text() or "add_option(parser)" in file.read_text()
)
MEASURING.remove("senbazuru.runs.cycles")  # it has the option, and no output of its own
MEASURING.remove("senbazuru.runs.power")  # its ``--json`` takes no file


@pytest.mark.parametrize("name", MEASURING)
def test_a_second_measurement_into_one_file_is_refused(name, tmp_path, monkeypatch, capsys):
    module = importlib.import_module(name)
    for step in ("simulate", "measure", "_sweep", "_tables", "soak", "report", "_report"):
        monkeypatch.setattr(module, step, _no_work, raising=False)
    file = tmp_path / "cycles.json"
    with claimed(file), pytest.raises(SystemExit) as status:
        module.main(["--json", str(file)])
    assert status.value.code == 2
    line = f"--json: another run writes {file}: wait until it ends\n"
    assert capsys.readouterr().err.endswith(line)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_measurement_leaves_no_folder(tmp_path):
    with pytest.raises(SystemExit):
        importlib.import_module("senbazuru.runs.lane_rates").main(
            ["--json", str(tmp_path / "a" / "cycles.json"), "--unknown"]
        )
    assert list(tmp_path.iterdir()) == []


def _refused_folder(main, arguments, folder, capsys):
    with claimed_folder(folder):
        assert main(arguments) == 2
    line = f"another run writes into {folder}: wait until it ends\n"
    assert capsys.readouterr().err.endswith(line)


def test_a_second_calibration_of_the_simulator_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sim_calibrate, "load_runs", _no_work)
    folder = tmp_path / "calib"
    _refused_folder(sim_calibrate.main, ["--fit", "--folder", str(folder)], folder, capsys)


def test_a_second_run_of_all_blocks_is_refused(tmp_path, monkeypatch, capsys):
    """Its first step removes the files of the folder."""
    monkeypatch.setattr(together, "_clear", _no_work)
    with claimed(tmp_path / "together"):
        assert together.main(["stream_skid", "-o", str(tmp_path)]) == 2
    line = f"another run writes {tmp_path}/together: wait until it ends\n"
    assert capsys.readouterr().err.endswith(line)


def test_a_second_measurement_of_lanes_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lane_power, "library_sets", lambda _: {"x": None})
    monkeypatch.setattr(lane_power, "delays_of", lambda _: None)
    monkeypatch.setattr(lane_power, "measure_lane", _no_work)
    folder = tmp_path / "lanes"
    arguments = ["--set", "x=no.lib", "--keep", str(folder)]
    _refused_folder(lane_power.main, arguments, folder, capsys)


@pytest.mark.parametrize(("name", "step"), [("kits", "judge"), ("fusesoc", "_judge")])
def test_a_second_run_of_kits_is_refused(name, step, tmp_path, monkeypatch, capsys):
    """Each removes the folder of a kit before it writes it."""
    module = importlib.import_module(f"senbazuru.runs.{name}")
    monkeypatch.setattr(module, "_FOLDER", tmp_path / "runs")
    monkeypatch.setattr(module, step, _no_work)
    monkeypatch.setattr(module, "available", lambda _: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    _refused_folder(module.main, ["stream_skid"], tmp_path / "runs", capsys)


def test_a_second_run_that_writes_baselines_is_refused(tmp_path, monkeypatch, capsys):
    """It writes all entries of the file that it has read at its start."""
    monkeypatch.setattr(baseline, "BASELINES", tmp_path)
    monkeypatch.setattr(baseline, "load_libraries", _no_work)
    file = tmp_path / "stream.json"
    file.write_text("as it was\n")
    with claimed(file):
        assert baseline.main(["stream", "--write"]) == 2
    line = f"synth.baseline: another run writes {file}: wait until it ends\n"
    assert capsys.readouterr().err == line
    assert file.read_text() == "as it was\n"


TABLE = codebooks.TABLES[0].name


@pytest.mark.parametrize(
    ("main", "arguments", "place"),
    [
        (codebooks.main, [TABLE], f"page/{TABLE}.json"),
        (million.main, ["--text", "no.txt"], million.ROWS),
    ],
)
def test_a_second_run_of_rows_is_refused(main, arguments, place, idle, tmp_path, capsys):
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    with claimed(file):
        assert main([*arguments, "--work", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith(f"another run writes {file}: wait until it ends\n")
    assert not file.exists()


def test_pages_are_written_in_turn(tmp_path, monkeypatch):
    """Another run fills another section of the page while ``hdl.pages`` fills its own."""
    page = tmp_path / "blocks" / "stream_skid.md"
    page.parent.mkdir()
    page.write_text(
        "<!-- generated: parameters -->\n<!-- end generated -->\n"
        "<!-- generated: rates -->\n<!-- end generated -->\n"
    )
    others = []

    def fill(name, text):
        other = threading.Thread(target=rewrite, args=(page, {"rates": "measured\n"}))
        other.start()
        other.join(0.5)
        others.append(other)
        return text.replace("parameters -->\n", "parameters -->\nfields\n")

    monkeypatch.setattr(pages, "pages_directory", lambda: page.parent)
    monkeypatch.setattr(pages, "fill", fill)
    assert pages.main(["stream_skid"]) == 0
    others[0].join()
    assert "fields\n" in page.read_text()
    assert "measured\n" in page.read_text()
    assert list(page.parent.iterdir()) == [page]


def test_a_check_of_pages_writes_nothing(tmp_path, monkeypatch):
    page = tmp_path / "blocks" / "stream_skid.md"
    page.parent.mkdir()
    page.write_text("text\n")
    monkeypatch.setattr(pages, "pages_directory", lambda: page.parent)
    monkeypatch.setattr(pages, "in_turn", _no_work)
    assert pages.main(["--check", "stream_skid"]) == 0


def test_a_refused_pack_leaves_no_folder(tmp_path, capsys):
    folder = tmp_path / "a" / "b"
    assert pack.main(["--layer", "99", "-o", str(folder)]) == 2
    assert pack.main(["--block", "qet_dequant_gemv", "--file", "no.qet", "-o", str(folder)]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_program_is_written_whole_or_not(tmp_path, monkeypatch, capsys):
    """The words were written in place; the disk is full at the last moment."""
    file = tmp_path / "program.hex"
    file.write_text("as it was\n")

    def replace(self, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "source").write_text("fence\n")
    monkeypatch.setattr(assembler, "assemble", lambda *_: [0, 0, 0, 0])
    monkeypatch.setattr(assembler, "to_hex", lambda *_: "0\n")
    monkeypatch.setattr("pathlib.Path.replace", replace)
    assert assembler.main([str(tmp_path / "source"), "-o", str(file)]) == 2
    assert capsys.readouterr().err == f"assembler: {file}: No space left on device\n"
    assert file.read_text() == "as it was\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["program.hex", "source"]


def test_a_name_that_is_too_long_is_one_line(tmp_path):
    """Shown to fail: OSError of the lock, whose name is longer than the file's."""
    file = tmp_path / ("a" * 252)
    with pytest.raises(ConfigError, match=r"a: File name too long$"), claimed(file):
        pass
