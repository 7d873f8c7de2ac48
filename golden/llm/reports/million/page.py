"""Sections of docs/accuracy.md on MILLION, each from rows alone."""

from collections.abc import Iterable
from typing import Any

from golden.llm.eval.accuracy.page import VERDICTS
from golden.llm.eval.accuracy.report import Report
from golden.llm.reports.million import channels as channel_report
from golden.llm.reports.million.claims import CLAIMS, UNTESTABLE, channels, lookup
from golden.llm.reports.million.stats import Measured, failure, measured, percent, sensitivity
from golden.llm.reports.million.tables import OUTLIERS, PLAIN, TABLES, Table
from golden.markers import table

_NOT_RUN = "not run"


def _texts(report: Report, which: Table) -> list[str]:
    names = report.texts(True)
    return names if which.whole else names[:1]


def _perplexity(found: Measured) -> str:
    low, high = min(found.values), max(found.values)
    if low == high:
        return f"{found.mean:.3f}"
    return f"{found.mean:.3f} ({low:.3f}..{high:.3f})"


def _predictions(report: Report, found: Iterable[Measured]) -> str:
    counts = {len(each.losses) * (report.settings["seq"] - 1) for each in found}
    return ", ".join(f"{each:,}" for each in sorted(counts))


def _table(report: Report, which: Table) -> str:
    """A line for each entry, all on the windows that each of them has."""
    texts = _texts(report, which)
    methods = [entry.method for entry in which.entries]
    by_text = {
        text: measured(report, text, methods, which.seeds, which.every_seed) for text in texts
    }
    head = ["method", "spelt", "bits of K and V"]
    for text in texts:
        head += [text, "above FP32"]
    head += ["seeds", "predictions", *([f"paper: {which.paper}"] if which.paper else [])]
    rows = []
    for number, entry in enumerate(which.entries):
        row = [entry.label, f"`{entry.method}`"]
        cells, every = [], []
        for text in texts:
            found = by_text[text][number]
            if found is None:
                reason = failure(report, text, entry.method)
                cells += [f"failed: {reason}" if reason else _NOT_RUN, ""]
                continue
            every.append(found)
            cells += [_perplexity(found), "" if entry.method == PLAIN else percent(found.against)]
        bits = f"{sum(each.kv for each in every) / len(every):.2f}" if every else ""
        seeds = str(max(len(each.values) for each in every)) if every else ""
        row += [bits, *cells, seeds, _predictions(report, every)]
        rows.append([*row, *([entry.paper] if which.paper else [])])
    return table(head, rows)


def _outliers(report: Report, which: Table) -> str:
    """Table III's form."""
    texts = _texts(report, which)
    head = ["method"]
    for text in texts:
        head += [text, "with 1 %", "sensitivity"]
    head += ["seeds", "predictions", "paper: sensitivity, LLaMA-2-7B, WikiText-2"]
    rows = []
    for pair in OUTLIERS:
        row, every = [pair.label], []
        for text in texts:
            both = (pair.without, pair.with_outliers)
            own, kept = measured(report, text, both, which.seeds)
            row += [_perplexity(each) if each else _NOT_RUN for each in (own, kept)]
            row.append(sensitivity(own, kept) if own and kept else "")
            every += [each for each in (own, kept) if each]
        seeds = sorted({len(each.values) for each in every})
        row += [", ".join(map(str, seeds)), _predictions(report, every), pair.paper]
        rows.append(row)
    return table(head, rows)


def _settings(report: Report) -> str:
    own = report.settings
    texts = ", ".join(f"{each['name']} (ids {each['sha256'][:12]})" for each in own["texts"])
    learned = "{windows} windows of {tokens} tokens of {text}, seeds ".format(**own["calibration"])
    records = [each for each in report.records.values() if not each.failed]
    seconds = sum(each.calibration_seconds + each.seconds for each in records)
    pairs = [
        ("model", f"{own['model']} (weights {own['fingerprint'][:12]}), head size 64"),
        ("texts", texts),
        ("windows", f"at most {own['windows']} of {own['seq']} tokens of each text"),
        ("calibration", learned + ", ".join(map(str, own["seeds"]))),
        ("bits", "at 32,768 tokens, codebooks of MILLION included"),
        ("device", f"{own['device']}, torch {own['torch']}, transformers {own['transformers']}"),
        ("rows", f"{len(records)} of {own['rows']} done"),
        ("time of these rows", f"{seconds / 60:.0f} minutes"),
    ]
    return table(("setting", "value"), pairs, align_right=False)


def _claims(report: Report, content: dict[str, Any] | None) -> str:
    rows = []
    for text, source, holds, figures in channels(content) if content else ():
        assert content is not None
        rows.append([text, source, content["settings"]["text"], VERDICTS[holds], figures])
    for claim in CLAIMS:
        names = report.texts(True)
        for name in names if claim.whole else names[:1]:
            verdict = claim.judge(lookup(report, name, claim.whole))
            rows.append([claim.text, claim.source, name, VERDICTS[verdict.holds], verdict.figures])
    for text, source, reason in UNTESTABLE:
        rows.append([text, source, "", "not testable here", reason])
    return table(("what is said", "source", "text", "here", "figures"), rows, align_right=False)


def sections(report: Report, content: dict[str, Any] | None) -> dict[str, str]:
    """Returns the page's sections by marker. content: the channels' file, where there is one."""
    made = {"million_settings": _settings(report), "million_claims": _claims(report, content)}
    for each in TABLES:
        form = _outliers if each.name == "million_outliers" else _table
        made[each.name] = form(report, each)
    if content:
        made["million_channels"] = channel_report.section(content)
    return made
