"""``senbazuru.runs.real``: K and V of real text through the Verilated KV cache, bit for bit.

Thresholds come from other text than K and V do. All vectors of SmolLM2-135M, or of some layers,
are appended token by token and read back over cocotbext-axi's RAM. Every word is compared with
golden's.
"""

import argparse
import dataclasses
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from golden import command
from golden.command import elapsed
from golden.config import ConfigError
from golden.llm.text import EVALUATION
from golden.paging.format import Op, Status

if TYPE_CHECKING:
    import torch

    from golden.oaken.thresholds import Profile
    from hdl.oaken.kv_engine import OakenKvEngineConfig

BASE = 0x40_0000
CALIBRATION = (3, 128)  # windows and tokens of a window


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.real", description=__doc__)
    parser.add_argument("--text", type=Path, help="text to store (plain, or .jsonl); ours if none")
    parser.add_argument("--calibration", type=Path, help="text of the thresholds; ours if none")
    parser.add_argument("--profile", type=Path, help="use golden.llm.oaken.profile's thresholds")
    parser.add_argument("--ratios", default="4/90/6", help="outer/middle/inner in percent")
    parser.add_argument("--tokens", type=int, default=8, help="tokens to store, from 2 on")
    parser.add_argument("--layers", help='layers to store, such as "0,5-7"; all if none')
    parser.add_argument(
        "--order", choices=("head", "token"), default="head", help="order of the cache's records"
    )
    parser.add_argument("--pause", type=float, default=0.0, help="chance of a pause on every bus")
    options = parser.parse_args(arguments)
    return report(options)


@dataclasses.dataclass(frozen=True)
class Measured:
    """The result of one run; K and V apart. bits: per element stored, and per element read."""

    nmse: tuple[float, float]
    bits_stored: tuple[float, float]
    bits_read: tuple[float, float]
    vectors: int
    simulated: dict


def run(
    config: "OakenKvEngineConfig",
    profile: "Profile",
    captured: "list[tuple[torch.Tensor, torch.Tensor]]",
    layers: list[int],
    p_pause: float = 0.0,
    say: Callable[[str], None] = lambda _: None,
) -> Measured:
    """captured: (K, V) FP16 words of every layer, (T, D) each. AssertionError: a bit differs."""
    import torch  # only now

    from golden.llm.reports.kv_error import nmse
    from golden.oaken.vectors.kv_script import Script
    from hdl.oaken.kv_engine import OakenKvEngine
    from tb.simulate.run import build_model, run_model

    kv, tokens = config.cache.kv, len(captured[0][0])
    script = Script(config, 1, BASE)
    for layer in layers:
        for side in (0, 1):
            words = profile.thresholds(layer, side).tolist()
            assert script.set_thresholds(layer, side, words) == Status.OK
    script.wait()
    sequence = script.open()
    script.wait()
    say(f"quantizing {2 * tokens * len(layers)} vectors of {kv.elements} elements")
    for token in range(tokens):
        for layer in layers:
            for side in (0, 1):
                words = captured[layer][side][token].tolist()
                assert script.append(sequence, layer, side, token, words) == Status.OK
    script.wait()
    stored, read, errors = [0, 0], [0, 0], [0.0, 0.0]
    for layer in layers:
        for side in (0, 1):
            answer = script.request(
                Op.READ, sequence=sequence, layer=layer, kv=side, head=0, heads=kv.heads,
                token=tokens,
            )  # fmt: skip
            assert answer.status == Status.OK
            read[side] += answer.bytes_read
            for token in range(tokens):
                stored[side] += sum(map(len, script.golden.records(sequence, layer, side, token)))
            back = torch.tensor(answer.words).transpose(0, 1).reshape(tokens, kv.elements)
            errors[side] += nmse(captured[layer][side], back) / len(layers)
    phases = script.done()
    for name, phase in zip(("thresholds", "open", "write", "read"), phases, strict=True):
        phase["name"] = name
    say("building the cache (some minutes the first time)")
    model = build_model(OakenKvEngine(config), wrap="axi")
    say("simulating")
    work = run_model(
        model,
        "tb.oaken.tb_kv_engine_axi",
        config=config,
        params={"phases": phases, "base": BASE, "p_pauses": [p_pause]},
    )
    elements = tokens * len(layers) * kv.elements
    return Measured(
        nmse=(errors[0], errors[1]),
        bits_stored=(8 * stored[0] / elements, 8 * stored[1] / elements),
        bits_read=(8 * read[0] / elements, 8 * read[1] / elements),
        vectors=2 * tokens * len(layers),
        simulated=json.loads((work / "kv.json").read_text()),
    )


def _layers(text: str, count: int) -> list[int]:
    """Layers of "0,5-7"; ConfigError."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    except ValueError:
        found = []
    if not found or min(found) < 0 or max(found) >= count or len(set(found)) < len(found):
        raise ConfigError(f"--layers must be different layers of 0..{count - 1}, not {text!r}")
    return found


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    from golden.fp16.ops import bits_from_float  # torch, only now
    from golden.llm.capture import capture_kv
    from golden.llm.checkpoint import CheckpointError, load, read_text, windows
    from golden.oaken.groups import Ratios
    from golden.oaken.thresholds import Profile, ProfileError, profile_kv
    from hdl.oaken.kv_engine import OakenKvEngineConfig
    from hdl.oaken.room import BLOCKS

    console = Console()
    say = elapsed(lambda line: console.print(line, highlight=False))
    name = {"head": "smollm2", "token": "smollm2_token"}[options.order]
    config = BLOCKS["oaken_kv_engine"].configs[name]
    assert isinstance(config, OakenKvEngineConfig)
    try:
        if not 0 <= options.pause < 1:
            raise ConfigError(f"--pause must be 0 or more and below 1, not {options.pause}")
        if not 2 <= options.tokens <= config.cache.max_tokens:
            most = config.cache.max_tokens
            raise ConfigError(f"--tokens must be 2..{most}, not {options.tokens}")
        layers = _layers(options.layers or f"0-{config.cache.layers - 1}", config.cache.layers)
        text, other = read_text(options.text), read_text(options.calibration)
        say("loading SmolLM2-135M")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint = load()
        # Of one text, the tokens after those that gave the thresholds.
        skip = CALIBRATION[0] * CALIBRATION[1] if text is not None and text == other else 0
        (ids,) = windows(checkpoint, text or EVALUATION, 1, options.tokens, skip)
        if options.profile:
            profile = Profile.load(options.profile)
        else:
            parts = windows(checkpoint, other, *CALIBRATION)
            profile = profile_kv(
                (capture_kv(checkpoint.model, each) for each in parts), Ratios.parse(options.ratios)
            )
        captured = [
            (bits_from_float(k), bits_from_float(v)) for k, v in capture_kv(checkpoint.model, ids)
        ]
        say(f"K and V of {len(ids)} tokens and {len(layers)} layers")
        measured = run(config, profile, captured, layers, options.pause, say)
    except (CheckpointError, ConfigError, ProfileError, OSError, AssertionError) as error:
        print(f"real: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    _print(console, measured, config, len(ids))
    say("done")
    return 0


def _print(
    console: Console, measured: Measured, config: "OakenKvEngineConfig", tokens: int
) -> None:
    from golden.oaken.thresholds import KV_NAMES  # torch, only now

    found = measured.simulated
    table = Table(title="Oaken's KV cache next to golden, SmolLM2-135M", box=None, pad_edge=False)
    for heading in ("", "NMSE", "bits stored", "bits read"):
        table.add_column(heading, justify="right")
    for side, name in enumerate(KV_NAMES):
        table.add_row(
            name.upper(), f"{measured.nmse[side]:.3e}", f"{measured.bits_stored[side]:.3f}",
            f"{measured.bits_read[side]:.3f}",
        )  # fmt: skip
    console.print(table)
    elements = measured.vectors * config.cache.kv.elements
    write, read = found["cycles"]["write"], found["cycles"]["read"]
    beats = found["words"] / config.lanes
    console.print(
        f"bits: per element, counts and scales too; NMSE: mean over layers\n"
        f"{tokens} tokens, {measured.vectors} vectors; all {found['words']} words read back equal "
        f"golden in every bit\n"
        f"write: {write:.0f} cycles, {write / measured.vectors:.0f} a vector; "
        f"read: {read:.0f} cycles, {beats / read:.2f} of a beat of {config.lanes} per cycle\n"
        f"over the bus per element: {8 * found['bytes_w'] / elements:.3f} bits written, "
        f"{8 * found['bytes_r'] / elements:.3f} read, whole words of {config.mmu.data_bits} bits\n"
        f"{found['simulated'] / found['seconds']:.0f} cycles/s",
        highlight=False,
    )


if __name__ == "__main__":
    command.run("senbazuru.runs.real", main)
