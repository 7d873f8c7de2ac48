"""Every block by name: what ``python -m hdl.build`` builds and what the structure test checks.

Each room of hdl lists its blocks in ``hdl/<room>/blocks.py``. A block is found by its name alone:
``index_reducer`` is hdl/index/reducer.py, tb/index/test_reducer.py, docs/blocks/index_reducer.md.
"""

import dataclasses
import difflib
import importlib

from golden.config import Config, ConfigError

__all__ = ["ROOMS", "Registered", "all_blocks", "configuration", "find"]

ROOMS = ("fp16", "stream", "memory", "axi", "index", "paging", "kllm", "oaken")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Registered:
    """One block: its component class, default and named configurations, and golden model."""

    component: type
    config: Config
    configs: dict[str, Config] = dataclasses.field(default_factory=dict)
    golden: str = ""  # "package.module:function"
    checked: str = ""  # named configuration whose ports the page shows, where the default is large

    @property
    def shown(self) -> Config:
        """The configuration whose ports the page shows."""
        return self.configs[self.checked] if self.checked else self.config


def all_blocks() -> dict[str, Registered]:
    """Name to block, over all rooms, sorted by name."""
    blocks: dict[str, Registered] = {}
    classes: dict[str, type] = {}  # hdl.emit names modules by class name, whatever its file
    for room in ROOMS:
        for name, block in importlib.import_module(f"hdl.{room}.blocks").BLOCKS.items():
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


def find(name: str) -> Registered:
    """The block called ``name``; ConfigError with the nearest names when there is none."""
    blocks = all_blocks()
    if name not in blocks:
        near = difflib.get_close_matches(name, blocks, n=3, cutoff=0.4)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise ConfigError(f"no block is called {name!r}{hint} (--list shows all)")
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
