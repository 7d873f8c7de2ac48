"""``golden.llm.pack --all`` on a folder of each family: the golden machine runs what it writes.

Shown to fail:

- all layers rotated; layers without their windows;
- embeddings or logits without their factor, q without its scale of scores;
- the biases of q, k and v left out.
"""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from golden.fp16.ops import float_from_bits
from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.layer.layout import Job
from golden.kllm.model.host import ModelHost
from golden.kllm.model.program import pass_program
from golden.llm import checkpoint
from golden.llm.kllm import pack as model_pack
from golden.llm.kllm.example import MODELS, random_model
from golden.llm.pack import main

CONTEXT = 40
FIELDS = [
    "cache.pages=512",
    "cache.page_bytes=512",
    "cache.max_tokens=160",
    "cache.layers=2",
    "experts=4",
    *(f"cache.{name}=true" for name in ("windows", "caps", "sinks")),
    *(f"extra.{name}=true" for name in ("tanh", "gelu_erf", "quick_gelu", "bounds")),
]
# Those that golden.llm.decoder reads as they are saved.
SAVED = [
    name
    for name, kind in MODELS.items()
    if kind.model_type != "arcee" and not kind.sinks and not kind.clamped
]
WINDOWS = {
    "a window": (7, 7),
    "a cap of scores": (7, 0),
    "both caps and windows": (7, 0),
    "angles of windowed layers": (0, 7),
    "experts of gpt-oss": (7, 0),
}


def letters() -> PreTrainedTokenizerFast:
    """A tokenizer of letters, whose ids are below the vocabulary of ``MODELS``."""
    words = {chr(97 + n): n for n in range(26)} | {" ": 26, "?": 27}
    model = Tokenizer(models.WordLevel(words, unk_token="?"))
    model.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=model, unk_token="?")


def packed(name: str, folder: Path) -> model_pack.ModelPack:
    """The checkpoint's folder as the command packs it."""
    random_model(MODELS[name], unified=False).save_pretrained(folder / "model")
    letters().save_pretrained(folder / "model")
    arguments = ["--all", "--model", str(folder / "model"), "--context", str(CONTEXT)]
    arguments += ["--config", "small_cache", "--option", "glu=exact", "-o", str(folder / "packed")]
    arguments += [each for field in FIELDS for each in ("--set", field)]
    assert main(arguments) == 0
    config = MachineConfig.parse(MACHINES["small_cache"], FIELDS)
    assert isinstance(config, MachineConfig)
    return model_pack.load(folder / "packed", config)


# Least correlation with the model. Codebooks of 4 bits lose more where weights of norms are large.
LEAST = {"a window": 0.95, "no RoPE": 0.97, "factors": 0.97} | dict.fromkeys(
    ("norms before and after", "a cap of scores", "a cap of logits", "both caps and windows",
     "angles of windowed layers"),
    0.8,
)


@pytest.mark.parametrize("name", SAVED)
def test_a_packed_family_computes_its_model(name: str, tmp_path: Path) -> None:
    """Logits are near those of transformers, and of their size; the layers differ as they do."""
    found = packed(name, tmp_path)
    shape = found.layout.shape
    assert tuple(shape.unrotated) == ((1,) if name == "no RoPE" else ())
    assert tuple(shape.windows) == WINDOWS.get(name, ())
    ids = torch.randint(0, 27, (36,), generator=torch.Generator().manual_seed(2))
    host, made = ModelHost(found.image()), []
    for place, token in enumerate(ids.tolist()):
        made.append(host.run(pass_program(found.layout, Job(1, place), 1), [token]).logits)
    got = float_from_bits(torch.cat(made)).flatten()
    with torch.no_grad():
        model = checkpoint.load(tmp_path / "model").model
        real = model(ids[None]).logits[0].double().flatten()
    assert float(torch.corrcoef(torch.stack((got, real)))[0, 1]) > LEAST.get(name, 0.9)
    assert 0.75 < float((got @ real) / (real @ real)) < 1.25
