"""tb.simulate.run: the simulator imports the benches of the tree whose test started it; emissions.

Shown to fail:

- without the settings file that run_model writes into the folder of the run;
- with a key of the Verilog that leaves out the sources, the configuration or the wrapper;
- with a key that names a class instead of pickling a reference to it: a planted fault is not found;
- with a key that looks at names of modules alone: methods, constants and golden are patched unseen.
"""

import dataclasses
import gc
import math
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import time
import warnings
import zlib
from pathlib import Path
from unittest import mock

import pytest

import golden.axi.timing
import hdl.children
import hdl.registry
import hdl.stream.register
import tb.simulate.run
from hdl.back.deliver import package
from hdl.back.verilog import convert
from hdl.build import build
from hdl.registry import find
from hdl.stream.register import StreamRegister, StreamRegisterConfig
from synth.modules import module_texts
from tb.faults.plant import plant
from tb.simulate import forked, resident
from tb.simulate.patches import is_patched
from tb.simulate.run import Emitted, build_model, emission_key, emitted, lint, run_model, simulate
from tb.stream.support.bank import Bank, BankConfig
from tb.together import smallest


def test_cache_inside_another_tree(tmp_path, seed):
    block = StreamRegister(StreamRegisterConfig(width=8))
    model = build_model(block)
    other = tmp_path / "build" / "model"
    shutil.copytree(model.directory, other, ignore=shutil.ignore_patterns("run-*", "lock"))
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / "__init__.py").write_text("raise ImportError('a bench of another tree')\n")
    model = dataclasses.replace(model, directory=other)
    run_model(model, "tb.simulate.tb_imports", config=block.config, seed=seed)


def test_tasks_run_in_the_order_that_cocotb_gives(seed):
    """tb.simulate.scheduling. Shown to fail: the task resumed; others wait for the same edge."""
    simulate(StreamRegister(StreamRegisterConfig(width=7)), "tb.simulate.tb_scheduling", seed=seed)


def _compiler(script: str, folders: list[Path] | None = None):
    """A stand-in for compile_model: ``script`` runs in the folder, as a child of its own."""

    def compile_model(directory, top, arguments, *, separate, long_run):
        if folders is not None:
            assert sorted(path.name for path in directory.iterdir()) == ["dut.v", "ports.vlt"]
            folders.append(directory)
        subprocess.run(["sh", "-c", script], cwd=directory, check=True)

    return compile_model


def test_no_build_next_to_the_compiler_of_a_killed_run(tmp_path, monkeypatch):
    """Shown to fail: a build in the cache's folder itself, which the old compiler then writes to.

    The maker is killed with -9 while its compiler runs. The next one does not wait for that.
    """
    monkeypatch.setattr(tb.simulate.run, "SIM_DIR", tmp_path)
    monkeypatch.setattr(tb.simulate.run, "EMIT_DIR", tmp_path / "emit")
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    slow = f"touch {begun}; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; "
    slow += f"echo old > dut; touch {ended}"
    monkeypatch.setattr(tb.simulate.run, "compile_model", _compiler(slow))
    maker = multiprocessing.get_context("fork").Process(
        target=lambda: build_model(register(width=8))
    )
    maker.start()
    _wait_for(begun)
    os.kill(maker.pid, signal.SIGKILL)
    maker.join()
    folders: list[Path] = []
    new = f"touch {tmp_path}/go; while [ ! -e {ended} ]; do sleep 0.02; done; echo new > dut"
    monkeypatch.setattr(tb.simulate.run, "compile_model", _compiler(new, folders))
    model = build_model(register(width=8))
    assert (model.directory / "dut").read_text() == "new\n"
    assert folders[0].parent == model.directory
    assert not list(model.directory.glob("part-*"))
    build_model(register(width=8))
    assert len(folders) == 1


def _wait_for(file: Path) -> None:
    for _ in range(1000):
        if file.exists():
            return
        time.sleep(0.02)
    raise AssertionError(f"{file} has not come")


def test_a_damaged_model_is_built_again(tmp_path, monkeypatch):
    """Shown to fail: a folder with the file ``complete``, whatever else it holds."""
    monkeypatch.setattr(tb.simulate.run, "SIM_DIR", tmp_path)
    folders: list[Path] = []
    monkeypatch.setattr(tb.simulate.run, "compile_model", _compiler("echo new > dut", folders))
    directory = build_model(register(width=8)).directory
    dut = directory / "dut"
    for count, damage in enumerate(
        (
            lambda: dut.write_text(""),
            lambda: dut.write_text("old"),
            dut.unlink,
            lambda: (directory / "complete").write_bytes(b"\xff"),
        ),
        start=2,
    ):
        damage()
        build_model(register(width=8))
        assert len(folders) == count
        assert dut.read_text() == "new\n"
    (directory / "complete").write_text("")  # as earlier versions wrote it
    build_model(register(width=8))
    assert len(folders) == 5


def test_a_build_that_fails_leaves_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr(tb.simulate.run, "SIM_DIR", tmp_path)

    def fails(*_, **__):
        raise RuntimeError("g++: exit 1")

    monkeypatch.setattr(tb.simulate.run, "compile_model", fails)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^dut does not build: g\+\+: exit 1$"):
            build_model(register(width=8))
    (directory,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(list(directory.glob("part-*"))) == 1
    assert not (directory / "complete").exists()


@pytest.mark.parametrize("damage", [b"", b"no zlib", zlib.compress(b"no pickle"), None])
def test_a_damaged_emission_is_made_again(damage, tmp_path, monkeypatch):
    """Shown to fail: zlib.error and UnpicklingError."""
    monkeypatch.setattr(tb.simulate.run, "EMIT_DIR", tmp_path)
    made = emitted(register(width=8))
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(zlib.compress(pickle.dumps(7)) if damage is None else damage)
    assert emitted(register(width=8)) == made
    assert pickle.loads(zlib.decompress(file.read_bytes())) == pickle.loads(zlib.decompress(whole))


@pytest.fixture(autouse=True)
def sources_are_old(monkeypatch):
    """A checkout of seconds ago must not decide what these tests see."""
    monkeypatch.setattr(tb.simulate.run, "_STARTED", math.inf)
    tb.simulate.run._sources_digest.cache_clear()
    yield
    tb.simulate.run._sources_digest.cache_clear()


def register(**fields) -> StreamRegister:
    return StreamRegister(StreamRegisterConfig(**fields))


def test_a_kept_emission_is_the_emission(tmp_path, monkeypatch):
    monkeypatch.setattr(tb.simulate.run, "EMIT_DIR", tmp_path)
    fresh = package(convert(register(width=8), "dut", "axi"))
    for _ in range(2):
        kept = emitted(register(width=8), "dut", "axi")
        assert kept.verilog == fresh.verilog
        assert (kept.name, kept.description) == (fresh.name, fresh.description)
    assert len(list(tmp_path.iterdir())) == 1
    # The second is the file, not another emission.
    monkeypatch.setattr(tb.simulate.run, "convert", None)
    assert emitted(register(width=8), "dut", "axi") == kept


@pytest.mark.parametrize(("name", "wrap"), [("stream_fifo", None), ("memory_shared", "axi")])
def test_the_simulated_text_is_the_one_of_hdl_build(name, wrap, tmp_path):
    """Shown to fail: a model of the text of hdl.back.verilog.convert, and a text without guards."""
    config = smallest(find(name))
    build(name, config, tmp_path, wrap)
    model = build_model(find(name).component(config), name=name, wrap=wrap)
    simulated = (model.directory / f"{model.design.name}.v").read_bytes()
    assert simulated == (tmp_path / f"{name}.v").read_bytes()


def test_modules_that_are_verilated_separately():
    """Their names are those in the text. Shown to fail: the names of ``hdl.back.emit``."""
    lane = find("kllm_pe_lane")
    made = emitted(lane.component(lane.configs["small_flipflop"]))
    assert made.separate
    assert set(made.separate) <= set(module_texts(made.verilog))


def test_a_planted_part_is_not_kept(monkeypatch):
    """A fault inside a block gets no copy, and the block without it gets none of the fault."""
    block = register(width=8)
    block._MustUse__silence = True
    key = emission_key(block, "dut", None)
    faulty = plant(StreamRegister, "elaborate", "m = Module()", "m = Module()")
    with monkeypatch.context() as patch:
        patch.setattr(hdl.stream.register, "StreamRegister", faulty)
        assert emission_key(block, "dut", None) is None
    assert emission_key(block, "dut", None) == key


def other(*_):
    return None


@pytest.mark.parametrize(
    ("target", "name", "value"),
    [
        (StreamRegister, "elaborate", other),
        (StreamRegister, "elaborate", mock.Mock()),
        (StreamRegisterConfig, "__post_init__", lambda _: None),
        (StreamRegisterConfig, "describe", property(other)),
        (StreamRegisterConfig, "parse", classmethod(other)),
        (hdl.stream.register, "MAX_BITS", 9),
        (hdl.children, "SIGNAL_BITS", 9),
        (StreamRegister, "timing", property(other)),
        (golden.axi.timing, "read_port", other),
        (golden.axi.timing, "read_port", eval(compile("lambda: None", "<planted>", "eval"))),
    ],
)
def test_a_patched_generator_has_no_key(target, name, value, monkeypatch):
    """A patched class, module's constant or golden timing (the description holds it) has no key."""
    block = register(width=8)
    block._MustUse__silence = True
    key = emission_key(block, "dut", None)
    assert key is not None
    with monkeypatch.context() as patch:
        patch.setattr(target, name, value, raising=False)
        assert emission_key(block, "dut", None) is None
    assert emission_key(block, "dut", None) == key


def test_no_module_is_taken_for_a_patched_one():
    for room in hdl.registry.rooms().values():
        assert room.blocks
    assert not is_patched()


def test_key_is_of_everything_that_decides_the_verilog(tmp_path, monkeypatch):
    for folder in ("hdl", "golden"):
        (tmp_path / folder).mkdir()
    source = tmp_path / "hdl" / "x.py"

    def key(width: int, name: str, wrap: str | None) -> str | None:
        tb.simulate.run._sources_digest.cache_clear()
        block = register(width=width)
        block._MustUse__silence = True
        return emission_key(block, name, wrap, Path(tmp_path))

    keys = [key(8, "dut", None), key(9, "dut", None), key(8, "top", None), key(8, "dut", "axi")]
    source.write_text("first")
    keys.append(key(8, "dut", None))
    source.write_text("second")
    keys.append(key(8, "dut", None))
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert key(8, "dut", None) == keys[-1]
    # A source that changed after the imports: the process may hold its former text.
    monkeypatch.setattr(tb.simulate.run, "_STARTED", source.stat().st_mtime)
    assert key(8, "dut", None) is None


def test_a_planted_fault_has_no_key():
    faulty = plant(StreamRegister, "elaborate", "~valid | self.o.ready", "self.o.ready")
    for kind, has_key in ((StreamRegister, True), (faulty, False)):
        block = kind(StreamRegisterConfig(width=8))
        block._MustUse__silence = True
        assert (emission_key(block, "dut", None) is not None) == has_key


TWO_MODULES = """\
module child(a, y);
  input a;
  wire a;
  output y;
  wire y;
  assign y = ~a;
endmodule
module dut(a, y);
  input a;
  wire a;
  output y;
  wire y;
  child inner (
    .a(a),
    .y(y)
  );
endmodule
"""


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("    .a(a),\n", "", "PINMISSING"),
        ("    .a(a),", "    .b(a),", "PINNOTFOUND"),
        ("  assign y = ~a;\n", "", "UNDRIVEN"),
        ("  assign y = ~a;", "  reg z;\n  always @* if (a) z = 1;\n  assign y = z;", "LATCH"),
        ("  child inner", "  other inner", "MODMISSING"),
    ],
)
def test_lint_finds(old, new, finding, tmp_path, monkeypatch):
    """Each module is linted alone. What one module or one instance has wrong is still found."""
    monkeypatch.setattr(tb.simulate.run, "LINT_DIR", tmp_path)
    lint(Emitted("dut", TWO_MODULES, {}, ()))
    assert len(list(tmp_path.iterdir())) == 2
    assert TWO_MODULES.count(old) == 1
    faulty = Emitted("dut", TWO_MODULES.replace(old, new), {}, ())
    for _ in range(2):  # a finding is not kept
        with pytest.raises(AssertionError, match=finding):
            lint(faulty)


def test_a_resident_simulator_runs_job_after_job(monkeypatch):
    """Each job has its own parameters, vectors and seed; a job that fails ends its simulator.

    Shown to fail: the modules of the bench stay imported; a simulator is kept after a failure.
    """
    monkeypatch.setenv(resident.RESIDENT, "1")
    block = StreamRegister(StreamRegisterConfig(width=8))
    model = build_model(block)
    seen = []
    for job, (passes, seed) in enumerate([(True, 5), (True, 6), (False, 5), (True, 5), (True, 5)]):
        given = {"params": {"job": job, "passes": passes}, "vectors": {"of": [10 * job]}}
        arguments = {"config": block.config, "seed": seed, **given}
        if passes:
            work = run_model(model, "tb.simulate.tb_resident", **arguments)
            seen.append((work / "seen").read_text().split())
        else:
            with pytest.raises(AssertionError, match=r"tb_resident.* failed"):
                run_model(model, "tb.simulate.tb_resident", **arguments)
    processes, jobs, vectors, draws = zip(*seen, strict=True)
    assert jobs == ("0", "1", "3", "4")
    assert vectors == ("0", "10", "30", "40")
    assert processes[0] == processes[1] != processes[2] == processes[3]
    assert draws[0] == draws[2] == draws[3] != draws[1]
    resident.find((model.directory, "tb.simulate.tb_resident", "None")).end()


def test_a_run_is_a_fork(monkeypatch):
    """Each run has its own parameters, vectors and seed; they are those of a process of its own.

    Shown to fail: a fork that keeps the environment of its server.
    """
    monkeypatch.delenv(resident.RESIDENT, raising=False)  # --seeds sets it
    block = StreamRegister(StreamRegisterConfig(width=8))
    model = build_model(block)

    def seen(job: int, seed: int) -> list[str]:
        given = {"params": {"job": job, "passes": True}, "vectors": {"of": [10 * job]}}
        work = run_model(model, "tb.simulate.tb_resident", config=block.config, seed=seed, **given)
        return (work / "seen").read_text().split()

    forks = [seen(0, 5), seen(1, 6), seen(2, 5)]
    server = forked._server
    monkeypatch.delattr(os, "fork")  # the runner then starts a process by the launcher
    alone = [seen(0, 5), seen(1, 6)]
    assert forked._server is server
    assert len({process for process, *_ in (*forks, *alone)}) == 5
    assert [each[1:3] for each in forks] == [["0", "0"], ["1", "10"], ["2", "20"]]
    assert [each[1:] for each in forks[:2]] == [each[1:] for each in alone]
    assert forks[0][3] == forks[2][3] != forks[1][3]


def test_a_fork_that_fails_or_ends(monkeypatch):
    """Shown to fail: an exit status that is dropped."""
    monkeypatch.delenv(resident.RESIDENT, raising=False)
    block = StreamRegister(StreamRegisterConfig(width=8))
    model = build_model(block)
    given = {"config": block.config, "vectors": {"of": [0]}}
    for _ in range(2):
        with pytest.raises(AssertionError, match="return code: -11"):
            run_model(model, "tb.simulate.tb_forked", config=block.config)
        with pytest.raises(AssertionError, match=r"job 3 is to fail|tb_resident.* failed"):
            run_model(model, "tb.simulate.tb_resident", params={"job": 3, "passes": False}, **given)
        with pytest.raises(AssertionError, match="tb_missing"):
            run_model(model, "tb.tb_missing", config=block.config)
        run_model(model, "tb.simulate.tb_resident", params={"job": 4, "passes": True}, **given)


def test_a_copy_of_a_bank_leaves_no_unused_block(tmp_path, monkeypatch):
    """Shown to fail: the bank alone was silenced, and pytest then failed some later test."""
    monkeypatch.setattr(tb.simulate.run, "EMIT_DIR", tmp_path)
    member = (StreamRegister, StreamRegisterConfig(width=5))
    config = BankConfig(members=(member, member))
    emitted(Bank(config))
    assert len(list(tmp_path.iterdir())) == 1
    copied = Bank(config)
    emitted(copied)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        del copied
        gc.collect()
    assert not found
