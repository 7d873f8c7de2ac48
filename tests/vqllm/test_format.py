"""Images of matrices: read back by descriptors as an engine does, bit by bit.

Shown to fail with:

- the columns cut within tiles where there are enough of them
- rows in blocks in place of every cores / split-th
- a load for each part; the bits of a beat from the top
- of a lattice: 65,536 entries in the header; codes without signs and shift
- the padding of an entry before its words
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.vqllm.bounds import job_bounds, part_work
from golden.vqllm.config import NAMED, MatrixShape, VqShape
from golden.vqllm.format import DESCRIPTOR, HEADER, ImageShape, Plan, layout, packed
from golden.vqllm.image import image
from golden.vqllm.matrix import VqMatrix
from golden.vqllm.quip import quantize, rotation
from golden.vqllm.timing import GemvPath, PartWork, gemv_cycles, gemv_fill
from tests.vqllm.matrices import SHAPES, matrix_of

# Lookups, bits of a word of memory, cores, rows of a core
ENGINES = {
    "two stages": (8, 512, 4, 3),
    "ragged tiles": (4, 64, 2, 100),
    "channel groups": (1, 128, 1, 7),
    "four stages of one element": (8, 1024, 8, 1),
    "vectors of three": (4, 128, 2, 4),
    "vectors of 16": (6, 256, 2, 5),
    "lattice": (4, 128, 2, 3),
}


def shape_of(name: str) -> ImageShape:
    lookups, bits, cores, rows = ENGINES[name]
    vq = SHAPES[name].vq if name in SHAPES else NAMED["quip4"]
    return ImageShape(vq=vq, lookups=lookups, data_bits=bits, cores=cores, rows=rows)


def scaled_matrix(name: str) -> VqMatrix:
    """A scaled matrix of a lattice, a rotated one, with 7 vectors for its 50 columns."""
    if name in SHAPES:
        return matrix_of(name, scaled=True)
    generator = torch.Generator().manual_seed(3)
    outputs, inputs = rotation(9, generator), rotation(50, generator)
    return quantize(torch.randn(9, 50, generator=generator), inputs, outputs).matrix


def fields_at(data: np.ndarray, at: int, fields: dict[str, int]) -> dict[str, int]:
    word, found = int.from_bytes(data[at : at + 32].tobytes(), "little"), {}
    for name, bits in fields.items():
        found[name], word = word & (1 << bits) - 1, word >> bits
    return found


def bits_at(data: np.ndarray, place: int, bits: int) -> int:
    return sum((int(data[p // 8]) >> p % 8 & 1) << p - place for p in range(place, place + bits))


@pytest.mark.parametrize("name", ENGINES)
def test_image_by_its_descriptors(name):
    """Each code and entry is found once, where the descriptors say."""
    matrix, shape = scaled_matrix(name), shape_of(name)
    vq, base = shape.vq, 3 * shape.word_bytes
    for split in [1 << n for n in range(shape.cores.bit_length())]:
        plan = Plan(registers=1, shared=2, split=split)
        made = image(matrix, shape, plan, tensor=77, base=base)
        job, data = made.job, np.concatenate([np.zeros(base, np.uint8), made.data])
        codes = np.full(matrix.codes.shape, -1)
        sharers = shape.cores // split
        at = job["descriptors"]
        in_use: dict[int, tuple] = {}
        for start in range(0, job["rows"], job["stripe"]):
            rows = range(start, min(start + job["stripe"], job["rows"]))
            for _ in range(job["pieces"]):
                for core in range(shape.cores):
                    found, own = fields_at(data, at, DESCRIPTOR), rows[core // split :: sharers]
                    at += shape.descriptor_bytes
                    assert len(own) <= shape.rows
                    assert found["tensor"] == 77
                    if not found["beats"] or not own:
                        continue
                    assert found["load"] == (in_use.get(core) != found["tile"])
                    in_use[core] = found["tile"]
                    assert (found["registers"], found["shared"]) == (1, 2)
                    place = 8 * found["code"]
                    for row in own:
                        for beat in range(found["beats"]):
                            last = beat == found["beats"] - 1
                            count = found["tail"] if last else shape.beat_vectors
                            for v in range(count):
                                vector = (found["offset"] + beat) * shape.beat_vectors + v
                                for z in range(vq.stages):
                                    lane = v * vq.stages + z
                                    code = bits_at(data, place + lane * vq.code_bits, vq.code_bits)
                                    assert codes[row, vector, z] == -1
                                    codes[row, vector, z] = code
                                tile = matrix.shape.tiles[found["tile"]]
                                assert tile.rows.start <= row < tile.rows.stop
                                assert tile.vectors.start <= vector < tile.vectors.stop
                            place += 8 * shape.beat_bytes
                    assert place <= 8 * (found["code"] + found["words"] * shape.word_bytes)
                    header = fields_at(data, found["book"], HEADER)
                    assert header == {"tensor": 77, "tile": found["tile"], "entries": vq.stored}
                    entry = found["book"] + shape.word_bytes
                    for words in matrix.codebooks[found["tile"]].flatten(0, 1).tolist():
                        stored = data[entry : entry + 2 * vq.size].view("<u2")
                        assert stored.tolist() == words
                        entry += shape.entry_bytes
        assert codes.tolist() == matrix.codes.tolist()
        scales = data[job["scales"] : job["scales"] + 2 * matrix.shape.rows].view("<u2")
        assert scales.tolist() == matrix.scales.tolist()


@pytest.mark.parametrize(
    ("change", "plan", "message"),
    [
        ({}, {"split": 4}, "Plan.split must be 1..2, not 4"),
        ({"vq": VqShape()}, {}, "the matrix must be VqShape"),
        ({"lookups": 3}, {}, "a tile must have a multiple of 3 vectors, not 4"),
        ({}, {"shared": 9}, "Plan.shared must be 1..8, not 9"),
    ],
)
def test_refuses_what_does_not_fit(change, plan, message):
    shape = dataclasses.replace(shape_of("ragged tiles"), **change)
    with pytest.raises(ConfigError, match=message):
        layout(SHAPES["ragged tiles"], shape, Plan(**plan))


def test_refuses_numbers():
    with pytest.raises(ConfigError) as error:
        Plan(registers=9, shared=8)
    assert str(error.value) == "Plan.registers must be at most shared = 8, not 9"
    with pytest.raises(ConfigError) as error:
        ImageShape(cores=3)
    assert str(error.value) == "ImageShape.cores must be a power of two in 1..16, not 3"
    with pytest.raises(ConfigError) as error:
        packed(HEADER, {"tile": 1 << 20})
    assert str(error.value) == "tile must be 0..1048575, not 1048576"


def test_image_of_a_lattice_has_few_entries():
    """256 entries of 8 words for each of two stages, and whole codes of 16 bits."""
    shape, matrix = shape_of("lattice"), scaled_matrix("lattice")
    assert matrix.codebooks.shape == (1, 2, 256, 8)
    assert int(matrix.codes.max()) > 256
    assert shape.book_bytes == shape.word_bytes + 2 * 256 * 16
    assert shape.beat_bytes == 4 * 2


def test_pieces_of_named_matrices():
    """A codebook of 256 x 256: more parts of the columns, fewer loads of each codebook."""
    matrix = MatrixShape(rows=576, columns=1536, vq=NAMED["gptvq2"])
    shape = ImageShape(vq=matrix.vq, lookups=16, cores=4)
    loads = []
    for split in (1, 2, 4):
        found = layout(matrix, shape, Plan(split=split))
        assert found.stripe == 256
        loads.append(sum(part.load for part in found.parts))
    assert loads == [18 * 4, 18 * 2, 18]


@pytest.mark.parametrize(
    ("banks", "shared", "beats"), [(16, 4096, 2048), (4, 4093, 2048), (2, 4096, 4096), (1, 3, 6)]
)
def test_load_of_a_stage(banks, shared, beats):
    """Four entries of 16 bytes in a word, as far as there are banks; a stage begins a new word."""
    assert ImageShape(vq=NAMED["aqlm3"]).load_beats(shared, banks) == beats


@pytest.mark.parametrize(("name", "cores_share"), [("two stages", True), ("ragged tiles", False)])
def test_bounds_of_a_job(name, cores_share):
    matrix, shape = matrix_of(name), shape_of(name)
    plan = Plan(registers=0, shared=4, split=2)
    found = job_bounds(matrix, shape, plan, banks=2, lanes=1)
    cores = part_work(matrix, shape, plan, banks=2)
    assert len(cores) == shape.cores
    far = int((matrix.codes >= 4).sum())
    assert sum(part.far for core in cores for part in core) == far
    parts = layout(matrix.shape, shape, plan).parts
    loads = sum(  # of each tile by the core that loads it most: the others listen
        max(sum(p.load for p in parts if (p.core, p.tile) == (k, t)) for k in range(shape.cores))
        for t in range(len(matrix.shape.tiles))
    )
    assert (loads < sum(part.load for part in parts)) == cores_share
    entries = loads * plan.shared * shape.vq.stages
    bits = matrix.shape.code_bits + entries * 16 * shape.vq.size
    assert found["memory"] == -(-bits // shape.data_bits) + far
    assert found["look-ups"] == max(sum(part.cycles for part in core) for core in cores)
    assert found["reduction"] == 2 * matrix.shape.rows


def test_cycles_of_a_job():
    """The slowest of core, memory and reduction decides; loads during the work cost nothing."""
    path = GemvPath(core_latency=18, scaled=False, latency=40)
    fill = gemv_fill(64, 9, path)
    load = {"load": 64, "load_beats": 64, "load_words": 9}
    at_work = [[PartWork(1000, words=10, **load)] * 2]
    cycles = gemv_cycles(at_work, path, rows=4, split=1, lanes=1)
    assert cycles == fill + 2000
    short = [[PartWork(10, words=1, **load)] * 4]
    assert gemv_cycles(short, path, rows=4, split=1, lanes=1) > fill + 3 * 64
    many = [[PartWork(10, words=900, **load)] * 4]
    assert gemv_cycles(many, path, rows=4, split=1, lanes=1) > 3600
    # Cores that load the same codebooks read them once; others wait for each other's words.
    large = {"load": 4096, "load_beats": 1024, "load_words": 1025}
    alone = gemv_fill(1024, 1025, path) + 50
    for books, cycles in [((3, 3, 3, 3), alone), ((0, 1, 2, 0), alone + 2 * 1025)]:
        cores = [[PartWork(50, words=1, book=book, **large)] for book in books]
        assert gemv_cycles(cores, path, rows=4, split=1, lanes=1) == cycles
    added = gemv_cycles(at_work, path, rows=2000, split=4, lanes=1)
    assert added > 8000
