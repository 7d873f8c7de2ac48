"""The FFN matrices of a layer as images of ``vq_gemv``, on disk and back.

``python -m golden.pack --block vq_gemv --config aqlm3 -o DIR`` writes, as text for $readmemh and
for each of gate_proj, up_proj and down_proj of a layer:

    image_NAME.hex   the words of memory from address 0 on: golden.vqllm.format
    x_NAME.hex       the input of the matrix for the last token of a text, FP16
    y_NAME.hex       the expected results, FP16
    manifest.json    golden.manifest; layout has the fields of each job, and its bounds

The codebooks come from k-means on the matrix itself, each row divided by its root mean square, so
rows have scales.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from golden import checkpoint, text
from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.lloyd import Training
from golden.manifest import Manifest, PackError, read_hex, write_hex
from golden.vqllm.bounds import job_bounds
from golden.vqllm.config import MatrixShape
from golden.vqllm.format import PACKS, VqPackConfig
from golden.vqllm.image import Image, image
from golden.vqllm.matrix import VqMatrix, quantize
from golden.vqllm.product import by_dequantizing

__all__ = ["BLOCK", "MATRICES", "Pack", "Packed", "load", "make", "write"]

BLOCK = "vq_gemv"
MATRICES = ("gate_proj", "up_proj", "down_proj")
_ITERATIONS = 8  # moves of the centroids


@dataclasses.dataclass(frozen=True)
class Packed:
    """A matrix, its image, and a vector with the expected results."""

    image: Image
    x: torch.Tensor
    y: torch.Tensor
    bounds: dict[str, int]
    error: float


@dataclasses.dataclass(frozen=True)
class Pack:
    """A folder, read back: by matrix the words of memory, x and y."""

    manifest: Manifest
    words: dict[str, dict[str, list[int]]]


def packed(matrix: VqMatrix, x: torch.Tensor, real: torch.Tensor, config: VqPackConfig) -> Packed:
    """x: (columns,) words; real: the matrix before it was quantized."""
    y, _ = by_dequantizing(x[None], matrix)
    exact = real.double() @ float_from_bits(x, FP16).double()
    error = float((float_from_bits(y[0], FP16) - exact).norm() / exact.norm())
    found = job_bounds(matrix, config.image, config.plan, config.banks, config.lanes)
    return Packed(image(matrix, config.image, config.plan), x, y[0], found, error)


def write(
    folder: Path, config: VqPackConfig, matrices: dict[str, Packed], model: dict[str, Any],
    made: dict[str, Any],
) -> Manifest:  # fmt: skip
    """Write matrices by name; ``model`` and ``made`` go into the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    files, size = {}, config.image.word_bytes
    for name, each in matrices.items():
        data = each.image.data.tobytes()
        words = (int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size))
        for stream, some, width in (
            ("image", words, config.image.data_bits),
            ("x", each.x.tolist(), FP16.bits),
            ("y", each.y.tolist(), FP16.bits),
        ):
            file = f"{stream}_{name}.hex"
            files[file] = write_hex(folder, file, some, width)
    layout = {
        name: {"job": each.image.job, "bounds": each.bounds, "error": round(each.error, 6)}
        for name, each in matrices.items()
    }
    manifest = Manifest(
        block=BLOCK, config=config.describe(), model=model, made=made, layout=layout, files=files
    )
    manifest.write(folder)
    return manifest


def load(folder: Path, config: VqPackConfig) -> Pack:
    """A folder made for this configuration.

    PackError, one line: another format version, block or configuration; a file that is missing or
    has changed.
    """
    folder = Path(folder)
    manifest = Manifest.read(folder, BLOCK, config.describe())
    found: dict[str, dict[str, list[int]]] = {}
    for name in manifest.layout:
        found[name] = {}
        for stream in ("image", "x", "y"):
            file = f"{stream}_{name}.hex"
            width = config.image.data_bits if stream == "image" else FP16.bits
            if file not in manifest.files:
                raise PackError(f"{folder}: {file} is not in the manifest")
            if manifest.files[file]["width"] != width:
                have = manifest.files[file]["width"]
                raise PackError(f"{folder / file}: width must be {width} bits, not {have}")
            found[name][stream] = [word for _, word in read_hex(folder, file)]
    return Pack(manifest, found)


def _inputs(model: Any, layer: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """What each FFN matrix of a layer takes for the last of the tokens."""
    seen: dict[str, torch.Tensor] = {}

    def tap(name: str) -> Callable[..., None]:
        def hook(_module: Any, arguments: tuple[torch.Tensor, ...]) -> None:
            seen[name] = arguments[0].reshape(-1, arguments[0].shape[-1])[-1]

        return hook

    hooks = [getattr(layer.mlp, name).register_forward_pre_hook(tap(name)) for name in MATRICES]
    try:
        with torch.no_grad():
            model(ids[None])
    finally:
        for each in hooks:
            each.remove()
    return seen


def _layer(wanted: Iterable[int] | None, count: int) -> int:
    if wanted is None:
        return (count - 1) // 2
    found = list(wanted)
    if len(found) > 1:
        raise ConfigError("--layer must be given once")
    checkpoint.check_layers(found, count, "layer")
    return found[0]


def make(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """The folder of the ``options`` of golden.pack. ConfigError, CheckpointError, OSError."""
    name = str(options.model)
    config = VqPackConfig.parse(PACKS[options.config or "gptvq2"], options.set)
    assert isinstance(config, VqPackConfig)
    say(f"loading {name}")
    loaded = checkpoint.load(None if name == checkpoint.SMOLLM2 else Path(name))
    layers = loaded.model.model.layers
    number = _layer(options.layer, len(layers))
    ids = checkpoint.tokens(loaded, text.EVALUATION, options.context + options.tokens)
    seen = _inputs(loaded.model, layers[number], ids)
    found = {}
    for matrix in MATRICES:
        real = getattr(layers[number].mlp, matrix).weight.detach().float()
        shape = MatrixShape(rows=real.shape[0], columns=real.shape[1], vq=config.image.vq)
        say(f"quantizing {matrix} of layer {number}: {shape.rows} x {shape.columns}")
        training = Training(iterations=_ITERATIONS, few=True)
        quantized = quantize(real, shape, training=training, scaled=config.scaled)
        found[matrix] = packed(quantized, bits_from_float(seen[matrix].float()), real, config)
        say(f"{matrix}: error of the product {found[matrix].error:.4f}")
    model = {"name": name, "layer": number}
    made = {
        "tool": "golden.pack",
        "torch": torch.__version__,
        "text": f"golden.text.EVALUATION, tokens 0..{len(ids) - 1}",
        "training": f"k-means on each matrix, {_ITERATIONS} iterations",
    }
    manifest = write(options.output, config, found, model, made)
    total = sum(entry["bytes"] for entry in manifest.files.values())
    say(f"{len(manifest.files)} files, {total / 1e6:.1f} MB in {options.output}")
