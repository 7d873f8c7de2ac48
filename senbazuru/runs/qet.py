"""``python -m senbazuru.runs.qet``: matrices quantized by QET, in the Verilated blocks.

| matrix | what |
|---|---|
| up_proj | of a layer of SmolLM2-135M, 1536 x 576: 9 tiles |
| K, V | of all KV heads of the layer, of some tokens of a text |
| gaussian | 1024 x 512 |
| row_63, row_65, rows_64 | 1 x 63, 1 x 65 and 7 x 64: a column less and more than a tile |

Codebooks come from k-means on the matrix itself, at ratio 4 of FP16. ``qet_encoder`` gives codes
and maps, ``qet_decoder`` the matrix, and ``qet_dequant_gemv`` its product with a vector. Every bit
must equal golden's. Prints the cycles next to their bound, and the error of the matrix.
"""

from golden import command
from hdl.arguments import add_page, check_page, whole
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "qet-rates.md"
SECTION = "matrices"
MATRICES = ("up_proj", "K", "V", "gaussian", "row_63", "row_65", "rows_64")


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(
        prog="python -m senbazuru.runs.qet", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=MATRICES, default=list(MATRICES),
                        metavar="MATRIX", help=f"by default {', '.join(MATRICES)}")  # fmt: skip
    parser.add_argument("--tokens", type=whole(64, 1536), default=512, help="of K and V")
    parser.add_argument("--layer", type=whole(0), help="by default a middle one")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, [SECTION])
    from senbazuru.runs.measure.qet import report  # torch, only now

    with owned(parser, options.json):
        return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.qet", main)
