"""tb.run: the simulator imports the benches of the tree whose test started it; kept emissions.

Shown to fail:

- without the settings file that run_model writes into the folder of the run;
- with a key of the Verilog that leaves out the sources, the configuration or the wrapper;
- with a key that names a class instead of pickling a reference to it: a planted fault is not found;
- with a key that looks at names of modules alone: methods, constants and golden are patched unseen.
"""

import dataclasses
import math
import shutil
from pathlib import Path
from unittest import mock

import pytest

import golden.stream.timing
import hdl.emit
import hdl.registry
import hdl.stream.register
import tb.run
from hdl.stream.register import StreamRegister, StreamRegisterConfig
from hdl.verilog import convert
from tb.patches import is_patched
from tb.plant import plant
from tb.run import Emitted, build_model, emission_key, emitted, lint, run_model


def test_cache_inside_another_tree(tmp_path, seed):
    block = StreamRegister(StreamRegisterConfig(width=8))
    model = build_model(block)
    other = tmp_path / "build" / "model"
    shutil.copytree(model.directory, other, ignore=shutil.ignore_patterns("run-*", "lock"))
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / "__init__.py").write_text("raise ImportError('a bench of another tree')\n")
    model = dataclasses.replace(model, directory=other)
    run_model(model, "tb.tb_imports", config=block.config, seed=seed)


@pytest.fixture(autouse=True)
def sources_are_old(monkeypatch):
    """A checkout of seconds ago must not decide what these tests see."""
    monkeypatch.setattr(tb.run, "_STARTED", math.inf)
    tb.run._sources_digest.cache_clear()
    yield
    tb.run._sources_digest.cache_clear()


def register(**fields) -> StreamRegister:
    return StreamRegister(StreamRegisterConfig(**fields))


def test_a_kept_emission_is_the_emission(tmp_path, monkeypatch):
    monkeypatch.setattr(tb.run, "EMIT_DIR", tmp_path)
    fresh = convert(register(width=8), "dut", "axi")
    for _ in range(2):
        kept = emitted(register(width=8), "dut", "axi")
        assert kept.verilog == fresh.verilog
        assert (kept.name, kept.description) == (fresh.name, fresh.description)
    assert len(list(tmp_path.iterdir())) == 1
    # The second is the file, not another emission.
    monkeypatch.setattr(tb.run, "convert", None)
    assert emitted(register(width=8), "dut", "axi") == kept


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
        (hdl.emit, "SIGNAL_BITS", 9),
        (golden.stream.timing, "register", other),
        (golden.stream.timing, "register", eval(compile("lambda: None", "<planted>", "eval"))),
    ],
)
def test_a_patched_generator_has_no_key(target, name, value, monkeypatch):
    """Of a class, a module's constant, and golden's timing, which the description holds."""
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
    for package in ("hdl", "golden"):
        (tmp_path / package).mkdir()
    source = tmp_path / "hdl" / "x.py"

    def key(width: int, name: str, wrap: str | None) -> str | None:
        tb.run._sources_digest.cache_clear()
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
    monkeypatch.setattr(tb.run, "_STARTED", source.stat().st_mtime)
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
    monkeypatch.setattr(tb.run, "LINT_DIR", tmp_path)
    lint(Emitted("dut", TWO_MODULES, {}, ()))
    assert len(list(tmp_path.iterdir())) == 2
    assert TWO_MODULES.count(old) == 1
    faulty = Emitted("dut", TWO_MODULES.replace(old, new), {}, ())
    for _ in range(2):  # a finding is not kept
        with pytest.raises(AssertionError, match=finding):
            lint(faulty)
