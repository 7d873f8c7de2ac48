"""Arguments that several commands share."""

import argparse
from pathlib import Path

__all__ = ["folder"]


def folder(text: str) -> Path:
    """``type`` of an option that names a folder: an empty text is refused, and is not ``.``."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"must name a folder, not {text!r}")
    return Path(text)
