"""The rows that are there, with the settings they were made with; docs/accuracy/rows.json."""

import dataclasses
import json
import math
import statistics
from pathlib import Path
from typing import Any

from golden.files import replacing
from golden.llm.checkpoint import CheckpointError
from golden.llm.eval.accuracy.bench import Record, Row

_WINDOWS = 5  # fewer say nothing about chance


@dataclasses.dataclass(frozen=True)
class Spread:
    """Perplexities of a method's seeds on one text; losses: of every window, mean of the seeds."""

    values: tuple[float, ...]
    losses: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def standard_errors_below(self, other: "Spread") -> float | None:
        """Mean of (other's loss - own) of a window over its standard error, sd / sqrt(windows).

        None: fewer than 5 windows, other windows, or no difference at all.
        """
        if len(self.losses) < _WINDOWS or len(self.losses) != len(other.losses):
            return None
        differences = [b - a for a, b in zip(self.losses, other.losses, strict=True)]
        error = statistics.stdev(differences) / math.sqrt(len(differences))
        return statistics.fmean(differences) / error if error else None


@dataclasses.dataclass
class Report:
    """settings: model, texts, seq, tokens, seeds and the like, plain values; records by row.

    sweeps: name of the text of the tables that vary one thing, the first one or its beginning.
    """

    settings: dict[str, Any]
    records: dict[Row, Record]

    def texts(self, whole: bool) -> list[str]:
        """Names the texts of a table that is whole, or of a sweep."""
        if whole:
            return [each["name"] for each in self.settings["texts"]]
        return [self.settings["sweeps"]]

    @property
    def seeds(self) -> list[int]:
        return list(self.settings["seeds"])

    def of(self, text: str, method: str, seeds: bool = False) -> list[Record]:
        """Finished records of all seeds, or of the first alone."""
        chosen = self.seeds if seeds else self.seeds[:1]
        rows = (Row(text, method, seed) for seed in chosen)
        found = (self.records.get(row) for row in rows)
        return [record for record in found if record is not None and not record.failed]

    def failure(self, text: str, method: str) -> str:
        """The reason of the first seed that failed, or ""."""
        for seed in self.seeds:
            record = self.records.get(Row(text, method, seed))
            if record is not None and record.failed:
                return record.failed
        return ""

    def spread(self, text: str, method: str, seeds: bool = False) -> Spread | None:
        found = self.of(text, method, seeds)
        if not found:
            return None
        losses = zip(*(each.window_losses for each in found), strict=False)
        values = tuple(each.perplexity for each in found)
        return Spread(values, tuple(map(statistics.fmean, losses)))


def save_report(path: Path, report: Report) -> None:
    rows = [
        {**dataclasses.asdict(row), **dataclasses.asdict(record)}
        for row, record in sorted(
            report.records.items(), key=lambda item: dataclasses.astuple(item[0])
        )
    ]
    lines = ",\n".join(json.dumps(row, sort_keys=True) for row in rows)
    settings = json.dumps(report.settings, sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_text(f'{{"settings": {settings},\n"rows": [\n{lines}\n]}}\n')


def load_report(path: Path) -> Report:
    """CheckpointError in one line."""
    try:
        content = json.loads(path.read_text())
        records = {}
        for each in content["rows"]:
            row = Row(*(each.pop(field.name) for field in dataclasses.fields(Row)))
            records[row] = Record(**each)
        return Report(content["settings"], records)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path} does not hold rows of golden.llm.eval.accuracy") from None
