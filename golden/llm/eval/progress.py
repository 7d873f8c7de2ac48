"""Progress of long work on stderr."""

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

Item = TypeVar("Item")
_PERIOD = 30.0  # seconds between lines, where stderr is no terminal


def track(items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
    """Gives the items, and shows how many are done.

    A terminal gets a bar with the time left. A file or a pipe gets a line after an item if the last
    line is 30 seconds old. So short work writes nothing.
    """
    from rich.console import Console
    from rich.progress import track as bar

    console = Console(stderr=True)
    if console.is_terminal:
        yield from bar(items, description=label, total=total, console=console, transient=True)
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    began = said = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - said >= _PERIOD:
            said = now
            share = f"{done} of {total}" if total else f"{done}"
            print(f"{label}: {share} after {now - began:.0f} s", file=sys.stderr, flush=True)
