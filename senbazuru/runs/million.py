"""``senbazuru.runs.million``: SmolLM2's attention over codes on the Verilated million_attention.

Packs K, V, codes and queries (golden.llm.pack) unless a folder is given. Restores the prompt of
three layers, then runs decoding steps of LOAD, APPEND and ATTEND per layer. Compares every word of
the outputs and every status with golden. Prints the cycles of the steps next to their bound.
"""

from golden import command
from golden.million.config import SYSTEMS
from hdl.arguments import folder, whole
from senbazuru.runs.cycles import add_option, owned


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.million", description=__doc__)
    parser.add_argument("--model", default="smollm2", choices=list(SYSTEMS))
    parser.add_argument("--pack", type=folder, help="folder of golden.llm.pack; made when missing")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_option(parser)
    options = parser.parse_args(arguments)
    from senbazuru.runs.measure.million import report  # torch, only now

    with owned(parser, options.json):
        return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.million", main)
