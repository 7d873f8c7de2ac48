"""The loss of accuracy of a chip's scheme: rows of golden.llm.eval, or a paper's figures.

    loss = perplexity of the method / perplexity of the model as it is - 1

``schemes.json`` names the method of each built-in chip. These are asked in order, and the first
that has the method answers:

| from | kind |
|---|---|
| files of ``--accuracy``, which golden.llm.eval -o has kept | measured |
| docs/accuracy, if the model is SmolLM2-135M | measured; extrapolated if the method is only near |
| the papers' figures, if the model is LLaMA-2-7B | paper |
| docs/accuracy, if ``--accuracy-of smollm2-135m`` is given | extrapolated |
"""

import dataclasses
import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from golden.config import ConfigError
from golden.llm.eval.accuracy.tables import TABLES
from golden.llm.reports.families import read

STAND_IN = "smollm2-135m"  # the model of docs/accuracy
_PAPERS = "llama-2-7b"  # the model of the papers' figures
_FOLDER = Path(__file__).resolve().parents[2] / "docs" / "accuracy"
_FILES = ("rows", "million", "vqllm", "qet")  # those that come first count
_TEXTS = ("WikiText-2", "C4", "C4, first 4,096 tokens")
_SCHEMES = Path(__file__).with_name("schemes.json")


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The loss of a scheme. ``loss`` is None where nothing has a row, and ``source`` says why.

    method : of golden.llm.eval, as it is spelt there; empty: there is none
    low, high : over seeds
    kind : measured, paper or extrapolated; empty without a loss
    """

    method: str
    source: str
    loss: float | None = None
    low: float | None = None
    high: float | None = None
    kind: str = ""


@functools.cache
def schemes() -> dict[str, dict[str, Any]]:
    """The scheme of each built-in chip."""
    found: dict[str, dict[str, Any]] = json.loads(_SCHEMES.read_text())
    return found


def _losses(rows: Sequence[Mapping[str, Any]], text: str, method: str) -> list[float]:
    """The losses of a method's seeds on a text; empty: no row."""
    found = [row for row in rows if row["text"] == text and not row["failed"] and row["perplexity"]]
    base = [row["perplexity"] for row in found if row["method"] == "fp32"]
    own = [row["perplexity"] for row in found if row["method"] == method]
    return [each / statistics.fmean(base) - 1 for each in own] if base else []


@functools.cache
def _reports() -> dict[str, dict[str, Any]]:
    """The files of docs/accuracy; empty in an installation, which has no pages."""
    files = {name: _FOLDER / f"{name}.json" for name in _FILES}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}


@functools.cache
def committed(method: str) -> Accuracy | None:
    """The row of docs/accuracy; None: there is none."""
    for name, report in _reports().items():
        for text in _TEXTS:
            if found := _losses(report["rows"], text, method):
                seeds = f"{len(found)} seeds" if len(found) > 1 else "one seed"
                return Accuracy(
                    method,
                    f"docs/accuracy/{name}.json: SmolLM2-135M, {text}, windows of "
                    f"{report['settings']['seq']:,} tokens, {seeds}",
                    statistics.fmean(found), min(found), max(found), "measured",
                )  # fmt: skip
    return None


def _near(scheme: Mapping[str, Any]) -> Accuracy | None:
    """The row of the method, or of one that is near it."""
    if found := committed(scheme["method"]):
        return found
    for method, difference in scheme.get("near", ()):
        if found := committed(method):
            return dataclasses.replace(
                found,
                method=scheme["method"],
                source=f"{found.source}, of {method}: {difference}",
                kind="extrapolated",
            )
    return None


@functools.cache
def _papers() -> dict[str, tuple[float, str]]:
    """Perplexities of LLaMA-2-7B on WikiText-2 by method, with the table of the paper."""
    made: dict[str, tuple[float, str]] = {}
    for table in TABLES:
        for entry in table.entries if table.paper else ():
            try:
                made.setdefault(entry.method, (float(entry.paper), table.title))
            except ValueError:
                continue  # no figure, or a bound
    return made


def _paper(scheme: Mapping[str, Any]) -> Accuracy | None:
    papers, name = _papers(), scheme.get("paper")
    if name not in papers:
        return None
    value, title = papers[name]
    loss = value / papers["fp16"][0] - 1
    source = f"{title}: {value:g} on WikiText-2, {papers['fp16'][0]:g} in FP16"
    return Accuracy(scheme["method"], source, loss, loss, loss, "paper")


@dataclasses.dataclass(frozen=True)
class Sources:
    """All that may answer for a model. ConfigError: a bad file, or no such stand-in.

    model : as sim calls it
    files : reports of golden.llm.eval -o, of this very model
    stand_in : empty, or the model of docs/accuracy
    """

    model: str
    files: tuple[Path, ...] = ()
    stand_in: str = ""

    def __post_init__(self) -> None:
        if self.stand_in not in ("", STAND_IN):
            raise ConfigError(f"--accuracy-of must be {STAND_IN}, not {self.stand_in!r}")
        _ = self._reports

    @functools.cached_property
    def _reports(self) -> list[tuple[Path, dict[str, Any]]]:
        return [(file, read(file)) for file in self.files]

    def _own(self, method: str) -> Accuracy | None:
        for file, report in self._reports:
            if method in report["rows"]:
                loss = report["rows"][method] / report["rows"]["fp32"] - 1
                source = (
                    f"{file}: {report['model']}, {Path(report['text']).name}, "
                    f"{report['tokens']:,} tokens"
                )
                return Accuracy(method, source, loss, loss, loss, "measured")
        return None

    def of(self, chip: str) -> Accuracy:
        """The loss of a chip's scheme."""
        scheme = schemes().get(chip)
        if scheme is None:
            return Accuracy("", "no method is known for a chip of a file")
        if "method" not in scheme:
            return Accuracy("", scheme["why"])
        found = self._own(scheme["method"])
        if found is None and self.model == STAND_IN:
            found = _near(scheme)
        if found is None and self.model == _PAPERS:
            found = _paper(scheme)
        if found is None and self.stand_in:
            found = _near(scheme)
            if found is not None:
                found = dataclasses.replace(
                    found, source=f"{found.source}; not of {self.model}", kind="extrapolated"
                )
        if found is None:
            lacking = "" if _reports() else " (an installation has no docs/accuracy)"
            return Accuracy(
                scheme["method"], f"no row of {scheme['method']} for {self.model}{lacking}"
            )
        return found
