"""``python -m senbazuru.runs.vq``: a layer vector-quantized, in the Verilated engines of VQ-LLM.

| method | what runs |
|---|---|
| aqlm3, gptvq2, quip4, aqlm2x8 | vq_gemv fetches golden.llm.pack's matrix and multiplies it once |
| cq4, cq2 | vq_kv_encoder encodes K and V of all tokens; vq_attention attends them once |

Packs and codebooks come from k-means, quip4 from a lattice. The input and the queries are those of
the last token. Compares every result, code and status with golden. Prints the cycles next to their
bound, and the error against the FP32 layer. ``llama`` has heads of 128 elements and random weights.
"""

from golden import command
from golden.vqllm.format import MATRICES, PACKS
from hdl.arguments import add_page, check_page, folder, whole
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "vqllm-rates.md"
SECTION = "layers"
CACHES = ("cq4", "cq2")  # methods of K and V
# By model, the matrix that runs by default: SmolLM2's has 576 columns, 2.25 tiles of 256.
MODELS = {"smollm2": "up_proj", "llama": "k_proj"}
_DEFAULT = ("aqlm3", "gptvq2", "quip4", *CACHES)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(
        prog="python -m senbazuru.runs.vq", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=[*PACKS, *CACHES], default=list(_DEFAULT),
                        metavar="METHOD", help=f"by default {', '.join(_DEFAULT)}")  # fmt: skip
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=list(MODELS),
                        help="by default both")  # fmt: skip
    parser.add_argument("--matrix", nargs="+", choices=MATRICES,
                        help="by default up_proj of smollm2, k_proj of llama")  # fmt: skip
    parser.add_argument("--pack", type=folder, help="folder of golden.llm.pack; made when missing")
    parser.add_argument("--tokens", type=whole(1, 4096), default=128, help="of the text")
    parser.add_argument("--training", type=whole(512), default=2048,
                        help="tokens of the codebooks of K and V")  # fmt: skip
    parser.add_argument("--layer", type=whole(0), help="by default a middle one")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    if options.pack and (len(options.only) != 1 or options.only[0] in CACHES):
        parser.error("--pack needs --only with one method of weights")
    check_page(parser, options.page, [SECTION])
    from senbazuru.runs.measure.vq import report  # torch, only now

    with owned(parser, options.json):
        return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.vq", main)
