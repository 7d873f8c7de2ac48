"""The files that ``python -m hdl.build`` writes of a block: NAME.v, NAME.vlt and NAME.json.

``hdl.back.write`` writes the circuit of ``hdl.back.verilog.convert`` for a reader. Every bench
simulates the text of ``package`` (tb/simulate/run.py), and no other. Any set of such files compiles
together, those of separate calls included (docs/decisions/0103-files-that-share-a-chip.md):

- Each file has all modules that its top needs. Each module but the top has an include guard.
- The name of such a module ends with a hash of its text, which holds the names of its children. So
  equal names have equal text. A RAM keeps the name of ``hdl.back.emit.module_name``.
- The top is NAME, or TOP of ``--as``; ``--prefix`` comes before every module's name.
"""

import collections
import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from golden.config import ConfigError
from hdl.back.emit import EmittedModule, keeper
from hdl.back.keywords import KEYWORDS
from hdl.back.licence import LICENCE
from hdl.back.module import Module
from hdl.back.render import comment, render
from hdl.back.separator import SEPARATORS, delivered_names, renamed
from hdl.back.verilog import Design, convert
from hdl.back.waivers import control_file, found, wrapper_waivers
from hdl.back.write import read
from hdl.block import Block

_DIGITS = 12  # of the hash in a module's name


@dataclasses.dataclass(frozen=True)
class Delivery:
    """Files of one block."""

    name: str  # of the top module
    stem: str  # of the files' names; the top's name without ``_axi``
    verilog: str
    description: dict
    waivers: str
    waived: dict[str, int]  # rule of Verilator -> number of waivers
    modules: dict[str, str]  # name -> text, without guard and without the header of the file
    blocks: dict[str, Block]  # name -> block of the module, children first; a wrapper has none
    inner: dict  # the description without a wrapper, its ports by the names of the block
    ports: dict[str, str]  # port or stream of the block -> its name in the top, where another

    def files(self) -> dict[str, str]:
        """File's name -> its text. The description comes last."""
        digest = hashlib.sha256(self.verilog.encode()).hexdigest()
        description = {**self.description, "verilog": {"file": f"{self.stem}.v", "sha256": digest}}
        return {
            f"{self.stem}.v": self.verilog,
            f"{self.stem}.vlt": self.waivers,
            f"{self.stem}.json": json.dumps(description, indent=2) + "\n",
        }


def check_identifier(option: str, text: str) -> None:
    """ConfigError unless ``text`` is an identifier of Verilog and SystemVerilog."""
    if text in KEYWORDS:
        raise ConfigError(
            f"{option} must be an identifier, not {text!r}, a keyword of Verilog or SystemVerilog"
        )
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ConfigError(
            f"{option} must be a letter or _, then letters, digits and _, not {text!r}"
        )


def _is_ram(block: Block) -> bool:
    """A vendor's SRAM replaces such a module by its name (docs/memory.md)."""
    return bool(getattr(type(block), "is_memory_macro", False))


def _stem(block: Block) -> str:
    """The class's name in words; of a class inside a file, after the words of its file."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(block).__name__).lower()
    if not words.startswith("_"):
        return words
    package, *path = type(block).__module__.split(".")
    return "_".join([*(path if path else [package]), words.lstrip("_")])


def _summary(block: Block) -> str:
    """The first line of the class's docstring."""
    lines = (type(block).__doc__ or "").strip().splitlines()
    return lines[0] if lines else ""


def _fields(values: dict, before: str = "") -> Iterator[tuple[str, object]]:
    for field, value in values.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{before}{field}.")
        else:
            yield f"{before}{field}", value


def _configuration(values: dict, indent: str = "") -> list[str]:
    pairs = [f"{field} = {json.dumps(value)}" for field, value in _fields(values)]
    return comment(", ".join(pairs), indent) if pairs else []


class _Names:
    """Names of a design's modules in its files."""

    def __init__(
        self,
        design: Design,
        modules: dict[str, Module],
        prefix: str,
        top: str,
        ports: dict[str, str],
    ):
        self.blocks: dict[str, EmittedModule] = {m.name: m for m in design.modules}
        self.interface = design.interface
        self.modules, self.prefix, self.ports = modules, prefix, ports
        self.final = {top: f"{prefix}{top}"}
        self.texts: dict[str, str] = {}  # final name -> text
        self.order: list[str] = []  # children first
        for name in modules:
            self._settle(name)

    def _settle(self, name: str) -> None:
        if name in self.order:
            return
        module = self.modules[name]
        for instance in module.instances:
            self._settle(instance.module)
        emitted = self.blocks.get(name)
        block = emitted.block if emitted else None
        lines = []
        if emitted is not None and block is not None:
            lines += comment(f"{type(block).__name__}: {_summary(block)}")
            lines += _configuration(block.config.describe())
            names = self.ports if name in self.final else {}
            _order_ports(module, [names.get(port, port) for port in emitted.ports])
        if name in self.final:
            meanings = {
                names.get(port.name, port.name): renamed(port.meaning, names)
                for port in self.interface.ports
                if port.path[-1] not in ("valid", "ready")
            }
            text = "\n".join([*render(module, self.final, meanings), ""])
            self.texts[self.final[name]] = text
            self.order.append(name)
            return
        if block is not None and _is_ram(block):
            final = f"{self.prefix}{name}"
        else:
            stem = _stem(block) if block is not None else re.sub(r"_[0-9a-f]{8}(?=_)", "", name)
            text = "\n".join([self.prefix, stem, *lines, *render(module, self.final, {})])
            final = f"{self.prefix}{stem}_{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"
        self.final[name] = final
        self.texts[final] = "\n".join([*lines, *render(module, self.final, {}), ""])
        self.order.append(name)


def _order_ports(module: Module, names: list[str]) -> None:
    order = {name: n for n, name in enumerate(["clk", "rst", *names])}
    module.ports.sort(key=lambda port: order.get(port, len(order)))


def guarded(name: str, text: str) -> str:
    """``text`` of module ``name`` with the guard that it has in every file."""
    macro = f"SENBAZURU_{name}"
    return f"`ifndef {macro}\n`define {macro}\n{text}`endif\n"


def _header(design: Design, block: Block, name: str, names: _Names, counts: dict) -> list[str]:
    description = design.description
    versions = ", ".join(f"{tool} {each}" for tool, each in description["versions"].items())
    lines = [f"// {LICENCE}", *comment(f"{name}: {_summary(block)}")]
    lines += ["//", *comment(f"Made by Senbazuru ({versions}).")]
    lines += comment(f"Block {type(block).__name__} at this configuration:")
    lines += _configuration(block.config.describe(), "")
    speed = f"Latency: {block.latency}. Throughput: {block.throughput}."
    lines += ["//", *comment(renamed(speed, names.ports))]
    lines.append("// Reset: synchronous, for one cycle or more. No register has an initial value.")
    lines.append("//")
    if len(names.order) > 1:
        lines.append("// Modules (instances), and what each is where it is used once:")
        for old in reversed(names.order):
            number, where = counts.get(old, (1, ""))
            role = f"  {where}" if number == 1 and where else ""
            lines.append(f"//   {names.final[old]} ({number}){role}")
        lines.append("//")
        lines += comment(
            "Each module but the top has a guard: files of several blocks may be compiled together."
        )
    return lines


def _instances(modules: dict[str, Module], top: str) -> dict[str, tuple[int, str]]:
    """Module -> number of its instances in the design, and the path of the last."""
    counts: collections.Counter[str] = collections.Counter({top: 1})
    paths = {top: ""}
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in order:
            for instance in modules[name].instances:
                visit(instance.module)
            order.append(name)

    visit(top)
    for name in reversed(order):
        for instance in modules[name].instances:
            counts[instance.module] += counts[name]
            paths[instance.module] = ".".join(filter(None, (paths[name], instance.name)))
    return {name: (counts[name], paths[name]) for name in order}


def _described(description: dict, names: dict[str, str]) -> dict:
    """``description`` with the names that the modules have in the files."""
    memories = [
        {**each, "module": names.get(each["module"], each["module"])}
        for each in description["memories"]
    ]
    return {
        **description,
        "name": names.get(description["name"], description["name"]),
        "modules": [names.get(each, each) for each in description["modules"]],
        "memories": memories,
    }


def deliver(
    block: Block,
    name: str,
    *,
    prefix: str = "",
    wrap: str | None = None,
    separator: str = SEPARATORS[0],
) -> Delivery:
    """Files of ``block`` as module ``{prefix}{name}``; identical bytes on every run.

    ConfigError: ``prefix`` or ``name`` is no identifier of Verilog, or a keyword; ``separator`` as
    ``package`` says.
    """
    if prefix:
        check_identifier("--prefix", prefix)
    check_identifier("--as", name)
    return package(convert(block, name, wrap), prefix, separator)


def package(design: Design, prefix: str = "", separator: str = SEPARATORS[0]) -> Delivery:
    """Files of a design that is converted.

    separator: of the names of the top's ports (``hdl.back.separator``). ConfigError: it gives two
    ports one name or makes a keyword, or there is a wrapper, whose names have none.
    """
    interface, name = design.interface, design.modules[-1].name
    changed = delivered_names(interface.names, separator, interface.streams)
    if changed and design.name != name:
        raise ConfigError("--separator is for ports without a wrapper: those of --wrap have no __")
    outer, kept, modules = design.wrapper, keeper(), {}
    for emitted in design.modules:
        text = emitted.rtlil
        for each in kept.made_of(text, read) if kept else read(text):
            modules[each.name] = each
    outputs = {
        each: {name for name, known in module.declared.items() if known.kind.startswith("output")}
        for each, module in modules.items()
    }
    for module in modules.values():
        module.name_unused(outputs)
    modules[name].rename_ports(changed)
    names = _Names(design, modules, prefix, name, changed)
    taken = collections.Counter(names.final.values())
    if len(taken) < len(names.final):
        twice = [each for each, number in taken.items() if number > 1]
        raise ConfigError(f"--as: a module inside is called {twice[0]!r} too; choose another name")
    final = names.final[name]
    top = f"{prefix}{design.name}"
    head = _header(design, interface.block, top, names, _instances(modules, name))
    parts = ["\n".join([*head, ""])]
    if outer:
        outer = outer.replace(f"module {name}_axi(", f"module {top} (")
        outer = outer.replace(f"  {name} wrapped(", f"  {final} wrapped(")
        parts.append(outer)
    for old in reversed(names.order):
        each = names.final[old]
        parts.append(names.texts[each] if old == name else guarded(each, names.texts[each]))
    verilog = "\n".join(parts)
    waivers = wrapper_waivers(outer, verilog) if outer else {}
    if len(parts) > 2:
        waivers["DECLFILENAME"] = [None]
    for old, module in modules.items():
        text = names.texts[names.final[old]]
        at = verilog.index(f"\n{text}")
        first = verilog.count("\n", 0, at + 1) + 1
        for rule, places in found(module, text, first, outputs).items():
            waivers.setdefault(rule, []).extend(places)
    inner = _described(design.inner, names.final)
    description = _described(design.description, {**names.final, design.name: top})
    description = renamed(description, changed) if changed else description
    waived = {rule: len(places) for rule, places in sorted(waivers.items())}
    control = control_file(f"{final}.v", waivers)
    blocks = {names.final[module.name]: module.block for module in design.modules}
    return Delivery(
        top, final, verilog, description, control, waived, dict(names.texts), blocks, inner, changed
    )


# -- writing ------------------------------------------------------------------------------------
def check_folder(folder: Path) -> None:
    """OSError if files cannot be written into ``folder``, which need not exist; makes nothing."""
    exists = folder
    while not os.path.lexists(exists) and exists != exists.parent:
        exists = exists.parent
    if not exists.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(exists))
    if not os.access(exists, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(exists))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """No other process writes into ``folder`` in this way. Where locks do not work: nothing."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"another run writes into {folder}: this one waits", file=sys.stderr)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Ctrl-C and a polite end wait until the block is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class HasFiles(Protocol):
    """Anything that ``write`` writes: a Delivery, a kit, or a picture."""

    def files(self) -> dict[str, str]:
        """Path from the folder -> text."""


def write(deliveries: Iterable[tuple[Path, HasFiles]]) -> None:
    """Write the files of each delivery into its folder, all of them or none.

    Every file is written aside first. Then each description is removed, the other files are
    renamed to their places, and the new descriptions last. So a folder never has half a file, nor
    the Verilog of one run with the description of another, whenever a run ends. A second run waits.
    """
    by_folder: dict[Path, dict[str, str]] = {}
    for folder, delivery in deliveries:
        folder.mkdir(parents=True, exist_ok=True)
        by_folder.setdefault(folder.resolve(), {}).update(delivery.files())
    parts: list[tuple[Path, Path]] = []
    with contextlib.ExitStack() as locks:
        try:
            for folder in sorted(by_folder):
                locks.enter_context(_locked(folder))
                for name, text in by_folder[folder].items():
                    if (folder / name).is_dir():
                        raise IsADirectoryError(
                            errno.EISDIR, os.strerror(errno.EISDIR), str(folder / name)
                        )
                    file = folder / name
                    file.parent.mkdir(parents=True, exist_ok=True)
                    part = file.with_name(f".{file.name}.{os.getpid()}.part")
                    parts.append((part, file))
                    part.write_text(text)
            with _no_interrupt():
                for _, file in parts:
                    if file.suffix == ".json":
                        file.unlink(missing_ok=True)
                for part, file in sorted(parts, key=lambda pair: pair[1].suffix == ".json"):
                    part.replace(file)
        finally:
            for part, _ in parts:
                part.unlink(missing_ok=True)
