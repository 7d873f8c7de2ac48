"""``python -m tb.runs.vq``: SmolLM2's FFN matrices, vector-quantized, in the Verilated vq_gemv.

Packs the matrices of a layer (golden.pack) unless a folder is given. The engine fetches each image
from memory and multiplies it with the layer's input for a token. Compares every result and status
with golden. Prints the cycles next to their bound, and the error against the FP32 product.
"""

from golden import command
from golden.vqllm.format import PACKS
from hdl.arguments import folder, whole
from tb.runs.cycles import add_option

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m tb.runs.vq", description=__doc__)
    parser.add_argument("--config", action="append", choices=list(PACKS),
                        help="by default aqlm3 and gptvq2")  # fmt: skip
    parser.add_argument("--pack", type=folder, help="folder of golden.pack; made when missing")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_option(parser)
    options = parser.parse_args(arguments)
    if options.pack and len(options.config or ()) != 1:
        parser.error("--pack needs one --config")
    from tb.runs.measure.vq import report  # torch, only now

    return report(options)


if __name__ == "__main__":
    command.run("tb.runs.vq", main)
