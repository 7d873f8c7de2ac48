"""The differences of the channels of K and V, one ratio per layer: MILLION, Figures 2 and 3."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden.files import replacing
from golden.llm.capture import capture_kv
from golden.llm.checkpoint import Checkpoint, CheckpointError
from golden.markers import table

KINDS = ("K", "K before RoPE", "V")


def ratios(x: Tensor) -> dict[str, float]:
    """Largest over median channel of (tokens, channels): of deviations, and of magnitudes."""
    deviation, magnitude = x.double().std(0), x.double().abs().amax(0)
    return {
        "deviation": float(deviation.max() / deviation.median()),
        "magnitude": float(magnitude.max() / magnitude.median()),
    }


def measure(checkpoint: Checkpoint, windows: list[Tensor]) -> list[dict[str, dict[str, float]]]:
    """Measures by layer and kind.

    A channel is one element of one head, over all tokens of the windows.
    """
    after, before = (
        [capture_kv(checkpoint.model, ids, pre_rope) for ids in windows]
        for pre_rope in (False, True)
    )
    found = []
    for layer in range(len(after[0])):
        parts = {
            "K": [each[layer][0] for each in after],
            "K before RoPE": [each[layer][0] for each in before],
            "V": [each[layer][1] for each in after],
        }
        found.append({kind: ratios(torch.cat(parts[kind])) for kind in KINDS})
    return found


def save_channels(path: Path, settings: dict[str, Any], layers: list[Any]) -> None:
    lines = ",\n".join(json.dumps(each, sort_keys=True) for each in layers)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        text = f'{{"settings": {json.dumps(settings, sort_keys=True)},\n"layers": [\n{lines}\n]}}\n'
        part.write_text(text)


def load_channels(path: Path) -> dict[str, Any]:
    """settings and layers; CheckpointError in one line."""
    try:
        content = json.loads(path.read_text())
        assert content["layers"]
        assert content["settings"]
        return content
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AssertionError):
        raise CheckpointError(f"{path} does not hold the channels of a model") from None


def section(content: dict[str, Any]) -> str:
    """A line for each layer."""
    head = ["layer", *(f"{kind}, deviation" for kind in KINDS),
            *(f"{kind}, magnitude" for kind in KINDS)]  # fmt: skip
    rows = [
        [str(layer), *(f"{each[kind][what]:.2f}" for what in ("deviation", "magnitude")
                       for kind in KINDS)]
        for layer, each in enumerate(content["layers"])
    ]  # fmt: skip
    own = content["settings"]
    text = f"{own['windows']} windows of {own['seq']:,} tokens of {own['text']}"
    top = table(
        ("setting", "value"),
        [("model", f"{own['model']} (weights {own['fingerprint'][:12]})"), ("text", text)],
        align_right=False,
    )
    return f"{top}\n{table(head, rows)}"
