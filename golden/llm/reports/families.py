"""Methods on several models, side by side: ``python -m golden.llm.reports.families FILE ...``.

Each FILE is what ``golden.llm.eval -o FILE`` has kept of one model. A cell is the perplexity of a
method over that of ``fp32`` of the same model: the models differ in what they have learned.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from golden import command
from golden.markers import table

PAGE = Path(__file__).parents[3] / "docs" / "accuracy.md"
_BASE = "fp32"


def read(file: Path) -> dict[str, Any]:
    """A report. ConfigError in one line: it is none, or has no row of ``fp32``."""
    from golden.config import ConfigError

    try:
        report = json.loads(file.read_text())
        report = report.get("report", report)
        found = {row["method"]: row["perplexity"] for row in report["results"]}
        named = {name: report[name] for name in ("model", "text", "tokens", "seq")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} must be a report of golden.llm.eval -o: {error!r}") from None
    if _BASE not in found:
        raise ConfigError(f"{file} must have a row of {_BASE}, not {', '.join(found)} alone")
    return {**named, "rows": found}


def section(reports: Sequence[dict[str, Any]]) -> str:
    """The table: methods by models, and what each model gives unchanged."""
    head = ["method", *(f"{each['model']}, {Path(each['text']).stem}" for each in reports)]
    methods = dict.fromkeys(name for each in reports for name in each["rows"])
    rows = [["perplexity of fp32", *(f"{each['rows'][_BASE]:.3f}" for each in reports)]]
    for name in methods:
        if name != _BASE:
            found = [
                f"{each['rows'][name] / each['rows'][_BASE]:.3f}" if name in each["rows"] else ""
                for each in reports
            ]
            rows.append([f"`{name}`", *found])
    sizes = {(each["tokens"], each["seq"]) for each in reports}
    said = "; ".join(f"{tokens:,} tokens in windows of {seq}" for tokens, seq in sorted(sizes))
    return f"{table(head, rows)}\n{said}.\n"


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(
        prog="python -m golden.llm.reports.families",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("file", type=Path, nargs="+", help="kept by golden.llm.eval -o")
    parser.add_argument(
        "--page", type=Path, nargs="?", const=PAGE,
        help="write the section of FILE, or of docs/accuracy.md without one",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    from golden.config import ConfigError
    from golden.llm.reports.common import give

    try:
        give(options.page, {"families": section([read(file) for file in options.file])})
    except (ConfigError, OSError, ValueError) as error:
        print(f"families: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    command.run("golden.llm.reports.families", main)
