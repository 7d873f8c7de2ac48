"""``senbazuru.runs.fusesoc [BLOCK...]``: kits in FuseSoC projects, one block of each system.

For each block it writes a project into build/fusesoc. The kit is its library. A core of the
project depends on the kit, and instantiates the block by the kit's template. FuseSoC lints the
project with Verilator and runs the kit's testbench under Icarus Verilog and Verilator. Then a word
of the expected ones is changed, and FuseSoC's run must fail. ``--page`` rewrites a table of
docs/kits.md.
Exit status 1: a run has another end than it must have.
"""

import sys

from golden import command
from golden.config import ConfigError
from hdl.arguments import add_page, check_page
from hdl.registry import find
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "kits.md"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.fusesoc", description=__doc__)
    parser.add_argument(
        "blocks", nargs="*", metavar="BLOCK", help="by default one block of each system"
    )
    add_page(parser, PAGE)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["fusesoc"])
    try:
        for name in options.blocks:
            find(name)
        from senbazuru.runs.measure.fusesoc import report  # torch, only now

        return report(options)
    except ConfigError as error:
        print(f"senbazuru.runs.fusesoc: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    command.run("senbazuru.runs.fusesoc", main)
