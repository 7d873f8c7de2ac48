"""Signals that go along with a beat through a pipeline that never stalls."""

import dataclasses

from amaranth import Module, Signal
from amaranth.lib import data


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
