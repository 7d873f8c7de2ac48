"""Starts ``tb.kllm.tb_walk`` for a walk of the matmul engine."""

import dataclasses
from collections.abc import Mapping, Sequence

from tb.simulate.run import simulate


def walk(inputs: Mapping[str, int], sinks, sources=None) -> dict:
    """One walk: its plain inputs, and the words of its streams."""
    return {"inputs": dict(inputs), "sinks": sinks, "sources": sources or {}}


def rate(number: int, delay: int, cycles: Mapping[str, Sequence[int]]) -> dict:
    """Cycles of sinks in walk ``number`` if the memory answers after ``delay`` cycles.

    Cycle 0 is the one after ``start``, or the first one of the sources.
    """
    return {
        "walk": number, "delay": delay,
        "cycles": {name: list(each) for name, each in cycles.items()},
    }  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """The parameters that ``tb.kllm.tb_walk`` reads."""

    clients: Mapping[str, str]  # request -> answer
    answers: Mapping[str, Mapping[int, int]]  # request -> {word: the answer's word}
    walks: Sequence[dict]
    rates: Sequence[dict]
    longest: Sequence[dict] = ()  # run once, with few stall cycles
    flag: str = "done"
    starts: bool = True

    def run(self, block, seed: int) -> None:
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        simulate(block, "tb.kllm.tb_walk", params=fields, seed=seed)
