"""Streams that DRAMsim3 has read, and what ``sim.dram`` predicts of them. Pure Python.

``sim/calib/dram.csv`` has a row for each stream: the timings that both have, the reads that
DRAMsim3 did, and the nanoseconds. ``sim.fit.dramsim`` measures them. Nothing is fitted.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

from golden.config import ConfigError
from golden.markers import table
from sim.calibration import FOLDER, published_rows
from sim.dram import Dram, scattered, sequential, serve

FILE = FOLDER / "dram.csv"
STREAMS = (
    "sequential groups", "sequential columns", "256 groups", "256 columns", "1024 groups",
    "1024 columns", "single columns",
)  # fmt: skip
_TIMINGS = tuple(field.name for field in dataclasses.fields(Dram) if field.name != "trfc_bank")
FIELDS = ("config", "stream", "reads", "ns", *_TIMINGS, "commit")
_QUEUE = 32  # commands of DRAMsim3's files


@dataclasses.dataclass(frozen=True)
class Row:
    """A stream that DRAMsim3 has read. measured, predicted : nanoseconds"""

    config: str
    stream: str
    dram: Dram
    reads: int
    measured: float
    commit: str

    @functools.cached_property
    def predicted(self) -> float:
        kind, order = self.stream.split()
        if kind == "sequential":
            reads = sequential(self.dram, self.reads, order)
        else:
            piece = self.dram.access if kind == "single" else int(kind)
            reads = scattered(self.dram, self.reads, piece, order=order)
        return serve(self.dram, reads, queue=_QUEUE).end / 1e3

    @property
    def share(self) -> float:
        """Share of the pins that DRAMsim3 reached."""
        return self.reads * self.dram.burst / 1e3 / self.measured


def _row(where: str, found: Mapping[str, str | None]) -> Row:
    try:
        numbers = {name: int(str(found[name])) for name in (*_TIMINGS, "reads")}
        reads, measured = numbers.pop("reads"), float(str(found["ns"]))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    stream = str(found["stream"])
    if stream not in STREAMS:
        raise ConfigError(f"{where}: stream must be one of {', '.join(STREAMS)}, not {stream!r}")
    if reads < 1 or not measured > 0:
        raise ConfigError(f"{where}: reads and ns must be above 0, not {reads} and {measured}")
    try:
        dram = Dram(**numbers, trfc_bank=0)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return Row(str(found["config"]), stream, dram, reads, measured, str(found["commit"]))


def rows_of(path: Path = FILE) -> list[Row]:
    """The rows of a file. ConfigError: it is none, or a number is odd."""
    return published_rows(path, FIELDS, _row)


def compared(rows: list[Row]) -> str:
    """The table of the page."""
    shown = [
        [
            f"{row.config}, {row.stream}", f"{100 * row.share:.1f} %",
            f"{100 * row.share * row.measured / row.predicted:.1f} %",
            f"{100 * (row.predicted / row.measured - 1):+.1f} %",
        ]
        for row in rows
    ]  # fmt: skip
    return table(("stream", "DRAMsim3", "here", "error of the time"), shown)
