"""``python -m senbazuru.runs.dequant_rates``: the dequantization engine's cycles next to D / L.

Every beat is also compared with golden.
A benchmark: no test asserts its cycles; ``full_rate`` asserts those of small sizes.
``--page`` rewrites the table of docs/blocks/oaken_dequant_engine.md.
"""

from golden import command
from hdl.arguments import add_page, check_page
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "blocks" / "oaken_dequant_engine.md"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.dequant_rates", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["dequant_rates"])
    from senbazuru.runs.measure.dequant_rates import report  # torch, only now

    with owned(parser, options.json):
        return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.dequant_rates", main)
