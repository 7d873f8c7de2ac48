"""Beats of several keys: which slots and codes count, and what goes along with a beat."""

import dataclasses

from amaranth import Const, Module, Signal
from amaranth.hdl import Value
from amaranth.lib import data

from hdl.bits import any_of

__all__ = ["Stage", "any_beyond", "delay", "is_dead"]


@dataclasses.dataclass
class Stage:
    """Flags of a beat, some cycles after it was taken."""

    valid: Signal
    flags: data.View


def delay(m: Module, valid, flags, depth: int) -> list[Stage]:
    """The beat's flags after 1, 2, ... ``depth`` cycles."""
    stages = []
    for k in range(depth):
        stage = Stage(
            Signal(name=f"valid_{k}"), Signal(flags.shape(), name=f"flags_{k}", reset_less=True)
        )
        m.d.sync += [stage.valid.eq(valid), stage.flags.eq(flags)]
        valid, flags = stage.valid, stage.flags
        stages.append(stage)
    return stages


def is_dead(slot: int, final: Value, last_slot: Value) -> Value:
    """Whether a slot of a beat lies beyond the keys of the job; the first never does."""
    return final & (last_slot < slot) if slot else Const(0, 1)


def any_beyond(codes, entries: Value) -> Value:
    """Whether a code of a key lies beyond the entries."""
    return any_of(code >= entries for code in codes)
