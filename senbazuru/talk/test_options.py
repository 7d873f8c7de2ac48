"""The places of the image and the calibration of a model, and what is refused before one is made.

Shown to fail: names of the model's stem alone, and no check before golden.llm.calibrate starts.
"""

import argparse
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from golden.config import ConfigError
from hdl.arguments import folder
from senbazuru.talk import options
from tests.kllm import model_example as example


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Commands that would run: each makes an empty result."""
    made = []

    def run(module, *words):
        made.append((module, words))
        place = Path(words[words.index("-o") + 1])
        if module == "golden.llm.pack":
            place.mkdir()
            place /= "manifest.json"
        place.write_text("{}")

    monkeypatch.setattr(options, "FOLDER", tmp_path / "talk")
    monkeypatch.setattr(options, "_run", run)
    return made


def saved(place):
    """The random model as a transformers folder."""
    example.checkpoint().model.save_pretrained(place)
    PreTrainedTokenizerFast(tokenizer_object=example.tokenizer()).save_pretrained(place)
    return place


def given(*words):
    parser = argparse.ArgumentParser()
    options.Options.add(parser, ["small_cache", "smollm2_cache"], folder)
    small = ["--config", "small_cache", "--context", "40"]
    fields = [word.partition("=")[0] for word in words]  # given here
    for each in example.PAGED:
        small += ["--set", each] if each.partition("=")[0] not in fields else []
    return options.Options.of(parser.parse_args([*small, *words]))


def test_a_calibration_says_that_it_begins(ran, tmp_path, capsys):
    """Its first line of progress comes after half a minute."""
    given("--model", str(saved(tmp_path / "model"))).folder()
    assert "calibrating" in capsys.readouterr().err
    assert [module for module, _ in ran] == ["golden.llm.calibrate", "golden.llm.pack"]


def test_names_depend_on_the_checkpoint(ran, tmp_path, monkeypatch):
    models = [saved(tmp_path / name) for name in ("Llama-3.1-8B", "Llama-3.2-1B")]
    first, second = (given("--model", str(model)) for model in models)
    assert first.folder() == first.folder()
    assert first.folder() != second.folder()
    assert first.calibration_file() != second.calibration_file()
    assert [module for module, _ in ran] == ["golden.llm.calibrate", "golden.llm.pack"] * 2
    monkeypatch.chdir(tmp_path)
    relative = given("--model", "Llama-3.1-8B")
    assert relative.folder() == first.folder()
    assert str(models[0]) in ran[1][1]
    weights = models[0] / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"\0")
    changed = given("--model", str(models[0]))
    with pytest.raises(ConfigError, match="cannot read"):
        changed.folder()  # a calibration of its own, which this checkpoint is too damaged for
    assert len(ran) == 4


def test_refused_before_a_calibration(ran, tmp_path):
    model = ["--model", str(saved(tmp_path / "model"))]
    cases = {
        ("--layers", "5"): r"^--layers must be 1\.\.4, not 5$",
        ("--context", "20000"): r"context must be in 2\.\.16383, not 20000|context must be",
        ("--set", "vectors.rows=24"): "rows",
        ("--set", "cache.max_tokens=32"): "cache.max_tokens must be",
        ("--set", "cache.kv.heads=1"): "cache.kv.heads must be 2",
    }
    for words, reason in cases.items():
        with pytest.raises(ConfigError, match=reason):
            given(*model, *words).folder()
    with pytest.raises(ConfigError, match="no checkpoint at nowhere"):
        given("--model", "nowhere").folder()
    assert not ran


def test_a_command_fails_in_its_own_line(tmp_path, capfd):
    words = ["--all", "--layers", "99", "-o", str(tmp_path / "x")]
    with pytest.raises(ConfigError, match=r"^--layers must be 1\.\.30, not 99$"):
        options._run("golden.llm.pack", *words)
    assert not capfd.readouterr().err
