"""Matrices of a layer as images of ``vq_gemv``, on disk and back.

``python -m golden.llm.pack --block vq_gemv --config aqlm3 -o DIR`` writes, as text for $readmemh
and for each of gate_proj, up_proj and down_proj of a layer, or of the matrices of ``--matrix``:

    image_NAME.hex   the words of memory from address 0 on: golden.vqllm.format
    x_NAME.hex       what the engine multiplies, for the last token of a text, FP16; with image.need
                     in the order of golden.vqllm.exchange.lane_order, 0 where no element is
    y_NAME.hex       what the engine must answer, FP16
    manifest.json    golden.manifest; layout has the fields of each job, its bounds and its error

Codebooks come from k-means on the matrix itself, each row divided by its root mean square. So rows
have scales. A codebook of more than 1,024 entries begins at random vectors and moves fewer times,
since k-means++ would take minutes.

``quip4`` has points of the lattice. golden.vqllm.quip rotates both sides of the matrix, without
feedback. x is rotated before it is rounded, and y is that of the rotated matrix. ``error`` is that
of the product as the layer sees it, against float64 with the layer's FP32 weights and input.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.lloyd import Training
from golden.llm import checkpoint, text
from golden.llm.million.pack import LLAMA, inputs
from golden.manifest import Manifest, split_words, write_hex
from golden.million.config import HeadShape, MillionConfig
from golden.vqllm import quip
from golden.vqllm.bounds import job_bounds
from golden.vqllm.config import MatrixShape
from golden.vqllm.exchange import in_lanes
from golden.vqllm.format import FFN, PACKS, VqPackConfig
from golden.vqllm.image import Image, image
from golden.vqllm.matrix import VqMatrix, quantize
from golden.vqllm.product import by_dequantizing

BLOCK = "vq_gemv"
HEADS = HeadShape(heads=2, group=4)  # of the LLaMA of random weights
_MANY = 1024  # entries; more of them train for less long
_FEW_MOVES, _MOVES = 4, 8  # of the centroids
_SEED = 0  # of the rotations


@dataclasses.dataclass(frozen=True)
class Layer:
    """Matrices (rows, columns) of a layer, and what each takes for the last token of a text.

    model, text: what the manifest says of both
    """

    weights: dict[str, torch.Tensor]
    inputs: dict[str, torch.Tensor]
    model: dict[str, Any]
    text: str


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


def packed(
    matrix: VqMatrix | quip.RotatedMatrix, x: torch.Tensor, real: torch.Tensor, config: VqPackConfig
) -> Packed:
    """x: (columns,) input of the layer; real: the matrix before it was quantized."""
    if isinstance(matrix, quip.RotatedMatrix):
        inner, words = matrix.matrix, matrix.turned(x[None])
    else:
        inner, words = matrix, bits_from_float(x.float())[None]
    found, _ = by_dequantizing(words, inner)
    results = float_from_bits(found, FP16)
    if isinstance(matrix, quip.RotatedMatrix):
        results = matrix.outputs.inverse(results)
    exact = real.double() @ x.double()
    error = float((results[0] - exact).norm() / exact.norm())
    bounds = job_bounds(inner, config.image, config.plan, config.banks, config.lanes)
    x = words[0]
    if config.image.need:
        x = torch.tensor(in_lanes(x.tolist(), config.image.exchange))
    return Packed(image(inner, config.image, config.plan), x, found[0], bounds, error)


def quantized(real: torch.Tensor, config: VqPackConfig) -> VqMatrix | quip.RotatedMatrix:
    """``real`` (rows, columns) as an image of ``config`` has it; the lattice's rows have scales."""
    if config.image.vq.lattice:
        generator = torch.Generator().manual_seed(_SEED)
        outputs, inputs = (quip.rotation(width, generator) for width in real.shape)
        return quip.quantize(real, inputs, outputs, config.image.vq.stages)
    shape = MatrixShape(rows=real.shape[0], columns=real.shape[1], vq=config.image.vq)
    return quantize(real, shape, training=_training(config), scaled=config.scaled)


def _training(config: VqPackConfig) -> Training:
    if config.image.vq.entries > _MANY:
        return Training(iterations=_FEW_MOVES, seeds="random", few=True)
    return Training(iterations=_MOVES, few=True)


def _made(config: VqPackConfig) -> str:
    """Tells, for the manifest, how the codes came about."""
    if config.image.vq.lattice:
        return f"none; golden.vqllm.quip.rotation of rows, then of columns, from seed {_SEED}"
    training = _training(config)
    return f"k-means on each matrix, {training.seeds}, at most {training.iterations} moves"


def write(
    folder: Path, config: VqPackConfig, matrices: dict[str, Packed], model: dict[str, Any],
    made: dict[str, Any],
) -> Manifest:  # fmt: skip
    """Write matrices by name; ``model`` and ``made`` go into the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    files, size = {}, config.image.word_bytes
    for name, each in matrices.items():
        words = split_words(each.image.data.tobytes(), size)
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
            found[name][stream] = [word for _, word in manifest.words(folder, file, width)]
    return Pack(manifest, found)


def layer_of(wanted: int | None, count: int) -> int:
    """``wanted``, by default a middle layer of ``count``. ConfigError: there is none."""
    number = (count - 1) // 2 if wanted is None else wanted
    checkpoint.check_layers([number], count, "layer")
    return number


def captured(name: str, number: int | None, tokens: int, matrices: Iterable[str] = FFN) -> Layer:
    """Matrices of layer ``number`` of a model, by default a middle one, and inputs for a text.

    name: smollm2, llama (of random weights, its tokens random), a GGUF file or a folder.
    ConfigError, CheckpointError, OSError.
    """
    if name == LLAMA:
        model, _, ids = inputs(LLAMA, MillionConfig(head=HEADS), 0, tokens)
        text_of = f"{tokens} random tokens"
    else:
        loaded = checkpoint.load(None if name == checkpoint.SMOLLM2 else Path(name))
        model, ids = loaded.model, checkpoint.tokens(loaded, text.EVALUATION, tokens)
        text_of = f"golden.llm.text.EVALUATION, tokens 0..{tokens - 1}"
    layers = model.model.layers
    number = layer_of(number, len(layers))
    by_name = {path.rpartition(".")[2]: each for path, each in layers[number].named_modules()}
    linears = {matrix: by_name[matrix] for matrix in matrices}
    return Layer(
        weights={matrix: each.weight.detach().float() for matrix, each in linears.items()},
        inputs=_inputs(model, linears, ids),
        model={"name": name, "layer": number},
        text=text_of,
    )


def _inputs(model: Any, linears: dict[str, Any], ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Captures what each linear layer takes for the last of the tokens."""
    seen: dict[str, torch.Tensor] = {}

    def tap(name: str) -> Callable[..., None]:
        def hook(_module: Any, arguments: tuple[torch.Tensor, ...]) -> None:
            seen[name] = arguments[0].reshape(-1, arguments[0].shape[-1])[-1]

        return hook

    hooks = [each.register_forward_pre_hook(tap(name)) for name, each in linears.items()]
    try:
        with torch.no_grad():
            model(ids[None])
    finally:
        for each in hooks:
            each.remove()
    return seen


def save(folder: Path, config: VqPackConfig, layer: Layer, say: Callable[[str], None]) -> Manifest:
    """Quantize the matrices of ``layer`` and write them. ConfigError, OSError."""
    found = {}
    for name, real in layer.weights.items():
        say(f"quantizing {name}: {real.shape[0]} x {real.shape[1]}")
        found[name] = packed(quantized(real, config), layer.inputs[name], real, config)
        say(f"{name}: error of the product {found[name].error:.4f}")
    made = {
        "tool": "golden.llm.pack",
        "torch": torch.__version__,
        "text": layer.text,
        "training": _made(config),
    }
    return write(folder, config, found, layer.model, made)


def make(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """The folder of the ``options`` of golden.llm.pack. ConfigError, CheckpointError, OSError."""
    name = str(options.model)
    config = VqPackConfig.parse(PACKS[options.config or "gptvq2"], options.set)
    assert isinstance(config, VqPackConfig)
    if len(options.layer or ()) > 1:
        raise ConfigError("--layer must be given once")
    number = options.layer[0] if options.layer else None
    if number is not None and name != LLAMA:
        path = None if name == checkpoint.SMOLLM2 else Path(name)
        checkpoint.check_layers([number], checkpoint.layer_count(path), "layer")
    say(f"loading {name}")
    tokens = options.context + options.tokens
    layer = captured(name, number, tokens, options.matrix or FFN)
    manifest = save(options.output, config, layer, say)
    total = sum(entry["bytes"] for entry in manifest.files.values())
    say(f"{len(manifest.files)} files, {total / 1e6:.1f} MB in {options.output}")
