"""``python -m golden.llm.pack`` on a tiny model: what it writes runs; what has changed is refused.

Shown to fail:

- without the check of sums, of widths or of the configuration (a changed folder is accepted);
- a part of the context left out (the layer gives other words).
"""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.layer.host import replay
from golden.kllm.machine import Machine
from golden.llm import checkpoint, pack
from golden.llm.eval.calibration import CalibrationData, fingerprint
from golden.llm.eval.state import calibrate, save_states
from golden.llm.methods import parse_all
from golden.manifest import PackError, read_hex, write_hex
from golden.oaken.groups import thresholds_of

SMALL = MACHINES["small_cache"]
ARGUMENTS = ["--layer", "1", "--config", "small_cache", "--context", "9"]


class Words:
    """A tokenizer: a word's length is its number."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}


def tiny(_path: Path | None = None) -> checkpoint.Checkpoint:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, vocab_size=50,
    )  # fmt: skip
    return checkpoint.Checkpoint(LlamaForCausalLM(config).eval(), Words())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack") / "folder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "load", tiny)
        assert pack.main([*ARGUMENTS, "-o", str(folder)]) == 0
    return folder


METHOD = "kllm-plain-w4a4:fit=feedback,glu=exact,center=true,rotate=true,damping=0.1"
METHOD += ",integer_bits=16+oaken"


def calibrated(path: Path, spelling: str) -> Path:
    """A calibration file of the tiny model."""
    model = tiny().model
    ids = torch.randint(1, 50, (200,), generator=torch.Generator().manual_seed(1))
    methods = parse_all(spelling)
    states = calibrate(methods, CalibrationData(model, [ids]))
    header = {
        "method": spelling, "model": "tiny", "fingerprint": fingerprint(model), "text": "random",
        "text_sha256": "0", "windows": 1, "tokens": 200, "skip": 0, "seed": 0,
    }  # fmt: skip
    save_states(path, methods, states, header)
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder packed from a calibration file."""
    folder = tmp_path_factory.mktemp("pack")
    file = calibrated(folder / "state.safetensors", METHOD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "load", tiny)
        arguments = [*ARGUMENTS, "--calibration", str(file), "-o", str(folder / "made")]
        assert pack.main(arguments) == 0
    return folder / "made"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """One that may be changed."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.mark.parametrize("name", ["made", "fitted"])
def test_folder_runs_on_the_machine(name: str, request: pytest.FixtureRequest) -> None:
    found = pack.load(request.getfixturevalue(name), SMALL)
    assert len(found.parts) == 3 + 1  # 9 tokens by 3 places
    replay(Machine(SMALL, found.data, found.ports), found.requests, found.parts)
    assert len(found.parts[-1].readback) * 2 == 48
    with pytest.raises(ArithmeticError, match="DEPENDENCY"):
        replay(Machine(SMALL, found.data, found.ports), found.requests, found.parts[1:])
    assert found.manifest.model["context"] == 9
    assert found.manifest.model["error"] < 0.1


def test_a_calibration_is_told_and_followed(made: Path, fitted: Path) -> None:
    """The method's switches are the layer's, and what the file was made from is in the manifest."""
    found = pack.load(fitted, SMALL).manifest
    assert found.made["calibration"]["method"] == METHOD
    options = found.model["options"]
    assert options == {
        "fuse": True, "glu": "exact", "share": 0.005, "center": True, "parts": 0,
        "attention": "cache",
    }  # fmt: skip
    assert "key_offset" in found.layout["data"]
    assert found.model["error"] < pack.load(made, SMALL).manifest.model["error"]


def test_half_packets_take_antisymmetric_codebooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A layer without a calibration file, and one of a learned state; of another it is refused.

    The packets of the latter are half as long as those of a machine with whole ones.
    """
    monkeypatch.setattr(checkpoint, "load", tiny)
    half = ["--set", "antisymmetric=true", "--set", "product=fixed12"]
    learned = METHOD.replace("damping", "steps=2,antisymmetric=true,damping")
    files = {
        spelling: calibrated(tmp_path / f"{n}.safetensors", spelling)
        for n, spelling in enumerate((METHOD, learned))
    }
    folder = tmp_path / "folder"
    arguments = [*ARGUMENTS, *half, "-o", str(folder)]
    assert pack.main([*arguments, "--calibration", str(files[METHOD])]) == 2
    message = "MachineConfig.antisymmetric must be False for a calibration without antisymmetric="
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not folder.exists()
    machine = dataclasses.replace(SMALL, antisymmetric=True, product="fixed12")
    for given in ([], ["--calibration", str(files[learned])]):
        assert pack.main([*arguments, *given]) == 0
        found = pack.load(folder, machine)
        assert found.manifest.layout["data"]["packet.o"][1] == 9  # 136 words
        assert found.manifest.model["error"] < 0.1
        replay(Machine(machine, found.data, found.ports), found.requests, found.parts)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("rtn-w4a16", "calibration must be of a kllm method with +oaken, not rtn-w4a16"),
        ("kllm-plain-w4a4", "calibration must be of a kllm method with +oaken, not kllm-plain"),
        ("kllm-plain-w4a4:norm=exact+oaken", "KllmPlain.norm must be index for a layer of the acc"),
        ("kllm-plain-w4a4+oaken", "KllmPlain.integer_bits must be 16 for a layer of the accel"),
        (
            "kllm-plain-w4a16:integer_bits=16+oaken",
            "weights and activations must be quantized for the accelerator",
        ),
    ],
)
def test_calibrations_without_such_a_flow(
    method: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(checkpoint, "load", tiny)
    file = calibrated(tmp_path / "state.safetensors", method)
    folder = tmp_path / "folder"
    assert pack.main([*ARGUMENTS, "--calibration", str(file), "-o", str(folder)]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not folder.exists()


def test_same_checkpoint_gives_the_same_bytes(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "load", tiny)
    assert pack.main([*ARGUMENTS, "-o", str(tmp_path / "again")]) == 0
    names = sorted(file.name for file in made.iterdir())
    assert names == sorted(file.name for file in (tmp_path / "again").iterdir())
    for name in names:
        assert (made / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def changed(folder: Path, **fields) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_what_has_changed_is_refused(folder: Path) -> None:
    file = folder / "program_1.hex"
    text = file.read_text()
    file.write_text(text.replace("0", "1", 1))
    with pytest.raises(PackError, match=r"program_1.hex: sha256 must be [0-9a-f]{64}, not "):
        pack.load(folder, SMALL)
    file.write_text(text[:-9])
    with pytest.raises(PackError, match=rf"must have {len(text)} bytes, not {len(text) - 9}$"):
        pack.load(folder, SMALL)
    file.unlink()
    with pytest.raises(PackError, match=r"program_1.hex cannot be read$"):
        pack.load(folder, SMALL)
    with pytest.raises(PackError, match=r"manifest.json cannot be read$"):
        pack.load(folder / "none", SMALL)


def test_other_versions_and_configurations_are_refused(folder: Path) -> None:
    with pytest.raises(PackError, match=r"config.lane.lanes must be 16, not 2$"):
        pack.load(folder, MachineConfig.parse(SMALL, ["lane.lanes=16"]))  # type: ignore[arg-type]
    changed(folder, block="kllm_pe_lane")
    with pytest.raises(PackError, match=r"block must be kllm_accelerator, not 'kllm_pe_lane'$"):
        pack.load(folder, SMALL)
    changed(folder, format=1)
    with pytest.raises(PackError, match=r"manifest.json: format must be 2, not 1$"):
        pack.load(folder, SMALL)
    changed(folder, format=2, block="kllm_accelerator", extra=0)
    with pytest.raises(PackError, match=r"wrong or missing: extra$"):
        pack.load(folder, SMALL)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(PackError, match="is no JSON"):
        pack.load(folder, SMALL)


def test_widths_and_lengths_are_checked(folder: Path) -> None:
    files = json.loads((folder / "manifest.json").read_text())["files"]
    files["port_01.hex"]["width"] = 128
    changed(folder, files=files)
    with pytest.raises(PackError, match=r"port_01.hex: width must be 64 bits, not 128$"):
        pack.load(folder, SMALL)
    words = [word for _, word in read_hex(folder, "port_01.hex")]
    files["port_01.hex"] = write_hex(folder, "port_01.hex", words[:-3], 64)
    changed(folder, files=files)
    with pytest.raises(PackError, match=rf"port 1 must hold {len(words)} words, not"):
        pack.load(folder, SMALL)
    del files["data.hex"]
    changed(folder, files=files)
    with pytest.raises(PackError, match=r"data.hex is not in the manifest$"):
        pack.load(folder, SMALL)


def test_hex_keeps_addresses(tmp_path: Path) -> None:
    words = [(0, 5), (1, 6), (9, 7), (10, 8)]
    entry = write_hex(tmp_path, "a.hex", words, 12)
    assert (tmp_path / "a.hex").read_text() == "005\n006\n@9\n007\n008\n"
    assert (entry["words"], entry["width"], entry["bytes"]) == (4, 12, 19)
    assert read_hex(tmp_path, "a.hex") == words
    (tmp_path / "a.hex").write_text("00\nxy\n")
    with pytest.raises(PackError, match=r"a.hex:2: no hexadecimal word$"):
        read_hex(tmp_path, "a.hex")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "2", "--config", "small_cache", "--context", "9"],
         "layer must be 0..1, not 2\n"),
        (["--layer", "x"], "argument --layer: invalid int value: 'x'\n"),
        ([], "the following arguments are required: --layer\n"),
        (["--layer", "1", "--block", "lane"], "argument --block: invalid choice: 'lane'"),
        (["--layer", "1", "--tokens", "0"], "--tokens must be at least 1, --context"),
        (["--layer", "1", "--set", "ports.ports=0"], "PortShape.ports must be 1..64, not 0"),
        (["--layer", "1", "--option", "glu=x"], "LayerOptions.glu must be index or exact"),
        (["--layer", "1", "--context", "9999"], "the text has"),
        (["--layer", "1", "--calibration", "none"], "no calibration at none"),
        (["--layer", "1", "--calibration", "none", "--option", "fuse=false"],
         "--option does not apply with --calibration: the method's fields decide"),
        (["--layer", "1", "--config", "small_cache", "--set", "slot.elements=32"],
         "MachineConfig.slot.elements must be 128 for this layer, not 32\n"),
        (["--layer", "1", "--config", "small"],
         "MachineConfig.batch must be 1 for this layer, not 0\n"),
    ],
)  # fmt: skip
def test_errors_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(checkpoint, "load", tiny)
    try:
        code = pack.main([*arguments, "-o", str(tmp_path / "out")])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]
    assert len(lines) == 1
    assert (lines[0] + "\n").startswith(f"golden.llm.pack: {message}")


def test_pages_take_the_thresholds_of_the_calibration(tmp_path: Path) -> None:
    """A layer with Oaken's K and V has thresholds of the calibration, and no codebooks of both."""
    loaded = tiny()
    file = calibrated(tmp_path / "state.safetensors", METHOD)
    found = pack.calibrated(loaded, file)
    _, layer = found.layer(loaded.model, 0)
    wanted = torch.stack([thresholds_of(each) for each in found.states[1]["intervals"][0]])
    assert torch.equal(layer.thresholds, wanted)
    assert found.told["calibration"]["method"].endswith("+oaken")
