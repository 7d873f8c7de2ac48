"""Simulators as forks of one process that has imported what every simulation imports.

The start of a simulator, Python with cocotb, numpy and Amaranth, takes longer than most runs. The
server here imports these modules once. For each run it forks, loads the model, which is a shared
library, and calls its ``main``. cocotb then initializes Python a second time, which Python allows:
it reads its configuration anew. Modules of golden and hdl stay imported as long as no source of
the tree changes; the benches are imported by each run.
"""

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent.parent
_PROGRAM = "from tb.simulate.forked import serve; serve()"
_IMPORTS = (
    "cocotb.regression", "cocotb._init", "cocotb.clock", "cocotb.triggers", "_pytest.config",
    "_pytest.assertion.rewrite", "numpy", "amaranth.hdl", "amaranth.lib.data",
    "amaranth.lib.memory", "amaranth.lib.stream", "amaranth.lib.wiring", "golden.config",
)  # fmt: skip
# What may differ between the runs of a server: cocotb reads it anew, and Python does not.
_OF_A_RUN = ("COCOTB_RANDOM_SEED", "COCOTB_RESULTS_", "COCOTB_TE", "COCOTB_TOPLEVEL", "PYTEST_")


class _Server:
    """The process that forks. It ends with this process, or with ``end``."""

    def __init__(self, key: dict[str, str], environment: dict[str, str]) -> None:
        self.key = key
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, job: dict) -> int:
        """The exit status of the run; EOFError if the server has ended."""
        with contextlib.suppress(BrokenPipeError):  # there is no reply
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        reply = self._process.stdout.readline()
        if not reply.endswith("\n"):
            raise EOFError
        return int(reply)

    def end(self) -> None:
        """End it, and a run that it waits for."""
        self._process.terminate()
        self.forget()
        self._process.wait()

    def forget(self) -> None:
        """Close this process's ends of the pipes."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


_server: _Server | None = None
_lock = threading.Lock()


def _end() -> None:
    global _server
    if _server is not None:
        _server.end()
        _server = None


def _forget() -> None:
    """Drops the server in a forked process: it is the parent's, and waits for the parent's end."""
    global _server, _lock
    _lock = threading.Lock()
    if _server is not None:
        _server.forget()
        _server._process.returncode = 0  # not a child of this process
        _server = None


os.register_at_fork(after_in_child=_forget)
atexit.register(_end)


def _key(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(("PYTHON", "COCOTB_")) and not name.startswith(_OF_A_RUN)
    }


def run(
    command: list[str], cwd: Path, environment: dict[str, str], log: Path, imports: tuple[str, ...]
) -> int:
    """Call ``main`` of the library ``command[0]`` in a fork; its exit status, -N for signal N.

    imports: modules that the run imports, and that its server then keeps.
    """
    global _server
    job = {
        "command": command, "cwd": str(cwd), "environment": environment, "log": str(log),
        "imports": imports,
    }  # fmt: skip
    key = _key(environment)
    with _lock:
        if _server is not None and _server.key != key:
            _end()
        if _server is None:
            _server = _Server(key, environment)
        try:
            return _server.run(job)
        except BaseException as error:  # an interrupt too: the reply would be taken for the next
            _end()
            if isinstance(error, EOFError):
                raise RuntimeError("the server of the simulations has ended") from None
            raise


def serve() -> None:
    """Run jobs from standard input until it ends."""
    running: list[int] = []

    def stop(*_) -> None:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process decides
    signal.signal(signal.SIGTERM, stop)
    sys.path[:] = [folder for folder in sys.path if folder]
    for module in _IMPORTS:
        importlib.import_module(module)
    with os.fdopen(os.dup(1), "w") as replies:
        for line in sys.stdin:
            job = json.loads(line)
            for module in job["imports"]:
                with contextlib.suppress(Exception):  # the run itself meets it again
                    importlib.import_module(module)
            process = os.fork()
            if process == 0:
                replies.close()
                _simulate(job)
            running.append(process)
            _, status = os.waitpid(process, 0)
            running.clear()
            replies.write(f"{os.waitstatus_to_exitcode(status)}\n")
            replies.flush()


def _simulate(job: dict) -> None:
    """The forked process: it does not return."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for file, number in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(file, number)
    # cocotb ends Python when the simulation has ended, under the feet of the call below.
    atexit.register(_leave, 0)
    try:
        model = ctypes.PyDLL(job["command"][0], mode=ctypes.RTLD_GLOBAL)
        words = [os.fsencode(word) for word in job["command"]]
        status = model.main(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None))
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        status = 1
    _leave(status)


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status)
