"""Cells without rows: linear systems that pull, and halves of the die that spread."""

import math

import numpy as np

from synth.placement.die import Die, Floats, Ints, Nets

ROUNDS = 24  # turns of solving and spreading
_FEW, _FLAT = 4, 3  # rows of a region; its width over its height
_NEAREST = 0.5  # um: pins that are closer pull as if they were so far apart


def analytic(
    widths: Ints, nets: Nets, ports: int, die: Die, random: np.random.Generator
) -> tuple[Floats, Ints]:
    """(x of the centres, row) of the shortest placement of all turns, once it is spread."""
    cells = len(widths)
    port_x, port_y = die.boundary(ports)
    x = np.concatenate([die.width * random.uniform(0.45, 0.55, cells), port_x])
    y = np.concatenate([die.height * random.uniform(0.45, 0.55, cells), port_y])
    best: tuple[float, Floats, Ints] = (math.inf, x[:cells], np.zeros(cells, dtype=np.int64))
    anchors: tuple[Floats | None, Floats | None] = (None, None)
    for turn in range(ROUNDS):
        pull = 0.01 * turn * (1 + turn / 8)  # towards the spread cells, stronger each time
        x = _solve(nets, x, cells, anchors[0], pull, turn == 0)
        y = _solve(nets, y, cells, anchors[1], pull, turn == 0)
        spread_x, row = spread(widths, x[:cells], y[:cells], die)
        spread_y = np.asarray((row + 0.5) * die.site.height, dtype=np.float64)
        anchors = spread_x, spread_y
        length = nets.lengths(
            np.concatenate([spread_x, port_x]), np.concatenate([spread_y, port_y])
        ).sum()
        if length < best[0]:
            best = float(length), spread_x, row
    return best[1], best[2]


def _solve(
    nets: Nets, at: Floats, cells: int, anchor: Floats | None, pull: float, is_first: bool
) -> Floats:
    """One coordinate of all points, of which the first ``cells`` have moved.

    Springs join the outermost points p of a net of m points to all its points q. Their strength is

        1 / ((m - 1) |p - q|)

    In the first turn all distances count as one.
    """
    from scipy.sparse import coo_matrix, diags
    from scipy.sparse.linalg import cg

    if not cells:
        return at
    sizes = np.diff(nets.first)
    net = np.repeat(np.arange(len(nets)), sizes)
    order = nets.points[np.lexsort((at[nets.points], net))]
    low, high = order[nets.first[:-1]], order[nets.first[1:] - 1]
    is_low = np.zeros(len(order), dtype=bool)
    is_high = np.zeros(len(order), dtype=bool)
    is_low[nets.first[:-1]] = True
    is_high[nets.first[1:] - 1] = True
    inner = ~(is_low | is_high)
    p = np.concatenate([order[~is_low], order[inner]])
    q = np.concatenate([low[net[~is_low]], high[net[inner]]])
    strength = 1.0 / (np.concatenate([sizes[net[~is_low]], sizes[net[inner]]]) - 1)
    if not is_first:
        strength /= np.maximum(np.abs(at[p] - at[q]), _NEAREST)
    diagonal, right = np.full(cells, 1e-9), np.zeros(cells)
    for one, other in ((p, q), (q, p)):
        moves, fixed = one < cells, (one < cells) & (other >= cells)
        diagonal += np.bincount(one[moves], strength[moves], cells)
        right += np.bincount(one[fixed], strength[fixed] * at[other[fixed]], cells)
    if anchor is not None:
        extra = pull / np.maximum(np.abs(at[:cells] - anchor), _NEAREST)
        diagonal += extra
        right += extra * anchor
    both = (p < cells) & (q < cells)
    rows = np.concatenate([p[both], q[both], np.arange(cells)])
    columns = np.concatenate([q[both], p[both], np.arange(cells)])
    values = np.concatenate([-strength[both], -strength[both], diagonal])
    matrix = coo_matrix((values, (rows, columns)), (cells, cells)).tocsr()
    found, _ = cg(
        matrix, right, x0=at[:cells], rtol=1e-4, maxiter=200, M=diags(1 / diagonal)
    )  # its last iterate is used even where it has not converged
    moved = at.copy()
    moved[:cells] = found
    return moved


def fit_rows(widths: Ints, row: Ints, die: Die) -> Ints:
    """``row`` with the last cells of each row that is too full in the nearest row with room.

    A row keeps its cells where no other row has room.
    """
    row = row.copy()
    room = die.columns - np.bincount(row, widths, die.rows)
    for full in np.flatnonzero(room < 0):
        nearest = np.argsort(np.abs(np.arange(die.rows) - full), kind="stable")
        for cell in np.flatnonzero(row == full)[::-1]:
            free = nearest[room[nearest] >= widths[cell]]
            if room[full] >= 0 or not len(free):
                break
            row[cell] = free[0]
            room[full] += widths[cell]
            room[free[0]] -= widths[cell]
    return row


def spread(widths: Ints, x: Floats, y: Floats, die: Die) -> tuple[Floats, Ints]:
    """(x, row) of cells at x, y once every part of the die is equally full.

    Each region is cut in two until it has one row and one cell. The cut is across its longer side.
    A region of few rows is cut between rows until it is flat, so that all rows are equally full.
    Cells go to either part in the order of x or y, by the shares of the parts. The cut between
    rows is at a row's edge.
    """
    cells = len(widths)
    region = np.zeros(cells, dtype=np.int64)
    left, right = np.zeros(1), np.array([die.width])
    low, high = np.zeros(1, dtype=np.int64), np.array([die.rows])
    while True:
        counts = np.bincount(region, minlength=len(left))
        rows = high - low
        if not ((counts > 1) | (rows > 1)).any():
            break
        height = np.where(rows > _FEW, 1, _FLAT) * rows * die.site.height
        across = (rows > 1) & (((right - left) < height) | (counts < 2))
        order = np.lexsort((np.where(across[region], y, x), region))
        of = region[order]
        total = np.bincount(region, widths, len(left))
        before = np.cumsum(widths[order]) - widths[order] / 2
        before -= (np.cumsum(total) - total)[of]
        share = np.where(across, (rows // 2) / rows, 0.5)
        upper = np.zeros(cells, dtype=np.int64)
        upper[order] = before >= (share * total)[of]
        # A single cell takes the part that it is in.
        edge = (low + rows // 2) * die.site.height
        upper = np.where((counts < 2)[region], y >= edge[region], upper).astype(np.int64)
        part = np.bincount(region, widths * (1 - upper), len(left)) / np.maximum(total, 1)
        cut = left + (right - left) * np.where(counts > 1, part, 0.5)
        middle = low + rows // 2
        # A single cell keeps its region of x.
        narrow = ~across & (counts > 1)
        twice = np.repeat(np.arange(len(left)), 2)
        is_upper = np.tile([False, True], len(left))
        new_left = np.where(narrow[twice] & is_upper, cut[twice], left[twice])
        new_right = np.where(narrow[twice] & ~is_upper, cut[twice], right[twice])
        new_low = np.where(across[twice] & is_upper, middle[twice], low[twice])
        new_high = np.where(across[twice] & ~is_upper, middle[twice], high[twice])
        used, region = np.unique(region * 2 + upper, return_inverse=True)
        left, right, low, high = (each[used] for each in (new_left, new_right, new_low, new_high))
    return ((left + right) / 2)[region], low[region]
