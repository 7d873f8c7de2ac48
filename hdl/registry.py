"""Every block by name: what ``python -m hdl.build`` builds and what the structure test checks.

Each room of hdl lists its classes in ``hdl/<room>/room.py``. The class of a block says its tier,
its golden function, the test of that function against an independent reference, and its
configurations (``hdl.block.Block``). A block is found by its name alone:
``index_reducer`` is hdl/index/reducer.py, tb/index/test_reducer.py, docs/blocks/index_reducer.md.
A block is an IP or a part (docs/decisions/0119-two-tiers-of-blocks.md). A part has no page.
"""

import ast
import dataclasses
import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from golden.config import Config, ConfigError
from hdl.block import Block, FieldOf, Tier, snake_case

_NAMED = "--config="
_FACTS = ("tier", "golden", "reference", "checked")  # of a class, and of its entry
_HDL = Path(__file__).resolve().parent
ROOMS = tuple(sorted(path.parent.name for path in _HDL.glob("*/room.py")))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Registered:
    """One block: its component class and what that says of itself."""

    component: type
    config: Config
    tier: Tier = Tier.IP
    configs: dict[str, Config] = dataclasses.field(default_factory=dict)
    golden: str = ""  # "package.module:function"
    reference: str = ""  # "tests/FILE.py: TEST"
    checked: str = ""  # named configuration whose ports the page shows, where the default is large

    @property
    def shown(self) -> Config:
        """The configuration whose ports the page shows."""
        return self.configs[self.checked] if self.checked else self.config

    @property
    def summary(self) -> str:
        """The first sentence of the component's docstring."""
        text = " ".join((inspect.getdoc(self.component) or "").partition("\n\n")[0].split())
        return re.split(r"(?<![. ])\.(?= |$)", text)[0]


def name_of(component: type[Block]) -> str:
    """The name of a registered block: its own, or else that of its class in lower case."""
    return vars(component).get("name") or snake_case(component)


def registered(*components: type[Block]) -> dict[str, Registered]:
    """Name to block of the classes of a room."""
    classes: dict[str, type[Block]] = {}
    for each in components:
        if classes.setdefault(name_of(each), each) is not each:
            raise ConfigError(f"two blocks are called {name_of(each)}")
    return {name: _entry(each, classes) for name, each in classes.items()}


def _entry(component: type[Block], classes: Mapping[str, type[Block]]) -> Registered:
    own = vars(component)
    facts = {each: own[each] for each in _FACTS if each in own}
    config, configs = _configurations(component, classes)
    return Registered(component=component, config=config, configs=configs, **facts)


def _configurations(
    component: type[Block], classes: Mapping[str, type[Block]]
) -> tuple[Config, dict[str, Config]]:
    """The default and the named configurations of a class; ``classes`` has those of users."""
    own = vars(component)
    default, configs = own.get("default"), own.get("configs", {})
    if isinstance(configs, FieldOf):
        whole, named = _configurations(classes[configs.block], classes)
        default = default or getattr(whole, configs.field)
        configs = {name: getattr(named[name], configs.field) for name in configs.names or named}
    if default is None:
        raise ConfigError(f"{component.__qualname__} is in a room and has no default configuration")
    return default, dict(configs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Room:
    """The facts that the tools know of a room."""

    blocks: dict[str, Registered]
    # page of docs -> its generated sections
    documents: dict[str, dict[str, Callable[[], str]]] = dataclasses.field(default_factory=dict)
    tables: tuple[str, ...] = ()  # modules of synth.tables that fill docs/area.md
    fault_weight: int = 1  # share of a block of this room in tb.faults.mutate's faults
    chip: tuple[str, str] | None = None  # block and named configuration of the whole design


def rooms() -> dict[str, Room]:
    """Name to room, sorted by name."""
    return {room: importlib.import_module(f"hdl.{room}.room").ROOM for room in ROOMS}


def all_blocks() -> dict[str, Registered]:
    """Name to block, over all rooms, sorted by name."""
    blocks: dict[str, Registered] = {}
    classes: dict[str, type] = {}  # hdl.back.emit names modules by class name, whatever its file
    for room in rooms().values():
        for name, block in room.blocks.items():
            if name in blocks:
                raise ConfigError(f"two blocks are called {name}")
            component = block.component
            first = classes.setdefault(component.__qualname__, component)
            if first is not component:
                raise ConfigError(
                    f"two classes are called {component.__qualname__}: "
                    f"{first.__module__} and {component.__module__}"
                )
            blocks[name] = block
    return dict(sorted(blocks.items()))


def ips() -> dict[str, Registered]:
    """Name to block of those that an integrator takes, sorted by name."""
    return {name: block for name, block in all_blocks().items() if block.tier is Tier.IP}


def users_of_blocks() -> dict[str, list[str]]:
    """Name of a block to the blocks, or else the files of hdl, whose code names its class."""
    blocks = all_blocks()
    place = {name: Path(inspect.getfile(block.component)) for name, block in blocks.items()}
    block_of = {path: name for name, path in place.items()}
    users: dict[str, list[str]] = {name: [] for name in blocks}
    for path in sorted(_HDL.rglob("*.py")):
        if path.name == "room.py":
            continue
        tree = ast.parse(path.read_text())
        found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for name, block in blocks.items():
            if block.component.__name__ in found and path != place[name]:
                users[name].append(block_of.get(path, path.relative_to(_HDL.parent).as_posix()))
    return users


def bench(name: str) -> str:
    """The file of the tests of block ``name``."""
    room = Path(inspect.getfile(find(name).component)).relative_to(_HDL).parts[0]
    stem = name.partition("_")[2]
    short = f"tb/{room}/test_{stem}.py"
    return short if (_HDL.parent / short).exists() else f"tb/{room}/test_{name}.py"


def find(name: str) -> Registered:
    """The block called ``name``; ConfigError with the nearest names when there is none."""
    blocks = all_blocks()
    if name not in blocks:
        near = difflib.get_close_matches(name, blocks, n=3, cutoff=0.4)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        list_all = "(python -m hdl.build --list shows all)"
        raise ConfigError(f"no block is called {name!r}{hint} {list_all}")
    return blocks[name]


def configuration(name: str, named: str | None, assignments: list[str]) -> Config:
    """Configuration of block ``name``: default or ``named``, then ``field=value`` applied."""
    block = find(name)
    base = block.config
    if named is not None:
        if named not in block.configs:
            known = ", ".join(block.configs) or "none"
            raise ConfigError(f"{name} has no configuration {named!r}; it has: {known}")
        base = block.configs[named]
    return type(base).parse(base, assignments)


def configuration_of(name: str, arguments: Sequence[str]) -> Config:
    """Configuration as a table writes it: ``--config=NAMED`` if any, then ``field=value``."""
    first, *others = arguments or ("",)
    if first.startswith(_NAMED):
        return configuration(name, first.removeprefix(_NAMED), others)
    return configuration(name, None, list(arguments))
