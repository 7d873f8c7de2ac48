"""``python -m senbazuru.talk.contexts``: cycles of a Verilated layer as the context grows.

Runs one token through two layers after a number of cached tokens. Their K and V are random, because
cycles do not depend on them. Prints what each unit and each kind of product costs, per layer.
``--page`` rewrites the table and the plot of docs/talk.md.
"""

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
SECTION = "talk_contexts"
CONTEXTS = (0, 16, 32, 64, 128, 192, 256, 320, 384, 448, 511)
LAYERS = 2
LINEAR, ATTEND = "linear layers", "scores and values"
COLUMNS = {
    LINEAR: ("MATMUL KMEANS",),
    ATTEND: ("MATMUL DIRECT", "MATMUL INTEGER"),
    "SOFTMAX": ("SOFTMAX",),
    "other FUNCTION": ("BINARY", "ROTARY", "FUNCTION"),
    "QUANTIZE": ("QUANTIZE", "QUANTIZE_INTEGER", "ACTIVATION_CODEBOOK"),
    "codebooks": ("LANE_CODEBOOK",),
    "LOAD": ("LOAD",),
}


def _measured(options: Options, contexts: list[int]) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yields of each context the cycles of a layer, and those of each column."""
    import numpy as np

    from golden.kllm.layer.layout import Job
    from golden.kllm.model.program import pass_program
    from senbazuru.talk.build import build_host
    from senbazuru.talk.command import image
    from senbazuru.talk.driver import Driver, PartRun
    from senbazuru.talk.report import figures
    from senbazuru.talk.sampling import Sampling

    pack = image(options)
    native = build_host(options.config, options.threads)
    layout, shape = pack.layout, pack.layout.shape.layer
    layers = layout.shape.layers
    random = np.random.default_rng(1)
    rows = -(-shape.head_size // 16)
    with Driver(native.executable, pack.folder, layout, options.latency) as driver:
        for context in contexts:
            for layer in range(layers if context else 0):
                slots = np.zeros((2 * context * shape.kv_heads, 4 + 5 * rows), dtype="<u4")
                slots[:, :3] = shape.head_size, 0x3C00, 0x3F800000
                entries = random.integers(0, 16, (len(slots), 16 * rows), dtype=np.uint8)
                slots[:, 4 : 4 + 4 * rows] = entries.view("<u4")
                driver.append(layer, Job(context, 0), slots.reshape(-1))
            program = pass_program(layout, Job(1, context), 0)
            parts = [
                each
                for each in driver.run_pass(program, [context + 1], Sampling())
                if isinstance(each, PartRun)
            ]
            made = figures(program, parts, options.config)
            took = {
                column: sum(made.commands.get(name, [0, 0])[1] for name in names) / layers
                for column, names in COLUMNS.items()
            }
            yield context, round(made.cycles / layers), took


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.talk.contexts", description=__doc__)
    parser.add_argument("--contexts", type=whole(0), nargs="+", default=list(CONTEXTS))
    add_page(parser, PAGE)
    Options.add(parser, sorted(MACHINES), folder)
    given = parser.parse_args(arguments)
    check_page(parser, given.page, [SECTION])
    given.layers = given.layers or LAYERS
    most = max(given.contexts)
    if most >= given.context:
        parser.error(f"--contexts must be below --context {given.context}, not {most}")
    from senbazuru.talk.driver import DriverError  # numpy, only now

    try:
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


def _table(found: list[tuple[int, int, dict[str, float]]]) -> str:
    head = ["cached tokens", "a layer", *COLUMNS]
    rows = [f"| {' | '.join(head)} |", "| " + " | ".join(["---:"] * len(head)) + " |"]
    for context, cycles, took in found:
        cells = [f"{context:,}", f"{cycles:,}", *(f"{took[name]:,.0f}" for name in COLUMNS)]
        rows.append(f"| {' | '.join(cells)} |")
    more = [each[0] for each in found if each[2][ATTEND] > each[2][LINEAR]]
    if more:
        rows += ["", f"{ATTEND.capitalize()} pass the {LINEAR} from {min(more)} cached tokens on."]
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
