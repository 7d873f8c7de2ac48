"""What a room says of the kit of one block, and episodes of plain words."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from golden.config import Config
from hdl.kit.episodes import Episode, Vectors

__all__ = ["SEED", "Kit", "plain", "sliced"]

SEED = 1  # of all vectors of kits: a kit is the same in every run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kit:
    """Vectors of one block by configuration, and the named configuration that runs show."""

    vectors: Callable[[Config], Vectors]
    shown: str = ""  # empty: the one that the block's page shows


def plain(name: str, words: Mapping[str, Sequence[int]], **more) -> Episode:
    """An episode of plain integers."""
    return Episode(name=name, words={k: [int(w) for w in v] for k, v in words.items()}, **more)


def sliced(
    words: Mapping[str, Sequence[int]], packets: Mapping[str, Sequence[int]], count: int
) -> dict[str, Sequence[int]]:
    """The first ``count`` packets of each stream, as ``tb.contract`` counts them."""
    last = min(count, len(next(iter(packets.values())))) - 1
    return {name: each[: packets[name][last]] for name, each in words.items()}
