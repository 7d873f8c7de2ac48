"""Commands whose tables have perplexity next to counted bits, each row run once, in parts."""

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from golden import command
from golden.llm.eval.accuracy.arguments import PAGE, ROOT
from golden.llm.reports.common import (
    add_row_options,
    check_rows,
    fits,
    give,
    loaded,
    settings,
    status,
    texts_of,
)
from golden.llm.reports.million.tables import PLAIN, Table
from golden.markers import table

if TYPE_CHECKING:
    from golden.llm.eval.accuracy.bench import Row
    from golden.llm.eval.accuracy.report import Report
    from golden.llm.reports.million.run import Runner

# Windows of the calibration by kind. A head's codebook of 256 entries needs 39 tokens for each, so
# 39 windows of 256 at least.
LEARNED = {"weights": 8, "kv": 40}
# Settings that runs of one page may differ in.
_OF_A_RUN = ("seeds", "rows")


@dataclasses.dataclass(frozen=True)
class Counted:
    """name: of the command and of its file of rows; kinds: of each table, ``weights`` or ``kv``."""

    name: str
    description: str
    tables: tuple[Table, ...]
    kinds: Mapping[str, str]

    @property
    def rows(self) -> str:
        """The file of finished rows, in the page's folder."""
        return f"{self.name}.json"

    def sections(self, report: "Report") -> dict[str, str]:
        """Returns the page's sections by marker."""
        made = {f"{self.name}_settings": _settings(report, self._wanted(report))}
        return made | {each.name: self._section(report, each) for each in self.tables}

    def _wanted(self, report: "Report") -> list["Row"]:
        """The rows of all tables at the report's texts and seeds."""
        from golden.llm.reports.million.run import wanted_rows

        names = [each["name"] for each in report.settings["texts"]]
        return wanted_rows(self.tables, names, report.settings["seeds"])

    def _section(self, report: "Report", which: Table) -> str:
        """A line for each entry that has run, all on the windows that each of these has."""
        from golden.llm.eval.accuracy.bench import Row
        from golden.llm.reports.million.stats import failure, measured, percent

        texts = report.texts(True)
        run = [each for each in which.entries if report.of(texts[0], each.method)]
        head = ["method", "spelt", "bits"]
        rows: list[list[str]] = []
        by_text = {
            text: measured(report, text, [each.method for each in run], which.seeds)
            for text in texts
        }
        for text, own in by_text.items():
            # Tables of one page may have other windows, and so another FP32.
            count = next((len(each.losses) for each in own if each), 0)
            head += [f"{text}, {count} windows", "above FP32"]
        for number, entry in enumerate(run):
            cells: list[str] = []
            seeds = 0
            for text in texts:
                found = by_text[text][number]
                if found is None:
                    cells += [failure(report, text, entry.method) or "not run", ""]
                    continue
                low, high = min(found.values), max(found.values)
                several = f" ({low:.3f}..{high:.3f})" if low < high else ""
                cells += [
                    f"{found.mean:.3f}{several}",
                    "" if entry.method == PLAIN else percent(found.against),
                ]
                seeds = max(seeds, len(found.values))
            bits = report.records[Row(texts[0], entry.method, report.seeds[0])].bits
            wide = f"{bits[self.kinds[which.name]]:.3f}"
            rows.append([entry.label, f"`{entry.method}`", wide, *cells, str(seeds)])
        return table([*head, "seeds"], rows)

    def _arguments(self) -> argparse.ArgumentParser:
        parser = command.Parser(
            prog=f"python -m golden.llm.reports.{self.name}", description=self.description
        )
        parser.add_argument(
            "--table", nargs="+", choices=[each.name for each in self.tables], help="only these"
        )
        add_row_options(parser, PAGE, ROOT / "build" / self.name, windows=8, seeds=(0,))
        return parser

    def _runners(self, options: argparse.Namespace) -> tuple[dict[str, "Runner"], dict[str, Any]]:
        """A runner by the kind of its tables, and the settings of all rows."""
        from golden.llm.checkpoint import windows
        from golden.llm.eval.accuracy.bench import Bench
        from golden.llm.reports.million.run import Runner

        checkpoint = loaded(options)
        first, texts = texts_of(options, checkpoint)
        parts = Runner.in_parts(texts, options.part)
        runners = {}
        for kind, count in LEARNED.items():
            learned = windows(checkpoint, first, count, options.calibration_tokens, options.skip)
            bench = Bench(checkpoint, parts, learned, options.work, 1)
            runners[kind] = Runner(texts, bench, options.part)
        return runners, settings(options, bench, texts, LEARNED, self.tables)

    def _run(self, options: argparse.Namespace) -> int:
        from golden.llm.eval.accuracy.report import save_report
        from golden.llm.reports.million.run import wanted_rows

        runners, own = self._runners(options)
        names = [each["name"] for each in own["texts"]]
        folder = options.page.with_suffix("") if options.page else options.work
        _continued(folder / self.rows, own)  # other settings are refused before a row runs
        ends = []
        for which in self.tables:
            if not options.table or which.name in options.table:
                rows = wanted_rows([which], names, options.seeds)
                chosen = [row for row in rows if fits(row.method, options.row)]
                runner = runners[self.kinds[which.name]]
                ends.append(runner.run(chosen, options.seeds, options.minutes))
        options.work.mkdir(parents=True, exist_ok=True)
        # Another run may have saved rows meanwhile, and may be about to.
        with filelock.FileLock(options.work / "lock"):
            report = _continued(folder / self.rows, own)
            for which in self.tables:
                runner = runners[self.kinds[which.name]]
                for row in wanted_rows([which], names, options.seeds):
                    found, kept = runner.record(row), report.records.get(row)
                    if found and (not kept or len(found.window_losses) >= len(kept.window_losses)):
                        report.records[row] = found
            report.settings["rows"] = len(self._wanted(report))
            save_report(folder / self.rows, report)
            give(options.page, self.sections(report))
        print(f"{self.name}: {', '.join(ends)}", file=sys.stderr)
        return 130 if any(end.startswith("interrupted") for end in ends) else 0

    def main(self, arguments: list[str] | None = None) -> int:
        """The command line; 0, 130 when interrupted, or 2 after one line on stderr."""
        options = self._arguments().parse_args(arguments)

        def run() -> int:
            from golden.llm.eval.accuracy.report import load_report

            if options.page_only:
                page = options.page or PAGE
                give(page, self.sections(load_report(page.with_suffix("") / self.rows)))
                return 0
            check_rows(options)
            return self._run(options)

        return status(self.name, run)


def _continued(file: Path, own: dict[str, Any]) -> "Report":
    """The rows of ``file``, if it is there, under the settings ``own``, with the seeds of both.

    CheckpointError: they were made with another setting, and a page has one.
    """
    from golden.llm.checkpoint import CheckpointError
    from golden.llm.eval.accuracy.report import Report, load_report

    if not file.exists():
        return Report(dict(own), {})
    before = load_report(file)
    for name in sorted(own.keys() - set(_OF_A_RUN)):
        if before.settings.get(name) != own[name]:
            raise CheckpointError(f"{file} holds rows with other {name}: move the file away")
    # Sections begin with the first seed, so that of the earlier rows stays the first.
    seeds = dict.fromkeys([*before.settings["seeds"], *own["seeds"]])
    return Report(own | {"seeds": list(seeds)}, dict(before.records))


def _settings(report: "Report", wanted: Sequence["Row"]) -> str:
    own = report.settings
    found = (report.records.get(row) for row in wanted)
    records = [each for each in found if each and not each.failed]
    seconds = sum(each.calibration_seconds + each.seconds for each in records)
    texts = ", ".join(f"{each['name']} (ids {each['sha256'][:12]})" for each in own["texts"])
    learned = (
        "{weights} windows of {tokens} tokens for weights, {kv} for K and V, of {text}, seeds "
    ).format(**own["calibration"])
    pairs = [
        ("model", f"{own['model']} (weights {own['fingerprint'][:12]})"),
        ("texts", texts),
        ("windows", f"at most {own['windows']} of {own['seq']} tokens of each text"),
        ("calibration", learned + ", ".join(map(str, own["seeds"]))),
        ("bits", "scales, codebooks and outliers included; of K and V at 32,768 tokens"),
        ("device", f"{own['device']}, torch {own['torch']}, transformers {own['transformers']}"),
        ("rows", f"{len(records)} of {len(wanted)} done"),
        ("time of these rows", f"{seconds / 60:.0f} minutes"),
    ]
    return table(("setting", "value"), pairs, align_right=False)
