"""``python -m senbazuru.runs.vq_tables``: an engine that dequantizes next to one of tables.

Products by formula, errors by golden, areas by synth, and cycles in the Verilated engines. All
results are compared with golden. ``--page`` rewrites the tables of docs/vqllm-tables.md.
"""

from golden import command
from hdl.arguments import add_page, check_page
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "vqllm-tables.md"
SECTIONS = ("vq_table_products", "vq_table_errors", "vq_table_areas", "vq_table_cycles")


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.vq_tables", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, SECTIONS)
    from senbazuru.runs.measure.vq_tables import report  # torch, only now

    with owned(parser, options.json):
        return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.vq_tables", main)
