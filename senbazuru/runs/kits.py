"""``senbazuru.runs.kits [BLOCK...]``: kits under both simulators, and with planted faults.

Writes the kit of each block, by default of all that have golden vectors, at the configuration that
``hdl.kit.kits`` names. Its testbench must pass under Icarus Verilog and under Verilator. Then
faults are planted in the Verilog until the testbench has failed on ``--faults`` of them in each
simulator. Faults that it does not find are printed by name. ``--page`` rewrites the table of
docs/kits.md.
Exit status 1: a testbench does not pass, or has found too few faults.
"""

import sys

from golden import command
from golden.config import ConfigError
from hdl.arguments import add_page, check_page, whole
from hdl.registry import find
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "kits.md"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.kits", description=__doc__)
    parser.add_argument("blocks", nargs="*", metavar="BLOCK", help="by default all with vectors")
    parser.add_argument(
        "--simulator", action="append", choices=("icarus", "verilator"),
        help="by default both; may be given twice",
    )  # fmt: skip
    parser.add_argument("--faults", type=whole(0), default=3, help="faults to be found of a block")
    parser.add_argument("--tries", type=whole(), default=10, help="most faults planted in a block")
    parser.add_argument("--seed", type=whole(), default=1, help="of the faults")
    add_page(parser, PAGE)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["kits"])
    try:
        for name in options.blocks:
            find(name)
        from senbazuru.runs.measure.kits import report  # torch, only now

        return report(options)
    except ConfigError as error:
        print(f"senbazuru.runs.kits: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    command.run("senbazuru.runs.kits", main)
