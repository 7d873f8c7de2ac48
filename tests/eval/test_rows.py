"""golden.llm.eval's rows: shown and kept when done, resumed, estimated, plotted; files of methods.

Seen to fail:

- rows printed at the end, or kept at the end;
- seq, seed, text or model left out of the settings;
- a file of results written in place;
- rows of other code taken from the file;
- a file of methods imported with the others, without its own ``try``;
- the added files of one run known to the next.
"""

import csv
import json
import math
import os
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from golden.config import ConfigError
from golden.llm import methods
from golden.llm.eval import command, estimate
from golden.llm.eval.command import main
from golden.llm.eval.perplexity import loss
from golden.llm.eval.plot import draw
from golden.llm.eval.rows import latex_table
from golden.llm.methods import parse_all
from tests.tiny import tiny_llama

COMMON = ["--seq", "16", "--tokens", "64", "--calibration-tokens", "32"]
THREE = ["--method", "fp32", "rtn-w4a4", "oaken"]


@pytest.fixture(autouse=True)
def loaded(tiny, monkeypatch):
    monkeypatch.setattr(command, "load", lambda *_: tiny)


def run(capsys, *arguments) -> tuple[int, str, str]:
    code = main([*COMMON, *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def names(text: str) -> list[str]:
    """Methods of the printed table."""
    return [line.split(" | ")[0][2:] for line in text.splitlines() if line.startswith("| ")][2:]


def test_lessons_that_are_too_long_are_refused_before_the_first_method(monkeypatch, capsys):
    """Seen to fail: the methods before had run, for minutes on a real model."""
    monkeypatch.setattr(command, "evaluate", None)
    code, out, err = run(capsys, *THREE, "--calibration-tokens", 10**6)
    assert (code, out) == (2, "")
    assert err.startswith("eval: calibration tokens must be 2..")
    code, out, err = run(capsys, *THREE, "--calibration-windows", 10**6)
    assert (code, out) == (2, "")
    assert err.startswith("eval: the built-in text has ")


# ---- rows that are kept


def test_a_row_that_has_lost_a_field_is_refused_before_the_model(tmp_path, monkeypatch, capsys):
    """Each of these was a traceback after the model had loaded."""
    file = tmp_path / "rows.json"
    assert run(capsys, "-o", file)[0] == 0
    whole = file.read_text()
    monkeypatch.setattr(command, "load", None)
    for field in ("seconds", "memory_bytes", "bit_true", "tasks", "bits"):
        kept = json.loads(whole)
        del kept["results"][0][field]
        file.write_text(json.dumps(kept))
        damaged = f"eval: {file} is damaged: it has no settings or no rows\n"
        assert run(capsys, "-o", file, "--resume") == (2, "", damaged), field
    for field, value in (("perplexity", "high"), ("bits", {"weights": 4}), ("method", ["fp32"])):
        kept = json.loads(whole)
        kept["results"][0][field] = value
        file.write_text(json.dumps(kept))
        assert run(capsys, "-o", file, "--resume")[0] == 2, field
    file.write_text("[" * 100_000)
    assert run(capsys, "-o", file, "--resume")[2].endswith("is not a file of golden.llm.eval -o\n")


def test_a_full_disk_names_no_none(tmp_path, monkeypatch, capsys):
    """``write`` on a full disk raises an OSError without the file's name."""

    def evaluate(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command.Kept, "add", evaluate)
    code, _, err = run(capsys, "-o", tmp_path / "rows.json")
    assert (code, err.splitlines()[-1]) == (2, "eval: output: No space left on device")


def test_rows_are_shown_and_kept_when_done_and_resumed(tmp_path, monkeypatch, capsys):
    file = tmp_path / "rows.json"
    real, seen = command.evaluate, []

    def evaluate(checkpoint, name, *more):
        """Stop at the third, with two rows shown and kept."""
        seen.append(name)
        if name == "oaken":
            assert names(capsys.readouterr().out) == ["fp32", "rtn-w4a4"]
            kept = json.loads(file.read_text())
            assert [row["method"] for row in kept["results"]] == ["fp32", "rtn-w4a4"]
            raise KeyboardInterrupt
        return real(checkpoint, name, *more)

    monkeypatch.setattr(command, "evaluate", evaluate)
    assert run(capsys, *THREE, "-o", file) == (
        130, "", f"eval: interrupted: --resume continues {file}\n"
    )  # fmt: skip
    assert seen == ["fp32", "rtn-w4a4", "oaken"]
    monkeypatch.setattr(command, "evaluate", real)
    seen.clear()
    monkeypatch.setattr(command, "evaluate", lambda *each: seen.append(each[1]) or real(*each))
    code, out, _ = run(capsys, *THREE, "-o", file, "--resume")
    assert (code, names(out), seen) == (0, ["fp32", "rtn-w4a4", "oaken"], ["oaken"])
    kept = {row["method"]: row for row in json.loads(file.read_text())["results"]}
    _, out, _ = run(capsys, *THREE, "--json")
    for row in json.loads(out)["results"]:
        for field in ("perplexity", "bits", "window_losses", "parameters", "code"):
            assert kept[row["method"]][field] == row[field], field
    assert list(tmp_path.iterdir()) == [file]
    # Another method is added to the file, and rows of other methods stay in it.
    seen.clear()
    code, out, _ = run(capsys, "--method", "fp16", "fp32", "-o", file, "--resume")
    assert (code, names(out), seen) == (0, ["fp16", "fp32"], ["fp16"])
    rows = json.loads(file.read_text())["results"]
    assert [row["method"] for row in rows] == ["fp32", "rtn-w4a4", "oaken", "fp16"]


def test_resume_of_no_file_begins_one(tmp_path, capsys):
    code, _, _ = run(capsys, "-o", tmp_path / "rows.json", "--resume")
    assert code == 0
    assert (tmp_path / "rows.json").is_file()


def test_rows_of_other_code_are_measured_again(tmp_path, monkeypatch, capsys):
    file = tmp_path / "rows.json"
    run(capsys, "-o", file)
    content = json.loads(file.read_text())
    content["results"][0]["perplexity"] = 1.0
    file.write_text(json.dumps(content))
    assert "| fp32 | 1.000 |" in run(capsys, "-o", file, "--resume")[1]
    monkeypatch.setattr(command, "code_version", lambda modules: "of other code")
    assert "| fp32 | 1.000 |" not in run(capsys, "-o", file, "--resume")[1]


OTHERS = [
    (["--seq", "32"], "seq 16, this run 32"),
    (["--tokens", "48"], "tokens 64, this run 48"),
    (["--seed", "1"], "seed 0, this run 1"),
    (["--calibration-windows", "2"], "calibration_windows of the method, this run 2"),
    (["--calibration-tokens", "16"], "calibration_tokens 32, this run 16"),
    (["--bit-true", "*.0.mlp.up_proj"], "bit_true [], this run ['model.layers.0.mlp.up_proj']"),
    (["--calibration-text", "{tmp}/text"], "calibration_text "),
    (["--text", "{tmp}/text"], "text "),
]


@pytest.mark.parametrize(("more", "line"), OTHERS)
def test_other_settings_are_refused(tmp_path, capsys, more, line):
    file = tmp_path / "rows.json"
    (tmp_path / "text").write_text("another text, of no fewer letters. " * 10)
    assert run(capsys, "-o", file)[0] == 0
    before = file.read_bytes()
    filled = [each.format(tmp=tmp_path) for each in more]
    code, out, err = run(capsys, "-o", file, "--resume", *filled)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"eval: {file} has {line}")
    assert file.read_bytes() == before


def test_another_model_is_refused(tmp_path, monkeypatch, capsys):
    run(capsys, "-o", tmp_path / "rows.json")
    monkeypatch.setattr(command, "load", lambda *_: tiny_llama(seed=5))
    code, _, err = run(capsys, "-o", tmp_path / "rows.json", "--resume")
    assert code == 2
    assert err.startswith(f"eval: {tmp_path / 'rows.json'} has model ")


BAD = [
    (["-o", "{tmp}"], "output must be a file, not the folder {tmp}"),
    (["-o", "{tmp}/no/file"], "no folder {tmp}/no to write to"),
    (["-o", "{tmp}/old"], "{tmp}/old exists: --resume continues it"),
    (["-o", "{tmp}/old", "--resume"], "{tmp}/old is not a file of golden.llm.eval -o"),
    (["-o", "{tmp}/cut", "--resume"], "{tmp}/cut is not a file of golden.llm.eval -o"),
    (
        ["-o", "{tmp}/next", "--resume"],
        "{tmp}/next is not a file of golden.llm.eval -o of version 1",
    ),
    (["-o", "{tmp}/hurt", "--resume"], "{tmp}/hurt is damaged: it has no settings or no rows"),
    (["--resume"], "resume needs the file of -o"),
    (["--plot", "{tmp}/a.png"], "plot must be a file .svg, not {tmp}/a.png"),
    (["--plot", "{tmp}/no/a.svg"], "no folder {tmp}/no to write to"),
    (["--methods", "{tmp}/none.py"], "there is no Python file {tmp}/none.py"),
    (["--methods", "{tmp}"], "there is no Python file {tmp}"),
    (["--methods", "{tmp}/wrong.py"], "methods: {tmp}/wrong.py:2: SyntaxError: "),
    (["--methods", "{tmp}/fails.py"], "methods: {tmp}/fails.py:2: ZeroDivisionError: "),
    (["--methods", "{tmp}/empty.py"], "{tmp}/empty.py defines no Method with a pattern"),
    (["--methods", "{tmp}/twice.py"], "{tmp}/twice.py: there is a method rtn-w4a4 already"),
    (["--methods", "{tmp}/good.py", "{tmp}/good.py"], "{tmp}/good.py: there is a method doubled"),
    (["--methods", "{tmp}/pattern.py"], "{tmp}/pattern.py: Doubled.pattern: "),
]

DOUBLED = '''
import dataclasses
from typing import ClassVar
from golden.llm.eval.method import Method

@dataclasses.dataclass(frozen=True, kw_only=True)
class Doubled(Method):
    """Twice the inputs."""
    pattern: ClassVar[str] = "doubled"
    spellings: ClassVar[tuple] = ("doubled",)
    factor: float = 2.0
    def install(self, site, state):
        for linear in site.linears.values():
            site.input(linear, lambda x: self.factor * x)
'''


@pytest.mark.parametrize(("arguments", "line"), BAD)
def test_bad_input_is_one_line_before_the_model_is_read(
    tmp_path, monkeypatch, capsys, arguments, line
):
    (tmp_path / "old").write_text("{}")
    (tmp_path / "cut").write_text('{"format": "senba')
    head = {"format": "senbazuru evaluation", "version": 1}
    (tmp_path / "next").write_text(json.dumps({**head, "version": 2}))
    (tmp_path / "hurt").write_text(json.dumps({**head, "settings": {}, "results": [{}]}))
    (tmp_path / "wrong.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "fails.py").write_text("x = 0\ny = 1 / x\n")
    (tmp_path / "empty.py").write_text("from golden.llm.eval.method import Method\n")
    (tmp_path / "good.py").write_text(DOUBLED)
    (tmp_path / "twice.py").write_text(DOUBLED.replace('"doubled"', '"rtn-w4a4"'))
    (tmp_path / "pattern.py").write_text(DOUBLED.replace('str] = "doubled"', 'str] = "("'))

    def load(*_):
        raise AssertionError("the model is read")

    monkeypatch.setattr(command, "load", load)
    filled = [each.format(tmp=tmp_path) for each in arguments]
    code, out, err = run(capsys, *filled)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("eval: " + line.format(tmp=tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_not_writable_is_refused(tmp_path, capsys):
    tmp_path.chmod(0o500)
    code, _, err = run(capsys, "-o", tmp_path / "rows.json")
    assert (code, err) == (2, f"eval: the folder {tmp_path} is not writable\n")


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch, capsys):
    file = tmp_path / "rows.json"
    run(capsys, "-o", file)
    before = file.read_bytes()

    def replace(self, target):
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr("pathlib.Path.replace", replace)
    code, _, err = run(capsys, "--method", "fp16", "-o", file, "--resume")
    assert (code, err) == (2, f"eval: {file}: No space left on device\n")
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


# ---- files of methods


def test_a_file_of_methods_outside_the_package(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(DOUBLED)
    mine = ["--methods", tmp_path / "mine.py"]
    code, out, _ = run(capsys, *mine, "--method", "doubled", "doubled:factor=1", "fp32", "--json")
    assert code == 0
    twice, once, plain = (row["perplexity"] for row in json.loads(out)["results"])
    assert once == plain != twice
    assert "doubled: Twice the inputs.\n    factor=2.0\n" in run(capsys, *mine, "--list")[1]
    code, _, err = run(capsys, "--method", "doubled")
    assert code == 2
    assert err.startswith("eval: there is no method 'doubled'")


def test_a_fault_in_a_method_is_one_line_with_its_place(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(DOUBLED.replace("site.linears.values()", "site.linear"))
    code, _, err = run(capsys, "--methods", file, "--method", "doubled")
    where = file.read_text().split("\n").index("        for linear in site.linear:") + 1
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"eval: doubled: {file}:{where}: AttributeError: ")


def test_a_file_that_exits_is_one_line(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("import sys\n\nsys.exit(7)\n")
    code, _, err = run(capsys, "--methods", file, "--method", "fp32")
    assert (code, err) == (2, f"eval: methods: {file}:3: SystemExit: 7\n")


def test_a_broken_file_stops_only_its_own_methods(tmp_path, monkeypatch, capsys):
    (tmp_path / "aaa.py").write_text("x = 1\nimport nothing_of_this_name\n")
    (tmp_path / "zzz.py").write_text("x = (1\n")
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    methods.built_in.cache_clear()
    try:
        code, out, err = run(capsys, *THREE)
        assert (code, names(out)) == (1, ["fp32", "rtn-w4a4", "oaken"])
        first, second = err.splitlines()
        assert first.startswith(f"eval: {tmp_path}/aaa.py:2: ModuleNotFoundError: No module")
        assert second.startswith(f"eval: {tmp_path}/zzz.py:1: SyntaxError: ")
        assert main(["--list"]) == 1
        with pytest.raises(ConfigError, match=r"cannot be read: .*aaa\.py:2: Module"):
            parse_all("aaa")
    finally:
        methods.built_in.cache_clear()


# ---- the time before the run


def test_the_piece_is_at_most_a_fiftieth():
    for seq in (2, 16, 40, 2048):
        for tokens in range(seq, 40000, 997):
            for count in (1, 3, 20):
                found = estimate.piece(seq, tokens, count)
                assert found == 0 or 32 <= found <= seq
                assert 50 * 2 * (found + found // 4) <= tokens * count
    assert estimate.piece(2048, 20480, 1) == 160
    assert estimate.piece(2048, 10**6, 1) == 2048
    assert estimate.piece(2048, 1000, 1) == 0
    assert estimate.piece(2048, 20480, 0) == 0  # all rows are kept


def test_operations_are_those_of_the_layers(tiny):
    """Each linear layer at 2 per weight, scores and their sums at 2 per element each."""
    shapes = [each.weight.shape for each in tiny.model.modules() if isinstance(each, nn.Linear)]
    assert sum(n * k for n, k in shapes) == 2 * (2 * 72 * 36 + 2 * 24 * 36 + 3 * 56 * 36) + 64 * 36
    assert estimate.operations(tiny.model, 0) == 2 * sum(n * k for n, k in shapes)
    more = estimate.operations(tiny.model, 11) - estimate.operations(tiny.model, 1)
    assert more == 2 * 10 * 2 * (2 * 72)


@pytest.mark.parametrize("fixed", [0.0, 3.0])
@pytest.mark.parametrize("length", [32, 64])
def test_seconds_are_scaled_to_the_window(tiny, monkeypatch, fixed, length):
    """A pass takes a fixed time and one by operations; the first of each size is slower."""
    now, sizes = [0.0], []

    def work(size):
        return 1e-3 * size * estimate.operations(tiny.model, size)

    def slow(model, batches):
        size = batches[0].numel()
        now[0] += fixed + work(size) + (0 if size in sizes else 50 if size == 8 else 5)
        sizes.append(size)

    monkeypatch.setattr(estimate, "loss", slow)
    monkeypatch.setattr(estimate.time, "monotonic", lambda: now[0])
    least, most = estimate.seconds_per_token(tiny.model, torch.arange(length), 32)
    assert sizes == [8, 32, 8, 32]
    assert least == pytest.approx((fixed + work(length)) / length)
    assert most == pytest.approx((fixed + work(32) + 5) * work(length) / work(32) / length)


def test_the_factor_of_a_combination_is_a_product():
    """Shown to fail: a sum."""
    assert estimate.factor([SimpleNamespace(relative_time=time) for time in (3.0, 5.0)]) == 15.0
    assert estimate.factor([]) == 1.0


def test_times_out_of_order_still_give_an_estimate(tiny, monkeypatch):
    clock = iter([0, 9, 0, 5, 0, 9, 0, 6])  # the short piece takes longer
    monkeypatch.setattr(estimate.time, "monotonic", lambda: next(clock))
    found = estimate.seconds_per_token(tiny.model, torch.arange(64), 32)
    costs = [estimate.operations(tiny.model, count) for count in (64, 32)]
    assert found == pytest.approx([each / 32 * costs[0] / costs[1] for each in (5, 6)])


@pytest.mark.parametrize(
    ("ends", "text"),
    [((10, 20), "10 s to 20 s"), ((98, 6000), "98 s to 1.7 h"), ((1, 1), "about 1 s")],
)
def test_a_range_has_two_ends(ends, text):
    assert estimate.between(*ends) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.01, "1 s"), (59.6, "60 s"), (99, "99 s"), (100, "1.7 min"), (600, "10 min"),
     (5900, "98 min"), (6000, "1.7 h"), (36000, "10 h")],
)  # fmt: skip
def test_durations_have_two_digits(seconds, text):
    assert estimate.duration(seconds) == text


def test_a_run_says_how_long_it_takes(tmp_path, monkeypatch, capsys):
    text = tmp_path / "text"
    text.write_text("some text of many letters, again and again. " * 60)
    seen = []

    def counted(model, batches):
        batches = list(batches)
        seen.extend(each.numel() for each in batches)
        return loss(model, batches)

    monkeypatch.setattr(estimate, "loss", counted)
    real = estimate.seconds_per_token
    monkeypatch.setattr(estimate, "seconds_per_token", lambda *given: real(*given) and (0.5, 0.8))
    options = ["--text", text, "--seq", "64", "--tokens", "2000"]
    used = 2000 // 64 * 64
    code, _, err = run(capsys, *options, *THREE)
    # fp32 takes 1, rtn 1.3 and oaken 1.1 times the unchanged model's time.
    minutes = used * (1 + 1.3 + 1.1) / 60
    assert code == 0
    ends = f"{0.5 * minutes:.0f} min to {0.8 * minutes:.0f} min"
    assert err == (
        f"eval: {ends} for {used} tokens with each of 3 methods, without the calibration of oaken\n"
    )
    assert 0 < sum(seen) <= used * 3 / 50
    assert run(capsys, *THREE)[2] == ""  # 64 tokens: too short


# ---- the plot


ROWS = [
    {"method": "fp32", "perplexity": 20.0, "bits": {"weights": 32, "activations": 32, "kv": 32}},
    {"method": "a<b", "perplexity": 90.0, "bits": {"weights": 4.25, "activations": 4, "kv": 16}},
    {"method": "far", "perplexity": math.inf, "bits": {"weights": 2, "activations": 2, "kv": 2}},
]


def test_plot_has_its_labels_units_and_methods(tmp_path, capsys):
    made = draw(ROWS, "a title")
    assert made == draw(ROWS, "a title")
    tree = ET.fromstring(made)
    texts = ["".join(each.itertext()).strip() for each in tree.iter() if each.tag.endswith("text")]
    for text in ("a title", "perplexity", "bits per weight", "bits per activation",
                 "bits per element of K and V", "fp32", "a<b", "far (infinite)"):  # fmt: skip
        assert text in texts, text
    file = tmp_path / "plot.svg"
    assert run(capsys, "--method", "fp32", "rtn-w4a4", "--plot", file)[0] == 0
    assert b"rtn-w4a4" in file.read_bytes()
    assert list(tmp_path.iterdir()) == [file]


def test_marks_are_at_bits_and_perplexity():
    """Two marks at twice the bits lie at twice the distance from the axis; more is higher."""
    places = []
    for bits, perplexity in ((8, 20.0), (16, 20.0), (16, 25.0)):
        row = {"method": "x", "perplexity": perplexity}
        row["bits"] = dict.fromkeys(("weights", "activations", "kv"), bits)
        tree = ET.fromstring(draw([ROWS[0], row], ""))
        marks = [each for each in tree.iter() if each.tag.endswith("use") and "x" in each.attrib]
        color = [each for each in marks if "#ff7f0e" in each.get("style", "")]
        frame = next(each for each in tree.iter() if each.get("id") == "patch_2")
        corners = [float(each) for each in frame[0].get("d").split() if each[0].isdigit()]
        left, right = min(corners[::2]), max(corners[::2])
        x = (float(color[0].get("x")) - left) / (right - left)
        places.append((x, float(color[0].get("y"))))
    (low, level), (high, same), (_, up) = places
    assert high == pytest.approx(2 * low, rel=1e-3)
    assert level == same
    assert up < same


# ---- the built-in text


def test_the_built_in_text_is_one_window_or_says_its_length(capsys):
    assert main(["--json", "--device", "cpu"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["seq"] == 256  # all that the model takes
    letters = len(command.own_text.EVALUATION)
    assert report["tokens"] == letters // 256 * 256
    assert main(["--tokens", "5000", "--seq", "100"]) == 2
    length = len(command.own_text.EVALUATION)
    assert capsys.readouterr().err == (
        f"eval: the built-in text has {length} tokens, 5000 are needed: name a longer one with "
        "--text\n"
    )
    assert main(["--method", "oaken", "--calibration-windows", "50"]) == 2
    length = len(command.own_text.CALIBRATION)
    assert capsys.readouterr().err == (
        f"eval: the built-in text has {length} tokens, 6400 are needed\n"
    )


# ---- a method that overflows


OVERFLOWS = '''
import dataclasses
from typing import ClassVar
from golden.llm.eval.method import Method

@dataclasses.dataclass(frozen=True, kw_only=True)
class Overflows(Method):
    """Infinite outputs, or an error of the hardware's arithmetic."""
    pattern: ClassVar[str] = "overflows"
    spellings: ClassVar[tuple] = ("overflows",)
    arithmetic: bool = False
    def install(self, site, state):
        name, linear = next(iter(site.linears.items()))
        def after(y):
            if self.arithmetic:
                raise ArithmeticError("MATMUL: NONFINITE")
            return y * float("inf")
        site.output(linear, after)
'''


def test_a_method_that_overflows_has_a_row_and_the_others_run(tmp_path, capsys):
    """The first such method ended the run without its name, and ``--resume`` ended there again."""
    (tmp_path / "mine.py").write_text(OVERFLOWS)
    file = tmp_path / "rows.json"
    more = ["--methods", tmp_path / "mine.py", "-o", file, "--method", "fp32", "overflows"]
    more += ["overflows:arithmetic=true", "fp16"]
    code, out, err = run(capsys, *more)
    wanted = ["fp32", "overflows", "overflows:arithmetic=true", "fp16"]
    assert (code, names(out)) == (0, wanted)
    assert "| overflows | not finite |  | " in out
    assert err == (
        "eval: overflows: NaN or infinity in model.layers.0.self_attn.q_proj\n"
        "eval: overflows:arithmetic=true: MATMUL: NONFINITE\n"
    )
    failed = json.loads(file.read_text())["results"][1]
    assert failed["perplexity"] is None
    assert failed["failed"] == "NaN or infinity in model.layers.0.self_attn.q_proj"
    assert failed["window_losses"] == []
    # It is not measured again, and shows the same.
    code, again, same = run(capsys, *more, "--resume")
    assert (code, again, same) == (0, out, err)
    drawn = ["--plot", tmp_path / "a.svg", "--csv", tmp_path / "a.csv"]
    drawn += ["--latex", tmp_path / "a.tex"]
    assert run(capsys, *more, "--resume", *drawn)[0] == 0
    with (tmp_path / "a.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["method"] for row in rows] == wanted
    assert [bool(row["perplexity"]) for row in rows] == [True, False, False, True]
    assert rows[1]["failed"] == failed["failed"]


# ---- standard errors, CSV and LaTeX


def test_the_standard_error_is_that_of_the_windows(tmp_path, capsys):
    code, out, _ = run(capsys, "--json")
    (row,) = json.loads(out)["results"]
    losses = row["window_losses"]
    assert len(losses) == 4
    mean = sum(losses) / 4
    variance = sum((each - mean) ** 2 for each in losses) / 3
    error = math.exp(mean) * math.sqrt(variance / 4)
    assert row["standard_error"] == pytest.approx(error)
    files = ["--csv", tmp_path / "a.csv", "--latex", tmp_path / "a.tex", "--method", "fp32"]
    code, out, _ = run(capsys, *files, "kllm-plain-w4a4")
    assert code == 0
    assert f"| fp32 | {row['perplexity']:.3f} | {error:.3f} | 32 / 32 / 32 | " in out
    with (tmp_path / "a.csv").open() as lines:
        first, second = csv.DictReader(lines)
    assert float(first["perplexity"]) == row["perplexity"]
    assert float(first["standard_error"]) == pytest.approx(error)
    assert (first["bits_weights"], first["failed"]) == ("32.0", "")
    assert second["method"] == "kllm-plain-w4a4"
    text = (tmp_path / "a.tex").read_text()
    assert f"fp32 & ${row['perplexity']:.3f} \\pm {error:.3f}$ & 32 & 32 & 32 \\\\\n" in text


def test_one_window_has_no_standard_error(capsys):
    code, out, _ = run(capsys, "--tokens", "16")
    assert code == 0
    assert "|  | 32 / 32 / 32 |" in out


def test_names_are_escaped_for_latex():
    row = {"method": "a_b:c=1,d=5%", "perplexity": math.inf, "window_losses": [800.0, 900.0],
           "bits": {"weights": 4.25, "activations": 4, "kv": 16}}  # fmt: skip
    assert r"a\_b:c=1,d=5\% & inf & 4.25 & 4 & 16 \\" in latex_table([row], "two\nlines")
    assert latex_table([row], "two\nlines").startswith("% two lines\n")
