"""``python -m golden.llm.pack --block vq_gemv`` on a tiny model: what it writes is the product.

Shown to fail with:

- x of the lattice not rotated; its results not rotated back; both sides rotated from one seed
- ``--matrix`` ignored; a hook on another matrix
"""

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.llm import checkpoint, pack
from golden.llm.vqllm import pack as vq_pack
from golden.llm.vqllm.pack import captured, load
from golden.manifest import PackError
from golden.million.config import HeadShape
from golden.vqllm.format import FFN, PACKS, VqPackConfig
from golden.vqllm.quip import rotation

# The dimensions of the tiny model: less than a tile, or more than one
SET = ["image.vq.entries=16", "plan.registers=2", "plan.shared=16"]


class Words:
    """A tokenizer: a word's length is its number."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}


def tiny(_path: Path | None = None) -> checkpoint.Checkpoint:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=320, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=50,
    )  # fmt: skip
    return checkpoint.Checkpoint(LlamaForCausalLM(config).eval(), Words())


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(checkpoint, "load", tiny)

    def call(*arguments: str, fields: list[str] = SET) -> tuple[int, Path]:
        folder = tmp_path / "folder"
        options = [*arguments, *(f"--set={each}" for each in fields)]
        return pack.main(["--block", "vq_gemv", *options, "-o", str(folder)]), folder

    return call


def test_pack_has_the_products_of_the_layer(run):
    code, folder = run()
    assert code == 0
    config = VqPackConfig.parse(PACKS["gptvq2"], SET)
    found = load(folder, config)
    assert found.manifest.model == {"name": "smollm2", "layer": 1}
    layer = tiny().model.model.layers[1]
    inputs = captured("smollm2", None, 33).inputs
    assert set(found.words) == set(FFN)
    for name in FFN:
        words, layout = found.words[name], found.manifest.layout[name]
        real = getattr(layer.mlp, name).weight.detach().double()
        assert (len(words["y"]), len(words["x"])) == tuple(real.shape)
        assert len(words["image"]) * config.image.word_bytes >= real.numel() // 8  # 1 bit
        assert words["x"] == bits_from_float(inputs[name]).tolist()
        y = float_from_bits(torch.tensor(words["y"]), FP16)
        exact = real @ inputs[name].double()
        error = float((y - exact).norm() / exact.norm())
        assert error == pytest.approx(layout["error"], abs=1e-6)
        assert layout["job"]["rows"] == len(y)
        assert set(layout["bounds"]) == {"memory", "look-ups", "products", "reduction"}


def test_pack_of_the_lattice_rotates_both_sides(run):
    code, folder = run("--config", "quip4", "--matrix", "down_proj", fields=[])
    assert code == 0
    found = load(folder, PACKS["quip4"])
    assert list(found.words) == ["down_proj"]
    assert "rotation of rows, then of columns, from seed 0" in found.manifest.made["training"]
    weight = tiny().model.model.layers[1].mlp.down_proj.weight.detach()
    x = captured("smollm2", 1, 33, ["down_proj"]).inputs["down_proj"]
    generator = torch.Generator().manual_seed(0)
    outputs, inputs = (rotation(width, generator) for width in weight.shape)
    words, layout = found.words["down_proj"], found.manifest.layout["down_proj"]
    assert words["x"] == bits_from_float(inputs(x.double())).tolist()
    y = outputs.inverse(float_from_bits(torch.tensor(words["y"]), FP16))
    exact = weight.double() @ x.double()
    error = float((y - exact).norm() / exact.norm())
    assert error == pytest.approx(layout["error"], abs=1e-6)
    assert error < 0.15  # 4 bits: squared error 0.01 of Gaussian values
    assert layout["bounds"]["products"] == weight.numel() // 32


def test_pack_of_a_random_llama(run, monkeypatch):
    """A matrix of its attention, as ``--matrix`` names it."""
    monkeypatch.setattr(vq_pack, "HEADS", HeadShape(heads=1, group=2))
    code, folder = run("--model", "llama", "--matrix", "k_proj")
    assert code == 0
    found = load(folder, VqPackConfig.parse(PACKS["gptvq2"], SET))
    assert found.manifest.model == {"name": "llama", "layer": 1}
    assert {name: len(words["y"]) for name, words in found.words.items()} == {"k_proj": 128}
    assert len(found.words["k_proj"]["x"]) == 256


def test_matrix_is_of_this_block_alone(tmp_path, capsys):
    with pytest.raises(SystemExit):
        pack.main(["--layer", "1", "--matrix", "up_proj", "-o", str(tmp_path)])
    assert "--matrix does not apply to kllm_accelerator" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "3"], "layer must be 0..2, not 3"),
        (["--layer", "1", "--layer", "2"], "--layer must be given once"),
        (["--set", "plan.split=2"], "Plan.split must be 1..1, not 2"),
        (["--set", "lanes=0"], "VqPackConfig.lanes must be 1..16, not 0"),
    ],
)
def test_refuses_in_one_line(run, arguments, message, capsys):
    code, folder = run(*arguments)
    assert code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"golden.llm.pack: {message}"
    assert not folder.exists()


def test_a_layer_is_refused_before_the_model_is_loaded(run, monkeypatch, capsys):
    monkeypatch.setattr(checkpoint, "layer_count", lambda path: 3)
    monkeypatch.setattr(checkpoint, "load", None)
    assert run("--layer", "3")[0] == 2
    assert capsys.readouterr().err == "golden.llm.pack: layer must be 0..2, not 3\n"


def test_x_is_in_the_order_of_the_lanes(run):
    """320 columns are 3 beats of 32 vectors of 4, whose pieces are 2 elements."""
    _, folder = run("--matrix", "down_proj", fields=[*SET, "image.lookups=32", "image.need=2"])
    config = VqPackConfig.parse(PACKS["gptvq2"], [*SET, "image.lookups=32", "image.need=2"])
    found = load(folder, config)
    plain = bits_from_float(captured("smollm2", 1, 33, ["down_proj"]).inputs["down_proj"]).tolist()
    words = found.words["down_proj"]["x"]
    assert found.manifest.layout["down_proj"]["job"]["words"] == 6
    assert len(words) == 3 * 32 * 4
    assert words[:8] == [*plain[0:2], *plain[2:4], *plain[8:10], *plain[10:12]]
    assert words[64:68] == plain[4:8]
    assert sorted(words) == sorted([*plain, *[0] * 64])


def test_load_refuses_a_changed_folder(run):
    _, folder = run()
    config = VqPackConfig.parse(PACKS["gptvq2"], SET)
    with pytest.raises(PackError, match="lanes"):
        load(folder, VqPackConfig.parse(config, ["lanes=2"]))
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["y_up_proj.hex"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PackError, match=r"y_up_proj\.hex is not in the manifest"):
        load(folder, config)
