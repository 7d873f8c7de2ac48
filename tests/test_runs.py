"""Every command of tb/runs prepares its run and prints its report, with the simulation left out.

A stand-in for the simulator answers with figures of the form that the bench writes. It checks the
names of the arguments. Sizes are small, and pages are copies. The figures mean nothing here.

Shown to fail:

- ``quantized.x`` in demo.layer_jobs;
- ``config.slots`` in layer._report;
- a key of the figures that a report does not find;
- a command without a case.
"""

import importlib
import inspect
import json
import shutil

import pytest
import torch

import tb.run
from golden.capture import Captured
from golden.kllm.layer import LayerOptions
from synth.area import AreaReport
from tb.kllm.test_layer import packed
from tb.runs.soak.check import Mismatch
from tb.runs.soak.faults import FAULTS
from tb.runs.soak.run import Figures, constants, soak_config

COMMANDS = sorted(
    path.stem if path.stem != "__main__" else path.parent.name
    for path in (tb.run.ROOT / "tb" / "runs").rglob("*.py")
    if 'if __name__ == "__main__":' in path.read_text()
)
CYCLES = 1000


def lane_rates(params):
    return {
        phase: {
            "outputs": 1, "equal": 1, "cycles": CYCLES, "reduced": CYCLES, "simulated": CYCLES,
            "seconds": 1.0, "statuses_equal": True,
        }
        for phase in params["phases"]
    }  # fmt: skip


def reports(params):
    return [
        {
            "reports": [[tag, unit, 9 * n + 9] for n, (tag, unit, _) in enumerate(part["results"])],
            "words": [1 for _ in params["ports"]],
            "readback": len(part["readback"]),
        }
        for part in params["parts"]
    ]


def mmu_rates(params):
    reads = [{**run, "words": CYCLES, "cycles": CYCLES} for run in params["runs"]]
    appends = [[latency, 9.5] for latency in params["append_latencies"]]
    return {"reads": reads, "appends": appends, "pages": [[1, 4096, 100]]}


def kv_text(params):
    cycles = {phase["name"]: float(CYCLES) for phase in params["phases"]}
    return {"cycles": cycles, "bytes_r": 9, "bytes_w": 9, "words": 9, "simulated": 9.0,
            "seconds": 1.0}  # fmt: skip


FIGURES = {  # bench -> the file that it writes, and how
    "tb.kllm.tb_rates": ("rates.json", lane_rates),
    "tb.kllm.tb_layer": ("layer.json", reports),
    "tb.kllm.tb_weight_supply": ("rates.json", lambda params: [[9, 10] for _ in params["rates"]]),
    "tb.oaken.tb_dequant_engine": (
        "rates.json",
        lambda params: {p: [3, 9] for p in params["rates"]},
    ),
    "tb.oaken.tb_engine_rates": (
        "rates.json",
        lambda params: {phase: {"cycles": 2.0, "latency": 9} for phase in params["phases"]},
    ),
    "tb.oaken.tb_kv_engine": (
        "overlap.json",
        lambda _: dict.fromkeys(("before", "appends", "reads", "both"), CYCLES),
    ),
    "tb.oaken.tb_kv_engine_axi": ("kv.json", kv_text),
    "tb.paging.tb_mmu_rates": ("rates.json", mmu_rates),
}


@pytest.fixture
def command(request, monkeypatch, tmp_path):
    """Module of the command that the test is named after, without simulator and true pages."""
    name = request.function.__name__.removeprefix("test_")
    module = importlib.import_module(
        "tb.runs.soak.__main__" if name == "soak" else f"tb.runs.{name}"
    )
    ran = []

    def made(block, **options):
        inspect.signature(tb.run.build_model).bind(block, **options)
        block._MustUse__silence = True  # nothing elaborates it
        return block

    def run(bench, params):
        file, figures = FIGURES[bench]
        (tmp_path / file).write_text(json.dumps(figures(params or {})))
        ran.append(bench)
        return tmp_path

    def run_model(model, bench, **options):
        inspect.signature(tb.run.run_model).bind(model, bench, **options)
        assert options["config"] == model.config
        return run(bench, options["params"])

    def simulate(block, bench, **options):
        inspect.signature(tb.run.simulate).bind(made(block), bench, **options)
        return run(bench, options["params"])

    def same(name, value):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)

    same("build_model", made)
    same("run_model", run_model)
    same("simulate", simulate)
    shutil.copytree(tb.run.ROOT / "docs" / "blocks", tmp_path / "blocks")
    same("pages_directory", lambda: tmp_path / "blocks")
    if hasattr(module, "PAGE"):
        page = tmp_path / module.PAGE.name
        shutil.copy(module.PAGE, page)
        monkeypatch.setattr(module, "PAGE", page)
    module.ran = ran
    yield module
    del module.ran


def test_demo(command, monkeypatch, capsys):
    def captured(_, ids, names):
        return {name: Captured(torch.randn(len(ids), 70), torch.randn(64, 70)) for name in names}

    def area(block, name, libraries):
        block._MustUse__silence = True
        return AreaReport(
            name=name, configuration={}, library=libraries.library.name, nand2_um2=1.0, dff_um2=5.0,
            tool="none", flattened=False, modules=(), macros=(), cell_counts={}, seconds=1.0,
        )  # fmt: skip

    monkeypatch.setattr(command, "load", lambda: Captured)
    monkeypatch.setattr(Captured, "model", None, raising=False)
    monkeypatch.setattr(command, "tokens", lambda _, text, count: torch.zeros(count))
    monkeypatch.setattr(command, "capture_inputs", captured)
    monkeypatch.setattr(command, "synthesize", area)
    assert command.main(["--tokens", "2"]) == 0
    assert len(command.ran) == 2
    assert "lane area, W4A4" in capsys.readouterr().out


def test_layer(command, tmp_path, capsys):
    packed(LayerOptions(), 1, 1, tmp_path / "pack")
    assert command.main(["--config", "small", "--pack", str(tmp_path / "pack")]) == 0
    assert command.ran
    assert "part 1: " in capsys.readouterr().out


@pytest.mark.parametrize("config", ["small", "smollm2", "table1"])
def test_accelerator_rates(command, config, capsys):
    sizes = ["--size", "64", "--tokens", "2/1", "--no-page"]
    assert command.main(["--config", config, *sizes]) == 0
    assert command.ran
    assert "| 2 | 1 | offline |" in capsys.readouterr().out


def test_weight_rates(command, monkeypatch):
    monkeypatch.setattr(command, "_JOBS", ((576, 64, 1), (64, 520, 4)))
    assert command.main([]) == 0
    assert command.ran


def test_lane_rates(command, monkeypatch):
    monkeypatch.setattr(command, "LENGTHS", (64,))
    monkeypatch.setattr(command, "OUTPUTS", (32, 64))
    monkeypatch.setattr(command, "_emission", lambda: [("one", 1.0, 1), ("sixteen", 16.0, 16)])
    assert command.main([]) == 0
    assert len(command.ran) == 2


def test_kv_rates(command, monkeypatch):
    monkeypatch.setattr(command, "RUNS", ((2, 1, 2, 20),))
    assert command.main([]) == 0
    assert command.ran


def test_mmu_rates(command):
    assert command.main([]) == 0
    assert len(command.ran) == 2


def test_dequant_rates(command, monkeypatch):
    monkeypatch.setattr(command, "_READS", ((1, 0, 10), (2, 1, 100)))
    assert command.main([]) == 0
    assert len(command.ran) == len(command._CONFIGS)


def test_engine_rates(command, monkeypatch):
    monkeypatch.setattr(command, "LENGTHS", (1024,))
    assert command.main(["--write", "--lanes", "8", "64"]) == 0
    assert len(command.ran) == 2


def test_real(command, monkeypatch, capsys):
    cache = command.BLOCKS["oaken_kv_engine"].configs["smollm2"].cache

    def kv(_, ids):
        size = len(ids), cache.kv.elements
        return [(torch.randn(size), torch.randn(size)) for _ in range(cache.layers)]

    def windows(_, text, count, length, skip=0):
        return [torch.zeros(length) for _ in range(count)]

    monkeypatch.setattr(command, "load", lambda: Captured)
    monkeypatch.setattr(Captured, "model", None, raising=False)
    monkeypatch.setattr(command, "windows", windows)
    monkeypatch.setattr(command, "capture_kv", kv)
    monkeypatch.setattr(command, "CALIBRATION", (1, 2))
    assert command.main(["--tokens", "2", "--layers", "0,7"]) == 0
    assert command.ran
    assert "every bit" in capsys.readouterr().out


@pytest.mark.parametrize("fault", [None, *sorted(FAULTS)])
def test_soak(command, fault, monkeypatch, capsys):
    numbers = dict.fromkeys(Figures.__annotations__, 7)

    def soak(requests, seed, *, block, progress):
        assert constants(soak_config())
        progress(requests, CYCLES, 1.0)
        if block is not None:
            block._MustUse__silence = True
            raise Mismatch("found")
        return Figures(**{**numbers, "statuses": {"READ": {"OK": 7}, "OPEN": {"FULL": 7}}})

    monkeypatch.setattr(command, "soak", soak)
    assert command.main(["--page"] if fault is None else ["--fault", fault]) == 0
    assert ("pages taken" if fault is None else "") in capsys.readouterr().out


def test_every_command_has_a_case():
    cases = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert COMMANDS
    assert not set(COMMANDS) - cases
