"""Fit the GPUs' constants: matrices and vectors to layer times, hosts and caches to published rows.

    python -m sim.fit.gpu --times a100_llama2_7b_mlp.csv

``--times`` is a file of the Vidur project: times of a layer's operations in ms, by tokens. Rows
are parted by a hash of their tokens before anything is fitted. One third is held out.
``gpu_anchors.csv`` in this folder holds times per token from publications, and which may be fitted.

The command prints each fitted constant next to the one that the chip's file states. It prints the
errors of what was fitted and of what was not. Without ``--times`` it fits the published rows only.
"""

import argparse
import csv
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from golden import command
from golden.config import ConfigError
from sim.constant import UNITS, Constant
from sim.engine import check_fits, engine_of
from sim.engines.gpu import TILES, Gpu
from sim.hardware import Hardware
from sim.model import Model, find_model
from sim.work import Pass, Work, works

_ANCHORS = Path(__file__).parent / "gpu_anchors.csv"
# Columns of a times file: the operation of ``sim.work.works``, and its executions in a layer.
_COLUMNS = {
    "input_layernorm": ("norm", 1),
    "attn_pre_proj": ("qkv", 1),
    "attn_rope": ("rotary", 1),
    "attn_post_proj": ("o", 1),
    "post_attention_layernorm": ("norm", 1),
    "mlp_up_proj": ("gate_up", 1),
    "mlp_act": ("activation", 1),
    "mlp_down_proj": ("down", 1),
    "add": ("residual", 2),
}
_MATRICES = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
_VECTORS = tuple(name for name in _COLUMNS if name not in _MATRICES)
_HELD_OUT = 3  # one row of so many
_LARGEST = max(a * b / (a + b) for a, b in TILES)


@dataclasses.dataclass(frozen=True)
class Row:
    """Seconds of one execution of each operation at ``tokens`` tokens, by column."""

    tokens: int
    seconds: Mapping[str, float]

    @property
    def layer(self) -> float:
        """The seconds of a layer without attention."""
        return sum(self.seconds[name] * times for name, (_, times) in _COLUMNS.items())


@dataclasses.dataclass(frozen=True)
class Anchor:
    """A published time per token. seconds: None where the publication ran out of memory."""

    hardware: str
    model: Model
    prefill: int
    output: int
    seconds: float | None
    fitted: bool
    source: str


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A constant that was fitted, in the unit of its file, and what the file states."""

    hardware: str
    name: str
    value: float
    stated: float


def held_out(tokens: int) -> bool:
    """Whether no fit may see the rows of so many tokens."""
    return hashlib.sha256(f"gpu layer {tokens}".encode()).digest()[0] % _HELD_OUT == 0


def read_times(path: Path) -> list[Row]:
    """The rows of one GPU, by tokens. ConfigError: a column is missing, or a time is no number."""
    try:
        with path.open(newline="") as file:
            table = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"--times {path}: {error}") from None
    columns = [f"time_stats.{name}.median" for name in _COLUMNS]
    wanted = {"num_tokens", "num_tensor_parallel_workers", *columns}
    if not table:
        raise ConfigError(f"--times {path}: has no rows")
    if missing := sorted(wanted - set(table[0])):
        raise ConfigError(f"--times {path}: lacks the columns {', '.join(missing)}")
    found = []
    for number, line in enumerate(table, 2):
        try:
            if int(line["num_tensor_parallel_workers"]) != 1:
                continue
            seconds = {
                name: float(line[column]) * 1e-3
                for name, column in zip(_COLUMNS, columns, strict=True)
            }
            row = Row(int(line["num_tokens"]), seconds)
        except (TypeError, ValueError):
            raise ConfigError(
                f"--times {path}: line {number} has a field that is no number"
            ) from None
        if row.tokens < 1 or not all(0 < each < math.inf for each in seconds.values()):
            raise ConfigError(f"--times {path}: line {number}: tokens and times must be above 0")
        found.append(row)
    found.sort(key=lambda row: row.tokens)
    if not any(held_out(row.tokens) for row in found) or all(held_out(r.tokens) for r in found):
        raise ConfigError(f"--times {path}: has too few rows of one GPU to hold some out")
    return found


def anchors(path: Path = _ANCHORS) -> list[Anchor]:
    """The published times per token, in the order of the file."""
    found = []
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            seconds = None if line["ms"] == "OOM" else float(line["ms"]) * 1e-3
            found.append(
                Anchor(
                    line["hardware"], find_model(line["model"]), int(line["prefill"]),
                    int(line["output"]), seconds, line["use"] == "fit", line["source"],
                )
            )  # fmt: skip
    return found


def with_constants(hardware: Hardware, values: Mapping[str, float]) -> Hardware:
    """``hardware`` with other values, in base units; ``efficiency`` is the memory's."""

    def changed(constant: Constant, name: str) -> Constant:
        value = values[name] / UNITS[constant.unit]
        return Constant(value=value, unit=constant.unit, kind="fitted", source="this fit")

    constants = {
        name: changed(each, name) if name in values else each
        for name, each in hardware.constants.items()
    }
    memory = hardware.memory
    if "efficiency" in values:
        efficiency = changed(memory.constants["efficiency"], "efficiency")
        memory = dataclasses.replace(
            memory, constants={**memory.constants, "efficiency": efficiency}
        )
    return dataclasses.replace(hardware, constants=constants, memory=memory)


def _stated(hardware: Hardware, name: str) -> Constant:
    if name == "efficiency":
        return hardware.memory.constants[name]
    return hardware.constants[name]


def _search(
    error: Callable[[Mapping[str, float]], float], start: Mapping[str, float], step: float = 0.4
) -> dict[str, float]:
    """The values near ``start`` with the least error.

    A pattern search over logarithms. A step changes one value or two, as values that make up for
    each other leave a narrow valley.
    """
    names = list(start)
    moves = [
        move
        for move in itertools.product((1, -1, 0), repeat=len(names))
        if 1 <= sum(map(abs, move)) <= 2
    ]
    best, least = dict(start), error(start)
    while step > 1e-3:
        before = least
        for move in moves:
            tried = {
                name: best[name] * math.exp(step * by) for name, by in zip(names, move, strict=True)
            }
            found = error(tried)
            if found < least:
                best, least = tried, found
        if least > before * (1 - 1e-2 * step):
            step /= 2
    return best


def predicted(engine: Gpu, model: Model, tokens: int, names: Iterable[str] = _COLUMNS) -> Row:
    """The columns ``names`` of a row of times as the engine predicts them."""
    found = _works(model, tokens)
    seconds = {}
    for name in names:
        work = found[_COLUMNS[name][0]]
        seconds[name] = engine.operation(work).seconds / work.count
    return Row(tokens, seconds)


@functools.cache
def _works(model: Model, tokens: int) -> dict[str, Work]:
    return {work.name: work for work in works(model, Pass.prefill(1, tokens))}


def _layer_engine(hardware: Hardware, values: Mapping[str, float]) -> Gpu:
    # The measured layer has one kernel for each operation, the sums included.
    settings = {**hardware.settings, "fusion": "kernels", "graph": True}
    return Gpu(with_constants(dataclasses.replace(hardware, settings=settings), values))


def fit_times(rows: Iterable[Row], hardware: Hardware, model: Model) -> dict[str, float]:
    """Constants of matrices and vectors, in base units, from the rows that are not held out.

    The error is the mean of absolute logarithms, as libraries choose badly at some sizes.
    """
    train = [row for row in rows if not held_out(row.tokens)]

    def whole(values: Mapping[str, float]) -> dict[str, float]:
        # The share that the largest tile reaches hardly depends on tile_half, so it is searched.
        limit = values["tile_efficiency"] * (1 + values["tile_half"] / _LARGEST)
        return {**values, "tile_efficiency": limit}

    def matrices(values: Mapping[str, float]) -> float:
        values = whole(values)
        if values["tile_efficiency"] > 1 or values["efficiency"] > 1:
            return math.inf
        engine = _layer_engine(hardware, values)
        error = 0.0
        for row in train:
            found = predicted(engine, model, row.tokens, _MATRICES).seconds
            error += sum(abs(math.log(found[name] / row.seconds[name])) for name in _MATRICES)
        return error

    def vectors(values: Mapping[str, float]) -> float:
        engine = _layer_engine(hardware, {**made, **values})
        error = 0.0
        for row in train:
            found = predicted(engine, model, row.tokens, _VECTORS).seconds
            ours = sum(found[name] * _COLUMNS[name][1] for name in _VECTORS)
            theirs = sum(row.seconds[name] * _COLUMNS[name][1] for name in _VECTORS)
            error += abs(math.log(ours / theirs))
        return error

    def start(*names: str) -> dict[str, float]:
        return {name: _stated(hardware, name).base for name in names}

    first = start("efficiency", "matrix_start", "tile_efficiency", "tile_half")
    first["tile_efficiency"] /= 1 + first["tile_half"] / _LARGEST
    starts = [{**first, "tile_half": first["tile_half"] * by} for by in (0.5, 1.0, 2.0)]
    made = whole(min((_search(matrices, each, 0.1) for each in starts), key=matrices))
    return {**made, **_search(vectors, start("vector_start", "vector_efficiency"))}


# Chips whose constants published rows give, in order; a chip takes what the ones it names found.
_PUBLISHED: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("a100-80gb-eager", ("launch",), "a100-80gb"),
    ("a100-80gb-int8", ("dequantize",), "a100-80gb"),
    ("a40", ("launch", "attention_bandwidth"), ""),
    ("a40-kivi", ("quantize_host", "attention_host"), "a40"),
    ("a40-kvquant", ("quantize_host", "attention_host", "kv_dequantize"), "a40"),
    ("a40-million", ("kv_dequantize",), "a40"),
)


def _seconds(hardware: Hardware, values: Mapping[str, float], anchor: Anchor) -> float:
    """The seconds of a token in the middle of the output."""
    engine = Gpu(with_constants(hardware, values))
    context = anchor.prefill + anchor.output // 2
    return engine.cost(anchor.model, Pass.decode(1, context)).seconds


def fit_anchors(
    rows: Sequence[Anchor], made: Mapping[str, float]
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Constants by chip: those that were fitted, and all that differ from the chip's file.

    made: constants of ``a100-80gb`` that are fitted already, in base units
    """
    fitted: dict[str, dict[str, float]] = {}
    used: dict[str, dict[str, float]] = {"a100-80gb": dict(made)}
    for name, constants, base in _PUBLISHED:
        hardware = engine_of(name).hardware
        train = [(each, each.seconds) for each in rows if each.hardware == name and each.fitted]
        known = used.get(base, {})

        def error(
            values: Mapping[str, float], hardware=hardware, train=train, known=known
        ) -> float:
            return sum(
                math.log(_seconds(hardware, {**known, **values}, anchor) / seconds) ** 2
                for anchor, seconds in train
                if seconds is not None
            )

        fitted[name] = _search(error, {each: _stated(hardware, each).base for each in constants})
        used[name] = {**known, **fitted[name]}
    used["a100-80gb-int4"] = used["a100-80gb-int8"]
    return fitted, used


def _errors(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Mean and worst relative error of (ours, theirs)."""
    found = [abs(ours / theirs - 1) for ours, theirs in pairs]
    return (sum(found) / len(found), max(found)) if found else (0.0, 0.0)


def _layer_report(rows: Sequence[Row], engine: Gpu, model: Model) -> dict[str, list[float]]:
    """Reports, by operation and by held out or not, mean and worst error in %."""
    report: dict[str, list[float]] = {}
    ours = {row.tokens: predicted(engine, model, row.tokens) for row in rows}
    for label, chosen in (("train", False), ("held out", True)):
        part = [row for row in rows if held_out(row.tokens) == chosen]
        for name in ("layer", *_COLUMNS):
            pairs = [
                (ours[r.tokens].layer, r.layer) if name == "layer"
                else (ours[r.tokens].seconds[name], r.seconds[name])
                for r in part
            ]  # fmt: skip
            mean, worst = _errors(pairs)
            report[f"{name} {label}"] = [len(part), 100 * mean, 100 * worst]
    return report


def _anchor_report(
    rows: Sequence[Anchor], used: Mapping[str, Mapping[str, float]]
) -> list[tuple[Anchor, float | None]]:
    """Each row with our seconds, None where the chip's memory lacks room."""
    report: list[tuple[Anchor, float | None]] = []
    for anchor in rows:
        hardware = engine_of(anchor.hardware).hardware
        try:
            check_fits(Gpu(hardware), anchor.model, 1, anchor.prefill + anchor.output)
        except ConfigError:
            report.append((anchor, None))
            continue
        report.append((anchor, _seconds(hardware, used.get(anchor.hardware, {}), anchor)))
    return report


def _parser() -> command.Parser:
    parser = command.Parser(
        prog="python -m sim.fit.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--times", type=Path, metavar="FILE", help="layer times of an A100, CSV")
    parser.add_argument("--json", action="store_true", help="print one object")
    return parser


def _table(made: Mapping[str, Mapping[str, float]]) -> list[Fitted]:
    found = []
    for name, values in made.items():
        hardware = engine_of(name).hardware
        for each, value in values.items():
            stated = _stated(hardware, each)
            found.append(Fitted(name, each, value / UNITS[stated.unit], stated.value))
    return found


def main() -> int:
    """Fit, and print what was found."""
    options = _parser().parse_args()
    model = find_model("llama-2-7b")
    hardware = engine_of("a100-80gb").hardware
    made: dict[str, float] = {}
    layer: dict[str, list[float]] = {}
    try:
        if options.times is not None:
            times = read_times(options.times)
            made = fit_times(times, hardware, model)
            layer = _layer_report(times, _layer_engine(hardware, made), model)
        published = anchors()
        fitted, used = fit_anchors(published, made)
    except ConfigError as error:
        print(f"sim.fit.gpu: {error}", file=sys.stderr)
        return 2
    table = _table({**({"a100-80gb": made} if made else {}), **fitted})
    report = _anchor_report(published, used)
    if options.json:
        print(json.dumps({
            "constants": [dataclasses.asdict(each) for each in table],
            "layer": layer,
            "published": [
                {"hardware": a.hardware, "prefill": a.prefill, "fitted": a.fitted,
                 "published": a.seconds, "ours": ours} for a, ours in report
            ],
        }))  # fmt: skip
        return 0
    print(f"{len(table)} fitted constants")
    print(f"{'chip':<16}{'constant':<22}{'fitted':>10}{'in file':>10}")
    for each in table:
        print(f"{each.hardware:<16}{each.name:<22}{each.value:>10.4g}{each.stated:>10.4g}")
    if layer:
        print(f"\n{'A100 layer times':<36}{'rows':>6}{'mean':>9}{'worst':>9}")
        for name, (count, mean, worst) in layer.items():
            print(f"{name:<36}{count:>6}{mean:>7.2f} %{worst:>7.2f} %")
    print(f"\n{'published rows':<18}{'prefill':>8}{'use':>6}{'ms':>10}{'ours':>10}{'error':>9}")
    for anchor, ours in report:
        theirs = anchor.seconds
        use = "fit" if anchor.fitted else "test"
        texts = [f"{1e3 * each:.2f}" if each is not None else "OOM" for each in (theirs, ours)]
        off = f"{100 * (ours / theirs - 1):+.2f} %" if ours and theirs else ""
        print(
            f"{anchor.hardware:<18}{anchor.prefill:>8}{use:>6}{texts[0]:>10}{texts[1]:>10}{off:>9}"
        )
    for label, chosen in (("fit", True), ("test", False)):
        pairs = [
            (ours, a.seconds) for a, ours in report if a.fitted == chosen and ours and a.seconds
        ]
        mean, worst = _errors(pairs)
        print(f"{label}: {len(pairs)} rows, mean {100 * mean:.2f} %, worst {100 * worst:.2f} %")
    return 0


if __name__ == "__main__":
    command.run("sim.fit.gpu", main)
