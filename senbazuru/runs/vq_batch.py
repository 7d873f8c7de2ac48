"""``python -m senbazuru.runs.vq_batch``: gemv, gemm and 16-bit weights at 1 to 64 tokens.

Cycles by formula of golden.vqllm.crossover, and cycles in the Verilated engines. All
results are compared with golden. ``--page`` rewrites the tables of docs/vqllm-batch.md.
"""

from golden import command
from hdl.arguments import add_page, check_page
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "vqllm-batch.md"
SECTIONS = ("vq_batch_bounds", "vq_batch_crossings", "vq_batch_cycles")


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.vq_batch", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, SECTIONS)
    from senbazuru.runs.measure.vq_batch import report  # torch, only now

    with owned(parser, options.json):
        return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.vq_batch", main)
