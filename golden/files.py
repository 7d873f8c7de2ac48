"""Files that other processes, and a run that resumes, find whole or not at all."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from golden.config import ConfigError

__all__ = ["check_output", "kept_json", "made_aside", "replacing"]


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Give a path of this process next to ``file``, and move what is written there to ``file``.

    Two processes may make the same file. After an exception ``file`` is as it was, and what was
    written is removed.
    """
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def made_aside(directory: Path) -> Iterator[Path]:
    """Give an empty folder in ``directory``, and move what is made there up to ``directory``.

    For a caller that holds the lock of ``directory``, and marks it complete afterwards. A maker
    that is killed with -9 leaves its folder, and may leave compilers that still write there. So
    every maker has a folder of its own, and those of earlier makers are removed. After an exception
    the folder stays, with its logs, until the next maker comes.
    """
    for left in directory.glob("part-*"):
        shutil.rmtree(left, ignore_errors=True)  # a compiler may write there at this moment
    part = Path(tempfile.mkdtemp(prefix="part-", dir=directory))
    yield part
    for made in list(part.iterdir()):
        target = directory / made.name
        if target.is_dir():
            shutil.rmtree(target)
        made.replace(target)
    part.rmdir()


def kept_json(file: Path) -> Any:
    """What a cache keeps in ``file``, or None where it is missing or cannot be read."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return None


def check_output(file: Path) -> None:
    """ConfigError: ``file`` is a folder, or its folder is missing or not writable."""
    if file.is_dir():
        raise ConfigError(f"output must be a file, not the folder {file}")
    if not file.parent.is_dir():
        raise ConfigError(f"no folder {file.parent} to write to")
    if not os.access(file.parent, os.W_OK):
        raise ConfigError(f"the folder {file.parent} is not writable")
