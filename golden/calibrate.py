"""What methods learn offline: ``python -m golden.calibrate --text FILE --method NAME -o F``.

Writes a safetensors file for ``golden.eval --calibration``. The same command resumes stopped work:
it keeps finished steps in the folder F.partial next to the output, and removes it at the end.
"""

import argparse
import hashlib
import importlib.metadata
import sys
import time
from pathlib import Path
from typing import Any

import torch

from golden import command
from golden import text as own_text
from golden.checkpoint import CheckpointError, load, read_text
from golden.config import ConfigError
from golden.eval.accuracy.bench import code_version
from golden.eval.calibration import CalibrationData, Steps, fingerprint
from golden.eval.command import (
    ARCHITECTURES,
    calibration_windows,
    check_seed,
    choose_device,
    in_one_line,
    quiet,
)
from golden.eval.methods import parse_all
from golden.eval.perplexity import check_finite
from golden.eval.state import calibrate, save_states

__all__ = ["main", "run"]


def transformers_version() -> str:
    """Without loading it."""
    return importlib.metadata.version("transformers")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Calibrates and writes the file; its header. CheckpointError or ConfigError in one line."""
    methods = parse_all(options.method)
    if not any(each.calibrated for each in methods):
        raise ConfigError(f"{options.method} needs no calibration")
    check_seed(options.seed)
    if options.skip < 0:
        raise ConfigError(f"skip must be at least 0, not {options.skip}")
    if options.output.is_dir():
        raise ConfigError(f"output must be a file, not the folder {options.output}")
    if not options.output.parent.is_dir():
        raise CheckpointError(f"no folder {options.output.parent} to write to")
    device = choose_device(options.device)
    text = read_text(options.text)
    content = own_text.CALIBRATION if text is None else text
    checkpoint = load(options.model, ARCHITECTURES, device)
    check_finite(checkpoint.model)
    parts = calibration_windows(checkpoint, text, options.windows, options.tokens, options.skip)
    header = {
        "method": options.method,
        "model": checkpoint.name,
        "fingerprint": fingerprint(checkpoint.model),
        "text": options.text.name if options.text else "golden.text.CALIBRATION",
        "text_sha256": hashlib.sha256(content.encode()).hexdigest(),
        "windows": options.windows,
        "tokens": options.tokens,
        "skip": options.skip,
        "seed": options.seed,
        "torch": torch.__version__,
        "transformers": transformers_version(),
    }
    steps = Steps(options.output.with_name(options.output.name + ".partial"))
    code = code_version([type(each).__module__ for each in methods])
    steps.check({**header, "fields": [each.describe() for each in methods], "code": code})
    data = CalibrationData(checkpoint.model, parts, options.seed, steps)
    with in_one_line(options.method):
        states = calibrate(methods, data)
    save_states(options.output, methods, states, header)
    steps.finish()
    return header


def main(argv: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m golden.calibrate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--model", help="transformers folder, GGUF file, name on the hub; SmolLM2-135M if none"
    )
    parser.add_argument("--text", type=Path, help="plain, or .jsonl with a text per line; ours")
    parser.add_argument("--method", required=True, help="as for golden.eval; + combines")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128, help="of a window")
    parser.add_argument("--skip", type=int, default=0, help="tokens of the text to leave out first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cuda if there is one, else cpu")
    parser.add_argument("-o", "--output", type=Path, required=True, help="safetensors file")
    options = parser.parse_args(argv)
    start = time.monotonic()
    quiet()
    try:
        header = run(options)
    except (CheckpointError, ConfigError) as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"calibrate: cannot write {options.output}: {error.strerror}", file=sys.stderr)
        return 2
    print(
        f"{options.output}: {header['method']} for {header['model']}, {header['windows']} windows "
        f"of {header['tokens']} tokens, {time.monotonic() - start:.0f} s"
    )
    return 0


if __name__ == "__main__":
    command.run("golden.calibrate", main)
