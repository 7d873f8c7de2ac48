"""``senbazuru.runs.vq_plans``: plans of VQ-LLM in Verilated engines next to their predictions.

Every result is also compared with golden. A plan's expected cycles come from the histogram of the
codes alone. 24 plans are held out by a hash of their names, whatever they take. Two whole builds
are held out, too. Plans of gemm, of tables, of both layouts and of attention follow.
``--page`` rewrites the tables of docs/vqllm-planner.md.
"""

from golden import command
from hdl.arguments import add_page, check_page
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "vqllm-planner.md"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.vq_plans", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    parser.add_argument("--only", metavar="BUILD", help="measure one build, and hold out nothing")
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["vq_plans", "vq_choices", "vq_plan_operations"])
    if options.only and options.page:
        parser.error("--page needs all builds")
    from senbazuru.runs.measure.vq_plans import BUILDS, report  # torch, only now

    if options.only and options.only not in BUILDS:
        parser.error(f"--only must be one of {', '.join(BUILDS)}, not {options.only}")
    with owned(parser, options.json):
        return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.vq_plans", main)
