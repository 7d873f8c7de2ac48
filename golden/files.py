"""Files that other processes, and a run that resumes, find whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["replacing"]


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Give a path of this process next to ``file``, and move what is written there to ``file``.

    Two processes may make the same file. After an exception ``file`` is as it was.
    """
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    yield part
    part.replace(file)
