"""golden.llm.letters: small trained models; golden.llm.reports.families: their table."""

import json

import pytest
import torch

from golden.llm import checkpoint, letters
from golden.llm.reports import families
from golden.llm.structure import FAMILIES

TEXT = "the paper crane has two wings and one long neck. " * 12


@pytest.fixture
def few(monkeypatch):
    """Small steps, of which each is kept."""
    for name, value in (("WINDOW", 16), ("_BATCH", 2), ("_KEPT", 1)):
        monkeypatch.setattr(letters, name, value)


def train(path, text, *more) -> int:
    words = ["--text", str(text), "-o", str(path), "--steps", "3", *more]
    return letters.main(words)


@pytest.mark.parametrize("family", letters.FAMILIES)
def test_a_stopped_run_goes_on(few, tmp_path, monkeypatch, family):
    """The weights are those of a run without a stop, and golden.llm.checkpoint reads the folder.

    Shown to fail: moments of the optimizer that are not kept; batches that begin anew.
    """
    text = tmp_path / "text"
    text.write_text(TEXT)
    assert train(tmp_path / "whole", text, "--family", family) == 0
    step, seen = letters.Training._step, []

    def stopped(self, number):
        if number == 2 and not seen:
            seen.append(number)
            raise KeyboardInterrupt
        return step(self, number)

    monkeypatch.setattr(letters.Training, "_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "parts", text, "--family", family)
    assert (tmp_path / "parts.partial").is_dir()
    assert train(tmp_path / "parts", text, "--family", family) == 0
    assert not (tmp_path / "parts.partial").exists()
    models = [checkpoint.load(tmp_path / each, FAMILIES) for each in ("whole", "parts")]
    states = [each.model.state_dict() for each in models]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    ids = checkpoint.tokens(models[0], "a crane")
    assert len(ids) == len("▁a▁crane")
    assert models[0].model.config.model_type == family


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--skip", "600"], "text has 0 characters, more than 256 are needed"),
        (["--steps", "0"], "steps must be at least 1, not 0"),
        (["--seed", "-1"], "seed must be 0.."),
        (["--text", "none"], "cannot read none: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, more, line):
    text = tmp_path / "text"
    text.write_text(TEXT)
    words = ["--text", str(text), "-o", str(tmp_path / "model"), *more]
    assert letters.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("letters: ")
    assert line in error
    assert not (tmp_path / "model").exists()


def report(name: str, **rows: float) -> dict:
    results = [{"method": key, "perplexity": value} for key, value in rows.items()]
    return {"model": name, "text": "t", "tokens": 512, "seq": 256, "results": results}


def test_methods_of_models_side_by_side(tmp_path, capsys):
    for name, rows in (("a", {"fp32": 4.0, "rtn": 5.0}), ("b", {"fp32": 2.0, "other": 3.0})):
        (tmp_path / name).write_text(json.dumps(report(name, **rows)))
    assert families.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    out = capsys.readouterr().out
    assert "| method | a, t | b, t |" in out
    assert "| perplexity of fp32 | 4.000 | 2.000 |" in out
    assert "| `rtn` | 1.250 |  |" in out
    assert "| `other` |  | 1.500 |" in out
    assert "512 tokens in windows of 256." in out


@pytest.mark.parametrize("text", ["{", "[]", json.dumps(report("a", rtn=5.0)), '{"results": 1}'])
def test_reports_that_are_none(tmp_path, capsys, text):
    (tmp_path / "a").write_text(text)
    assert families.main([str(tmp_path / "a")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
