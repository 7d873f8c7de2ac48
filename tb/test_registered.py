"""Checks of every registered block: lint, netlist, names, same bytes, no initial values.

An IP has a page, and it is up to date. The page takes its ports from
``hdl.back.emit.implicit_ports``, which emits no children. The lint test compares that with the
whole emission. The benches of fp16 must run the arithmetic of every operator inside.

Shown to fail:

- ``implicit_ports`` that never looks at the children: `kllm_scaler` and `oaken_decomposer` have no
  clock;
- ``take, ends = Signal(), Signal()`` in one block: two signals without a name;
- no bench of a product of two binary32 words rounded to binary16: `million_output` has one.
"""

import json
import re
import subprocess
import sys

import pytest

from hdl.back.deliver import package
from hdl.back.emit import implicit_ports
from hdl.back.verilog import convert
from hdl.pages.documents import fill, pages_directory
from hdl.registry import all_blocks, ips
from synth.check import check
from tb.fp16.support.formats import COMPLETE, has_bench
from tb.simulate.run import lint, shared_children

BLOCKS = all_blocks()
# The smallest named configuration of each block: lint is about constructs, not sizes.
SMALLEST = {
    name: block.configs.get("small", next(iter(block.configs.values()), block.config))
    for name, block in BLOCKS.items()
}
# What Amaranth calls a Signal that it cannot name. In Verilog it is signal_4.
_UNNAMED = re.compile(r"\\\$signal[^\s]*")


@pytest.mark.telling(*ips())  # a part is inside of one
@pytest.mark.parametrize("name", BLOCKS)
def test_lint_and_netlist(name):
    block = BLOCKS[name]
    # With the top NAME_axi around it, so that both are looked at.
    with shared_children():
        emitted = convert(block.component(SMALLEST[name]), name, "axi")
        design = package(emitted)
    assert implicit_ports(block.component(SMALLEST[name])) == emitted.modules[-1].implicit_ports
    unnamed = {each.name: len(set(_UNNAMED.findall(each.rtlil))) for each in emitted.modules}
    assert not any(unnamed.values()), "Amaranth names one Signal per assignment, or by name="
    lint(design)
    check(design)
    operators = [each.block for each in emitted.modules if type(each.block) in COMPLETE]
    assert not [each.config for each in operators if not has_bench(type(each), each.config)]
    assert "initial" not in re.findall(r"^\s*(\w+)", design.verilog, re.M)
    for port in design.description["ports"]:
        assert port["meaning"], f"{name}.{port['name']} has no meaning"
        assert "__valid" not in port["name"]
        assert port["width"] % 8 == 0 or not port["name"].endswith("_tdata")
    declared = re.search(rf"module {name}_axi \((.*?)\);", design.verilog, re.S)[1]
    assert re.findall(r"(\w+),?$", declared, re.M) == [
        p["name"] for p in design.description["ports"]
    ]
    json.dumps(design.description)


@pytest.mark.parametrize("name", ips())
def test_page_is_up_to_date(name):
    text = (pages_directory() / f"{name}.md").read_text()
    assert fill(name, text) == text, "run make docs"


@pytest.mark.parametrize("name", ["kllm_pe_lane", "fp16_fma"])
def test_same_bytes_every_run(name):
    program = (
        "import hashlib; from hdl.back.deliver import deliver; "
        "from hdl.registry import all_blocks, ips;"
        f"b = all_blocks()[{name!r}];"
        f"c = b.configs.get('small', b.config);"
        f"print(hashlib.sha256(deliver(b.component(c), {name!r}).verilog.encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "77")
    }
    assert len(digests) == 1
