"""golden.llm.eval.accuracy: rows run once, failures stay alone; verdicts, pages, plots from rows.

Shown to fail:

- a finished row run again;
- a failed row not run again;
- a key without the seed, the text, the parameters or the code;
- a verdict of equal figures;
- a sweep that mixes seeds.
"""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from golden.llm.checkpoint import Checkpoint
from golden.llm.eval.accuracy import arguments as accuracy_arguments
from golden.llm.eval.accuracy import bench as bench_module
from golden.llm.eval.accuracy import command, page, plots, tables
from golden.llm.eval.accuracy.bench import Bench, Record, Row, code_version
from golden.llm.eval.accuracy.command import all_rows, main, write
from golden.llm.eval.accuracy.report import Report, Spread, load_report
from golden.llm.eval.accuracy.tables import CLAIMS, TABLES, Claim, Entry, Table, rising
from golden.llm.methods import parse_all
from golden.llm.methods.rtn import Rtn
from golden.markers import fill


@pytest.fixture
def bench(tiny, tiny_windows, tmp_path) -> Bench:
    return made_bench(tiny, tiny_windows, tmp_path)


def made_bench(tiny: Checkpoint, windows: list[Tensor], folder: Path) -> Bench:
    return Bench(tiny, {"a": windows[:1], "b": windows[1:2]}, windows[2:], folder / "work", 1)


@pytest.fixture
def evaluated(monkeypatch) -> list[str]:
    """Spellings in the order in which the model really ran."""
    seen: list[str] = []
    real = bench_module.evaluate

    def evaluate(checkpoint, name, *others):
        seen.append(name)
        return real(checkpoint, name, *others)

    monkeypatch.setattr(bench_module, "evaluate", evaluate)
    return seen


# ---- rows


def test_a_finished_row_is_not_run_again(tiny, tiny_windows, tmp_path, evaluated):
    row = Row("a", "rtn-w4a4")
    first = made_bench(tiny, tiny_windows, tmp_path).run(row)
    again = made_bench(tiny, tiny_windows, tmp_path)
    assert again.done(row)
    assert again.run(row) == first
    assert evaluated == ["rtn-w4a4"]
    assert first.perplexity > 1
    assert first.predictions == 31
    assert first.bits["weights"] == pytest.approx(4 + 16 / 40, abs=0.3)


def test_a_row_is_what_golden_eval_finds(bench, tiny, tiny_windows):
    from golden.llm.eval.calibration import CalibrationData
    from golden.llm.eval.evaluate import evaluate
    from golden.llm.eval.state import calibrate

    name = "smoothquant-w4a4+oaken"
    methods = parse_all(name)
    states = calibrate(methods, CalibrationData(tiny.model, tiny_windows[2:], 1))
    wanted = evaluate(tiny, name, methods, tiny_windows[:1], states)
    found = bench.run(Row("a", name, 1))
    assert (found.perplexity, found.bits) == (wanted.perplexity, wanted.bits)


def test_half_a_file_is_no_row(bench, evaluated):
    row = Row("a", "fp32")
    bench.run(row)
    file = bench.file(row)
    file.write_text(file.read_text()[:100])
    assert not bench.done(row)
    assert bench.run(row).perplexity > 1
    assert len(evaluated) == 2


def test_all_that_shapes_a_row_is_in_its_key(tiny, tiny_windows, tmp_path, monkeypatch):
    bench = made_bench(tiny, tiny_windows, tmp_path)
    row = Row("a", "oaken")
    files = {bench.file(row)}
    files.add(bench.file(dataclasses.replace(row, text="b")))
    files.add(bench.file(dataclasses.replace(row, seed=1)))
    files.add(bench.file(dataclasses.replace(row, method="oaken:mode=artifact")))
    files.add(bench.file(dataclasses.replace(row, method="fp16+oaken")))
    other = Bench(tiny, bench.texts, tiny_windows[:1], tmp_path / "work", 1)
    files.add(other.file(row))
    with torch.no_grad():
        tiny.model.lm_head.weight[0, 0] += 1
    files.add(made_bench(tiny, tiny_windows, tmp_path).file(row))
    with torch.no_grad():
        tiny.model.lm_head.weight[0, 0] -= 1
    monkeypatch.setattr(bench_module, "code_version", lambda modules: "other")
    files.add(bench.file(row))
    assert len(files) == 8
    # What is spelt otherwise and means the same is the same row.
    assert bench.file(row) == bench.file(dataclasses.replace(row, method="oaken:ratios=4/90/6"))
    assert other.file(Row("a", "fp32")) == bench.file(Row("a", "fp32"))  # learns from no text


def test_code_counts_and_comments_do_not(tmp_path, monkeypatch):
    def version(first: str, second: str, name: str) -> str:
        (tmp_path / f"{name}.py").write_text(f"{first}import golden.{name}_b\n")
        monkeypatch.setattr(bench_module, "_source", lambda module: {
            name: tmp_path / f"{name}.py", f"golden.{name}_b": tmp_path / f"{name}_b.py",
        }.get(module))  # fmt: skip
        (tmp_path / f"{name}_b.py").write_text(second)
        bench_module._code.cache_clear()
        return code_version([name])

    base = version('"""Says."""\nx = 1\n', "y = 1\n", "m")
    assert version('"""Says more."""\n\nx = 1  # one\n', "y = 1\n", "m") == base
    assert version("x = 2\n", "y = 1\n", "m") != base
    assert version('"""Says."""\nx = 1\n', "y = 2\n", "m") != base
    bench_module._code.cache_clear()


def test_version_of_a_method_reaches_what_it_imports(monkeypatch):
    seen: list[str] = []
    real = bench_module._source

    def source(module: str) -> Path | None:
        seen.append(module)
        return real(module)

    monkeypatch.setattr(bench_module, "_source", source)
    Bench._code_version(parse_all("oaken"))
    assert {"golden.llm.methods.oaken", "golden.llm.eval.fake.oaken", "golden.llm.patch",
            "golden.llm.eval.perplexity", "golden.llm.checkpoint"} <= set(seen)  # fmt: skip
    assert "golden.kllm.layer" not in seen


def test_a_failing_row_says_why_and_is_tried_again(bench, monkeypatch, evaluated):
    rows = [Row("a", "rtn-w4a4"), Row("a", "none-w4a4"), Row("a", "rtn-w1a4"), Row("a", "fp32")]

    def install(self, site, state):
        raise ZeroDivisionError("of a sum\nsecond line")

    with monkeypatch.context() as patched:
        patched.setattr(Rtn, "install", install)
        end = command._run_rows(bench, rows, [0], None)
    assert end == "all rows have run, 3 failed"
    failed = [bench.stored(row) for row in rows]
    assert failed[0].failed == "ZeroDivisionError: of a sum second line"
    assert failed[1].failed.startswith("there is no method 'none-w4a4'")
    assert failed[2].failed == "rtn-w1a4: Rtn.weight_bits must be 2..16, not 1"
    assert failed[3].perplexity > 1
    assert command._run_rows(bench, rows, [0], None) == "all rows have run, 2 failed"
    assert bench.done(rows[0])
    assert evaluated == ["rtn-w4a4", "fp32", "rtn-w4a4"]


def test_another_seed_with_the_same_tensors_is_not_run(bench, evaluated, monkeypatch):
    first = bench.run(Row("a", "oaken", 0), [0, 1])
    second = bench.run(Row("a", "oaken", 1), [0, 1])
    third = bench.run(Row("a", "oaken", 2), [1, 0])
    assert evaluated == ["oaken"]
    assert (first.same_seed, second.same_seed, third.same_seed) == (None, 0, 0)
    assert first.perplexity == second.perplexity == third.perplexity
    bench.run(Row("a", "quarot-w4a4", 0), [0, 1])  # random signs
    bench.run(Row("a", "quarot-w4a4", 1), [0, 1])
    assert evaluated[1:] == ["quarot-w4a4"] * 2


def test_calibration_serves_all_texts(bench, monkeypatch):
    from golden.llm.methods.oaken import Oaken

    calls: list[str] = []
    real = Oaken.calibrate
    monkeypatch.setattr(
        Oaken, "calibrate", lambda self, data: calls.append(self.mode) or real(self, data)
    )
    for text in "ab":
        bench.run(Row(text, "oaken"))
        bench.run(Row(text, "oaken:mode=artifact"))  # depends on the same fields
    assert calls == ["decodable"]


# ---- verdicts


def lookup(**values: float | tuple[float, ...]):
    def find(method: str) -> Spread | None:
        value = values.get(method)
        if value is None:
            return None
        return Spread(value if isinstance(value, tuple) else (value,))

    return find


@pytest.mark.parametrize(
    ("values", "holds", "ends"),
    [
        ({"a": 1.0, "b": 2.0, "c": 3.0}, True, "C 3.000"),
        ({"a": 1.0, "b": 2.0, "c": 2.0}, False, "; B is not below C"),
        ({"a": 9.0, "b": 2.0, "c": 1.0}, False, "; A is not below B; B is not below C"),
        ({"a": (1.0, 3.0), "b": (2.5, 3.0), "c": 4.0}, True, "; ranges of A and B overlap"),
        ({"a": 1.0, "b": 2.0, "c": math.inf}, True, "C inf"),
        ({"a": 1.0, "b": 2.0, "c": math.nan}, False, "; B is not below C"),
        ({"a": 1.0, "c": 2.0}, None, "no row of `b`"),
    ],
)
def test_orderings_true_and_false(values, holds, ends):
    verdict = rising({"A": "a", "B": "b", "C": "c"})(lookup(**values))
    assert verdict.holds is holds
    assert verdict.figures.endswith(ends)


def claims_of(text: str) -> list[Claim]:
    return [claim for claim in CLAIMS if text in claim.text]


def judged(claim: Claim, *values: float) -> bool | None:
    """Judges ``claim`` by the values of its methods in their order."""
    given = dict(zip(claim.methods, values, strict=True))
    return claim.judge(lambda method: Spread((given[method],))).holds


def test_claims_of_the_papers():
    chain = claims_of("W4A4: KLLM < Atom")[0]
    assert judged(chain, 1, 2, 3, 4, 5) is True
    assert judged(chain, 1, 3, 2, 4, 5) is False
    closes, stricter = claims_of("at least half")[:2]  # KLLM, FP32, then the baselines
    assert judged(closes, 15, 10, 90, 40, 20) is True
    assert judged(closes, 15.1, 10, 90, 40, 20) is False
    assert judged(closes, 5, 10, 9, 40, 20) is None  # there is no gap
    assert judged(stricter, 15, 10, 90, 40, 20, 19, 30, 30) is False
    assert judged(stricter, 14, 10, 90, 40, 20, 19, 18, 30) is True
    assert stricter.methods[5:] == (
        "atom-like-w4a4", "quarot-w4a4:rounding=gptq", "atom-like-w4a4:rounding=gptq"
    )  # fmt: skip
    close = claims_of("Oaken close")[0]
    assert judged(close, 10.1, 10, 10) is True
    assert judged(close, 10.2, 10, 10) is False
    assert judged(close, 9.8, 10, 10) is False
    sweep = claims_of("W4A3: KLLM-S falls")[0]
    assert sweep.methods[0] == "kllm-s-w4a3:share=0.1"
    assert sweep.methods[3] == "kllm-s-w4a3"
    assert judged(sweep, 1, 2, 3, 4, 5) is True
    assert judged(sweep, 1, 2, 4, 3, 5) is False
    steps = claims_of("Orizuru")[0]
    assert steps.methods[0] == "kllm-plain-w4a3"
    assert steps.methods[-1] == "rtn-w4a3"


def test_every_row_and_claim_is_of_methods_that_exist():
    every = {entry.method for table in TABLES for entry in table.entries}
    for method in every:
        parse_all(method)
    whole = {entry.method for table in TABLES if table.whole for entry in table.entries}
    for claim in CLAIMS:
        assert set(claim.methods) <= (whole if claim.whole else every), claim.text
    shares = [parse_all(each)[0].share for each in claims_of("KLLM falls")[0].methods]
    assert shares == [0.1, 0.05, 0.02, 0.01, 0.005]


def test_windows_tell_what_may_be_chance():
    def judged(*differences: float) -> str:
        losses = tuple(3.0 + i for i in range(len(differences)))
        other = tuple(a + b for a, b in zip(losses, differences, strict=True))
        found = {"x": Spread((10.0,), losses), "y": Spread((11.0,), other)}
        return rising({"X": "x", "Y": "y"})(found.get).figures

    # mean 0.1, standard deviation 0.0707: 0.1 / (0.0707 / sqrt(5)) = 3.16
    assert judged(0.0, 0.1, 0.1, 0.1, 0.2) == "X 10.000, Y 11.000"
    assert judged(-0.1, 0.1, 0.1, 0.1, 0.3) == (
        "X 10.000, Y 11.000; X and Y are 1.6 standard errors apart"  # sd 0.1414
    )
    assert judged(-0.1, 0.1, 0.3) == "X 10.000, Y 11.000"  # too few windows


# ---- which rows


SMALL = (
    Table("precisions", "P", (Entry("fp32", "FP32"), Entry("quarot-w4a4", "Q", "W4A4", "6.19")),
          "paper", whole=True, seeds=True),
    Table("ratios", "R", (Entry("oaken", "4/90/6"), Entry("rtn-kv4", "kv|4"))),
)  # fmt: skip


def test_rows_of_texts_and_seeds():
    rows = all_rows(["a", "b"], [0, 1], "a", SMALL)
    assert rows == [
        Row("a", "fp32"), Row("b", "fp32"), Row("a", "quarot-w4a4"), Row("b", "quarot-w4a4"),
        Row("a", "oaken"), Row("a", "rtn-kv4"),
        Row("a", "quarot-w4a4", 1), Row("b", "quarot-w4a4", 1),
    ]  # fmt: skip
    rows = all_rows(["a", "b"], [0], "begin of a", SMALL)
    assert rows[4:] == [Row("begin of a", each) for each in ("fp32", "oaken", "rtn-kv4")]
    every = all_rows(["a", "b"], [0, 1, 2], "a")
    assert len(set(every)) == len(every)


# ---- page and plots


def settings(**changes: object) -> dict:
    return {
        "model": "tiny", "fingerprint": "f" * 64, "seq": 32, "tokens": 64, "seeds": [0, 1],
        "texts": [{"name": "a", "sha256": "1" * 64}, {"name": "b", "sha256": "2" * 64}],
        "calibration": {"text": "c", "windows": 2, "tokens": 32}, "device": "cpu",
        "torch": "1", "transformers": "2", "rows": 9, "sweeps": "a", **changes,
    }  # fmt: skip


def record(perplexity: float, **changes: object) -> Record:
    bits = {"weights": 4.0, "activations": 4.5, "kv": 5.25}
    return Record(perplexity, 31, bits, 2.0, 0.1, 30.0, 1 << 30, threads=1, **changes)


@pytest.fixture
def report() -> Report:
    records = {
        Row("a", "fp32"): record(10.0),
        Row("b", "fp32"): record(20.0),
        Row("a", "quarot-w4a4", 0): record(12.0),
        Row("a", "quarot-w4a4", 1): record(13.0),
        Row("b", "quarot-w4a4", 0): Record(failed="NaN in x|y"),
        Row("a", "oaken", 0): record(10.5),
        Row("a", "oaken", 1): record(90.0),
    }
    return Report(settings(), records)


def test_table_of_rows(report):
    lines = page.table(report, SMALL[0]).splitlines()
    assert lines[0].startswith("| precision | method | spelt | bits W / A / KV | a | - FP32 | b |")
    assert lines[1].startswith("| --- | --- | --- | ---: | ---: |")
    assert lines[2] == (
        "|  | FP32 | `fp32` | 4.00 / 4.50 / 5.25 | 10.000 | +0.000 | 20.000 | +0.000 | 2 s | 30 s "
        "| 1.0 GiB |  |"
    )
    assert "| 12.500 (12.000..13.000) | +2.500 | failed: NaN in x\\|y |  | 2 s |" in lines[3]
    assert lines[3].endswith("| 6.19 |")


def test_a_sweep_is_of_the_first_seed_and_text(report):
    lines = page.table(report, SMALL[1]).splitlines()
    assert lines[2].startswith("| 4/90/6 | `oaken` | 4.00 / 4.50 / 5.25 | 10.500 | +0.500 |")
    assert lines[3].startswith("| kv\\|4 | `rtn-kv4` |  | not run |  |")


def test_settings_are_those_of_the_rows(report):
    text = page.settings(report)
    assert "| evaluated of each | 64 tokens in windows of 32 |" in text
    assert "| rows | 6 of 9 done, 1 failed |" in text
    assert "| device | cpu, threads: 1 |" in text
    assert "| calibration | 2 windows of 32 tokens of c, seeds 0, 1 |" in text


def test_verdicts_on_the_page(report, monkeypatch):
    chain = {"FP32": "fp32", "QuaRot": "quarot-w4a4"}
    first = Claim("x < y", "S", rising(chain), tuple(chain.values()))
    back = rising({"Q": "quarot-w4a4", "FP32": "fp32"})
    second = Claim("y < x", "S", back, tuple(chain.values()), whole=False)
    monkeypatch.setattr(page, "CLAIMS", (first, second))
    lines = page.orderings(report).splitlines()[2:]
    assert lines == [
        "| x < y | S | a | reproduced | FP32 10.000, QuaRot 12.000 |",
        "| x < y | S | b | not evaluated | no row of `quarot-w4a4` |",
        "| x < y | S | a, 2 seeds | reproduced | FP32 10.000, QuaRot 12.500 |",
        "| y < x | S | a | **not reproduced** | Q 12.000, FP32 10.000; Q is not below FP32 |",
    ]


def test_the_same_rows_give_the_same_bytes(report, tmp_path):
    for seed, mean in enumerate((11.0, 12.0, 13.0, 11.5)):
        report.records[Row("a", tables._outliers()[seed].method)] = record(mean)
    made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        written = write(report, folder / "page.md")
        made.append([path.read_bytes() for path in written])
        assert written[0].read_text().count("](page/") == 4
    assert made[0] == made[1]
    assert len(made[0]) == 2 + 4  # no rows of the breakdown and of the switches
    for content in made[0]:
        assert b"http" not in content.replace(b"http://www.w3.org/", b"").replace(
            b"http://purl.org/", b""
        ).replace(b"http://creativecommons.org/", b"")
    back = load_report(tmp_path / "one" / "page" / "rows.json")
    assert (back.settings, back.records) == (report.settings, report.records)
    page_file = tmp_path / "one" / "page.md"
    before = page_file.read_text()
    page_file.write_text(before.replace("12.500", "0.001") + "by hand\n")
    write(back, page_file)
    assert page_file.read_text() == before + "by hand\n"


def test_other_rows_draw_other_plots(report):
    before = plots.draw(report)
    report.records[Row("a", "fp32")] = record(11.0)
    after = plots.draw(report)
    assert before.keys() == after.keys()
    assert all(before[name] != after[name] for name in before)


def test_the_page_of_the_project_is_of_its_rows():
    """docs/accuracy.md holds what docs/accuracy/rows.json says, and every section is known."""
    text = command.PAGE.read_text()
    folder = command.PAGE.with_suffix("")
    report = load_report(folder / "rows.json")
    drawn = [path.stem for path in folder.glob("*.svg")]
    made = page.sections(report, {name: f"{folder.name}/{name}.svg" for name in drawn})
    assert all(f"<!-- generated: {name} -->" in text for name in made)
    assert fill(text, made, is_partial=True) == text, (
        "run python -m golden.llm.eval.accuracy --page-only"
    )


# ---- the command line


@pytest.fixture
def line(tiny, tmp_path, monkeypatch):
    """main on the tiny model with the small tables; (code, text of the page, options)."""
    monkeypatch.setattr(command, "load", lambda *_: tiny)
    monkeypatch.setattr(command, "TABLES", SMALL)
    monkeypatch.setattr(command.all_rows, "__defaults__", (SMALL,))
    monkeypatch.setattr(page, "TABLES", SMALL)
    monkeypatch.setattr(plots, "TABLES", SMALL)
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over it. " * 10)

    def run(*arguments: str, to: tuple[str, ...] | None = (str(tmp_path / "page.md"),)) -> int:
        target = [] if to is None else ["--page", *to]
        return main([
            "--text", f"a={text}", "--seq", "16", "--tokens", "32", "--calibration-windows", "2",
            "--calibration-tokens", "16", "--device", "cpu", "--work", str(tmp_path / "work"),
            *target, *arguments,
        ])  # fmt: skip

    return run


def test_a_run_leaves_the_page_of_the_project_alone(line, tmp_path, monkeypatch, evaluated):
    """Only ``--page`` rewrites it. Seen to fail with PAGE as the default of ``--page``."""
    tracked = tmp_path / "docs" / "accuracy.md"
    tracked.parent.mkdir()
    before = accuracy_arguments.PAGE.read_text()
    tracked.write_text(before)
    monkeypatch.setattr(accuracy_arguments, "PAGE", tracked)
    assert line("--row", "rtn-*", to=None) == 0
    assert tracked.read_text() == before
    assert "| rows | 1 of 4 done, 0 failed |" in (tmp_path / "work" / "accuracy.md").read_text()
    assert line("--row", "rtn-*", to=()) == 0
    assert "| rows | 1 of 4 done, 0 failed |" in tracked.read_text()
    assert evaluated == ["rtn-kv4"]


def test_command_line(line, tmp_path, capsys, evaluated):
    assert line("--dry-run", "--seeds", "2") == 0
    assert capsys.readouterr().out.endswith("0 of 5 rows are done\n")
    assert not (tmp_path / "page.md").exists()
    assert line("--row", "oaken", "rtn-*") == 0
    assert evaluated == ["oaken", "rtn-kv4"]
    assert (tmp_path / "work" / "calibration").exists()
    assert "| rows | 2 of 4 done, 0 failed |" in (tmp_path / "page.md").read_text()
    assert line("--table", "precisions") == 0
    assert evaluated[2:] == ["fp32", "quarot-w4a4"]
    assert line("--seeds", "2") == 0
    assert evaluated[4:] == ["quarot-w4a4"]
    assert not (tmp_path / "work" / "calibration").exists()  # nothing is left to resume
    captured = capsys.readouterr()
    assert captured.err.endswith("accuracy: all rows are done\n")
    assert "4 of 5 rows are done" in captured.err
    text = (tmp_path / "page.md").read_text()
    assert "| rows | 5 of 5 done, 0 failed |" in text
    assert "![P](page/precisions.svg)" in text
    assert line("--dry-run", "--table", "ratios") == 0
    assert "rtn-kv4: done: " in capsys.readouterr().out
    rows = json.loads((tmp_path / "page" / "rows.json").read_text())["rows"]
    assert len(rows) == 5
    (tmp_path / "page.md").write_text(text.replace("5 of 5", "4 of 5"))
    assert line("--page-only") == 0
    assert (tmp_path / "page.md").read_text() == text


def test_minutes_stop_and_the_next_run_goes_on(line, capsys, evaluated):
    assert line("--minutes", "0") == 0
    assert "stopped after 0 minutes, 4 rows are left" in capsys.readouterr().err
    assert evaluated == []
    assert line() == 0
    assert len(evaluated) == 4


def test_an_interrupted_run_keeps_what_is_done(line, monkeypatch, capsys, evaluated, tmp_path):
    real = Bench._run

    def run(self, row, seeds):
        if row.method == "oaken":
            raise KeyboardInterrupt
        return real(self, row, seeds)

    with monkeypatch.context() as patched:
        patched.setattr(Bench, "_run", run)
        assert line() == 130
    assert "interrupted, 2 rows are left" in capsys.readouterr().err
    assert "| rows | 2 of 4 done, 0 failed |" in (tmp_path / "page.md").read_text()
    assert line() == 0
    assert evaluated == ["fp32", "quarot-w4a4", "oaken", "rtn-kv4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "x"], "text must be NAME=FILE, not 'x'"),
        (["--text", "a=x"], "two texts are called 'a'"),
        (["--text", "b=none"], "cannot read none: No such file or directory"),
        (["--tokens", "999"], "a: the text has 350 tokens, 992 are needed"),
        (["--seq", "1"], "seq must be 2..256 for this model, not 1"),
        (["--seeds", "0"], "seeds must be at least 1, not 0"),
        (["--threads", "0"], "threads must be at least 1, not 0"),
        (["--batch", "0"], "batch must be at least 1, not 0"),
        (["--row", "none*"], "no row of precisions, ratios is spelt 'none*'"),
        (["--calibration-tokens", "257"],
         "calibration tokens must be 2..256 for this model, not 257"),
        (["--calibration-windows", "99"],
         "calibration: the text has 350 tokens, 1616 are needed"),
        (["--calibration-text", "none"], "cannot read none: No such file or directory"),
        (["--page-only", "--page", "none.md"],
         "cannot read none/rows.json: No such file or directory"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(line, capsys, arguments, message):
    assert line(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == f"accuracy: {message}\n"


def test_losses_are_means_of_the_seeds_and_any_seed_may_fail():
    rows = {
        Row("a", "m", 0): Record(1.0, window_losses=[1.0, 2.0]),
        Row("a", "m", 1): Record(3.0, window_losses=[3.0, 6.0]),
        Row("a", "n", 0): Record(1.0),
        Row("a", "n", 1): Record(failed="why"),
    }
    report = Report({"seeds": [0, 1], "sweeps": "a", "texts": [{"name": "a"}]}, rows)
    assert report.spread("a", "m", True).losses == (2.0, 4.0)
    assert report.spread("a", "m").losses == (1.0, 2.0)
    assert report.failure("a", "n") == "why"


def test_other_windows_are_not_compared():
    a, b = Spread((1.0,), (1.0,) * 6), Spread((1.0,), (1.0, 2, 3, 4, 5, 6, 7))
    assert a.standard_errors_below(b) is None


def test_mean_of_the_seeds():
    assert Spread((1.0, 2.0, 6.0)).mean == 3.0
