"""The words of the kit of one block as its room gives them, and plain episodes. Without torch."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from golden.config import Config
from golden.words import unpack_ints
from hdl.kit.episodes import Episode, Vectors

MOST = 20_000  # words of all streams of an episode
SEED = 1  # of all vectors of kits: a kit is the same in every run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kit:
    """Vectors of one block by configuration, and the named configuration that runs show."""

    vectors: Callable[[Config], Vectors]
    shown: str = ""  # empty: the one that the block's page shows


def plain(name: str, words: Mapping[str, Sequence[int]], **more) -> Episode:
    """An episode of plain integers."""
    return Episode(name=name, words={k: [int(w) for w in v] for k, v in words.items()}, **more)


def rows(vectors: Mapping[str, np.ndarray], *names: str) -> dict[str, list[int]]:
    """The words of streams ``names`` of ``vectors``, as ``golden.words`` packs them."""
    return {name: unpack_ints(vectors[name]) for name in names}


def phases(vectors: Mapping[str, np.ndarray], names: Mapping[str, str], load: str) -> list[Episode]:
    """Episodes of vectors called ``PHASE.STREAM``; ``names``: phase -> what it covers.

    The words of the stream ``load``, such as a table, move before the others of their phase.
    """
    episodes = []
    for phase, covers in names.items():
        words = {
            key.removeprefix(f"{phase}."): unpack_ints(values)
            for key, values in vectors.items()
            if key.startswith(f"{phase}.")
        }
        first = {load: words.pop(load)} if load in words else {}
        if first:
            episodes.append(plain(f"{covers}: {load}", first))
        episodes.append(plain(covers, words))
    return episodes


def sliced(
    words: Mapping[str, Sequence[int]], packets: Mapping[str, Sequence[int]], count: int
) -> dict[str, Sequence[int]]:
    """The first ``count`` packets of each stream, as ``tb.contract`` counts them.

    Fewer, but one at least, where these are more than ``MOST`` words: a kit is checked in.
    """
    last = min(count, len(next(iter(packets.values())))) - 1
    while last and sum(packets[name][last] for name in words) > MOST:
        last -= 1
    return {name: each[: packets[name][last]] for name, each in words.items()}
