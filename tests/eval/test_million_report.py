"""golden.llm.reports.million: parts that are joined, errors of pairs, claims, channels, sections.

Shown to fail:

- parts that are joined in another order, or across a part that has not run;
- the standard error of unpaired losses;
- the ratio of the largest to the smallest channel;
- rows of one table on other windows;
- rows of an earlier report that run again, or that count twice, or under other settings;
- a claim that holds by the figure of another row.
"""

import dataclasses
import math

import pytest
import torch

from golden.config import ConfigError
from golden.llm.eval.accuracy.arguments import PAGE
from golden.llm.eval.accuracy.bench import Record, Row, digest
from golden.llm.eval.accuracy.report import Report, load_report
from golden.llm.methods import parse
from golden.llm.reports.million import __main__ as report_command
from golden.llm.reports.million import page, stats
from golden.llm.reports.million.__main__ import CHANNELS, ROWS, main
from golden.llm.reports.million.channels import KINDS, load_channels, ratios
from golden.llm.reports.million.claims import CLAIMS, channels
from golden.llm.reports.million.run import Runner, earlier_rows, joined, wanted_rows
from golden.llm.reports.million.tables import OUTLIERS, TABLES, Entry, Table
from golden.markers import fill

NAMES = ("million_settings", "million_claims", "million_channels", *(t.name for t in TABLES))
SMALL = "subspaces=2,bits=4,few=true"


def report(losses: dict[tuple[str, int], list[float]], text: str = "t") -> Report:
    settings = {"texts": [{"name": "t"}], "seeds": [0, 1], "sweeps": "t", "seq": 9}
    rows = {
        Row(text, method, seed): Record(perplexity=1.0, window_losses=each, bits={"kv": 4.0})
        for (method, seed), each in losses.items()
    }
    return Report(settings, rows)


# ---- tables


@pytest.mark.parametrize("which", TABLES, ids=lambda which: which.name)
def test_every_row_is_a_method_and_is_there_once(which: Table) -> None:
    spelt = [entry.method for entry in which.entries]
    assert len(set(spelt)) == len(spelt)
    assert len({str(parse(each).describe()) + type(parse(each)).__name__ for each in spelt}) == len(
        spelt
    )


def test_sensitivities_of_the_paper() -> None:
    """Table III is Table II's LLaMA-2-7B column, as ``1 - with / without``."""
    table = {"KVQuant, 3 bits": (11.21, 5.22), "MILLION, 3 bits": (5.20, 5.22),
             "KVQuant, 4 bits": (6.99, 5.14), "MILLION, 4 bits": (5.21, 5.18)}  # fmt: skip
    for pair in OUTLIERS:
        without, kept = table[pair.label]
        assert 100 * (1 - kept / without) == pytest.approx(float(pair.paper[:-2]), abs=0.05)


def test_rows_of_the_first_seed_come_first() -> None:
    tables = (
        Table("a", (Entry("fp32", "x"), Entry("million-4b", "y")), whole=True, seeds=True),
        Table("b", (Entry("million-2b", "y"),)),
    )
    assert wanted_rows(tables, ["s", "t"], [3, 5]) == [
        Row("s", "fp32", 3), Row("t", "fp32", 3),
        Row("s", "million-4b", 3), Row("t", "million-4b", 3),
        Row("s", "million-2b", 3),
        Row("s", "million-4b", 5), Row("t", "million-4b", 5),
    ]  # fmt: skip


# ---- parts


def test_parts_follow_each_other() -> None:
    windows = [torch.tensor([i]) for i in range(6)]
    assert Runner.in_parts({"t": windows}, 2) == {
        "t, part 1": windows[:2], "t, part 2": windows[2:4], "t, part 3": windows[4:],
    }  # fmt: skip
    with pytest.raises(ConfigError, match="windows must be a multiple of 4, not 6"):
        Runner.in_parts({"t": windows}, 4)


def test_joined_record_is_that_of_all_windows() -> None:
    parts = [
        Record(predictions=8, bits={"kv": 4.0}, calibration_seconds=9.0, seconds=1.0,
               window_losses=[1.0, 2.0]),
        Record(predictions=4, bits={"kv": 5.0}, seconds=2.0, window_losses=[6.0]),
    ]  # fmt: skip
    found = joined(parts)
    assert found.window_losses == [1.0, 2.0, 6.0]
    assert found.perplexity == pytest.approx(math.exp(3))
    assert (found.predictions, found.seconds, found.calibration_seconds) == (12, 3.0, 9.0)
    assert found.bits == {"kv": pytest.approx(13 / 3)}  # two windows of 4 bits, one of 5


class Stored:
    """A stand-in for a Bench: what has run."""

    def __init__(self, texts: dict[str, Record]) -> None:
        self.texts = texts

    def stored(self, row: Row) -> Record | None:
        return self.texts.get(row.text)

    def done(self, row: Row) -> bool:
        return row.text in self.texts and not self.texts[row.text].failed


def test_a_gap_ends_a_row() -> None:
    def part(loss: float) -> Record:
        return Record(bits={"kv": 4.0}, window_losses=[loss])

    records = {"t, part 1": part(1.0), "t, part 3": part(3.0)}
    records |= {"u, part 1": Record(failed="no"), "u, part 2": part(5.0)}
    texts = {name: [torch.tensor([0])] * 3 for name in "tu"}
    runner = Runner(texts, Stored(records), 1)  # type: ignore[arg-type]
    row, other = Row("t", "m"), Row("u", "m")
    found = runner.record(row)
    assert found is not None
    assert found.window_losses == [1.0]
    failed = runner.record(other)
    assert failed is not None
    assert failed.failed == "no"
    assert list(runner.todo([row, other])) == [(other, 0), (row, 1), (other, 2)]


WINDOWS = {"t": [torch.tensor([i]) for i in range(6)]}
SETTINGS = {
    "fingerprint": "f", "seq": 9, "calibration": {"windows": 8}, "device": "cpu", "torch": "2",
    "transformers": "5",
}  # fmt: skip


def earlier(windows: int, losses: list[float], **others: object) -> Report:
    texts = [{"name": "t", "sha256": digest(WINDOWS["t"][:windows])}]
    record = Record(bits={"kv": 4.0}, window_losses=losses)
    settings = {**SETTINGS, "texts": texts, "windows": windows, **others}
    return Report(settings, {Row("t", "m"): record, Row("t", "n"): Record(failed="no")})


def test_rows_of_an_earlier_report_count_as_run() -> None:
    """Two of three parts are there; the failed row runs."""
    found = earlier_rows(earlier(4, [1.0, 2.0, 3.0, 4.0]), SETTINGS, WINDOWS, 2)
    last = Record(bits={"kv": 7.0}, window_losses=[5.0, 6.0])
    stored = {"t, part 1": Record(window_losses=[9.0, 9.0]), "t, part 3": last}
    runner = Runner(WINDOWS, Stored({}), 2, found)  # type: ignore[arg-type]
    assert list(runner.todo([Row("t", "m"), Row("t", "n")])) == [
        (Row("t", "n"), 0), (Row("t", "n"), 1), (Row("t", "m"), 2), (Row("t", "n"), 2),
    ]  # fmt: skip
    runner = Runner(WINDOWS, Stored(stored), 2, found)  # type: ignore[arg-type]
    record = runner.record(Row("t", "m"))
    assert record is not None
    assert record.window_losses == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert record.bits == {"kv": 5.0}


@pytest.mark.parametrize("name", SETTINGS)
def test_earlier_rows_of_other_settings(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} of the earlier rows must be .*, not other"):
        earlier_rows(earlier(4, [1.0, 2.0], **{name: "other"}), SETTINGS, WINDOWS, 2)


def test_earlier_rows_of_other_windows() -> None:
    other = {"t": WINDOWS["t"][1:]}
    for texts in (other, {"t": WINDOWS["t"][:2]}, {"u": WINDOWS["t"]}):
        with pytest.raises(ConfigError, match="text t must begin with the 4 windows of the earl"):
            earlier_rows(earlier(4, [1.0, 2.0]), SETTINGS, texts, 2)
    with pytest.raises(ConfigError, match=r"part must divide the 2 windows of .* row m, not 4"):
        earlier_rows(earlier(4, [1.0, 2.0]), SETTINGS, WINDOWS, 4)


# ---- statistics


def test_difference_to_the_same_windows() -> None:
    """Windows that are far apart with nearly the same difference have a small error."""
    rows = report({
        ("fp32", 0): [5.0, 1.0, 9.0],
        ("m", 0): [5.2, 1.1], ("m", 1): [5.4, 1.3, 9.9],
    })  # fmt: skip
    (found,) = stats.measured(rows, "t", ["m"], True)
    assert found is not None
    assert found.losses == pytest.approx((5.3, 1.2))
    assert found.values == pytest.approx((math.exp(3.15), math.exp(3.35)))
    assert found.against.mean == pytest.approx(0.25)
    assert found.against.error == pytest.approx(0.05)
    assert stats.percent(found.against) == "+28.40% ± 6.42%"
    (alone,) = stats.measured(rows, "t", ["m"], False)
    assert alone is not None
    assert alone.values == pytest.approx((math.exp(3.15),))


def test_methods_are_compared_on_the_windows_of_all() -> None:
    """A seed with fewer windows than the first is left out."""
    rows = report({
        ("fp32", 0): [1.0, 2.0, 3.0], ("a", 0): [1.1, 2.1, 3.4], ("b", 0): [1.2, 2.4],
        ("b", 1): [9.0],
    })  # fmt: skip
    a, none, b = stats.measured(rows, "t", ["a", "other", "b"], True)
    assert none is None
    assert a is not None
    assert b is not None
    assert a.losses == (1.1, 2.1)
    assert b.losses == (1.2, 2.4)
    assert len(b.values) == 1
    (b,) = stats.measured(rows, "t", ["b"], True, every_seed=True)
    assert b is not None
    assert b.losses == pytest.approx((5.1,))
    assert b.values == pytest.approx((math.exp(1.2), math.exp(9.0)))


def test_sensitivity() -> None:
    rows = report({("fp32", 0): [0.0, 0.0], ("a", 0): [2.0, 3.0], ("b", 0): [1.9, 2.7]})
    own, kept = stats.measured(rows, "t", "ab", False)
    assert own is not None
    assert kept is not None
    assert stats.sensitivity(own, kept) == f"{1 - math.exp(-0.2):+.2%} ± {0.1 * math.exp(-0.2):.2%}"


# ---- claims


def _of(text: str):
    (found,) = [each for each in CLAIMS if each.text == text]
    return found


def _lookup(losses: dict[str, float]):
    rows = report({(name, 0): [each, each + 1] for name, each in losses.items()})
    return lambda methods: stats.measured(rows, "t", methods, True)


def test_claims_read_their_own_rows() -> None:
    kvquant, million = OUTLIERS[2], OUTLIERS[3]
    base = {
        "fp32": 1.0, kvquant.without: 1.3, kvquant.with_outliers: 1.01, million.without: 1.015,
        million.with_outliers: 1.014,
    }  # fmt: skip
    for text, other, value in (
        ("MILLION is below KVQuant without outliers at 4 bits", kvquant.without, 1.014),
        ("MILLION is slightly above KVQuant with 1 % of outliers at 4 bits: by 0 to 2 %",
         kvquant.with_outliers, 1.016),
        ("MILLION is slightly above KVQuant with 1 % of outliers at 4 bits: by 0 to 2 %",
         kvquant.with_outliers, 0.99),
        ("MILLION is at most 1.8 % above FP16 at 4 bits", million.without, 1.019),
        ("exact outliers help KVQuant more than MILLION at 4 bits", kvquant.without, 1.0105),
        ("exact outliers change MILLION by at most 1 % at 4 bits", million.with_outliers, 1.03),
    ):  # fmt: skip
        claim = _of(text)
        assert claim.judge(_lookup(base)).holds is True
        assert claim.judge(_lookup({**base, other: value})).holds is False
        missing = claim.judge(_lookup({k: v for k, v in base.items() if k != other}))
        assert missing.holds is None
        assert missing.figures == f"no row of `{other}`"


def test_claim_says_what_may_be_chance() -> None:
    claim = _of("MILLION is below KVQuant without outliers at 4 bits")
    rows = report({
        ("fp32", 0): [1.0, 1.0], ("million-4b", 0): [1.0, 1.2],
        (OUTLIERS[2].without, 0): [1.3, 1.0],
    })  # fmt: skip
    found = claim.judge(lambda methods: stats.measured(rows, "t", methods, True))
    assert found.holds
    assert found.figures.endswith("MILLION and KVQuant are 0.2 standard errors apart")


# ---- channels


def test_ratios_of_channels() -> None:
    x = torch.tensor([[1.0, 2.0, 30.0], [-1.0, 2.0, 0.0], [1.0, -4.0, 0.0]])
    deviations = sorted(x.std(0).tolist())
    found = ratios(x)
    assert found["deviation"] == pytest.approx(deviations[2] / deviations[1])
    assert found["magnitude"] == pytest.approx(30 / 4)


def test_figures_hold_in_each_layer_or_not() -> None:
    def layer(k: float, v: float):
        return {"K": {"magnitude": k, "deviation": k}, "V": {"magnitude": v, "deviation": v}}

    (_, source, holds, figures), _ = channels({"layers": [layer(3, 2), layer(4, 1)]})
    assert (source, holds) == ("Figure 2", True)
    assert figures.endswith("K 3.0..4.0, V 1.0..2.0; K above V in 2 of 2 layers")
    assert not channels({"layers": [layer(3, 2), layer(4, 5)]})[0][2]


# ---- the command


def small_tables() -> tuple[Table, ...]:
    """The tables with rows that the tiny model can have."""
    own = (Entry("fp32", "FP32"), Entry(f"million:{SMALL}", "MILLION"), Entry("rtn-kv4", "RTN"))
    return tuple(dataclasses.replace(each, entries=own) for each in TABLES)


def test_command_line(tiny, tmp_path, monkeypatch, capsys) -> None:
    """One part, two parts, and the same sections from the rows alone."""
    monkeypatch.setattr("golden.llm.checkpoint.load", lambda *_: tiny)
    monkeypatch.setattr(report_command, "TABLES", small_tables())
    monkeypatch.setattr(page, "TABLES", small_tables())
    target = tmp_path / "page.md"
    empty = "".join(f"<!-- generated: {each} -->\n<!-- end generated -->\n" for each in NAMES)
    target.write_text(empty)
    line = []
    for name, words in (("one", "the quick brown fox "), ("two", "jumps over the dog ")):
        (tmp_path / name).write_text(words * 40)
        line += ["--text", f"{name}={tmp_path / name}"]
    line += [
        "--part", "1", "--seq", "16", "--skip", "32", "--calibration-windows", "2",
        "--calibration-tokens", "16", "--seeds", "0", "1", "--device", "cpu",
        "--work", str(tmp_path / "work"), "--page", str(target),
    ]  # fmt: skip
    assert main([*line, "--windows", "1"]) == 0, capsys.readouterr().err
    rows = load_report(tmp_path / "page" / ROWS)
    assert all(len(each.window_losses) == 1 for each in rows.records.values())
    capsys.readouterr()
    assert main([*line, "--windows", "2", "--row", "rtn*"]) == 0
    assert "[1/2] rtn-kv4" in capsys.readouterr().err
    assert main([*line, "--windows", "2"]) == 0
    assert "[1/6]" in capsys.readouterr().err  # the first parts are not run again
    rows = load_report(tmp_path / "page" / ROWS)
    assert len(rows.records) == rows.settings["rows"] == 8
    assert all(len(each.window_losses) == 2 for each in rows.records.values())
    one, other = (rows.records[Row("one", f"million:{SMALL}", seed)] for seed in (0, 1))
    assert one.state != other.state
    text = target.read_text()
    assert "| FP32 | `fp32` | 32.00 |" in text
    assert "not run" in text  # the rows of Table III
    assert {len(each) for each in load_channels(tmp_path / "page" / CHANNELS)["layers"]} == {
        len(KINDS)
    }
    target.write_text(empty)
    assert main(["--page", str(target), "--page-only"]) == 0
    assert target.read_text() == text
    capsys.readouterr()
    elsewhere = [*line, "--windows", "2", "--work", str(tmp_path / "other"), "--continue"]
    assert main(elsewhere) == 0
    assert capsys.readouterr().err == "million: all parts are done\n"
    assert target.read_text() == text
    assert main([*elsewhere, "--calibration-windows", "1"]) == 2
    assert "million: calibration of the earlier rows must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["x"], "table must be one of million_methods, .*, not 'x'"),
        ([], "text must be given at least once"),
        (["--text", "a=b", "--windows", "2", "--seq", "16", "--skip", "31"],
         "skip must be at least 32, the tokens that are evaluated, not 31"),
    ],
)  # fmt: skip
def test_refusals(line, message, capsys) -> None:
    assert main(line) == 2
    assert capsys.readouterr().err.startswith("million: ")
    with pytest.raises(ConfigError, match=message):
        report_command._check(report_command._arguments().parse_args(line))


def test_the_page_of_the_project_is_of_its_rows() -> None:
    folder = PAGE.with_suffix("")
    content = load_channels(folder / CHANNELS)
    made = page.sections(load_report(folder / ROWS), content)
    assert set(made) == set(NAMES)
    text = PAGE.read_text()
    assert fill(text, made) == text, "run golden.llm.reports.million --page-only"
