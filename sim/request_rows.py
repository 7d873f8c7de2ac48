"""Measured trains of READs and APPENDs, and what ``sim.requests`` predicts of them. Pure Python.

``sim/calib/mmu.csv`` has a row for each figure of ``senbazuru.runs.mmu_rates --sweep``: the MMU,
the memory's latency, the train, the words of each kind, and the cycles. A hash of what was run
draws whether a row is for fitting. The walk has no parameter to fit, so both kinds of rows judge
it.
"""

import csv
import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from golden.config import ConfigError
from golden.files import replacing
from golden.oaken.config import KvShape
from sim.calibration import FOLDER, cells_of, check_count, csv_rows, mark_of, of_one_commit
from sim.requests import KINDS, Read, Run, Window, append_cycles, record_sizes, walk

MMU = "mmu.csv"
_WINDOW = tuple(field.name for field in dataclasses.fields(Window) if field.name != "word_cycles")
_WORDS = tuple(f"{kind}_words" for kind in KINDS)
_FIELDS = (
    "traffic", "kv_heads", "head_dim", "block", *_WINDOW, "outliers", "count", "tokens", "heads",
    "first_token",
)  # fmt: skip
_NUMBERS = tuple(name for name in (*_FIELDS, *_WORDS) if name not in ("traffic", "outliers"))


@dataclasses.dataclass(frozen=True)
class Row:
    """A measured train. ConfigError: it is none, or its numbers are out of range.

    fields : what was run; words : of all READs, by kind; 0 for APPENDs
    """

    fields: Mapping[str, Any]
    words: Mapping[str, int]
    cycles: int
    commit: str

    def __post_init__(self) -> None:
        if self.fields["traffic"] not in ("READ", "APPEND"):
            raise ConfigError(f"traffic must be READ or APPEND, not {self.fields['traffic']!r}")
        f, least = self.fields, 1 if self.is_read else 0
        check_count("cycles", self.cycles)
        check_count("count", f["count"])
        check_count("first_token", f["first_token"], 0)
        for name in ("tokens", "heads"):
            check_count(name, f[name], least)
        for name, value in self.words.items():
            check_count(name, value, least)
            if value % f["count"]:
                raise ConfigError(f"{name} must be those of {f['count']} equal READs, not {value}")
        if isinstance(f["outliers"], bool) or not 0 <= f["outliers"] <= 1:
            raise ConfigError(f"outliers must be 0..1, not {f['outliers']!r}")
        _ = self.window, self.kv  # both check their numbers

    @property
    def is_read(self) -> bool:
        return bool(self.fields["traffic"] == "READ")

    @property
    def mark(self) -> str:
        return mark_of(self.fields)

    @property
    def window(self) -> Window:
        return Window(**{name: self.fields[name] for name in _WINDOW})

    @property
    def kv(self) -> KvShape:
        f = self.fields
        return KvShape(heads=f["kv_heads"], head_dim=f["head_dim"], block=f["block"])

    @functools.cached_property
    def predicted(self) -> int:
        """Cycles by ``sim.requests``. The words of sparse records are spread over the heads."""
        f = self.fields
        if not self.is_read:
            sizes = record_sizes(self.kv, f["outliers"])
            return append_cycles(self.window, sizes, f["count"], f["first_token"])
        dense, sparse, scale = (self.words[name] // f["count"] for name in _WORDS)
        heads = f["heads"]
        runs = tuple(
            (Run(dense // heads), Run(sparse * (n + 1) // heads - sparse * n // heads))
            for n in range(heads)
        )
        return walk(self.window, (Read(Run(scale), runs),) * f["count"]).cycles

    @property
    def alone(self) -> int:
        """Cycles of the words of READs at a word per cycle, without requests."""
        return sum(self.words.values())


def _row(figure: Mapping[str, Any], commit: str) -> Row:
    made, given = figure["configuration"], figure["parameters"]
    cache = made["cache"]
    is_read = "reads" in given
    fields = {
        "traffic": "READ" if is_read else "APPEND",
        "kv_heads": cache["kv"]["heads"],
        **{name: cache["kv"][name] for name in ("head_dim", "block")},
        **{name: made[name] for name in _WINDOW if name in made},
        "page_bytes": cache["page_bytes"],
        "latency": given["memory_latency"],
        "outliers": given["outlier_share"],
        "count": given["reads"] if is_read else given["appends"],
        **{name: given.get(name, 0) for name in ("tokens", "heads", "first_token")},
    }
    words = {name: given.get(name, 0) for name in _WORDS}
    return Row({name: fields[name] for name in _FIELDS}, words, figure["cycles"], commit)


def read_rows(file: Path, commit: str) -> list[Row]:
    """Reads a file of ``senbazuru.runs.mmu_rates``. ConfigError names file and what is wrong."""
    try:
        return [_row(each, commit) for each in json.loads(file.read_text())["figures"]]
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{file}: no trains of senbazuru.runs.mmu_rates: {error!r}") from None


def save_rows(rows: Sequence[Row], folder: Path = FOLDER) -> None:
    names = ["mark", *_FIELDS, *_WORDS, "cycles", "commit"]
    with replacing(folder / MMU) as part, part.open("w", newline="") as out:
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            made = {"mark": row.mark, "cycles": row.cycles, "commit": row.commit}
            writer.writerow({**made, **row.fields, **row.words})


def load_rows(folder: Path = FOLDER) -> list[Row]:
    """ConfigError: the file is missing or odd, a mark is not the hash's, or commits differ."""
    file, made = folder / MMU, []
    with cells_of(file):
        for number, each in enumerate(csv_rows(file)):
            values: dict[str, Any] = {**each, "outliers": float(each["outliers"])}
            values |= {name: int(each[name]) for name in _NUMBERS}
            row = Row(
                {name: values[name] for name in _FIELDS},
                {name: values[name] for name in _WORDS},
                int(each["cycles"]),
                each["commit"],
            )
            if row.mark != each["mark"]:
                raise ConfigError(f"mark of row {number} must be {row.mark}, not {each['mark']}")
            made.append(row)
    of_one_commit(file, made)
    return made
