"""``python -m senbazuru.talk.contexts``: cycles of a Verilated layer as the context grows.

Runs one token through two layers after a number of cached tokens, whose K and V are those of
senbazuru.talk.history. Prints what each unit and each kind of product costs, per layer. ``--steps``
measures whole steps of the model instead, which no host is in, next to their limits and to the
simulator's cycles. With ``--users`` a step has a token of each of several sequences. ``--page``
rewrites the table of docs/talk.md, and the plot of layers.
"""

import dataclasses
import sys
from collections.abc import Iterator

from golden import command
from golden.config import ConfigError
from golden.files import replacing
from golden.kllm.config import MACHINES
from hdl.arguments import add_page, check_page, folder, whole, write_page
from senbazuru.talk.options import Options
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "talk.md"
PICTURE = ROOT / "docs" / "talk" / "contexts.svg"
SECTION, STEPS = "talk_contexts", "talk_steps"
CONTEXTS = (0, 16, 32, 64, 128, 192, 256, 320, 384, 448, 511)
STEP_CONTEXTS = (0, 7, 42, 100, 256, 511)
LAYERS = 2
LINEAR, ATTEND = "linear layers", "ATTEND"
COLUMNS = {
    LINEAR: ("MATMUL KMEANS",),
    ATTEND: ("ATTEND",),
    "APPEND": ("APPEND",),
    "FUNCTION": ("BINARY", "ROTARY", "FUNCTION"),
    "QUANTIZE": ("QUANTIZE", "ACTIVATION_CODEBOOK"),
    "codebooks": ("LANE_CODEBOOK",),
    "LOAD": ("LOAD",),
}


def _measured(options: Options, contexts: list[int]) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yields of each context the cycles of a layer, and those of each column."""
    from golden.kllm.layer.layout import Job
    from golden.kllm.model.program import pass_program
    from senbazuru.talk.build import build_host
    from senbazuru.talk.command import image
    from senbazuru.talk.driver import Driver
    from senbazuru.talk.history import History
    from senbazuru.talk.report import figures

    pack = image(options)
    native = build_host(options.config, options.threads)
    layout, history = pack.layout, History(pack)
    layers, cached = layout.shape.layers, 0
    with Driver(native.executable, pack, options.latency) as driver:
        for context in sorted(set(contexts)):
            history.fill(driver, cached, context)
            cached = context
            program = pass_program(layout, Job(1, context), 0)
            run = driver.run_pass(program, [context + 1])
            cached += 1
            made = figures(program, run, options.config)
            took = {
                column: sum(made.commands.get(name, [0, 0])[1] for name in names) / layers
                for column, names in COLUMNS.items()
            }
            yield context, round(made.cycles / layers), took


def _steps(options: Options, contexts: list[int], users: int) -> Iterator["Step"]:
    """Steps of the whole model, after one that checks the program.

    users: sequences, each with so many cached tokens, of which a step takes one token each
    """
    from golden.kllm.layer.layout import Job
    from golden.kllm.model.program import PassProgram
    from senbazuru.talk.build import build_host
    from senbazuru.talk.command import image
    from senbazuru.talk.driver import Driver
    from senbazuru.talk.history import History
    from senbazuru.talk.report import limits, predicted_step

    pack = image(options)
    native = build_host(options.config, options.threads)
    layout, history = pack.layout, History(pack)
    with Driver(native.executable, pack, options.latency, users) as driver:
        driver.run_step(Job(users, 0), [0] * users, users)
        program = PassProgram(layout, Job(users, 0), driver.step_words(users, users), 0)
        found, shares = limits(program, layout.config), history.outliers()
        for context in sorted(contexts):
            driver.reset()  # a host's programs count commands from there
            sequences = [driver.sequence, *(driver.open() for _ in range(1, users))]
            for driver.sequence in sequences:
                history.fill(driver, 0, context)
            tokens = [context + 1 + user for user in range(users)]
            done = driver.run_users(sequences, context, tokens)
            lengths = [context + 1] * users
            says = predicted_step(program.words, options.config, options.latency, lengths, shares)
            yield Step(context, done.cycles, says, found.ports, found.lanes, shares)


@dataclasses.dataclass(frozen=True)
class Step:
    """A measured step: cycles, those predicted, its limits, and outliers of K and V by layer."""

    context: int
    cycles: int
    predicted: int
    ports: int
    lanes: float
    outliers: dict[int, tuple[float, float]]


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.talk.contexts", description=__doc__)
    parser.add_argument("--contexts", type=whole(0), nargs="+")
    parser.add_argument("--steps", action="store_true", help="whole steps of the model")
    parser.add_argument(
        "--users", type=whole(1), default=1, help="sequences of a step, each with so many tokens"
    )
    add_page(parser, PAGE)
    Options.add(parser, sorted(MACHINES), folder)
    given = parser.parse_args(arguments)
    if given.users > 1 and (given.page or not given.steps):
        parser.error("--users goes with --steps, and without --page")
    check_page(parser, given.page, [STEPS if given.steps else SECTION])
    given.contexts = given.contexts or list(STEP_CONTEXTS if given.steps else CONTEXTS)
    given.layers = given.layers or (None if given.steps else LAYERS)
    most = max(given.contexts)
    if most >= given.context:
        parser.error(f"--contexts must be below --context {given.context}, not {most}")
    from senbazuru.talk.driver import DriverError  # numpy, only now

    try:
        if given.steps:
            return _measure_steps(Options.of(given), given.contexts, given.users, given.page)
        found = []
        for context, cycles, took in _measured(Options.of(given), given.contexts):
            print(f"{context:5} cached tokens: {cycles:6} cycles of a layer", file=sys.stderr)
            found.append((context, cycles, took))
    except (ConfigError, OSError) as error:
        print(f"senbazuru.talk.contexts: {error}", file=sys.stderr)
        return 2
    except DriverError as error:
        print(f"senbazuru.talk.contexts: {error}", file=sys.stderr)
        return 1
    table = _table(found)
    print(table, end="")
    if given.page:
        PICTURE.parent.mkdir(exist_ok=True)
        with replacing(PICTURE) as part:
            part.write_text(_plot(found))
        write_page(given.page, {SECTION: table})
    return 0


def _measure_steps(options: Options, contexts: list[int], users: int, page: str | None) -> int:
    most = options.config.machine.batch
    if users > most:
        raise ConfigError(f"--users must be in 1..{most}, the machine's places, not {users}")
    steps = []
    for step in _steps(options, contexts, users):
        print(f"{step.context:5} cached tokens: {step.cycles:6} cycles", file=sys.stderr)
        steps.append(step)
    table = _step_table(steps)
    print(table, end="")
    if page:
        write_page(page, {STEPS: table})
    return 0


def _step_table(steps: list[Step]) -> str:
    head = ("cached tokens", "cycles", "lanes used", "words of a port used", "the simulator's",
            "error")  # fmt: skip
    rows = [f"| {' | '.join(head)} |", "| " + " | ".join(["---:"] * len(head)) + " |"]
    errors = []
    for each in steps:
        errors.append(each.predicted / each.cycles - 1)
        cells = (
            f"{each.context}", f"{each.cycles:,}", f"{each.lanes / each.cycles:.0%}",
            f"{each.ports / each.cycles:.0%}", f"{each.predicted:,}", f"{errors[-1]:+.1%}",
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    mean = sum(map(abs, errors)) / len(errors)
    worst = max(map(abs, errors))
    shares = [share for each in steps[-1].outliers.values() for share in each]
    share = sum(shares) / len(shares)
    rows += ["", f"Of the elements of these K and V {share:.0%} are outliers."]
    rows += ["", f"The simulator's mean error is {mean:.1%}, its largest {worst:.1%}."]
    return "\n".join([*rows, ""])


def _table(found: list[tuple[int, int, dict[str, float]]]) -> str:
    head = ["cached tokens", "a layer", *COLUMNS]
    rows = [f"| {' | '.join(head)} |", "| " + " | ".join(["---:"] * len(head)) + " |"]
    for context, cycles, took in found:
        cells = [f"{context:,}", f"{cycles:,}", *(f"{took[name]:,.0f}" for name in COLUMNS)]
        rows.append(f"| {' | '.join(cells)} |")
    more = [each[0] for each in found if each[2][ATTEND] > each[2][LINEAR]]
    if more:
        rows += ["", f"{ATTEND} takes more than the {LINEAR} from {min(more)} cached tokens on."]
    return "\n".join([*rows, ""])


def _plot(found: list[tuple[int, int, dict[str, float]]]) -> str:
    from sim.svg import Axis, Line, LineChart, page

    lines = [Line("a layer", [(context, cycles) for context, cycles, _ in found], has_marks=True)]
    for name in COLUMNS:
        points = [(context, took[name]) for context, _, took in found]
        lines.append(Line(name, points, has_marks=True))
    chart = LineChart(
        "Cycles of a layer, one new token", Axis("cached tokens", low=0), Axis("cycles", low=0),
        lines,
    )  # fmt: skip
    return page([chart])


if __name__ == "__main__":
    command.run("senbazuru.talk.contexts", main)
