"""The work of ``python -m golden.llm.calibrate``: methods learn, a file keeps what they found."""

import argparse
import hashlib
import importlib.metadata
from typing import Any

import torch

from golden.command import check_least
from golden.config import ConfigError
from golden.files import claimed
from golden.llm.checkpoint import load
from golden.llm.eval.accuracy.bench import code_version
from golden.llm.eval.calibration import CalibrationData, Steps, fingerprint
from golden.llm.eval.calibration_text import calibration_size, calibration_text, calibration_windows
from golden.llm.eval.command import ARCHITECTURES, check_seed, choose_device, in_one_line
from golden.llm.eval.method import Method
from golden.llm.eval.perplexity import check_finite
from golden.llm.eval.state import calibrate, save_states
from golden.llm.methods import parse_all, use_files


def transformers_version() -> str:
    """Returns the version of transformers without loading it."""
    return importlib.metadata.version("transformers")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Calibrates and writes the file; its header. CheckpointError or ConfigError in one line."""
    use_files(options.methods)
    methods = parse_all(options.method)
    if not any(each.calibrated for each in methods):
        raise ConfigError(f"{options.method} needs no calibration")
    check_seed(options.seed)
    check_least(options, {"skip": 0, "windows": 1, "tokens": 2})
    with claimed(options.output):
        return _run(options, methods)


def _run(options: argparse.Namespace, methods: list[Method]) -> dict[str, Any]:
    """``run`` with its output claimed, and with it the folder of its steps."""
    device = choose_device(options.device)
    text = calibration_text(options.text, methods)
    checkpoint = load(options.model, ARCHITECTURES, device)
    check_finite(checkpoint.model)
    count, tokens = calibration_size(checkpoint, methods, options.windows, options.tokens)
    parts = calibration_windows(checkpoint, text.content, count, tokens, options.skip)
    header = {
        "method": options.method,
        "model": checkpoint.name,
        "fingerprint": fingerprint(checkpoint.model),
        "text": text.name,
        "text_sha256": hashlib.sha256(text.content.encode()).hexdigest(),
        "windows": count,
        "tokens": tokens,
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
