"""``python -m senbazuru.runs.engine_rates``: cycles per vector of the quantization engine.

Vectors of one length follow one another without a gap, a third of them without outliers, a third
with outliers only. Every word is also compared with golden. A benchmark: ``full_rate`` asserts the
cycles of small sizes.
``--page`` rewrites the table of docs/blocks/oaken_quant_engine.md.
"""

from golden import command
from hdl.arguments import add_page, check_page
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "blocks" / "oaken_quant_engine.md"
LANES = (8, 16, 32, 64)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.engine_rates", description=__doc__)
    parser.add_argument("--lanes", type=int, choices=LANES, nargs="+", default=LANES)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    if options.page and tuple(options.lanes) != LANES:
        parser.error("--page: the page has all lanes: no --lanes")
    check_page(parser, options.page, ["engine_rates"])
    from senbazuru.runs.measure.engine_rates import report  # torch, only now

    with owned(parser, options.json):
        return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.engine_rates", main)
