"""Cycles of a layer as a bench measures them: whole, and of the commands of each kind.

A command's cycles run from the last end that it waits for to its own end, as in tb.runs.layer.
"""

import dataclasses
from typing import TYPE_CHECKING

from golden.kllm.isa import COMMAND_WORDS, Unit, decode
from golden.kllm.layer.program import layer_program
from sim.kllm.schedule import Timeline, timeline
from sim.kllm.units import CommandCycles, Timings

if TYPE_CHECKING:
    from sim.calibration import LayerRun

__all__ = ["predict"]


def _waited(words: list[int], made: Timeline, first: dict[Unit, int]) -> dict[str, float]:
    """By opcode. first: commands of each unit before the part."""
    ends: dict[Unit, list[float]] = {unit: [] for unit in Unit}
    found: dict[str, float] = {}
    for placed, at in zip(made.placed, range(0, len(words), COMMAND_WORDS), strict=True):
        mine = ends[placed.unit]
        waited = [mine[-1]] if mine else [0.0]
        _, _, after, _ = decode(words[at : at + COMMAND_WORDS])
        for unit, count in after.items():
            index = count - first[unit]
            if 0 < index <= len(ends[unit]):
                waited.append(ends[unit][index - 1])
        name = placed.opcode.name
        found[name] = found.get(name, 0.0) + placed.end - max(waited)
        mine.append(placed.end)
    return found


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
        for name, amount in _waited(words, made, before).items():
            kinds[name] = kinds.get(name, 0.0) + amount
    return whole, kinds
