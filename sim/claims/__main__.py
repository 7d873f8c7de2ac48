"""``python -m sim.claims``: every claim about whole chips next to the simulator's interval."""

import argparse
import json
import re
import sys
from collections.abc import Sequence

from golden import command
from golden.config import ConfigError
from golden.markers import rewrite, table
from sim.claims import (
    inventory,
    kllm,
    kllm_batches,
    kllm_tables,
    million,
    oaken,
    oaken_accuracy,
    oaken_motivation,
    oaken_tables,
    oaken_throughput,
    oaken_traces,
    vqllm,
)
from sim.claims.claim import STATUSES, Claim, Judged, constants_of, judge, parts_of
from sim.claims.kllm import by_model
from sim.engine import shown_error
from sim.engines.kllm import Kllm
from sim.kllm.units import FITTED

PAGE = inventory.DOCS / "claims.md"
INVENTORY = inventory.DOCS / "claims-inventory.md"
CLAIMS: list[Claim] = [
    *kllm.CLAIMS,
    *kllm_batches.CLAIMS,
    *kllm_tables.CLAIMS,
    *oaken_motivation.CLAIMS,
    *oaken.CLAIMS,
    *oaken_throughput.CLAIMS,
    *oaken_accuracy.CLAIMS,
    *oaken_traces.CLAIMS,
    *oaken_tables.CLAIMS,
    *million.CLAIMS,
    *vqllm.CLAIMS,
]


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _interval(found: Judged) -> str:
    if found.interval is None:
        return ""
    if found.claim.trend:
        answers = [value for value in found.values.values() if value == value]
        return f"{sum(map(bool, answers))} of {len(answers)}"
    low, high = (_number(each) for each in found.interval)
    return low if low == high else f"{low} .. {high}"


def _fitted(claim: Claim) -> int:
    """Fitted constants of the chips that the variants name, the most of a variant."""
    most = 0
    for variant in claim.variants:
        count = sum(each.kind == "fitted" for each in constants_of(variant))
        count += sum(len(FITTED) for each in parts_of(variant) if isinstance(each, Kllm))
        most = max(most, count)
    return most


def _row(found: Judged) -> list[str]:
    claim = found.claim
    unit = f" {claim.unit}" if claim.unit else ""
    claimed = "yes" if claim.trend else f"{_number(claim.claimed)}{unit}"
    reason = claim.reason
    if found.missing:
        first = next(iter(found.missing.values()))
        reason = f"{reason}; {first}" if reason else first
    return [
        claim.figure, claim.what, claimed, _interval(found), str(_fitted(claim)),
        str(len(claim.variants)), found.status, reason,
    ]  # fmt: skip


def _place(claim: Claim) -> tuple[int, int, str]:
    """Figures by number, then tables, then the text."""
    found = re.match(r"(\d+)(.*)", claim.figure)
    if found:
        return 0, int(found[1]), found[2]
    return (1 if claim.figure.startswith("Table") else 2), 0, claim.figure


_HEAD = ("figure", "claim", "claimed", "ours", "fitted", "variants", "status", "reason")


def rows(judged: Sequence[Judged]) -> dict[str, str]:
    """The page's sections: a table for each paper, and how many claims have each status."""
    made = {}
    papers = list(dict.fromkeys(each.claim.paper for each in judged))
    for paper in papers:
        found = [each for each in judged if each.claim.paper == paper]
        shown = [_row(each) for each in sorted(found, key=lambda each: _place(each.claim))]
        name = f"claims_{paper.lower().replace('-', '')}"
        made[name] = table(_HEAD, shown, align_right=False)
    counts = []
    for paper in papers:
        for kind, trend in (("numbers", False), ("trends", True)):
            own = [e.status for e in judged if (e.claim.paper, e.claim.trend) == (paper, trend)]
            if own:
                counts.append([f"{paper}, {kind}", *(own.count(each) for each in STATUSES)])
    made["claims_summary"] = table(["paper", *STATUSES], counts)
    return made


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(
        prog="python -m sim.claims", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--paper", choices=sorted({claim.paper for claim in CLAIMS}))
    parser.add_argument("--json", action="store_true", help="print JSON, all variants")
    parser.add_argument(
        "--page", action="store_true",
        help="write the tables of docs/claims.md and docs/claims-inventory.md",
    )  # fmt: skip
    options: argparse.Namespace = parser.parse_args(arguments)
    if options.page:
        parser.need_page(PAGE)
    if options.page and options.paper:
        parser.error("--page must be of all papers, without --paper")
    say = command.elapsed(lambda text: print(text, file=sys.stderr))
    chosen = [each for each in CLAIMS if options.paper in (None, each.paper)]
    judged = []
    try:
        entries = inventory.entries_of()
        inventory.check(entries, CLAIMS, inventory.DOCS if PAGE.is_file() else None)
        for number, claim in enumerate(chosen, 1):
            judged.append(judge(claim))
            if sys.stderr.isatty():
                say(f"{number} of {len(chosen)}: {claim.what}")
    except (ConfigError, ArithmeticError) as error:
        print(f"sim.claims: {shown_error(error)}", file=sys.stderr)
        return 2
    if options.json:
        print(
            json.dumps(
                [
                    {"paper": e.claim.paper, "figure": e.claim.figure, "what": e.claim.what,
                     "claimed": e.claim.claimed, "status": e.status, "missing": e.missing,
                     "values": {k: v for k, v in e.values.items() if v == v}}
                    for e in judged
                ],
                indent=1,
            )
        )  # fmt: skip
        return 0
    made = rows(judged)
    if options.paper in (None, "KLLM"):
        made["claims_kllm_models"] = by_model()
    for text in made.values():
        print(text)
    if options.page:
        rewrite(PAGE, made)
        rewrite(INVENTORY, inventory.sections(entries, judged))
    return 0


if __name__ == "__main__":
    command.run("sim.claims", main)
