"""``python -m sim.run``: one model on one chip: time, energy, bytes, and what binds.

    total = prefill of the prompt + one step of decoding for each further token

The steps are computed at a few contexts, and the cost between two of them is a line. ``--exact``
computes every step.
"""

import argparse
import contextlib
import csv
import dataclasses
import io
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from golden import command
from golden.config import ConfigError
from golden.files import claimed, replacing
from sim.constant import Interval
from sim.cost import Cost, total
from sim.energy.kllm import ORIGINS
from sim.engine import NOT_SCALED, Engine, check_fits, engine_of, shown_error, template
from sim.hardware import fields_of
from sim.hardware import known as chips
from sim.model import Model, built_in, find_model
from sim.plot import pictures
from sim.sampling import sampled
from sim.work import Pass

UNKNOWN = "not stated"  # where no file and no formula has a figure


def size(text: str) -> int:
    """A whole number of 1 or more; K is 1024 and M is 1024**2."""
    found = re.fullmatch(r"(\d+)([kKmM]?)", text)
    value = int(found[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20}[found[2].lower()] if found else 0
    if not 1 <= value <= 1 << 30:
        raise argparse.ArgumentTypeError(f"must be a whole number of 1 or more, not {text!r}")
    return value


def decoding(
    engine: Engine, model: Model, batch: int, first: int, count: int, exact: bool = False
) -> Cost:
    """``count`` steps of ``batch`` sequences, the first after ``first`` cached tokens.

    Where chunks begin, attention starts anew: so steps are sampled from chunk to chunk.
    """
    starts = [first, *model.starts(first, first + count), first + count]
    chosen = [
        (weight, start + n)
        for start, end in itertools.pairwise(starts)
        for weight, n in sampled(end - start, end - start if exact else engine.samples)
    ]
    return total((weight, engine.cost(model, Pass.decode(batch, at))) for weight, at in chosen)


class Run:
    """A model on a chip: ``prefill`` gives the first token, ``decode`` the others.

    prompt, out : tokens of each of ``batch`` sequences, before and after
    """

    def __init__(self, engine: Engine, model: Model, batch: int, prompt: int, out: int):
        self.engine, self.model = engine, model
        self.batch, self.prompt, self.out = batch, prompt, out
        # The last token is in no pass.
        check_fits(engine, model, batch, prompt + out, prompt + out - 1)
        self.prefill = Cost(())
        self.decode = Cost(())
        self.is_whole = True

    def compute(self, exact: bool = False, prefill: bool = True) -> "Run":
        """Computes the run.

        Without ``prefill`` the prompt is cached already, and the first step gives a word.
        """
        self.is_whole = prefill
        if prefill:
            self.prefill = self.engine.cost(self.model, Pass.prefill(self.batch, self.prompt))
        if self.out > 1:
            self.decode = decoding(
                self.engine, self.model, self.batch, self.prompt, self.out - 1, exact
            )
        return self

    @property
    def cost(self) -> Cost:
        found = total(((1.0, self.prefill), (1.0, self.decode)))
        return dataclasses.replace(found, extrapolated=(*found.extrapolated, *self._beyond()))

    def _beyond(self) -> Iterator[str]:
        """The line of a context that is longer than the model was made for."""
        tokens, model = self.prompt + self.out - 1, self.model
        if model.is_longer(tokens):
            most = f"the {model.positions:,} positions of {model.name}"
            yield f"{tokens:,} tokens are more than {most}"

    @property
    def seconds(self) -> float:
        return self.prefill.seconds + self.decode.seconds

    @property
    def token_seconds(self) -> float:
        """The seconds of a step of decoding, on average; of the prefill where nothing else runs."""
        return self.decode.seconds / (self.out - 1) if self.out > 1 else self.prefill.seconds

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all sequences in a second of decoding."""
        return self.batch / self.token_seconds

    @property
    def joules_per_token(self) -> Interval:
        """The joules of the steps of decoding; of the prefill where nothing else runs."""
        if self.out > 1:
            return self.decode.joules * (1 / (self.batch * (self.out - 1)))
        return self.prefill.joules * (1 / self.batch)

    def summary(self) -> dict[str, Any]:
        """Plain values; seconds, bytes, joules, square millimetres.

        ``seconds`` and ``joules`` are of the whole request, the prompt included. Where the prompt
        is cached already, they are of the decoding, and the first token has no time.
        """
        energy, whole = self.joules_per_token, self.cost.joules
        k_bits, v_bits = self.engine.kv_bits(self.model, self.prompt + self.out)
        held = self.engine.sram_bytes(self.model)
        areas: dict[str, Any] = {
            f"area_{kind}_mm2": area for kind, area in self.engine.shown_area.items()
        }
        for kind, each in self.engine.area_range.items():
            areas |= {f"area_{kind}_mm2_low": each.low * 1e6}
            areas |= {f"area_{kind}_mm2_high": each.high * 1e6}
        joules = {
            "joules_per_token": energy.value,
            "joules_per_token_low": energy.low,
            "joules_per_token_high": energy.high,
            "joules": whole.value,
            "joules_low": whole.low,
            "joules_high": whole.high,
        }
        left = self.engine.not_scaled
        return {
            "hardware": self.engine.hardware.name,
            "model": self.model.name,
            "batch": self.batch,
            "prompt": self.prompt,
            "out": self.out,
            "seconds": self.seconds,
            "first_token_seconds": self.prefill.seconds if self.is_whole else None,
            "token_seconds": self.token_seconds,
            "tokens_per_second": self.tokens_per_second,
            **(dict.fromkeys(joules, NOT_SCALED) if "energy" in left else joules),
            **{f"bytes_{name}": amount for name, amount in self.cost.traffic().items()},
            "weight_bytes": self.engine.weight_bytes(self.model),
            "kv_bytes": self.engine.kv_bytes(self.model, self.prompt + self.out) * self.batch,
            "k_bits": k_bits,
            "v_bits": v_bits,
            "capacity_bytes": self.engine.memory.capacity,
            "on_chip_bytes": sum(held.values()) if held else None,
            **areas,
            "not_scaled": [f"{figure}: {why}" for figure, why in left.items()],
            "extrapolated": list(self.cost.extrapolated),
        }

    def operations(self) -> list[dict[str, Any]]:
        """A row for each operation of the decoding, or of the prefill where nothing else runs."""
        cost, steps = (self.decode, self.out - 1) if self.out > 1 else (self.prefill, 1)
        whole = cost.seconds
        return [
            {
                "operation": each.name,
                "seconds": each.seconds / steps,
                "share": each.seconds / whole,
                "binds": each.binds,
                "slack_seconds": each.slack / steps,
                "bytes": sum(each.traffic.values()) / steps,
                **{f"{name}_seconds": value / steps for name, value in each.limits.items()},
            }
            for each in cost.spent
        ]

    def describe(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            **self.summary(),
            "energy_joules": NOT_SCALED
            if "energy" in self.engine.not_scaled
            else {
                name: [each.low, each.value, each.high] for name, each in self.cost.energy.items()
            },
            **({"events": dict(self.cost.events)} if self.cost.events else {}),
            "operations": self.operations(),
        }


def run(hardware: str, model: str, batch: int, prompt: int, out: int, exact: bool = False) -> Run:
    """ConfigError: no such chip or model, or the model does not fit."""
    return Run(engine_of(hardware), find_model(model), batch, prompt, out).compute(exact)


def change(text: str) -> tuple[str, Any]:
    """``PLACE=VALUE`` of ``--set``: a place in the file of hardware, and its value as JSON."""
    place, equals, value = text.partition("=")
    try:
        if not place or not equals:
            raise ValueError
        return place, json.loads(value)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError(f"must be PLACE=JSON, not {text!r}") from None


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """``--batch``, ``--prompt`` and ``--out``."""
    parser.add_argument("--batch", type=size, default=1, help="sequences side by side (1)")
    parser.add_argument("--prompt", type=size, default=128, help="tokens before (128)")
    parser.add_argument("--out", type=size, default=128, help="tokens after (128)")


def shown(value: float, unit: str) -> str:
    """Writes a value with a prefix of the unit, three digits."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""),
                          (1e-3, "m"), (1e-6, "u"), (1e-9, "n")):  # fmt: skip
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def square(area: float | str) -> str:
    """An area of ``Engine.shown_area``."""
    return area if isinstance(area, str) else f"{area:.2f} mm2"


def _interval(engine: Engine, energy: Interval) -> str:
    if "energy" in engine.not_scaled:
        return f"joules {NOT_SCALED}"
    low, high = (shown(each, "J") for each in (energy.low, energy.high))
    return f"{shown(energy.value, 'J')} ({low} to {high})"


def _megabytes(held: Mapping[str, float]) -> str:
    """The chip's own memories, and what they hold."""
    if not held:
        return UNKNOWN
    parts = ", ".join(f"{name} {amount / 1e6:.2f}" for name, amount in held.items())
    return f"{sum(held.values()) / 1e6:.2f} MB: {parts}"


def _print(made: Run) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=110, soft_wrap=True)
    engine, energy, whole = made.engine, made.joules_per_token, made.cost.joules
    console.print(f"{made.model.name} on {engine.hardware.name}: {engine.hardware.about}")
    capacity = engine.memory.capacity
    used = engine.weight_bytes(made.model)
    tokens = made.prompt + made.out
    used += made.batch * engine.kv_bytes(made.model, tokens)
    k_bits, v_bits = engine.kv_bits(made.model, tokens)
    held = engine.sram_bytes(made.model)
    first, further, name = shown(made.prefill.seconds, "s"), "none: --out is 1", "whole request"
    rate = each = further
    if made.out > 1:
        further = shown(made.token_seconds, "s")
        rate = f"{made.tokens_per_second:.1f} /s in decoding, batch {made.batch}"
        each = f"{_interval(engine, energy)} per token in decoding"
    if not made.is_whole:
        first, name = "not computed: --context leaves the prompt out", "decoding"
    lines = [
        ("first token", first),
        ("further token", further),
        ("new tokens", rate),
        (name, f"{shown(made.seconds, 's')}, {_interval(engine, whole)}"),
        ("energy", each),
        ("memory", f"{used / 1e9:.2f} GB of {capacity / 1e9:.0f} GB"),
        ("K and V", f"{k_bits:.2f} and {v_bits:.2f} stored bits per element after {tokens} tokens"),
        ("on chip", _megabytes(held)),
        *((f"area, {kind}", square(area)) for kind, area in engine.shown_area.items()),
        *(() if engine.area else (("area", UNKNOWN),)),
    ]  # fmt: skip
    for name, text in lines:
        console.print(f"  {name:14} {text}")
    table = Table(
        title="a step of decoding" if made.out > 1 else "the prefill", title_justify="left"
    )
    for name in ("operation", "time", "share", "binds", "by", "bytes"):
        table.add_column(name, justify="left" if name in ("operation", "binds") else "right")
    for row in made.operations():
        table.add_row(
            row["operation"], shown(row["seconds"], "s"), f"{100 * row['share']:.1f} %",
            row["binds"], shown(row["slack_seconds"], "s"), shown(row["bytes"], "B"),
        )  # fmt: skip
    console.print(table)
    if made.cost.events:
        _print_energy(console, made)
    for figure, why in engine.not_scaled.items():
        console.print(f"{NOT_SCALED}: {figure}: {why}")
    for reason in made.cost.extrapolated:
        console.print(f"extrapolated: {reason}")


def _print_energy(console: Any, made: Run) -> None:
    """Prints joules of the whole request by part, and the source of each part's figures."""
    from rich.table import Table

    whole = made.cost.joules.value
    table = Table(title=f"energy of the request: {shown(whole, 'J')}", title_justify="left")
    for name in ("part", "J", "low", "high", "share", "from"):
        table.add_column(name, justify="left" if name in ("part", "from") else "right")
    for name, each in made.cost.energy.items():
        joules = (shown(x, "J") for x in (each.value, each.low, each.high))
        table.add_row(name, *joules, f"{100 * each.value / whole:.1f} %", ORIGINS[name])
    console.print(table)


def _list() -> None:
    for title, names in (("--hw", chips()), ("--model", built_in())):
        print(title)
        for name in names:
            about = f"  {fields_of(name)[1]['about']}" if title == "--hw" else ""
            print(f"  {name}{about}")


def write_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows with the union of their fields, in the order in which they come."""
    names = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def give(file: Path | None, text: Callable[[], str]) -> None:
    """Write a file where one is asked. ConfigError: it cannot be written."""
    if file is None:
        return
    try:
        with replacing(file) as part:
            part.write_text(text())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None


def _changes(options: argparse.Namespace) -> dict[str, Any]:
    """Other values in the file of hardware: those of --set, then that of --energy."""
    own = {"settings.energy": options.energy} if options.energy else {}
    return dict(options.set) | own


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(prog="python -m sim.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hw", help="a known chip, or a JSON file")
    parser.add_argument("--model", help="a known model, config.json or its folder")
    add_sizes(parser)
    parser.add_argument(
        "--context", type=size, help="tokens before, in the place of --prompt, without its prefill"
    )
    parser.add_argument(
        "--template", metavar="ENGINE", help="print a file of hardware with every field, and end"
    )
    parser.add_argument("--list", action="store_true", help="print the known names, and end")
    parser.add_argument(
        "--energy",
        choices=("paper", "events"),
        help="of kllm: watts and areas of the file, or events of our netlists; default: the file's",
    )
    parser.add_argument(
        "--set", type=change, action="append", default=[], metavar="PLACE=JSON",
        help="another value in the file of hardware, such as constants.clock.value=400",
    )  # fmt: skip
    parser.add_argument("--exact", action="store_true", help="compute every step of decoding")
    parser.add_argument("--strict", action="store_true", help="refuse what is extrapolated")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the operations")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write pictures as SVG")
    options = parser.parse_args(arguments)
    outputs = contextlib.ExitStack()
    try:
        outputs.enter_context(claimed(options.csv, options.plot))
        if options.template:
            print(json.dumps(template(options.template), indent=1))
            return 0
        if options.list:
            _list()
            return 0
        for name in ("hw", "model"):
            if getattr(options, name) is None:
                raise ConfigError(f"--{name} must be given")
        if options.context and options.out < 2:
            raise ConfigError("--out must be 2 or more with --context, which has no prefill")
        made = Run(
            engine_of(options.hw, _changes(options)), find_model(options.model), options.batch,
            options.context or options.prompt, options.out,
        ).compute(options.exact, options.context is None)  # fmt: skip
        if options.strict and made.cost.extrapolated:
            raise ConfigError(f"extrapolated: {'; '.join(made.cost.extrapolated)}")
        give(options.csv, lambda: write_csv(made.operations()))
        sizes = {"batch": made.batch, "prompt": made.prompt, "out": made.out}
        give(
            options.plot,
            lambda: pictures(made.engine, made.model, made.prefill, made.decode, sizes),
        )
    except (ConfigError, ArithmeticError) as error:
        print(f"sim.run: {shown_error(error)}", file=sys.stderr)
        return 2
    finally:
        outputs.close()
    if options.json:
        print(json.dumps(made.describe(), indent=1))
    else:
        _print(made)
    return 0


if __name__ == "__main__":
    command.run("sim.run", main)
