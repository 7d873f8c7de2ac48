"""golden.qet: encode, image and product against their texts, in plain integers and fractions.

One small matrix is encoded, packed, unpacked and multiplied by hand. Nothing here calls
golden.qet, but for its data classes and what is tested.

Shown to fail:

- maps after codes, or codes in the order of the groups of the matrix;
- entries group by group in place of number by number;
- a tile that begins in the last word of the one before;
- a residual with the other sign of the exponent; an X that ends below its bound;
- the last of equal distances.
"""

import dataclasses
import random
from fractions import Fraction

import pytest
import torch

from golden.qet.config import QetShape, Stage, TileShape
from golden.qet.format import ImageShape
from golden.qet.image import image
from golden.qet.matrix import QetMatrix, StageCodes, encode
from golden.qet.product import product
from tests.exact import exact, rounded

STAGES = (Stage(levels=2, entries=5), Stage(levels=0, entries=3), Stage(levels=1, entries=1))
MOST = tuple(dataclasses.replace(stage, entries=stage.entries + 3) for stage in STAGES)
GROUP, ROWS, COLUMNS = 3, 7, 29  # tiles of 12 columns, the last one of 5
TILE, TILES = 12, 3
GRID = Fraction(1, 1 << 24)


def books(rng, entry_bits, exponent):
    """A QetMatrix without rows of its own: any entries, and ranges that reach 2 and beyond."""
    shape = QetShape(
        rows=1, columns=COLUMNS, element_bits=16, group=GROUP, stages=STAGES, entry_bits=entry_bits
    )
    made, most = [], (1 << entry_bits) - 1
    for stage in STAGES:
        size = shape.groups, stage.entries, GROUP
        if entry_bits:
            low = rng.randrange(-(1 << 25), 1 << 24)
            ranges = [[low, rng.randrange(1, ((1 << 25) - low) // most + 2)]]
            entries = torch.tensor([rng.randrange(most + 1) for _ in range(stage.entries * 36)])
        else:
            ranges = torch.empty(0, 2, dtype=torch.int64)
            words = [rng.randrange(0x4001) | rng.randrange(2) << 15 for _ in range(size[1] * 36)]
            entries = torch.tensor(words)
        made.append(
            StageCodes(
                stage,
                entries.reshape(size),
                torch.as_tensor(ranges),
                torch.zeros(1, shape.groups, dtype=torch.int64),
                [
                    torch.zeros(1, 1 << level, 36 >> level + 1, dtype=torch.bool)
                    for level in range(stage.levels)
                ],
            )
        )
    return QetMatrix(shape, tuple(made), exponent)


def value(made, number, entry_bits, element):
    """An element of an entry of a stage."""
    if not entry_bits:
        return int(exact(element) / GRID)
    low, step = made.stages[number].ranges[0].tolist()
    return low + step * element


def swapped(words, levels):
    """(parts, map bits) of the words of a network."""
    parts, bits = [words], []
    for _ in range(levels):
        after = []
        for part in parts:
            small, large = [], []
            for left, right in zip(part[::2], part[1::2], strict=True):
                ranks = [word ^ 0xFFFF if word >> 15 else word | 0x8000 for word in (left, right)]
                bits.append(int(ranks[0] > ranks[1]))
                small.append(right if bits[-1] else left)
                large.append(left if bits[-1] else right)
            after += [small, large]
        parts = after
    return [each for (each,) in parts], bits


def restored(parts, bits, levels):
    """The columns of a network, by its parts and its map bits."""
    parts, half = [[each] for each in parts], (1 << levels) // 2
    for level in reversed(range(levels)):
        of_level, merged = iter(bits[level * half : (level + 1) * half]), []
        for small, large in zip(parts[::2], parts[1::2], strict=True):
            columns = []
            for s, l in zip(small, large, strict=True):  # noqa: E741
                columns += [l, s] if next(of_level) else [s, l]
            merged.append(columns)
        parts = merged
    return parts[0]


def groups_of(columns, levels):
    """The groups of a tile: of each part its networks in turn. columns: network by network."""
    return [
        [part[network] for network in range(first, first + GROUP)]
        for part in zip(*columns, strict=True)
        for first in range(0, len(columns), GROUP)
    ]


def encoded_by_hand(words, made, entry_bits, tile):
    """[stage] (codes, maps by network) of the words of one row and tile."""
    scale, found = Fraction(2) ** made.exponent, []
    for number, stage in enumerate(STAGES):
        width = 1 << stage.levels
        pairs = [swapped(words[at : at + width], stage.levels) for at in range(0, TILE, width)]
        codes, nearest = [], []
        groups = groups_of([parts for parts, _ in pairs], stage.levels)
        for local, group in enumerate(groups):
            x = [int(exact(word) / scale / GRID) for word in group]
            x = [max(-(2**26) + 1, min(2**26 - 1, each)) for each in x]
            entries = [
                [value(made, number, entry_bits, each) for each in entry]
                for entry in made.stages[number].entries[number_of(local, stage, tile)].tolist()
            ]
            far = [sum((a - b) ** 2 for a, b in zip(x, e, strict=True)) for e in entries]
            codes.append(far.index(min(far)))
            rests = [
                rounded(scale * GRID * (a - b))
                for a, b in zip(x, entries[codes[-1]], strict=True)
            ]
            nearest.append([word - (word & 0x7FFF == 0x7C00) for word in rests])
        found.append((codes, [bits for _, bits in pairs]))
        words = columns_of(nearest, found[-1][1], stage)
    return found


def number_of(local, stage, tile):
    """The number in the matrix of a group of a tile."""
    per_part = TILE // (GROUP << stage.levels)
    part, place = divmod(local, per_part)
    return part * per_part * TILES + tile * per_part + place


def columns_of(groups, maps, stage):
    """The columns of a tile, by its groups and maps."""
    per_part = len(groups) >> stage.levels
    parts = [
        [each for group in groups[at : at + per_part] for each in group]
        for at in range(0, len(groups), per_part)
    ]
    return [
        column
        for network, bits in enumerate(maps)
        for column in restored([part[network] for part in parts], bits, stage.levels)
    ]


class Bits:
    """Values of an image, the lowest bits first."""

    def __init__(self, data):
        self.left = int.from_bytes(bytes(data), "little")

    def take(self, bits):
        found = self.left & (1 << bits) - 1
        self.left >>= bits
        return found


def product_by_hand(found, data_bits, x, entry_bits, rows):
    """y[row] of one vector, from the bytes and the job alone."""
    size, job = data_bits // 8, found.job
    entries = [job[f"entries_{n}"] for n in range(len(STAGES))]
    entry_bytes = -(-TILE * (entry_bits or 16) // 8)
    code_bits = [(most.entries - 1).bit_length() for most in MOST]
    # Stage 0: 3 networks of 4 map bits; stage 2: 6 networks of 1.
    row_bytes = -(-(4 * sum(code_bits) + 3 * 4 + 6 * 1) // 8)
    book = -(-sum(entries) * entry_bytes // size) * size
    block = -(-rows * row_bytes // size) * size
    assert len(found.data) == job["tiles"] * (book + block)
    assert job["codes"] - job["books"] == job["tiles"] * book
    sums = [Fraction(0)] * rows
    for tile in range(job["tiles"]):
        first, table = job["books"] - found.base + tile * book, []
        for number, count in enumerate(entries):
            table.append([])
            for _ in range(count):
                bits = Bits(found.data[first : first + entry_bytes])
                first += entry_bytes
                values = [bits.take(entry_bits or 16) for _ in range(TILE)]
                assert bits.left == 0
                if entry_bits:
                    low, step = job[f"low_{number}"], job[f"step_{number}"]
                    values = [low + step * each for each in values]
                else:
                    values = [int(exact(word) / GRID) for word in values]
                table[-1].append([values[at : at + GROUP] for at in range(0, TILE, GROUP)])
        for row in range(rows):
            at = job["codes"] - found.base + tile * block + row * row_bytes
            bits, total = Bits(found.data[at : at + row_bytes]), [0] * TILE
            for number, stage in enumerate(STAGES):
                count = stage.levels << stage.levels >> 1
                maps = [[bits.take(1) for _ in range(count)] for _ in range(TILE >> stage.levels)]
                codes = [bits.take(code_bits[number]) for _ in range(TILE // GROUP)]
                groups = [table[number][code][group] for group, code in enumerate(codes)]
                columns = columns_of(groups, maps, stage)
                total = [a + b for a, b in zip(total, columns, strict=True)]
            assert bits.left == 0
            for column, each in enumerate(total):
                if tile * TILE + column < COLUMNS:
                    word = rounded(each * GRID)
                    sums[row] += exact(word) * exact(int(x[tile * TILE + column]))
    return [rounded(Fraction(2) ** job["exponent"] * each) for each in sums]


@pytest.mark.parametrize("data_bits", [64, 1024])
@pytest.mark.parametrize(("entry_bits", "exponent"), [(5, 0), (16, -8), (2, 15), (0, 3), (0, -8)])
def test_encode_image_and_product_by_hand(entry_bits, exponent, data_bits):
    rng = random.Random(entry_bits * 100 + exponent)
    made = books(rng, entry_bits, exponent)
    words = [
        [
            rounded(Fraction(2) ** exponent * Fraction(rng.gauss(0, 1))) & 0xFFFF
            for _ in range(COLUMNS)
        ]
        for _ in range(ROWS)
    ]
    words[1][:6] = [0x7BFF, 0xFBFF, 0x8000, 0x0000, 0x0001, 0x8001]
    words = [[word - (word & 0x7FFF == 0x7C00) for word in row] for row in words]
    matrix = torch.tensor([[float(exact(word)) for word in row] for row in words])
    # -0 of a matrix has its own place in the order, so it must get there as such.
    matrix = torch.where(torch.tensor(words) == 0x8000, -0.0, matrix)
    coded = encode(matrix, made)
    for row, given in enumerate(words):
        padded = given + given[-1:] * (36 - COLUMNS)
        for tile in range(TILES):
            by_hand = encoded_by_hand(
                padded[tile * TILE : (tile + 1) * TILE], made, entry_bits, tile
            )
            for number, (codes, maps) in enumerate(by_hand):
                stage = coded.stages[number]
                for local, code in enumerate(codes):
                    group = number_of(local, stage.stage, tile)
                    assert int(stage.codes[row, group]) == code, (row, tile, number, local)
                half = (1 << stage.stage.levels) // 2
                for level, each in enumerate(stage.maps):
                    for network, bits in enumerate(maps):
                        pairs = half >> level  # of a part and a network
                        for part in range(1 << level):
                            first = (tile * len(maps) + network) * pairs
                            at = level * half + part * pairs
                            assert (
                                each[row, part, first : first + pairs].int().tolist()
                                == bits[at : at + pairs]
                            )
    tiles = TileShape(group=GROUP, stages=MOST, entry_bits=entry_bits)
    found = image(coded, ImageShape(shape=tiles, data_bits=data_bits), 1 << 20)
    x = [rounded(Fraction(rng.gauss(0, 30))) for _ in range(COLUMNS)]
    y, bad = product(torch.tensor([x]), coded)
    assert not bool(bad.any())
    by_hand = product_by_hand(found, data_bits, x, entry_bits, ROWS)
    assert [word & 0xFFFF for word in y[0].tolist()] == by_hand
