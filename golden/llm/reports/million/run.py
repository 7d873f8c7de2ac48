"""Runs the rows of the tables in parts: each part of a text is a row of ``Bench``, run once.

A run that is stopped, or a later one with more parts, continues from the parts that are there. The
report joins the parts that follow each other from the first on. Rows of an earlier report with the
same settings may replace their parts.
"""

import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from golden.config import ConfigError
from golden.llm.eval.accuracy.bench import Bench, Record, Row, digest
from golden.llm.eval.accuracy.report import Report
from golden.llm.methods import parse_all
from golden.llm.reports.million.tables import PLAIN, Table

# Settings that rows of one table share; texts apart, of which an earlier report may have fewer
# windows.
_SAME = ("fingerprint", "seq", "calibration", "device", "torch", "transformers")


def _is_calibrated(method: str) -> bool:
    return any(each.calibrated for each in parse_all(method))


def wanted_rows(tables: Iterable[Table], texts: Sequence[str], seeds: Sequence[int]) -> list[Row]:
    """Each row once, all of the first seed before the next. The reference comes first."""
    found: dict[Row, None] = {}
    tables = list(tables)
    for seed in seeds:
        for table in tables:
            for method in (PLAIN, *(entry.method for entry in table.entries)):
                if seed != seeds[0] and not (table.seeds and _is_calibrated(method)):
                    continue
                for text in texts if table.whole else texts[:1]:
                    found[Row(text, method, seed)] = None
    return list(found)


def joined(parts: Sequence[Record]) -> Record:
    """One record of parts that follow each other: their windows, times and mean bits."""
    losses = [each for part in parts for each in part.window_losses]
    windows = [len(part.window_losses) for part in parts]
    bits = {
        kind: statistics.fmean((part.bits[kind] for part in parts), windows)
        for kind in parts[0].bits
    }
    return dataclasses.replace(
        parts[0],
        perplexity=math.exp(statistics.fmean(losses)),
        predictions=sum(part.predictions for part in parts),
        bits=bits,
        calibration_seconds=max(part.calibration_seconds for part in parts),
        install_seconds=sum(part.install_seconds for part in parts),
        seconds=sum(part.seconds for part in parts),
        memory_bytes=max(part.memory_bytes for part in parts),
        window_losses=losses,
    )


def earlier_rows(
    report: Report, settings: Mapping[str, Any], texts: Mapping[str, list[Tensor]], part: int
) -> dict[Row, Record]:
    """The finished rows of a report that count as run under these settings.

    ConfigError: its settings or windows are others, or a row is not a whole number of parts. The
    code that made the rows is not compared.
    """
    for name in _SAME:
        if report.settings.get(name) != settings[name]:
            raise ConfigError(
                f"{name} of the earlier rows must be {settings[name]}, "
                f"not {report.settings.get(name)}"
            )
    for each in report.settings["texts"]:
        own = texts.get(each["name"], [])[: report.settings["windows"]]
        if digest(own) != each["sha256"]:
            raise ConfigError(
                f"text {each['name']} must begin with the {report.settings['windows']} windows "
                f"of the earlier rows (ids {each['sha256'][:12]})"
            )
    found = {row: each for row, each in report.records.items() if not each.failed}
    for row, each in found.items():
        if len(each.window_losses) % part:
            raise ConfigError(
                f"part must divide the {len(each.window_losses)} windows of the earlier row "
                f"{row.method}, not {part}"
            )
    return found


class Runner:
    """texts: all windows by name; part: windows of a part; bench: of the parts by ``in_parts``.

    earlier: rows whose windows count as run, by ``earlier_rows``.
    """

    def __init__(
        self,
        texts: dict[str, list[Tensor]],
        bench: Bench,
        part: int,
        earlier: Mapping[Row, Record] | None = None,
    ) -> None:
        self.texts = texts
        self.bench = bench
        self.part = part
        self.parts = min(map(len, texts.values())) // part
        self.earlier = dict(earlier or {})

    @staticmethod
    def in_parts(texts: dict[str, list[Tensor]], part: int) -> dict[str, list[Tensor]]:
        """Cuts texts into "NAME, part I"; ConfigError: a text is not a whole number of parts."""
        found = {}
        for name, windows in texts.items():
            if len(windows) % part:
                raise ConfigError(f"windows must be a multiple of {part}, not {len(windows)}")
            for first in range(0, len(windows), part):
                found[_part(name, first // part)] = windows[first : first + part]
        return found

    def record(self, row: Row) -> Record | None:
        """The parts that have run, or the failure of the first."""
        before = self.earlier.get(row)
        found = [before] if before else []
        for part in range(self._parts_before(row), self.parts):
            record = self.bench.stored(_of_part(row, part))
            if record is None or record.failed:
                if record is not None and not found:
                    return record
                break
            found.append(record)
        return joined(found) if found else None

    def _parts_before(self, row: Row) -> int:
        before = self.earlier.get(row)
        return len(before.window_losses) // self.part if before else 0

    def todo(self, rows: Sequence[Row]) -> Iterator[tuple[Row, int]]:
        """Parts that have not run: the first part of all rows, then the second."""
        for part in range(self.parts):
            for row in rows:
                if part >= self._parts_before(row) and not self.bench.done(_of_part(row, part)):
                    yield row, part

    def run(self, rows: Sequence[Row], seeds: Sequence[int], minutes: float | None) -> str:
        """Run what is left, with one line for each part; returns how it ended."""
        left = list(self.todo(rows))
        start = time.monotonic()
        failed = 0
        for number, (row, part) in enumerate(left, 1):
            if minutes is not None and time.monotonic() - start > 60 * minutes:
                return f"stopped after {minutes:g} minutes, {len(left) - number + 1} parts are left"
            begin = time.monotonic()
            own = _of_part(row, part)
            try:
                record = self.bench.run(own, seeds)
            except KeyboardInterrupt:
                return f"interrupted, {len(left) - number + 1} parts are left"
            failed += bool(record.failed)
            what = f"failed: {record.failed}" if record.failed else f"{record.perplexity:.3f}"
            line = f"[{number}/{len(left)}] {row.method}, {own.text}, seed {row.seed}: {what}"
            print(f"{line} ({time.monotonic() - begin:.0f} s)", file=sys.stderr, flush=True)
        return f"all parts have run, {failed} failed" if failed else "all parts are done"


def _of_part(row: Row, number: int) -> Row:
    return dataclasses.replace(row, text=_part(row.text, number))


def _part(name: str, number: int) -> str:
    return f"{name}, part {number + 1}"
