"""``senbazuru.runs.vq_attention``: one image of codes through VQ-LLM's and MILLION's attention.

Codebooks, codes and queries of a KV head under cq4 at head size 128, MILLION's (64, 8). All outputs
are compared with golden, and the bytes that both engines read with the image. Areas come from
synth. ``--page`` rewrites the tables of docs/vqllm-attention.md.
"""

from golden import command
from hdl.arguments import add_page, check_page, whole
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "vqllm-attention.md"
TOKENS = (128, 1024, 8192)
SECTIONS = (
    "vq_attention", "vq_attention_cycles", "vq_attention_work", "vq_attention_parts",
    "vq_attention_outputs",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.vq_attention", description=__doc__)
    parser.add_argument("--tokens", type=whole(), default=TOKENS[-1], help="leave out more tokens")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    if options.page and (options.tokens, options.latency) != (TOKENS[-1], 40):
        parser.error("--page: the page has the standard cases: no --tokens, no --latency")
    check_page(parser, options.page, SECTIONS)
    tokens = [count for count in TOKENS if count <= options.tokens]
    if not tokens:
        parser.error(f"--tokens must be {TOKENS[0]} or more")
    from senbazuru.runs.measure.vq_attention import report  # torch, only now

    with owned(parser, options.json):
        return report(options, tokens)


if __name__ == "__main__":
    command.run("senbazuru.runs.vq_attention", main)
