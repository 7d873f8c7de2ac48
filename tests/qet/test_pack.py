"""``python -m golden.llm.pack --block qet_dequant_gemv``: the image is the file, and y its product.

Shown to fail with:

- codes in the order of the matrix, not of the tiles; entries by group, not by number
- rows of a tile before its codebooks; a tile that does not begin with a word
"""

import json
from fractions import Fraction

import pytest
import torch

from golden.llm import pack
from golden.manifest import PackError
from golden.qet import file
from golden.qet.config import QetShape, Stage
from golden.qet.format import ImageShape
from golden.qet.matrix import quantize
from golden.qet.pack import load, shape_of
from tests.exact import exact, rounded

SHAPES = {
    "tiles": QetShape(
        rows=5, columns=70, element_bits=16, group=4, entry_bits=7,
        stages=(Stage(levels=2, entries=3), Stage(levels=1, entries=2), Stage(levels=0, entries=1)),
    ),
    "words": QetShape(
        rows=3, columns=9, element_bits=16, group=2, entry_bits=0,
        stages=(Stage(levels=1, entries=3),),
    ),
}  # fmt: skip


def packed(name, tmp_path, *options):
    shape = SHAPES[name]
    generator = torch.Generator().manual_seed(3)
    matrix = quantize(torch.randn(shape.rows, shape.columns, generator=generator), shape)
    file.write(tmp_path / "x.qet", matrix, "a name")
    folder = tmp_path / "folder"
    arguments = ["--block", "qet_dequant_gemv", "--file", str(tmp_path / "x.qet")]
    code = pack.main([*arguments, *options, "-o", str(folder)])
    return code, matrix, folder


def bits_at(image: list[int], width: int, at: int, count: int) -> int:
    """``count`` bits from bit ``at`` of memory on."""
    found = 0
    for n in range(count):
        word, place = divmod(at + n, width)
        found |= (image[word] >> place & 1) << n
    return found


def decoded_by_hand(image, job, shape, tiles, data_bits):
    """[row][column] fractions of an image, by golden.qet.image's table and Algorithm 2 alone."""
    groups, width = tiles.columns // tiles.group, tiles.entry_bits or 16
    counts = [job[f"entries_{n}"] for n in range(len(tiles.stages))]
    entry_bits = -(-tiles.columns * width // 8) * 8
    row_fields = [
        (stage.levels << stage.levels >> 1, tiles.columns >> stage.levels, stage)
        for stage in tiles.stages
    ]
    row_bits = sum(b * n + groups * (s.entries - 1).bit_length() for b, n, s in row_fields)
    row_bits = -(-row_bits // 8) * 8
    words = [-(-size // data_bits) * data_bits for size in (sum(counts) * entry_bits,
             shape.rows * row_bits)]  # fmt: skip
    matrix = [[] for _ in range(shape.rows)]
    for tile in range(job["tiles"]):
        books = 8 * job["books"] + tile * words[0]
        for row in range(shape.rows):
            at = 8 * job["codes"] + tile * words[1] + row * row_bits
            total, first = [Fraction(0)] * tiles.columns, 0
            for number, (map_bits, networks, stage) in enumerate(row_fields):
                maps = [bits_at(image, data_bits, at + n * map_bits, map_bits)
                        for n in range(networks)]  # fmt: skip
                at += networks * map_bits
                flat, code_bits = [], (stage.entries - 1).bit_length()
                for group in range(groups):
                    code = bits_at(image, data_bits, at, code_bits)
                    at += code_bits
                    place = books + (first + code) * entry_bits + group * tiles.group * width
                    for k in range(tiles.group):
                        word = bits_at(image, data_bits, place + k * width, width)
                        if tiles.entry_bits:
                            low, step = job[f"low_{number}"], job[f"step_{number}"]
                            flat.append(Fraction(low + step * word, 1 << 24))
                        else:
                            flat.append(exact(word))
                first += counts[number]
                columns = unswapped(flat, maps, stage.levels)
                total = [a + b for a, b in zip(total, columns, strict=True)]
            matrix[row] += total
    return matrix


def unswapped(flat, maps, levels):
    """Columns of a tile from its parts, network by network, by following Algorithm 2."""
    parts, networks = 1 << levels, len(flat) >> levels
    found = []
    for network in range(networks):
        values = [flat[part * networks + network] for part in range(parts)]
        groups = [[value] for value in values]
        for level in reversed(range(levels)):
            merged, size = [], 1 << levels - 1 - level
            for part in range(0, len(groups), 2):
                columns = []
                for n, (small, large) in enumerate(zip(groups[part], groups[part + 1],
                                                       strict=True)):  # fmt: skip
                    bit = level * (parts >> 1) + part // 2 * size + n
                    pair = (small, large)
                    columns += pair[::-1] if maps[network] >> bit & 1 else pair
                merged.append(columns)
            groups = merged
        found += groups[0]
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_an_image_holds_the_matrix_and_y_is_its_product(name, tmp_path):
    code, matrix, folder = packed(name, tmp_path, "--set", "data_bits=128")
    assert code == 0
    shape, tiles = SHAPES[name], shape_of(matrix)
    found = load(folder, ImageShape(shape=tiles, data_bits=128))
    assert found.manifest.model["name"] == "a name"
    job = found.manifest.layout["job"]
    words = decoded_by_hand(found.image, job, shape, tiles, 128)
    scale = Fraction(2) ** job["exponent"]
    x = [exact(word) for word in found.x]
    for row, (values, y) in enumerate(zip(words, found.y, strict=True)):
        kept = [rounded(value) for value in values]
        assert kept == [word & 0xFFFF for word in matrix.words()[row].tolist()]
        total = sum(exact(w) * v for w, v in zip(kept, x, strict=False))
        assert y == rounded(total * scale)


def test_a_changed_file_is_refused(tmp_path):
    _, matrix, folder = packed("words", tmp_path)
    config = ImageShape(shape=shape_of(matrix))
    path = folder / "image.hex"
    path.write_text(path.read_text()[:-2] + "1\n")
    with pytest.raises(PackError, match=r"image\.hex"):
        load(folder, config)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["x.hex"], manifest["files"]["image.hex"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PackError, match=r"image\.hex is not in the manifest"):
        load(folder, config)


def test_what_cannot_be_packed_is_one_line(tmp_path, capsys):
    shape = QetShape(rows=3, columns=64, stages=(Stage(levels=1, entries=2),))
    file.write(tmp_path / "x.qet", quantize(torch.randn(3, 64), shape))
    arguments = ["--block", "qet_dequant_gemv", "-o", str(tmp_path / "out")]
    assert pack.main([*arguments, "--file", str(tmp_path / "x.qet")]) == 2
    line = capsys.readouterr().err
    assert line.endswith("element_bits must be 16 for qet_dequant_gemv, not 32\n")
    assert pack.main([*arguments, "--file", str(tmp_path / "none.qet")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    for wrong in (arguments, [*arguments, "--file", "x", "--config", "gptvq2"],
                  ["--file", "x", "-o", "y", "--layer", "1"]):  # fmt: skip
        with pytest.raises(SystemExit):
            pack.main(wrong)
