"""``senbazuru.runs.vq_rates``: cycles of vq_gemv next to their bound and golden's prediction.

Matrices of SmolLM2's FFN sizes with random skewed codes, each a job alone. All results and statuses
are compared with golden. ``--page`` rewrites the table of docs/vqllm-rates.md.
"""

from golden import command
from hdl.arguments import add_page, check_page, whole
from hdl.vqllm.room import BLOCKS
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "vqllm-rates.md"
CONFIGS = [name for name in BLOCKS["vq_gemv"].configs if not name.startswith("small")]


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.vq_rates", description=__doc__)
    parser.add_argument("--config", action="append", choices=CONFIGS, help="by default all")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["vq_gemv"])
    from senbazuru.runs.measure.vq_rates import report  # torch, only now

    with owned(parser, options.json):
        return report(options, options.config or CONFIGS)


if __name__ == "__main__":
    command.run("senbazuru.runs.vq_rates", main)
