"""``python -m golden.llm.pack --all``: a whole model as one image, and back.

The folder holds the memories as they are before the first token, bytes as the ports see them:

    data.bin           data memory: constants, angles, embedding
    port_00.bin ...    memories of the weight ports: layers, head
    tokenizer.json     of the checkpoint, where it has one that is a file
    manifest.json      golden.manifest: sizes, checksums, recipe

Programs are not stored: golden.kllm.model.program makes them from the manifest's sizes alone.
"""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import torch

from golden.config import ConfigError
from golden.files import made_aside, replacing
from golden.fp16.ops import bits_from_float
from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.isa import ROW_BYTES
from golden.kllm.layer.program import check_room
from golden.kllm.layer.quantized import QuantizedLayer, quantize_layer
from golden.kllm.layer.shape import LayerOptions, LayerShape
from golden.kllm.model.compiler import ModelImage, compile_model
from golden.kllm.model.host_image import StepPrograms
from golden.kllm.model.layout import CONTEXT_MAX, ModelLayout, ModelShape, model_layout
from golden.kllm.model.program import check_model
from golden.kllm.model.quantized import Head, QuantizedModel
from golden.llm import checkpoint, text
from golden.llm.decoder import Decoder
from golden.llm.kllm.chip import chip_layer, fitted, is_local
from golden.llm.kllm.model import angles, head_of, model_shape, real_layer
from golden.llm.kllm.reference import check_reference, layer_inputs, reference
from golden.manifest import NAME as MANIFEST
from golden.manifest import Manifest, PackError

BLOCK = "kllm_accelerator"
KIND = "model"
TOKENIZER = "tokenizer.json"
LAYER_TOKENS = 256  # of a layer's, without a calibration file
_CHECKED_TOKENS = 32  # that the float layer and the model's are compared on


@dataclasses.dataclass(frozen=True)
class ModelPack:
    """A folder, read back: ``image`` maps the files, what is written there stays in the process."""

    folder: Path
    manifest: Manifest
    layout: ModelLayout

    def image(self) -> ModelImage:
        """The memories; writing to them does not change the files."""
        names = [f"port_{n:02d}.bin" for n in range(self.layout.config.ports.ports)]
        mapped: list[np.ndarray] = [
            np.memmap(self.folder / name, dtype=np.uint8, mode="c") for name in ("data.bin", *names)
        ]
        return ModelImage(self.layout, mapped[0], mapped[1:], self.thresholds)

    @property
    def thresholds(self) -> torch.Tensor:
        """(layers, 2, 4) FP16 words of the pages."""
        return torch.tensor(self.manifest.layout["thresholds"])

    @functools.cached_property
    def step_programs(self) -> StepPrograms:
        """Programs of steps, which are made when they are needed."""
        return StepPrograms(self.layout)

    @property
    def identity(self) -> str:
        """A hash of all that tokens depend on: checksums of memories, and where they hold what."""
        files = {name: entry["sha256"] for name, entry in sorted(self.manifest.files.items())}
        made = repr((files, self.manifest.model, self.manifest.layout))
        return hashlib.sha256(made.encode()).hexdigest()

    @property
    def tokenizer(self) -> Path | None:
        """The tokenizer's file, None: the checkpoint had none."""
        return self.folder / TOKENIZER if TOKENIZER in self.manifest.files else None


def write(
    folder: Path, image: ModelImage, model: dict[str, Any], made: dict[str, Any],
    tokenizer: Any = None,
) -> Manifest:  # fmt: skip
    """The memories as files; ``model`` and ``made`` go into the manifest.

    The manifest is removed first and written last: a folder that is half written has none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / "lock"):
        (folder / MANIFEST).unlink(missing_ok=True)
        files = _write_files(folder, image, tokenizer)
        manifest = _manifest(image, model, made, files)
        manifest.write(folder)
    return manifest


def _write_files(folder: Path, image: ModelImage, tokenizer: Any) -> dict[str, Any]:
    """Entries of the manifest. The caller holds the folder's lock."""
    files = {}
    memories = {"data.bin": (image.data, ROW_BYTES)}
    for number, port in enumerate(image.ports):
        memories[f"port_{number:02d}.bin"] = port, image.layout.config.port_bits // 8
    with made_aside(folder) as part:
        for name, (memory, word_bytes) in memories.items():
            files[name] = _write(part / name, memory.tobytes(), word_bytes)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            files[TOKENIZER] = _write(part / TOKENIZER, backend.to_str().encode(), 1)
    return files


def _manifest(
    image: ModelImage, model: dict[str, Any], made: dict[str, Any], files: dict[str, Any]
) -> Manifest:
    layout, shape = image.layout, image.layout.shape.describe()
    return Manifest(
        block=BLOCK,
        config=layout.config.describe(),
        model={**model, "shape": shape, "options": layout.options.describe()},
        made=made,
        layout={
            "kind": KIND,
            "embedding": layout.embedding,
            "angles": {name: list(place) for name, place in layout.angles.items()},
            "head": dataclasses.asdict(layout.head),
            "layers": [
                {
                    "images": {name: list(place) for name, place in layer.image.items()},
                    "data": {name: list(place) for name, place in layer.place.items()},
                }
                for layer in layout.layers
            ],
            "thresholds": image.thresholds.tolist(),
        },
        files=files,
    )


def _write(file: Path, data: bytes, word_bytes: int) -> dict[str, Any]:
    with replacing(file) as part:
        part.write_bytes(data)
    return {
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "width": 8 * word_bytes,
        "words": len(data) // word_bytes,
    }


def load(folder: Path, config: MachineConfig) -> ModelPack:
    """A folder of ``golden.llm.pack --all`` for this configuration.

    PackError, one line: another format version, block, configuration or shape; a folder of one
    layer; a file that is missing or has changed.
    """
    folder = Path(folder)
    manifest = Manifest.read(folder, BLOCK, config.describe())
    if manifest.layout.get("kind") != KIND:
        raise PackError(f"{folder}: not of a whole model, which golden.llm.pack --all writes")
    try:
        layout = _layout(manifest.model, config)
    except (KeyError, TypeError, ValueError) as error:
        raise PackError(f"{folder / MANIFEST}: model is damaged: {error}") from None
    words = {"data.bin": layout.rows}
    words |= {f"port_{n:02d}.bin": layout.words for n in range(config.ports.ports)}
    for name, wanted in words.items():
        found = manifest.files.get(name, {"words": 0})["words"]
        if found != wanted:
            raise PackError(f"{folder / name}: words must be {wanted}, not {found}")
    return ModelPack(folder, manifest, layout)


def _layout(model: dict[str, Any], config: MachineConfig) -> ModelLayout:
    """Makes the layout of a manifest's model. KeyError, TypeError, ValueError: it is damaged."""
    fields = dict(model["shape"])
    shape = ModelShape(**{**fields, "layer": LayerShape(**fields["layer"])})
    return model_layout(shape, LayerOptions(**model["options"]), config)


@dataclasses.dataclass(frozen=True)
class Source:
    """The source of a model's layers.

    layer : makes one; installed : within it, the model computes what the quantized layers give;
    told : goes into the manifest
    """

    options: LayerOptions
    shape: LayerShape
    layer: Callable[[int], QuantizedLayer]
    installed: Callable[[], contextlib.AbstractContextManager[None]]
    told: dict[str, Any]


def trained(
    loaded: checkpoint.Checkpoint, ids: torch.Tensor, options: LayerOptions, config: MachineConfig
) -> Source:
    """Layers that ``quantize_layer`` makes on token ids (T,), each for the real model."""
    model = loaded.model

    def layer(i: int) -> QuantizedLayer:
        inputs = layer_inputs(model, ids, i)
        weights = real_layer(model, i, config)
        seen = reference(weights, inputs.x, inputs.cos, inputs.sin)
        return quantize_layer(
            weights, seen, config.bits_a, config.bits_b, options, config.antisymmetric
        )

    return Source(
        options=options,
        shape=real_layer(model, 0, config).shape,
        layer=layer,
        installed=contextlib.nullcontext,
        told={"calibration": f"golden.llm.text.CALIBRATION, {len(ids)} tokens"},
    )


def checked_layout(
    loaded: checkpoint.Checkpoint,
    options: LayerOptions,
    config: MachineConfig,
    layers: int | None,
    context: int,
) -> ModelLayout:
    """Lays out the first ``layers`` layers, all if None, with room for ``context`` tokens.

    ConfigError: the model has no such form, or does not fit the machine.
    """
    stated = checkpoint.decoder(loaded)
    chip_layer(stated, context)
    every = len(loaded.model.model.layers)
    if layers is not None and not 1 <= layers <= every:
        raise ConfigError(f"--layers must be 1..{every}, not {layers}")
    kinds = [chip_layer(stated, context, n) for n in range(layers or every)]
    unrotated = [n for n, kind in enumerate(kinds) if not kind.rotary]
    windows = [kind.window for kind in kinds]
    some = windows if any(windows) else ()
    layer = dataclasses.replace(real_layer(loaded.model, 0, config).shape, window=0)
    shape = dataclasses.replace(
        model_shape(loaded.model, len(kinds), context, layer, unrotated, some),
        local=tuple(n for n in range(len(kinds)) if is_local(stated, n)),
        logit_cap=stated.logit_cap,
    )
    layout = model_layout(shape, options, config)
    check_model(layout)
    return layout


def quantize_model(
    loaded: checkpoint.Checkpoint,
    source: Source,
    layout: ModelLayout,
    windows: list[torch.Tensor],
    say: Callable[[str], None],
) -> QuantizedModel:
    """The layers of ``layout``, each made when it is needed; the head for what they give.

    windows: token ids that the head is fitted on. ConfigError: a layer is of another kind.
    """
    shape, config, model = layout.shape, layout.config, loaded.model

    def layers() -> Iterator[QuantizedLayer]:
        for i in range(shape.layers):
            say(f"quantizing layer {i}")
            real = real_layer(model, i, config)
            inputs = layer_inputs(model, windows[0][:_CHECKED_TOKENS], i)
            check_reference(reference(real, inputs.x, inputs.cos, inputs.sin)["y"], inputs, i)
            yield source.layer(i)

    say("quantizing the head")
    bits, stated = (config.bits_a, config.bits_b), checkpoint.decoder(loaded)
    with source.installed():
        head = head_of(
            loaded.model, windows, bits, shape.layers, config.antisymmetric, _scale(stated)
        )
    cos, sin = angles(loaded.model, shape.context)
    local = angles(loaded.model, shape.context, local=True) if shape.local else None
    table = loaded.model.model.embed_tokens.weight.detach().double()
    embedding = bits_from_float(table * stated.embedding_scale)
    return QuantizedModel(shape, source.options, layers(), embedding, head, cos, sin, local)


def _scale(stated: Decoder) -> float:
    """The factor of the head's weights: a program multiplies by the cap, after TANH."""
    return stated.logit_scale / (stated.logit_cap or 1.0)


def _windows(loaded: checkpoint.Checkpoint) -> list[torch.Tensor]:
    """Returns the windows that the head is fitted on."""
    return [checkpoint.tokens(loaded, text.CALIBRATION)]


def head_of_text(loaded: checkpoint.Checkpoint, config: MachineConfig, after: int) -> Head:
    """The head that ``make`` packs, for what the model as it is now gives after some layers."""
    bits = config.bits_a, config.bits_b
    scale = _scale(checkpoint.decoder(loaded))
    return head_of(loaded.model, _windows(loaded), bits, after, config.antisymmetric, scale)


def _chat(tokenizer: Any) -> list[str] | None:
    """Returns what a chat puts around a user's words; None: the tokenizer has no such form."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    words = "USERS-WORDS"
    said = [{"role": "user", "content": words}]
    made = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    parts = made.split(words)
    return parts if len(parts) == 2 else None


def make(
    options: argparse.Namespace,
    say: Callable[[str], None],
    architectures: Collection[str],
    laid_out: Callable[[argparse.Namespace, MachineConfig], LayerOptions],
    calibrated: Callable[[checkpoint.Checkpoint, argparse.Namespace, MachineConfig], Source] | None
    = None,
) -> None:
    """Packs by the command's ``options``; ConfigError, CheckpointError: the model cannot be packed.

    architectures: model types of transformers that are accepted
    laid_out: how layers lie on the machine, before a model is read
    calibrated: reads the calibration file; None: the layers are trained on a built-in text.
    """
    config = MachineConfig.parse(MACHINES[options.config or "smollm2_cache"], options.set)
    assert isinstance(config, MachineConfig)
    path = None if options.model == checkpoint.SMOLLM2 else Path(options.model)
    count = checkpoint.layer_count(path)
    if options.layers is not None and count is not None and not 1 <= options.layers <= count:
        raise ConfigError(f"--layers must be 1..{count}, not {options.layers}")
    if not 2 <= options.context <= CONTEXT_MAX:
        raise ConfigError(f"--context must be 2..{CONTEXT_MAX} with --all, not {options.context}")
    wanted = laid_out(options, config)
    if (stated := checkpoint.stated(path)) is not None:
        layers = range(options.layers or stated.layers)
        shortest = min(layers, key=lambda n: stated.window_of(n) or options.context)
        layer = fitted(chip_layer(stated, options.context, shortest), config)
        check_room(layer, wanted, config, 1, options.context - 1)
    say(f"loading {options.model}")
    loaded = checkpoint.load(path, architectures)
    if calibrated is not None:
        source = calibrated(loaded, options, config)
    else:
        ids = checkpoint.tokens(loaded, text.CALIBRATION, LAYER_TOKENS)
        source = trained(loaded, ids, wanted, config)
    layout = checked_layout(loaded, source.options, config, options.layers, options.context)
    image = compile_model(quantize_model(loaded, source, layout, _windows(loaded), say), layout)
    stops = loaded.model.generation_config.eos_token_id
    model = {
        "name": str(options.model),
        "checkpoint": loaded.name,
        "chat": _chat(loaded.tokenizer),
        "end": stops if isinstance(stops, list) else [] if stops is None else [stops],
    }
    made = {"tool": "golden.llm.pack", "torch": torch.__version__, **source.told}
    manifest = write(options.output, image, model, made, loaded.tokenizer)
    total = sum(entry["bytes"] for entry in manifest.files.values())
    say(f"{len(manifest.files)} files, {total / 1e6:.1f} MB in {options.output}")
