"""``senbazuru.talk.paces``: what a token costs at least, and with each host. No simulation.

    ports = words that a weight port gives, one per cycle
    lanes = products of all MATMULs over those that the lanes form per cycle

Prints both for one new token of SmolLM2-135M on the machine of ``make talk``. Next to them are the
cycles that the system simulator predicts, of a step without a host and of commands by two hosts.
``--page`` rewrites the table of docs/talk.md.
"""

import sys

from golden import command
from golden.config import ConfigError
from golden.kllm.config import MACHINES
from hdl.arguments import add_page, check_page, folder, whole, write_page
from senbazuru.talk.options import METHOD, Options
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "talk.md"
SECTION = "talk_paces"
CONTEXTS = (0, 42, 511)


def _rows(options: Options, contexts: list[int], clock: int) -> list[tuple[str, ...]]:
    from golden.kllm.layer.layout import Job
    from golden.kllm.model.layout import ModelShape, model_layout
    from golden.kllm.model.program import PassProgram, pass_program, step_program
    from golden.llm.kllm.chip import chip_layer
    from golden.llm.methods import parse_all
    from golden.llm.methods.kllm import Kllm
    from senbazuru.talk.report import limits, predicted, predicted_by_host
    from sim.model import find_model

    method = parse_all(METHOD)[0]
    assert isinstance(method, Kllm)
    model = find_model("smollm2-135m")
    shape = ModelShape(
        layer=chip_layer(model, options.context),
        layers=options.layers or model.layers,
        vocabulary=model.vocabulary,
        context=options.context,
    )
    machine = options.config.machine
    layout = model_layout(shape, method.layer_options(), machine)
    step = step_program(layout)
    rows = []
    for context in contexts:
        program = pass_program(layout, Job(1, context), 1, chooses=True)
        found = limits(program, machine)
        row = [f"{context}", f"{found.ports:,}", f"{found.lanes:,.0f}"]
        _, *slower = predicted_by_host(program, options.config, options.latency)
        alone = PassProgram(layout, program.job, step.words, 0)
        for cycles in (predicted(alone, options.config, options.latency), *slower):
            row += [
                f"{cycles:,}", f"{cycles / found.ports:.2f}", f"{found.lanes / cycles:.0%}",
                f"{clock * 1e6 / cycles:,.0f}",
            ]  # fmt: skip
        rows.append(tuple(row))
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.talk.paces", description=__doc__)
    parser.add_argument("--contexts", type=whole(0), nargs="+", default=list(CONTEXTS))
    parser.add_argument("--clock", type=whole(), default=500, metavar="MHZ")
    add_page(parser, PAGE)
    Options.add(parser, sorted(MACHINES), folder)
    given = parser.parse_args(arguments)
    check_page(parser, given.page, [SECTION])
    if max(given.contexts) >= given.context:
        parser.error(
            f"--contexts must be below --context {given.context}, not {max(given.contexts)}"
        )
    if given.model != "smollm2" or given.pack or given.calibration:
        parser.error(
            "--model, --pack and --calibration have no effect here: the sizes are SmolLM2's"
        )
    try:
        rows = _rows(Options.of(given), given.contexts, given.clock)
    except ConfigError as error:
        print(f"senbazuru.talk.paces: {error}", file=sys.stderr)
        return 2
    head = ["cached tokens", "words of a port", "cycles of the lanes"]
    for host in ("no host in a step", "controller", "bench's host"):
        head += [
            f"{host}: cycles",
            "over the words",
            "lanes used",
            f"tokens/s at {given.clock} MHz",
        ]
    lines = [head, ["---:"] * len(head), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    print(table, end="")
    if given.page:
        write_page(given.page, {SECTION: table})
    return 0


if __name__ == "__main__":
    command.run("senbazuru.talk.paces", main)
