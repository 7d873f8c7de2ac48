"""``python -m senbazuru.runs.trace --trace FILE``: requests of a trace on the Verilated chip.

Requests come at their times, in cycles of the chip, and share its steps by the host's library. Each
step's cycles are next to those that the simulator says for the same places. A trace has the
columns of ``sim.serving.trace``.

Lengths are scaled so that the longest request just fills ``--context``, or has ``--longest``
tokens. One factor multiplies prompt and output, which are rounded down, and are 1 at least.
``--as-is`` keeps them. The words of a prompt are random: a trace has none. A time without requests
takes no step.

After each step the results are kept in a file of ``build/trace``. The same command goes on after a
stop: who was running goes through again, with its tokens as a prompt. ``--page`` rewrites the table
of docs/trace.md.
"""

import dataclasses
import hashlib
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golden import command
from golden.config import ConfigError
from golden.files import replacing
from golden.kllm.config import MACHINES
from golden.kllm.isa import COMMAND_WORDS
from hdl.arguments import add_page, check_page, folder, whole, write_page
from hdl.kllm.accelerator import KllmAcceleratorConfig
from senbazuru.talk.options import Options
from sim.serving.trace import Request, read_trace, scaled
from tb.simulate.run import ROOT

if TYPE_CHECKING:
    from golden.llm.kllm.pack import ModelPack
    from senbazuru.host.engine import Engine

PAGE = ROOT / "docs" / "trace.md"
SECTION = "trace"
PICTURE = ROOT / "docs" / "trace" / "steps.svg"
POINTS = 40  # of a line of the picture, at most
FOLDER = ROOT / "build" / "trace"
CLOCK = 500e6  # Hz
VERSION = 1
KINDS = ("prompts only", "prompts and chosen tokens", "chosen tokens only")


@dataclasses.dataclass
class Step:
    """A step of the chip.

    begin, cycles : when, and how long; predicted: the same of the simulator
    lengths : tokens that each place attends to; chosen: places that choose
    lanes : fewest cycles that the lanes need for the products
    """

    begin: int
    cycles: int
    predicted: int
    lengths: list[int]
    chosen: int
    sequences: int
    lanes: int

    @property
    def error(self) -> float:
        return self.predicted / self.cycles - 1

    @property
    def kind(self) -> str:
        if not self.chosen:
            return KINDS[0]
        return KINDS[2 if self.chosen == len(self.lengths) else 1]


@dataclasses.dataclass
class Served:
    """A request of the trace on the chip; arrival, first and end: cycles, -1 before."""

    number: int
    arrival: int
    prompt: int
    output: int
    words: list[int] = dataclasses.field(default_factory=list)
    first: int = -1
    end: int = -1


@dataclasses.dataclass
class Run:
    """A run as it is kept; what: says which run it is."""

    what: dict[str, Any]
    requests: list[Served]
    steps: list[Step] = dataclasses.field(default_factory=list)
    now: int = 0
    stops: int = 0

    @property
    def is_complete(self) -> bool:
        return all(each.end >= 0 for each in self.requests)

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as part:
            part.write_text(json.dumps({"version": VERSION, **dataclasses.asdict(self)}))

    @classmethod
    def load(cls, file: Path) -> "Run":
        """ConfigError: the file is no such run."""
        try:
            found = json.loads(file.read_text())
            if found.pop("version") != VERSION:
                raise ValueError("of another version")
            found["requests"] = [Served(**each) for each in found["requests"]]
            found["steps"] = [Step(**each) for each in found["steps"]]
            return cls(**found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{file}: no run of senbazuru.runs.trace: {error}") from None


def lengths_of(
    requests: Sequence[Request], context: int, as_is: bool = False
) -> list[tuple[int, int]]:
    """Prompt and output of each. ConfigError: a request is longer than the context."""
    longest = max(each.prompt + each.output for each in requests)
    if as_is:
        for each in requests:
            if each.prompt + each.output > context:
                raise ConfigError(
                    f"request {each.number}: ContextTokens and GeneratedTokens must be at most "
                    f"{context} together, not {each.prompt + each.output}"
                )
        return [(each.prompt, each.output) for each in requests]
    if context < 2:
        raise ConfigError(f"--context must be 2 or more, not {context}")
    made = []
    for each in requests:
        prompt, output = (max(1, size * context // longest) for size in (each.prompt, each.output))
        made.append((min(prompt, context - output), output))
    return made


def planned(
    requests: Sequence[Request], context: int, vocabulary: int, seed: int, as_is: bool = False,
    clock: float = CLOCK,
) -> list[Served]:  # fmt: skip
    """The requests as the chip gets them."""
    made = []
    sizes = lengths_of(requests, context, as_is)
    for each, (prompt, output) in zip(requests, sizes, strict=True):
        rng = random.Random(f"{seed} {each.number}")
        words = [rng.randrange(vocabulary) for _ in range(prompt)]
        made.append(Served(each.number, round(each.arrival * clock), prompt, output, words))
    return made


def serve(
    run: Run, pack: "ModelPack", library: Path, config: KllmAcceleratorConfig, latency: int,
    keep: Callable[[Run], None] = lambda _run: None,
) -> None:  # fmt: skip
    """Takes all requests to their ends. HostError: the chip is lost."""
    from golden.kllm.model.host_image import host_image
    from senbazuru.host.engine import End, Engine, Policy, Reason, Token, VerilatedChip
    from senbazuru.host.watched import TappedChip
    from senbazuru.talk.report import check_cycles, predicted_step

    image = host_image(pack.step_programs, pack.thresholds.tolist())
    running: dict[int, Served] = {}
    with VerilatedChip(library, pack.folder, latency) as inner:
        chip = TappedChip(inner, config.machine.batch)
        with Engine(chip, image, policy=Policy.FIRST_COME) as engine:
            offset = run.now - chip.cycle
            arriving = [each for each in run.requests if each.end < 0]
            while arriving or engine.is_busy:
                if not engine.is_busy:
                    offset = max(offset, arriving[0].arrival - chip.cycle)
                while arriving and arriving[0].arrival <= chip.cycle + offset:
                    each = arriving.pop(0)
                    running[_submit(engine, each)] = each
                begin = chip.cycle + offset
                checks = set(chip.programs)
                report = engine.step()
                chip.check()
                if report["tokens"]:
                    if report["failed"]:
                        raise ConfigError(f"step {len(run.steps)} failed on the chip")
                    places = [each for each in chip.batch[: report["tokens"]] if each]
                    lengths = [each.position + 1 for each in places]
                    words = pack.step_programs.words(report["tokens"], report["chosen"])
                    says = predicted_step(words, config, latency, lengths)
                    if set(chip.programs) != checks:  # it reads the program once more
                        says += check_cycles(len(words) // COMMAND_WORDS, latency)
                    run.steps.append(
                        Step(begin, report["cycles"], says, lengths, report["chosen"],
                             report["sequences"], report["lane_cycles"])
                    )  # fmt: skip
                run.now = chip.cycle + offset
                for event in engine.poll():
                    each = running[event.request]
                    if isinstance(event, Token):
                        each.words.append(event.token)
                        each.first = run.now if each.first < 0 else each.first
                    elif isinstance(event, End):
                        if event.reason != Reason.LENGTH:
                            raise ConfigError(f"request {each.number} ended: {event.fault}")
                        each.end = run.now
                keep(run)


def _submit(engine: "Engine", each: Served) -> int:
    """Words that it was given before a stop are a part of its prompt."""
    return engine.submit(each.words, each.prompt + each.output - len(each.words))


def table(run: Run, clock: float = CLOCK) -> str:
    """The steps by kind, and what they say together."""
    head = ("steps", "number", "places with a token", "cycles", "the simulator's", "lanes used",
            "mean error", "largest error")  # fmt: skip
    rows = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    for name, steps in (
        *((kind, [each for each in run.steps if each.kind == kind]) for kind in KINDS),
        ("all", run.steps),
    ):
        if not steps:
            continue
        cycles, says = (
            sum(getattr(each, field) for each in steps) for field in ("cycles", "predicted")
        )
        errors = [each.error for each in steps]
        cells = (
            name, f"{len(steps):,}", f"{statistics.mean(len(s.lengths) for s in steps):.1f}",
            f"{cycles:,}", f"{says:,}", f"{sum(each.lanes for each in steps) / cycles:.0%}",
            f"{statistics.mean(map(abs, errors)):.1%}", f"{max(errors, key=abs):+.1%}",
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    ended = [each for each in run.requests if each.end >= 0]
    tokens = sum(len(each.lengths) for each in run.steps)
    busy = sum(each.cycles for each in run.steps)
    chosen = sum(each.chosen for each in run.steps)
    rate, chose = (count * clock / busy for count in (tokens, chosen))
    rows += ["", f"{len(ended)} of {len(run.requests)} requests ended."]
    rows.append(f"{tokens:,} tokens went through, and {chosen:,} were chosen.")
    rows.append(
        f"At {clock / 1e6:.0f} MHz that is {rate:,.0f} and {chose:,.0f} per second of steps."
    )
    if ended:
        waits = sorted((each.first - each.arrival) / clock * 1e3 for each in ended)
        middle, worst = statistics.median(waits), waits[-1]
        rows.append(
            f"First tokens come after {middle:.2f} ms in the median, {worst:.2f} ms at most."
        )
    if run.stops:
        rows.append(f"The run was stopped {run.stops} times.")
    return "\n".join([*rows, ""])


def plot(run: Run, clock: float = CLOCK) -> str:
    """SVG of lanes used and of the simulator's error along the run, in ``POINTS`` at most."""
    from sim.svg import Axis, Line, LineChart, page

    time_axis = Axis("ms since the first step", low=0)
    first = run.steps[0].begin
    together = -(-len(run.steps) // POINTS)
    parts = [run.steps[n : n + together] for n in range(0, len(run.steps), together)]
    times = [(each[0].begin - first) / clock * 1e3 for each in parts]

    def line(name: str, of: Callable[[list[Step]], float]) -> Line:
        return Line(name, [(at, of(each)) for at, each in zip(times, parts, strict=True)], True)

    def share(part: list[Step], amount: Callable[[Step], float]) -> float:
        return 100 * sum(map(amount, part)) / sum(each.cycles for each in part)

    places = max(len(each.lengths) for each in run.steps)
    used = LineChart(
        f"{len(run.steps)} steps, {together} at a time", time_axis, Axis("%", low=0, high=100),
        [
            line("lanes used", lambda part: share(part, lambda each: each.lanes)),
            line(
                f"of {places} places, those with a token",
                lambda part: 100 * statistics.mean(len(s.lengths) for s in part) / places,
            ),
        ],
    )  # fmt: skip
    errors = LineChart(
        "The simulator's cycles next to the chip's", time_axis, Axis("error, %"),
        [
            line("sum of the steps", lambda part: share(part, lambda s: s.predicted - s.cycles)),
            line("largest of a step", lambda part: 100 * max((s.error for s in part), key=abs)),
        ],
    )  # fmt: skip
    return page([used, errors])


def said(run: Run) -> str:
    """The run in words, for the page."""
    what = run.what
    layers = f"the first {what['layers']} layers" if what["layers"] else "all layers"
    return (
        f"The first {what['requests']} requests of `{what['trace']}` come {what['speed']:g} times "
        f"as fast. The model is {what['model']}, {layers}. The longest request has "
        f"{what['longest']} tokens.\n\n"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.trace", description=__doc__)
    parser.add_argument("--trace", type=Path, required=True, help="CSV file of requests")
    parser.add_argument("--requests", type=whole(), default=200, help="the first N of the trace")
    parser.add_argument(
        "--speed", type=float, default=1.0, help="times as many requests per second"
    )
    parser.add_argument(
        "--longest", type=whole(2), help="tokens of the longest request; by default the context"
    )
    parser.add_argument("--as-is", action="store_true", help="lengths are not scaled")
    parser.add_argument("--seed", type=whole(0), default=1, help="of the prompts' words")
    parser.add_argument("--most-steps", type=whole(), help="stop after so many steps more")
    parser.add_argument("--kept", action="store_true", help="the steps that are kept, no others")
    add_page(parser, PAGE)
    Options.add(parser, sorted(MACHINES), folder)
    given = parser.parse_args(arguments)
    check_page(parser, given.page, [SECTION])
    if not 0 < given.speed < float("inf"):
        parser.error(f"--speed must be above 0, not {given.speed:g}")
    try:
        requests = scaled(read_trace(given.trace, given.requests), given.speed)
        if given.longest and given.longest > given.context:
            raise ConfigError(f"--longest must be 2..{given.context}, not {given.longest}")
        lengths_of(requests, given.longest or given.context, given.as_is)
        return _run(given, requests)
    except (ConfigError, OSError) as error:
        print(f"senbazuru.runs.trace: {error}", file=sys.stderr)
        return 2


class _Stopped(Exception):
    pass


def _run(given: Any, requests: Sequence[Request]) -> int:
    from senbazuru.host.build import build_chip
    from senbazuru.host.engine import HostError
    from senbazuru.talk.command import image

    options = Options.of(given)
    pack = image(options)
    shape = pack.layout.shape
    if given.longest and given.longest > shape.context:
        raise ConfigError(f"--longest must be 2..{shape.context}, not {given.longest}")
    longest = given.longest or shape.context
    what = {
        "trace": given.trace.name, "requests": len(requests), "speed": given.speed,
        "as_is": given.as_is, "seed": given.seed, "longest": longest,
        "model": options.model, "layers": options.layers, "latency": options.latency,
        "machine": options.config.describe(),
    }  # fmt: skip
    plan = planned(requests, longest, shape.vocabulary, given.seed, given.as_is)
    named = [what, [dataclasses.asdict(each) for each in plan]]
    digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:10]
    file = FOLDER / f"{given.trace.stem}-{digest}.json"
    run = Run.load(file) if file.exists() else Run(what, plan)
    if given.kept and not run.steps:
        raise ConfigError(f"--kept: no step of this run is kept in {FOLDER}")
    if run.steps and not run.is_complete and not given.kept:
        run.stops += 1
    start, first = time.monotonic(), len(run.steps)

    def keep(now: Run) -> None:
        now.save(file)
        ended = sum(each.end >= 0 for each in now.requests)
        step, spent = now.steps[-1], time.monotonic() - start
        print(
            f"step {len(now.steps)}: {len(step.lengths)} tokens, {step.cycles} cycles "
            f"({step.error:+.1%}); {ended} of {len(now.requests)} requests, {spent:.0f} s",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        if given.most_steps and len(now.steps) - first >= given.most_steps:
            raise _Stopped

    try:
        if not run.is_complete and not given.kept:
            library = build_chip(options.config, options.threads)
            serve(run, pack, library, options.config, options.latency, keep)
    except _Stopped:
        pass
    except HostError as error:
        print(f"senbazuru.runs.trace: {error}", file=sys.stderr)
        return 1
    text = said(run) + table(run)
    print(text, end="")
    if given.page:
        PICTURE.parent.mkdir(exist_ok=True)
        with replacing(PICTURE) as part:
            part.write_text(plot(run))
        write_page(given.page, {SECTION: text})
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.trace", main)
