"""Modules mapped one by one: the same areas as a design mapped at once; the chip's rows add up."""

import gc
import json

import pytest

from hdl.back import emit
from hdl.back.verilog import convert
from hdl.registry import configuration, find
from synth import modules
from synth.area import load_libraries, synthesize
from synth.modules import Cost, instantiated, map_modules, module_texts, stub


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def block(name: str, config: str):
    return find(name).component(configuration(name, config, []))


def test_modules_mapped_alone_are_the_design_mapped_at_once():
    libraries = load_libraries()
    at_once = synthesize(block("kllm_concat", "small"), "kllm_concat", libraries)
    design = map_modules(convert(block("kllm_concat", "small"), "kllm_concat"), libraries)
    total = design.total()
    assert (total.cells, total.flip_flops) == (at_once.cells, at_once.flip_flops)
    assert total.um2 == pytest.approx(at_once.um2)
    again = map_modules(convert(block("kllm_concat", "small"), "kllm_concat"), libraries)
    assert again.modules == design.modules


def test_rows_hold_every_instance_once():
    design = map_modules(convert(block("memory_shared", "rows"), "memory_shared"), load_libraries())
    rows = design.by_row(lambda kind, parent, row: kind or row)
    assert sum(rows.values(), Cost()) == design.total()
    assert design.total().ram_bits
    assert rows["Memory1R1W"].um2 == 0
    assert all(count > 0 for count in design.instances().values())


def test_texts_and_stubs_of_modules():
    texts = module_texts(convert(block("memory_shared", "rows"), "memory_shared").verilog)
    children = instantiated(texts["memory_shared"], set(texts))
    assert children
    assert "memory_shared" not in children
    assert all("(* blackbox *)" in stub(texts[child]) for child in children)


def test_elements_of_arrays_get_no_wires_and_fields_do():
    verilog = convert(block("kllm_concat", "small"), "kllm_concat").verilog
    assert "payload.pair" in verilog
    assert "payload.pair[" not in verilog


def test_collections_are_on_again_after_an_emission():
    emit.emit(block("kllm_concat", "small"), "kllm_concat")
    assert gc.isenabled()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"types": 1, "levels": 1, "seconds": 1}'])
def test_a_damaged_module_is_mapped_again(text, monkeypatch):
    """Shown to fail: JSONDecodeError and TypeError."""
    runs = []

    def run(script, directory, **_):
        runs.append(directory)
        found = {"modules": {"\\stream_register": {"num_cells_by_type": {"dff": 2}}}}
        (directory / "stat.json").write_text(json.dumps(found))
        return "ABC: lev = 3"

    monkeypatch.setattr(modules, "run", run)
    design = convert(block("stream_register", None), "stream_register")
    first = map_modules(design, load_libraries()).modules
    (kept,) = modules.CACHE.rglob("mapped.json")
    kept.write_text(text)
    again = map_modules(design, load_libraries()).modules
    assert [each.flip_flops for each in (*first.values(), *again.values())] == [2, 2]
    map_modules(design, load_libraries())
    assert len(runs) == 2
