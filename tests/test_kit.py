"""The parts of ``hdl.build --kit``, each read by a tool; bad input of kits.

Shown to fail:

- the place of its structure left out of a nested field's: ``test_places_of_fields``;
- a macro without the block's name: ``test_c_headers_compile``;
- ``sw`` and ``hw`` exchanged: ``test_registers``;
- a module left out of the list of ``--split``: ``test_split``;
- ``testbench`` made whatever ``--parts`` says: ``test_parts``;
- vectors looked for after the files are written: ``test_a_block_without_vectors``.
"""

import csv
import importlib
import json
import re
import subprocess
import sys

import pytest
from systemrdl import RDLCompiler

from golden.axi.format import REGISTERS
from golden.oaken.format import ScaleWord, Threshold
from hdl.back.deliver import deliver
from hdl.back.verilog import outline
from hdl.build import main
from hdl.kit import texts
from hdl.kit.constants import constants
from hdl.kit.parts import PARTS, make_kit
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1rw import Memory1RW
from hdl.registry import all_blocks, find, ips
from tb.simulate.compile import ROOT, tool_environment

PLAIN = ",".join(part for part in PARTS if part != "testbench")


def described(name):
    block = find(name)
    component = block.component(block.shown)
    component._MustUse__silence = True  # it is not elaborated
    return outline(component, name)


DESCRIPTIONS = {name: described(name) for name in all_blocks()}


def values(name):
    return {c.name: c.value for group in constants(DESCRIPTIONS[name]) for c in group.constants}


def verilator(*arguments, folder):
    result = subprocess.run(
        ["verilator", "--lint-only", *arguments], cwd=folder, env=tool_environment(),
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[:2000]


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """The files of a kit of a block with registers and RAMs, and its folder."""
    folder = tmp_path_factory.mktemp("kit")
    assert main(["axi_lite_registers", "--kit", "-o", str(folder)]) == 0
    return folder


def test_constants_of_every_block_have_names_of_their_own():
    for name in DESCRIPTIONS:
        found = values(name)
        assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*", each) for each in found), name


def test_places_of_fields():
    """A field of a structure within a structure counts from bit 0 of the port."""
    found = values("oaken_kv_engine")
    request = next(
        port for port in DESCRIPTIONS["oaken_kv_engine"]["ports"]
        if port["name"] == "request__payload"
    )  # fmt: skip
    for field in request["fields"]:
        assert found[f"PORT_REQUEST_{field['name'].upper()}_LSB"] == field["offset"]
    assert found["OP_READ"] == 2
    nested = {
        "name": "x", "ports": [
            {"name": "i__payload", "direction": "input", "width": 8, "role": "stream payload",
             "meaning": "", "fields": [
                {"name": "a", "offset": 0, "width": 3, "meaning": ""},
                {"name": "b", "offset": 3, "width": 5, "meaning": "", "fields": [
                    {"name": "c", "offset": 0, "width": 1, "meaning": ""},
                    {"name": "d", "offset": 1, "width": 4, "meaning": ""}]}]}],
        "configuration": {},
    }  # fmt: skip
    found = {c.name: c.value for group in constants(nested) for c in group.constants}
    assert found["PORT_I_B_D_LSB"] == 4


def test_elements_with_names_are_listed():
    """The order of Oaken's thresholds and scales, which only the description had."""
    found = values("oaken_kv_engine")
    names = [each.name for each in Threshold]
    assert [found[f"PORT_REQUEST_THRESHOLDS_{name}"] for name in names] == list(Threshold)
    found = values("oaken_scale_buffer")
    assert [found[f"PORT_O_SCALE_{each.name}"] for each in ScaleWord] == list(ScaleWord)


def test_what_a_meaning_refers_to_is_listed():
    """A text that names a class of golden's has each of its members as a constant."""
    for name, description in DESCRIPTIONS.items():
        found = values(name)
        named = re.findall(r"golden((?:\.[a-z_]+)+)\.([A-Z]\w+)", json.dumps(description))
        for path, enumeration in set(named):
            members = getattr(importlib.import_module(f"golden{path}"), enumeration)
            for each in members:
                assert any(key.endswith(f"_{each.name}") for key in found), (name, each)


def test_c_headers_compile(tmp_path):
    """All of them in one file: no name is another block's, and each is an integer."""
    lines = []
    for name, description in DESCRIPTIONS.items():
        (tmp_path / f"{name}.h").write_text(texts.c_header(description))
        lines.append(f'#include "{name}.h"')
    fields = DESCRIPTIONS["axi_lite_registers"]["registers"]
    lines += [
        f'_Static_assert(AXI_LITE_REGISTERS_REGISTER_{each["name"]} == {each["offset"]}, "");'
        for each in fields
    ]
    (tmp_path / "all.c").write_text("\n".join([*lines, "int main(void) { return 0; }", ""]))
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "all.c"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[:2000]


def test_packages_are_systemverilog(tmp_path):
    for name, description in DESCRIPTIONS.items():
        (tmp_path / f"{name}_pkg.sv").write_text(texts.sv_package(description))
    (tmp_path / "top.sv").write_text(
        "module top(output logic [31:0] o);\n"
        "  assign o = axi_lite_registers_pkg::REGISTER_COMMAND;\nendmodule\n"
    )
    files = [f"{name}_pkg.sv" for name in DESCRIPTIONS]
    verilator("-Wall", "--top-module", "top", *files, "top.sv", folder=tmp_path)


def test_registers(kit):
    compiler = RDLCompiler()
    compiler.compile_file(str(kit / "axi_lite_registers.rdl"))
    top = compiler.elaborate().top
    found = {node.inst_name: node for node in top.children()}
    assert {name: node.absolute_address for name, node in found.items()} == {
        name: register.offset for name, register in REGISTERS.items()
    }
    for name, register in REGISTERS.items():
        readable, writable = found[name].has_sw_readable, found[name].has_sw_writable
        assert (readable, writable) == (register.access != "WO", register.access != "RO"), name


def test_a_block_without_registers_has_no_rdl():
    assert texts.register_description(DESCRIPTIONS["stream_skid"]) is None


def test_constraints_name_every_port_once():
    for name in ("stream_fifo", "fp16_add", "oaken_kv_engine"):
        description = {**DESCRIPTIONS[name], "ports": [
            {"name": "clk", "direction": "input", "width": 1, "role": "clock", "meaning": ""},
            *DESCRIPTIONS[name]["ports"],
        ]}  # fmt: skip
        text = texts.constraints(description)
        named = [each.removesuffix("[*]") for each in re.findall(r"get_ports \{(\S+)\}", text)]
        assert sorted(named) == sorted(port["name"] for port in description["ports"])


def test_ram_table(kit):
    rows = list(csv.DictReader((kit / "axi_lite_registers_rams.csv").read_text().splitlines()))
    memories = json.loads((kit / "axi_lite_registers.json").read_text())["memories"]
    assert [(row["module"], int(row["width"]), int(row["depth"]), int(row["instances"]))
            for row in rows] == [(m["module"], m["width"], m["depth"], m["count"])
                                 for m in memories]  # fmt: skip
    assert {row["read_latency"] for row in rows} == {"1"}
    made = make_kit(
        Memory1RW(MemoryConfig(depth=8, width=32, granularity=8)), "ram", ("rams",), None
    )
    (row,) = csv.DictReader(made.files()["ram_rams.csv"].splitlines())
    assert row["write_bits"] == "8"


def test_template_is_an_instance(kit, tmp_path):
    text = (kit / "axi_lite_registers_template.vh").read_text()
    (tmp_path / "user.v").write_text(f"module user;\n{text}endmodule\n")
    verilator(
        "--top-module", "user", str(kit / "axi_lite_registers.vlt"), "user.v",
        str(kit / "axi_lite_registers.v"), folder=tmp_path,
    )  # fmt: skip


def test_all_verilog_of_a_kit_compiles_together(kit):
    """The template is no compilation unit: ``*.v`` leaves it out."""
    files = sorted(path.name for path in kit.glob("*.v"))
    assert files == ["axi_lite_registers.v", "axi_lite_registers_tb.v"]
    arguments = ["--timing", "axi_lite_registers.vlt", *files]
    verilator("--top-module", "axi_lite_registers_tb", *arguments, folder=kit)


def test_the_contract_of_reset_is_in_the_readme(kit):
    text = (kit / "README.md").read_text()
    assert "valid and ready may still be high from before" in text


READERS = [
    "axi_read_port", "kllm_accelerator", "million_attention", "oaken_attention", "oaken_kv_engine",
    "paging_mmu", "qet_dequant_gemv", "vq_attention", "vq_codebook_cache", "vq_gemm", "vq_gemv",
    "vq_gemv_core",
]  # fmt: skip


def test_what_a_reader_needs_of_its_memory_is_told(tmp_path):
    """Each IP that reads an AXI4 memory, by the name of its channel, and no other says it."""
    found = [
        name for name in ips()
        if any(port["name"].endswith("__ar__valid") and port["direction"] == "output"
               for port in DESCRIPTIONS[name]["ports"])
    ]  # fmt: skip
    assert sorted(found) == READERS
    for name in ips():
        page = (ROOT / "docs" / "blocks" / f"{name}.md").read_text()
        assert ("After an early RLAST, data are wrong" in page) == (name in found), name
    for name in ("axi_read_port", "axi_write_port"):
        arguments = [name, "--config", "small", "--kit", "--parts", "sdc", "-o"]
        for more in ([], ["--wrap", "axi"]):
            folder = tmp_path / f"{name}{len(more)}"
            assert main([*arguments, str(folder), *more]) == 0
            text = (folder / "README.md").read_text()
            assert ("After an early RLAST" in text) == (name == "axi_read_port")


def test_progress_and_time_are_told(kit):
    readme = (kit / "README.md").read_text()
    assert re.search(r"It takes at least [\d,]+ cycles", readme)
    assert "% PROGRESS == 0" in (kit / "axi_lite_registers_tb.v").read_text()
    assert "| tee build/icarus.log" in (kit / "run.sh").read_text()


def test_core_is_read_by_fusesoc(kit):
    command = [sys.executable, "-m", "fusesoc.main", "--cores-root", str(kit), "core", "show"]
    result = subprocess.run(
        [*command, "senbazuru:blocks:axi_lite_registers"], cwd=kit, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "sim_verilator" in result.stdout


def test_files_of_a_kit(kit, tmp_path):
    """The licence in each text, no path of the machine, and the same bytes again."""
    files = [path for path in kit.rglob("*") if path.is_file()]
    assert not [path for path in files if str(ROOT) in path.read_text()]
    assert not [path for path in files if str(kit) in path.read_text()]
    data = {".json", ".csv", ".hex"}
    without = [
        path.name for path in files
        if path.suffix not in data and "SPDX-License-Identifier: Apache-2.0" not in path.read_text()
    ]  # fmt: skip
    assert not without
    assert main(["axi_lite_registers", "--kit", "-o", str(tmp_path)]) == 0
    for path in files:
        assert (tmp_path / path.relative_to(kit)).read_bytes() == path.read_bytes()
    listed = re.findall(r"`([\w./]+)`", (kit / "README.md").read_text())
    assert {path.name for path in files if path.parent == kit} - {"README.md"} <= set(listed)


def test_parts(tmp_path):
    assert main(["fp16_add", "--kit", "--parts", "sdc,header", "-o", str(tmp_path)]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"README.md", "fp16_add.h", "fp16_add.json", "fp16_add.sdc", "fp16_add.v",
                     "fp16_add.vlt"}  # fmt: skip


@pytest.mark.parametrize("more", [[], ["--wrap", "axi"]])
def test_split(tmp_path, more):
    """One file per module: together they are the design of the one file."""
    arguments = ["axi_read_port", "--config", "small", "--kit", "--parts", PLAIN, *more]
    assert main([*arguments, "--split", "-o", str(tmp_path)]) == 0
    files = [
        line for line in (tmp_path / "axi_read_port.f").read_text().splitlines()
        if not line.startswith("//")
    ]  # fmt: skip
    assert len(files) > 3
    for file in files:
        assert len(re.findall(r"^module ", (tmp_path / file).read_text(), re.M)) == 1 + (
            bool(more) and file == "axi_read_port.v"
        )
    top = "axi_read_port_axi" if more else "axi_read_port"
    verilator("-Wall", "--top-module", top, "axi_read_port.vlt", *files, folder=tmp_path)
    block = find("axi_read_port")
    whole = deliver(block.component(block.configs["small"]), "axi_read_port")
    texts_of_files = "".join((tmp_path / file).read_text() for file in files)
    assert all(text in texts_of_files for text in whole.modules.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kit", "--parts", "sdc,tests"], f"--parts must be among {', '.join(PARTS)}, not 'tes"),
        (["--kit", "--parts", ""], f"--parts must be among {', '.join(PARTS)}, not ''"),
        (["--parts", "sdc"], "--parts is for --kit"),
        (["--split"], "--split is for --kit"),
    ],
)
def test_bad_parts(arguments, message, tmp_path, capsys):
    assert main(["stream_skid", *arguments, "-o", str(tmp_path / "kit")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "kit").exists()


def test_a_block_without_vectors(tmp_path, capsys):
    """One line; the other parts are there for those who want them, and nothing is half written."""
    both = ["stream_skid", "memory_1rw", "--kit", "-o", str(tmp_path / "kit")]
    assert main(both) == 2
    error = capsys.readouterr().err
    assert error == (
        "hdl.build: memory_1rw has no golden vectors for a testbench; leave testbench out of "
        f"--parts ({PLAIN})\n"
    )
    assert not (tmp_path / "kit").exists()
    assert main([*both[1:], "--parts", PLAIN]) == 0


def test_a_kit_has_a_folder_of_its_own(tmp_path, capsys):
    """Neither another kit nor a README of the user is overwritten; the same kit is, any time.

    Shown to fail without ``taken``, and with every README accepted.
    """
    folder = tmp_path / "kit"
    plain = ["--kit", "--parts", PLAIN, "-o", str(folder)]
    line = f"hdl.build: the kit of stream_skid needs a folder of its own, not {folder}\n"
    assert main(["memory_1rw", "stream_skid", *plain]) == 2
    assert capsys.readouterr().err == line
    assert not folder.exists()
    assert main(["memory_1rw", *plain]) == main(["memory_1rw", *plain]) == 0
    before = (folder / "README.md").read_text()
    assert main(["stream_skid", *plain]) == 2
    assert capsys.readouterr().err == line
    (folder / "README.md").write_text("mine")
    assert main(["memory_1rw", *plain]) == 2
    assert (folder / "README.md").read_text() == "mine" != before


def test_a_folder_that_is_a_file(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["stream_skid", "--kit", "-o", str(tmp_path / "file" / "kit")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_vectors_in_the_way_of_a_file(tmp_path, capsys):
    """A file called ``vectors`` where the folder must be: nothing is written."""
    (tmp_path / "vectors").write_text("mine")
    assert main(["stream_skid", "--kit", "-o", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


# What an installation without extras lacks.
_WITHOUT = """
import sys
for name in ("torch", "cocotb", "cocotb_tools", "cocotbext", "pytest", "verilator", "pyosys"):
    sys.modules[name] = None
from hdl.build import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("name", ["stream_fifo", "paging_page_table", "axi_lite_registers"])
def test_kits_without_torch(name, tmp_path):
    command = [sys.executable, "-c", _WITHOUT, name, "--kit", "-o", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / f"{name}_tb.v").exists()


def test_a_kit_that_needs_torch(tmp_path):
    command = [sys.executable, "-c", _WITHOUT, "fp16_add", "--kit", "-o", str(tmp_path / "kit")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert "the testbench of fp16_add needs" in result.stderr
    assert "pip install '.[torch]'" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "kit").exists()
