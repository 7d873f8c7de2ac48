"""``senbazuru.runs.lane_rates``: cycles of the lane, its bound, and the speed of the tools.

Every output is also compared with golden. A benchmark: no test asserts its times.
``--page`` rewrites the table of docs/rates.md.
"""

from golden import command
from hdl.arguments import add_page, check_page
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "rates.md"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.lane_rates", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["rates"])
    from senbazuru.runs.measure.lane_rates import report  # torch, only now

    with owned(parser, options.json):
        return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.lane_rates", main)
