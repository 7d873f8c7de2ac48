"""Measured layers as CSV, the fit, and the errors that docs/sim.md states."""

import dataclasses
import json
import re
import shutil

import pytest

from golden.config import ConfigError
from golden.kllm.config import MACHINES
from golden.kllm.isa import COMMAND_WORDS, decode
from golden.kllm.layer.program import layer_program
from sim import calibrate, calibration, claims, validate
from sim.calibration import (
    FOLDER,
    GUIDE,
    HELD_OUT,
    TRAIN,
    LayerRun,
    load_runs,
    mark_of,
    read_figures,
)
from sim.claims.__main__ import CLAIMS, rows
from sim.claims.claim import STATUSES, Claim, judge
from sim.claims.oaken_motivation import core_use
from sim.claims.oaken_tables import chip_area, synthesised
from sim.cost import Spent
from sim.engine import engine_of
from sim.kllm.units import FITTED, JUDGES, TIMINGS, Timings, fit_of, measured_ranges

assert claims  # the package of CLAIMS


@pytest.fixture(scope="module")
def layers():
    return validate.layers()


def test_judges_are_of_no_fit(tmp_path):
    """Layers of a 7B model are near what is predicted; with the marks of others they are refused.

    Shown to fail:

    - the mark of a hash for a judge, or the judges' ranges left out;
    - a cycle of each outlier in statistics;
    - rows of a ROTARY that never meet their angles.
    """
    found = validate.judges()
    assert len(found) >= 3
    assert max(abs(each.error) for each in found) < 0.02
    assert {each.run.fields["hidden"] for each in found} == {4096}
    for each in found:
        for name, (measured, predicted) in each.kinds.items():
            # The host sees an end up to 6 cycles late. APPEND alone is off by more than that.
            hidden = (12 if name == "APPEND" else 6) * each.run.cycles[name][0]
            assert abs(predicted - measured) <= max(0.05 * measured, hidden), name
    assert measured_ranges()["hidden"] == (576, 4096)
    judged = FOLDER / JUDGES
    moved = tmp_path / "runs"
    shutil.copytree(judged, moved)
    with pytest.raises(ConfigError, match="mark"):
        load_runs(moved)
    (tmp_path / JUDGES).mkdir()
    (tmp_path / JUDGES / "ranges.json").write_text("[]")
    shutil.copy(FOLDER / TIMINGS, tmp_path)
    with pytest.raises(ConfigError, match=r"no ranges of sim\.calibrate --judge"):
        measured_ranges(tmp_path)


def test_a_judge_is_added_to_the_others(tmp_path, monkeypatch, capsys):
    """A run of the same numbers takes the place of the earlier one; each has its commit.

    Shown to fail: judges that a later call drops; commits of judges that must be one.
    """
    first, second = load_runs(FOLDER / JUDGES)[:2]
    given = iter([
        dataclasses.replace(first, commit="aaaaaaaa"),
        dataclasses.replace(second, commit="bbbbbbbb"),
        dataclasses.replace(first, commit="cccccccc"),
    ])  # fmt: skip
    monkeypatch.setattr(calibrate, "read_figures", lambda file, commit: next(given))
    for _ in range(3):
        assert calibrate.main(["--judge", "f", "--commit", COMMIT, "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 layers for judging, 2 in all"
    found = {run.name: run.commit for run in load_runs(tmp_path / JUDGES)}
    assert found == {second.name: "bbbbbbbb", first.name: "cccccccc"}


def test_held_out_layers(layers):
    """The goal: 5 % in total. Shown to fail: weights of a product that wait for the one before."""
    held = [each for each in layers if each.run.mark == HELD_OUT]
    if not held:
        pytest.skip("no layer of the present programs is measured")
    assert len(held) >= 5
    assert max(abs(each.error) for each in held) <= 0.05
    assert sum(abs(each.error) for each in held) / len(held) <= 0.02
    for each in layers:
        counts = {name: count for name, (count, _) in each.run.cycles.items()}
        for name, (measured, predicted) in each.kinds.items():
            error = abs(predicted - measured)  # the host sees an end up to 6 cycles late
            assert error <= max(0.05 * measured, 6 * counts[name]), f"{each.run.name}: {name}"


def test_held_out_products():
    """Whole operations: the goal is 2 % in the mean and 5 % at worst.

    Shown to fail: MATMULs whose weights are requested when the one before begins.
    """
    made = validate.products()
    held = [each for each in made if each.run.mark == HELD_OUT]
    assert len(held) >= 24
    assert {each.run.fields["length"] for each in held} >= {768, 3072}
    assert {each.run.case.tokens for each in held} >= {1, 2, 8, 12}
    assert max(abs(each.error) for each in made) <= 0.05
    assert sum(abs(each.error) for each in held) <= 0.02 * len(held)


def test_units():
    """Blocks alone are exact; whole operations with latency keep to 2 % and 5 %."""
    units = calibration.load_units()
    whole = [
        each
        for each in units
        if each.predicted_by.startswith(("golden.oaken.timing.kv_", "golden.million."))
    ]
    decoded = [each for each in units if each.predicted_by == "golden.qet.timing.gemv_cycles"]
    alone = [each for each in units if each not in whole and each not in decoded]
    assert len(alone) > 100
    assert all(each.cycles == each.predicted for each in alone)
    # QET's prediction is an upper bound of jobs of few rows (docs/sim.md).
    whole += [each for each in decoded if each.cycles > 1000]
    assert {each.block for each in whole} >= {"million_attention", "qet_dequant_gemv"}
    errors = [abs(each.predicted / each.cycles - 1) for each in whole]
    assert max(errors) <= 0.05
    assert sum(errors) <= 0.02 * len(errors)


def test_units_become_rows(tmp_path, capsys):
    figure = {
        "command": "senbazuru.runs.lane_rates", "block": "kllm_pe_lane",
        "parameters": {"length": 64},
        "cycles": 9, "predicted": 9, "predicted_by": "golden.kllm.timing.lane_cycles",
    }  # fmt: skip
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"figures": [figure, {**figure, "predicted": None}]}))
    options = ["--units", str(file), "--commit", "0123456", "--folder", str(tmp_path)]
    assert calibrate.main(options) == 0
    (unit,) = calibration.load_units(tmp_path)
    assert (unit.cycles, unit.block, unit.commit) == (9, "kllm_pe_lane", "0123456")
    assert "1 figures" in capsys.readouterr().out
    file.write_text("[]")
    assert calibrate.main(options) == 2
    assert "a.json: no measured cycles" in capsys.readouterr().err


def test_tokens_of_products_are_in_order():
    """Shown to fail: ordered by the first number alone, which leaves the others to a set's hash."""
    text = validate.sections([], validate.products(), [], [])["sim_validate_products"]
    listed = [line.split("|")[4].split() for line in text.splitlines()[2:] if line]
    assert any("4/2" in each and "4/4" in each for each in listed)
    for each in listed:
        assert each == sorted(each, key=lambda one: tuple(map(int, one.split("/"))))


def product_file(tmp_path, **changes):
    """A file of senbazuru.runs.accelerator_rates with one case: two figures."""
    machine = dataclasses.asdict(MACHINES["smollm2"])
    figure = {
        "command": "senbazuru.runs.accelerator_rates",
        "configuration": {
            "machine": machine, "build": {"counter": "select", "macs": 32}, "width": 8
        },
        "parameters": {
            "length": 640, "outputs": 576, "tokens": 4, "tokens_at_a_time": 2,
            "outliers": "online", "memory_latency": 40, **changes,
        },
        "cycles": 300,
    }  # fmt: skip
    file = tmp_path / "products.json"
    file.write_text(json.dumps({"figures": [figure, {**figure, "cycles": 900}]}))
    return file


def test_products_become_rows(tmp_path, capsys):
    file = product_file(tmp_path)
    options = ["--products", str(file), "--commit", "0123456", "--folder", str(tmp_path)]
    assert calibrate.main(options) == 0
    (run,) = calibration.load_products(tmp_path)
    assert (run.quantized, run.cycles, run.mark) == (300, 900, HELD_OUT)
    assert (run.case.tokens, run.case.at_a_time, run.case.online) == (4, 2, True)
    assert (run.matrix, run.tokens) == ("640 x 576, 4 lanes, 4 ports, latency 40", "4/2")
    assert "1 products, none for fitting" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("[]", "no measured products"),
        ('{"figures": [{}]}', "no measured products"),
        ('{"figures": [{"command": "a", "parameters": {}}, {"command": "a", "parameters": {}}]}',
         "must come from senbazuru.runs.accelerator_rates"),
    ],
)  # fmt: skip
def test_other_files_are_no_products(tmp_path, capsys, content, error):
    file = tmp_path / "products.json"
    file.write_text(content)
    options = ["--products", str(file), "--commit", "0123456", "--folder", str(tmp_path)]
    assert calibrate.main(options) == 2
    assert error in capsys.readouterr().err


def test_a_case_that_does_not_divide(tmp_path, capsys):
    file = product_file(tmp_path, tokens_at_a_time=3)
    options = ["--products", str(file), "--commit", "0123456", "--folder", str(tmp_path)]
    assert calibrate.main(options) == 2
    assert "at_a_time must be a divisor of 4 tokens, not 3" in capsys.readouterr().err


def test_marks_come_from_the_hash():
    """They do not depend on the order of the fields, and a third is for fitting."""
    fields = {"lanes": 4, "context": 8}
    assert mark_of(fields) == mark_of(dict(reversed(fields.items())))
    marks = [mark_of({"context": n}) for n in range(600)]
    assert 150 < marks.count(TRAIN) < 250


FIELDS = {
    "lanes": 4, "columns": 32, "elements": 16, "bits_b": 4, "slot_elements": 1536, "slots": 16,
    "outliers_max": 64, "bits_a": 4, "integer_bits": 8, "vector_rows": 2048, "ports": 4,
    "port_bits": 512, "product": "rounded", "softmax_elements": 1024, "replay_beats": 128,
    "counter": "select", "macs": 32, "width": 8, "batch": 8, "queries": 3, "engines": 1,
    "cache_heads": 3,
    "cache_head_dim": 64, "block": 64, "groups": 1, "page_bytes": 4096, "max_tokens": 512,
    "functions": 1, "ahead": 0, "banks": 1, "packet_words": 1, "cache_bits": 512,
    "attention_lanes": 64, "attention_macs": 192, "attention_words": 256, "latency": 40,
    "tokens": 1, "context": 100,
    "hidden": 576, "heads": 9, "kv_heads": 3, "head_size": 64, "intermediate": 1536,
    "epsilon": 1e-5, "fuse": 1, "glu": "index", "share": 0.005,
}  # fmt: skip
COMMIT = fit_of().commit


def made_run(timings=None, **changes):
    """A run of SmolLM2 whose cycles are those that the schedule predicts."""
    run = LayerRun({**FIELDS, **changes}, COMMIT, {})
    f = run.fields
    words = layer_program(run.shape, run.options, run.machine, f["tokens"], f["context"]).words
    commands = [decode(words[at : at + COMMAND_WORDS])[0].name
                for at in range(0, len(words), COMMAND_WORDS)]  # fmt: skip
    kinds = {name: (commands.count(name), 1) for name in dict.fromkeys(commands)}
    whole, found = validate.predict(
        dataclasses.replace(run, cycles=kinds), timings or Timings.fitted()
    )
    cycles = {name: (count, round(found[name])) for name, (count, _) in kinds.items()}
    return dataclasses.replace(run, cycles={**cycles, "all": (1, round(whole))})


# Those for fitting first.
LAYERS = sorted(
    (made_run(context=context) for context in range(8, 28)),
    key=lambda run: [TRAIN, HELD_OUT].index(run.mark),
)


def copied(tmp_path):
    """The files of ``sim/calib``, and layers of the present programs."""
    for file in FOLDER.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    calibration.save(LAYERS, tmp_path)
    return tmp_path


def test_layers_have_errors(tmp_path):
    """Tables of layers that the schedule itself has made have no errors, but for roundings."""
    found = validate.layers(copied(tmp_path))
    assert len(found) == len(LAYERS)
    assert max(abs(each.error) for each in found) < 1e-3
    text = validate.sections(found, [], [], [])
    train = sum(run.mark == TRAIN for run in LAYERS)
    assert f"| decoder layers of KLLM, train | {train} | 9 | 0.0" in text["sim_validate"]
    assert "| ATTEND |" in text["sim_validate_kinds"]
    assert text["sim_validate_layers"].count("held-out") == len(LAYERS) - train


def test_no_layer_is_measured(tmp_path, capsys):
    """Delays of an earlier fit stay, and the tables say that there is no layer."""
    copied(tmp_path)
    for name in (calibration.RUNS, calibration.CYCLES):
        (tmp_path / name).unlink()
    assert load_runs(tmp_path) == []
    assert validate.main(["--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("No layer of the present programs is measured.") == 4
    assert calibrate.main(["--fit", "--folder", str(tmp_path)]) == 2
    assert "no run is for fitting" in capsys.readouterr().err


ROW = LAYERS[0].cycles["LOAD"]
LOADS = f"0,LOAD,{ROW[0]},{ROW[1]}"  # of the first run


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (",train,", ",held-out,", "mark of run 0 must be train, not held-out"),
        (f"{COMMIT}\n1,", "0123456789\n1,", f"commit must be one, not 0123456789, {COMMIT}"),
        ("run,mark,", "number,mark,", "'run'"),
    ],
)
def test_bad_runs(old, new, line, tmp_path, capsys):
    """A mark that somebody chose, and rows of two commits, are refused."""
    folder = copied(tmp_path)
    file = folder / calibration.RUNS
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=line):
        load_runs(folder)
    assert validate.main(["--folder", str(folder)]) == 2
    assert capsys.readouterr().err.startswith("sim.validate: ")


PRODUCT = "4096,512,1,1,online,618,3069,f218761072\n"  # the end of a row of PRODUCTS


@pytest.mark.parametrize(
    ("name", "old", "new", "line"),
    [
        (calibration.RUNS, f",{COMMIT}\n", "\n", "row 0 must have a cell for each column"),
        (calibration.CYCLES, f"\n{LOADS}", "\n0,LOAD", "row 0 must have a cell"),
        (calibration.CYCLES, "run,", "\udcff,", "codec"),
        (calibration.CYCLES, LOADS, LOADS.replace("LOAD", "TRIM"), "TRIM must be in the program"),
        (calibration.CYCLES, LOADS, "0,LOAD,8,-1", "cycles must be 1 or more"),
        (calibration.UNITS, ",06d9ba525e\n", ",06d9ba525e,1\n", "row 0 must have a cell"),
        (calibration.PRODUCTS, ",f218761072\n", "\n", "row 0 must have a cell"),
        (calibration.PRODUCTS, PRODUCT, PRODUCT.replace("f21", "021"), "commit must be one, not"),
        (calibration.PRODUCTS, PRODUCT, PRODUCT.replace("618", "0"), "quantized must be 1 or"),
        (calibration.PRODUCTS, PRODUCT, PRODUCT.replace("3069", "-1"), "cycles must be 1 or more"),
        (calibration.PRODUCTS, PRODUCT, PRODUCT.replace("512", "x"), "outputs must be 1 or more"),
        (calibration.PRODUCTS, PRODUCT, PRODUCT.replace("online", "on"), "must be online or off"),
        (calibration.PRODUCTS, PRODUCT, PRODUCT.replace("4096", "99999"), "no 6250 rows in a row"),
    ],
)
def test_damaged_files(name, old, new, line, tmp_path, capsys):
    """One line, and no traceback, whatever a cell is."""
    folder = copied(tmp_path)
    text = (folder / name).read_text()
    assert old in text
    text = text.replace(old, new, 1)
    (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert validate.main(["--folder", str(folder)]) == 2
    error = capsys.readouterr().err
    assert re.search(line, error)
    assert error.startswith("sim.validate: ")
    assert error.count("\n") == 1


def test_guides_alone(tmp_path, capsys):
    """The summary has no row of products that judge, and no traceback, where there is none."""
    folder = copied(tmp_path)
    file = folder / calibration.PRODUCTS
    rows = file.read_text().splitlines(keepends=True)
    file.write_text("".join(rows[:3]))
    assert {run.mark for run in calibration.load_products(folder)} == {GUIDE}
    assert validate.main(["--folder", str(folder)]) == 0
    assert "products of KLLM, held-out" not in capsys.readouterr().out


def test_a_unit_without_cycles(tmp_path, capsys):
    folder = copied(tmp_path)
    file = folder / calibration.UNITS
    head, row, *rows = file.read_text().splitlines()
    cells = row.replace(f",{calibration.load_units()[0].cycles},", ",0,", 1)
    assert cells != row
    file.write_text("\n".join((head, cells, *rows)))
    assert validate.main(["--folder", str(folder)]) == 2
    assert "must be 1 or more, not 0" in capsys.readouterr().err


def test_no_calibration(tmp_path, capsys):
    assert validate.main(["--folder", str(tmp_path)]) == 2
    assert "No such file" in capsys.readouterr().err


def figures(run, **changes):
    """The file of senbazuru.runs.layer that a run comes from."""
    f = {**run.fields, **changes}
    lane = {name: f[name] for name in ("lanes", "columns", "elements", "bits_b")}
    slot = {name: f[name] for name in ("slots", "outliers_max", "bits_a", "integer_bits")}
    machine = {
        "lane": lane, "slot": {**slot, "elements": f["slot_elements"]},
        "vectors": {"rows": f["vector_rows"]},
        "ports": {"ports": f["ports"], "bits": f["port_bits"]},
        **{name: f[name] for name in ("product", "softmax_elements", "replay_beats")},
        **{name: f[name] for name in ("batch", "queries", "engines")},
        "cache": {
            "kv": {
                "heads": f["cache_heads"], "head_dim": f["cache_head_dim"], "block": f["block"],
                "groups": f["groups"],
            },
            **{name: f[name] for name in ("page_bytes", "max_tokens")},
        },
    }  # fmt: skip
    build = {name: f[name] for name in ("counter", "macs", "packet_words")}
    cache = {"data_bits": f["cache_bits"], "lanes": f["attention_lanes"],
             "macs": f["attention_macs"], "token_beats": f["attention_words"]}  # fmt: skip
    configuration = {
        "machine": machine, "build": build, "cache": cache, "width": f["width"],
        "functions": f["functions"], "ahead": bool(f["ahead"]), "banks": f["banks"],
    }  # fmt: skip
    given = {name: f[name] for name in calibration._SHAPE} | {"memory_latency": f["latency"]}
    made = [
        {
            "command": "senbazuru.runs.layer", "configuration": configuration, "cycles": cycles,
            "parameters": {"opcode": name if name == "all" else f"{name} 3", **given},
        }
        for name, (_, cycles) in run.cycles.items()
    ]  # fmt: skip
    return {"version": 1, "figures": made}


def test_figures_become_rows_and_come_back(tmp_path, capsys):
    run = LAYERS[0]
    file = tmp_path / "a.json"
    file.write_text(json.dumps(figures(run)))
    found = read_figures(file, run.commit)
    assert found.fields == run.fields
    assert found.machine == run.machine
    assert found.total == run.total
    folder = tmp_path / "calib"
    folder.mkdir()
    assert calibrate.main([str(file), "--commit", run.commit, "--folder", str(folder)]) == 0
    (again,) = load_runs(folder)
    assert again == found
    assert run.name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"version": 2}, "version must be 1, not 2"),
        ({"figures": []}, "no figures of a layer"),
        (
            {"figures": [{"command": "senbazuru.runs.lane_rates"}]},
            "must come from senbazuru.runs.layer",
        ),
        ({"figures": figures(LAYERS[0], tokens=[])["figures"]}, "tokens must be 1 or more"),
        ({"figures": figures(LAYERS[0], lanes=-1)["figures"]}, "lanes must be 1..64, not -1"),
        (figures(LAYERS[0], functions=3), "Units.functions must be 1 or 2 or 4 or 8"),
        (figures(LAYERS[0], groups=2), "KvShape.groups must be a divisor of heads = 3"),
    ],
)
def test_bad_figures(change, line, tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps({**figures(LAYERS[0]), **change}))
    with pytest.raises(ConfigError, match=line):
        read_figures(file, "0123456")


def test_bad_commands(capsys):
    for options, line in (([], "FILE or --fit"), (["x"], "--commit must be 7 to 40 hex digits")):
        with pytest.raises(SystemExit):
            calibrate.main(options)
        assert line in capsys.readouterr().err


def test_fit_finds_what_made_the_rows():
    """Rows that the schedule itself made give back their delays, or others just as good."""
    secret = dataclasses.replace(Timings.fitted(), finish=18, load=14)
    made = [made_run(secret, context=context) for context in (8, 100)]
    start = Timings.fitted()
    found = calibrate.fit(made, start)
    assert calibrate.loss(made, found) < 1e-5 < calibrate.loss(made, start)
    assert set(FITTED) <= {field.name for field in dataclasses.fields(Timings)}


def test_polls_are_no_error():
    """The bench sees an end up to 6 cycles late, so 2 cycles of each command do not count.

    Shown to fail: a loss of each cycle.
    """
    run, least = LAYERS[0], {}
    for late in (2, 10):
        cycles = {
            name: (count, amount + late * count * (name != "all"))
            for name, (count, amount) in run.cycles.items()
        }
        moved = dataclasses.replace(run, cycles=cycles)
        least[late] = calibrate.loss([moved], Timings.fitted())
    assert least[2] < 1e-8 < 1e-5 < least[10]


def test_delays_of_another_commit(tmp_path, capsys):
    """Measured layers of one commit and delays that were fitted on another do not go together.

    Shown to fail: commits that are not compared.
    """
    file = copied(tmp_path) / TIMINGS
    file.write_text(file.read_text().replace(COMMIT, "0123456789"))
    assert validate.main(["--folder", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"{TIMINGS}: fitted on runs of commit 0123456789" in error
    assert f"has those of {COMMIT}: python -m sim.calibrate --fit" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "no delays of sim.calibrate --fit"),
        ("[]", "no delays of sim.calibrate --fit"),
        ('{"load": 3}', "no delays of sim.calibrate --fit"),
        ('{"commit": "0123456"}', "must have commit, ranges of lanes, "),
        ('{"commit": 7, "load": 3}', "must have commit, ranges of lanes, "),
    ],
)
def test_damaged_delays(tmp_path, capsys, content, line):
    (copied(tmp_path) / TIMINGS).write_text(content)
    assert validate.main(["--folder", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("name", "value"), [("overlap", -1), ("load", "3"), ("read_word", None)])
def test_delays_out_of_range(tmp_path, capsys, name, value):
    file = copied(tmp_path) / TIMINGS
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    assert validate.main(["--folder", str(tmp_path)]) == 2
    assert f"Timings.{name} must be" in capsys.readouterr().err


def claim(claimed, values, trend=False):
    named = {str(n): value for n, value in enumerate(values)}
    return judge(
        Claim(
            paper="p", figure="1", what="w", claimed=claimed, variants=list(named),
            measure=named.__getitem__ if named else None, trend=trend,
        )
    ).status  # fmt: skip


def test_statuses():
    """Shown to fail: the interval of the variants alone, without its width of 5 %."""
    assert claim(8.66, [8.0, 9.4]) == "reproduced"
    assert claim(8.66, [2.0, 8.3]) == "consistent with"
    assert claim(8.66, [2.0, 8.2]) == "not reproduced"
    assert claim(8.66, [9.5, 20.0]) == "not reproduced"
    assert claim(8.66, []) == "not testable"
    assert claim(1, [1, 1], True) == "reproduced"
    assert claim(1, [0, 1], True) == "consistent with"
    assert claim(1, [0, 0], True) == "not reproduced"


def test_a_refused_variant_is_missing_not_zero():
    def measure(variant):
        if variant == "b":
            raise ConfigError("b: does not fit")
        return 2.0

    found = judge(
        Claim(paper="p", figure="1", what="w", claimed=2, variants=["a", "b"], measure=measure)
    )
    assert found.status == "reproduced"
    assert found.missing == {"b": "b: does not fit"}
    assert "does not fit" in rows([found])["claims_p"]


def test_every_claim_says_what_it_is():
    assert len(CLAIMS) >= 160
    for each in CLAIMS:
        assert each.paper
        assert each.what
        assert each.variants if each.measure else each.reason, each.what
    names = [(each.paper, each.figure, each.what) for each in CLAIMS]
    assert len(names) == len(set(names))
    assert len(STATUSES) == 5


def test_claims_without_chips():
    """Those that are arithmetic on the paper's own numbers."""
    found = {each.what: judge(each) for each in CLAIMS if each.figure == "Table I"}
    assert found["area of the chip"].status == "reproduced"
    assert found["power of the chip"].interval == pytest.approx((8.388, 8.388), abs=0.001)


def judged(paper, figures):
    """Claims by what they say, each computed."""
    chosen = [each for each in CLAIMS if each.paper == paper and each.figure in figures]
    return {each.what: judge(each) for each in chosen}


def test_oaken_tables():
    found = judged("Oaken", ("Table 1", "Table 4"))
    assert found["overhead of both engines"].interval == pytest.approx((8.2095, 8.9436), abs=1e-3)
    assert found["share of the dequantization"].status == "reproduced"
    assert found["Oaken-LPDDR: memory bandwidth"].interval == pytest.approx((1.0925, 1.0925), 1e-3)
    assert found["Oaken: peak in FP16"].status == "fitted"
    assert found["area of the compute core"].status == "not testable"
    for name, claimed in (("quantization", 0.074), ("dequantization", 0.252)):
        area = found[f"area of the {name} engine"]
        assert len(area.values) == 4
        assert not area.missing
        assert area.claim.claimed == claimed
        assert area.values[f"{name}, 8"] < area.values[f"{name}, 64"]


def test_oaken_tables_together():
    """135,000 products in a cycle are, by hand, 264 cores of 512, and 421 cores of 321."""
    (found,) = judged("Oaken", ("Tables 1 and 4",)).values()
    assert chip_area("512 products").to("mm2") == pytest.approx(264 * 3.971)
    assert chip_area("KLLM's MAC").to("mm2") == pytest.approx(421 * 3.971)
    assert set(found.values.values()) == {0.0}
    assert found.status == "not reproduced"
    assert "1,048 mm2" in found.claim.reason


def test_memory_of_oaken_figures():
    """OPT-30B has 60 GB of weights by hand, Mixtral-8x7B 93 GB, and HBM 80 GB."""
    assert judged("Oaken", ("4b",))["OPT-30B: HBM is out of memory"].status == "reproduced"
    assert judged("Oaken", ("5a",))["K and V take more memory than the weights"].status == (
        "reproduced"
    )
    mixtral = next(each for each in CLAIMS if each.what == "Mixtral-8x7B does not fit Oaken-HBM")
    assert judge(mixtral).status == "reproduced"
    assert mixtral.measure("oaken-lpddr") == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "No such file"),
        (b"\xff\xfe", "codec"),
        (b"| quantization, 8 | 1 | 2 | 0.1 |", "has no areas of Oaken's engines"),
        (b"<!-- generated: oaken_engines -->\n| a |\n<!-- end", "has no areas of Oaken's engines"),
    ],
)
def test_a_page_without_areas(text, line, tmp_path):
    page = tmp_path / "area.md"
    if text is not None:
        page.write_bytes(text)
    with pytest.raises(ConfigError, match=r"^area\.md: ") as error:
        synthesised(page)
    assert line in str(error.value)


@pytest.mark.parametrize(
    ("name", "products"), [("a100-80gb", 156e12), ("lpu", 135e12), ("oaken-hbm-fp16", 135e12)]
)
def test_use_of_cores(name, products):
    """Products per second by the data sheets. Shown to fail with operations for products."""
    spent = Spent("down", 2.0, {}, {}, products)
    assert core_use(engine_of(name), spent) == pytest.approx(0.5)


def test_a_page_has_figures_before_tables_and_trends_apart():
    def made(figure, trend):
        return judge(
            Claim(
                paper="p", figure=figure, what="w", claimed=1, variants=["a"],
                measure=lambda _: 1.0, trend=trend,
            )
        )  # fmt: skip

    found = rows([made(each, each == "9") for each in ("text", "Table 1", "10b", "9", "10a")])
    lines = found["claims_p"].splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == [
        "| 9",
        "| 10a",
        "| 10b",
        "| Table 1",
        "| text",
    ]
    assert "| p, numbers | 4 | 0 | 0 | 0 | 0 |\n| p, trends | 1 |" in found["claims_summary"]
