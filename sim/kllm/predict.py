"""Cycles of a layer and of a product as benches measure them.

A command's cycles run from the last end that it waits for to its own end, as in
senbazuru.runs.layer. Those of a product run from its program to a status, as in
senbazuru.runs.accelerator_rates.
"""

import dataclasses
from typing import TYPE_CHECKING

from golden.config import ConfigError
from golden.kllm.assembler import AssemblyError
from golden.kllm.bounds import waited, waits
from golden.kllm.isa import Opcode, Unit
from golden.kllm.layer.program import layer_program
from golden.kllm.product import product_program
from sim.kllm.schedule import timeline
from sim.kllm.units import CommandCycles, Timings

if TYPE_CHECKING:
    from sim.calibration import LayerRun, ProductRun


def predict(run: "LayerRun", timings: Timings) -> tuple[float, dict[str, float]]:
    """Cycles of the layer, and of the commands by opcode; the run's latency replaces the other.

    ConfigError: KLLM has no program for it, or one of other commands than the run's.
    """
    f = run.fields
    try:
        program = layer_program(run.shape, run.options, run.machine, f["tokens"], f["context"])
    except AssemblyError as error:
        raise ConfigError(f"{run.name}: {error}") from None
    timed = dataclasses.replace(timings, latency=f["latency"])
    cycles = CommandCycles(run.machine, run.units, timed, f["context"])
    kinds: dict[str, float] = {}
    made = timeline(program.words, cycles, dict.fromkeys(Unit, 0))
    ends = [placed.end for placed in made.placed]
    for command, end in zip(waits(program.words, dict.fromkeys(Unit, 0)), ends, strict=True):
        name = command.opcode.name
        kinds[name] = kinds.get(name, 0.0) + end - waited(command.after, ends)
    if set(kinds) != set(run.opcodes()):
        names = ", ".join(sorted(set(kinds) ^ set(run.opcodes())))
        raise ConfigError(f"{run.name}: {names} must be in the program and in its cycles")
    return made.cycles, kinds


def predict_product(run: "ProductRun", timings: Timings) -> tuple[float, float]:
    """Cycles to the status of the first QUANTIZE, and of the last MATMUL.

    The bench takes off what a command that ends at once needs: the second part of the program.
    ConfigError: the machine has no room.
    """
    f = run.fields
    try:
        parts = product_program(run.machine, f["length"], f["outputs"], [run.case])
    except AssemblyError as error:
        raise ConfigError(f"{run.matrix}: {error}") from None
    timed = dataclasses.replace(timings, latency=f["latency"])
    cycles = CommandCycles(run.machine, run.units, timed)
    first = dict.fromkeys(Unit, 0)
    lines = [timeline(words, cycles, first) for words in parts]
    at_once, product = lines[1].cycles, lines[3].placed
    quantized = next(each.end for each in product if each.opcode == Opcode.QUANTIZE)
    last = max(each.end for each in product if each.opcode == Opcode.MATMUL)
    return quantized - at_once, last - at_once
