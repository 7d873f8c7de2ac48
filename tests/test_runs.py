"""Every command of senbazuru.runs prepares its run and prints its report, without simulation.

A stand-in for the simulator answers with figures of the form that the bench writes. It checks the
names of the arguments. Sizes are small, and pages are copies. The figures mean nothing here.

Shown to fail:

- ``quantized.x`` in demo.layer_jobs;
- ``config.slots`` in layer._report;
- a key of the figures that a report does not find;
- a command without a case;
- cycles of one run left out of the JSON file;
- a prediction that is no whole number, or without its function;
- a configuration that JSON does not give back;
- a file of figures with wrong types, NaN or deep nesting: TypeError and RecursionError;
- ``--json FOLDER``: a traceback after the whole measurement.
"""

import dataclasses
import functools
import importlib
import inspect
import json
import math
import re
import shutil
import types

import pytest
import torch

import tb.simulate.run
from golden.kllm.isa import Function
from golden.kllm.layer.shape import LayerOptions
from golden.kllm.timing import lane_cycles
from golden.llm import checkpoint
from golden.llm.capture import Captured
from golden.llm.million.example import Seen
from golden.million.config import PqShape, RateShape
from golden.vqllm.config import NAMED, AttendShape, MatrixShape, Plan, Work
from golden.words import layout_fields, unpack_ints
from hdl.back.verilog import convert
from hdl.kllm.dispatcher import KllmDispatcher, KllmDispatcherConfig
from hdl.million.decode_engine import MillionDecodeEngineConfig
from hdl.registry import find
from hdl.vqllm.attend.attention import VqAttentionConfig
from hdl.vqllm.plan_search import Estimate, resources
from senbazuru.runs import cycles, event_power, lane_power, vq, vq_kv
from senbazuru.runs import vq_plans_other as others
from senbazuru.runs.power import BenchError
from senbazuru.runs.soak.check import Mismatch
from senbazuru.runs.soak.faults import FAULTS
from senbazuru.runs.soak.run import Figures, constants, soak_config
from synth.fpga.tools import FpgaError
from synth.modules import Mapped, MappedDesign
from synth.power import GROUPS
from tb.faults.mutate import Recording
from tb.kllm.test_layer import packed
from tb.million import test_example
from tb.million.support import trains
from tb.simulate.run import simulate
from tb.vqllm import test_one_image
from tb.vqllm.support import attention_engines, heads

ROOT = tb.simulate.run.ROOT
COMMANDS = sorted(
    path.stem if path.stem != "__main__" else path.parent.name
    for path in (ROOT / "senbazuru" / "runs").rglob("*.py")
    if 'if __name__ == "__main__":' in path.read_text()
)
MEASURING = [name for name in COMMANDS if name == "layer" or name.endswith("_rates")]
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
    parts = [
        {
            "reports": [
                [tag, unit, 9 * n + 9 + number] for n, (tag, unit, _) in enumerate(part["results"])
            ],
            "words": [1 for _ in params["ports"]],
            "readback": len(part["readback"]),
        }
        for number, part in enumerate(params["parts"])
    ]
    return {"parts": parts, "simulated": {"cycles": CYCLES, "seconds": 0.5}}


def mmu_rates(params):
    words = dict.fromkeys(("words", "dense_words", "sparse_words", "scale_words"), CYCLES)
    reads = [
        {**run, **words, "memory_latency": latency, "cycles": CYCLES}
        for latency in params["latencies"]
        for run in params["runs"]
    ]
    appends = [[latency, 9.5] for latency in params["append_latencies"]]
    return {"reads": reads, "appends": appends, "pages": [[1, 4096, 100]]}


def kv_text(params):
    cycles = {phase["name"]: float(CYCLES) for phase in params["phases"]}
    return {"cycles": cycles, "bytes_r": 9, "bytes_w": 9, "words": 9, "simulated": 9.0,
            "seconds": 1.0}  # fmt: skip


def replay(params):
    parts = {
        part["name"]: {
            "requests": [n for n, _ in enumerate(part["requests"])],
            "statuses": [[each["op"], CYCLES * n] for n, each in enumerate(part["requests"], 1)],
        }
        for part in params["parts"]
    }
    return {"parts": parts, "simulated": {"cycles": CYCLES, "seconds": 0.5}}


def rows_of(params):
    matrices = [{"cycles": CYCLES, "rows": rows} for rows in params["packets"]]
    return {"matrices": matrices, "simulated": {"cycles": CYCLES, "seconds": 0.5}}


FIGURES = {  # bench -> the file that it writes, and how
    "tb.kllm.tb_rates": ("rates.json", lane_rates),
    "tb.kllm.tb_layer": ("layer.json", reports),
    "tb.kllm.tb_weight_supply": ("rates.json", lambda params: [[9, 10] for _ in params["rates"]]),
    "tb.million.tb_replay": ("replay.json", replay),
    "tb.oaken.tb_dequant_engine": (
        "rates.json",
        lambda params: {p: [3, 9] for p in params["rates"]},
    ),
    "tb.oaken.tb_engine_rates": (
        "rates.json",
        lambda params: {
            phase: {"cycles": 2.0, "latency": 9, "vectors": 4, "span": CYCLES}
            for phase in params["phases"]
        },
    ),
    "tb.oaken.tb_kv_engine": (
        "overlap.json",
        lambda _: dict.fromkeys(("before", "appends", "reads", "both"), CYCLES),
    ),
    "tb.oaken.tb_kv_engine_axi": ("kv.json", kv_text),
    "tb.million.tb_decode_run": (
        "cycles.json",
        lambda _: {side: [CYCLES * n for n in range(1, 6)] for side in "kv"},
    ),
    "tb.paging.tb_mmu_rates": ("rates.json", mmu_rates),
    "tb.qet.tb_decode_replay": ("replay.json", rows_of),
    "tb.qet.tb_encode_replay": ("replay.json", rows_of),
    "tb.qet.tb_gemv_replay": (
        "replay.json",
        lambda params: {
            "jobs": [{"cycles": CYCLES, "books": 30, "codes": 10} for _ in params["jobs"]],
            "simulated": {"cycles": CYCLES, "seconds": 0.5},
        },
    ),
    "tb.vqllm.tb_attention_run": (
        "cycles.json",
        lambda params: [
            [CYCLES * n for n, _ in enumerate(script["phases"][0]["requests"], 1)]
            for script in params["scripts"]
        ],
    ),
    "tb.vqllm.tb_engine_rates": ("rates.json", lambda _: CYCLES),
    "tb.vqllm.tb_engine_replay": (
        "replay.json",
        lambda params: {
            "jobs": [{"cycles": CYCLES} for _ in params["jobs"]],
            "simulated": {"cycles": CYCLES, "seconds": 0.5},
        },
    ),
}


PAGE = pytest.mark.parametrize("page", [[], ["--page"]])
_STEPS = ("build_model", "run_model", "simulate")
SIMULATOR = {name: getattr(tb.simulate.run, name) for name in _STEPS}


def module_of(name):
    """The module of a command."""
    return importlib.import_module(f"senbazuru.runs.{'soak.__main__' if name == 'soak' else name}")


@functools.cache
def users():
    """Modules that commands run and that have the simulator by name.

    All are imported before the first of them meets a stand-in, which it would keep.
    """
    found = [*(ROOT / "senbazuru" / "runs").rglob("*.py"), *(ROOT / "tb").glob("*/support/*.py")]
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in found
        if "from tb.simulate.run import" in path.read_text()
    ]
    return [tb.simulate.run, *map(importlib.import_module, names)]


def replace_simulator(monkeypatch, **functions):
    """Each function of SIMULATOR by another one, wherever a command finds it."""
    for module in users():
        for name in functions.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, functions[name])


@pytest.fixture
def command(request, monkeypatch, tmp_path):
    """The command that the test is named after, without simulator and true page.

    ``ran`` are the benches that it has run, ``given`` their parameters. ``main`` checks that the
    command rewrites its page with ``--page``, and only then. Shown to fail: all but engine_rates
    rewrote it at each run.
    """
    test = request.function.__name__.removeprefix("test_")
    name = max((each for each in COMMANDS if test.startswith(each)), key=len)
    module = module_of(name)
    ran, given = [], []

    def made(block, **options):
        inspect.signature(SIMULATOR["build_model"]).bind(block, **options)
        block._MustUse__silence = True  # nothing elaborates it
        return block

    def run(bench, params):
        file, figures = FIGURES[bench]
        (tmp_path / file).write_text(json.dumps(figures(params or {})))
        ran.append(bench)
        given.append(params)
        return tmp_path

    def run_model(model, bench, **options):
        inspect.signature(SIMULATOR["run_model"]).bind(model, bench, **options)
        assert options["config"] == model.config
        return run(bench, options["params"])

    def simulate(block, bench, **options):
        inspect.signature(SIMULATOR["simulate"]).bind(made(block), bench, **options)
        return run(bench, options["params"])

    replace_simulator(monkeypatch, build_model=made, run_model=run_model, simulate=simulate)
    monkeypatch.setattr(cycles, "FOLDER", tmp_path / "cycles")
    page = tmp_path / "page.md"
    if hasattr(module, "PAGE"):
        shutil.copy(module.PAGE, page)
        monkeypatch.setattr(module, "PAGE", page)

    def main(arguments):
        before = page.read_bytes() if page.exists() else b""
        status = module.main(arguments)
        if page.exists():
            assert (page.read_bytes() != before) == ("--page" in arguments)
        return status

    return types.SimpleNamespace(
        name=f"senbazuru.runs.{name}", main=main, module=module, ran=ran, given=given, page=page
    )


@pytest.fixture
def figures(command, tmp_path):
    """Gives the figures that the command has written."""

    def read():
        name = command.name.rpartition(".")[2]
        found = cycles.load(tmp_path / "cycles" / f"{name}.json")
        assert {figure.command for figure in found} == {command.name}
        keys = [(f.parameters, f.configuration, f.span) for f in found]
        assert all(key not in keys[:n] for n, key in enumerate(keys)), "two figures of one run"
        return found

    return read


def mapped(design, libraries, jobs=None):
    """A design of one module, in the place of ``synth.modules.map_modules``."""
    module = Mapped(cells=9, flip_flops=5, um2=2e5, levels=4, children={}, seconds=0.5)
    return MappedDesign(design, {design.name: module}, {}, libraries.library.nand2.area, 5.0)


@pytest.mark.telling
def test_demo(command, monkeypatch, capsys):
    def captured(_, ids, names):
        return {name: Captured(torch.randn(len(ids), 70), torch.randn(64, 70)) for name in names}

    lane = find("kllm_pe_lane")

    def converted(block, name):  # a small lane in the place of Table I's
        assert (block.config, name) == (lane.config, "kllm_pe_lane")
        block._MustUse__silence = True  # it is not elaborated
        return convert(lane.component(lane.configs["small"]), name)

    monkeypatch.setattr(checkpoint, "load", lambda: types.SimpleNamespace(model=None))
    monkeypatch.setattr(checkpoint, "tokens", lambda _, text, count: torch.zeros(count))
    monkeypatch.setattr("golden.llm.capture.capture_inputs", captured)
    monkeypatch.setattr("synth.modules.map_modules", mapped)
    monkeypatch.setattr("hdl.back.verilog.convert", converted)
    assert command.main(["--tokens", "2"]) == 0
    assert len(command.ran) == 2
    assert "lane area, W4A4: 0.200 mm2" in capsys.readouterr().out


def test_layer(command, figures, tmp_path, capsys):
    packed(LayerOptions(), 1, 1, tmp_path / "pack")
    with command.page.open("a") as page:
        page.write("<!-- generated: layer_small_cache -->\n<!-- end generated -->\n")
    arguments = ["--config", "small_cache", "--pack", str(tmp_path / "pack")]
    assert command.main(arguments) == 0
    assert command.main([*arguments, "--page"]) == 0
    assert command.ran
    assert "layer: " in capsys.readouterr().out
    opcodes = [figure.parameters["opcode"].partition(" ")[0] for figure in figures()]
    assert opcodes[-1] == "all"
    assert opcodes.count("APPEND") == 2
    assert opcodes.count("ATTEND") == 1
    assert len(figures()) > 40


@pytest.mark.parametrize("config", ["small", "smollm2", "table1"])
def test_accelerator_rates(command, figures, config, capsys):
    sizes = ["--size", "64", "--tokens", "2/1"]
    part = [] if config == "small" else ["--part", "2"]
    assert command.main(["--config", config, *sizes, *part]) == 0
    assert command.ran
    assert "| 2 | 1 | offline |" in capsys.readouterr().out
    assert len(figures()) == 4


@PAGE
def test_kits(command, monkeypatch, page, tmp_path, capsys):
    """A kit whose fault 2 is not found, and one that does not pass."""
    measure = command.module
    mutants = [
        types.SimpleNamespace(number=n, fault="inv", wire="w", source="s") for n in (1, 2, 3)
    ]
    passes = measure.Run(0, "PASS thing: 1 episodes at 4 flows, 8 transfers", 0.1)
    fails = measure.Run(1, "FAIL thing: flow 0", 0.1)
    faults = types.SimpleNamespace(
        mutants=mutants, run=lambda _, number, **__: passes if number in (0, 2) else fails
    )

    def write_kit(name, folder):
        folder.mkdir(parents=True)
        for file in (f"{name}.v", f"{name}.vlt", f"{name}_tb.v", "run.sh"):
            (folder / file).write_text(name)

    monkeypatch.setattr(measure, "_FOLDER", tmp_path / "kits")
    monkeypatch.setattr(measure, "available", lambda _: True)
    monkeypatch.setattr(measure, "write_kit", write_kit)
    monkeypatch.setattr(
        measure, "run_kit", lambda folder, _: fails if folder.name == "stream_skid" else passes
    )
    monkeypatch.setattr(measure, "plant", lambda *_: faults)
    for _ in range(2):  # the second time, what was found is kept
        assert command.main(["stream_fifo", "--faults", "2", *page]) == 0
        assert "2 of 3" in capsys.readouterr().out
        page = []
    assert command.main(["stream_fifo", "stream_skid", "--faults", "3"]) == 1
    assert command.main(["memory_1rw"]) == 2
    assert command.main(["nothing"]) == 2
    assert capsys.readouterr().err.count("\n") == 2


@PAGE
def test_fusesoc(command, monkeypatch, page, tmp_path, capsys):
    """A project that passes until a word is changed, and one that never fails."""
    measure = command.module

    def write_kit(name, folder):
        (folder / "vectors").mkdir(parents=True)
        (folder / f"{name}_template.vh").write_text("// nothing\n")
        for end, text in ((".o.hex", "0a\n"), (".o.masks.hex", "ff\n")):
            (folder / "vectors" / f"{name}_tb{end}").write_text(text)

    def fusesoc(project, *arguments):
        name = project.name
        words = (project / "kits" / name / "vectors" / f"{name}_tb.o.hex").read_text()
        if "sim" in arguments and words != "0a\n" and name != "stream_skid":
            return measure._Done(1, f"FAIL {name}: flow 0", 0.1)
        return measure._Done(0, f"PASS {name}: 1 episodes", 0.1)

    monkeypatch.setattr(measure, "_FOLDER", tmp_path / "fusesoc")
    monkeypatch.setattr(measure, "available", lambda _: True)
    monkeypatch.setattr(measure, "write_kit", write_kit)
    monkeypatch.setattr(measure, "_fusesoc", fusesoc)
    assert command.main(["stream_fifo", *page]) == 0
    assert "fails, as it must" in capsys.readouterr().out
    assert command.main(["stream_skid"]) == 1
    assert "NOT FOUND" in capsys.readouterr().out
    assert command.main(["memory_1rw"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@PAGE
def test_weight_rates(command, figures, monkeypatch, page):
    monkeypatch.setattr(command.module, "_JOBS", ((576, 64, 1), (64, 520, 4)))
    assert command.main(page) == 0
    assert command.ran
    assert [(figure.bound, figure.cycles) for figure in figures()] == [(9, 10)] * 2


@PAGE
def test_lane_rates(command, figures, monkeypatch, page):
    monkeypatch.setattr(command.module, "LENGTHS", (64,))
    monkeypatch.setattr(command.module, "OUTPUTS", (32, 64))
    monkeypatch.setattr(
        command.module, "_emission", lambda: [("one", 1.0, 1), ("sixteen", 16.0, 16)]
    )
    assert command.main(page) == 0
    assert len(command.ran) == 2
    lone = {True: 0, False: 0}
    for figure in figures():
        lone[figure.predicted is None] += 1
        assert (figure.predicted is None) == (figure.parameters["outliers"] > 0)
    assert lone == {True: 4, False: 4}


@PAGE
def test_kv_rates(command, figures, monkeypatch, page):
    monkeypatch.setattr(command.module, "RUNS", ((2, 1, 2, 20),))
    assert command.main(page) == 0
    assert command.ran
    appends, reads, both, *by_token = figures()
    # One APPEND and its header, then one more; one READ of two tokens; nothing for both.
    assert appends.predicted > 2 * 80
    assert reads.predicted > 2 * 12
    assert both.predicted is None
    # In order token, at two widths: APPENDs depend on their outliers.
    found = [[figure.predicted is None for figure in by_token[n : n + 3]] for n in (0, 3)]
    assert found == [[True, False, True]] * 2
    assert by_token[4].predicted < by_token[1].predicted


def test_million(command, figures, monkeypatch, tmp_path, capsys):
    small = test_example.SMALL
    test_example.packed(tmp_path / "pack")
    monkeypatch.setitem(command.module.CONFIGS, "smollm2", small)
    assert command.main(["--pack", str(tmp_path / "pack")]) == 0
    assert command.ran
    assert "8 steps: " in capsys.readouterr().out
    assert [figure.parameters["step"] for figure in figures()] == list(range(8))
    # LOAD, APPEND and ATTEND of two layers.
    assert {figure.cycles for figure in figures()} == {6 * CYCLES}
    assert command.main(["--model", "llama", "--pack", str(tmp_path / "pack")]) == 2
    assert "senbazuru.runs.million: " in capsys.readouterr().err


@PAGE
def test_million_rates(command, figures, monkeypatch, page, tmp_path):
    small = test_example.SMALL
    monkeypatch.setattr(command.module, "CONFIGS", {"16, 64": small})
    monkeypatch.setattr(command.module, "BUSY_KEYS", (12,))
    monkeypatch.setattr(trains, "PREFILLS", 3)
    monkeypatch.setattr(trains, "PAIRS", 2)
    monkeypatch.setattr(command.module, "KEYS", (4, 9, 99))
    assert command.main(["--keys", "10", *page]) == 0
    assert len(command.ran) == 2
    found = figures()
    assert [figure.parameters.get("keys") for figure in found] == [12, 12, 12, 4, 9]
    # Two ATTENDs after the first; two KV heads of two groups, whose tables take 64 cycles.
    assert [figure.cycles for figure in found[3:]] == [2 * CYCLES] * 2
    assert found[3].bound == 2 * 2 * 2 * 64
    apart = dataclasses.replace(small, kv_apart=True)
    monkeypatch.setattr(command.module, "APART", {"16, 64": apart})
    assert command.main(["--apart", "--keys", "10", *page]) == 0
    assert len(command.ran) == 3  # no run of the encoder
    assert [figure.configuration["kv_apart"] for figure in figures()] == [True, True]


@PAGE
def test_vq_tables(command, figures, monkeypatch, page):
    def synthesized(block, name, libraries):
        block._MustUse__silence = True
        return types.SimpleNamespace(kge=1.5, flip_flops=20, macro_bits=30)

    pair = command.module.PAIRS["gptvq2"]
    small = dataclasses.replace(pair, sizes=((3, 64), (4, 128)))
    monkeypatch.setattr(command.module, "PAIRS", {"gptvq2": small})
    monkeypatch.setattr(command.module, "AREAS", ("gptvq2",))
    monkeypatch.setattr(command.module, "ERROR_SHAPE", (8, 64))
    monkeypatch.setattr(command.module, "synthesize", synthesized)
    assert command.main(page) == 0
    assert len(command.ran) == 4
    # The load, the tables of a slice of 64 columns, and three rows.
    core, tables = figures()[:2]
    assert (core.predicted, core.cycles) == (None, CYCLES)
    assert tables.predicted > 2 * 256


def vq_pack(name):
    """A pack of one matrix for an engine, whose figures mean nothing."""
    engine = vq.engine_of(name)
    layout = {
        "job": {name: 0 for name, _ in engine.job_layout},
        "bounds": {"memory": 100, "products": 300},
        "error": 0.25,
    }
    return types.SimpleNamespace(
        words={"up_proj": {"image": [1, 2], "x": [3] * 9, "y": [4, 5]}},
        manifest=types.SimpleNamespace(layout={"up_proj": layout}, model={"name": "smollm2"}),
    )


@PAGE
def test_vq(command, figures, monkeypatch, page, capsys):
    """Weights, then K and V; a run that differs from golden fails the command at its end."""
    measure = command.module
    monkeypatch.setattr(measure, "_packs", lambda model, name, *_: iter([vq_pack(name)]))
    words = torch.zeros(4, 3, 64, dtype=torch.int64)
    seen = Seen(words, words + 0x3C00, words[:, :, None].expand(4, 3, 3, 64))
    codes = [torch.zeros(4, 3, 32, dtype=torch.int64)] * 2
    outputs = torch.full((3, 3, 64), 0x3C00)
    monkeypatch.setattr(vq_kv, "captured", lambda *_: vq_kv.Layer(seen, ((), ())))
    monkeypatch.setattr(vq_kv, "encode", lambda layer, config: codes)
    monkeypatch.setattr(vq_kv, "run", lambda *_: ([1000, 7000], outputs))
    options = ["--model", "smollm2", "--only", "quip4", "aqlm3", "cq4"]
    assert command.main([*options, *page]) == 0
    assert len(command.ran) == 2
    quip, aqlm, cache = figures()
    assert (quip.cycles, quip.parameters["matrix"]) == (CYCLES, "up_proj")
    assert quip.bound == 300 + measure.fill_of(measure.engine_of("quip4"), 256, 40)
    assert aqlm.bound == 300 + measure.fill_of(measure.engine_of("aqlm3"), 4096, 40)
    assert (cache.block, cache.cycles, cache.parameters["heads"]) == ("vq_attention", 7000, 3)
    out = capsys.readouterr().out
    assert "| smollm2 | quip4 | up_proj, 2 x 9 | 2 results |" in out
    assert "| K and V, 3 heads of 64, 4 tokens | 768 codes, 576 results |" in out
    assert "3 runs, all results and statuses equal to golden" in out

    def differs(*_):
        raise AssertionError("1 of 1 cocotb tests failed")

    monkeypatch.setattr(vq_kv, "run", differs)
    assert command.main(options) == 1
    captured = capsys.readouterr()
    assert "senbazuru.runs.vq: smollm2, cq4: 1 of 1 cocotb tests failed" in captured.err
    assert "2 runs, 1 differ from golden" in captured.out


@PAGE
def test_vq_rates(command, figures, monkeypatch, page):
    monkeypatch.setattr(command.module, "SIZES", ((8, 64),))
    assert command.main(["--config", "gptvq2_x4", *page]) == 0
    assert len(command.ran) == 3
    assert [figure.parameters["split"] for figure in figures()] == [1, 2, 4]
    assert {figure.cycles for figure in figures()} == {CYCLES}


@PAGE
def test_vq_plans(command, figures, monkeypatch, page, capsys):
    build = command.module.BUILDS["few banks"]
    matrices = tuple(dataclasses.replace(each, rows=8, columns=64) for each in build.matrices)
    small = dataclasses.replace(build, matrices=matrices, tiers=((0, 64), (8, 16)))
    monkeypatch.setattr(command.module, "BUILDS", {"few banks": small})
    monkeypatch.setattr(command.module, "HELD_OUT", 1)
    monkeypatch.setattr(others, "_GEMM", ((8, 64, 2, 0.5),))
    monkeypatch.setattr(others, "_GEMV", ((8, 64, 0.5),))
    spent = heads.Spent(tokens=8, others=(3 * CYCLES, CYCLES), alone=CYCLES)
    monkeypatch.setattr(others, "attended", lambda *_: [spent] * 3)
    assert command.main(page) == 0
    assert len(command.ran) == 1 + 4 + 11  # a build, and each plan for gemm and gemv
    assert [figure.cycles for figure in figures()] == [CYCLES] * (4 + 4 + 11 + 6)
    assert all(figure.bound <= figure.predicted for figure in figures() if figure.bound)
    out = capsys.readouterr().out
    assert "| gemv | 11 |" in out
    assert "| tables | 1,000 |" in out
    assert "| enough of each | 8 x 64, skew 0.5 | 11 |" in out
    assert "| 2,048 register bits | 8 x 64, skew 0.5 | 10 |" in out  # no network with 16
    assert "| no register bits | 8 x 64, skew 0.5 | 4 |" in out
    assert "| plans held out | 1 |" in out


def test_plans_of_held_out_builds_have_a_row_of_their_own(monkeypatch):
    """Shown to fail: they were among those that a hash holds out, and among the others."""
    measure = module_of("vq_plans")
    monkeypatch.setattr(measure, "HELD_OUT", 2)
    work, found = Work(matrix=MatrixShape(rows=8, columns=64)), []
    for build, spent in (("few banks", 100), ("small tiles of pairs", 80)):
        matrix = measure.BUILDS[build].matrices[0]
        for plan in measure.BUILDS[build].plans()[:4]:
            estimate = Estimate(plan, {"look-ups": 88.0, "fill": 0.0}, resources(work, plan), 0)
            name = f"{build}, {plan.registers}, {plan.shared}"
            found.append(measure.Measured(name, build, matrix, estimate, spent))
    measure.hold_out(found)
    shown = measure.tables(found)["vq_plans"]
    assert "| plans held out | 2 | 12.0% | 12.0% | 0 |" in shown
    assert "| other plans | 2 | 12.0% | 12.0% | 0 |" in shown
    assert "| builds held out | 4 | 10.0% | 10.0% | 0 |" in shown


def test_a_budget_decides_which_layout_is_the_fastest():
    """Shown to fail: winners of all plans, whatever the budget has."""
    shape = MatrixShape(rows=8, columns=64, vq=others._VQ)
    runs = []
    for fusion, registers, spent in (("exchange", 16, 10), ("buffer", 16, 11), ("none", 0, 12)):
        lookups = 4 if fusion == "none" else 8
        plan = Plan(
            fusion=fusion, need=0 if fusion == "none" else 2, registers=registers, shared=64,
            lookups=lookups, banks=4, rows=600,
        )  # fmt: skip
        taken = resources(Work(matrix=shape), plan)
        estimate = Estimate(plan, {"look-ups": float(spent), "fill": 0.0}, taken, 0)
        runs.append(others.Run("gemv: w", fusion, "b", shape, estimate, spent))
    choices, wins = others._winners({"gemv: w": runs})
    assert "| enough of each | w | 3 | exchange | 10 | 10 | exchange | 10 | 0.0% |" in choices
    assert "| 2,048 register bits | w | 2 | buffer | 11 | 11 | buffer | 11 | 0.0% |" in choices
    assert "| no register bits | w | 1 | none | 12 | 12 | none | 12 | 0.0% |" in choices
    assert "| layout buffer | 0 of 1 | 1 of 1 | 0 of 1 | 0 of 1 |" in wins


@PAGE
def test_vq_ablation(command, figures, monkeypatch, page, capsys):
    """Two tiles; codebooks that lead come once, and before for each 16 of 32 rows."""
    measure = command.module
    weight = torch.randn(32, 512, generator=torch.Generator().manual_seed(3))
    monkeypatch.setattr(measure, "_weight", lambda rows: weight[:rows])
    cases = (("gemv", "gptvq2_x4"), ("gemm", "gptvq2"), ("attention", "cq4"))
    monkeypatch.setattr(measure, "CASES", cases)
    spent = [heads.Spent(tokens=n, others=(3 * CYCLES, CYCLES)) for n in (16, 32)]
    monkeypatch.setattr(attention_engines, "measure", lambda *_: spent)
    assert command.main(["--rows", "32", *page]) == 0
    assert len(command.ran) == 2 + 4
    assert len(figures()) == 6 + 4 + 2
    assert [figure.cycles for figure in figures()[-2:]] == [2 * CYCLES, CYCLES]
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if "`" in line]
    gemm = [line[10] for line in lines if line[0] == "| gemm"]
    book = 2 * 256 * 8
    assert gemm[2:] == [f"{2 * book:,}", f"{2 * book:,}", f"{book:,}"]
    names = ("codebook by codebook", "columns split among cores", "exchange network")
    steps = [step for step in measure.STEPS if step.name in names]
    tiers = dict.fromkeys(("registers", "shared", "memory", "conflicts"), 1)
    found = [
        measure.Measured("gemv", "", step, tiers, 1, 1, 1, types.SimpleNamespace(cycles=cycles))
        for step, cycles in zip(steps, (100, 400, 50), strict=True)
    ]
    assert [row[4] for row in measure._rows(found)] == ["", "1.00", "0.25", "2.00"]
    small = measure._trained(NAMED["gptvq2"], 32)
    assert torch.equal(measure.striped(small, 16).dequantized(), small.dequantized())
    with pytest.raises(ValueError, match="rows must divide 32 and 32, not 24"):
        measure.striped(small, 24)


@PAGE
def test_vq_attention(command, figures, monkeypatch, page, capsys):
    """Two small engines with the same image; areas are left out too."""
    pq = PqShape(head_dim=32, subspaces=16, bits=4)
    shape = AttendShape(pq=pq, groups=8, queries=2, data_bits=64, max_tokens=16)
    rate = RateShape(macs=8, queries=2, window_macs=8, lanes=8)
    cache = dataclasses.replace(test_one_image.CACHE, pq=pq)
    tables = dataclasses.replace(test_example.SMALL, cache=cache, rate=rate)
    decode = MillionDecodeEngineConfig(pq=pq, rate=rate, max_keys=16)
    engines = {"passes": VqAttentionConfig(shape=shape), "tables": tables, "decoding": decode}

    def converted(block, name):
        block._MustUse__silence = True  # nothing elaborates it
        module = types.SimpleNamespace(name=name, block=block)
        return types.SimpleNamespace(name=name, modules=[module])

    measure = command.module
    monkeypatch.setattr(measure, "ENGINES", engines)
    monkeypatch.setattr(measure, "LONGEST", 16)
    monkeypatch.setattr(measure, "convert", converted)
    monkeypatch.setattr(measure, "map_modules", mapped)
    monkeypatch.setattr(command.module, "TOKENS", (4, 16))
    assert command.main(page) == 0
    decoding = ["tb.million.tb_decode_run"] * 2
    assert command.ran == ["tb.vqllm.tb_attention_run", "tb.million.tb_replay", *decoding]
    # Three heads among others and one alone at two numbers of tokens; MILLION's after a LOAD too.
    found = figures()
    assert len(found) == 4 + 6 + 2
    assert [figure.cycles for figure in found[:4]] == [3 * CYCLES, CYCLES] * 2
    # Two passes of K and of V: codebooks of 64 words, and codes of 2 or of 8.
    assert [figure.bound for figure in found[:4]] == [3 * 4 * 66, None, 3 * 4 * 72, None]
    assert "| **total** |" in capsys.readouterr().out


@PAGE
def test_vq_batch(command, figures, monkeypatch, page):
    monkeypatch.setattr(command.module, "MEASURED", (3, 64))
    monkeypatch.setattr(command.module, "RUNS", (1, 64))
    monkeypatch.setattr(command.module, "PASSES", (1, 2))
    assert command.main(page) == 0
    assert len(command.ran) == 4
    # Products of 3 rows of 2 beats, and the load of 2 x 256 entries, 4 in a word
    assert [figure.cycles for figure in figures()] == [CYCLES] * 4
    assert figures()[3].bound == 128 + 3 * 2 * 64


@PAGE
def test_mmu_rates(command, figures, page):
    assert command.main(page) == 0
    assert len(command.ran) == 2
    assert {figure.parameters.get("appends") for figure in figures()} == {None, 8}


def test_mmu_rates_of_a_sweep(command, figures):
    """A figure for each MMU, latency and run. Shown to fail: the latency left out of a figure."""
    measure = command.module
    assert command.main(["--sweep"]) == 0
    latencies = [params["latencies"] for params in command.given]
    assert latencies == [list(measure.SWEEP_LATENCIES)] * len(measure.SWEEP)
    assert {f.parameters["memory_latency"] for f in figures()} == set(measure.SWEEP_LATENCIES)


@PAGE
def test_dequant_rates(command, figures, monkeypatch, page):
    monkeypatch.setattr(command.module, "_READS", ((1, 0, 10), (2, 1, 100)))
    assert command.main(page) == 0
    assert len(command.ran) == len(command.module._CONFIGS)
    found = figures()
    assert len(found) == 2 * len(command.module._CONFIGS)
    # The page's first row: 16 beats after a latency of 14 cycles.
    assert found[0].predicted == 30
    assert all(figure.predicted is None for figure in found if figure.parameters["skipped"])


@PAGE
def test_lane_power(command, monkeypatch, tmp_path, page):
    """Each lane once per library; a later run takes the figures of the lanes that it leaves out."""
    measured = []
    groups = {group: {"internal_pj": 1.0} for group in GROUPS}

    def measure_lane(lane, libraries, clock_ns, seed):
        measured.append((lane, libraries, clock_ns, seed))
        figure = {
            "pj_per_cycle": 8.0, "groups": groups, "kge": 6.5, "toggles_per_cycle": 80.0, "ns": 4.5,
            "pj_per_operation": {"unit": "MAC", "pj": 0.25 * len(measured)},
            "streams": {"i": {"pj_per_transfer": 51.2}},
        }  # fmt: skip
        power = types.SimpleNamespace(cycle_pj=8.0)
        return types.SimpleNamespace(power=power, to_json=lambda: figure)

    module = command.module
    monkeypatch.setattr(module, "library_sets", lambda sets: dict.fromkeys(sets, "libraries"))
    monkeypatch.setattr(module, "delays_of", lambda libraries: None)
    monkeypatch.setattr(module, "measure_lane", measure_lane)
    monkeypatch.setattr(module, "FIGURES", tmp_path / "power" / "lanes.json")
    options = ["--set", "first", "--set", "second", "--keep", str(tmp_path / "keep")]
    assert command.main([*options, *page]) == 0
    parts = [*module.LANES, *module.LOOK_UPS]
    wanted = [(part, "libraries", 10.0, 1) for part in parts for _ in range(2)]
    assert measured == wanted
    assert module.FIGURES.exists() == bool(page)
    tables = []
    monkeypatch.setattr(module, "energy_table", lambda figures: tables.append(figures) or "none")
    assert command.main([*options, "--lane", "INT8 x INT8", *page]) == 0
    assert measured[len(wanted) :] == [("INT8 x INT8", "libraries", 10.0, 1)] * 2
    assert len(tables[0]) == len(wanted)
    assert command.main([*options, "--kept-only"]) == 0
    assert tables[1] == tables[0]
    assert len(measured) == len(wanted) + 2


@PAGE
def test_event_power(command, monkeypatch, tmp_path, page):
    """Each event once per library; a later run measures what is missing alone.

    Shown to fail: a kept figure measured again; an event measured without ``--event``; a pop with
    its words' energy; no commit in the file.
    """
    measured = []

    def measure_event(name, libraries, seed):
        measured.append(name)
        return {
            "event": name, "unit": "u", "block": "b", "pj": 40.0, "idle_pj": 8.0, "flip_flops": 4,
            "leakage_mw": 1e-3, "kge": 2.0,
        }  # fmt: skip

    module = command.module
    monkeypatch.setattr(module, "library_sets", lambda sets: dict.fromkeys(sets, "libraries"))
    monkeypatch.setattr(module, "delays_of", lambda libraries: None)
    monkeypatch.setattr(module, "measure_event", measure_event)
    monkeypatch.setattr(module, "FILE", tmp_path / "events.json")
    options = ["--set", "first", "--set", "second", "--keep", str(tmp_path / "keep")]
    assert command.main([*options, "--event", "index"]) == 0
    assert measured == ["index"] * 2
    assert not module.FILE.exists()
    assert command.main([*options, "--write", "abc", *page]) == 0
    assert sorted(measured) == sorted([*module.EVENTS] * 2)
    found = json.loads(module.FILE.read_text())
    assert found["commit"] == "abc"
    assert len(found["events"]) == len(measured)
    pj = {each["event"]: each["pj"] for each in found["events"]}
    assert pj["index"] == 40
    assert pj["tree pop"] == pytest.approx(40 - 40 * 256 / 80)
    assert command.main([*options, "--event", "index", "--again"]) == 0
    assert measured[-2:] == ["index"] * 2
    count = len(measured)
    assert command.main([*options, "--kept-only"]) == 0
    assert len(measured) == count


@pytest.mark.parametrize("name", ["SILU", "RSQRT"])
def test_words_of_a_function_are_those_of_the_block(name):
    """Shown to fail: a function of three bits."""
    recording = event_power.EVENTS[f"function {name}"].make(7)
    recording.block._MustUse__silence = True
    vectors, layout = recording.arguments["vectors"], recording.block.i.payload.shape()
    words = unpack_ints(vectors["mixed.i"])
    assert len(words) == len(unpack_ints(vectors["mixed.o"])) == 400
    assert set(layout_fields(layout, words, "function")) == {Function[name]}
    assert max(words).bit_length() <= layout.size


@pytest.mark.telling("element of a record", "lanes BOUND", "function TANH")
@pytest.mark.parametrize("name", [each for each in event_power.EVENTS if each != "row look-up"])
def test_the_bench_of_an_event_passes_on_the_rtl(name):
    """Its words and parameters are those that the bench takes, before any gates are mapped.

    Shown to fail: a phase of restored tokens that has gaps and says that it is full.
    """
    event = event_power.EVENTS[name]
    recording = event.make(3)
    arguments = recording.arguments | ({"testcase": event.test} if event.test else {})
    config = arguments.pop("config")
    assert recording.block.config == config
    simulate(recording.block, recording.module, **arguments)


def test_the_bench_of_a_row_look_up_passes_on_the_rtl():
    """Shown to fail: phases that do not say when a word of the table is taken."""
    block, module, vectors, params = lane_power.look_up("rounded", False, 3, 2)
    simulate(block, module, vectors=vectors, params=params, testcase="full_rate")


def test_an_event_is_what_work_adds(monkeypatch):
    """(20 - 8) pJ in each of 50 cycles, for 2 x 30 operations: 10 pJ. Idle cycles have no test.

    Shown to fail: the energy of the busy run alone; transfers in the place of operations; plain
    inputs that the idle run does not drive.
    """
    module = event_power
    runs = []

    def power(self, recording, clock_ns, test="", steps=()):
        runs.append((recording.module, test, dict(recording.arguments)))
        is_idle = recording.module == "tb.idle"
        stream = types.SimpleNamespace(name="o", transfers=30)
        return types.SimpleNamespace(
            dynamic_pj=8.0 if is_idle else 20.0, cycles=50, streams=(stream,), volts=1.0,
            leakage_mw=0.1, group_pj=lambda group: 7.5,
        )  # fmt: skip

    def mapped(name, block, libraries):
        gates = types.SimpleNamespace(netlist=types.SimpleNamespace(flip_flops=3), kge=1.5)
        gates.power = types.MethodType(power, gates)
        return gates

    monkeypatch.setattr(module, "_mapped", mapped)
    block = KllmDispatcher(KllmDispatcherConfig())
    block._MustUse__silence = True
    recording = Recording("t", block, "tb.x", {"config": block.config, "vectors": 1, "params": 2})
    event = module.Event("u", lambda seed: recording, "full_rate", "o", 2, "w")
    monkeypatch.setitem(module.EVENTS, "e", event)
    found = module.measure_event("e", None)
    assert found["pj"] == 10.0
    assert (found["idle_pj"], found["clock_pj"], found["flip_flops"]) == (8.0, 7.5, 3)
    assert runs[0] == ("tb.x", "full_rate", recording.arguments)
    assert runs[1][:2] == ("tb.idle", "")
    assert runs[1][2]["params"]["plain"] == ["abort_pulse"]
    monkeypatch.setitem(module.EVENTS, "e", dataclasses.replace(event, stream="x"))
    with pytest.raises(BenchError, match="e: full_rate has moved no word of x"):
        module.measure_event("e", None)


@pytest.mark.parametrize("arguments", [["--lanes", "8", "64"], ["--page"]])
def test_engine_rates(command, figures, monkeypatch, arguments):
    monkeypatch.setattr(command.module, "LENGTHS", (1024,))
    assert command.main(arguments) == 0
    assert len(command.ran) == len(figures()) // 2
    found = [figure.predicted for figure in figures()]
    assert (found[:2], found[-2:]) == ([22, 3 * 128], [23, 3 * 16])


def test_real(command, monkeypatch, capsys):
    cache = find("oaken_kv_engine").configs["smollm2"].cache

    def kv(_, ids):
        size = len(ids), cache.kv.elements
        return [(torch.randn(size), torch.randn(size)) for _ in range(cache.layers)]

    def windows(_, text, count, length, skip=0):
        return [torch.zeros(length) for _ in range(count)]

    monkeypatch.setattr(checkpoint, "load", lambda: types.SimpleNamespace(model=None))
    monkeypatch.setattr(checkpoint, "windows", windows)
    monkeypatch.setattr("golden.llm.capture.capture_kv", kv)
    monkeypatch.setattr(command.module, "CALIBRATION", (1, 2))
    assert command.main(["--tokens", "2", "--layers", "0,7"]) == 0
    assert command.ran
    assert "every bit" in capsys.readouterr().out


@pytest.mark.parametrize("fault", [None, *sorted(FAULTS)])
def test_soak(command, fault, monkeypatch, capsys):
    numbers = dict.fromkeys(Figures.__annotations__, 7)

    def soak(requests, seed, *, config, block, progress):
        assert constants(config) == constants(soak_config())
        progress(requests, CYCLES, 1.0)
        if block is not None:
            block._MustUse__silence = True
            raise Mismatch("found")
        return Figures(**{**numbers, "statuses": {"READ": {"OK": 7}, "OPEN": {"FULL": 7}}})

    monkeypatch.setattr(command.module, "soak", soak)
    assert command.main(["--page"] if fault is None else ["--fault", fault]) == 0
    assert ("pages taken" if fault is None else "") in capsys.readouterr().out


def test_prefix(command, monkeypatch, tmp_path, capsys):
    """Each case once; a run that is kept is not made again; tokens that differ are refused."""
    prefix, ran = command.module, []
    shape = types.SimpleNamespace(vocabulary=150, context=40)
    pack = types.SimpleNamespace(
        layout=types.SimpleNamespace(shape=shape),
        manifest=types.SimpleNamespace(model={"name": "random"}),
    )
    last = [[5, 6], [7, 8]]

    def measure(case, plan, given, library, config, latency, say):
        say(case)
        ran.append(case)
        assert (given, library) == (pack, "library")
        assert config.machine.cache.forks
        assert (config.machine.cache.sequences, config.machine.cache.layers) == (3, 1)
        assert len(plan.prompt) == 30
        words = last[: 1 if case == prefix.ONE else 2]
        return prefix.Measured(9, 30, 1000, 800 + len(ran), len(words), 20, words)

    monkeypatch.setattr(prefix, "FOLDER", tmp_path / "prefix")
    monkeypatch.setattr(prefix, "measure", measure)
    monkeypatch.setattr("senbazuru.talk.command.image", lambda _options: pack)
    monkeypatch.setattr("senbazuru.host.build.build_chip", lambda _config, _threads: "library")
    small = ["--config", "small_forks", "--layers", "1", "--set", "cache.max_tokens=40"]
    asked = [*small, "--tokens", "30", "--users", "2"]
    assert command.main([*asked, "--no-apart"]) == 0
    assert "| 256 bytes | 2, with a prefix | 9 | 30 | 1,000 | 802 |" in capsys.readouterr().out
    assert command.main([*asked, "--page"]) == 0
    assert ran == list(prefix.CASES)
    assert command.main([*asked, "--set", "cache.page_bytes=512"]) == 0
    assert ran == 2 * list(prefix.CASES)
    printed = capsys.readouterr().out
    assert printed.index("| 256 bytes | one user |") < printed.index("| 512 bytes | one user |")
    assert command.main([*small, "--tokens", "40", "--users", "2"]) == 2
    assert "the image has 40 tokens of context, not 43" in capsys.readouterr().err
    last[0][1] = 9
    ran.clear()
    (kept,) = [each for each in prefix.FOLDER.iterdir() if "512" not in each.read_text()][:1]
    run = json.loads(kept.read_text())
    del run["cases"][prefix.APART]
    run["cases"][prefix.ONE]["words"] = [[5, 6]]
    run["cases"][prefix.SHARED]["words"] = [[5, 6], [7, 8]]
    kept.write_text(json.dumps(run))
    assert command.main(asked) == 2
    assert "user 0 chose [5, 6] in the case 'one user', [5, 9] in" in capsys.readouterr().err
    kept.write_text("{}")
    assert command.main(asked) == 2
    assert "no run of senbazuru.runs.prefix" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main([*small, "--context", "20", "--tokens", "30"])
    assert "--tokens, --own and --most must be at most 20" in capsys.readouterr().err


FIGURE = {
    "command": "senbazuru.runs.lane_rates",
    "block": "kllm_pe_lane",
    "configuration": {"bits_a": 4},
    "parameters": {"length": 64, "share": 0.1, "outliers": "online"},
    "span": "from the first beat to the last output",
    "cycles": 100,
    "bound": None,
    "predicted": 99,
    "predicted_by": "golden.kllm.timing.lane_cycles",
}


def test_cycles(command, tmp_path, capsys):
    """The command prints what a file holds; a file of another form is one line on stderr."""
    file = tmp_path / "some" / "figures.json"
    cycles.save(file, [cycles.Figure(**FIGURE), cycles.Figure(**{**FIGURE, "cycles": 7})])
    assert json.loads(file.read_text())["figures"][0] == FIGURE
    assert cycles.load(file) == [cycles.Figure(**{**FIGURE, "cycles": n}) for n in (100, 7)]
    assert command.main([str(file)]) == 0
    printed = capsys.readouterr().out
    assert "+1" in printed
    assert "-92" in printed
    for text, line in (
        ("{", "Expecting property name"),
        ("[]", "must be an object of version and figures"),
        ('{"version": 2, "figures": []}', "version must be 1, not 2"),
        ('{"version": true, "figures": []}', "version must be 1, not True"),
        ('{"version": 1.0, "figures": []}', "version must be 1, not 1.0"),
        ('{"version": 1, "figures": {}}', "figures must be a list, not {}"),
        ("[" * 100_000, "must not be nested so deeply"),
        ("9" * 10_000, "integer string conversion"),
        (
            json.dumps({"version": 1, "figures": [{**FIGURE, "block": []}]}),
            "figure 0: Figure.block must be a registered block, not []",
        ),
        ('{"version": 1, "figures": [{"cycles": 1}]}', "figure 0 must have block, bound, command"),
        (
            json.dumps({"version": 1, "figures": [{**FIGURE, "cycles": 0}]}),
            "figure 0: Figure.cycles must be 1 or more whole cycles, not 0",
        ),
    ):
        file.write_text(text)
        assert command.main([str(file)]) == 2
        (printed,) = capsys.readouterr().err.splitlines()
        assert printed.startswith(f"senbazuru.runs.cycles: {file}: ")
        assert line in printed


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"command": ""}, "command must be a text, not ''"),
        ({"block": "lane"}, "block must be a registered block, not 'lane'"),
        ({"block": []}, "block must be a registered block, not []"),
        ({"configuration": {"x": math.nan}}, "configuration must be values of JSON without NaN"),
        ({"parameters": {"x": math.nan}}, "parameters.x must be a finite number, not nan"),
        ({"parameters": {"x": math.inf}}, "parameters.x must be a finite number, not inf"),
        ({"predicted_by": 5}, "predicted_by must be a function of golden's timing, not 5"),
        (
            {"predicted_by": "golden.kllm.timing.Fraction"},
            "predicted_by must be a function of golden's timing, not ",
        ),
        (
            {"predicted_by": "golden.paging.timing.Timing"},
            "predicted_by must be a function of golden's timing, not ",
        ),
        ({"configuration": None}, "configuration must be an object, not None"),
        ({"parameters": {"length": [1]}}, "parameters.length must be a number or a text, not [1]"),
        (
            {"parameters": {"length": True}},
            "parameters.length must be a number or a text, not True",
        ),
        ({"cycles": 1.5}, "cycles must be 1 or more whole cycles, not 1.5"),
        ({"cycles": None}, "cycles must be 1 or more whole cycles, not None"),
        ({"bound": -1}, "bound must be 0 or more whole cycles, not -1"),
        ({"predicted": None}, "predicted_by must be given with predicted, and only then, not "),
        ({"predicted_by": None}, "predicted_by must be given with predicted, and only then, not "),
        (
            {"predicted_by": "golden.kllm.timing.none"},
            "predicted_by must be a function of golden's",
        ),
        ({"predicted_by": "os.path.join"}, "predicted_by must be a function of golden's timing"),
    ],
)
def test_a_figure_of_cycles_is_checked(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        cycles.Figure(**{**FIGURE, **wrong})
    assert str(error.value).startswith(f"Figure.{message}")


def test_a_prediction_is_whole():
    with pytest.raises(ValueError, match=r"lane_cycles must predict whole cycles, not 1\.5"):
        cycles.predicted(lane_cycles, 1.5)


@pytest.mark.parametrize("name", MEASURING)
def test_a_file_that_cannot_be_written_is_refused_first(name, tmp_path, monkeypatch, capsys):
    """One line and exit status 2, before anything is built or simulated."""
    module = module_of(name)
    replace_simulator(monkeypatch, **dict.fromkeys(SIMULATOR))
    (tmp_path / "file").write_text("")
    for wrong, line in (
        (tmp_path, "must be a file, not "),
        (tmp_path / "file" / "cycles.json", "must be a file that can be written, not "),
    ):
        with pytest.raises(SystemExit) as status:
            module.main(["--json", str(wrong)])
        assert status.value.code == 2
        assert f": argument --json: {line}'{wrong}'" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize("name", MEASURING)
def test_cycles_are_saved_last(name):
    """A file that can no longer be written costs the cycles, not the tables or the page."""
    text = inspect.getsource(module_of(name))
    assert (
        text.index("write_page(options.page, ")
        < re.search(r"    save\(\s*options\.json", text).start()
    )


@pytest.mark.parametrize("name", [*MEASURING, "soak"])
def test_a_page_without_a_place_is_refused_first(name, tmp_path, monkeypatch, capsys):
    """One line and exit status 2, before anything is built or simulated.

    Shown to fail: the measurement ended with a ValueError, or its table was dropped in silence.
    """
    module = module_of(name)
    monkeypatch.setattr(module, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(module, "soak", None, raising=False)
    replace_simulator(monkeypatch, **dict.fromkeys(SIMULATOR))
    for line in ("No such file or directory", "the page has no section '"):
        with pytest.raises(SystemExit) as status:
            module.main(["--page"])
        assert status.value.code == 2
        assert f": --page: {tmp_path}/page.md: {line}" in capsys.readouterr().err
        (tmp_path / "page.md").write_text("no section\n")


_WHOLE = "must be a whole number from 1 on, not"
_PRODUCT = "must be N/M where M divides N, such as 4/2, not"
REFUSED = {
    "accelerator_rates": {
        "--size -5": f"argument --size: {_WHOLE} '-5'",
        "--size x": f"argument --size: {_WHOLE} 'x'",
        "--size 4097": "--size must be 1..4096, the elements of a slot of table1",
        "--latency 0": f"argument --latency: {_WHOLE} '0'",
        "--tokens 4-2": f"{_PRODUCT} '4-2'",
        "--tokens 4/3": f"{_PRODUCT} '4/3'",
        "--tokens 0/0": f"{_PRODUCT} '0/0'",
        "--tokens 64/1": "--tokens: N must be 1..16, the slots of table1",
        "--part 5": "--part must divide 16 lanes, 24 ports and 4096 outputs",
        "--page --part 2": "the page has no section 'cycles_table1_part2'",
        "--page --size 64": "--page: the page has the standard cases: no --size",
        "--page --tokens 1/1": "--page: the page has the standard cases: no --tokens",
    },
    "engine_rates": {"--page --lanes 8": "--page: the page has all lanes: no --lanes"},
    "layer": {"--pack ": "argument --pack: must name a folder, not ''"},
    "mmu_rates": {"--sweep --page": "--page must not be given with --sweep, which has no table"},
    "vq": {"--pack somewhere": "--pack needs --only with one method of weights"},
    "vq_ablation": {"--page --only gemv,aqlm3": "--page needs all cases"},
    "vq_attention": {
        "--tokens 3": "--tokens must be 128 or more",
        "--page --latency 3": "--page: the page has the standard cases: no --tokens, no --latency",
    },
    "vq_plans": {
        "--only no": "--only must be one of few banks, ",
        "--page --only no": "--page needs all builds",
    },
}


@pytest.mark.parametrize(
    ("name", "words"), [(name, words) for name in REFUSED for words in REFUSED[name]]
)
def test_a_command_refuses(name, words, monkeypatch, capsys):
    """One line and exit status 2, before anything is built or simulated.

    Shown to fail: ValueError of numpy for a size below 0, and of int() for ``4-2``. An empty pack
    was the caller's folder.
    """
    replace_simulator(monkeypatch, **dict.fromkeys(SIMULATOR))
    with pytest.raises(SystemExit) as status:
        module_of(name).main([word.replace(",", " ") for word in words.split(" ")])
    assert status.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert REFUSED[name][words] in line


def test_build_report(tmp_path):
    """Shown to fail: benches of senbazuru were missing, and counted as ``tests``."""
    report = tmp_path / "tests.xml"
    cases = [
        f'<testcase classname="{module}" name="a"><properties><property name="processor" '
        'value="2"/></properties></testcase>'
        for module in ("tb.qet.test_swap", "senbazuru.talk.test_talk", "tests.test_isa")
    ]
    report.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
    module = module_of("build_report")
    benches = module.bench_tables(report)["build_benches"]
    assert "| `senbazuru/talk/test_talk.py` | 1 | 2 |\n| `tb/qet/test_swap.py` | 1 | 2 |" in benches
    assert "tests/" not in benches
    rooms = module.room_tables(report)["build_rooms"]
    for row in ("| `senbazuru/talk` | 1 | 2 |", "| `tests` | 1 | 2 |", "| all | 3 | 6 |"):
        assert row in rooms


@PAGE
def test_board(command, monkeypatch, tmp_path, capsys, page):
    """Boards that are kept are not made again; a word that differs is status 1.

    Shown to fail: a kept board that is made again; one that fails and ends the others.
    """
    module, made = command.module, []
    failing = {"fp16_mul": FpgaError("too large")}

    def measure(name, config, folder, seed=None, design=None, target="asic"):
        made.append((name, seed, design.verilog))
        if name in failing:
            raise failing[name]
        return {
            "block": name, "made_of": module.made_of(design, config, target),
            "cells": dict.fromkeys(("LUT", "FF", "block RAM", "DSP"), 1000),
            "mhz": 70.25, "sent": 3, "compared": 2, "differ": int(seed is not None),
            "first": "o 0: got 1", "cycles": 4000, "turned": "bit 3" if seed else "",
            "seconds": 2.0,
        }  # fmt: skip

    monkeypatch.setattr(module, "check_tools", lambda: None)
    monkeypatch.setattr(module, "all_boards", lambda: ["fp16_mul", "fp16_add", "stream_skid"])
    monkeypatch.setattr(module, "measure", measure)
    every = ["--all", "-o", str(tmp_path / "boards")]
    assert command.main([*every, *page]) == 2
    assert [name for name, _, _ in made] == ["fp16_mul", "fp16_add", "stream_skid"]
    shown = capsys.readouterr()
    assert "| `fp16_add` | 1,000 | 1,000 | 1,000 | 1,000 | 70.2 | 3 | 2 | 0 | 4,000 |" in shown.out
    assert shown.err.strip().splitlines()[-1] == "fp16_mul: too large"
    for error, line in (
        (ValueError("no words"), "no words"), (AssertionError(), "AssertionError"),
        (KeyError("o"), "KeyError: 'o'"),
    ):  # fmt: skip
        failing["fp16_mul"] = error
        del made[3:]
        assert command.main(every) == 2
        assert [name for name, _, _ in made[3:]] == ["fp16_mul"]
        assert capsys.readouterr().err.strip().splitlines()[-1] == f"fp16_mul: {line}"
    assert command.main([*every, "--kept-only"]) == 0
    assert len(made) == 4
    # Of other Verilog, and of another version: made again.
    failing.clear()
    skid = tmp_path / "boards" / "stream_skid.json"
    add = tmp_path / "boards" / "fp16_add.json"
    skid.write_text(skid.read_text().replace('"made_of": "', '"made_of": "0'))
    add.write_text("{}")
    assert command.main(every) == 0
    assert [name for name, _, _ in made[4:]] == ["fp16_mul", "fp16_add", "stream_skid"]
    # Fields that are not what the table needs.
    for change in ({"cells": {}}, {"cells": None}, {"mhz": "70"}):
        add.write_text(json.dumps(json.loads(add.read_text()) | change))
        del made[:]
        capsys.readouterr()
        assert command.main([*every, "--kept-only"]) == 0
        assert "fp16_add" not in capsys.readouterr().out
        assert command.main(every) == 0
        assert [name for name, _, _ in made] == ["fp16_add"]
    # Another target is measured again, though its Verilog is the same.
    del made[:]
    assert command.main([*every, "--target", "fpga"]) == 0
    assert [name for name, _, _ in made] == ["fp16_mul", "fp16_add", "stream_skid"]
    one = ["kllm_weight_supply", "--config", "small", "-o", str(tmp_path / "one")]
    for target in ("asic", "fpga"):
        assert command.main([*one, "--target", target, "--flip", "5"]) == 1
        assert made[-1][:2] == ("kllm_weight_supply", 5)
    assert made[-1][2] != made[-2][2]
    assert "turned round: bit 3" in capsys.readouterr().out
    failing["fp16_mul"] = FpgaError("too large")
    assert command.main(["fp16_mul", "-o", str(tmp_path / "one")]) == 2
    capsys.readouterr()
    assert command.main(["oaken_kv_engine", "--config", "small", "--no-check",
                         "-o", str(tmp_path / "one")]) == 2  # fmt: skip
    assert "oaken_kv_engine: a board has no memory for axi" in capsys.readouterr().err
    for wrong in (
        [], ["fp16_add", "--all"], ["--all", "--flip", "1"], ["--all", "--no-check"],
        ["--all", "--config", "small"], ["fp16_add", "--kept-only"],
        ["--all", "--target", "fpga", "--page"],
        ["fp16_add", "--no-check", "--flip", "1"],
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            command.main(wrong)
        assert len(capsys.readouterr().err.strip().splitlines()[-1]) < 120


def test_a_board_is_of_its_configuration_and_target():
    module = module_of("board")
    config = find("stream_skid").config
    design = module._design("stream_skid", config, "asic")
    other = find("stream_fork").config
    found = {module.made_of(design, config, "asic"), module.made_of(design, config, "fpga"),
             module.made_of(design, other, "asic")}  # fmt: skip
    assert len(found) == 3
    assert module.made_of(design, config, "asic") in found


def test_every_command_has_a_case():
    cases = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert len(MEASURING) > 6
    # tests/synth and senbazuru/runs have theirs.
    assert set(COMMANDS) - cases == {"power", "trace"}


@PAGE
def test_qet(command, figures, page, capsys, monkeypatch):
    """Three blocks for each matrix; a bit that differs fails the command."""
    assert command.main(["--only", "row_65", "rows_64", *page]) == 0
    assert len(command.ran) == 3
    found = figures()
    assert [figure.block for figure in found[::2]] == [
        "qet_encoder", "qet_decoder", "qet_dequant_gemv"
    ]  # fmt: skip
    assert [figure.bound for figure in found[:4]] == [2 * 3, 7 * 3, 2, 7]
    # Two tiles of five entries, whose codebooks are 7 words of memory, and a word of rows.
    assert found[4].bound == 7 + (7 + 1) + 1 + 25 + 40 + 2
    out = capsys.readouterr().out
    assert "| row_65, 1 x 65 | 2 | 3, 2 |" in out
    assert "6 runs, every bit equal to golden" in out

    def differs(*_):
        raise AssertionError("o: word 3")

    monkeypatch.setattr(command.module._Runs, "_run", differs)
    assert command.main(["--only", "row_63"]) == 1
    assert capsys.readouterr().err == "senbazuru.runs.qet: o: word 3\n"


@PAGE
def test_qet_rates(command, figures, monkeypatch, page, capsys):
    monkeypatch.setattr(command.module, "_CASES", {"smollm2": (16, (64,))})
    assert command.main(["--config", "smollm2", *page]) == 0
    assert len(command.ran) == 2
    assert {figure.cycles for figure in figures()} == {CYCLES}
    # 64 rows of 96 + 8 * (5 + 4) bits, and 34 entries of 640: 64 rows last longer.
    line = next(each for each in capsys.readouterr().out.splitlines() if "| 25, 9 |" in each)
    assert line.split(" | ")[4:8] == [str(64 * 168), str(34 * 640), "66.9%", "75.0%"]
