"""``python -m tb.runs.vq_kv``: K and V of one layer under cq4 and cq2, in the Verilated engines.

Codebooks come from k-means on another text. ``vq_kv_encoder`` encodes all tokens, and
``vq_attention`` attends them with the queries of the last token. Every code, output and status is
compared with golden.
"""

from golden import command
from hdl.arguments import whole

__all__ = ["MODELS", "main"]

MODELS = ("smollm2", "llama")
METHODS = ("cq4", "cq2")


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m tb.runs.vq_kv", description=__doc__)
    parser.add_argument("--model", choices=MODELS, help="both if none; llama has random weights")
    parser.add_argument("--method", choices=METHODS, nargs="+", help="both if none")
    parser.add_argument("--tokens", type=whole(1, 4096), default=128, help="of the context")
    parser.add_argument("--training", type=whole(512), default=2048, help="tokens of the k-means")
    parser.add_argument("--layer", type=whole(0), default=1)
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    options = parser.parse_args(arguments)
    from tb.runs.measure.vq_kv import report  # torch, only now

    return report(options)


if __name__ == "__main__":
    command.run("tb.runs.vq_kv", main)
