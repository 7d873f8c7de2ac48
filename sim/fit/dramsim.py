"""Streams of ``sim.dram`` on DRAMsim3, as rows of ``sim/calib/dram.csv``.

    python -m sim.fit.dramsim --binary build/dramsim3main --config configs/HBM2_8Gb_x128.ini \\
        --commit COMMIT >> sim/calib/dram.csv

DRAMsim3 is another group's simulator, cycle by cycle. The command reads its configuration, gives it
a trace of each stream, and counts the reads that it has done after ``--cycles``. The configuration
must have one channel and one rank: the command writes such a copy of it.
"""

import argparse
import configparser
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from golden import command
from golden.config import ConfigError
from sim.dram import Dram, Read, scattered, sequential
from sim.dram_rows import FIELDS, STREAMS

_PS = 1000  # of a nanosecond


class Source(NamedTuple):
    """A configuration of DRAMsim3: its bus, its clock, and its columns in a row."""

    name: str
    dram: Dram
    cycle: int
    columns: int
    parser: configparser.ConfigParser


def source_of(path: Path) -> Source:
    """Reads a configuration of DRAMsim3. ConfigError: a field is missing or odd."""
    parser = configparser.ConfigParser(inline_comment_prefixes=(";",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(path.read_text())
        structure, timing, system = (parser[n] for n in ("dram_structure", "timing", "system"))
        cycle = round(_PS * float(timing["tCK"]))
        # A column of HBM is two words of the pins there.
        words = 2 if structure["protocol"].startswith("HBM") else 1
        width, columns = int(system["bus_width"]), words * int(structure["columns"])
        banks = int(structure["bankgroups"]) * int(structure["banks_per_group"])
        beats = int(structure["BL"])
        devices = width // int(structure["device_width"])
        row = columns * devices * int(structure["device_width"]) // 8

        def time(*names: str) -> int:
            name = next(each for each in names if each in timing)
            return cycle * int(timing[name])

        dram = Dram(
            burst=beats * cycle // 2, access=beats * width // 8, row=row, banks=banks,
            groups=int(structure["bankgroups"]), trcd=time("tRCDRD", "tRCD"), trp=time("tRP"),
            tras=time("tRAS"), trrd=time("tRRD_S"), tfaw=time("tFAW"), tccd=time("tCCD_L"),
            trtp=time("tRTP_L", "tRTP"), tcl=time("CL"), trfc=time("tRFC"), trefi=time("tREFI"),
            trfc_bank=0,
        )  # fmt: skip
    except (OSError, configparser.Error, KeyError, StopIteration, ValueError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path.name}: {type(error).__name__}: {error}") from None
    return Source(path.stem, dram, cycle, row // dram.access, parser)


def stream_of(dram: Dram, name: str, count: int) -> list[Read]:
    """The reads of a stream of STREAMS, such as ``256 groups``."""
    kind, order = name.split()
    if kind == "sequential":
        return sequential(dram, count, order)
    piece = dram.access if kind == "single" else int(kind)
    return scattered(dram, count, piece, order=order)


def _lines(source: Source, reads: Sequence[Read]) -> Iterator[str]:
    """The trace. A row's reads take its columns in turn, as equal addresses would be merged."""
    dram, used = source.dram, dict[tuple[int, int], int]()
    inner = dram.banks // dram.groups
    for bank, row, _ in reads:
        column = used.get((bank, row), 0)
        used[bank, row] = column + 1
        row, column = row % 16384, column % source.columns
        # Rows, then banks of a group, groups and columns: "rochrababgco" of one channel and rank.
        place = (row * inner + bank // dram.groups) * dram.groups + bank % dram.groups
        yield f"{hex((place * source.columns + column) * dram.access)} READ 0\n"


def _done(source: Source, binary: Path, reads: Sequence[Read], cycles: int) -> int:
    """The reads that DRAMsim3 has done after so many cycles. ConfigError: it fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "config.ini").open("w") as file:
            source.parser.write(file)
        (folder / "trace.txt").write_text("".join(_lines(source, reads)))
        made = subprocess.run(
            [str(binary.resolve()), "config.ini", "-c", str(cycles), "-t", "trace.txt"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        try:
            found = json.loads((folder / "dramsim3.json").read_text())["0"]
        except (OSError, ValueError, KeyError):
            lines = [*made.stderr.strip().splitlines(), f"status {made.returncode}"]
            raise ConfigError(f"{binary.name}: {lines[0]}") from None
    return int(found["num_reads_done"])


def rows(source: Source, binary: Path, cycles: int, commit: str) -> Iterator[dict[str, object]]:
    """A row of the CSV for each stream."""
    banks = source.dram.banks // source.dram.groups * source.dram.groups
    size = source.dram.row * banks * 16384 >> 20
    source.parser["system"].update(
        channels="1", channel_size=str(size), address_mapping="rochrababgco"
    )
    source.parser["dram_structure"]["rows"] = "16384"
    fields = {name: getattr(source.dram, name) for name in FIELDS if hasattr(source.dram, name)}
    for stream in STREAMS:
        count = cycles * source.cycle // source.dram.burst + 1000
        done = _done(source, binary, stream_of(source.dram, stream, count), cycles)
        yield {
            "config": source.name, "stream": stream, "reads": done,
            "ns": cycles * source.cycle / _PS, **fields, "commit": commit,
        }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(
        prog="python -m sim.fit.dramsim", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--binary", type=Path, required=True, help="dramsim3main")
    parser.add_argument("--config", type=Path, nargs="+", required=True, help="of DRAMsim3")
    parser.add_argument("--commit", required=True, help="of DRAMsim3")
    parser.add_argument("--cycles", type=int, default=40_000, help="of each stream")
    options: argparse.Namespace = parser.parse_args(arguments)
    try:
        writer = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
        writer.writeheader()
        for path in options.config:
            writer.writerows(rows(source_of(path), options.binary, options.cycles, options.commit))
    except (ConfigError, OSError) as error:
        print(f"sim.fit.dramsim: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    command.run("sim.fit.dramsim", main)
