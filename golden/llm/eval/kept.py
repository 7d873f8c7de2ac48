"""The rows of ``golden.llm.eval -o FILE``: JSON that is whole after each row, and is continued."""

import json
import math
from pathlib import Path
from typing import Any

from golden.config import ConfigError
from golden.files import replacing
from golden.llm.checkpoint import CheckpointError

_NUMBERS = ("calibration_seconds", "install_seconds", "seconds", "memory_bytes")
_FORMAT, _VERSION = "senbazuru evaluation", 1


def finite(value: Any) -> Any:
    """Infinity and NaN, which JSON has not, as None, at any depth."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_row(row: Any) -> bool:
    """Every field that a table or a drawing shows is there, and of its type."""
    if not isinstance(row, dict):
        return False
    bits, perplexity = row.get("bits"), row.get("perplexity", "")
    return (
        all(isinstance(row.get(each), str) for each in ("method", "code"))
        and (perplexity is None or _is_number(perplexity))
        and isinstance(bits, dict)
        and all(_is_number(bits.get(each)) for each in ("weights", "activations", "kv"))
        and all(_is_number(row.get(each)) for each in _NUMBERS)
        and isinstance(row.get("bit_true"), dict)
        and isinstance(row.get("tasks"), list)
    )


def _content(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is not a file of golden.llm.eval -o")
    if found.get("version") != _VERSION:
        raise CheckpointError(f"{path} is not a file of golden.llm.eval -o of version {_VERSION}")
    is_whole = isinstance(found.get("settings"), dict) and isinstance(found.get("results"), list)
    if not is_whole or not all(map(_is_row, found["results"])):
        raise CheckpointError(f"{path} is damaged: it has no settings or no rows")
    return found


def check_kept(path: Path | None, resume: bool) -> None:
    """Refuses a wrong ``-o`` or ``--resume`` before a model is read; one line.

    The caller has claimed the file.
    """
    if path is None:
        if resume:
            raise ConfigError("resume needs the file of -o")
        return
    if path.exists():
        if not resume:
            raise ConfigError(f"{path} exists: --resume continues it")
        _content(path)


class Kept:
    """Rows by method, in a file after each ``add`` if there is a path.

    settings: plain values that all rows share. A file of other settings is a ConfigError.
    report: what the file says besides.
    """

    def __init__(
        self, path: Path | None, settings: dict[str, Any], report: dict[str, Any]
    ) -> None:
        self.path = path
        self.settings = settings
        self.report = report
        self.rows: dict[str, dict[str, Any]] = {}
        if path is None or not path.exists():
            return
        found = _content(path)
        for field in sorted(settings.keys() | found["settings"].keys()):
            new, old = settings.get(field), found["settings"].get(field)
            if new != old:
                raise ConfigError(f"{path} has {field} {_short(old)}, this run {_short(new)}")
        self.rows = {row["method"]: row for row in found["results"]}

    def find(self, method: str, code: str) -> dict[str, Any] | None:
        """The row of a method, if the same code made it."""
        row = self.rows.get(method)
        return row if row is not None and row["code"] == code else None

    def add(self, row: dict[str, Any]) -> None:
        """Write the file anew, aside, and rename it."""
        self.rows[row["method"]] = row
        if self.path is None:
            return
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "settings": self.settings,
            **self.report,
            "results": list(self.rows.values()),
        }
        with replacing(self.path) as part:
            part.write_text(json.dumps(finite(content), indent=1, allow_nan=False) + "\n")


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text
