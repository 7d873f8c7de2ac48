"""Published figures of vLLM: they sum up, the page is current, and odd rows are refused.

Seen to fail with each of:

- a digit of a sum, of a duration or of a median of the file changed;
- requests of whole means, whose sums are below the published ones;
- prompts that share their blocks;
- a page whose tables are older than the chip;
- no tiles of attention in passes with prompts;
- a host that is fitted on the passes with prompts alone.
"""

import dataclasses
import math
import re

import pytest

from golden.config import ConfigError
from sim import validate_vllm as module
from sim.engine import engine_of
from sim.model import find_model
from sim.validate_vllm import CHIP, FITTED, MODEL, even, operations, predict, rows_of, start
from sim.work import Pass

ROWS = {row.workload: row for row in rows_of()}


@pytest.fixture(scope="module")
def chip():
    return engine_of(CHIP)


@pytest.fixture(scope="module")
def model():
    return find_model(MODEL)


@pytest.mark.parametrize("name", ROWS)
def test_the_figures_of_the_source_agree_with_each_other(name):
    """Rates are tokens by seconds, to the last digit; means are near medians."""
    row = ROWS[name]
    counts, figures = row.counts, row.figures
    both = counts["input"] + counts["output"]
    for tokens, rate in ((counts["output"], "output_per_s"), (both, "total_per_s")):
        # The duration has two digits after its point.
        low, high = (tokens / (figures["s"] + each) for each in (0.005, -0.005))
        assert low - 0.005 <= figures[rate] <= high + 0.005
    for what in ("ttft", "tpot"):
        mean, median, most = (figures[f"{what}_{how}_ms"] for how in ("mean", "median", "p99"))
        assert mean == pytest.approx(median, rel=0.11)
        assert max(mean, median) < most
    assert figures["ttft_p99_ms"] < 1e3 * figures["s"]


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.is_equal])
def test_requests_have_the_published_sums(name):
    row = ROWS[name]
    made = row.requests()
    assert len(made) == row.counts["requests"]
    assert sum(each.prompt for each in made) == row.counts["input"]
    assert sum(each.output for each in made) == row.counts["output"]
    assert {each.arrival for each in made} == {0.0}
    mean = row.counts["input"] / row.counts["requests"]
    assert {each.prompt for each in made} <= {math.floor(mean), math.ceil(mean)}
    blocks = [block for each in made for block in each.hashes]
    assert len(blocks) == len(set(blocks)) == sum(each.prompt // 16 for each in made)
    first, last = made[: len(made) // 2], made[len(made) // 2 :]
    assert abs(sum(e.prompt for e in first) - sum(e.prompt for e in last)) <= 1


def test_even_by_hand():
    assert even(7, 3) == [2, 2, 3]
    assert even(6, 3) == [2, 2, 2]


def test_drawn_lengths_have_about_the_published_means():
    row = ROWS["ShareGPT"]
    made = row.requests()
    assert len(made) == 1000
    assert sum(each.prompt for each in made) == pytest.approx(row.counts["input"], rel=0.05)
    assert sum(each.output for each in made) == pytest.approx(row.counts["output"], rel=0.05)


def test_seconds_before_the_first_token_by_hand():
    """First tokens at 3.1, 3.2 ... 13: the first of all would come 3 s after the requests."""
    times = {"ttft_median_ms": 3000 + 0.5 * 10_000, "ttft_p99_ms": 3000 + 0.99 * 10_000}
    assert start(times) == pytest.approx(3.0)


def test_operations_by_hand(model):
    """A request of 3 and 2 tokens passes four, from the sizes of the model."""
    row = dataclasses.replace(ROWS["128 / 4"], counts={"requests": 1, "input": 3, "output": 2})
    layer = 2 * 5120 * 5120 + 2 * 5120 * 1024 + 3 * 5120 * 17408
    pairs = 1 + 2 + 3 + 4
    macs = 40 * (4 * layer + 2 * 5120 * pairs) + 2 * 5120 * 151936
    assert operations(row, model) == 2 * macs


@pytest.fixture(scope="module")
def short(chip, model):
    return predict(ROWS["128 / 4"], chip, model)


def test_a_run_has_all_tokens_and_seconds(short):
    row, outcome = ROWS["128 / 4"], short.outcome
    assert outcome.words == row.counts["output"]
    assert outcome.prefilled == row.counts["input"]
    assert short.prompts + short.decoding == pytest.approx(outcome.seconds)
    assert short.figures["s"] == outcome.seconds
    assert sum(each.hit for each in outcome.served) == 0
    # A budget of 2,048 tokens: no pass has more, all but the last ones have as many.
    assert outcome.passes["mixed"] == math.ceil((127_698 + 3_000 - 3 * 16) / 2048)


def test_the_host_that_is_fitted_meets_its_row(chip, model):
    """Each pass takes so much more, and the row is met."""
    row = ROWS[FITTED]
    host = module.host_of(row, chip, model)
    assert 0 < host < 0.1
    found = predict(row, chip, model, host=host)
    assert found.figures["s"] == pytest.approx(row.figures["s"])


def test_tiles_are_needed(chip, model):
    """The time of a full pass is far from the measured one without tiles; no fit is involved."""
    row = ROWS[FITTED]
    bare = predict(row, engine_of(CHIP, {"settings.attention_rows": 1}), model)
    whole = predict(row, chip, model)
    errors = [each.figures["tpot_median_ms"] / row.figures["tpot_median_ms"] - 1 for each in
              (bare, whole)]  # fmt: skip
    assert errors[0] < -0.15
    assert abs(errors[1]) < 0.05


def test_what_binds(chip, model):
    """Products bind a full pass of a prompt and of 95 sequences; memory binds decoding alone."""
    full = Pass.of([(95, 1, 2050), (1, 1953, 0)], 95)
    for spent in chip.cost(model, full).spent:
        if spent.name in ("qkv", "attention", "o", "gate_up", "down"):
            assert spent.limits["compute"] > 2 * spent.limits["memory"], spent.name
    for spent in chip.cost(model, Pass.decode(65, 4100)).spent:
        assert spent.limits["memory"] >= spent.limits.get("compute", 0.0), spent.name


@pytest.mark.parametrize("name", module.TABLES)
def test_the_page_is_current(name):
    found = re.search(rf"<!-- generated: {name} -->\n(.*?)<!-- end", module.PAGE.read_text(), re.S)
    assert found
    assert found[1] == module.TABLES[name]()


def test_the_table_has_an_error_of_each_figure(monkeypatch, short):
    row = ROWS["128 / 4"]
    monkeypatch.setattr(module, "_parties", lambda: ([row], None, None, [short]))
    head, _, measured, predicted, error = module.compared().splitlines()
    assert head.count("|") == measured.count("|") == predicted.count("|") == error.count("|")
    cells = [[cell.strip() for cell in line.split("|")[3:-1]] for line in (measured, error)]
    assert cells[0][0] == "26.8 s"
    for name, text in zip(("s", *module.LATENCIES), cells[1], strict=True):
        share = short.figures[name] / row.figures[name] - 1
        assert float(text.removesuffix(" %")) == pytest.approx(100 * share, abs=0.051)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("equal", "drawn"), "lengths must be one of equal, unknown, not 'drawn'"),
        (("500,1997942", "500,499"), "input must be a token or more of each request"),
        (("500,1997942", "0,1997942"), "input must be a token or more of each request"),
        (("500,1997942", "x,1997942"), "invalid literal"),
        (("407.05", "0"), "s must be above 0, not 0"),
        (("254.61", "nan"), "tpot_mean_ms must be above 0, not nan"),
        (("99783", "1e5"), "invalid literal"),
    ],
)
def test_an_odd_row_is_one_line(tmp_path, monkeypatch, capsys, change, error):
    path = tmp_path / "vllm.csv"
    head, line = module.FILE.read_text().splitlines()[:2]
    path.write_text(f"{head}\n{line.replace(*change)}\n")
    with pytest.raises(ConfigError, match=error) as found:
        rows_of(path)
    assert str(found.value).startswith("vllm.csv:2: ")
    module._parties.cache_clear()
    monkeypatch.setattr(module, "rows_of", lambda: rows_of(path))
    assert module.main(["--only", "serving_vllm"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("sim.validate_vllm: vllm.csv:2: ")
    assert said.err.count("\n") == 1


def test_a_file_without_the_fitted_row_is_one_line(monkeypatch, capsys):
    rows, *rest = module._parties()
    others = [row for row in rows if row.workload != FITTED]
    monkeypatch.setattr(module, "_parties", lambda: (others, *rest))
    assert module.main(["--only", "serving_vllm_mechanisms"]) == 2
    said = capsys.readouterr()
    assert said.err == "sim.validate_vllm: vllm.csv must have a row of workload '2,000 / 100'\n"
    assert said.out == ""


def test_an_odd_file_is_one_line(tmp_path):
    path = tmp_path / "vllm.csv"
    for text, error in (("a,b\n1,2\n", "fields must be workload"), (None, "No such file")):
        if text is not None:
            path.write_text(text)
        else:
            path.unlink()
        with pytest.raises(ConfigError, match=error):
            rows_of(path)
    path.write_text(module.FILE.read_text().splitlines()[0] + "\n")
    with pytest.raises(ConfigError, match="has no rows"):
        rows_of(path)
