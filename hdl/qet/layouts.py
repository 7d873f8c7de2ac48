"""Beats of swap networks side by side, and the places of a network's values."""

from amaranth.lib import data

from golden.qet.config import swap_bits
from hdl.kinds import BITS
from hdl.ports import Payload
from hdl.stream.payload import LAST, MAX_BITS


def networks_max(levels: int, bits: int) -> int:
    """Networks of values of ``bits`` bits whose parts and maps fit one payload."""
    return MAX_BITS // ((bits << levels) + swap_bits(levels))


def _values(config) -> data.ArrayLayout:
    network = data.ArrayLayout(config.bits, 1 << config.levels)
    return data.ArrayLayout(network, config.networks)


def columns_layout(config, kind) -> Payload:
    """Values in the order of their columns. config: levels, networks and bits of a value."""
    return Payload(word=(_values(config), "values by column, network by network", kind), last=LAST)


def parts_layout(config, kind, done: int | None = None) -> Payload:
    """Values in the order of their parts, and the maps of the levels that are ``done``; None: all.

    Networks without levels have no maps.
    """
    done = config.levels if done is None else done
    fields: dict = {"word": (_values(config), "values by part, network by network", kind)}
    if done:
        bits = data.ArrayLayout(done << config.levels >> 1, config.networks)
        fields["map"] = (bits, "indicator maps of each network, level 0 in the low bits", BITS)
    return Payload(**fields, last=LAST)


def places(levels: int, level: int, pair: int) -> tuple[int, int]:
    """The places where ``level`` puts the smaller and the larger value of a network's ``pair``.

    The pair is in places ``2 * pair`` and ``2 * pair + 1`` before. Before level k the network has
    2**k parts, each in 2**(levels - k) neighbouring places. The map bit of the pair is
    ``level * 2**(levels - 1) + pair``.
    """
    half = 1 << levels - 1 - level  # columns of a part after the level
    part, column = divmod(pair, half)
    small = 2 * part * half + column
    return small, small + half
