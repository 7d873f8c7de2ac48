"""``senbazuru.runs.vq_ablation``: what each step of VQ-LLM saves, as switches of one engine.

Trained codes of SmolLM2-135M in the Verilated vq_gemv and vq_gemm, random ones in vq_attention. The
steps are run-time numbers: entries in registers and on chip, rows of a stripe or tokens of a
request, and the split. Every result and counter is compared with golden. ``--page`` rewrites the
tables of docs/vqllm-ablation.md.
"""

from golden import command
from hdl.arguments import add_page, check_page, whole
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "vqllm-ablation.md"
# Operation, configuration of its engine
CASES = (
    ("gemv", "gptvq2_x4"), ("gemv", "aqlm2x8_x4"), ("gemv", "aqlm3"),
    ("gemm", "gptvq2"), ("gemm", "aqlm3"), ("attention", "cq4"),
)  # fmt: skip
MARKERS = ("vq_ablation",)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.vq_ablation", description=__doc__)
    parser.add_argument(
        "--only", choices=[" ".join(each) for each in CASES], help="an operation and configuration"
    )
    parser.add_argument("--rows", type=whole(16, 1536), default=128, help="of the matrix")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, MARKERS)
    if options.only and options.page:
        parser.error("--page needs all cases")
    from senbazuru.runs.measure.vq_ablation import report  # torch, only now

    with owned(parser, options.json):
        return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.vq_ablation", main)
