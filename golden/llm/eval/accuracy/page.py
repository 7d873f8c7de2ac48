"""docs/accuracy.md: only this module writes the text between its markers, from rows.

A page holds ``<!-- generated: NAME -->`` ... ``<!-- end generated -->``; NAME is ``settings``,
``orderings``, or a table of golden.llm.eval.accuracy.tables.
"""

from collections.abc import Iterable, Sequence

from golden.llm.eval.accuracy.bench import Record
from golden.llm.eval.accuracy.report import Report, Spread
from golden.llm.eval.accuracy.tables import CLAIMS, TABLES, Table, number

_NOT_RUN = "not run"
VERDICTS = {True: "reproduced", False: "**not reproduced**", None: "not evaluated"}


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]], right: int) -> str:
    """A table whose columns from ``right`` on are numbers."""
    rule = ["---" if i < right else "---:" for i in range(len(head))]
    cells = [head, rule, *([each.replace("|", "\\|") for each in row] for row in rows)]
    return "".join("| " + " | ".join(row) + " |\n" for row in cells)


def spread_text(spread: Spread) -> str:
    """The mean, and lowest and highest where they differ."""
    if spread.low == spread.high:
        return number(spread.mean)
    return f"{number(spread.mean)} ({number(spread.low)}..{number(spread.high)})"


def _cell(report: Report, text: str, method: str, seeds: bool) -> str:
    spread = report.spread(text, method, seeds)
    failure = report.failure(text, method)
    if failure:
        return f"failed: {failure}"
    return spread_text(spread) if spread else _NOT_RUN


def _difference(report: Report, text: str, method: str, seeds: bool) -> str:
    spread, plain = report.spread(text, method, seeds), report.spread(text, "fp32", seeds)
    if spread is None or plain is None:
        return ""
    difference = spread.mean - plain.mean
    return f"+{number(difference)}" if difference >= 1000 else f"{difference:+.3f}"


def _bits(records: list[Record]) -> str:
    """Mean of the first seed on every text."""
    kinds = ("weights", "activations", "kv")
    means = [sum(each.bits[kind] for each in records) / len(records) for kind in kinds]
    return " / ".join(f"{mean:.2f}" for mean in means)


def table(report: Report, which: Table) -> str:
    """One row for every entry; bits, seconds and memory of what has run."""
    texts = report.texts(which.whole)
    precisions = any(each.precision for each in which.entries)
    head = [*(["precision"] if precisions else []), "method", "spelt", "bits W / A / KV"]
    right = len(head) - 1
    for text in texts:
        head += [f"{text}", "- FP32"]
    head += ["calibrated", "run", "memory", *([f"paper: {which.paper}"] if which.paper else [])]
    rows = []
    for entry in which.entries:
        firsts = [each for text in texts for each in report.of(text, entry.method, False)]
        records = [each for text in texts for each in report.of(text, entry.method, which.seeds)]
        row = [entry.precision] if precisions else []
        row += [entry.label, f"`{entry.method}`", _bits(firsts) if firsts else ""]
        for text in texts:
            row.append(_cell(report, text, entry.method, which.seeds))
            row.append(_difference(report, text, entry.method, which.seeds))
        if records:
            row.append(f"{max(each.calibration_seconds for each in records):.0f} s")
            row.append(f"{sum(each.seconds for each in records) / len(records):.0f} s")
            row.append(f"{max(each.memory_bytes for each in records) / 2**30:.1f} GiB")
        else:
            row += ["", "", ""]
        rows.append([*row, *([entry.paper] if which.paper else [])])
    return _lines(head, rows, right)


def settings(report: Report) -> str:
    """Tells how the rows that are there were made, and how many are not."""
    own = report.settings
    records = list(report.records.values())
    done = [each for each in records if not each.failed]
    wanted = own["rows"]
    seconds = sum(
        each.calibration_seconds + (0 if each.same_seed is not None else each.seconds)
        for each in done
    )
    threads = sorted({each.threads for each in done})
    texts = ", ".join(f"{each['name']} (ids {each['sha256'][:12]})" for each in own["texts"])
    device = own["device"]
    if device == "cpu":
        device += f", threads: {', '.join(map(str, threads))}"
    calibration = "{windows} windows of {tokens} tokens of {text}, seeds ".format(
        **own["calibration"]
    ) + ", ".join(map(str, own["seeds"]))
    pairs = [
        ("model", f"{own['model']} (weights {own['fingerprint'][:12]})"),
        ("texts", texts),
        ("evaluated of each", f"{own['tokens']:,} tokens in windows of {own['seq']:,}"),
        ("calibration", calibration),
        ("of fits in Hessians, and with steps", "{windows} windows of {tokens} tokens".format(
            **own["calibration"].get("many", own["calibration"])
        )),
        ("device", device),
        ("versions", f"torch {own['torch']}, transformers {own['transformers']}"),
        ("rows", f"{len(done)} of {wanted} done, {len(records) - len(done)} failed"),
        ("time of these rows", f"{seconds / 60:.0f} minutes"),
        ("peak memory", f"{max((each.memory_bytes for each in done), default=0) / 2**30:.1f} GiB"),
    ]  # fmt: skip
    return _lines(("setting", "value"), pairs, 2)


def orderings(report: Report) -> str:
    """Every claim on every text: reproduced or not, with the figures."""
    several = {entry.method for each in TABLES if each.seeds for entry in each.entries}
    rows = []
    for claim in CLAIMS:
        places = [(text, False) for text in report.texts(claim.whole)]
        if claim.whole and len(report.seeds) > 1 and several.issuperset(claim.methods):
            places += [(text, True) for text in report.texts(False)]
        for text, seeds in places:
            verdict = claim.judge(lambda method: report.spread(text, method, seeds))  # noqa: B023
            where = f"{text}, {len(report.seeds)} seeds" if seeds else text
            rows.append((claim.text, claim.source, where, VERDICTS[verdict.holds], verdict.figures))
    return _lines(("what is said", "source", "text", "here", "figures"), rows, 5)


def sections(report: Report, plots: dict[str, str]) -> dict[str, str]:
    """Returns the page's sections by marker; plots: addresses, as the page gives them, by table."""
    found = {"settings": settings(report), "orderings": orderings(report)}
    for each in TABLES:
        made = table(report, each)
        if each.name in plots:
            made += f"\n![{each.title}]({plots[each.name]})\n"
        found[each.name] = made
    return found
