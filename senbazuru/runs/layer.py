"""``python -m senbazuru.runs.layer``: a decoder layer of SmolLM2-135M on the Verilated accelerator.

Packs the layer (golden.llm.pack) unless a folder is given. Runs its two programs on the RTL with
the host's append of K and V between them. Compares every status, every word read back, and at the
end every row of the vector memory and every slot. Prints the cycles of each command next to its
bound.
"""

from golden import command
from golden.config import ConfigError
from hdl.arguments import add_page, check_page, folder, whole
from hdl.kllm.accelerator import KllmAcceleratorConfig
from hdl.kllm.room import BLOCKS
from senbazuru.runs.cycles import add_option, owned
from tb.simulate.run import ROOT

CONFIGS = BLOCKS["kllm_accelerator"].configs
PAGE = ROOT / "docs" / "kllm-cycles.md"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.layer", description=__doc__)
    parser.add_argument("--config", default="smollm2", choices=sorted(CONFIGS))
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE",
        help="a field of the machine's configuration, such as lane.lanes=2",
    )  # fmt: skip
    parser.add_argument("--pack", type=folder, help="folder of golden.llm.pack; made when missing")
    parser.add_argument("--layer", type=whole(0), default=15)
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of every memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    try:
        options.machine = KllmAcceleratorConfig.parse(
            CONFIGS[options.config], [f"machine.{each}" for each in options.set]
        )
    except ConfigError as error:
        parser.error(str(error))
    if options.set and options.page:
        parser.error("--page must be of a named configuration, without --set")
    check_page(parser, options.page, [f"layer_{options.config}"])
    from senbazuru.runs.measure.layer import report  # torch, only now

    with owned(parser, options.json):
        return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.layer", main)
