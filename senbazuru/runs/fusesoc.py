"""``senbazuru.runs.fusesoc [BLOCK...]``: kits in FuseSoC projects, one block of each system.

For each block it writes a project into build/fusesoc. The kit is its library. A core of the
project depends on the kit, and instantiates the block by the kit's template. FuseSoC lints the
project with Verilator and runs the kit's testbench under Icarus Verilog and Verilator. Then a word
of the expected ones is changed, and FuseSoC's run must fail. ``--page`` rewrites a table of
docs/kits.md.
Exit status 1: a run has another end than it must have.
"""

import dataclasses
import importlib.util
import shutil
import subprocess
import sys
import time
from pathlib import Path

from golden import command
from golden.config import ConfigError
from golden.files import claimed_folder
from golden.markers import table
from hdl.arguments import add_page, check_page, write_page
from hdl.kit.kits import find_kit
from hdl.registry import find
from tb.kits.check import SIMULATORS, available, write_kit
from tb.simulate.compile import tool_environment
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "kits.md"
BLOCKS = (
    "oaken_kv_engine", "kllm_pe_lane", "million_decode_keys", "vq_gemv", "qet_dequant_gemv"
)  # fmt: skip
_FOLDER = ROOT / "build" / "fusesoc"
_TARGETS = {"icarus": "sim", "verilator": "sim_verilator"}  # of the kit
_CORE = """\
CAPI=2:
name: example:projects:{name}_user:1.0
filesets:
  rtl:
    file_type: verilogSource-2005
    files: [{name}_user.v]
    depend: ["senbazuru:blocks:{name}"]
targets:
  default:
    filesets: [rtl]
    toplevel: {name}_user
  lint:
    flow: lint
    filesets: [rtl]
    toplevel: {name}_user
    flow_options:
      tool: verilator
"""


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.fusesoc", description=__doc__)
    parser.add_argument(
        "blocks", nargs="*", metavar="BLOCK", help="by default one block of each system"
    )
    add_page(parser, PAGE)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["fusesoc"])
    try:
        for name in options.blocks:
            find(name)
        return report(options)
    except ConfigError as error:
        print(f"senbazuru.runs.fusesoc: {error}", file=sys.stderr)
        return 2


@dataclasses.dataclass
class _Done:
    """One command of FuseSoC."""

    status: int
    text: str
    seconds: float


def _fusesoc(project: Path, *arguments: str) -> _Done:
    began = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-m", "fusesoc.main", *arguments], cwd=project, env=tool_environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    return _Done(result.returncode, result.stdout, time.perf_counter() - began)


def _write_project(name: str) -> Path:
    """A project whose library is the kit of block ``name``."""
    project = _FOLDER / name
    shutil.rmtree(project, ignore_errors=True)
    kit, user = project / "kits" / name, project / "user"
    user.mkdir(parents=True)
    write_kit(name, kit)
    template = (kit / f"{name}_template.vh").read_text()
    (user / f"{name}_user.v").write_text(f"module {name}_user;\n{template}endmodule\n")
    (user / f"{name}_user.core").write_text(_CORE.format(name=name))
    for library, place in (("kits", "kits"), ("user", "user")):
        done = _fusesoc(project, "library", "add", library, place)
        if done.status:
            raise RuntimeError(f"fusesoc library add: {done.text}")
    return project


def _change_a_word(project: Path, name: str) -> None:
    """The first expected word of the stream with the most words gets another lowest bit."""
    vectors = project / "kits" / name / "vectors"
    masks = max(vectors.glob("*.masks.hex"), key=lambda file: file.stat().st_size)
    words = masks.with_name(masks.name.replace(".masks.hex", ".hex"))
    first, *others = words.read_text().splitlines()
    changed = f"{int(first, 16) ^ 1:0{len(first)}x}"
    words.write_text("\n".join([changed, *others, ""]))


def _judge(name: str, tools: list[str]) -> tuple[list[object], bool]:
    """Row of the table; whether every run ended as it must."""
    project = _write_project(name)
    row: list[object] = [f"`{name}`"]
    lint = _fusesoc(project, "run", "--target", "lint", f"example:projects:{name}_user")
    right = lint.status == 0
    row.append(f"{lint.seconds:.0f}" if right else "FAILS")
    if not right:
        print(lint.text[-3000:])
    core = f"senbazuru:blocks:{name}"
    for tool in tools:
        done = _fusesoc(project, "run", "--target", _TARGETS[tool], core)
        passes = done.status == 0 and f"PASS {name}:" in done.text
        print(f"{name:22} {tool:10} {done.seconds:6.1f} s  {'passes' if passes else 'fails'}")
        if not passes:
            print(done.text[-3000:])
        row.append(f"{done.seconds:.0f}" if passes else "FAILS")
        right = right and passes
    _change_a_word(project, name)
    done = _fusesoc(project, "run", "--target", _TARGETS[tools[0]], core)
    fails = done.status != 0 and f"FAIL {name}:" in done.text
    row.append("fails, as it must" if fails else "NOT FOUND")
    return row, right and fails


def report(options) -> int:
    """The runs of the command. ConfigError: a block without vectors, a missing tool."""
    if importlib.util.find_spec("fusesoc") is None:
        raise ConfigError("fusesoc is not installed (pip install fusesoc)")
    tools = [each for each in SIMULATORS if available(each)]
    for each in SIMULATORS:
        if each not in tools:
            print(f"{SIMULATORS[each]} is not installed: without it")
    rows, right = [], []
    names = options.blocks or BLOCKS
    for name in names:
        if find_kit(name) is None:
            raise ConfigError(f"{name} has no golden vectors for a testbench")
    with claimed_folder(_FOLDER):
        for name in names:
            row, is_right = _judge(name, tools)
            rows.append(row)
            right.append(is_right)
    columns = {"icarus": "Icarus, s", "verilator": "Verilator, s"}
    head = ["block", "lint, s", *(columns[each] for each in tools), "an expected word changed"]
    text = table(head, rows)
    print(text)
    write_page(options.page, {"fusesoc": text})
    return 0 if all(right) else 1


if __name__ == "__main__":
    command.run("senbazuru.runs.fusesoc", main)
