"""Arguments that several commands share: folders, numbers, and the page of a measurement.

A command that measures prints its tables. Only with ``--page`` it rewrites the page of them.
"""

import argparse
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from golden.markers import fill, rewrite

_ROOT = Path(__file__).resolve().parent.parent


def folder(text: str) -> Path:
    """``type`` of an option that names a folder: an empty text is refused, and is not ``.``."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"must name a folder, not {text!r}")
    return Path(text)


def whole(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """``type`` of an option that is a whole number in ``least..most``."""
    allowed = f"a whole number from {least} on" if most is None else f"{least}..{most}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"must be {allowed}, not {text!r}")
        return value

    return parse


def within(low: float, high: float) -> Callable[[str], float]:
    """``type`` of an option that is a number in ``low..high``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be in {low:g}..{high:g}, not {text!r}")
        return value

    return parse


def period(text: str) -> float:
    """``type`` of an option that is a positive number of ns."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of ns, not {text!r}")
    return value


def _shown(page: Path) -> str:
    return str(page.relative_to(_ROOT) if page.is_relative_to(_ROOT) else page)


def add_page(parser: argparse.ArgumentParser, page: Path) -> None:
    """``--page``, a flag: ``options.page`` is then ``page``, otherwise None."""
    parser.add_argument(
        "--page",
        action="store_const",
        const=page,
        help=f"rewrite the tables of {_shown(page)}; without it they are printed alone",
    )


def check_page(parser: argparse.ArgumentParser, page: Path | None, sections: Iterable[str]) -> None:
    """Refuse ``--page`` before the measurement where the page has no place for its tables."""
    if page is None:
        return
    try:
        fill(page.read_text(), dict.fromkeys(sections, ""))
        reason = "" if os.access(page, os.W_OK) else "it cannot be written"
    except OSError as error:
        reason = str(error.strerror)
    except ValueError as error:
        reason = str(error)
    if reason:
        parser.error(f"--page: {_shown(page)}: {reason}")


def write_page(page: Path | None, made: Mapping[str, str]) -> None:
    """Replaces the sections of ``made`` in ``page``, if there is one, and prints their names."""
    if page is not None:
        rewrite(page, made)
        print(f"{_shown(page)}: {', '.join(made)}")
