"""Cycles of a layer as a bench measures them: whole, and of the commands of each kind.

A command's cycles run from the last end that it waits for to its own end, as in tb.runs.layer.
"""

import dataclasses
from typing import TYPE_CHECKING

from golden.kllm.bounds import waited, waits
from golden.kllm.isa import Unit
from golden.kllm.layer.program import layer_program
from sim.kllm.schedule import timeline
from sim.kllm.units import CommandCycles, Timings

if TYPE_CHECKING:
    from sim.calibration import LayerRun

__all__ = ["predict"]


def predict(run: "LayerRun", timings: Timings) -> tuple[float, dict[str, float]]:
    """Cycles of all parts, and of the commands by opcode; the run's latency replaces the other."""
    program = layer_program(
        run.shape, run.options, run.machine, run.fields["tokens"], run.fields["context"]
    )
    timed = dataclasses.replace(timings, latency=run.fields["latency"])
    cycles = CommandCycles(run.machine, run.units, timed)
    first, whole = dict.fromkeys(Unit, 0), 0.0
    kinds: dict[str, float] = {}
    for words in program.parts:
        before = dict(first)
        made = timeline(words, cycles, first)
        whole += made.cycles
        ends = [placed.end for placed in made.placed]
        for command, end in zip(waits(words, before), ends, strict=True):
            name = command.opcode.name
            kinds[name] = kinds.get(name, 0.0) + end - waited(command.after, ends)
    return whole, kinds
