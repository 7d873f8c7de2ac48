"""States of methods, what ``Method.calibrate`` found, and their files.

A file is safetensors. It holds the tensors of each method of a combination under "0.", "1.", ...
and one metadata entry, JSON, that says how it was made. It serves only the model whose weights have
the same fingerprint.
"""

import json
from pathlib import Path
from typing import Any

from golden.files import replacing
from golden.llm.checkpoint import Checkpoint, CheckpointError
from golden.llm.eval.calibration import CalibrationData, State, fingerprint, save_tensors
from golden.llm.eval.method import Method

_FORMAT, _VERSION = "senbazuru calibration", 2


def calibrate(methods: list[Method], data: CalibrationData) -> list[State]:
    """The state of every method of a combination, each from the unchanged model."""
    return [method.calibrate(data) if method.calibrated else {} for method in methods]


def save_states(
    path: Path, methods: list[Method], states: list[State], header: dict[str, Any]
) -> None:
    """Writes a calibration file; ``header``: model, fingerprint, text and the like."""
    tensors = {
        f"{i}.{name}": value.detach().cpu().contiguous()
        for i, state in enumerate(states)
        for name, value in state.items()
    }
    made = {
        "format": _FORMAT,
        "version": _VERSION,
        "tensors": {name: list(value.shape) for name, value in tensors.items()},
        "methods": [
            {"class": type(each).__name__, "fields": each.calibration_fields()} for each in methods
        ],
        **header,
    }
    with replacing(path) as part:
        save_tensors(part, tensors, {"senbazuru": json.dumps(made)})


# Fields of a file's header that are read here or by golden.llm.eval.
_HEADER = {
    "model": str, "fingerprint": str, "methods": list, "tensors": dict, "text": str,
    "text_sha256": str, "windows": int, "tokens": int, "skip": int, "seed": int,
}  # fmt: skip


def load_header(path: Path) -> dict[str, Any]:
    """Reads a calibration file's header; CheckpointError in one line: it is none, or not whole."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["senbazuru"])
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    except FileNotFoundError:
        raise CheckpointError(f"no calibration at {path}") from None
    except (SafetensorError, OSError, KeyError, ValueError):
        raise CheckpointError(f"{path} is not a calibration file") from None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is not a calibration file")
    if header.get("version") != _VERSION:
        raise CheckpointError(f"{path} is not a calibration file of version {_VERSION}")
    for field, kind in _HEADER.items():
        if not isinstance(header.get(field), kind):
            raise CheckpointError(f"{path} is not a calibration file: it has no {field}")
    for each in header["methods"]:
        if not isinstance(each, dict) or {"class", "fields"} - each.keys():
            raise CheckpointError(f"{path} is not a calibration file: it has no methods")
    for name in sorted(header["tensors"].keys() | shapes.keys()):
        wanted, found = header["tensors"].get(name), shapes.get(name)
        if wanted != found:
            raise CheckpointError(f"{path}: the shape of {name} must be {wanted}, not {found}")
    return header


def load_states(path: Path, checkpoint: Checkpoint, methods: list[Method]) -> dict[int, State]:
    """States of those methods of a combination that the file was made for, by their place.

    CheckpointError in one line: what ``load_header`` refuses, another model (both are named), or
    the file has nothing for any of the methods.
    """
    from safetensors.torch import load_file

    header = load_header(path)
    tensors = load_file(path)
    own = fingerprint(checkpoint.model)
    if header["fingerprint"] != own:
        raise CheckpointError(
            f"{path} was made for the model {header['model']} ({header['fingerprint'][:12]}), "
            f"not for {checkpoint.name} ({own[:12]})"
        )
    found: dict[int, State] = {}
    for place, method in enumerate(methods):
        wanted = {"class": type(method).__name__, "fields": method.calibration_fields()}
        for i, made in enumerate(header["methods"]):
            if method.calibrated and made == json.loads(json.dumps(wanted)):
                prefix = f"{i}."
                found[place] = {
                    name.removeprefix(prefix): value
                    for name, value in tensors.items()
                    if name.startswith(prefix)
                }
    if not found:
        names = ", ".join(f"{each['class']} {each['fields']}" for each in header["methods"])
        raise CheckpointError(f"{path} serves none of the methods asked for; it is for {names}")
    return found
