"""golden.llm.pack of million_attention on a tiny model: a cache of its own answers alike.

The replay reads the words of the streams by itself. Shown to fail:

- queries without 1/sqrt(d), K before RoPE (the outputs are far from the model's attention);
- the parts of a record in the wrong order, V before K (replay);
- a LOAD of the layer before (the pack refuses it);
- without the checks of words or of sums (a changed folder is accepted);
- an assertion about statuses, no check of layers and tokens (a traceback, not a line);
- codebooks trained on Python's own manual, which is not the same everywhere.
"""

import json
import pydoc_data.topics
import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits
from golden.index.codes import unpack
from golden.llm import checkpoint, pack
from golden.llm.million import example
from golden.llm.million.pack import StreamConfig, load, training_text
from golden.llm.patch import Patch
from golden.manifest import PackError, write_hex
from golden.million.attention import Codebook
from golden.million.cache import Cache, Codebooks
from golden.million.config import SYSTEMS, HeadShape, MillionConfig, PqShape, WindowShape
from golden.million.format import Op, Status
from golden.million.script import REQUEST_FIELDS, STATUS_FIELDS, STREAMS, fields
from hdl.million.layouts import REQUEST_LAYOUT, STATUS_LAYOUT
from hdl.million.query_splitter import query_layout

TINY = MillionConfig(
    pq=PqShape(head_dim=16, subspaces=8, bits=5), head=HeadShape(heads=2, group=2),
    window=WindowShape(sinks=2, keep=0, block=4), layers=3, pages=64, page_bytes=256,
    max_tokens=64,
)  # fmt: skip
STREAM = StreamConfig(cache=TINY, lanes=8, data_bits=64)
CONTEXT, STEPS = 9, 11  # two flushes
ARGUMENTS = [
    "--block", "million_attention", "--config", "tiny", "--set", "lanes=8", "--set", "data_bits=64",
    "--context", str(CONTEXT), "--tokens", str(STEPS),
]  # fmt: skip


class Words:
    """A tokenizer: a word's length is its number."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [min(len(word), 49) for word in text.split()]}


def tiny(_path: Path | None = None) -> checkpoint.Checkpoint:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=50, initializer_range=0.2,
    )  # fmt: skip
    return checkpoint.Checkpoint(LlamaForCausalLM(config).eval(), Words())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack") / "folder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "load", tiny)
        patch.setattr(checkpoint, "head_shape", lambda _: None)
        patch.setattr(checkpoint, "layer_count", lambda _: None)
        patch.setitem(SYSTEMS, "tiny", TINY)
        assert pack.main([*ARGUMENTS, "-o", str(folder)]) == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """One that may be changed."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


class Replay:
    """Takes the words of a pack from the front."""

    def __init__(self, words: dict[str, list[int]]):
        self.left = {name: list(stream) for name, stream in words.items()}

    def take(self, name: str, count: int, size: int = 16 * 8) -> list[int]:
        """``count`` 16-bit words of whole beats."""
        found: list[int] = []
        while len(found) < count:
            beat = self.left[name].pop(0)
            found += [beat >> 16 * n & 0xFFFF for n in range(size // 16)]
        assert len(found) == count
        return found

    def vectors(self, name: str) -> torch.Tensor:
        """(2, heads, 16)."""
        return torch.tensor(self.take(name, 2 * 2 * 16)).reshape(2, 2, 16)

    def books(self, entries: int, exponents: list[int]) -> Codebooks:
        sides = []
        for exponent in exponents:
            rows = torch.tensor(self.take("codebook", entries * 16)).reshape(entries, 8, 2)
            sides.append((Codebook(rows.transpose(0, 1), exponent - (exponent >> 4 << 5)),))
        return Codebooks(*sides)

    def codes(self) -> torch.Tensor:
        """(2, heads, 8): five bytes of a record in a word of eight."""
        raw = [self.left["restored"].pop(0).to_bytes(8, "little") for _ in range(4)]
        assert all(record[5:] == bytes(3) for record in raw)
        data = torch.tensor([list(record[:5]) for record in raw], dtype=torch.uint8)
        return unpack(data, 8, 5).reshape(2, 2, 8)

    def queries(self) -> torch.Tensor:
        found = []
        for _ in range(2 * 2 * 16 // 8):
            beat = self.left["query"].pop(0)
            assert beat >> 128 == 0  # the slope
            found += [beat >> 16 * n & 0xFFFF for n in range(8)]
        return torch.tensor(found).reshape(2, 2, 16)


def test_a_cache_of_its_own_answers_alike(made: Path) -> None:
    replay, cache = Replay(load(made, STREAM).words), Cache(TINY, 64)
    ops = []
    for number, word in enumerate(list(replay.left["request"])):
        request = fields(REQUEST_FIELDS, word)
        op, sequence, layer = (request[name] for name in ("op", "sequence", "layer"))
        ops.append(op)
        assert request["tag"] == number % 256
        match op:
            case Op.OPEN:
                status, sequence = cache.open()
            case Op.LOAD:
                exponents = [request["exponent_k"], request["exponent_v"]]
                status = cache.load(layer, replay.books(request["entries"], exponents))
            case Op.PREFILL:
                status = cache.prefill(sequence, layer, *replay.vectors("kv"))
            case Op.APPEND:
                status = cache.append(sequence, layer, *replay.vectors("kv"))
            case Op.RESTORE:
                status = cache.restore(sequence, layer, *replay.codes())
            case Op.ATTEND:
                status, o = cache.attend(sequence, layer, replay.queries())
                assert o is not None
                assert o.flatten().tolist() == replay.take("o", 2 * 2 * 16)
        answer = fields(STATUS_FIELDS, replay.left["status"].pop(0))
        assert answer == {"tag": number % 256, "op": op, "status": status, "sequence": sequence}
        assert status == Status.OK
    del replay.left["request"]
    assert not any(replay.left.values())
    layers = 3
    counts = {Op(op): ops.count(op) for op in set(ops)}
    assert counts == {
        Op.OPEN: 1, Op.LOAD: layers * (1 + STEPS), Op.PREFILL: layers * 2,
        Op.RESTORE: layers * (CONTEXT - 2), Op.APPEND: layers * STEPS, Op.ATTEND: layers * STEPS,
    }  # fmt: skip


def test_outputs_are_near_the_attention_of_the_model(made: Path) -> None:
    """The error of the manifest; and exact attention on what is captured is the model's."""
    found = load(made, STREAM).manifest.model
    assert found["layers"] == [0, 1, 2]
    assert all(0 < error < 0.5 for error in found["error"].values())
    model, ids = tiny().model, torch.arange(12) % 7
    seen = example.capture(model, ids, [1], TINY)[0]
    outputs = []
    with Patch(model) as patch, torch.no_grad():
        patch.input(model.model.layers[1].self_attn.o_proj, lambda x: outputs.append(x) or x)
        model(ids[None])
    exact = example.exact_outputs(seen, 5).flatten(1)
    assert float((outputs[0][0, 5:] - exact).norm() / exact.norm()) < 2e-3  # FP16 words


def test_codebooks_do_not_depend_on_the_release_of_python(monkeypatch) -> None:
    """The tokens of 256 entries come first, and they are our own."""
    texts = []
    for topics in ({"a": "another manual"}, {"b": "a manual"}):
        monkeypatch.setattr(pydoc_data.topics, "topics", topics)
        texts.append(training_text().removesuffix(next(iter(topics.values()))))
    assert texts[0] == texts[1]
    least = len(re.findall(r"\w+", texts[0]))  # a token does not cross a word's end
    assert least >= 39 * 256


def test_codebooks_of_each_head() -> None:
    seen = example.capture(tiny().model, torch.randint(50, (1280,)), [0], TINY)[0]
    books = example.trained(seen, MillionConfig(**{**vars(TINY), "scope_heads": True}))
    assert len(books.k) == len(books.v) == 2
    assert books.k[0].exponent == books.k[1].exponent
    assert books.k[0].words.shape == (8, 32, 2)
    decoded = float_from_bits(books.v[1].words, FP16) * 2.0 ** books.v[1].exponent
    spread = float_from_bits(seen.v[:, 1], FP16).std()
    assert 0.3 < float(decoded.std() / spread) < 3


def test_what_has_changed_is_refused(folder: Path) -> None:
    with pytest.raises(PackError, match=r"config.lanes must be 16, not 8$"):
        load(folder, StreamConfig(cache=TINY, data_bits=64))
    file = folder / "o.hex"
    text = file.read_text()
    file.write_text(text[:-2] + ("0" if text[-2] == "1" else "1") + "\n")
    with pytest.raises(PackError, match=r"o.hex: sha256 must be [0-9a-f]{64}, not "):
        load(folder, STREAM)


@pytest.mark.parametrize("name", ["kv", "restored", "query", "o", "status", "codebook_01"])
def test_words_fit_the_requests(folder: Path, name: str) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    entry = manifest["files"][f"{name}.hex"]
    words = [int(line, 16) for line in (folder / f"{name}.hex").read_text().splitlines()]
    manifest["files"][f"{name}.hex"] = write_hex(folder, f"{name}.hex", words[1:], entry["width"])
    path.write_text(json.dumps(manifest))
    count = len(words)
    with pytest.raises(PackError, match=rf"{name}.hex must have {count} words, not {count - 1}$"):
        load(folder, STREAM)


def test_fields_are_those_of_the_hardware() -> None:
    for layout, mine in ((REQUEST_LAYOUT, REQUEST_FIELDS), (STATUS_LAYOUT, STATUS_FIELDS)):
        assert {name: field.width for name, field in layout} == mine
        places = [field.offset for _, field in layout]
        assert places == [sum(list(mine.values())[:n]) for n in range(len(mine))]
    layout = query_layout(8)
    assert (layout["word"].offset, layout["slope"].offset) == (0, 128)
    assert STREAM.widths["query"] == layout.size
    assert set(STREAM.widths) == set(STREAMS)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--config", "table1"], "--config must be one of smollm2, llama, tiny, not table1"),
        (["--option", "glu=x"], "--option does not apply to million_attention"),
        (["--layer", "3"], "layer must be 0..2, not 3"),
        (["--config", "smollm2"], "the model has 4 queries and 2 KV heads of 16 elements, not 9"),
        (["--set", "lanes=3"], "StreamConfig.lanes must be a power of two in 4..64, not 3"),
        (["--context", "1"], "the prompt must have at least 4 tokens, the sinks, not 1"),
        (["--set", "cache.layers=2"], "cache.layers must be more than 2, the last layer's number"),
        (["--set", "cache.max_tokens=28"], "cache.max_tokens must be at least 29, prompt and step"),
        (
            ["--set", "cache.pages=16", "--context", "60", "--tokens", "1"],
            "cache.pages must be at least ",
        ),
    ],
)
def test_refused_options(more, message, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(checkpoint, "load", tiny)
    monkeypatch.setattr(checkpoint, "head_shape", lambda _: None)  # as a name of the hub
    monkeypatch.setattr(checkpoint, "layer_count", lambda _: None)
    few = MillionConfig(**{**vars(TINY), "window": WindowShape()})
    monkeypatch.setitem(SYSTEMS, "tiny", few)
    chosen = [] if "--config" in more else ["--config", "tiny"]
    names = ["--block", "million_attention", *chosen, "--tokens", "9", "-o", str(tmp_path / "out")]
    try:
        status = pack.main([*names, "--context", "20", *more])
    except SystemExit as end:
        status = end.code
    assert status == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "golden.llm.pack:" in line]
    assert len(lines) == 1
    assert message in lines[0]


def test_other_heads_are_refused_before_the_model_is_loaded(capsys, monkeypatch, tmp_path) -> None:
    """The header of the GGUF file, or config.json, names them."""
    monkeypatch.setattr(checkpoint, "load", lambda *_: pytest.fail("the model is loaded"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_size": 64,
    }))  # fmt: skip
    wanted = "not 12 and 4 of 64"
    for model, found in (
        (str(folder), "4 queries and 2 KV heads of 16 elements"),
        ("smollm2", "9 queries and 3 KV heads of 64 elements"),
    ):
        names = ["--block", "million_attention", "--model", model, "-o", str(tmp_path / "out")]
        assert pack.main([*names, "--set", "cache.head.heads=4"]) == 2
        assert f"the model has {found}, {wanted}" in capsys.readouterr().err


def test_heads_of_a_checkpoint(tmp_path) -> None:
    for text, shape in (
        ({"num_attention_heads": 4, "hidden_size": 64}, (4, 4, 16)),
        ({"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8}, (4, 1, 8)),
        ({"num_attention_heads": 4}, None),
        ({"hidden_size": 64}, None),
        ([], None),
    ):
        (tmp_path / "config.json").write_text(json.dumps(text))
        assert checkpoint.head_shape(tmp_path) == shape
    assert checkpoint.head_shape("owner/model") is None
    assert checkpoint.head_shape() == (9, 3, 64)


def test_a_window_that_the_cache_does_not_have(tmp_path, monkeypatch, capsys) -> None:
    """The engine attends all tokens. Shown to fail: a model with a window of 19 was packed."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=50, sliding_window=CONTEXT + STEPS - 1,
    )  # fmt: skip
    loaded = checkpoint.Checkpoint(MistralForCausalLM(config).eval(), Words())
    monkeypatch.setattr(checkpoint, "load", lambda _: loaded)
    monkeypatch.setattr(checkpoint, "head_shape", lambda _: None)
    monkeypatch.setattr(checkpoint, "layer_count", lambda _: None)
    monkeypatch.setitem(SYSTEMS, "tiny", TINY)
    assert pack.main([*ARGUMENTS, "-o", str(tmp_path / "out")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    wanted = "sliding_window must be null or at least the 20 tokens of the sequence, not 19"
    assert line == f"golden.llm.pack: {wanted}"
    assert not (tmp_path / "out").exists()
