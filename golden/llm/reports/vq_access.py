"""Look-ups of trained codebooks: ``python -m golden.llm.reports.vq_access --text FILE``.

VQ-LLM, section V, Figures 8 and 9, on matrices of the feed-forward layers and on K and V.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from golden import command
from golden.llm.eval.accuracy.arguments import ROOT
from golden.llm.reports.common import add_page, give, prepare, status
from golden.markers import table

if TYPE_CHECKING:
    from torch import Tensor

    from golden.llm.checkpoint import Checkpoint
    from golden.vqllm.matrix import VqMatrix

PAGE = ROOT / "docs" / "vqllm-access.md"
_PLACES = ("up_proj", "down_proj", "K", "V")
_METHODS = ("aqlm3", "gptvq2")
_CACHES = ("cq4", "cq2")
_HOTTEST = (16, 32, 256)
_HOT = 32
_PARTS = {"aqlm3": 256, "gptvq2": 64, "cq4": 256, "cq2": 256}  # rows of a part
_LOOK_UPS = _BANKS = 16
_REGISTERS = (0, 8, 32, 128)

# (method, layer and what, matrix)
Found = tuple[str, str, "VqMatrix"]


def _weights(
    checkpoint: "Checkpoint",
    learned: list["Tensor"],
    layers: list[int],
    places: list[str],
    seed: int,
) -> Iterator[Found]:
    """Each matrix as its method trains it on the unchanged model's inputs."""
    import torch

    from golden.llm.eval.calibration import CalibrationData
    from golden.llm.methods import parse
    from golden.llm.methods.vqllm import VqWeights

    data = CalibrationData(checkpoint.model, learned, seed)
    for layer in layers:
        for part in (each for each in _PLACES[:2] if each in places):
            name = f"model.layers.{layer}.mlp.{part}"
            hessian = data.accumulate("hessian", lambda x: x.t() @ x, names=[name])[name]
            weight = data.linears[name].weight.detach()
            for spelling in _METHODS:
                method = parse(spelling)
                assert isinstance(method, VqWeights)
                with torch.no_grad():
                    yield spelling, f"{layer}, {part}", method.matrix(weight, hessian, seed)


def _caches(
    checkpoint: "Checkpoint",
    learned: list["Tensor"],
    evaluated: list["Tensor"],
    layers: list[int],
    places: list[str],
    seed: int,
) -> Iterator[Found]:
    """K or V of a layer, a codebook for each group of channels of a head."""
    import torch

    from golden.index.lloyd import Training, assign, kmeans
    from golden.index.packet import normalised
    from golden.llm.capture import capture_kv
    from golden.vqllm.config import NAMED, MatrixShape
    from golden.vqllm.matrix import VqMatrix

    def captured(windows: list["Tensor"]) -> list[list["Tensor"]]:
        each = [capture_kv(checkpoint.model, ids) for ids in windows]
        return [
            [torch.cat([one[layer][which] for one in each]) for which in (0, 1)] for layer in layers
        ]

    training, looked_up = captured(learned), captured(evaluated)
    for i, layer in enumerate(layers):
        for which, kind in enumerate(_PLACES[2:]):
            for spelling in _CACHES if kind in places else ():
                vq = NAMED[spelling]
                train, use = (
                    x[i][which].half().float().unflatten(1, (-1, vq.size)).transpose(0, 1)
                    for x in (training, looked_up)
                )
                books = kmeans(train, vq.entries, None, Training(seed=seed)).centroids
                codes = assign(use.contiguous(), books)
                words, exponent = normalised(books)
                shape = MatrixShape(rows=use.shape[1], columns=len(use) * vq.size, vq=vq)
                matrix = VqMatrix(shape, words[:, None], exponent, codes.T[..., None])
                yield spelling, f"{layer}, {kind}", matrix


def _by_chance(counts: "Tensor", seed: int) -> float:
    """Share of the hottest entries where all entries are equally likely."""
    import torch

    from golden.vqllm.access import AccessProfile

    generator = torch.Generator().manual_seed(seed)
    entries = counts.shape[-1]
    drawn = [
        torch.randint(0, entries, (int(each),), generator=generator).bincount(minlength=entries)
        for each in counts.flatten(0, -2).sum(-1)
    ]
    return AccessProfile(torch.stack(drawn)).share(_HOT)


def _tiles(matrix: "VqMatrix", part_rows: int) -> list["VqMatrix"]:
    """Its tiles of more than one part."""
    from golden.vqllm.access import of_tile

    every = [of_tile(matrix, number) for number in range(len(matrix.shape.tiles))]
    return [each for each in every if each.shape.rows > part_rows]


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _frequency(matrix: "VqMatrix") -> list[str]:
    from golden.vqllm.access import AccessProfile, look_ups

    counts = look_ups(matrix)
    profile = AccessProfile(counts)
    entries = counts.shape[-1]
    above = profile.above().flatten().tolist()
    shares = [_percent(profile.share(most)) if most < entries else "all" for most in _HOTTEST]
    span = f"{min(above)}..{max(above)}" if min(above) < max(above) else str(above[0])
    return [
        str(counts[..., 0].numel()),
        f"{float(counts.double().mean()):.0f}",
        *shares,
        _percent(_by_chance(counts, 0)),
        _percent(1 - profile.share(entries // 2)),
        f"{_mean(above):.1f} ({span})",
        _percent(profile.below_mean()),
    ]


def _parts(spelling: str, matrix: "VqMatrix") -> list[str]:
    from golden.vqllm.access import hot_overlap, hot_shares

    rows = _PARTS[spelling]
    tiles = _tiles(matrix, rows)
    overlap = _mean([hot_overlap(each, rows, _HOT) for each in tiles])
    own, whole = zip(*(hot_shares(each, rows, _HOT) for each in tiles), strict=True)
    entries = matrix.shape.vq.entries
    cells = [overlap, _HOT / entries, _mean(list(own)), _mean(list(whole))]
    return [str(rows), *map(_percent, cells)]


def _beats(matrix: "VqMatrix") -> list[str]:
    """Mean cycles of a beat by entries in registers, codebooks in the order of their look-ups."""
    from golden.vqllm.access import reordered
    from golden.vqllm.bounds import EngineShape, bank_cycles

    ordered = reordered(matrix)
    cells = []
    for registers in _REGISTERS:
        engine = EngineShape(lookups=_LOOK_UPS, banks=_BANKS, registers=registers)
        cycles = beats = 0
        for tile in ordered.shape.tiles:
            for stage in range(ordered.shape.vq.stages):
                codes = ordered.codes[tile.rows, tile.vectors, stage].flatten()
                cycles += bank_cycles(codes, engine)
                beats += -(-len(codes) // _LOOK_UPS)
        cells.append(f"{cycles / beats:.2f}")
    return cells


def sections(found: list[Found], settings: list[tuple[str, str]]) -> dict[str, str]:
    """Returns the page's sections by marker."""
    frequency, parts, beats = [], [], []
    for spelling, name, matrix in found:
        head = [f"`{spelling}`", name]
        frequency.append([*head, *_frequency(matrix)])
        parts.append([*head, *_parts(spelling, matrix)])
        beats.append([*head, *_beats(matrix)])
    hottest = [f"hottest {most}" for most in _HOTTEST]
    return {
        "access_settings": table(("setting", "value"), settings, align_right=False),
        "access_frequency": table(
            ("method", "layer", "codebooks", "look-ups of an entry", *hottest,
             f"hottest {_HOT} by chance", "colder half", "above mean + 3 sigma", "below the mean"),
            frequency,
        ),
        "access_parts": table(
            ("method", "layer", "rows of a part", f"{_HOT} hottest in common", "by chance",
             "own hottest serve", "hottest of the codebook serve"),
            parts,
        ),
        "access_beats": table(
            ("method", "layer", *(f"{each} in registers" for each in _REGISTERS)), beats
        ),
    }  # fmt: skip


def _arguments() -> argparse.ArgumentParser:
    parser = command.Parser(
        prog="python -m golden.llm.reports.vq_access",
        description="Count the look-ups of trained codebooks, and write the tables of a page.",
    )
    parser.add_argument("--model", help="as for golden.llm.eval; SmolLM2-135M if none")
    parser.add_argument("--text", type=Path, required=True, help="plain or .jsonl")
    parser.add_argument("--layers", type=int, nargs="+", default=[10])
    parser.add_argument("--places", nargs="+", choices=_PLACES, default=list(_PLACES))
    parser.add_argument("--skip", type=int, default=20480, help="tokens before the windows")
    parser.add_argument("--windows", type=int, default=8, help="that weigh the weights")
    parser.add_argument("--kv-windows", type=int, default=40, help="that train K and V")
    parser.add_argument("--kv-evaluated", type=int, default=8, help="whose K and V are looked up")
    parser.add_argument("--tokens", type=int, default=256, help="of a window")
    parser.add_argument("--seed", type=int, default=0)
    add_page(parser, PAGE)
    return parser


def _run(options: argparse.Namespace) -> int:

    from golden.llm.checkpoint import check_layers, layer_count, load, read_text, windows

    prepare(options)
    check_layers(options.layers, layer_count(options.model))
    checkpoint = load(options.model)
    count = max(options.windows, options.kv_windows) + options.kv_evaluated
    every = windows(checkpoint, read_text(options.text), count, options.tokens, options.skip)
    behind = every[-options.kv_evaluated :]
    places, layers, seed = options.places, options.layers, options.seed
    found = list(_weights(checkpoint, every[: options.windows], layers, places, seed))
    if set(places) & set(_PLACES[2:]):
        learned = every[: options.kv_windows]
        found += _caches(checkpoint, learned, behind, layers, places, seed)
    found.sort(key=lambda each: (*_METHODS, *_CACHES).index(each[0]))
    many = f"windows of {options.tokens} tokens"
    settings = [
        ("model", checkpoint.name),
        ("Hessians of weights", f"{options.windows} {many}"),
        ("codebooks of K and V", f"{options.kv_windows} {many}"),
        ("K and V that are looked up", f"{options.kv_evaluated} other {many}"),
        ("beat", f"{_LOOK_UPS} look-ups, entry j in bank j % {_BANKS}"),
        ("seed", str(options.seed)),
    ]
    made = sections(found, settings)
    give(options.page, made)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    options = _arguments().parse_args(arguments)
    return status("vq_access", lambda: _run(options))


if __name__ == "__main__":
    command.run("golden.llm.reports.vq_access", main)
