"""The converter of llama2.c checkpoints against a forward pass written from llama2.c's definition.

Shown to fail:

- rows of q and k left interleaved;
- w1 and w3 exchanged;
- a head taken for tied.
"""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from golden.llm.checkpoint import CheckpointError, load
from golden.llm.eval.llama2c import main, read_model

DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, SEQ = 12, 20, 2, 3, 1, 11, 16
HEAD = DIM // HEADS


def write(path: Path, tied: bool, seed: int = 0) -> dict[str, np.ndarray]:
    """A random checkpoint of version 0; its arrays."""
    random = np.random.default_rng(seed)
    shapes = {
        "embed": (VOCAB, DIM), "att_norm": (LAYERS, DIM), "wq": (LAYERS, DIM, DIM),
        "wk": (LAYERS, KV_HEADS * HEAD, DIM), "wv": (LAYERS, KV_HEADS * HEAD, DIM),
        "wo": (LAYERS, DIM, DIM), "ffn_norm": (LAYERS, DIM), "w1": (LAYERS, HIDDEN, DIM),
        "w2": (LAYERS, DIM, HIDDEN), "w3": (LAYERS, HIDDEN, DIM), "norm": (DIM,),
        "rotary": (2, SEQ, HEAD // 2), **({} if tied else {"head": (VOCAB, DIM)}),
    }  # fmt: skip
    arrays = {name: random.normal(0, 0.5, shape).astype("<f4") for name, shape in shapes.items()}
    vocab = VOCAB if tied else -VOCAB
    header = struct.pack("<7i", DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, vocab, SEQ)
    path.write_bytes(header + b"".join(each.tobytes() for each in arrays.values()))
    return arrays


def forward(w: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Logits (T, VOCAB) in float64: neighbouring pairs are turned by pos / 10000**(2i / head)."""

    def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gain

    def turned(x: np.ndarray) -> np.ndarray:  # (T, heads, HEAD)
        y = x.copy()
        for t in range(len(x)):
            for i in range(0, HEAD, 2):
                angle = t / 10000 ** (i / HEAD)
                a, b = x[t, :, i], x[t, :, i + 1]
                y[t, :, i] = a * np.cos(angle) - b * np.sin(angle)
                y[t, :, i + 1] = a * np.sin(angle) + b * np.cos(angle)
        return y

    w = {name: each.astype(np.float64) for name, each in w.items()}
    x = w["embed"][ids]
    tokens = len(ids)
    for layer in range(LAYERS):
        h = norm(x, w["att_norm"][layer])
        q = turned((h @ w["wq"][layer].T).reshape(tokens, HEADS, HEAD))
        k = turned((h @ w["wk"][layer].T).reshape(tokens, KV_HEADS, HEAD))
        v = (h @ w["wv"][layer].T).reshape(tokens, KV_HEADS, HEAD)
        out = np.zeros((tokens, HEADS, HEAD))
        for head in range(HEADS):
            of = head // (HEADS // KV_HEADS)
            for t in range(tokens):
                scores = k[: t + 1, of] @ q[t, head] / np.sqrt(HEAD)
                p = np.exp(scores - scores.max())
                out[t, head] = p / p.sum() @ v[: t + 1, of]
        x = x + out.reshape(tokens, DIM) @ w["wo"][layer].T
        h = norm(x, w["ffn_norm"][layer])
        gate = h @ w["w1"][layer].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["w3"][layer].T)) @ w["w2"][layer].T
    return norm(x, w["norm"]) @ w.get("head", w["embed"]).T


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "tok.vocab"
    pieces = ["<unk>", "<s>", "</s>", "▁", "a", "b", "é", ".", "A", "'", "-"]
    path.write_text("".join(f"{piece}\t{-i}\n" for i, piece in enumerate(pieces)), "utf-8")
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_converted_model_computes_what_llama2c_computes(tied, tmp_path, vocabulary, capsys):
    weights = write(tmp_path / "model.bin", tied)
    folder = tmp_path / "out"
    assert main([str(tmp_path / "model.bin"), str(vocabulary), "-o", str(folder)]) == 0
    checkpoint = load(folder, {"llama"})
    ids = [3, 4, 5, 4, 10, 7, 0, 6]
    with torch.no_grad():
        logits = checkpoint.model(torch.tensor([ids])).logits[0]
    assert torch.allclose(logits.double(), torch.from_numpy(forward(weights, ids)), atol=1e-4)
    assert checkpoint.model.config.tie_word_embeddings == tied
    assert checkpoint.name == "out"


def test_tokenizer_is_one_of_characters(tmp_path, vocabulary):
    write(tmp_path / "model.bin", True)
    assert main([str(tmp_path / "model.bin"), str(vocabulary), "-o", str(tmp_path / "out")]) == 0
    tokenizer = load(tmp_path / "out").tokenizer
    ids = tokenizer("ab \n é.\nz")["input_ids"]
    assert ids == [3, 4, 5, 3, 6, 7, 3, 0]
    assert tokenizer.decode(ids[:6]) == " ab é."


def test_damaged_files_are_one_line(tmp_path, vocabulary, capsys):
    good = tmp_path / "model.bin"
    write(good, True)
    data = good.read_bytes()
    (tmp_path / "short.bin").write_bytes(data[:-4])
    (tmp_path / "empty.bin").write_bytes(b"")
    (tmp_path / "header.bin").write_bytes(struct.pack("<7i", 12, 20, 2, 5, 1, 11, 16) + data[28:])
    for name, line in (
        ("none.bin", "cannot read"),
        ("short.bin", f"has {len(data) - 4} bytes, its header asks for {len(data)}"),
        ("empty.bin", "has 0 bytes, less than a llama2.c header"),
        ("header.bin", "is not a llama2.c model: its header says (12, 20, 2, 5, 1, 11, 16)"),
    ):
        assert main([str(tmp_path / name), str(vocabulary), "-o", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert error.startswith("llama2c: ")
        assert line in error
        assert error.count("\n") == 1
    vocabulary.write_text("<unk>\t0\na\t0\n")
    assert main([str(good), str(vocabulary), "-o", str(tmp_path / "out")]) == 2
    assert "has 2 pieces, the model 11" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="its header asks for"):
        read_model(tmp_path / "short.bin")
