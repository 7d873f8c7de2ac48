"""VQ against element-wise methods: ``python -m golden.eval.reports.vqllm --text NAME=FILE``.

VQ-LLM, Figure 2, at counted bits of SmolLM2's matrices. Rows run in parts, each part once.
"""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from golden import command
from golden.eval.accuracy.arguments import PAGE, ROOT
from golden.eval.reports.common import (
    add_row_options,
    check_rows,
    fits,
    give,
    loaded,
    settings,
    status,
    texts_of,
)
from golden.eval.reports.million.tables import PLAIN, Entry, Table
from golden.markers import table

if TYPE_CHECKING:
    from golden.eval.accuracy.report import Report
    from golden.eval.reports.million.run import Runner

__all__ = ["ROWS", "TABLES", "main", "sections"]

ROWS = "vqllm.json"

TABLES = (
    Table(
        "vqllm_weights",
        (
            Entry(PLAIN, "FP32"),
            Entry("gptq-like-w3a16", "after GPTQ, 3 bits, a channel's scale"),
            Entry("gptq-like-w3a16:group=64", "after GPTQ, 3 bits, groups of 64"),
            Entry("squeezellm-like-w3a16", "after SqueezeLLM, 3 bits"),
            Entry("aqlm3", "after AQLM, <8, 4096, 2>"),
            Entry("aqlm3:feedback=true", "the same, with error feedback"),
            Entry("gptvq3", "after GPTVQ, <2, 64, 1>"),
            Entry("gptq-like-w2a16", "after GPTQ, 2 bits, a channel's scale"),
            Entry("gptq-like-w2a16:group=64", "after GPTQ, 2 bits, groups of 64"),
            Entry("squeezellm-like-w2a16", "after SqueezeLLM, 2 bits"),
            Entry("gptvq2", "after GPTVQ, <4, 256, 1>"),
            Entry("aqlm2x8", "after AQLM, <8, 256, 2>"),
            Entry("aqlm2x8:feedback=true", "the same, with error feedback"),
        ),
        whole=True,
        seeds=True,
    ),
    Table(
        "vqllm_kv",
        (
            Entry(PLAIN, "FP32"),
            Entry("kivi-like", "after KIVI, 4 bits"),
            Entry("kvquant-like", "after KVQuant, 4 bits"),
            Entry("million-4b", "MILLION, one pair of codebooks"),
            Entry("cq4", "after CQ, <2, 256, 1>"),
            Entry("cq4:fisher=true", "the same, Fisher weights"),
            Entry("kivi-like:bits=2", "after KIVI, 2 bits"),
            Entry("kvquant-like:bits=2", "after KVQuant, 2 bits"),
            Entry("million-2b", "MILLION, one pair of codebooks"),
            Entry("cq2", "after CQ, <4, 256, 1>"),
            Entry("cq2:fisher=true", "the same, Fisher weights"),
        ),
        whole=True,
        seeds=True,
    ),
)
_KINDS = {"vqllm_weights": "weights", "vqllm_kv": "kv"}
# A head's codebook of 256 entries needs 39 tokens for each, so 39 windows of 256 at least.
_LEARNED = {"vqllm_weights": 8, "vqllm_kv": 40}


def _settings(report: "Report") -> str:
    own = report.settings
    records = [each for each in report.records.values() if not each.failed]
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
        ("rows", f"{len(records)} of {own['rows']} done"),
        ("time of these rows", f"{seconds / 60:.0f} minutes"),
    ]
    return table(("setting", "value"), pairs, align_right=False)


def _section(report: "Report", which: Table) -> str:
    """A line for each entry that has run, all on the windows that each of these has."""
    from golden.eval.accuracy.bench import Row
    from golden.eval.reports.million.stats import failure, measured, percent

    texts = report.texts(True)
    run = [each for each in which.entries if report.of(texts[0], each.method)]
    head = ["method", "spelt", "bits"]
    for text in texts:
        head += [text, "above FP32"]
    rows: list[list[str]] = []
    by_text = {
        text: measured(report, text, [each.method for each in run], which.seeds) for text in texts
    }
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
        wide = f"{bits[_KINDS[which.name]]:.3f}"
        rows.append([entry.label, f"`{entry.method}`", wide, *cells, str(seeds)])
    return table([*head, "seeds"], rows)


def sections(report: "Report") -> dict[str, str]:
    """By marker."""
    made = {"vqllm_settings": _settings(report)}
    return made | {each.name: _section(report, each) for each in TABLES}


def _arguments() -> argparse.ArgumentParser:
    parser = command.Parser(
        prog="python -m golden.eval.reports.vqllm",
        description="Run VQ and element-wise methods in parts, and write their sections of a page.",
    )
    parser.add_argument(
        "--table", nargs="+", choices=[each.name for each in TABLES], help="only these"
    )
    add_row_options(parser, PAGE, ROOT / "build" / "vqllm", windows=8, seeds=(0,))
    return parser


def _runners(options: argparse.Namespace) -> tuple[dict[str, "Runner"], dict[str, Any]]:
    """A runner by the name of its table, and the settings of all rows."""
    from golden.checkpoint import windows
    from golden.eval.accuracy.bench import Bench
    from golden.eval.reports.million.run import Runner

    checkpoint = loaded(options)
    first, texts = texts_of(options, checkpoint)
    parts = Runner.in_parts(texts, options.part)
    runners = {}
    for name, count in _LEARNED.items():
        learned = windows(checkpoint, first, count, options.calibration_tokens, options.skip)
        bench = Bench(checkpoint, parts, learned, options.work, 1)
        runners[name] = Runner(texts, bench, options.part)
    calibration = {_KINDS[name]: count for name, count in _LEARNED.items()}
    return runners, settings(options, bench, texts, calibration, TABLES)


def _run(options: argparse.Namespace) -> int:
    from golden.eval.accuracy.report import Report, save_report
    from golden.eval.reports.million.run import wanted_rows

    runners, own = _runners(options)
    names = [each["name"] for each in own["texts"]]
    report = Report(own, {})
    ends = []
    for which in TABLES:
        runner = runners[which.name]
        rows = wanted_rows([which], names, options.seeds)
        if not options.table or which.name in options.table:
            chosen = [row for row in rows if fits(row.method, options.row)]
            ends.append(runner.run(chosen, options.seeds, options.minutes))
        report.records |= {row: found for row in rows if (found := runner.record(row))}
    folder = options.page.with_suffix("") if options.page else options.work
    save_report(folder / ROWS, report)
    give(options.page, sections(report))
    print(f"vqllm: {', '.join(ends)}", file=sys.stderr)
    return 130 if any(end.startswith("interrupted") for end in ends) else 0


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, 130 when interrupted, or 2 after one line on stderr."""
    options = _arguments().parse_args(arguments)

    def run() -> int:
        from golden.eval.accuracy.report import load_report

        if options.page_only:
            page = options.page or PAGE
            give(page, sections(load_report(page.with_suffix("") / ROWS)))
            return 0
        check_rows(options)
        return _run(options)

    return status("vqllm", run)


if __name__ == "__main__":
    command.run("golden.eval.reports.vqllm", main)
