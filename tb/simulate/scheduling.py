"""An edge resumes the one task that waits for it at once, inside the simulator.

cocotb queues the task and then runs the queue, which takes a third of the time of a bench with one
loop per cycle. Where several tasks wait, or the queue holds one, cocotb's own way is taken. So the
order of tasks is the same. A bench that calls ``cocotb.bridge`` needs cocotb's own way.
"""

import os

from cocotb import _event_loop, _gpi_triggers, debug
from cocotb.task import Task
from cocotb.triggers import ReadOnly, Timer

_RESUME = Task._schedule_resume


def install() -> None:
    """Change cocotb's edges, ``ReadOnly`` and ``Timer``; a second call changes nothing.

    COCOTB_ENABLE_PROFILING: nothing changes, for the profile starts in what this leaves out.
    """
    if "COCOTB_ENABLE_PROFILING" in os.environ:
        return
    for trigger in (_gpi_triggers._EdgeBase, type(ReadOnly()), Timer):
        if "_react" not in vars(trigger):
            trigger._react = _quick(trigger._react)


def _quick(own):
    """``_react`` in the place of ``own``."""
    loop = _event_loop._inst

    def react(trigger) -> None:
        callbacks = trigger._callbacks
        if len(callbacks) != 1 or loop._callbacks or debug.debug:
            own(trigger)
            return
        (callback,) = callbacks
        resume = callback._func
        if getattr(resume, "__func__", None) is not _RESUME:
            own(trigger)
            return
        _gpi_triggers._current_gpi_trigger = trigger
        trigger._callbacks = {}
        task = resume.__self__
        task._exc = None
        task._resume()
        if loop._callbacks:
            loop.run()

    return react
