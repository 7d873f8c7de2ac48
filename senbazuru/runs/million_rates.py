"""``python -m senbazuru.runs.million_rates``: cycles of ATTEND per KV head, and of tokens encoded.

Codes come by RESTORE. All outputs and statuses are compared with golden. ATTENDs follow one another
at several numbers of keys, also while the encoder works in the background. ``--apart`` measures the
ATTENDs of configurations whose K and V have streams of their own. ``--page`` rewrites the tables of
docs/million.md that were measured.
"""

from golden import command
from hdl.arguments import add_page, check_page, whole
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "million.md"
KEYS = (128, 1024, 8192, 32764)  # and 4 sinks: the longest sequence


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.million_rates", description=__doc__)
    parser.add_argument("--keys", type=whole(), default=KEYS[-1], help="leave out more keys")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    parser.add_argument("--apart", action="store_true", help="K and V on streams of their own")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    tables = ["million_apart"] if options.apart else ["million_attend", "million_encoder"]
    check_page(parser, options.page, tables)
    from senbazuru.runs.measure.million_rates import report  # torch, only now

    with owned(parser, options.json):
        return report(options, [keys for keys in KEYS if keys <= options.keys])


if __name__ == "__main__":
    command.run("senbazuru.runs.million_rates", main)
