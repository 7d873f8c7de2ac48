"""``python -m senbazuru.runs.accelerator_rates``: a 4096 x 4096 product on the whole accelerator.

Measures the cycles of quantization and matmul at Table I's size, next to their bounds, with
memories of a constant latency. The cases:

- 1, 4 and 16 tokens;
- outliers found online, and by offline thresholds (kllm-s);
- all tokens in one QUANTIZE and one MATMUL, or some at a time, so that the quantization of the next
  ones overlaps the lanes.

Every status and the first rows of every token's output are compared with golden.

The model of table1 takes more than an hour to build on two cores. ``--part 8`` measures 4096 x 512
on an eighth of the lanes and of the ports. Groups, beats and words of each port are those of the
whole product, and so are both bounds. Only the collection writes fewer rows per group.
``--page`` rewrites a table of docs/kllm-cycles.md, which has one of the whole product and one of
an eighth.
"""

import argparse
import re

from golden import command
from hdl.arguments import add_page, check_page, whole
from hdl.kllm.room import BLOCKS
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

CONFIGS = BLOCKS["kllm_accelerator"].configs
PAGE = ROOT / "docs" / "kllm-cycles.md"


def tokens(text: str) -> tuple[int, int]:
    """(N, M) of ``N/M``: N tokens, M at a time. ArgumentTypeError unless M divides N."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    number, at_a_time = map(int, found.groups()) if found else (0, 0)
    if not number or not at_a_time or number % at_a_time:
        raise argparse.ArgumentTypeError(
            f"must be N/M where M divides N, such as 4/2, not {text!r}"
        )
    return number, at_a_time


def section(options: argparse.Namespace) -> str:
    """The name of the page's table."""
    part = "" if options.part == 1 else f"_part{options.part}"
    return f"cycles_{options.config}{part}"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(
        prog="python -m senbazuru.runs.accelerator_rates",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--config", default="table1", choices=sorted(CONFIGS))
    parser.add_argument("--size", type=whole(), default=4096, help="K and N")
    parser.add_argument(
        "--part", type=whole(), default=1, metavar="P",
        help="1/P of the lanes, the ports and the outputs (1)",
    )  # fmt: skip
    parser.add_argument("--latency", type=whole(), default=1, help="cycles of every memory")
    parser.add_argument(
        "--tokens", nargs="+", type=tokens, metavar="N/M",
        default=[tokens(text) for text in ("1/1", "4/4", "4/2", "16/2")],
        help="N tokens, M at a time (1/1 4/4 4/2 16/2)",
    )  # fmt: skip
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    machine = CONFIGS[options.config].machine
    sizes = (machine.lane.lanes, machine.ports.ports, options.size)
    if any(size % options.part for size in sizes):
        lanes, ports, size = sizes
        parser.error(f"--part must divide {lanes} lanes, {ports} ports and {size} outputs")
    if options.size > machine.slot_elements:
        most = f"1..{machine.slot_elements}, the elements of a slot of {options.config}"
        parser.error(f"--size must be {most}")
    if max(options.tokens)[0] > machine.slots:
        parser.error(f"--tokens: N must be 1..{machine.slots}, the slots of {options.config}")
    changed = [name for name in ("size", "latency", "tokens")
               if getattr(options, name) != parser.get_default(name)]  # fmt: skip
    if options.page and changed:
        parser.error(f"--page: the page has the standard cases: no --{changed[0]}")
    check_page(parser, options.page, [section(options)])
    from senbazuru.runs.measure.accelerator_rates import report  # torch, only now

    with owned(parser, options.json):
        return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.accelerator_rates", main)
