"""The content of a folder of images and programs, and its check. Pure Python.

``manifest.json``: format version, block, configuration of the block, model, how it was made, and of
every file its bytes, SHA-256 and width. Files are text for $readmemh: one word per line, lowest
address first; ``@address`` (hexadecimal) where a file holds only some words.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from golden.files import replacing

FORMAT = 2
NAME = "manifest.json"


class PackError(ValueError):
    """A folder that cannot be used; one line says which file or field, and what was expected."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """files: name to {"bytes", "sha256", "width" (bits), "words"}; the others: plain JSON."""

    block: str
    config: dict[str, Any]
    model: dict[str, Any]
    made: dict[str, Any]
    layout: dict[str, Any]
    files: dict[str, dict[str, Any]]
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Writes into ``folder``; the same contents give the same bytes."""
        text = json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)
        with replacing(folder / NAME) as part:
            part.write_text(text + "\n")

    @classmethod
    def read(cls, folder: Path, block: str, config: dict[str, Any]) -> "Manifest":
        """Reads the manifest of a folder for this block and configuration, and checks every file.

        PackError: they do not match, or a file cannot be read.
        """
        path = folder / NAME
        try:
            found = json.loads(path.read_text())
        except OSError:
            raise PackError(f"{path} cannot be read") from None
        except (ValueError, RecursionError):
            raise PackError(f"{path} is no JSON") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            version = found.get("format") if isinstance(found, dict) else None
            raise PackError(f"{path}: format must be {FORMAT}, not {version!r}")
        fields = {field.name for field in dataclasses.fields(cls)}
        odd = sorted(fields ^ set(found))
        if odd:
            raise PackError(f"{path}: wrong or missing: {', '.join(odd)}")
        for name in ("config", "model", "made", "layout", "files"):
            if not isinstance(found[name], dict):
                raise PackError(f"{path}: {name} must be an object, not {found[name]!r:.40}")
        manifest = cls(**found)
        if manifest.block != block:
            raise PackError(f"{path}: block must be {block}, not {manifest.block!r}")
        all_wanted, all_given = dict(_flat(config)), dict(_flat(manifest.config))
        for name in sorted(set(all_wanted) | set(all_given)):
            wanted, given = all_wanted.get(name), all_given.get(name)
            if wanted != given:
                raise PackError(f"{path}: config.{name} must be {wanted!r}, not {given!r}")
        for name, entry in manifest.files.items():
            if not isinstance(entry, dict) or {"bytes", "sha256", "width", "words"} - entry.keys():
                raise PackError(f"{path}: files.{name} must have bytes, sha256, width and words")
            manifest.check(folder, name)
        return manifest

    def words(self, folder: Path, name: str, width: int) -> list[tuple[int, int]]:
        """(address, word) of each word of a file. PackError: not of the folder, another width."""
        self.check_width(folder, name, width)
        return read_hex(folder, name)

    def check_width(self, folder: Path, name: str, width: int) -> None:
        """PackError unless the folder has the file, of words of ``width`` bits."""
        if name not in self.files:
            raise PackError(f"{folder}: {name} is not in the manifest")
        found = self.files[name]["width"]
        if found != width:
            raise PackError(f"{folder / name}: width must be {width} bits, not {found}")

    def check(self, folder: Path, name: str) -> None:
        """PackError unless the file is what was written."""
        wanted = self.files[name]
        try:
            data = (folder / name).read_bytes()
        except OSError:
            raise PackError(f"{folder / name} cannot be read") from None
        if len(data) != wanted["bytes"]:
            raise PackError(f"{folder / name} must have {wanted['bytes']} bytes, not {len(data)}")
        digest = hashlib.sha256(data).hexdigest()
        if digest != wanted["sha256"]:
            expected = wanted["sha256"]
            raise PackError(f"{folder / name}: sha256 must be {expected}, not {digest}")


def _flat(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Fields of nested configurations as ``outer.inner``."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def split_words(data: bytes, size: int) -> list[int]:
    """Words of ``size`` bytes each, the first byte lowest, for ``write_hex``."""
    return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


def write_hex(
    folder: Path, name: str, words: Iterable[tuple[int, int] | int], width: int
) -> dict[str, Any]:
    """A file of words of ``width`` bits, its entry for ``Manifest.files`` returned.

    A word may be (address, word): an ``@address`` line precedes it unless it follows its neighbour.
    """
    digits, lines, expected, count = -(-width // 4), [], 0, 0
    for item in words:
        address, word = item if isinstance(item, tuple) else (expected, item)
        if address != expected:
            lines.append(f"@{address:x}\n")
        lines.append(f"{word:0{digits}x}\n")
        expected, count = address + 1, count + 1
    data = "".join(lines).encode()
    with replacing(folder / name) as part:
        part.write_bytes(data)
    return {
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "width": width,
        "words": count,
    }


def read_hex(folder: Path, name: str) -> list[tuple[int, int]]:
    """(address, word) of each word of a file. PackError names file and line."""
    found, address = [], 0
    for number, line in enumerate((folder / name).read_text().splitlines(), 1):
        try:
            if line.startswith("@"):
                address = int(line[1:], 16)
            elif line.strip():
                found.append((address, int(line, 16)))
                address += 1
        except ValueError:
            raise PackError(f"{folder / name}:{number}: no hexadecimal word") from None
    return found
