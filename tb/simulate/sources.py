"""Source files: their hash, which says whether a kept result is of today's, and their imports."""

import ast
import functools
import hashlib
import re
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


@functools.cache
def imported_files(file: Path, root: Path) -> frozenset[Path]:
    """Files of ``root`` that ``file`` imports, or names as a testbench of the simulator."""
    text = file.read_text()
    names = set(re.findall(r'"(tb(?:\.\w+)+)"', text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    paths = [root.joinpath(*name.split(".")) for name in names]
    places = [place for path in paths for place in (path.with_suffix(".py"), path / "__init__.py")]
    return frozenset(place for place in places if place.exists())
