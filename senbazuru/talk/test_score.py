"""The refusals of ``senbazuru.talk.score`` before it runs a token.

Shown to fail: no comparison of the manifest, and no look at the text of the calibration.
"""

import hashlib
import types

import pytest

from golden.config import ConfigError
from golden.llm import text as own_text
from golden.llm.eval import state
from senbazuru.talk import score
from tests.kllm import model_example as example

TOLD = {"method": "kllm-w4a4", "text_sha256": "x", "skip": 0}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--layers", "2"], "--layers does not apply"),
        (["--pack", "PACK"], "--pack needs --calibration"),
        (["--pack", "PACK", "--calibration", "absent"], "no calibration at absent"),
        (["--text", "absent"], "cannot read absent"),
        (["--pack", "PACK", "--calibration", "absent", "--text", "EMPTY"],
         "the text has 0 tokens, --tokens 8 are needed"),
        (["--pack", "PACK", "--calibration", "absent", "--tokens", "41"],
         "--tokens must be at most 40, the image's context"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(words, reason, tmp_path, capsys):
    pack = example.packed(tmp_path / "pack", speaks=True)
    (tmp_path / "empty").write_text("")
    places = {"PACK": str(pack.folder), "EMPTY": str(tmp_path / "empty")}
    small = ["--config", "small_cache", "--tokens", "8"]
    small += [word for each in example.PAGED for word in ("--set", each)]
    assert score.main([*small, *(places.get(word, word) for word in words)]) == 2
    shown = capsys.readouterr().err
    assert reason in shown
    assert shown.count("\n") == 1


@pytest.fixture
def header(monkeypatch):
    """The header that the calibration file has."""
    made = dict(TOLD)
    monkeypatch.setattr(state, "load_header", lambda _file: made)
    monkeypatch.setattr("golden.llm.checkpoint.layer_count", lambda _model: example.LAYERS)
    return made


def checked(calibration, words="scored"):
    options = types.SimpleNamespace(calibration_file=lambda: "file", model="smollm2")
    manifest = types.SimpleNamespace(made={"calibration": calibration})
    pack = types.SimpleNamespace(manifest=manifest, folder="pack", layout=example.image().layout)
    score._check_calibration(options, pack, words, 8)


def test_the_image_is_of_the_calibration(header):
    checked(TOLD)
    with pytest.raises(ConfigError, match="pack was made with skip 4, file has 0"):
        checked(TOLD | {"skip": 4})
    with pytest.raises(ConfigError, match=r"pack was made with calibration 'golden\.llm\.text"):
        checked("golden.llm.text.CALIBRATION, 256 tokens")


def test_the_calibration_has_not_learned_from_the_text(header):
    words = own_text.EVALUATION
    header["text_sha256"] = hashlib.sha256(words.encode()).hexdigest()
    with pytest.raises(ConfigError, match=r"make it with golden\.llm\.calibrate --skip 8"):
        checked(header, words)
    header["skip"] = 8
    checked(header, words)


def test_losses_of_a_killed_run(tmp_path):
    session = types.SimpleNamespace(cached=2, folder=tmp_path)
    file = tmp_path / "losses.json"
    for text in ("{", "{}", "[1.5]", '[1.5, "2"]'):
        file.write_text(text)
        with pytest.raises(ConfigError, match="is damaged or of a killed run"):
            score._kept(file, session)
    file.write_text("[1.5, 2.5, 3.5]")
    assert score._kept(file, session) == [1.5, 2.5]
