"""``python -m synth.fpga NAME``: what a block takes of an FPGA, and its clock after routing."""

import contextlib
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from golden import command
from golden.config import ConfigError
from golden.files import claimed, made_folder, replacing
from hdl.arguments import folder, whole
from hdl.back.verilog import convert
from hdl.registry import configuration, find
from hdl.target import TARGETS, built_for
from synth.fpga.devices import CELLS, DEVICES, device_of
from synth.fpga.flow import Report, measure
from synth.fpga.tools import FpgaError, check_tools, versions
from synth.yosys import YosysError

SEEDS = 3


def table(report: Report) -> Table:
    """Resources after synthesis and after packing, each with its share of the device."""
    device = device_of(report.device)
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column(f"of {report.device}")
    for heading in ("after synthesis", "placed", "device has", "share"):
        made.add_column(heading, justify="right", no_wrap=True)
    placed = report.median.cells if report.routed else {}
    for name, count in report.mapped.cells.items():
        row = [name, f"{count:,}", "", "", ""]
        if name in CELLS:
            has = device.cells[CELLS[name]]
            used = placed.get(name, report.mapped.comb if name == "LUT" else count)
            row[2:] = [f"{used:,}" if placed else "", f"{has:,}", f"{used / has:.1%}"]
        made.add_row(*row)
    return made


def print_report(report: Report, console: Console) -> None:
    console.print(f"[bold]{report.name}[/bold] on {report.device}", highlight=False)
    console.print(table(report))
    for each in report.routed:
        path = each.path
        console.print(
            f"seed {each.seed}: {each.mhz:.1f} MHz, {path.start} -> {path.end}, logic "
            f"{path.logic_ns:.1f} ns, routing {path.routing_ns:.1f} ns, {each.seconds:.0f} s, "
            f"{each.megabytes} MB",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    if report.routed:
        text = f"[bold]{report.mhz:.1f} MHz[/bold], the median of all seeds"
        console.print(text, highlight=False)
    console.print(
        f"harness included: a flip-flop for each bit of the ports, a LUT for each of the outputs\n"
        f"{report.tools}; synthesis {report.mapped.seconds:.0f} s, {report.mapped.megabytes} MB",
        highlight=False,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m synth.fpga", description=__doc__)
    parser.add_argument("name", help="block to place (python -m hdl.build --list shows all)")
    parser.add_argument("assignments", nargs="*", metavar="field=value")
    parser.add_argument("--config", metavar="NAMED", help="start from a named configuration")
    parser.add_argument(
        "--target", choices=TARGETS, default="asic", help="fpga: as hdl.target has it"
    )
    parser.add_argument("--device", default="ecp5-85f", help=f"of {', '.join(DEVICES)}")
    parser.add_argument(
        "--seeds", type=whole(0, 100), default=SEEDS,
        help="placements, each with a seed of its own; 0: synthesis alone; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--mhz", type=whole(1, 500), default=100, help="clock that the tools aim at; default: 100"
    )
    parser.add_argument(
        "-o", dest="directory", type=folder, default=Path("build"), help="writes DIR/NAME/fpga.json"
    )
    parser.add_argument("--json", action="store_true", help="print fpga.json and nothing else")
    options = parser.parse_intermixed_args(arguments)
    progress = Console(stderr=True)
    target = options.directory / options.name / "fpga.json"
    outputs = contextlib.ExitStack()
    try:
        device = device_of(options.device)
        check_tools()
        config = configuration(options.name, options.config, options.assignments)
        outputs.enter_context(made_folder(target.parent))
        outputs.enter_context(claimed(target))
        outputs.enter_context(built_for(options.target))  # synthesis chooses RAMs by it too
        design = convert(find(options.name).component(config), options.name)
        with progress.status(options.name) as status:
            report = measure(
                options.name, design, device, target.parent / "fpga",
                seeds=range(1, options.seeds + 1), mhz=options.mhz, tools=versions(),
                on_step=lambda step: status.update(f"{options.name}: {step}"),
            )  # fmt: skip
        text = json.dumps(report.to_json(), indent=2) + "\n"
        with replacing(target) as part:
            part.write_text(text)
    except (ConfigError, FpgaError, YosysError, OSError) as error:
        print(f"synth.fpga: {error}", file=sys.stderr)
        return 2
    finally:
        outputs.close()
    if options.json:
        print(text, end="")
    else:
        print_report(report, Console())
        print(f"written to {target}")
    return 0
