"""``python -m golden.llm.pack``: a checkpoint's layer as images and programs of an accelerator.

    python -m golden.llm.pack --model smollm2 --layer 15 --block kllm_accelerator -o build/pack
    python -m golden.llm.pack --model smollm2 --block million_attention -o build/million
    python -m golden.llm.pack --model smollm2 --block vq_gemv --config aqlm3 -o build/vq
    python -m golden.llm.pack --block qet_dequant_gemv --file up.qet -o build/qet

    python -m golden.llm.pack --model smollm2 --all -o build/model

Of the other blocks, golden.llm.million.pack, golden.llm.vqllm.pack and golden.qet.pack say what is
written, and of a whole model golden.llm.kllm.pack. Of kllm_accelerator the folder holds, as text
for $readmemh, what a simulation needs to run the layer on some tokens of a built-in text. It also
holds the expected results:

    port_00.hex ...     memories of the weight ports, a port word per line
    data.hex            data memory, a row of 256 bits per line
    requests.hex        four words of REQUEST for each request; answers.hex: a word of ANSWER
    batch_0.hex ...     words that the host writes to BATCH before each part
    program_0.hex ...   commands of each part, 32 bits per line; the last part is the layer
    status_0.hex ...    one word per command; readback_0.hex ... words that READ gives
    codebook_x.hex ...  centroids of each activation, FP16
    manifest.json       golden.manifest

The parts before the last one append K and V of the context. Statuses come in program order here;
hardware keeps that order within a unit only.
"""

import argparse
import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from golden import command
from golden.config import ConfigError
from golden.files import claimed_folder
from golden.kllm.bounds import bounds, schedule
from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.isa import COMMAND_WORDS, ROW_BYTES, Unit
from golden.llm import text
from golden.manifest import Manifest, PackError, read_hex, split_words, write_hex
from golden.million.config import SYSTEMS
from golden.vqllm.format import MATRICES, PACKS

if TYPE_CHECKING:
    from golden.kllm.layer.compiler import CompiledLayer
    from golden.kllm.layer.host import LayerRun, Part
    from golden.kllm.layer.quantized import QuantizedLayer
    from golden.kllm.layer.shape import LayerOptions
    from golden.kllm.layer.weights import LayerWeights
    from golden.llm.checkpoint import Checkpoint
    from golden.llm.eval.method import Method, Site, State
    from golden.llm.kllm.pack import Source
    from golden.llm.methods.kllm import Kllm

BLOCK = "kllm_accelerator"
MILLION = "million_attention"
VQ = "vq_gemv"
QET = "qet_dequant_gemv"
# Of each block: new tokens, cached tokens, configurations.
_DEFAULTS: dict[str, tuple[int, int, Mapping[str, Any]]] = {
    BLOCK: (1, 32, MACHINES),
    MILLION: (72, 512, SYSTEMS),
    VQ: (1, 32, PACKS),
    QET: (1, 0, {}),
}
CALIBRATION_TOKENS = 256
ALL_CONTEXT = 512


@dataclasses.dataclass(frozen=True)
class Pack:
    """A folder, read back.

    data, ports: memories before the first part, bytes; requests: words and the word of the answer;
    parts: the last one is the layer.
    """

    manifest: Manifest
    data: np.ndarray
    ports: list[np.ndarray]
    requests: list[tuple[list[int], int]]
    parts: list["Part"]


# Of the files of a part, by its field.
_PART = {"batch": "batch", "words": "program", "status": "status", "readback": "readback"}
_REQUEST_WORDS = 4


def _words(data: np.ndarray, width_bytes: int) -> list[int]:
    return split_words(data.tobytes(), width_bytes)


def write(
    folder: Path,
    compiled: "CompiledLayer",
    run: "LayerRun",
    model: dict[str, Any],
    made: dict[str, Any],
) -> Manifest:
    """Write a compiled layer and its run; ``model`` and ``made`` go into the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    config, files = compiled.config, {}
    word_bytes = config.port_bits // 8

    def add(name: str, words: list[Any], width: int) -> None:
        files[name] = write_hex(folder, name, words, width)

    add("data.hex", _words(run.data, ROW_BYTES), 8 * ROW_BYTES)
    for port, image in enumerate(run.weights):
        add(f"port_{port:02d}.hex", _words(image, word_bytes), config.port_bits)
    add("requests.hex", [word for words, _ in run.requests for word in words], 32)
    add("answers.hex", [answer for _, answer in run.requests], 32)
    for number, part in enumerate(run.parts):
        for field, name in _PART.items():
            add(f"{name}_{number}.hex", getattr(part, field), 32)
    for name, codebook in compiled.quantized.codebook.items():
        add(f"codebook_{name}.hex", codebook.tolist(), 16)
    manifest = Manifest(
        block=BLOCK,
        config=config.describe(),
        model={
            **model,
            "shape": compiled.quantized.shape.describe(),
            "options": compiled.quantized.options.describe(),
            "tokens": compiled.tokens,
        },
        made=made,
        layout={
            "parts": len(run.parts),
            "images": {name: list(place) for name, place in compiled.image.items()},
            "data": {name: list(place) for name, place in compiled.place.items()},
        },
        files=files,
    )
    manifest.write(folder)
    return manifest


def load(folder: Path, config: MachineConfig) -> Pack:
    """A folder made for this configuration.

    PackError, one line: another format version, block, configuration or shape; a file that is
    missing or has changed.
    """
    from golden.kllm.layer.host import Part

    folder = Path(folder)
    manifest = Manifest.read(folder, BLOCK, config.describe())
    if manifest.layout.get("kind"):
        raise PackError(f"{folder}: of a whole model, not of a layer")
    count = manifest.layout.get("parts")
    if type(count) is not int:
        raise PackError(f"{folder}: layout.parts must be a number, not {count!r}")
    numbers, parts = range(config.ports.ports), range(count)
    manifest.check_width(folder, "data.hex", 8 * ROW_BYTES)
    for n in numbers:
        manifest.check_width(folder, f"port_{n:02d}.hex", config.port_bits)
    names = [f"{kind}_{n}.hex" for kind in _PART.values() for n in parts]
    for name in ("requests.hex", "answers.hex", *names):
        manifest.check_width(folder, name, 32)

    def words(name: str) -> list[int]:
        return [word for _, word in read_hex(folder, name)]

    def memory(name: str, word_bytes: int) -> np.ndarray:
        raw = b"".join(word.to_bytes(word_bytes, "little") for word in words(name))
        return np.frombuffer(raw, dtype=np.uint8).copy()

    ports = [memory(f"port_{n:02d}.hex", config.port_bits // 8) for n in numbers]
    needed = max(
        place[0] + config.image_words(*place[1:]) for place in manifest.layout["images"].values()
    )
    for number, port in enumerate(ports):
        if len(port) * 8 != needed * config.port_bits:
            have = len(port) * 8 // config.port_bits
            raise PackError(f"{folder}: port {number} must hold {needed} words, not {have}")
    given, answers = words("requests.hex"), words("answers.hex")
    firsts = range(0, len(given), _REQUEST_WORDS)
    requests = [given[first : first + _REQUEST_WORDS] for first in firsts]
    return Pack(
        manifest=manifest,
        data=memory("data.hex", ROW_BYTES),
        ports=ports,
        requests=list(zip(requests, answers, strict=True)),
        parts=[
            Part(**{field: words(f"{name}_{n}.hex") for field, name in _PART.items()})
            for n in parts
        ],
    )


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command.Parser(
        prog="python -m golden.llm.pack", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", default="smollm2", help="smollm2, a GGUF file or a folder; "
                        "million_attention, vq_gemv: or llama, of random weights")  # fmt: skip
    parser.add_argument("--layer", type=int, action="append", metavar="N",
                        help="million_attention: several, by default the first, a middle and the "
                        "last; vq_gemv: by default a middle one")  # fmt: skip
    parser.add_argument("--all", action="store_true",
                        help="kllm_accelerator: the whole model, as golden.llm.kllm.pack says")
    parser.add_argument("--layers", type=int, metavar="N", help="with --all: the first N layers")
    parser.add_argument("--block", default=BLOCK, choices=list(_DEFAULTS))
    parser.add_argument("--config", choices=sorted({*MACHINES, *SYSTEMS, *PACKS}),
                        help="by default smollm2_cache; million_attention: the model's; "
                        "vq_gemv: gptvq2")  # fmt: skip
    parser.add_argument("--matrix", action="append", choices=MATRICES,
                        help="vq_gemv: one or several, by default those of the FFN")  # fmt: skip
    parser.add_argument("--file", type=Path, metavar="FILE.qet",
                        help="qet_dequant_gemv: what golden.llm.qet has quantized")  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE",
                        help="a field of the configuration")  # fmt: skip
    parser.add_argument("--option", action="append", default=[], metavar="FIELD=VALUE",
                        help="a field of golden.kllm.layer.LayerOptions")  # fmt: skip
    parser.add_argument("--calibration", type=Path, metavar="FILE",
                        help="kllm_accelerator: what golden.llm.calibrate has made of a method; "
                        "without, codebooks of a built-in text")  # fmt: skip
    parser.add_argument("--tokens", type=int, help="new tokens: 1; million_attention: 72")
    parser.add_argument("--context", type=int, help="cached tokens: 32; million_attention: 512; "
                        "--all: most tokens of a sequence, 512")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    options = parser.parse_args(arguments)
    tokens, context, known = _DEFAULTS[options.block]
    if options.all and options.block != BLOCK:
        parser.error(f"--all does not apply to {options.block}")
    if options.layers is not None and not options.all:
        parser.error("--layers needs --all")
    if options.all and (options.layer or options.tokens is not None):
        parser.error("--all takes no --layer and no --tokens")
    context = ALL_CONTEXT if options.all else context
    options.tokens = tokens if options.tokens is None else options.tokens
    options.context = context if options.context is None else options.context
    if known and options.config not in (None, *known):
        parser.error(f"--config must be one of {', '.join(known)}, not {options.config}")
    if bool(options.file) != (options.block == QET):
        parser.error(f"--file is needed by {QET} alone")
    if options.config and not known:
        parser.error(f"--config does not apply to {options.block}")
    if options.matrix and options.block != VQ:
        parser.error(f"--matrix does not apply to {options.block}")
    if options.block in (MILLION, VQ, QET):
        for name in ("option", "calibration"):
            if getattr(options, name):
                parser.error(f"--{name} does not apply to {options.block}")
        return options
    if options.option and options.calibration:
        parser.error("--option does not apply with --calibration: the method's fields decide")
    if options.all:
        return options
    if not options.layer:
        parser.error("the following arguments are required: --layer")
    if len(options.layer) > 1:
        parser.error("--layer must be given once")
    (options.layer,) = options.layer
    return options


def _check(options: argparse.Namespace) -> None:
    if options.tokens < 1 or options.context < 0:
        raise ConfigError("--tokens must be at least 1, --context at least 0")
    if options.output.exists() and not options.output.is_dir():
        raise ConfigError(f"output must be a folder, not the file {options.output}")


def _trained(
    loaded: "Checkpoint", options: argparse.Namespace, config: MachineConfig, layout: "LayerOptions"
) -> tuple["LayerWeights", "QuantizedLayer"]:
    """A layer's weights, and what ``quantize_layer`` makes of them on the built-in text."""
    from golden.kllm.layer.quantized import quantize_layer
    from golden.llm import checkpoint
    from golden.llm.kllm.model import real_layer
    from golden.llm.kllm.reference import check_reference, layer_inputs, reference

    ids = checkpoint.tokens(loaded, text.CALIBRATION, CALIBRATION_TOKENS)
    inputs = layer_inputs(loaded.model, ids, options.layer)
    weights = real_layer(loaded.model, options.layer, config)
    seen = reference(weights, inputs.x, inputs.cos, inputs.sin)
    check_reference(seen["y"], inputs, options.layer)
    return weights, quantize_layer(
        weights, seen, config.bits_a, config.bits_b, layout, config.antisymmetric
    )


def _methods(file: Path) -> tuple["Kllm", list["Method"], dict[str, Any]]:
    """Reads the methods that the calibration file is of, KLLM's first, and the file's header.

    ConfigError, CheckpointError: the file is of no KLLM method with Oaken's K and V.
    """
    from golden.llm.eval.state import load_header
    from golden.llm.methods import parse_all
    from golden.llm.methods.kllm import Kllm
    from golden.llm.methods.oaken import Oaken

    header = load_header(file)
    methods = parse_all(header["method"])
    first, *others = methods
    # The fields of Oaken's that its engine has.
    if not isinstance(first, Kllm) or others != [Oaken()]:
        raise ConfigError(
            f"calibration must be of a kllm method with +oaken, not {header['method']}"
        )
    return first, methods, header


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """The methods of a calibration file, for a model.

    methods, states: KLLM's first; told: goes into a manifest; ids: gives tokens on which norms
    after a matmul are scaled
    """

    methods: "list[Method]"
    states: "list[State]"
    told: dict[str, Any]
    ids: Callable[[], Any] | None = None

    def layer(
        self, model: Any, i: int, config: MachineConfig | None = None
    ) -> tuple["LayerWeights", "QuantizedLayer"]:
        """Layer ``i`` with its real weights, and as golden.kllm.layer compiles it.

        config: the machine, whose KV heads the layer has where it may
        """
        import torch

        from golden.llm.kllm.model import real_layer
        from golden.llm.kllm.reference import layer_inputs, reference
        from golden.llm.methods.kllm import Kllm
        from golden.oaken.groups import thresholds_of

        method = self.methods[0]
        assert isinstance(method, Kllm)
        sides = self.states[1]["intervals"][i].cpu()
        thresholds = torch.stack([thresholds_of(each) for each in sides])
        real, seen = real_layer(model, i, config), None
        if real.norm:
            assert self.ids is not None
            inputs = layer_inputs(model, self.ids(), i)
            seen = reference(real, inputs.x, inputs.cos, inputs.sin)
        return method.layer(model, self.states[0], i, thresholds, real.shape.kv_heads, seen)

    def install(self, site: "Site") -> None:
        """The methods on a model."""
        for method, state in zip(self.methods, self.states, strict=True):
            method.install(site, state)


def calibrated(loaded: "Checkpoint", file: Path) -> Calibrated:
    """ConfigError, CheckpointError: as ``_methods``, or the file is of another model."""
    from golden.llm import checkpoint
    from golden.llm.eval.state import load_states

    _, methods, header = _methods(file)
    states = load_states(file, loaded, methods)
    names = ("method", "text", "text_sha256", "skip", "windows", "tokens", "seed")
    told = {"calibration": {name: header[name] for name in names}}

    def ids() -> Any:
        return checkpoint.tokens(loaded, text.CALIBRATION, CALIBRATION_TOKENS)

    return Calibrated(methods, [states[n] for n in range(len(methods))], told, ids)


def laid_out(options: argparse.Namespace, config: MachineConfig) -> "LayerOptions":
    """Says how layers lie on the machine, before a model is read.

    ConfigError: a field of ``--option``; the machine's widths or half packets; a calibration of no
    KLLM method, of other widths or of another flow. CheckpointError: the file is no calibration.
    """
    from golden.kllm.layer.program import check_widths
    from golden.kllm.layer.shape import LayerOptions

    if not options.calibration:
        made = LayerOptions.parse(LayerOptions(), options.option)
        assert isinstance(made, LayerOptions)
        return made
    method, _, _ = _methods(options.calibration)
    made = method.layer_options()
    check_widths(config, method.activation_bits, method.weight_bits)
    if config.antisymmetric and not method.antisymmetric:
        raise ConfigError(
            "MachineConfig.antisymmetric must be False for a calibration without antisymmetric=true"
        )
    return made


def _calibrated(
    loaded: "Checkpoint", options: argparse.Namespace, config: MachineConfig
) -> tuple["LayerWeights", "QuantizedLayer", dict[str, Any]]:
    """A layer as a method of golden.llm.eval has calibrated it: weights, quantized, what is told.

    ConfigError, CheckpointError: the file is of no KLLM method, or of another model.
    """
    found = calibrated(loaded, options.calibration)
    return *found.layer(loaded.model, options.layer, config), found.told


def _model_source(
    loaded: "Checkpoint", options: argparse.Namespace, config: MachineConfig
) -> "Source":
    """All layers as ``_calibrated`` has one; the head sees what the quantized layers give."""
    from golden.llm.eval.method import Site
    from golden.llm.kllm.pack import Source

    found = calibrated(loaded, options.calibration)
    _, first = found.layer(loaded.model, 0, config)

    @contextlib.contextmanager
    def installed() -> Iterator[None]:
        with Site(loaded.model) as site:
            found.install(site)
            yield

    return Source(
        options=first.options,
        shape=first.shape,
        layer=lambda i: found.layer(loaded.model, i, config)[1],
        installed=installed,
        told=found.told,
    )


def _pack(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    import torch

    from golden.kllm.layer.compiler import compile_layer
    from golden.kllm.layer.host import history_of, run_layer
    from golden.kllm.layer.program import layer_program
    from golden.llm import checkpoint
    from golden.llm.kllm.chip import chip_layer, fitted
    from golden.llm.kllm.reference import check_reference, layer_inputs, reference

    config = MachineConfig.parse(MACHINES[options.config or "smollm2_cache"], options.set)
    assert isinstance(config, MachineConfig)
    path = None if options.model == "smollm2" else Path(options.model)
    checkpoint.check_layers([options.layer], checkpoint.layer_count(path), "layer")
    layout = laid_out(options, config)
    end = options.context + options.tokens
    if (stated := checkpoint.stated(path)) is not None:
        shape = fitted(chip_layer(stated, end, options.layer), config)
        layer_program(shape, layout, config, options.tokens, options.context)
    say(f"loading {options.model}")
    loaded = checkpoint.load(path)
    shape = fitted(chip_layer(checkpoint.decoder(loaded), end, options.layer), config)
    ids = checkpoint.tokens(loaded, text.EVALUATION, end)
    if stated is None:
        layer_program(shape, layout, config, options.tokens, options.context)
    say(f"quantizing layer {options.layer}: W{config.bits_b}A{config.bits_a}")
    if options.calibration:
        weights, quantized, calibration = _calibrated(loaded, options, config)
    else:
        weights, quantized = _trained(loaded, options, config, layout)
        calibration = {"calibration": f"golden.llm.text.CALIBRATION, {CALIBRATION_TOKENS} tokens"}
    x = layer_inputs(loaded.model, ids, options.layer)
    evaluation = reference(weights, x.x, x.cos, x.sin)
    check_reference(evaluation["y"], x, options.layer)
    compiled = compile_layer(quantized, config, options.tokens, options.context)
    words, context = compiled.program.words, options.context
    say(f"running {len(words) // COMMAND_WORDS} commands on the golden machine")
    history = history_of(quantized, evaluation["k"][:context], evaluation["v"][:context])
    run = run_layer(compiled, x.x[context:], x.cos[context:], x.sin[context:], [history])
    expected = x.y[context:].double()
    difference = (run.value - expected).norm()
    error = float(difference / expected.norm())
    update = float(difference / (expected - x.x[context:].double()).norm())
    say(f"relative error of the layer's output {error:.4f}, of what it adds {update:.4f}")
    found = bounds(words, config)
    planned = schedule(words, found, dict.fromkeys(Unit, 0))
    busy = ", ".join(f"{unit.name} {cycles}" for unit, cycles in planned.busy.items())
    say(f"{len(found)} commands, at least {planned.cycles} cycles ({busy})")
    model = {
        "name": str(options.model), "layer": options.layer, "context": context,
        "error": round(error, 6),
    }  # fmt: skip
    made = {
        "tool": "golden.llm.pack",
        "torch": torch.__version__,
        "text": f"golden.llm.text.EVALUATION, tokens 0..{end - 1}",
        **calibration,
    }
    manifest = write(options.output, compiled, run, model, made)
    total = sum(entry["bytes"] for entry in manifest.files.values())
    say(f"{len(manifest.files)} files, {total / 1e6:.1f} MB in {options.output}")


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr. Progress goes to stderr."""
    options = _arguments(arguments)
    from golden.llm.checkpoint import CheckpointError  # torch, after the arguments

    say = command.elapsed(lambda line: print(line, file=sys.stderr))
    try:
        with warnings.catch_warnings(), contextlib.ExitStack() as outputs:
            warnings.simplefilter("ignore")
            _check(options)
            outputs.enter_context(claimed_folder(options.output))
            if options.block == MILLION:
                from golden.llm.million import pack as million

                million.make(options, say)
            elif options.block == VQ:
                from golden.llm.vqllm import pack as vq

                vq.make(options, say)
            elif options.block == QET:
                from golden.qet import pack as qet

                qet.make(options, say)
            elif options.all:
                from golden.llm.eval.command import ARCHITECTURES
                from golden.llm.kllm import pack as model

                source = _model_source if options.calibration else None
                model.make(options, say, ARCHITECTURES, laid_out, source)
            else:
                _pack(options, say)
    except (CheckpointError, ValueError, ArithmeticError, OSError) as error:
        print(f"golden.llm.pack: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    command.run("golden.llm.pack", main)
