"""``python -m senbazuru.runs.kv_rates``: cycles of APPENDs and READs alone, and of both together.

All words read are compared with golden.
``--page`` rewrites the table of docs/blocks/oaken_kv_engine.md.
"""

from golden import command
from hdl.arguments import add_page, check_page
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "blocks" / "oaken_kv_engine.md"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.kv_rates", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["kv_rates"])
    from senbazuru.runs.measure.kv_rates import report  # torch, only now

    with owned(parser, options.json):
        return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.kv_rates", main)
