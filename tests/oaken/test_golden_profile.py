"""Thresholds from calibration windows, taps on a tiny model, the report and the command lines.

Shown to fail:

- quantiles of one end used for both;
- windows averaged after rounding;
- order not restored;
- K tapped before RoPE by default;
- what a tap returns ignored;
- heads transposed wrongly.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from golden.fp16.ops import bits_from_float, float_from_bits
from golden.llm import checkpoint
from golden.llm.capture import capture_kv
from golden.llm.checkpoint import Checkpoint, CheckpointError, read_text, windows
from golden.llm.eval.perplexity import loss
from golden.llm.oaken import profile as profile_module
from golden.llm.patch import Patch
from golden.llm.reports import kv_error
from golden.llm.reports import oaken as report_module
from golden.oaken.groups import Ratios, group_index
from golden.oaken.quantize import thresholds_valid
from golden.oaken.thresholds import Profile, ProfileError, boundaries, ordered, profile_kv

RATIOS = ("4/90/6", "90/10", "10/90", "4/90/3/3", "2/2/90/6", "2/2/90/3/3")


class Words:
    """A tokenizer: every word its length."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}


@pytest.fixture(scope="module")
def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=50, head_dim=16,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def loaded(tiny: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command lines get the tiny model in place of a real one."""
    for module in (checkpoint, kv_error):
        monkeypatch.setattr(module, "load", lambda path: Checkpoint(tiny, Words()))


IDS = torch.arange(1, 25)


def test_captured_k_is_what_the_cache_holds(tiny: LlamaForCausalLM) -> None:
    with torch.no_grad():
        cache = tiny(IDS[None], use_cache=True).past_key_values
    for layer, (k, v) in enumerate(capture_kv(tiny, IDS)):
        for got, wanted in ((k, cache.layers[layer].keys), (v, cache.layers[layer].values)):
            assert got.shape == (24, 32)
            assert torch.equal(got.reshape(24, 2, 16).transpose(0, 1)[None], wanted)


def test_before_rope_is_the_projection(tiny: LlamaForCausalLM) -> None:
    before, after = capture_kv(tiny, IDS, pre_rope=True), capture_kv(tiny, IDS)
    assert torch.equal(before[0][1], after[0][1])
    assert torch.equal(before[0][0][0], after[0][0][0])  # position 0 is not turned
    assert not torch.allclose(before[0][0][5], after[0][0][5])
    norms = [x.reshape(24, 2, 16).norm(dim=-1) for x in (before[0][0], after[0][0])]
    assert torch.allclose(*norms, rtol=1e-4)


@contextlib.contextmanager
def tapped(model: LlamaForCausalLM, tap: Callable, pre_rope: bool = False) -> Iterator[None]:
    with Patch(model) as patch:
        patch.kv(tap, pre_rope)
        yield


def perplexity(model: LlamaForCausalLM, parts: list[torch.Tensor], tap: Callable) -> float:
    with tapped(model, tap):
        return loss(model, (ids[None] for ids in parts)).perplexity


@pytest.mark.parametrize("pre_rope", [False, True])
def test_attention_reads_what_the_tap_returns(tiny: LlamaForCausalLM, pre_rope: bool) -> None:
    with torch.no_grad():
        plain = tiny(IDS[None], use_cache=False).logits
        with tapped(tiny, lambda layer, kv, x: x.clone(), pre_rope):
            assert torch.equal(tiny(IDS[None], use_cache=False).logits, plain)
        for kv in (0, 1):
            # V of zero ends all attention; K of zero makes every weight alike.
            with tapped(tiny, lambda _, which, x, kv=kv: x * (which != kv), pre_rope):
                moved = tiny(IDS[None], use_cache=False).logits
            assert not torch.allclose(moved, plain)
        assert torch.equal(tiny(IDS[None], use_cache=False).logits, plain)  # hooks are gone


def test_perplexity(tiny: LlamaForCausalLM) -> None:
    parts = [IDS, IDS.flip(0)]
    with torch.no_grad():
        losses = [float(tiny(ids[None], labels=ids[None]).loss) for ids in parts]
    exact = float(torch.tensor(losses).mean().exp())
    assert perplexity(tiny, parts, lambda *_: None) == pytest.approx(exact, rel=1e-5)
    assert perplexity(tiny, parts, lambda _, kv, x: torch.zeros_like(x)) != pytest.approx(exact)


def test_boundaries_by_counting(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1000, generator=g, dtype=torch.float64) + 0.2
    outer, inner = boundaries(x, Ratios.parse("4/90/6")).tolist()
    assert (x < outer[0]).sum() == (x > outer[1]).sum() == 20
    assert ((x >= inner[0]) & (x < 0)).sum() == ((x <= inner[1]) & (x > 0)).sum() == 30
    found = boundaries(x, Ratios.parse("2/2/90/3/3")).tolist()
    assert found[1:3] == [outer, inner]
    assert (x < found[0][0]).sum() == 10
    assert ((x <= found[3][1]) & (x > 0)).sum() == 15


def test_boundaries_of_one_sided_and_constant_values() -> None:
    for x in (torch.ones(50), torch.arange(1, 51.0), -torch.arange(1, 51.0), torch.zeros(50)):
        for text in RATIOS:
            ratios = Ratios.parse(text)
            words = ordered(boundaries(x, ratios), ratios)
            for outer, inner in itertools.pairwise(words):
                assert thresholds_valid([outer[0], inner[0], inner[1], outer[1]])


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ([[-1.0, 1.0], [-0.5, 0.5]], [[0xBC00, 0x3C00], [0xB800, 0x3800]]),
        ([[0.5, 1.0], [0.6, 0.7]], [[0x8001, 0x3C00], [0, 0x399A]]),  # no negative values
        ([[-1.0, -0.5], [-0.7, -0.6]], [[0xBC00, 0x0001], [0xB99A, 0]]),
        ([[-1.0, 1.0], [-1.0, 1.0]], [[0xBC01, 0x3C01], [0xBC00, 0x3C00]]),
        ([[-1e9, 1e9], [-1e9, 1e9]], [[0xFBFF, 0x7BFF], [0xFBFE, 0x7BFE]]),
        ([[0.0, 0.0], [0.0, 0.0]], [[0x8001, 0x0001], [0, 0]]),
    ],
)
def test_order_is_restored(bounds: list, wanted: list) -> None:
    assert ordered(torch.tensor(bounds), Ratios()).tolist() == wanted


def test_empty_groups_get_their_interval() -> None:
    words = ordered(torch.tensor([[-1.0, 1.0]]), Ratios.parse("10/90"))
    assert words.tolist() == [[0xBC00, 0x3C00], [0, 0]]
    words = ordered(torch.tensor([[-1.0, 1.0]]), Ratios.parse("90/10"))
    assert words.tolist() == [[0xFBFF, 0x7BFF], [0xBC00, 0x3C00]]


@pytest.mark.parametrize("text", RATIOS)
def test_profile_of_a_known_distribution(text: str, seed: int, tmp_path: Path) -> None:
    """On new values of the same distribution every group has its share."""
    g = torch.Generator().manual_seed(seed)

    def window(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            (
                torch.randn((count, 64), generator=g) * (layer + 1),
                torch.randn((count, 64), generator=g),
            )
            for layer in range(2)
        ]

    ratios = Ratios.parse(text)
    profile = profile_kv((window(64) for _ in range(4)), ratios, made={"text": "none"})
    assert profile.made == {"windows": 4, "text": "none"}
    shares = [Fraction(0)] * (not ratios.outer) + [*ratios.outer, ratios.middle, *ratios.inner]
    for layer, pair in enumerate(window(256)):
        for kv in (0, 1):
            index = group_index(bits_from_float(pair[kv]), profile.intervals[layer, kv])
            for group, share in enumerate(shares):
                assert float((index == group).double().mean()) == pytest.approx(
                    float(share), abs=0.02
                )
    wide = float_from_bits(profile.intervals)
    assert wide[1, 0, -1 if ratios.inner else 0, 1] > 1.5 * wide[0, 0, -1 if ratios.inner else 0, 1]
    file = tmp_path / "thresholds.json"
    profile.save(file)
    again = Profile.load(file)
    assert torch.equal(again.intervals, profile.intervals)
    assert (again.ratios, again.pre_rope, again.made) == (ratios, False, profile.made)
    assert again.dump() == profile.dump()


def test_windows_are_averaged_before_they_are_rounded() -> None:
    first, second = (torch.full((1, 100), v) for v in (1.0, 1.0 + 2.0**-10))
    captured = [[(x, x)] for x in (first, first, second)]
    profile = profile_kv(captured, Ratios())
    mean = bits_from_float(torch.tensor(1.0 + 2.0**-10 / 3, dtype=torch.float64))
    assert profile.intervals[0, 0, 1, 1] == mean == 0x3C00
    profile = profile_kv([captured[0], captured[2], captured[2]], Ratios())
    assert profile.intervals[0, 0, 1, 1] == 0x3C01
    # 0.4, 0.4 and 0.9 of a unit in the last place: 0.57 is one, the rounded ones' mean is none.
    parts = [torch.full((1, 100), 1.0 + part * 2.0**-10) for part in (0.4, 0.4, 0.9)]
    profile = profile_kv([[(x, x)] for x in parts], Ratios())
    assert profile.intervals[0, 0, 1, 1] == 0x3C01


def test_profiles_that_are_refused(tmp_path: Path) -> None:
    good = profile_kv([[(torch.randn(4, 64), torch.randn(4, 64))]], Ratios())
    file = tmp_path / "p.json"
    with pytest.raises(ProfileError, match="no calibration window"):
        profile_kv([], Ratios())
    with pytest.raises(ProfileError, match="not finite"):
        profile_kv([[(torch.tensor([[torch.nan]]), torch.ones(1, 1))]], Ratios())
    with pytest.raises(ProfileError, match="intervals"):
        Profile(ratios=Ratios.parse("2/2/90/6"), pre_rope=False, intervals=good.intervals)
    with pytest.raises(ProfileError, match=r"^cannot read .*: No such file"):
        Profile.load(file)
    text = good.dump()
    row = json.loads(text)["intervals"][0][0]
    swapped = text.replace(row[0][0], "XX").replace(row[1][0], row[0][0]).replace("XX", row[1][0])
    for content, message in (
        ("{", "not JSON"),
        ("[]", "holds no Oaken thresholds"),
        (text.replace('"version": 1', '"version": 9'), "version 9, not 1"),
        (text.replace('"k": "after', '"k": "beside'), "is damaged"),
        (text.replace("4/90/6", "4/90/7"), "is damaged: ratios must add up"),
        (text.replace(row[0][0], "7c00"), "is damaged: thresholds must be finite"),
        (swapped, "is damaged: thresholds must be finite and OUTER_LOW"),
        (text.replace(row[0][0], "zzzz"), "is damaged"),
    ):
        file.write_text(content)
        with pytest.raises(ProfileError, match=message) as caught:
            Profile.load(file)
        assert "\n" not in str(caught.value)


# ---- text and command lines


def test_text(tmp_path: Path) -> None:
    assert read_text(None) is None
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"text": "one two"}\n{"text": "three"}\n')
    assert read_text(lines) == "one two\n\nthree"
    lines.write_text("plain")
    with pytest.raises(CheckpointError, match="is not text"):
        read_text(lines)
    binary = tmp_path / "b.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match="is not text"):
        read_text(binary)
    with pytest.raises(CheckpointError, match="cannot read"):
        read_text(tmp_path / "none")


def test_windows_do_not_overlap(tiny: LlamaForCausalLM) -> None:
    text = " ".join("x" * (1 + i % 40) for i in range(100))
    ids = [1 + i % 40 for i in range(100)]
    point = Checkpoint(tiny, Words())
    parts = windows(point, text, 3, 20, skip=10)
    assert torch.cat(parts).tolist() == ids[10:70]
    with pytest.raises(CheckpointError, match="the text has 100 tokens, 110 are needed"):
        windows(point, text, 5, 20, skip=10)
    with pytest.raises(CheckpointError, match="one window of two tokens"):
        windows(point, text, 0, 20)


@pytest.mark.usefixtures("loaded")
def test_command_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.json"
    common = ["--windows", "2", "--tokens", "40"]
    assert profile_module.main(["-o", str(file), *common]) == 0
    assert "2 layers, 4/90/6, 2 windows" in capsys.readouterr().out
    assert Profile.load(file).made["text"] == "golden.llm.text.CALIBRATION"
    assert report_module.main(["--thresholds", str(file), "--evaluation", "32", "--json"]) == 0
    by_file = json.loads(capsys.readouterr().out)
    arguments = ["--ratios", "4/90/6", "2/2/90/6", *common, "--evaluation", "32"]
    assert report_module.main([*arguments, "--json", "--perplexity", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fractions"] == by_file["fractions"]  # the file holds the same thresholds
    names = [each["name"] for each in found["methods"]]
    assert names[:3] == [
        "Oaken 4/90/6",
        "Oaken 2/2/90/6, 5-bit outliers",
        "Oaken 2/2/90/6, 4-bit outliers",
    ]
    error = {each["name"]: each for each in found["methods"]}
    assert error["FP16"]["nmse_k"] == 0 < error["Oaken 4/90/6"]["nmse_k"] < 0.05
    assert error["Oaken 4/90/6"]["bits_stored"] == pytest.approx(found["bits"][0]["stored"])
    assert all(each["perplexity"] > 1 for each in found["methods"])
    for shares in found["fractions"].values():
        assert sum(shares["mean"][:3]) == pytest.approx(1)
        assert shares["mean"][3] == pytest.approx(shares["mean"][0] + shares["mean"][2])
    assert report_module.main([*arguments, "--layers", "1", "--pre-rope"]) == 0
    out = capsys.readouterr().out
    assert "before RoPE" in out
    assert "| like KIVI, 4 bits |" in out


@pytest.mark.usefixtures("loaded")
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.json"
    two = ["--windows", "2", "--tokens", "40"]
    assert profile_module.main(["-o", str(file), "--pre-rope", *two]) == 0
    capsys.readouterr()
    hundred = tmp_path / "hundred.txt"
    hundred.write_text("word " * 100)
    both = ["--text", str(hundred), "--calibration", str(hundred)]
    cases = [
        (report_module, ["--ratios", "5/90"], "ratios must add up to 100"),
        (report_module, ["--text", str(tmp_path / "none")], "cannot read"),
        (report_module, ["--layers", "2", *two, "--evaluation", "32"], "layers must be 0..1"),
        (report_module, [*two, "--evaluation", "5000"], "5000 are needed"),
        (report_module, ["--thresholds", str(file)], "do not mix"),
        (report_module, ["--thresholds", str(tmp_path / "none")], "cannot read"),
        # A text that serves for both is not measured on where it was calibrated on.
        (report_module, [*both, *two, "--evaluation", "21"], "101 are needed"),
        (profile_module, ["-o", str(file), "--ratios", "1/1/1/97"], "2 to 5 groups"),
        (profile_module, ["-o", str(tmp_path / "no" / "file"), *two], "to write to"),
        (profile_module, ["-o", str(file), "--windows", "0"], "windows must be at least 1, not 0"),
    ]
    for module, arguments, message in cases:
        assert module.main(arguments) == 2, arguments
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_missing_checkpoint_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_module.main(["--model", str(tmp_path / "none.gguf")]) == 2
    assert capsys.readouterr().err == f"report: no checkpoint at {tmp_path / 'none.gguf'}\n"


def test_models_of_another_kind_are_refused() -> None:
    with pytest.raises(CheckpointError, match="no layers with"):
        capture_kv(torch.nn.Linear(2, 2), IDS)


def written(path: Path, **fields: object) -> Path:
    """A tiny model's folder whose configuration has other fields; its tokenizer knows 60 words."""
    from golden.llm.eval.llama2c import tokenizer_of

    config = LlamaConfig(
        hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=50, head_dim=16,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    letters = ["<unk>", "▁", *map(chr, range(97, 97 + 26))]
    # Letters have the last ids: they are not of the embedding.
    tokenizer_of([f"<{i}>" for i in range(60 - len(letters))] + letters).save_pretrained(path)
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return path


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"sliding_window": 8}, "sliding_window must not be in a configuration of llama"),
        ({"num_local_experts": 8}, "num_local_experts must be 0 or null in a model of llama"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping must not be in a config"),
        ({"model_type": "mamba"}, "model_type must be one of deepseek_v3, gemma"),
        ({}, "token ids must be 0..49 for this model, not 56"),
    ],
)
def test_models_that_are_not_read_wholly(
    fields: dict, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shown to fail before golden.llm.decoder: fields were ignored, the last was an IndexError."""
    model = written(tmp_path / "model", **fields)
    output = tmp_path / "out.json"
    two = ["--windows", "2", "--tokens", "40"]
    assert profile_module.main(["--model", str(model), "-o", str(output), *two]) == 2
    found = capsys.readouterr().err.splitlines()[-1]
    assert found.startswith("profile: ")
    assert line in found
    assert not output.exists()
