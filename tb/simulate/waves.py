"""Wave files: ``pytest --wave``, ``make demo WAVE=1``, or TB_WAVE=1 in the environment.

Each run of a model then writes NAME.fst into its folder, and NAME.gtkw next to it. The second is
a save file of GTKWave that shows the ports of the block, one group per stream. Groups and names are
those of the block's description. A model that writes waves is another model of the cache.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from vcd.gtkw import GTKWSave

from tb.simulate.compile import TRACED

WAVE = "TB_WAVE"
_OFF = ("", "0")
_ZOOM = -16.0  # of GTKWave: about ten clock cycles in a window
_written: list[Path] = []


def are_wanted() -> bool:
    """Whether runs are to write waves."""
    return os.environ.get(WAVE, "") not in _OFF


def model_arguments() -> list[str]:
    """Verilator's arguments of a model that can write waves, with signals of any width."""
    return [TRACED, "--trace-max-width", "0", "--trace-max-array", "0"]


def run_options(file: Path) -> list[str]:
    """Options of a run that writes ``file``."""
    return ["--trace", "--trace-file", str(file)]


def groups(description: Mapping) -> Iterator[tuple[str, list[dict]]]:
    """(name, ports) of each group of the ports in NAME.json: clock and reset, streams, others."""
    ports = {port["name"]: port for port in description["ports"]}
    left = dict(ports)
    clocked = [left.pop(name) for name in list(left) if left[name]["role"] in ("clock", "reset")]
    if clocked:
        yield "clock and reset", clocked
    for stream in description["streams"]:
        names = [stream[part] for part in ("valid", "ready", "payload", "last") if part in stream]
        yield f"{stream['name']} ({stream['direction']})", [left.pop(name) for name in names]
    if left:
        yield "signals", list(left.values())


def save(wave: Path, description: Mapping) -> Path:
    """Write the save file of ``wave``; the block's ports are in the scope of its name."""
    file, scope = wave.with_suffix(".gtkw"), description["name"]
    with file.open("w") as text:
        made = GTKWSave(text)
        made.dumpfile(str(wave), abspath=False)
        made.zoom_markers(_ZOOM)
        made.treeopen(f"{scope}.")
        for name, ports in groups(description):
            with made.group(name):
                for port in ports:
                    width = port["width"]
                    place = f"[{width - 1}:0]" if width > 1 else ""
                    made.trace(f"{scope}.{port['name']}{place}", datafmt="hex" if place else "bin")
    return file


def keep(wave: Path, description: Mapping) -> None:
    """Write the save file of a finished run's ``wave``, and say where both are."""
    save(wave, description)
    _written.append(wave)
    print(f"wave: {wave}", file=sys.stderr)


def new_files() -> list[Path]:
    """The files that this process has written since the last call."""
    found = list(_written)
    _written.clear()
    return found
