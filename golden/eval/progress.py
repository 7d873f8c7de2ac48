"""Progress of long work on stderr."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["track"]

Item = TypeVar("Item")


def track(items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
    """The items, with a bar and the time left where stderr is a terminal."""
    from rich.console import Console
    from rich.progress import track as bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield from items
        return
    yield from bar(items, description=label, total=total, console=console, transient=True)
