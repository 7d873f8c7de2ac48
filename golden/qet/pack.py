"""A file of ``golden.llm.qet`` as an image of qet_dequant_gemv, on disk and back.

``python -m golden.llm.pack --block qet_dequant_gemv --file FILE.qet -o DIR`` writes, as text for
$readmemh:

    image.hex      the words of memory from address 0 on: golden.qet.image
    x.hex, y.hex   a vector of normal numbers from seed 0, and what the engine must answer, FP16
    manifest.json  golden.manifest; layout has the fields of the job

The tiles have exactly the stages and entries of the file. ``--set data_bits=256`` changes the words
of memory.
"""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float
from golden.manifest import Manifest, split_words, write_hex
from golden.qet import file
from golden.qet.config import TileShape
from golden.qet.format import ImageShape
from golden.qet.image import image
from golden.qet.matrix import QetMatrix
from golden.qet.product import product

BLOCK = "qet_dequant_gemv"
_SEED = 0  # of the vector


@dataclasses.dataclass(frozen=True)
class Pack:
    """A folder, read back: words of memory, of x and of y."""

    manifest: Manifest
    image: list[int]
    x: list[int]
    y: list[int]


def shape_of(matrix: QetMatrix) -> TileShape:
    """The tiles of a matrix, with its entries. ConfigError: a tile is too large.

    A codebook of one entry has room for two: codes have at least one bit in hardware.
    """
    stages = tuple(
        dataclasses.replace(stage, entries=max(2, stage.entries)) for stage in matrix.shape.stages
    )
    return TileShape(group=matrix.shape.group, stages=stages, entry_bits=matrix.shape.entry_bits)


def write(folder: Path, config: ImageShape, matrix: QetMatrix, name: str) -> Manifest:
    """The folder of ``matrix``, which is called ``name``. ConfigError, OSError."""
    found = image(matrix, config)
    generator = torch.Generator().manual_seed(_SEED)
    x = bits_from_float(torch.randn(1, matrix.shape.columns, generator=generator))
    y, _ = product(x, matrix)
    folder.mkdir(parents=True, exist_ok=True)
    words = split_words(found.data.tobytes(), config.word_bytes)
    files = {
        "image.hex": write_hex(folder, "image.hex", words, config.data_bits),
        "x.hex": write_hex(folder, "x.hex", x[0].tolist(), FP16.bits),
        "y.hex": write_hex(folder, "y.hex", y[0].tolist(), FP16.bits),
    }
    shape = matrix.shape
    manifest = Manifest(
        block=BLOCK,
        config=config.describe(),
        model={"name": name, "rows": shape.rows, "columns": shape.columns},
        made={"tool": "golden.llm.pack", "torch": torch.__version__, "x": f"normal, seed {_SEED}"},
        layout={
            "job": found.job,
            "stored_bits": shape.stored_bits,
            "image_bits": 8 * found.data.size,
        },
        files=files,
    )
    manifest.write(folder)
    return manifest


def load(folder: Path, config: ImageShape) -> Pack:
    """A folder made for this configuration.

    PackError, one line: another format version, block or configuration; a file that is missing or
    has changed.
    """
    folder = Path(folder)
    manifest = Manifest.read(folder, BLOCK, config.describe())
    widths = {"image": config.data_bits, "x": FP16.bits, "y": FP16.bits}
    found = {
        name: [word for _, word in manifest.words(folder, f"{name}.hex", width)]
        for name, width in widths.items()
    }
    return Pack(manifest, **found)


def make(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """The folder of the ``options`` of golden.llm.pack. ConfigError, QetFileError, OSError."""
    matrix, name = file.read(options.file)
    if matrix.shape.element_bits != FP16.bits:
        raise ConfigError(f"{options.file}: element_bits must be 16 for {BLOCK}, not 32")
    config = ImageShape.parse(ImageShape(shape=shape_of(matrix)), options.set)
    assert isinstance(config, ImageShape)
    manifest = write(options.output, config, matrix, name)
    shape, layout = matrix.shape, manifest.layout
    say(f"{shape.rows} x {shape.columns} in {shape.tiles} tiles of {shape.tile} columns")
    say(f"{layout['image_bits']:,} bits of memory, {layout['stored_bits']:,} in the file")
    total = sum(entry["bytes"] for entry in manifest.files.values())
    say(f"{len(manifest.files)} files, {total / 1e6:.1f} MB in {options.output}")
