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
import dataclasses
import json
import re
import sys
from pathlib import Path

from golden import command
from golden.kllm.isa import COMMAND_WORDS, Opcode, decode
from hdl.arguments import add_page, check_page, whole, write_page
from hdl.kllm.accelerator import KllmAccelerator, KllmAcceleratorConfig
from hdl.kllm.room import BLOCKS
from senbazuru.runs.cycles import Figure, add_option, described, owned, save
from tb.simulate.run import ROOT, build_model, run_model

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
    with owned(parser, options.json):
        return report(options)


def _divided(config: KllmAcceleratorConfig, part: int) -> KllmAcceleratorConfig:
    """The same with 1/part of the lanes and of the ports."""
    machine = config.machine
    lane = dataclasses.replace(machine.lane, lanes=machine.lane.lanes // part)
    ports = dataclasses.replace(machine.ports, ports=machine.ports.ports // part)
    return dataclasses.replace(config, machine=dataclasses.replace(machine, lane=lane, ports=ports))


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    from tb.kllm.support.products import product_parts  # torch, only now

    config = _divided(CONFIGS[options.config], options.part)
    lane, machine_config, size = config.lane, config.machine, options.size
    outputs = size // options.part
    cases = [
        (tokens, at_a_time, mode)
        for tokens, at_a_time in options.tokens
        for mode in ("online", "offline")
    ]
    try:
        data, ports, parts = product_parts(machine_config, size, cases, part=options.part)
    except ValueError as error:  # a product that the machine has no room for
        print(f"senbazuru.runs.accelerator_rates: --size {size}: {error}", file=sys.stderr)
        return 2
    model = build_model(KllmAccelerator(config), long_run=True)
    work = run_model(
        model,
        "tb.kllm.tb_layer",
        config=config,
        params={"data": data, "ports": ports, "parts": parts, "latency": options.latency},
    )
    measured = json.loads(Path(work, "layer.json").read_text())["parts"]

    def cycle(part: int, opcode: Opcode, which: int) -> int:
        """The cycle of the first (0) or last (-1) command of that kind in a part."""
        words = parts[part]["words"]
        commands = [words[at : at + COMMAND_WORDS] for at in range(0, len(words), COMMAND_WORDS)]
        tag = [tag for found, tag, _, _ in map(decode, commands) if found == opcode][which]
        return next(at for seen, _, at in measured[part]["reports"] if seen == tag)

    delivery = cycle(1, Opcode.READ, 0)
    lines = [
        (
            "| tokens | at a time | outliers | first quantized | last output | compute | memory "
            "| above | online |"
        ),
        "|" + " ---: |" * 9,
    ]
    groups = -(-outputs // machine_config.group_outputs)
    memory = machine_config.image_words(size, outputs)
    totals, figures = {}, []
    for n, (tokens, at_a_time, mode) in enumerate(cases):
        part = 3 + 3 * n  # constants, delivery; then load, run, read of each case
        quantize = cycle(part, Opcode.QUANTIZE, 0) - delivery
        total = cycle(part, Opcode.MATMUL, -1) - delivery
        totals[tokens, at_a_time, mode] = total
        compute = lane.bound(size, groups * tokens)
        fetched = memory * (tokens // at_a_time)
        given = {"length": size, "outputs": outputs, "tokens": tokens,
                 "tokens_at_a_time": at_a_time, "outliers": mode,
                 "memory_latency": options.latency}  # fmt: skip
        for span, cycles, bound in (
            ("from the program to the status of the first QUANTIZE", quantize, None),
            ("from the program to the status of the last MATMUL", total, max(compute, fetched)),
        ):
            figures.append(
                Figure(
                    command="senbazuru.runs.accelerator_rates",
                    block="kllm_accelerator",
                    configuration=described(config),
                    parameters=given,
                    span=span,
                    cycles=cycles,
                    bound=bound,
                )
            )
        above = f"{total / max(compute, fetched) - 1:.1%}"
        price = ""
        if mode == "offline":
            price = f"{totals[tokens, at_a_time, 'online'] / total - 1:.1%}"
        row = (tokens, at_a_time, mode, quantize, total, compute, fetched, above, price)
        lines.append("| " + " | ".join(map(str, row)) + " |")
    table = "\n".join(lines) + "\n"
    print(table)
    write_page(options.page, {section(options): table})
    save(options.json, figures)
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.accelerator_rates", main)
