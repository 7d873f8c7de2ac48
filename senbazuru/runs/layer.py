"""``python -m senbazuru.runs.layer``: a decoder layer of SmolLM2-135M on the Verilated accelerator.

Packs the layer (golden.llm.pack) unless a folder is given. The RTL appends K and V of the context
to its pages, then runs the layer's program. Compares every answer, every status, every word read
back, and at the end every row of the vector memory and every slot. Prints the cycles of each
command next to its bound.
"""

import argparse
import json
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from golden import command
from golden.config import ConfigError
from golden.kllm.bounds import Rates, ahead_max, bounds, schedule, waited, waits
from golden.kllm.isa import Unit
from golden.llm.pack import Pack, load
from golden.manifest import PackError
from hdl.arguments import add_page, check_page, folder, whole, write_page
from hdl.kllm.accelerator import KllmAccelerator, KllmAcceleratorConfig
from hdl.kllm.room import BLOCKS
from senbazuru.runs.cycles import Figure, add_option, described, owned, save
from tb.simulate.run import ROOT, build_model, run_model

# Those with a unit CACHE.
CONFIGS = {
    name: config
    for name, config in BLOCKS["kllm_accelerator"].configs.items()
    if config.machine.batch
}
PAGE = ROOT / "docs" / "kllm-cycles.md"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.layer", description=__doc__)
    parser.add_argument("--config", default="smollm2_cache", choices=sorted(CONFIGS))
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE",
        help="a field of the machine's configuration, such as lane.lanes=2",
    )  # fmt: skip
    parser.add_argument(
        "--build", action="append", default=[], metavar="FIELD=VALUE",
        help="a field of the accelerator beside its machine, such as functions=4",
    )  # fmt: skip
    parser.add_argument("--pack", type=folder, help="folder of golden.llm.pack; made when missing")
    parser.add_argument("--layer", type=whole(0), default=15)
    parser.add_argument("--context", type=whole(0), default=32, help="cached tokens")
    parser.add_argument("--tokens", type=whole(), default=1, help="new tokens of the sequence")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of every memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    try:
        options.machine = KllmAcceleratorConfig.parse(
            CONFIGS[options.config],
            [*(f"machine.{each}" for each in options.set), *options.build],
        )
    except ConfigError as error:
        parser.error(str(error))
    if (options.set or options.build) and options.page:
        parser.error("--page must be of a named configuration, without --set and --build")
    check_page(parser, options.page, [f"layer_{options.config}"])
    with owned(parser, options.json):
        return report(options)


def measured_cycles(
    words: list[int], reports: list[list[int]], first: dict[Unit, int]
) -> dict[int, int]:
    """Tag to cycles: from the last status that its start had to wait for to its own.

    reports: (tag, unit, cycle) of one part; first: commands of each unit before it.
    """
    done = {tag: cycle for tag, _, cycle in reports}
    commands = waits(words, first)
    ends = [done[command.tag] for command in commands]
    return {
        command.tag: end - int(waited(command.after, ends))
        for command, end in zip(commands, ends, strict=True)
    }


def _given(pack: Pack) -> dict[str, int | float | str]:
    """The values that programs depend on: tokens, context, sizes and options of the layer."""
    model = pack.manifest.model
    made: dict[str, int | float | str] = {}
    for fields in ({n: model[n] for n in ("tokens", "context")}, model["shape"], model["options"]):
        for name, value in fields.items():
            shown = ", ".join(value) if isinstance(value, list) else value
            made[name] = int(shown) if isinstance(shown, bool) else shown
    return made


def _report(
    console: Console,
    section: str,
    config: KllmAcceleratorConfig,
    pack: Pack,
    made: dict,
) -> tuple[list[Figure], dict[str, str]]:
    """Print the cycles of each command. (Those, and the page's section with their sums.)"""
    machine = config.machine
    given = {"memory_latency": made["latency"], **_given(pack)}
    layer, part = pack.parts[-1], made["parts"][-1]
    rates = Rates(
        macs=None if config.build.counter == "select" else config.lane.macs,
        function_width=config.width,
        integer_lanes=config.quantizer_config.integer_lanes,
        functions=config.functions,
        packet_words=config.lane.packet_words,
    )
    issued = dict.fromkeys(Unit, 0)
    for word in (word for each in pack.parts[:-1] for word in each.status):
        issued[Unit(word >> 13 & 7)] += 1
    found = bounds(layer.words, machine, rates)
    took = measured_cycles(layer.words, part["reports"], issued)
    done = {tag: cycle for tag, _, cycle in part["reports"]}
    total = max(done.values())
    least, least_ahead = (
        schedule(layer.words, found, issued, ahead, config.ahead).cycles
        for ahead in (0, ahead_max(machine))
    )

    def figure(command: str, span: str, cycles: int, bound: int) -> Figure:
        return Figure(
            command="senbazuru.runs.layer",
            block="kllm_accelerator",
            configuration=described(config),
            parameters={"opcode": command, **given},
            span=span,
            cycles=cycles,
            bound=bound,
        )

    kinds: dict[tuple[str, str], list[int]] = {}  # unit, command: number, bound, cycles
    table = Table(title="the layer", title_justify="left")
    for name in ("command", "unit", "limit", "bound", "cycles", "done at"):
        is_text = name in ("command", "unit", "limit")
        table.add_column(name, justify="left" if is_text else "right")
    figures = []
    for bound in found:
        figures.append(
            figure(
                f"{bound.opcode.name} {bound.tag}",
                "from the last status that its start waited for to its own",
                took[bound.tag], bound.cycles,
            )
        )  # fmt: skip
        sums = kinds.setdefault((bound.unit.name, bound.opcode.name), [0, 0, 0])
        for n, amount in enumerate((1, bound.cycles, took[bound.tag])):
            sums[n] += amount
        table.add_row(
            bound.opcode.name, bound.unit.name, bound.limit, str(bound.cycles),
            str(took[bound.tag]), str(done[bound.tag]),
        )  # fmt: skip
    console.print(table)
    figures.append(figure("all", "from the start to the last status", total, least))
    rows = [f"| {unit} | {name} | {n} | {a} | {b} |" for (unit, name), (n, a, b) in kinds.items()]
    rows.append(f"| all | the program, overlapped | | {least} | {total} |")
    rows.append(f"| all | the same, weights ahead of their MATMUL | | {least_ahead} | {total} |")
    head = "| unit | command | commands | bound | cycles |\n| --- | --- | ---: | ---: | ---: |\n"
    simulated, seconds = made["simulated"]["cycles"], made["simulated"]["seconds"]
    console.print(
        f"layer: {len(found)} commands, {total} cycles, bound {least} ({total / least:.2f} x); "
        f"weight words of the busiest port {max(part['words'])}; {part['readback']} words read "
        "back. Every answer, status and word, and at the end every row and slot, equal golden's; "
        f"{simulated} cycles simulated with the context and the rows before and after, "
        f"{simulated / seconds:.0f} per second of processor time"
    )
    return figures, {section: head + "\n".join(rows) + "\n"}


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    from tb.kllm.support.packs import parameters  # torch, only now

    console = Console(width=100)
    config = options.machine
    name = "-".join([f"layer{options.layer}", options.config, *options.set])
    name += f"-{options.context}-{options.tokens}" if not options.pack else ""
    folder = options.pack or ROOT / "build" / name
    if not (folder / "manifest.json").exists():
        command = [sys.executable, "-m", "golden.llm.pack", "--layer", str(options.layer)]
        command += ["--config", options.config, "-o", str(folder)]
        command += ["--context", str(options.context), "--tokens", str(options.tokens)]
        command += [word for each in options.set for word in ("--set", each)]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return 2
    try:
        pack = load(folder, config.machine)
    except (PackError, OSError) as error:
        print(f"senbazuru.runs.layer: {error}", file=sys.stderr)
        return 2
    console.print(f"building the model of kllm_accelerator, {options.config}")
    # A run of the small machine takes seconds: it is the model of the tests, which compiles sooner.
    model = build_model(KllmAccelerator(config), long_run=options.config != "small_cache")
    params = parameters(pack, pack.ports, config.machine, options.latency)
    work = run_model(model, "tb.kllm.tb_layer", config=config, params=params)
    made = json.loads((work / "layer.json").read_text()) | {"latency": options.latency}
    figures, sections = _report(console, f"layer_{options.config}", config, pack, made)
    write_page(options.page, sections)
    save(options.json, figures)
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.layer", main)
