"""One simulator for several seeds of a test: the start of a simulator costs as much as most runs.

A resident simulator stays after its tests have passed, and waits for the next job. That is the same
bench on the same model with other vectors and another seed. ``tb.simulate.resident_regression``
runs in it. Its registers are random at its start only. A later job finds the state that the job
before it left, and must bring order by a reset too. A job that fails ends its simulator.

``pytest --seeds N`` (conftest.py) turns this on by ``RESIDENT``; otherwise every run has its own.
"""

import atexit
import collections
import contextlib
import json
import os
import subprocess
from pathlib import Path

RESIDENT = "TB_RESIDENT"  # in the environment: runs share simulators
REPLIES = "TB_REPLIES"  # in the simulator's environment: file descriptor of its replies
PASSED, FAILED = "passed", "failed"
_MOST = 6  # simulators of one process that wait; a test may need several


class Resident:
    """A simulator that runs one job after another.

    RuntimeError: it ended before its reply.
    """

    def __init__(self, command, cwd, environment, log) -> None:
        """Start with the job that ``environment`` describes; ``wait`` comes next."""
        self.is_waiting = False
        replies, end = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**environment, REPLIES: str(end)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(end,),
                text=True,
            )
        finally:
            os.close(end)
        self._replies = os.fdopen(replies)

    def run(self, environment: dict[str, str], cwd: Path, log: Path) -> None:
        """Run one more job: ``environment`` names its folder, its seed and its results."""
        job = {"environment": environment, "cwd": str(cwd), "log": str(log)}
        with contextlib.suppress(BrokenPipeError):  # it has ended: there is no reply
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        self.wait()

    def wait(self) -> None:
        """Return when the job is done. ``is_waiting``: it has passed, and the simulator waits."""
        reply = self._replies.readline().strip()
        self.is_waiting = reply == PASSED
        if not self.is_waiting:
            self.end()
        if reply not in (PASSED, FAILED):
            raise RuntimeError(f"Command failed with return code: {self._process.returncode}")

    def end(self) -> None:
        """Let the simulator end once it has nothing to do."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._replies.close()


_waiting: collections.OrderedDict[tuple, Resident] = collections.OrderedDict()


def find(key: tuple) -> Resident | None:
    """Take the simulator that waits for a job of ``key``; None: there is none."""
    return _waiting.pop(key, None)


def keep(key: tuple, resident: Resident) -> None:
    """Keep ``resident``, which waits, for the next job of ``key``."""
    _waiting[key] = resident
    while len(_waiting) > _MOST:
        _waiting.popitem(last=False)[1].end()


@atexit.register
def _end_all() -> None:
    while _waiting:
        _waiting.popitem()[1].end()
