"""golden.calibrate: statistics, files that serve one model only, work that is resumed.

Shown to fail: a window skipped; gradients of the mean loss; a file taken for another model's; steps
of another seed resumed; a partial folder left behind.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from golden import calibrate as calibrate_command
from golden.checkpoint import CheckpointError
from golden.config import ConfigError
from golden.eval import command
from golden.eval.calibration import CalibrationData, Steps, fingerprint, load_states
from golden.eval.method import parse_all
from golden.patch import Patch
from tests.tiny import tiny_llama

Q, K_PROJ = (f"model.layers.0.self_attn.{each}_proj" for each in "qk")
DOWN = "model.layers.1.mlp.down_proj"


@pytest.fixture
def loaded(tiny, monkeypatch):
    """Both command lines get the tiny model in place of a real one."""
    for module in (calibrate_command, command):
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
        "--text", text, "--method", method, "--windows", 2, "--tokens", 64, "--seed", 5, "-o", file
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
    assert results[0]["perplexity"] != results[1]["perplexity"]


def test_calibration_skips_what_is_evaluated(loaded, tmp_path, monkeypatch):
    text = tmp_path / "text"
    text.write_text("".join(chr(97 + i % 26) for i in range(400)))
    seen = []
    monkeypatch.setattr(
        command, "CalibrationData", lambda model, parts, seed: seen.extend(parts) or
        CalibrationData(model, parts, seed),
    )  # fmt: skip
    for other in (text, None):
        more = ["--calibration-text", str(other)] if other else []
        assert command.main(
            ["--text", str(text), "--seq", "32", "--tokens", "100", "--method", "oaken",
             "--calibration-windows", "1", "--calibration-tokens", "8", *more]
        ) == 0  # fmt: skip
    assert seen[0].tolist() == [ord(chr(97 + i % 26)) % 64 for i in range(96, 104)]
    assert seen[1].tolist() == [ord(each) % 64 for each in "The mill"]


def test_same_seed_gives_the_same_file(loaded, tmp_path, monkeypatch):
    seeds = []
    real = calibrate_command.CalibrationData

    def seeded(model, parts, seed, steps):
        seeds.append(seed)
        return real(model, parts, seed, steps)

    monkeypatch.setattr(calibrate_command, "CalibrationData", seeded)
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
        (["--method", "oaken", "--tokens", "257"], "tokens must be 2..256 for this model, not 257"),
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


def test_ratios_out_of_range_are_refused():
    with pytest.raises(ConfigError):
        parse_all("oaken:ratios=100")
