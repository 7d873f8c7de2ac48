"""Hash of source files: whether a kept result is still one of today's sources."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

_SUFFIXES = (".py", ".cpp", ".h")


def source_files(root: Path, places: Iterable[str]) -> list[Path]:
    """The sources of each place in ``root``, in order: a file, or Python and C++ of a folder."""
    found = []
    for place in (root / name for name in places):
        if place.is_dir():
            found += sorted(file for file in place.rglob("*") if file.suffix in _SUFFIXES)
        elif place.exists():
            found.append(place)
    return found


def sources_digest(root: Path, places: Iterable[str], *texts: str) -> str:
    """64 hexadecimal digits of ``texts``, and of path and bytes of each of ``source_files``."""
    digest = hashlib.sha256("\0".join(texts).encode())
    for file in source_files(root, places):
        content = file.read_bytes()
        digest.update(f"\0{file.relative_to(root)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
