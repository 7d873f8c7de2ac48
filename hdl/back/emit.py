"""Deduplicated emission: every distinct module is elaborated and written once.

A block adds its children with ``hdl.children.add``. In simulation (pysim) that is a plain
submodule. Under ``emit`` it becomes an instance of a module. A module is converted the first time
its key, (class, configuration), is met. So time and memory grow with the number of distinct
modules and not with the number of copies.
"""

import contextlib
import contextvars
import dataclasses
import gc
import hashlib
import json
import os
import pickle
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from amaranth import ClockSignal, Format, ResetSignal, Signal
from amaranth.back import rtlil
from amaranth.hdl import Fragment, Instance, Value
from amaranth.hdl._ir import PortDirection
from amaranth.hdl._nir import Net, Netlist
from amaranth.hdl._nir import Value as NetValue
from amaranth.lib import wiring

from golden.config import ConfigError
from hdl import target
from hdl.back.keywords import KEYWORDS
from hdl.block import Block, snake_case
from hdl.children import NET_BITS, represented

_IN_TURN = threading.RLock()  # an emission may ask for the ports of a block
_GARBAGE_LIMIT = 2_000_000  # objects that may wait for a collection, about 300 MB
_CLOCK_AND_RESET = {"clk": ClockSignal, "rst": ResetSignal}


@dataclasses.dataclass(frozen=True)
class Port:
    """One Verilog port: ``path`` joined by ``__`` is its name, an index joined by ``_``.

    Stream 2 of a member ``y``, an array, has the ports ``y_2__payload``, ``y_2__valid``, ...
    """

    name: str
    path: tuple[str | int, ...]
    direction: str  # "input" or "output", seen from the module
    value: Value

    @property
    def width(self) -> int:
        return len(self.value)


@dataclasses.dataclass(frozen=True)
class EmittedModule:
    name: str
    block: Block
    rtlil: str
    ports: tuple[str, ...]  # of its members, in the order of its signature
    implicit_ports: tuple[str, ...]  # clk and rst, where the module uses them


def port_name(path: tuple[str | int, ...]) -> str:
    """Name of the port, or of the stream, at ``path`` of a signature."""
    parts = (f"_{part}" if isinstance(part, int) else f"__{part}" for part in path[1:])
    return f"{path[0]}{''.join(parts)}"


def flat_ports(component) -> list[Port]:
    """Ports in signature order; constant and zero-width members have none."""
    ports = []
    for path, member, value in component.signature.flatten(component):
        value = Value.cast(value)
        if len(value) and isinstance(value, Signal):
            direction = "input" if member.flow == wiring.In else "output"
            ports.append(Port(port_name(path), path, direction, value))
    names = [port.name for port in ports]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{type(component).__name__}: two ports are called {', '.join(twice)}")
    return ports


def module_name(block: Block) -> str:
    """Snake-case class name and a digest of (class name, configuration's class name, its fields).

    The file of a class is no part of the name: a class that moves keeps its modules' names.
    ``emit`` refuses a design in which two different classes or configurations share a name.
    """
    key = json.dumps(
        [type(block).__qualname__, type(block.config).__qualname__, block.config.describe()],
        sort_keys=True,
    )
    return f"{snake_case(type(block))}_{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def _full_name(block: Block) -> str:
    """``module.Class(module.Configuration)``."""
    block_class, config_class = (
        f"{each.__module__}.{each.__qualname__}" for each in (type(block), type(block.config))
    )
    return f"{block_class}({config_class})"


def _without_elements(fields):
    """``fields`` of a signal, arrays being one field each.

    Amaranth gives every field a wire of its own that nothing reads. Those of the elements of
    arrays are most of the Verilog of a module that passes wide rows on.
    """
    if isinstance(fields, Format.Array):
        return Format("{}", fields._value)
    if isinstance(fields, Format.Struct):
        parts = {name: _without_elements(part) for name, part in fields._fields.items()}
        return Format.Struct(fields._value, parts)
    return fields


def _name_states(signal: Signal) -> None:
    """Give the register of a state machine the attributes with which Amaranth names an enum."""
    states = getattr(signal, "_decoder", None)
    if not callable(states) or isinstance(states, type):
        return
    for value in range(1 << len(signal)):
        with contextlib.suppress(KeyError):
            name = states(value).removesuffix(f"/{value}")
            signal.attrs[f"enum_value_{value:0{len(signal)}b}"] = name


@contextlib.contextmanager
def _wide_nets():
    """Give a net's position within its cell NET_BITS bits.

    Amaranth packs cell and position into one integer, with 16 bits for the position. All inputs of
    a module are one cell, as are all outputs of a child. So a module could have no more than 65,536
    bits of either. The order of the nets stays the same, and so does the text.
    """
    own = {name: vars(Net)[name] for name in ("from_cell", "cell", "bit")}

    def from_cell(cls, cell: int, bit: int):
        assert cell >= 0
        if bit not in range(1 << NET_BITS):
            raise ValueError(f"a module's inputs, or a child's outputs, exceed 2**{NET_BITS} bits")
        return cls(cell << NET_BITS | bit)

    Net.from_cell = classmethod(from_cell)  # type: ignore[assignment]
    Net.cell = property(lambda net: net >> NET_BITS)  # type: ignore[assignment]
    Net.bit = property(lambda net: net & (1 << NET_BITS) - 1)  # type: ignore[assignment]
    try:
        yield
    finally:
        for name, each in own.items():
            setattr(Net, name, each)


@contextlib.contextmanager
def _quick_values():
    """Make tuples of nets without a check of each net's type: a quarter of a lane's emission."""
    own = vars(NetValue)["__new__"], Netlist.resolve_value

    def new(cls, nets=()):
        return tuple.__new__(cls, (nets,) if isinstance(nets, Net) else nets)

    def resolve_value(netlist, value):
        resolved, connections = [], netlist.connections
        for net in value:
            while net < 0:  # is_late, without a property's call
                net = connections[net]
            resolved.append(net)
        return tuple.__new__(NetValue, resolved)

    NetValue.__new__ = staticmethod(new)  # type: ignore[assignment]
    Netlist.resolve_value = resolve_value  # type: ignore[method-assign]
    try:
        yield
    finally:
        NetValue.__new__ = own[0]  # type: ignore[assignment]
        Netlist.resolve_value = own[1]  # type: ignore[method-assign]


@contextlib.contextmanager
def _no_memory_words():
    """Leave the initial words of RAMs out of the text.

    ``hdl.back.verilog`` drops them. Amaranth makes an object of each bit: 20 Mbit took 50 s and 2.4
    GB. The cell stays, so that those after it keep their names.
    """
    own = rtlil.ModuleEmitter.emit_memory

    def emit_memory(emitter, cell_idx, cell):
        own(emitter, cell_idx, SimpleNamespace(init=(), width=0, depth=0, src_loc=cell.src_loc))

    rtlil.ModuleEmitter.emit_memory = emit_memory  # type: ignore[method-assign]
    try:
        yield
    finally:
        rtlil.ModuleEmitter.emit_memory = own  # type: ignore[method-assign]


def _check_names(block: Block, name: str, ports: list[Port]) -> None:
    """ConfigError: the module or a port has a name that other tools cannot read."""
    for what, each in (("its module", name), *(("a port", port.name) for port in ports)):
        if each in KEYWORDS:
            block._MustUse__silence = True  # it is not elaborated
            raise ConfigError(
                f"{_full_name(block)}: {what} must not be called {each!r}, a keyword of Verilog "
                "or SystemVerilog"
            )


def _convert(block: Block, name: str, library: "_Library") -> EmittedModule:
    """The module of ``block`` itself; ``library`` has its children."""
    ports = flat_ports(block)
    _check_names(block, name, ports)
    token = represented.set(lambda each: _Shared(each, library))
    try:
        declared = {
            port.name: (
                port.value,
                PortDirection.Input if port.direction == "input" else PortDirection.Output,
            )
            for port in ports
        }
        design = Fragment.get(block, None).prepare(ports=declared, hierarchy=(name,))
        for signal in design.signal_lca:
            signal._format = _without_elements(signal._format)
            _name_states(signal)
        with _wide_nets(), _quick_values(), _no_memory_words():
            text, _ = rtlil.convert_fragment(design, name=name, emit_src=False)
    finally:
        represented.reset(token)
    body = text[text.index(f"module \\{name}\n") :]
    found = set(re.findall(r"^  wire .*\b(?:input|output|inout)\s+\d+\s+\\(\S+)$", body, re.M))
    implicit = tuple(sorted(found - set(declared)))
    unexpected = [port for port in implicit if port not in _CLOCK_AND_RESET]
    if unexpected:
        raise ValueError(f"{name}: ports that no member declares: {', '.join(unexpected)}")
    return EmittedModule(name, block, text, tuple(declared), implicit)


def silence(found) -> None:
    """Do not let Amaranth warn that ``found``, a block or blocks, was never elaborated.

    A bench's bank makes its members when it is made, so they are silenced with it.
    """
    if isinstance(found, Block) and not getattr(found, "_MustUse__silence", False):
        found._MustUse__silence = True
        silence(list(vars(found).values()))
    elif isinstance(found, (list, tuple)):
        for each in found:
            silence(each)


@dataclasses.dataclass(frozen=True)
class _Kept:
    """A child as it was converted before, and its own children."""

    module: EmittedModule
    children: tuple[Block, ...]


class Keeper:
    """Children that one emission has converted, for the next ones (``keeping``).

    Emissions of one process share most of their modules. most: characters and bytes that are kept,
    the oldest go first.
    """

    def __init__(self, most: int = 1 << 28) -> None:
        self._children: dict[tuple, _Kept] = {}
        self._made: dict[str, bytes] = {}
        self._sizes: list[int] = [0, 0]
        self._most = most // 2  # of each of the two

    def child(self, key: tuple) -> _Kept | None:
        return self._children.get(key)

    def keep_child(self, key: tuple, kept: _Kept) -> None:
        self._children[key] = kept
        self._sizes[0] += len(kept.module.rtlil)
        while self._sizes[0] > self._most:
            self._sizes[0] -= len(self._children.pop(next(iter(self._children))).module.rtlil)

    def made_of(self, text: str, make: Callable[[str], Any]) -> Any:
        """``make(text)``, or an equal object: a caller may change what it gets."""
        kept = self._made.get(text)
        if kept is not None:
            return pickle.loads(kept)
        made = make(text)
        kept = self._made[text] = pickle.dumps(made)
        self._sizes[1] += len(text) + len(kept)
        while self._sizes[1] > self._most:
            oldest = next(iter(self._made))
            self._sizes[1] -= len(oldest) + len(self._made.pop(oldest))
        return made


_keeper: contextvars.ContextVar[Keeper | None] = contextvars.ContextVar("keeper", default=None)


def keeper() -> Keeper | None:
    """The one of the ``keeping`` around this call."""
    return _keeper.get()


@contextlib.contextmanager
def keeping(keeper: Keeper):
    """Emissions take children from ``keeper``, and leave theirs in it.

    For a process whose generators do not change: a child is known by its class, its configuration
    and the target.
    """
    token = _keeper.set(keeper)
    try:
        yield
    finally:
        _keeper.reset(token)


class _Library:
    def __init__(self):
        self.modules: dict[tuple, EmittedModule | None] = {}
        self.names: dict[str, Block] = {}  # the first block of each name
        self._children: list[list[Block]] = [[]]  # of the modules that are being converted

    def get(self, block: Block, top_name: str | None = None) -> EmittedModule:
        key = (type(block), block.config)
        self._children[-1].append(block)
        if key in self.modules:
            module = self.modules[key]
            if module is None:
                raise RecursionError(f"{module_name(block)} contains itself")
            return module
        name = top_name or module_name(block)
        first = self.names.setdefault(name, block)
        if first is not block:
            raise ConfigError(
                f"two different blocks are the module {name}: {_full_name(first)} "
                f"and {_full_name(block)}"
            )
        self.modules[key] = None
        if top_name is None:
            module = self._child(key, block, name)
        else:
            module = _convert(block, name, self)
        if gc.get_count()[0] > _GARBAGE_LIMIT:
            gc.collect()
        del self.modules[key]  # re-inserted last: children come before their parents
        self.modules[key] = module
        return module

    def _child(self, key: tuple, block: Block, name: str) -> EmittedModule:
        """The module of ``block``, with its children in ``modules``."""
        keeper = _keeper.get()
        kept = keeper.child((target.current(), *key)) if keeper else None
        if kept is not None:
            silence(list(vars(block).values()))  # what it would have elaborated
            for child in kept.children:
                self.get(child)
            return dataclasses.replace(kept.module, block=block)
        self._children.append([])
        try:
            module = _convert(block, name, self)
        finally:
            children = self._children.pop()
        rtlil = re.sub(r"^attribute \\top 1\n", "", module.rtlil, flags=re.M)
        module = dataclasses.replace(module, rtlil=rtlil)
        if keeper:
            own = {(type(each), each.config): each for each in children}
            keeper.keep_child((target.current(), *key), _Kept(module, tuple(own.values())))
        return module


class _Children(_Library):
    """Emits nothing: notes each distinct child, and gives it no implicit ports."""

    def get(self, block: Block, top_name: str | None = None) -> EmittedModule:
        module = EmittedModule(module_name(block), block, "", (), ())
        return self.modules.setdefault((type(block), block.config), module) or module


class _Shared(wiring.Component):
    """Represents a block and elaborates to one instance of its module."""

    def __init__(self, block: Block, library: _Library):
        self._block, self._library = block, library
        super().__init__(block.signature)

    def elaborate(self, platform):
        module = self._library.get(self._block)
        connections = {
            ("i_" if port.direction == "input" else "o_") + port.name: port.value
            for port in flat_ports(self)
        }
        for name in module.implicit_ports:
            connections[f"i_{name}"] = _CLOCK_AND_RESET[name]()
        return Instance(module.name, **connections)


@contextlib.contextmanager
def _emitting():
    """One thread at a time: its changes of Amaranth's classes would change another's design.

    Python's collector of cycles takes two fifths of the time of a large design.
    """
    with _IN_TURN:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


def emit(block: Block, name: str) -> list[EmittedModule]:
    """Convert ``block`` to RTLIL: one module per distinct child, children first, ``name`` last.

    ConfigError: two different modules of one name; a module or a port whose name is a keyword of
    Verilog or SystemVerilog. A name that only begins with one, such as ``table__valid``, is none.
    """
    os.environ.setdefault("AMARANTH_USE_YOSYS", "builtin")
    library = _Library()
    with _emitting():
        library.get(block, top_name=name)
    return [module for module in library.modules.values() if module is not None]


def implicit_ports(block: Block) -> tuple[str, ...]:
    """``implicit_ports`` of the module that ``emit`` makes of ``block``.

    A module has the port when its own logic uses it, or when a child has it. So the children are
    converted only while ``clk`` or ``rst`` has not been found.
    """
    os.environ.setdefault("AMARANTH_USE_YOSYS", "builtin")
    library = _Children()
    found: set[str] = set()
    seen: set[tuple] = set()
    waiting = [block]
    with _emitting():
        while waiting and found != set(_CLOCK_AND_RESET):
            each = waiting.pop(0)
            seen.add((type(each), each.config))
            found |= set(_convert(each, "outline", library).implicit_ports)
            waiting = [
                module.block
                for key, module in library.modules.items()
                if module is not None and key not in seen
            ]
    return tuple(sorted(found))


def own_module(block: Block) -> tuple[str, dict[str, Block]]:
    """RTLIL of ``block`` without its children, and the block of each child by its module's name.

    No child is converted. So this takes the time of one module, and the instances have no clock.
    """
    os.environ.setdefault("AMARANTH_USE_YOSYS", "builtin")
    library = _Children()
    with _emitting():
        text = _convert(block, "outline", library).rtlil
    modules = [module for module in library.modules.values() if module is not None]
    return text[text.index("module \\outline\n") :], {each.name: each.block for each in modules}
