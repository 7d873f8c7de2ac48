"""Command lines that simulate and evaluate a point; those that build it: ``sim.explore.build``."""

import json
import shlex
from pathlib import Path

from sim.explore.grid import Point, Setup


def simulate(setup: Setup, model: str) -> str:
    """The beginning of the command; ``sizes`` is its end."""
    words = ["python", "-m", "sim.run", "--hw", setup.hw, "--model", model]
    for place, value in setup.changes().items():
        words += ["--set", f"{place}={json.dumps(value)}"]
    return shlex.join(words)


def sizes(point: Point) -> str:
    """The end of the command line of ``simulate``."""
    return f"--batch {point.batch} --prompt {point.context} --out {point.out} --json"


def evaluate(model: str, method: str) -> str:
    """The command that gives a row to ``--accuracy``; empty without a method.

    It reads a built-in text: ``--text FILE`` is another one. FOLDER is the model's checkpoint.
    """
    if not method:
        return ""
    path = Path(model)
    folder = str(path.parent if path.name == "config.json" else path)
    checkpoint = folder if path.exists() else "FOLDER"
    given = [] if model == "smollm2-135m" else ["--model", checkpoint]
    name = Path(folder).name.lower()
    output = f"build/{name}-{method.partition(':')[0]}.json"
    words = ["python", "-m", "golden.llm.eval", *given, "--method", "fp32", method, "-o", output]
    return shlex.join(words)
