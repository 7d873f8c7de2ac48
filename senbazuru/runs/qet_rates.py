"""``senbazuru.runs.qet_rates``: cycles of qet_dequant_gemv by rows and entries, and its traffic.

Random matrices of three tiles, each a job alone, with the entries that ratio 4 leaves. All results
and statuses are compared with golden. ``--page`` rewrites the table of docs/qet-rates.md.
"""

from golden import command
from hdl.arguments import add_page, check_page, whole
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "qet-rates.md"
SECTION = "rates"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.qet_rates", description=__doc__)
    parser.add_argument("--config", action="append", choices=("smollm2", "llama"),
                        help="by default both")  # fmt: skip
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, [SECTION])
    from senbazuru.runs.measure.qet_rates import report  # torch, only now

    with owned(parser, options.json):
        return report(options, options.config or ["smollm2", "llama"])


if __name__ == "__main__":
    command.run("senbazuru.runs.qet_rates", main)
