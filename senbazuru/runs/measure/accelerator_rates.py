"""``senbazuru.runs.accelerator_rates``: programs of products, and their cycles."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from golden.kllm.isa import COMMAND_WORDS, Opcode, decode
from hdl.arguments import write_page
from hdl.kllm.accelerator import KllmAccelerator, KllmAcceleratorConfig
from hdl.kllm.room import BLOCKS
from senbazuru.runs.accelerator_rates import section
from senbazuru.runs.cycles import Figure, described, save
from tb.kllm.support.products import product_parts
from tb.simulate.run import build_model, run_model

CONFIGS = BLOCKS["kllm_accelerator"].configs






def _divided(config: KllmAcceleratorConfig, part: int) -> KllmAcceleratorConfig:
    """The same with 1/part of the lanes and of the ports."""
    machine = config.machine
    lane = dataclasses.replace(machine.lane, lanes=machine.lane.lanes // part)
    ports = dataclasses.replace(machine.ports, ports=machine.ports.ports // part)
    return dataclasses.replace(config, machine=dataclasses.replace(machine, lane=lane, ports=ports))


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
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
        """Of the first (0) or last (-1) command of that kind in a part."""
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
