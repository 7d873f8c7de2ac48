"""Cells on the rows of a die, so that the half-perimeters of the nets are short.

    minimise  sum over nets of (max x - min x) + (max y - min y)

An analytic placement and its spreading take turns, as in SimPL (Kim, Lee and Markov, 2012). The
first solves the bound-to-bound model of each net (Spindler, Schlichtmann and Johannes, Kraftwerk2,
2008), a sparse linear system. The second halves the die again and again, down to one cell in one
row. Then each row takes its cells in order, without overlaps. At the end cells of one width change
places, and so do neighbours in a row.

x and y are in um from the lower left corner of the die. A pin is at the centre of its cell.
"""

import dataclasses

import numpy as np

from synth.placement.analytic import analytic, fit_rows
from synth.placement.die import (
    Die,
    Ints,
    Nets,
    Placement,
    Site,
    check_utilisation,
    die_of,
    legal_columns,
    placement_of,
)
from synth.placement.swaps import Swaps

__all__ = [
    "Die", "Nets", "Placement", "Site", "check_utilisation", "die_of", "place", "random_placement",
]  # fmt: skip
VERSION = 2  # of what ``place`` returns: a change of it makes kept placements void


def place(
    widths: Ints, nets: Nets, ports: int, site: Site, utilisation: float, seed: int = 1
) -> Placement:
    """Place cells of ``widths`` sites. The same arguments give the same placement.

    ports: points on the boundary, of the numbers after those of the cells. Where no row has room
    for a cell, all rows grow, so the utilisation may be lower than that of the call. ValueError:
    the utilisation is out of range.
    """
    die = die_of(widths, site, utilisation)
    random = np.random.default_rng(seed)
    x_spread, row = analytic(widths, nets, ports, die, random)
    row = fit_rows(widths, row, die)
    fullest = int(np.bincount(row, weights=widths, minlength=die.rows).max(initial=0))
    die = dataclasses.replace(die, columns=max(die.columns, fullest))
    column = legal_columns(widths, x_spread, row, die)
    swaps = Swaps(widths, nets, ports, die, row, column)
    swaps.improve(random)
    return placement_of(die, widths, np.array(swaps.row), np.array(swaps.column), ports)


def random_placement(
    widths: Ints, ports: int, site: Site, utilisation: float, seed: int = 1
) -> Placement:
    """Cells in random order, row after row: what a placement is compared with."""
    die = die_of(widths, site, utilisation)
    order = np.random.default_rng(seed).permutation(len(widths))
    before = np.cumsum(widths[order]) - widths[order] / 2
    row = np.empty(len(widths), dtype=np.int64)
    row[order] = before * die.rows // max(1, widths.sum())
    row = fit_rows(widths, row, die)
    fullest = int(np.bincount(row, weights=widths, minlength=die.rows).max(initial=0))
    die = dataclasses.replace(die, columns=max(die.columns, fullest))
    x = np.empty(len(widths))
    x[order] = np.arange(len(widths)) * 1e-9
    return placement_of(die, widths, row, legal_columns(widths, x, row, die), ports)
