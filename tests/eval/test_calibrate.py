"""golden.llm.calibrate: statistics, files that serve one model only, work that is resumed.

Shown to fail:

- a window skipped;
- gradients of the mean loss;
- a file taken for another model's;
- steps of another seed resumed;
- a partial folder not removed;
- text under another name taken for another text;
- tensors of a file not counted.
"""

import fnmatch
import json
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from golden.config import ConfigError
from golden.llm import calibrate as calibrate_command
from golden.llm.checkpoint import CheckpointError
from golden.llm.eval import calibrate as learner
from golden.llm.eval import command
from golden.llm.eval.accuracy import command as accuracy
from golden.llm.eval.calibration import CalibrationData, Steps, fingerprint
from golden.llm.eval.calibration_text import calibration_size, calibration_text, calibration_windows
from golden.llm.eval.state import calibrate, load_states, save_states
from golden.llm.methods import parse_all
from golden.llm.patch import Patch
from tests.tiny import tiny_llama

Q, K_PROJ = (f"model.layers.0.self_attn.{each}_proj" for each in "qk")
DOWN = "model.layers.1.mlp.down_proj"


@pytest.fixture
def loaded(tiny, monkeypatch):
    """Both command lines get the tiny model in place of a real one."""
    for module in (learner, command):
        monkeypatch.setattr(module, "load", lambda *_: tiny)


def calibrate_main(*arguments: object) -> int:
    return calibrate_command.main([str(each) for each in arguments])


# ---- statistics


def test_inputs_are_rows_of_what_the_layers_see(tiny, tiny_windows):
    data = CalibrationData(tiny.model, tiny_windows, seed=3)
    found = data.inputs([Q, DOWN], tokens=12, gradients=True)
    whole: dict[str, list[torch.Tensor]] = {Q: [], DOWN: []}
    for ids in tiny_windows:
        with torch.no_grad(), Patch(tiny.model) as patch:
            for name, rows in whole.items():
                patch.input(patch.linears[name], lambda x, rows=rows: rows.append(x[0]) or x)
            tiny.model(ids[None])
    for name, captured in found.items():
        assert captured.x.shape == (12, whole[name][0].shape[1])
        assert captured.gradient.shape == captured.x.shape
        for i in range(3):  # four tokens of every window
            rows = captured.x[4 * i : 4 * i + 4]
            distance = (rows[:, None] - whole[name][i][None]).abs().amax(-1)
            assert float(distance.amin(-1).max()) < 1e-5
    again = CalibrationData(tiny.model, tiny_windows, seed=3).inputs([Q], tokens=12)
    assert torch.equal(again[Q].x, found[Q].x)
    other = CalibrationData(tiny.model, tiny_windows, seed=4).inputs([Q], tokens=12)
    assert not torch.equal(other[Q].x, found[Q].x)
    assert len(data.inputs([Q], tokens=1000)[Q].x) == 96


def test_accumulated_statistics(tiny, tiny_windows):
    data = CalibrationData(tiny.model, tiny_windows)
    x = data.inputs([Q, K_PROJ, DOWN], tokens=96)
    hessian = data.accumulate("hessian", lambda x: x.T @ x)
    assert set(hessian) == set(data.linears)
    maximum = data.accumulate("maximum", lambda x: x.abs().amax(0), torch.maximum, [Q, DOWN])
    for name in (Q, DOWN):
        assert torch.allclose(hessian[name], x[name].x.T @ x[name].x, rtol=1e-4, atol=1e-4)
        assert torch.equal(maximum[name], x[name].x.abs().amax(0))
    assert torch.equal(hessian[Q], hessian[K_PROJ])
    assert not torch.allclose(hessian[Q], hessian["model.layers.1.self_attn.q_proj"])


def test_weight_fisher_is_the_squared_slope_of_the_loss(tiny, tiny_windows):
    wanted = [value.requires_grad for value in tiny.model.parameters()]
    found = CalibrationData(tiny.model, tiny_windows[:2]).weight_fisher([Q])[Q]
    assert [value.requires_grad for value in tiny.model.parameters()] == wanted
    n, k = divmod(int(found.argmax()), found.shape[1])
    step = 1e-3

    def loss(ids: torch.Tensor, shift: float) -> float:
        with torch.no_grad(), Patch(tiny.model) as patch:
            weight = patch.linears[Q].weight.detach().clone()
            weight[n, k] += shift
            patch.weight(Q, weight)
            logits = tiny.model(ids[None]).logits[0].double()
        return float(nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="sum"))

    slopes = [(loss(ids, step) - loss(ids, -step)) / (2 * step) for ids in tiny_windows[:2]]
    assert float(found[n, k]) == pytest.approx(sum(s**2 for s in slopes), rel=0.02)


@pytest.mark.parametrize("pre_rope", [False, True])
def test_kv_and_their_gradients(pre_rope, tiny, tiny_windows):
    data = CalibrationData(tiny.model, tiny_windows)
    plain, with_gradients = (
        data.kv(tiny_windows[0], pre_rope),
        data.kv_gradients(tiny_windows[0], pre_rope),
    )
    for (k, v), (same_k, same_v, gk, gv) in zip(plain, with_gradients, strict=True):
        assert torch.equal(k, same_k)
        assert torch.equal(v, same_v)
        assert gk.shape == gv.shape == (32, 24)
    ids = tiny_windows[0]
    for kv in (0, 1):
        gradient = with_gradients[1][2 + kv]
        shift = 1e-2 * gradient / gradient.norm()

        def loss(sign: int, kv: int = kv, shift: torch.Tensor = shift) -> float:
            with torch.no_grad(), Patch(tiny.model) as patch:
                patch.kv(
                    lambda layer, which, x: x + sign * shift if (layer, which) == (1, kv) else None,
                    pre_rope,
                )
                logits = tiny.model(ids[None]).logits[0].double()
            return float(nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="sum"))

        assert loss(1) - loss(-1) == pytest.approx(2e-2 * float(gradient.norm()), rel=0.02)


# ---- files


def test_file_serves_its_model_and_method(loaded, tiny, tmp_path, capsys):
    file, text = tmp_path / "a.safetensors", tmp_path / "text"
    text.write_text("The mill stood where the river turned south. " * 20)
    method = "fp16+oaken:ratios=10/90+kvquant-like:bits=2"
    assert calibrate_main(
        "--text", text, "--method", method, "--windows", 2, "--tokens", 64, "--seed", 5,
        "--skip", 128, "-o", file,
    ) == 0  # fmt: skip
    assert "tiny-9-3, 2 windows of 64 tokens" in capsys.readouterr().out
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.safetensors", "text"]
    with safe_open(file, framework="pt") as opened:
        header = json.loads(opened.metadata()["senbazuru"])
    assert header["model"] == "tiny-9-3"
    assert header["fingerprint"] == fingerprint(tiny.model)
    made = [header[each] for each in ("text", "windows", "tokens", "seed")]
    assert made == ["text", 2, 64, 5]
    assert [each["class"] for each in header["methods"]] == ["Fp16", "Oaken", "KvQuantLike"]

    wanted = parse_all("oaken:mode=artifact,ratios=10/90+rtn-w4a4+oaken")
    found = load_states(file, tiny, wanted)
    assert list(found) == [0]  # the other oaken has other ratios
    assert found[0]["intervals"].shape == (2, 2, 2, 2)
    for name, line in (("oaken", "it is for Fp16 {}, Oaken {'ratios': '10/90'"), ("rtn-w4a4", "")):
        with pytest.raises(CheckpointError, match="serves none of the methods") as caught:
            load_states(file, tiny, parse_all(name))
        assert line in str(caught.value)

    other = tiny_llama(seed=1)
    with pytest.raises(CheckpointError) as caught:
        load_states(file, other, wanted)
    own, theirs = fingerprint(tiny.model)[:12], fingerprint(other.model)[:12]
    assert str(caught.value) == (
        f"{file} was made for the model tiny-9-3 ({own}), not for tiny-9-3 ({theirs})"
    )

    arguments = ["--text", str(text), "--seq", "64", "--tokens", "128", "--json"]
    arguments += ["--method", method]
    results = []
    for more in (["--calibration", str(file)],
                 ["--calibration-text", str(text), "--calibration-windows", "2",
                  "--calibration-tokens", "64", "--seed", "5"]):  # fmt: skip
        assert command.main([*arguments, *more]) == 0
        results.append(json.loads(capsys.readouterr().out)["results"][0])
    both = [*arguments[:-2], "--method", "fp32", method, "--calibration", str(file)]
    assert command.main(both) == 0
    plain, same = json.loads(capsys.readouterr().out)["results"]
    assert plain["perplexity"] != same["perplexity"] == results[0]["perplexity"]
    assert same["calibration_seconds"] == 0
    assert results[0]["calibration_seconds"] == 0
    assert results[1]["calibration_seconds"] > 0
    # The evaluated windows are left out where the text is the same one.
    assert results[0]["perplexity"] == results[1]["perplexity"]
    origin = {"text": "text", "windows": 2, "tokens": 64, "skip": 128, "seed": 5}
    assert results[1]["calibration"] == [None, origin, origin]
    assert results[0]["calibration"] == [None, *2 * [{"file": "a.safetensors", **origin}]]


def test_calibration_skips_what_is_evaluated(loaded, tiny, tmp_path, monkeypatch):
    text, same = tmp_path / "text", tmp_path / "same"
    for file in (text, same):
        file.write_text("".join(chr(97 + i % 26) for i in range(400)))
    seen = []
    monkeypatch.setattr(
        command, "CalibrationData", lambda model, parts, seed: seen.extend(parts) or
        CalibrationData(model, parts, seed),
    )  # fmt: skip
    for other in (text, same, None):
        more = ["--calibration-text", str(other)] if other else []
        assert command.main(
            ["--text", str(text), "--seq", "32", "--tokens", "100", "--method", "oaken",
             "--calibration-windows", "1", "--calibration-tokens", "8", *more]
        ) == 0  # fmt: skip
    behind = [ord(chr(97 + i % 26)) % 64 for i in range(96, 104)]
    assert [each.tolist() for each in seen[:2]] == [behind, behind]
    assert seen[2].tolist() == [ord(each) % 64 for each in "The mill"]
    for more, name, start in (
        ([], "a behind these", 96),
        (["--calibration-text", same], "same behind these", 96),
        (["--calibration-text", __file__], "test_calibrate.py", None),
    ):
        options = accuracy.arguments().parse_args(
            ["--text", f"a={text}", "--calibration-windows", "1", "--calibration-tokens", "8",
             *map(str, more)]
        )  # fmt: skip
        found, parts = accuracy._calibration(options, tiny, 96)
        assert found == name
        assert (parts[0].tolist() == behind) == (start == 96)


def test_files_do_not_know_what_is_evaluated(loaded, tmp_path, capsys):
    (tmp_path / "text").write_text("The mill stood where the river turned south. " * 10)
    base = ["--text", tmp_path / "text", "--tokens", 64]
    file = tmp_path / "file"
    for skip, code in ((0, 2), (63, 2), (64, 0)):
        assert calibrate_main(*base, "--method", "oaken", "--skip", skip, "-o", file) == 0
        arguments = [*base, "--seq", 32, "--method", "oaken", "--calibration", file]
        assert command.main([str(each) for each in arguments]) == code
        assert capsys.readouterr().err == (code == 2) * (
            f"eval: {file} was calibrated on text that is evaluated: make it with "
            "golden.llm.calibrate --skip 64\n"
        )


def test_one_file_serves_a_method(loaded, tmp_path, capsys):
    files = [tmp_path / name for name in "ab"]
    for file in files:
        assert calibrate_main("--method", "oaken", "--tokens", 32, "-o", file) == 0
    arguments = ["--method", "oaken", "--tokens", "64", "--calibration", *map(str, files)]
    assert command.main(arguments) == 2
    assert capsys.readouterr().err == "eval: the calibrations a and b both serve Oaken\n"


def test_same_seed_gives_the_same_file(loaded, tmp_path, monkeypatch):
    seeds = []
    real = learner.CalibrationData

    def seeded(model, parts, seed, steps):
        seeds.append(seed)
        return real(model, parts, seed, steps)

    monkeypatch.setattr(learner, "CalibrationData", seeded)
    for name in "ab":
        assert calibrate_main("--method", "kvquant-like:bits=2", "--tokens", 32, "--seed", 6,
                              "-o", tmp_path / name) == 0  # fmt: skip
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert seeds == [6, 6]


def test_stopped_work_is_resumed(loaded, tmp_path, monkeypatch):
    file = tmp_path / "a"
    arguments = ["--method", "kvquant-like:bits=2", "--windows", "3", "--tokens", "32", "-o", file]
    assert calibrate_main(*arguments) == 0
    whole = file.read_bytes()
    file.unlink()
    ran: list[int] = []
    real = CalibrationData.kv_gradients

    def counted(self, ids, pre_rope=False):
        ran.append(int(ids[0]))
        if len(ran) == 3:
            raise KeyboardInterrupt
        return real(self, ids, pre_rope)

    monkeypatch.setattr(CalibrationData, "kv_gradients", counted)
    with pytest.raises(KeyboardInterrupt):
        calibrate_main(*arguments)
    assert (tmp_path / "a.partial").is_dir()
    assert not file.exists()
    assert calibrate_main(*arguments) == 0
    assert len(ran) == 4  # the third window alone was run again
    assert file.read_bytes() == whole
    assert not (tmp_path / "a.partial").exists()


def test_every_option_shapes_what_is_resumed(loaded, tmp_path, monkeypatch):
    headers, starts = [], []
    check, data = Steps.check, learner.CalibrationData

    def checked(self, header):
        headers.append(json.dumps(header, sort_keys=True))
        check(self, header)

    def started(model, parts, *others):
        starts.append(chr(int(parts[0][0]) + 64))
        return data(model, parts, *others)

    monkeypatch.setattr(Steps, "check", checked)
    monkeypatch.setattr(learner, "CalibrationData", started)
    for name, letters in (("one", "abcdefgh"), ("two", "habcdefg")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text").write_text(letters * 20)
    base = ["--method", "oaken", "--windows", 1, "--tokens", 32, "-o", tmp_path / "out"]
    base += ["--text", tmp_path / "one" / "text"]
    for change in (
        [],
        ["--seed", 1],
        ["--skip", 3],
        ["--tokens", 33],
        ["--windows", 2],
        ["--text", tmp_path / "two" / "text"],
        ["--method", "oaken:ratios=10/90"],
    ):
        assert calibrate_main(*base, *change) == 0
    assert len(set(headers)) == 7
    assert starts == ["a", "a", "d", "a", "a", "h", "a"]
    monkeypatch.setattr(learner, "code_version", lambda modules: "of other code")
    assert calibrate_main(*base) == 0
    assert len(set(headers)) == 8


@pytest.mark.parametrize("content", [b"", b"\x08\0\0", b"\xff" * 40])
def test_broken_steps_are_made_again(tmp_path, content):
    steps = Steps(tmp_path / "x.partial")
    steps.check({"seed": 1})
    steps.once("a", lambda: {"t": torch.ones(2)})
    (tmp_path / "x.partial" / "a.safetensors").write_bytes(content)
    assert steps.once("a", lambda: {"t": torch.zeros(2)})["t"].tolist() == [0, 0]
    assert steps.once("a", lambda: {"t": torch.ones(2)})["t"].tolist() == [0, 0]
    (tmp_path / "x.partial" / "header.json").write_bytes(b"\xff\xfe")
    steps.check({"seed": 1})
    assert steps.once("a", lambda: {"t": torch.ones(2)})["t"].tolist() == [1, 1]


def test_steps_of_other_work_are_dropped(tmp_path):
    steps = Steps(tmp_path / "x.partial")
    steps.check({"seed": 1})
    assert steps.once("a/b", lambda: {"t": torch.ones(2)})["t"].tolist() == [1, 1]
    same = Steps(tmp_path / "x.partial")
    same.check({"seed": 1})
    assert same.once("a/b", lambda: {"t": torch.zeros(2)})["t"].tolist() == [1, 1]
    other = Steps(tmp_path / "x.partial")
    other.check({"seed": 2})
    assert other.once("a/b", lambda: {"t": torch.zeros(2)})["t"].tolist() == [0, 0]


def test_fingerprint_sees_every_weight():
    model = tiny_llama().model
    before = fingerprint(model)
    assert before == fingerprint(tiny_llama().model)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[5, 7] *= 1.0001
    assert fingerprint(model) != before


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--method", "rtn-w4a4"], "rtn-w4a4 needs no calibration"),
        (
            ["--method", "oaken", "--tokens", "257"],
            "calibration tokens must be 2..256 for this model, not 257",
        ),
        (
            ["--method", "oaken", "--seed", str(10**15)],
            f"seed must be 0..{1 << 40}, not {10**15}",
        ),
        (["--method", "oaken", "--seed", "-1"], f"seed must be 0..{1 << 40}, not -1"),
        (["--method", "oaken", "--skip", "-5"], "skip must be at least 0, not -5"),
        (["--method", "oaken", "-o", ""], "output must be a file, not the folder ."),
        (["--method", "oaken", "-o", "/"], "output must be a file, not the folder /"),
        (["--method", "oaken", "-o", "{tmp}"], "output must be a file, not the folder {tmp}"),
        (["--method", "oaken", "--device", "meta"], "device must be a cpu or cuda that torch"),
        (["--method", "oaken", "--windows", "100"], "tokens, 12800 are needed"),
        (["--method", "oaken", "--text", "{tmp}/none"], "cannot read {tmp}/none"),
        (["--method", "oaken", "-o", "{tmp}/none/file"], "no folder {tmp}/none to write to"),
        (["--method", "x"], "there is no method 'x'"),
    ],
)
def test_bad_input_is_one_line(loaded, tmp_path, capsys, arguments, line):
    filled = [each.format(tmp=tmp_path) for each in arguments]
    if "-o" not in filled:
        filled += ["-o", str(tmp_path / "out")]
    assert calibrate_command.main(filled) == 2
    error = capsys.readouterr().err
    assert error.startswith("calibrate: ")
    assert line.format(tmp=tmp_path) in error
    assert error.count("\n") == 1


def test_not_a_calibration_file(tiny, tmp_path):
    from safetensors.torch import save_file

    save_file({"x": torch.ones(1)}, tmp_path / "other")
    save_file({"x": torch.ones(1)}, tmp_path / "newer", metadata={"senbazuru": '{"version": 9}'})
    for name in ("other", "newer"):
        with pytest.raises(CheckpointError, match="is not a calibration file"):
            load_states(Path(tmp_path / name), tiny, parse_all("oaken"))


@pytest.fixture(scope="module")
def made(tiny, tiny_windows, tmp_path_factory) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    """Tensors and header of a file for oaken."""
    methods, file = parse_all("oaken"), tmp_path_factory.mktemp("made") / "file"
    header = {
        "model": tiny.name, "fingerprint": fingerprint(tiny.model), "text": "t",
        "text_sha256": "", "windows": 3, "tokens": 32, "skip": 0, "seed": 0,
    }  # fmt: skip
    states = calibrate(methods, CalibrationData(tiny.model, tiny_windows))
    save_states(file, methods, states, header)
    with safe_open(file, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}
        return tensors, json.loads(opened.metadata()["senbazuru"])


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda header: [], "is not a calibration file"),
        (lambda header: 5, "is not a calibration file"),
        (lambda header: None, "is not a calibration file"),
        (lambda header: header | {"version": 99}, "is not a calibration file of version 2"),
        (lambda header: header | {"fingerprint": None}, "it has no fingerprint"),
        (lambda header: header | {"methods": None}, "it has no methods"),
        (lambda header: header | {"methods": [5]}, "it has no methods"),
        (lambda header: header | {"tensors": None}, "it has no tensors"),
        (lambda header: header | {"tensors": header["tensors"] | {"x": [2]}},
         "the shape of x must be [2], not None"),
        (lambda header: header | {"tensors": {"0.intervals": [2, 2, 2, 9]}},
         "the shape of 0.intervals must be [2, 2, 2, 9], not [2, 2, 2, 2]"),
    ],
)  # fmt: skip
def test_files_of_another_kind_are_refused(tiny, made, tmp_path, change, line):
    from safetensors.torch import save_file

    tensors, header = made
    save_file(tensors, tmp_path / "a", metadata={"senbazuru": json.dumps(change(header))})
    with pytest.raises(CheckpointError) as caught:
        load_states(tmp_path / "a", tiny, parse_all("oaken"))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


FAILURES = [
    ("kllm-plain-w4a4", "*.0.mlp.up_proj.weight", 1e6, "weight must be within the FP16 range"),
    ("kllm-plain-w4a4", "*.0.input_layernorm.weight", 1e6, "weight must be within the FP16 range"),
    ("kllm-plain-w16a4", "*embed_tokens.weight", 1e6, "samples must be finite and not empty"),
    ("kvquant-like:bits=2", "lm_head.weight", 1e25, "weight must be finite"),
    ("gptq-like-w4a16", "*.0.mlp.up_proj.weight", 1e20, "linalg.cholesky: "),
]


@pytest.mark.parametrize(("method", "pattern", "factor", "line"), FAILURES)
def test_methods_that_fail_are_one_line(
    method, pattern, factor, line, tmp_path, monkeypatch, capsys
):
    checkpoint = tiny_llama()
    with torch.no_grad():
        for name, value in checkpoint.model.named_parameters():
            if fnmatch.fnmatchcase(name, pattern):
                value *= factor
    for name, module, own_main, more in (
        ("calibrate", learner, calibrate_command.main, ["-o", str(tmp_path / "out")]),
        ("eval", command, command.main, ["--calibration-tokens", "32"]),
    ):
        monkeypatch.setattr(module, "load", lambda *_: checkpoint)
        assert own_main(["--method", method, "--tokens", "32", *more]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"{name}: {method}: {line}")
        assert error.count("\n") == 1


def test_ratios_out_of_range_are_refused():
    with pytest.raises(ConfigError):
        parse_all("oaken:ratios=100")


# ---- the text to learn from


def test_a_demanding_method_has_a_long_text(tiny, tmp_path):
    """Our long text, and windows as long as the model takes, unless something is given."""
    plain, demanding = parse_all("kllm-plain-w4a4"), parse_all("rtn-w4a4+kllm-w4a4")
    assert calibration_text(None, plain).name == "golden.llm.text.CALIBRATION"
    assert calibration_text(None, demanding).name == "golden.llm.text.sample"
    (tmp_path / "text").write_text("a text")
    assert calibration_text(tmp_path / "text", demanding).content == "a text"
    assert calibration_size(tiny, plain) == (3, 128)
    assert calibration_size(tiny, demanding) == (40, 256)
    assert calibration_size(tiny, demanding, tokens=100) == (103, 100)
    assert calibration_size(tiny, demanding, count=2) == (2, 256)
    parts = calibration_windows(tiny, calibration_text(None, demanding).content, 40, 256)
    assert len(torch.cat(parts)) == 10240


def test_rows_of_demanding_methods_have_a_long_text(tiny):
    """golden.llm.eval.accuracy takes windows of one with no text, and with numbers of their own."""
    methods = parse_all("kllm-w4a4")
    options = accuracy.arguments().parse_args([])
    name, parts = accuracy._calibration(options, tiny, 96, methods)
    assert (name, len(parts), len(parts[0])) == ("golden.llm.text.sample", 40, 256)
    options = accuracy.arguments().parse_args(["--calibration-windows", "3"])
    assert len(accuracy._calibration(options, tiny, 96, methods)[1]) == 3
    assert len(accuracy._calibration(options, tiny, 96)[1]) == 3


def test_a_calibration_has_the_mode_of_the_umask(loaded, tmp_path):
    """safetensors gave it 0600."""
    text = tmp_path / "text"
    text.write_text("The mill stood where the river turned south. " * 20)
    before = os.umask(0o022)
    try:
        given = ("--text", text, "--method", "oaken", "-o", tmp_path / "a.safetensors")
        assert calibrate_main(*given) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.safetensors").stat().st_mode) == 0o644


def test_a_calibration_that_cannot_be_written_is_one_line(loaded, tmp_path, monkeypatch, capsys):
    """safetensors has an error of its own, which was a traceback."""
    text = tmp_path / "text"
    text.write_text("The mill stood where the river turned south. " * 20)

    def save_file(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", save_file)
    file = tmp_path / "a.safetensors"
    assert calibrate_main("--text", text, "--method", "oaken", "-o", file) == 2
    captured = capsys.readouterr().err
    assert captured.startswith(f"calibrate: cannot write {tmp_path}/")
    assert captured.endswith(": No space left on device\n")
    assert captured.count("\n") == 1
    assert not file.exists()
