"""``python -m sim.validate``: predictions next to measured cycles, fitted and held-out rows apart.

Each table says how many parameters were fitted, and on how many rows. A command's cycles run from
the last end that it waits for to its own. The host of the bench polls, so it sees each end up to
6 cycles late: of a command of 12 cycles that is half.
"""

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from golden import command
from golden.config import ConfigError
from golden.markers import rewrite, table
from sim.calibration import (
    FOLDER,
    HELD_OUT,
    TRAIN,
    LayerRun,
    ProductRun,
    Unit,
    fitted_runs,
    load_products,
    load_runs,
    load_units,
)
from sim.engine import shown_error
from sim.kllm.predict import predict, predict_product
from sim.kllm.units import FITTED, JUDGES, Timings
from sim.request_rows import Row, load_rows

PAGE = Path(__file__).resolve().parent.parent / "docs" / "sim.md"
_FEW = 60  # cycles of all commands of a kind; below, the bench's polls are the error


@dataclasses.dataclass(frozen=True)
class Layer:
    """A measured layer and its prediction; kinds: measured and predicted cycles by opcode."""

    run: LayerRun
    predicted: float
    kinds: dict[str, tuple[int, float]]

    @property
    def error(self) -> float:
        """The error of the whole, as a share."""
        return self.predicted / self.run.total - 1

    def off(self, name: str) -> float:
        """Cycles by which commands of a kind are predicted too long, on average."""
        measured, made = self.kinds[name]
        return (made - measured) / self.run.cycles[name][0]

    def worst(self) -> tuple[str, float]:
        """The kind of command with the largest error, and the error; of kinds with many cycles."""
        many = {name: pair for name, pair in self.kinds.items() if pair[0] >= _FEW}
        errors = {
            name: made / measured - 1 for name, (measured, made) in (many or self.kinds).items()
        }
        name = max(errors, key=lambda each: abs(errors[each]))
        return name, errors[name]


def layers(folder: Path = FOLDER) -> list[Layer]:
    """All measured layers. ConfigError: bad files of calibration, or no delays."""
    return _predicted(fitted_runs(folder), folder)


def judges(folder: Path = FOLDER) -> list[Layer]:
    """Layers that no fit has seen, of another size. ConfigError: as ``layers``."""
    return _predicted(load_runs(folder / JUDGES), folder)


def _predicted(runs: Sequence[LayerRun], folder: Path) -> list[Layer]:
    timings, made = Timings.fitted(folder), []
    for run in runs:
        whole, kinds = predict(run, timings)
        both = {name: (measured, kinds[name]) for name, measured in run.opcodes().items()}
        made.append(Layer(run, whole, both))
    return made


@dataclasses.dataclass(frozen=True)
class Product:
    """A measured product and its predicted cycles, as ProductRun has them."""

    run: ProductRun
    quantized: float
    cycles: float

    @property
    def error(self) -> float:
        """The error to the last output, as a share."""
        return self.cycles / self.run.cycles - 1

    @property
    def quantize_error(self) -> float:
        """The error to the end of the first QUANTIZE, as a share."""
        return self.quantized / self.run.quantized - 1


def products(folder: Path = FOLDER) -> list[Product]:
    """All measured products. ConfigError: no or bad files of calibration."""
    timings = Timings.fitted(folder)
    return [Product(run, *predict_product(run, timings)) for run in load_products(folder)]


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _errors(errors: Sequence[float]) -> list[str]:
    """The mean and the worst, without signs."""
    sizes = list(map(abs, errors))
    return [f"{100 * statistics.mean(sizes):.2f} %", f"{100 * max(sizes):.2f} %"]


_NONE = "No layer of the present programs is measured.\n"


def _runs(found: Sequence[Layer]) -> str:
    if not found:
        return _NONE
    rows = []
    for each in sorted(found, key=lambda layer: (layer.run.mark, layer.run.name)):
        name, error = each.worst()
        rows.append(
            [
                each.run.name, each.run.mark, each.run.total, round(each.predicted),
                _percent(each.error), f"{name} {_percent(error)}",
            ]
        )  # fmt: skip
    return table(["layer", "rows", "measured", "predicted", "error", "worst kind"], rows)


def _products(made: Sequence[Product]) -> str:
    """Tabulates by matrix, machine, memory: the worst errors of its tokens, online and offline."""
    found: dict[tuple[str, ...], list[Product]] = {}
    for each in made:
        found.setdefault((each.run.mark, each.run.matrix), []).append(each)
    rows = []
    for (mark, matrix), own in sorted(found.items()):
        errors = [each.error for each in own]
        quantize = [each.quantize_error for each in own]
        rows.append(
            [
                matrix, mark, len(own),
                " ".join(sorted({each.run.tokens for each in own}, key=_numbers)),
                f"{min(each.run.cycles for each in own)} to {max(each.run.cycles for each in own)}",
                f"{100 * statistics.mean(map(abs, errors)):.2f} %",
                _percent(max(errors, key=abs)), _percent(max(quantize, key=abs)),
            ]
        )  # fmt: skip
    headings = ["product", "rows", "count", "tokens / at a time", "cycles", "mean error", "worst"]
    return table([*headings, "worst of the first QUANTIZE"], rows)


def _numbers(text: str) -> list[int]:
    return list(map(int, text.split("/")))


def _summary(found: Sequence[Layer], made: Sequence[Product]) -> str:
    rows = []
    for mark in (TRAIN, HELD_OUT):
        errors = [each.error for each in found if each.run.mark == mark]
        if errors:
            rows.append(
                [
                    f"decoder layers of KLLM, {mark}", len(errors),
                    len(FITTED) if mark == TRAIN else 0, *_errors(errors),
                ]
            )  # fmt: skip
    errors = [each.error for each in made if each.run.mark == HELD_OUT]
    if errors:
        rows.append(["products of KLLM, held-out", len(errors), 0, *_errors(errors)])
    return table(["what", "rows", "parameters fitted on them", "mean error", "worst"], rows)


def _kinds(found: Sequence[Layer]) -> str:
    """Tabulates by kind of command: cycles of a layer, errors, and the worst of one command."""
    if not found:
        return _NONE
    names = sorted({name for each in found for name in each.kinds})
    rows = []
    for name in names:
        pairs = [each.kinds[name] for each in found if name in each.kinds]
        errors = [made / measured - 1 for measured, made in pairs]
        off = [each.off(name) for each in found if name in each.kinds]
        rows.append(
            [
                name, round(statistics.mean(measured for measured, _ in pairs)),
                _percent(statistics.mean(errors)), _percent(max(errors, key=abs)),
                f"{max(off, key=abs):+.1f}",
            ]
        )  # fmt: skip
    heads = ["command", "cycles of a layer", "mean error", "worst", "worst, cycles of a command"]
    return table(heads, rows)


def _units(units: Sequence[Unit]) -> str:
    """Tabulates by the predicting function: rows, those without any difference, and the errors."""
    rows = []
    for name in sorted({each.predicted_by for each in units}):
        own = [each for each in units if each.predicted_by == name]
        errors = [each.predicted / each.cycles - 1 for each in own]
        exact = sum(each.predicted == each.cycles for each in own)
        rows.append([f"`{name}`", len(own), exact, *_errors(errors)])
    return table(["predicted by", "rows", "exact", "mean error", "worst"], rows)


def _requests(rows: Sequence[Row]) -> str:
    """Tabulates trains of READs and APPENDs, each mark apart; no parameter is fitted."""
    made = []
    for traffic, mark in itertools.product(("READ", "APPEND"), (TRAIN, HELD_OUT)):
        own = [each for each in rows if each.fields["traffic"] == traffic and each.mark == mark]
        if not own:
            continue
        errors = [each.predicted / each.cycles - 1 for each in own]
        exact = sum(each.predicted == each.cycles for each in own)
        alone = [abs(each.alone / each.cycles - 1) for each in own]
        made.append(
            [
                f"{traffic}s, {mark}", len(own), exact, 0, *_errors(errors),
                f"{100 * statistics.mean(alone):.0f} %" if traffic == "READ" else "",
            ]
        )  # fmt: skip
    headings = ["trains", "rows", "exact", "parameters fitted on them", "mean error", "worst"]
    return table([*headings, "mean error of words alone"], made)


def _judges(found: Sequence[Layer]) -> str:
    """Tabulates layers that no fit has seen, with the kind of command that is most off."""
    rows = []
    for each in found:
        name, error = each.worst()
        fields = each.run.fields
        rows.append(
            [
                fields["tokens"], fields["context"], fields["latency"], each.run.total,
                round(each.predicted),
                f"{100 * each.error:+.2f} %", f"{name} {_percent(error)}",
            ]
        )  # fmt: skip
    headings = [
        "tokens", "cached tokens", "latency", "measured", "predicted", "error", "worst kind"
    ]  # fmt: skip
    return table(headings, rows) if rows else _NONE


def sections(
    found: Sequence[Layer],
    made: Sequence[Product],
    units: Sequence[Unit],
    rows: Sequence[Row],
    judged: Sequence[Layer] = (),
) -> dict[str, str]:
    """The sections of the page, by marker."""
    return {
        "sim_validate_judges": _judges(judged),
        "sim_validate_requests": _requests(rows),
        "sim_validate_units": _units(units),
        "sim_validate": _summary(found, made),
        "sim_validate_products": _products(made),
        "sim_validate_layers": _runs(found),
        "sim_validate_kinds": _kinds([each for each in found if each.run.mark == HELD_OUT]),
        "sim_validate_judge_kinds": _kinds(judged),
    }


def _described(found: Sequence[Layer]) -> list[dict[str, Any]]:
    return [
        {
            "run": each.run.name,
            "mark": each.run.mark,
            "measured": each.run.total,
            "predicted": each.predicted,
            "kinds": {name: list(pair) for name, pair in each.kinds.items()},
        }
        for each in found
    ]


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(
        prog="python -m sim.validate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--page", action="store_true", help="write the tables of docs/sim.md")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.page:
        parser.need_page(PAGE)
    try:
        found, units = layers(options.folder), load_units(options.folder)
        made = products(options.folder)
        texts = sections(
            found, made, units, load_rows(options.folder), judges(options.folder)
        )
    except (ConfigError, ArithmeticError) as error:
        print(f"sim.validate: {shown_error(error)}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(_described(found), indent=1))
        return 0
    for text in texts.values():
        print(text)
    if options.page:
        rewrite(PAGE, texts)
    return 0


if __name__ == "__main__":
    command.run("sim.validate", main)
