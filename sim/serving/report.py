"""Results of a run as a table, JSON, CSV and SVG."""

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from golden.files import replacing
from sim.engine import NOT_SCALED
from sim.run import UNKNOWN
from sim.serving.outcome import Outcome, Served
from sim.svg import Axis, Line, LineChart, page


@dataclasses.dataclass(frozen=True)
class Result:
    """A chip's run. figures: those of ``sim.serving.metrics.summary`` and what was asked."""

    hardware: str
    outcome: Outcome
    figures: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """Describes the result as JSON values, with the samples of the state over time."""
        samples = [list(each) for each in self.outcome.samples]
        return {"hardware": self.hardware, **self.figures, "samples": samples}


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "-"
    if unit == "%":
        return f"{100 * value:.1f} %"
    if unit == "s" and value < 1:
        return f"{1e3 * value:.3g} ms"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {unit}".rstrip()


def _spread(found: dict[str, float] | None) -> str:
    if found is None:
        return "-"
    return " / ".join(_number(found[name], "s") for name in ("mean", "p50", "p90", "p99"))


def _square(area: float | str) -> str:
    return area if isinstance(area, str) else f"{area:.2f}"


def _rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    goodput, kv, joules = figures["goodput"], figures["kv"], figures["joules_per_token"]
    limits = {"first word": goodput["limit_to_first"], "word": goodput["limit_per_token"]}
    given = ", ".join(f"{name} {_number(s, 's')}" for name, s in limits.items() if s is not None)
    rows = [
        ("finished / requests", f"{figures['finished']:,} / {figures['requests']:,}"),
        *((f"refused: {why}", f"{count:,}") for why, count in figures["refused"].items()),
        ("output tokens/s", _number(figures["tokens_per_second"])),
        ("requests/s", _number(figures["requests_per_second"])),
        ("time", _number(figures["seconds"], "s")),
        ("busy", _number(figures["busy_share"], "%")),
        ("first word: mean / p50 / p90 / p99", _spread(figures["to_first"])),
        ("word: mean / p50 / p90 / p99", _spread(figures["per_token"])),
        ("request: mean / p50 / p90 / p99", _spread(figures["latency"])),
    ]
    if given:
        rate = _number(goodput["requests_per_second"], "requests/s")
        rows.append((f"goodput: {given}", f"{rate}, {_number(goodput['share'], '%')}"))
    if joules == NOT_SCALED:
        rows.append(("J per output token", NOT_SCALED))
    elif joules is not None:
        low, high = _number(joules["low"]), _number(joules["high"])
        rows.append(("J per output token", f"{_number(joules['value'])} ({low} to {high})"))
    batch = figures["batch"]
    capacity = kv["capacity_bytes"] / 1e9
    on_chip, areas = figures["on_chip_bytes"], figures["area_mm2"]
    rows += _deployed(figures)
    rows += [
        ("batch: mean / peak", f"{_number(batch['mean_busy'])} / {batch['peak']:,}"),
        ("memory for K and V", f"{capacity:.4g} GB, {kv['pages']:,} pages"),
        ("a page, of all layers", f"{kv['page_bytes']:,.0f} B, {kv['page_tokens']:,} tokens"),
        (
            "stored bits of K / V, a request of mean length",
            f"{kv['k_bits']:.2f} / {kv['v_bits']:.2f}",
        ),
        (
            "occupied: mean / peak",
            f"{_number(kv['mean_busy_share'], '%')} / {_number(kv['peak_share'], '%')}",
        ),
        ("preemptions", f"{figures['preemptions']:,}"),
        ("tokens computed again", f"{figures['recomputed_tokens']:,}"),
        ("passes", ", ".join(f"{kind} {n:,}" for kind, n in figures["passes"].items()) or "-"),
        ("MB on chip", UNKNOWN if on_chip is None else f"{on_chip / 1e6:.2f}"),
        ("mm2", ", ".join(f"{_square(mm2)} ({kind})" for kind, mm2 in areas.items()) or UNKNOWN),
    ]
    return rows


def _deployed(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of a deployment; none where it is one chip."""
    found, policy, prefix = figures["deployment"], figures["policy"], figures["prefix"]
    prefill, rows = found["prefill"], []
    if found["host_seconds"]:
        rows.append(("host of each pass", _number(found["host_seconds"], "s")))
    if found["replicas"] > 1:
        most = " / ".join(f"{n:,}" for n in found["requests_of_replicas"][:8])
        rows.append((f"requests of {found['replicas']} chips, {found['router']}", most))
    if found["link_gb_per_second"] is not None:
        link = f"{found['link_gb_per_second']:g} GB/s, {_number(found['link_latency'], 's')}"
        rows.append(("tensor x pipeline", f"{found['tensor']} x {found['pipeline']}, {link}"))
    if policy["prefix_block"]:
        hits = f"{prefix['hit_requests']:,} requests, {prefix['hit_tokens']:,} tokens"
        rows.append((f"found in blocks of {policy['prefix_block']:,} tokens", hits))
    if policy["drafts"]:
        seen = f"{_number(figures['words_per_step'])} ({found['expected_words_per_step']:.4g})"
        rows.append((f"words of a step with {policy['drafts']} drafts (expected)", seen))
    if prefill is not None:
        link = f"{prefill['kv_gb_per_second']:g} GB/s, {_number(prefill['kv_latency'], 's')}"
        rows.append((f"prefill: {prefill['chips']:,} {prefill['hardware']}", link))
        rows.append(("prefill busy", _number(prefill["busy_share"], "%")))
    return rows


def print_table(title: str, results: Sequence[Result]) -> None:
    """A row per figure, a column per chip."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left")
    table.add_column("")
    shown = [dict(_rows(each.figures)) for each in results]
    for each in results:
        table.add_column(escape(each.hardware), justify="right")
    for name in dict.fromkeys(name for rows in shown for name in rows):
        table.add_row(escape(name), *(escape(rows.get(name, "0")) for rows in shown))
    # Piped output has no width of its own.
    console = Console()
    console = console if console.is_terminal else Console(width=100 + 40 * len(results))
    console.print(table)


_COLUMNS = (
    "hardware", "request", "arrival", "prompt", "output", "refused", "entered", "first", "end",
    "to_first", "per_token", "latency", "preempted",
)  # fmt: skip


def _row(hardware: str, each: Served) -> list[Any]:
    asked = each.request
    times = (each.entered, each.first, each.end, each.to_first, each.per_token, each.latency)
    return [
        hardware, asked.number, f"{asked.arrival:.6f}", asked.prompt, asked.output, each.refused,
        *("" if time is None else f"{time:.6f}" for time in times), each.preempted,
    ]  # fmt: skip


def write_csv(file: Path, results: Sequence[Result]) -> None:
    """A row per request and chip; seconds with six digits, empty where there is none."""
    with replacing(file) as part, part.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for result in results:
            writer.writerows(_row(result.hardware, each) for each in result.outcome.served)


def _shares(values: Sequence[float | None]) -> list[tuple[float, float]]:
    """Share of the values at or below each; 512 points at most."""
    ordered = sorted(value for value in values if value is not None)
    count = len(ordered)
    places = sorted({max(round(count * n / 512) - 1, 0) for n in range(513)}) if count else []
    return [(ordered[at], 100 * (at + 1) / count) for at in places]


def write_plot(file: Path, results: Sequence[Result]) -> None:
    """Latencies as shares of the requests; batch and occupied pages over time."""
    share = Axis("% of requests", low=0, high=100)
    time = Axis("s since the first arrival", low=0)

    def chart(title: str, x: Axis, y: Axis, points: Sequence[Any]) -> LineChart:
        lines = [Line(each.hardware, p) for each, p in zip(results, points, strict=True)]
        return LineChart(title, x, y, lines)

    served = [each.outcome.served for each in results]
    states = [each.outcome for each in results]
    charts = [
        chart("Time to the first word", Axis("s", is_log=True), share,
              [_shares([s.to_first for s in each]) for each in served]),
        chart("Time per word after the first", Axis("s", is_log=True), share,
              [_shares([s.per_token for s in each]) for each in served]),
        chart("Requests with pages", time, Axis("requests", low=0),
              [[(s.at, s.batch) for s in each.samples] for each in states]),
        chart("Occupied pages of K and V", time, Axis("% of pages", low=0),
              [[(s.at, 100 * s.pages / each.pages) for s in each.samples] for each in states]),
    ]  # fmt: skip
    with replacing(file) as part:
        part.write_text(page(charts))
