"""Measured cycles as JSON: one format for all commands that measure, and their table.

``python -m senbazuru.runs.cycles FILE...`` prints the figures next to golden's. A file is an object
with ``version`` and ``figures``. Each figure has exactly the fields of Figure.
"""

import argparse
import contextlib
import dataclasses
import importlib
import inspect
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from golden import command
from golden.config import Config, ConfigError
from golden.files import claimed, made_folder, replacing
from hdl.arguments import write_page
from hdl.registry import all_blocks
from tb.simulate.run import ROOT

VERSION = 1
FOLDER = ROOT / "build" / "cycles"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number of cycles.

    command : module that measured, such as ``senbazuru.runs.lane_rates``
    block : registered name of the block
    configuration : all fields of the block's configuration, as ``Config.describe`` gives them
    parameters : what the block was given: sizes, latencies of memory, shares of outliers
    span : from which event to which event the cycles count
    cycles : measured on the RTL, whole cycles
    bound : cycles that no implementation of this size goes below, or None
    predicted : cycles by golden's timing for the same span, or None where golden has no function
    predicted_by : that function, such as ``golden.kllm.timing.lane_cycles``, or None

    ValueError names the field that is wrong.
    """

    command: str
    block: str
    configuration: dict[str, Any]
    parameters: dict[str, int | float | str]
    span: str
    cycles: int
    bound: int | None = None
    predicted: int | None = None
    predicted_by: str | None = None

    def __post_init__(self) -> None:
        for name in ("command", "span"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                self._refuse(name, "a text", value)
        if not isinstance(self.block, str) or self.block not in all_blocks():
            self._refuse("block", "a registered block", self.block)
        for name, value in (("configuration", self.configuration), ("parameters", self.parameters)):
            if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
                self._refuse(name, "an object", value)
        for name, value in self.parameters.items():
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                self._refuse(f"parameters.{name}", "a number or a text", value)
            if isinstance(value, float) and not math.isfinite(value):
                self._refuse(f"parameters.{name}", "a finite number", value)
        _check_json("configuration", self.configuration)
        for name in ("cycles", "bound", "predicted"):
            value = getattr(self, name)
            if value is None and name != "cycles":
                continue
            least = 0 if name == "bound" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                self._refuse(name, f"{least} or more whole cycles", value)
        if (self.predicted is None) != (self.predicted_by is None):
            self._refuse("predicted_by", "given with predicted, and only then", self.predicted_by)
        if self.predicted_by is not None and not _is_function(self.predicted_by):
            self._refuse("predicted_by", "a function of golden's timing", self.predicted_by)

    def _refuse(self, field: str, wanted: str, value) -> None:
        raise ValueError(f"Figure.{field} must be {wanted}, not {value!r}")


def _check_json(field: str, value) -> None:
    """ValueError unless JSON gives ``value`` back: no NaN, no infinity, no key but texts."""
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        same = False
    if not same:
        raise ValueError(f"Figure.{field} must be values of JSON without NaN, not {value!r}")


def _is_function(name) -> bool:
    """Whether ``name`` is a function that a module ``golden.*.timing`` defines."""
    module, _, function = name.rpartition(".") if isinstance(name, str) else ("", "", "")
    if not (module.startswith("golden.") and module.endswith(".timing")):
        return False
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError:
        return False
    return inspect.isfunction(found) and found.__module__ == module


def predicted(function: Callable, cycles) -> dict[str, Any]:
    """The fields ``predicted`` and ``predicted_by`` of a Figure."""
    whole = int(cycles)
    if whole != cycles:
        raise ValueError(f"{function.__name__} must predict whole cycles, not {cycles}")
    return {"predicted": whole, "predicted_by": f"{function.__module__}.{function.__name__}"}


def _writable(text: str) -> Path:
    """The path of a file that ``save`` can write. ArgumentTypeError if not."""
    file = Path(text)
    try:
        if file.exists() and not file.is_file():
            raise argparse.ArgumentTypeError(f"must be a file, not {text!r}")
        with made_folder(file.parent), tempfile.TemporaryFile(dir=file.parent):
            pass
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise argparse.ArgumentTypeError(
            f"must be a file that can be written, not {text!r}: {reason}"
        ) from None
    return file


def add_option(parser: argparse.ArgumentParser) -> None:
    """``--json FILE``, by default ``build/cycles/COMMAND.json``.

    A measurement takes minutes. So the option refuses, before it, a file that cannot be written.
    """
    name = parser.prog.rpartition(".")[2]
    parser.add_argument(
        "--json", type=_writable, metavar="FILE", default=str(FOLDER / f"{name}.json"),
        help=f"file for the measured cycles (build/cycles/{name}.json)",
    )  # fmt: skip


@contextlib.contextmanager
def owned(parser: argparse.ArgumentParser, file: Path | None) -> Iterator[None]:
    """Within it no other command writes the ``file`` of ``--json``, whose folder is made.

    The parser refuses a file that another run has claimed. A measurement begins within it.
    """
    with contextlib.ExitStack() as outputs:
        if file is not None:
            try:
                outputs.enter_context(made_folder(file.parent))
                outputs.enter_context(claimed(file))
            except ConfigError as error:
                parser.error(f"--json: {error}")
        yield


def save(file: Path, figures: Sequence[Figure]) -> None:
    """Write ``figures`` to ``file``, whose folder is made."""
    text = {"version": VERSION, "figures": [dataclasses.asdict(figure) for figure in figures]}
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as part:
        part.write_text(json.dumps(text, indent=1, allow_nan=False) + "\n")


def give(options: argparse.Namespace, made: Mapping[str, str], figures: Sequence[Figure]) -> int:
    """Print the sections of a page, rewrite it with ``--page``, then save ``figures``; 0.

    The file comes last: one that can no longer be written costs the cycles alone.
    """
    for text in made.values():
        print(text)
    write_page(options.page, made)
    save(options.json, figures)
    return 0


def load(file: Path) -> list[Figure]:
    """The figures of ``file``; ValueError names the file and what is wrong in it."""
    try:
        return _load(file)
    except RecursionError:
        raise ValueError(f"{file}: must not be nested so deeply") from None


def _load(file: Path) -> list[Figure]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:  # no text, no JSON, a number of too many digits
        raise ValueError(f"{file}: {error}") from None
    if not isinstance(found, dict) or set(found) != {"version", "figures"}:
        raise ValueError(f"{file}: must be an object of version and figures")
    if type(found["version"]) is not int or found["version"] != VERSION:
        raise ValueError(f"{file}: version must be {VERSION}, not {found['version']!r}")
    if not isinstance(found["figures"], list):
        raise ValueError(f"{file}: figures must be a list, not {found['figures']!r}")
    names = {field.name for field in dataclasses.fields(Figure)}
    figures = []
    for n, fields in enumerate(found["figures"]):
        if not isinstance(fields, dict) or set(fields) != names:
            raise ValueError(f"{file}: figure {n} must have {', '.join(sorted(names))}")
        try:
            figures.append(Figure(**fields))
        except ValueError as error:
            raise ValueError(f"{file}: figure {n}: {error}") from None
    return figures


def described(config: Config) -> dict[str, Any]:
    """The configuration as JSON gives it back: lists for tuples."""
    return json.loads(json.dumps(config.describe()))


def _table(figures: Sequence[Figure]) -> Table:
    table = Table()
    for name in ("block", "parameters", "span"):
        table.add_column(name)
    for name in ("cycles", "golden", "difference", "bound"):
        table.add_column(name, justify="right")
    for figure in figures:
        golden = "" if figure.predicted is None else str(figure.predicted)
        difference = "" if figure.predicted is None else f"{figure.cycles - figure.predicted:+d}"
        parameters = ", ".join(f"{name} {value}" for name, value in figure.parameters.items())
        bound = "" if figure.bound is None else str(figure.bound)
        table.add_row(
            figure.block, parameters, figure.span, str(figure.cycles), golden, difference, bound
        )
    return table


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(
        prog="python -m senbazuru.runs.cycles", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        figures = [figure for file in options.files for figure in load(file)]
    except ValueError as error:
        print(f"senbazuru.runs.cycles: {error}", file=sys.stderr)
        return 2
    Console().print(_table(figures))
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.cycles", main)
