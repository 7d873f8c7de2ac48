"""``python -m tb.runs.lane_power --set NAME=FILE[,FILE...]``: the table of docs/power.md.

Energy per MAC of lanes of equal elements and columns. All lanes take the same normal numbers, each
in its own format. The bench runs on the mapped gates at full rate and compares every sum.
"""

import functools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from golden import command
from golden.lanes.format import plane_words
from golden.markers import table
from hdl.arguments import add_page, check_page, folder, whole, write_page
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.lane.select import KllmLaneSelect
from hdl.lanes.config import LaneFp16Config, LaneIntegerConfig, LaneLutConfig, LaneW4a16Config
from hdl.lanes.fp16 import LaneFp16
from hdl.lanes.integer import LaneInteger
from hdl.lanes.lut import LaneLut
from hdl.lanes.w4a16 import LaneW4a16
from synth.area import Libraries, SynthesisError
from synth.liberty import LibraryError
from synth.power import GROUPS
from synth.tables.common import library_sets
from synth.timing import delays_of
from synth.yosys import YosysError
from tb.lanes.support.packets import lane_vectors
from tb.mutate import Recording
from tb.power import PowerReport, period, power_of
from tb.run import ROOT
from tb.words import layout_words, pack

__all__ = ["LANES", "energy_table", "main"]

PAGE = ROOT / "docs" / "power.md"
ELEMENTS, COLUMNS, BEATS, PACKETS = 16, 2, 16, 12
SIZE = {"elements": ELEMENTS, "columns": COLUMNS, "k_max": 11008}
PHASE = "kmeans"  # the name by which the bench of the selecting lane finds its phase

HELP = """\
Power needs a Liberty file with power tables; the project ships none.
  make power LIBERTY=NAME=FILE[,FILE...]            prints the table of docs/power.md
  python -m tb.power NAME CASE --clock-ns T --liberty FILE   measures one block
`make timing` says where open libraries are."""


def _numbers(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Packets (activations (beats, e), weights (beats, columns, e)) of normal numbers."""
    rng = np.random.default_rng([seed, 284])
    return [
        (rng.normal(size=(BEATS, ELEMENTS)), rng.normal(size=(BEATS, COLUMNS, ELEMENTS)))
        for _ in range(PACKETS)
    ]


def _fp16(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.float16).view(np.uint16).astype(np.int64)


def _integers(numbers: np.ndarray, bits: int) -> np.ndarray:
    """The largest magnitude becomes the largest integer."""
    return np.rint(numbers / np.abs(numbers).max() * ((1 << bits - 1) - 1)).astype(np.int64)


def _codebook(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """16 intervals of equal probability: (their 15 edges, their means)."""
    drawn = np.sort(np.random.default_rng([seed, 285]).normal(size=1 << 14)).reshape(16, -1)
    return drawn[1:, 0], drawn.mean(1)


def _select(seed: int) -> tuple[Any, str, dict, dict]:
    import torch  # slow to import

    from golden.kllm.blocks import dense_sums
    from golden.kllm.select import word_table
    from tb.kllm.test_lane_select import beats_of

    config = KllmPeLaneConfig(**SIZE, counter="select", integer_bits=0)
    edges, means = _codebook(seed)
    means = means / np.abs(means).max()
    word = _fp16(np.outer(means, means).reshape(-1))
    words = word_table(word.tolist(), config.bits_a, config.bits_b, config.product)
    packets = []
    for a, w in _numbers(seed):
        value = np.searchsorted(edges, a.reshape(-1), side="right")
        index = np.searchsorted(edges, w.transpose(0, 2, 1).reshape(-1, COLUMNS), side="right")
        packets.append((value, index, np.ones(len(value), dtype=bool)))
    sums = [
        dense_sums(*map(torch.as_tensor, each), torch.as_tensor(word), config.bits_b, None)
        for each in packets
    ]
    vectors = {
        f"{PHASE}.i": beats_of(config, packets, words, 1),
        f"{PHASE}.o": pack((torch.cat(sums).numpy(), 32)),
    }
    params = {"phases": {PHASE: {"beats": [BEATS] * PACKETS, "integer": 0}}}
    return KllmLaneSelect(config), "tb.kllm.tb_lane_select", vectors, params


def _lane(block, packets: list, packet_of: Callable) -> tuple[Any, str, dict, dict]:
    vectors, params = lane_vectors(block.config, {PHASE: packets}, packet_of)
    return block, "tb.lanes.tb_lane", vectors, params


def _fp16_lane(seed: int) -> tuple[Any, str, dict, dict]:
    from golden.lanes.sums import fp16_packet  # imports torch, slowly

    config = LaneFp16Config(**SIZE)
    packets = [(_fp16(a), _fp16(w)) for a, w in _numbers(seed)]
    packet_of = functools.partial(fp16_packet, guard_bits=config.guard_bits)
    return _lane(LaneFp16(config), packets, packet_of)


def _w4a16_lane(seed: int) -> tuple[Any, str, dict, dict]:
    from golden.lanes.sums import w4a16_packet  # imports torch, slowly

    config = LaneW4a16Config(**SIZE)
    edges, means = _codebook(seed)
    words = _fp16(means)
    packets = [(_fp16(a), np.searchsorted(edges, w, side="right")) for a, w in _numbers(seed)]
    packet_of = functools.partial(w4a16_packet, table=words.tolist(), guard_bits=config.guard_bits)
    block, module, vectors, params = _lane(LaneW4a16(config), packets, packet_of)
    entry = layout_words(config.entry_layout, index=np.arange(16), word=words)
    return block, module, vectors | {f"{PHASE}.entry": entry}, params


def _integer_lane(bits_a: int, bits_w: int, seed: int) -> tuple[Any, str, dict, dict]:
    from golden.lanes.sums import integer_packet  # imports torch, slowly

    config = LaneIntegerConfig(**SIZE, bits_a=bits_a, bits_w=bits_w)
    packets = [(_integers(a, bits_a), _integers(w, bits_w)) for a, w in _numbers(seed)]
    return _lane(LaneInteger(config), packets, integer_packet)


def _lut_lane(bits_w: int, seed: int) -> tuple[Any, str, dict, dict]:
    from golden.lanes.sums import table_packet  # imports torch, slowly

    config = LaneLutConfig(**SIZE, bits_w=bits_w)
    packets = []
    for a, w in _numbers(seed):
        code = _integers(w, bits_w) + (1 << bits_w - 1)
        flat = [plane_words(four, bits_w) for four in code.reshape(-1, 4).tolist()]
        planes = np.array(flat).reshape(BEATS, COLUMNS, config.groups, bits_w)
        packets.append((_integers(a, config.bits_a), planes))
    return _lane(LaneLut(config), packets, table_packet)


# label -> seed -> (block, test module, vectors, params)
LANES: dict[str, Callable[[int], tuple[Any, str, dict, dict]]] = {
    "select, no integer mode": _select,
    "INT8 x INT8": functools.partial(_integer_lane, 8, 8),
    "INT8 x INT4": functools.partial(_integer_lane, 8, 4),
    "INT4 x INT4": functools.partial(_integer_lane, 4, 4),
    "tables of INT8, 4 planes": functools.partial(_lut_lane, 4),
    "FP16 x FP16": _fp16_lane,
    "FP16 x table of FP16 (W4A16)": _w4a16_lane,
}


def measure_lane(lane: str, libraries: Libraries, clock_ns: float, seed: int = 1) -> PowerReport:
    """Power of one lane at full rate. AssertionError: a sum of the gates is wrong."""
    block, module, vectors, params = LANES[lane](seed)
    arguments = {"config": block.config, "vectors": vectors, "params": params, "seed": seed}
    name = re.sub(r"(?<=.)(?=[A-Z])", "_", type(block).__name__).lower()
    recording = Recording(f"lane_power[{lane}]", block, module, arguments)
    return power_of(name, recording, libraries, clock_ns, test="full_rate")


def energy_table(figures: dict[tuple[str, str], dict[str, Any]]) -> str:
    """``(lane, library) -> power.json``, one row each."""
    rows = []
    for (lane, library), each in figures.items():
        total = each["pj_per_cycle"]
        groups = [sum(each["groups"][group].values()) / total for group in GROUPS]
        rows.append(
            (
                lane,
                library,
                f"{each['kge'] / COLUMNS:.2f}",
                f"{each['pj_per_operation']['pj']:.4f}",
                *(f"{share:.0%}" for share in groups),
                f"{each['toggles_per_cycle'] / ELEMENTS / COLUMNS:.1f}",
            )
        )
    head = (
        f"{ELEMENTS} elements, {COLUMNS} columns", "library", "kGE per column", "pJ per MAC",
        *GROUPS, "nets that toggle per MAC",
    )  # fmt: skip
    return table(head, rows)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m tb.runs.lane_power", description=__doc__)
    parser.add_argument(
        "--set", action="append", default=[], dest="sets", metavar="NAME=FILE[,FILE...]",
        help="the Liberty files of one library",
    )  # fmt: skip
    parser.add_argument("--clock-ns", type=period, default=10.0, metavar="T")
    parser.add_argument("--seed", type=whole(0, 2**31 - 1), default=1)
    parser.add_argument(
        "--lane", action="append", choices=LANES, help="measure this lane; default: all of them"
    )
    parser.add_argument(
        "--keep", type=folder, default=Path("build/lane_power"), metavar="DIR",
        help="one file for each figure; those of lanes that this run leaves out stay in the table",
    )  # fmt: skip
    add_page(parser, PAGE)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ("lane_power",))
    if not options.sets:
        if options.page:
            parser.error("--page needs --set: the table is of libraries")
        print(HELP)
        return 0
    figures = {}
    try:
        sets = library_sets(options.sets)
        for libraries in sets.values():
            delays_of(libraries)
        options.keep.mkdir(parents=True, exist_ok=True)
        for number, lane in enumerate(LANES):
            for library, libraries in sets.items():
                file = options.keep / f"{number}-{library}.json".replace("/", "_")
                if options.lane is None or lane in options.lane:
                    report = measure_lane(lane, libraries, options.clock_ns, options.seed)
                    file.write_text(json.dumps(report.to_json(), indent=2) + "\n")
                    print(f"  {library}: {lane}: {report.operation_pj:.4f} pJ", flush=True)
                if file.exists():
                    figures[lane, library] = json.loads(file.read_text())
    except (LibraryError, SynthesisError, YosysError, OSError) as error:
        print(f"tb.runs.lane_power: {error}", file=sys.stderr)
        return 2
    except AssertionError as error:
        print(f"tb.runs.lane_power: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    text = energy_table(figures)
    print(text)
    write_page(options.page, {"lane_power": text})
    return 0


if __name__ == "__main__":
    command.run("tb.runs.lane_power", main)
