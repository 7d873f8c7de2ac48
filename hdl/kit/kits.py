"""The kit of each block: the golden words of its testbench."""

import dataclasses
import importlib
import importlib.util

from golden.config import Config
from hdl.kit.episodes import Vectors
from hdl.kit.words import Kit
from hdl.registry import find, rooms

_ROOMS = "hdl.kit.rooms"


def _kits_of(room: str) -> dict[str, Kit]:
    name = f"{_ROOMS}.{room}"
    return importlib.import_module(name).KITS if importlib.util.find_spec(name) else {}


def all_kits() -> dict[str, Kit]:
    """Block's name -> its kit, over all rooms; imports the golden models of all of them."""
    return {name: kit for room in rooms() for name, kit in _kits_of(room).items()}


def find_kit(name: str) -> Kit | None:
    """The kit of block ``name``, or None; imports the golden models of its room alone."""
    for room, each in rooms().items():
        if name in each.blocks:
            return _kits_of(room).get(name)
    return None


def shown(name: str) -> Config:
    """The configuration of which ``senbazuru.runs.kits`` writes the kit of block ``name``."""
    kit, block = find_kit(name), find(name)
    return block.configs[kit.shown] if kit and kit.shown else block.shown


def vectors(name: str, config: Config) -> Vectors | None:
    """Vectors of block ``name`` at ``config``; None: the block has none.

    ConfigError: it has none at this configuration.
    """
    kit = find_kit(name)
    if kit is None:
        return None
    golden = find(name).golden.replace(":", ".")
    return dataclasses.replace(kit.vectors(config), golden=golden)
