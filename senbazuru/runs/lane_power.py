"""``python -m senbazuru.runs.lane_power --set NAME=FILE[,FILE...]``: the tables of docs/power.md.

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
from golden.config import ConfigError
from golden.files import claimed_folder, replacing
from golden.lanes.format import plane_words
from golden.lanes.vectors.packets import lane_vectors
from golden.markers import table
from golden.words import layout_words, pack
from hdl.arguments import add_page, check_page, folder, period, whole, write_page
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.lane.row_lookup import KllmRowLookup
from hdl.kllm.lane.select import KllmLaneSelect
from hdl.kllm.lane.select_config import KllmSelectConfig
from hdl.lanes.config import LaneFp16Config, LaneIntegerConfig, LaneLutConfig, LaneW4a16Config
from hdl.lanes.fp16 import LaneFp16
from hdl.lanes.integer import LaneInteger
from hdl.lanes.lut import LaneLut
from hdl.lanes.w4a16 import LaneW4a16
from senbazuru.runs.power import PowerReport, power_of
from synth.area import Libraries, SynthesisError
from synth.liberty import LibraryError
from synth.power import GROUPS
from synth.tables.common import add_sets, library_sets
from synth.timing import delays_of
from synth.yosys import YosysError
from tb.faults.mutate import Recording
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "power.md"
FIGURES = ROOT / "docs" / "power" / "lanes.json"  # those of the page, for other tables
ELEMENTS, COLUMNS, BEATS, PACKETS = 16, 2, 16, 12
SIZE = {"elements": ELEMENTS, "columns": COLUMNS, "k_max": 11008}
# A look-up serves all columns of a lane of area.md. Its table is filled once for all its beats.
LOOK_UP_COLUMNS, LOOK_UP_BEATS = 32, 512
LOOK_UP = "row look-up: "
PHASE = "kmeans"  # the name by which the benches of selecting blocks find their phase

HELP = """\
Power needs a Liberty file with power tables; the project ships none.
  make power LIBERTY=NAME=FILE[,FILE...]            prints the tables of docs/power.md
  python -m senbazuru.runs.power NAME CASE --clock-ns T --liberty FILE   measures one block
`make timing` says where open libraries are."""


def _numbers(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Packets (activations (beats, e), weights (beats, columns, e)) of normal numbers."""
    rng = np.random.default_rng([seed, 284])
    return [
        (rng.normal(size=(BEATS, ELEMENTS)), rng.normal(size=(BEATS, COLUMNS, ELEMENTS)))
        for _ in range(PACKETS)
    ]


def fp16(numbers: np.ndarray) -> np.ndarray:
    """FP16 words of ``numbers``, each rounded to nearest even."""
    return numbers.astype(np.float16).view(np.uint16).astype(np.int64)


def _integers(numbers: np.ndarray, bits: int) -> np.ndarray:
    """The largest magnitude becomes the largest integer."""
    return np.rint(numbers / np.abs(numbers).max() * ((1 << bits - 1) - 1)).astype(np.int64)


def codebook(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """16 intervals of equal probability: (their 15 edges, their means)."""
    drawn = np.sort(np.random.default_rng([seed, 285]).normal(size=1 << 14)).reshape(16, -1)
    return drawn[1:, 0], drawn.mean(1)


def _products(seed: int, shape: KllmSelectConfig) -> np.ndarray:
    """The words of the table of ``shape``: products of the means with themselves."""
    import torch  # slow to import

    from golden.kllm.products import codebook_words

    _, means = codebook(seed)
    means = (means - means[::-1]) / 2  # what they are but for the draw
    centroids = torch.as_tensor(fp16(means / means[-1]))
    words = codebook_words(centroids, centroids, shape.product, shape.antisymmetric)
    return words[: shape.rows * shape.codes].numpy()


def _select(product: str, antisymmetric: bool, seed: int) -> tuple[Any, str, dict, dict]:
    import torch  # slow to import

    from golden.kllm.blocks import dense_sums
    from golden.kllm.products import fixed_values, mirrored
    from golden.kllm.select import word_table
    from golden.kllm.vectors.lane_select import beats_of

    config = KllmPeLaneConfig(
        **SIZE, counter="select", integer_bits=0, product=product, antisymmetric=antisymmetric
    )
    shape = config.select_config
    words = _products(seed, shape)
    rows = word_table(words.tolist(), config.bits_a, shape.row_index_bits, config.product)
    every = torch.as_tensor(words)
    if antisymmetric:
        every = mirrored(fixed_values(every.reshape(-1, shape.codes))).reshape(-1) & 0xFFFF
    edges, _ = codebook(seed)
    packets = []
    for a, w in _numbers(seed):
        value = np.searchsorted(edges, a.reshape(-1), side="right")
        index = np.searchsorted(edges, w.transpose(0, 2, 1).reshape(-1, COLUMNS), side="right")
        packets.append((value, index, np.ones(len(value), dtype=bool)))
    grid = shape.grid if shape.is_fixed else None
    sums = [dense_sums(*map(torch.as_tensor, each), every, config.bits_b, grid) for each in packets]
    vectors = {
        f"{PHASE}.i": beats_of(config, packets, rows, 1),
        f"{PHASE}.o": pack((torch.cat(sums).numpy(), 32)),
    }
    params = {"phases": {PHASE: {"beats": [BEATS] * PACKETS, "integer": 0}}}
    return KllmLaneSelect(config), "tb.kllm.tb_lane_select", vectors, params


def look_up(
    product: str, antisymmetric: bool, seed: int, columns: int = LOOK_UP_COLUMNS
) -> tuple[Any, str, dict, dict]:
    """A row look-up that carries the weight indices of ``columns`` columns."""
    from golden.kllm.select import look_up_rows, word_table  # imports torch, slowly

    config = KllmSelectConfig(
        **SIZE | {"columns": columns}, integer_bits=0, product=product, antisymmetric=antisymmetric,
    )  # fmt: skip
    words = _products(seed, config)
    rows = word_table(words.tolist(), config.bits_a, config.row_index_bits, config.product)
    edges, _ = codebook(seed)
    rng = np.random.default_rng([seed, 286])
    count = LOOK_UP_BEATS
    value = np.searchsorted(edges, rng.normal(size=(count, ELEMENTS)), side="right")
    index = np.searchsorted(
        edges, rng.normal(size=(count, columns, ELEMENTS)), side="right"
    )
    inlier = np.ones((count, ELEMENTS), dtype=bool)
    passed = {"index": index, "last": np.arange(count) % BEATS == BEATS - 1}
    given = [look_up_rows(rows, each.tolist(), [True] * ELEMENTS) for each in value]
    vectors = {
        f"{PHASE}.product": layout_words(
            config.product_layout, bin=np.arange(len(words)), word=words
        ),
        f"{PHASE}.i": layout_words(config.beat_layout, value=value, inlier=inlier, **passed),
        f"{PHASE}.o": layout_words(
            config.rows_layout,
            row=np.array(given).reshape(count, ELEMENTS, config.codes),
            **passed,
        ),
    }
    params = {"phases": {PHASE: {"integer": 0, "digits": 1, "taken": 0}}}
    return KllmRowLookup(config), "tb.kllm.tb_row_lookup", vectors, params


def _lane(block, packets: list, packet_of: Callable) -> tuple[Any, str, dict, dict]:
    vectors, params = lane_vectors(block.config, {PHASE: packets}, packet_of)
    return block, "tb.lanes.tb_lane", vectors, params


def _fp16_lane(seed: int) -> tuple[Any, str, dict, dict]:
    from golden.lanes.sums import fp16_packet  # imports torch, slowly

    config = LaneFp16Config(**SIZE)
    packets = [(fp16(a), fp16(w)) for a, w in _numbers(seed)]
    packet_of = functools.partial(fp16_packet, guard_bits=config.guard_bits)
    return _lane(LaneFp16(config), packets, packet_of)


def _w4a16_lane(seed: int) -> tuple[Any, str, dict, dict]:
    from golden.lanes.sums import w4a16_packet  # imports torch, slowly

    config = LaneW4a16Config(**SIZE)
    edges, means = codebook(seed)
    words = fp16(means)
    packets = [(fp16(a), np.searchsorted(edges, w, side="right")) for a, w in _numbers(seed)]
    packet_of = functools.partial(w4a16_packet, table=words.tolist(), guard_bits=config.guard_bits)
    block, module, vectors, params = _lane(LaneW4a16(config), packets, packet_of)
    entry = layout_words(config.entry_layout, index=np.arange(16), word=words)
    return block, module, vectors | {f"{PHASE}.entry": entry}, params


def _integer_lane(bits_a: int, bits_w: int, seed: int) -> tuple[Any, str, dict, dict]:
    from golden.lanes.sums import integer_packet  # imports torch, slowly

    config = LaneIntegerConfig(**SIZE, bits_a=bits_a, bits_w=bits_w)
    packets = [(_integers(a, bits_a), _integers(w, bits_w)) for a, w in _numbers(seed)]
    return _lane(LaneInteger(config), packets, integer_packet)


def _lut_lane(bits_a: int, bits_w: int, seed: int) -> tuple[Any, str, dict, dict]:
    from golden.lanes.sums import table_packet  # imports torch, slowly

    config = LaneLutConfig(**SIZE, bits_a=bits_a, bits_w=bits_w)
    packets = []
    for a, w in _numbers(seed):
        code = _integers(w, bits_w) + (1 << bits_w - 1)
        flat = [plane_words(four, bits_w) for four in code.reshape(-1, 4).tolist()]
        planes = np.array(flat).reshape(BEATS, COLUMNS, config.groups, bits_w)
        packets.append((_integers(a, config.bits_a), planes))
    return _lane(LaneLut(config), packets, table_packet)


# label -> seed -> (block, test module, vectors, params)
LANES: dict[str, Callable[[int], tuple[Any, str, dict, dict]]] = {
    "select, no integer mode": functools.partial(_select, "rounded", False),
    "select, fixed16, no integer mode": functools.partial(_select, "fixed16", False),
    "select, fixed16, antisymmetric, no integer mode": functools.partial(_select, "fixed16", True),
    "INT8 x INT8": functools.partial(_integer_lane, 8, 8),
    "INT8 x INT4": functools.partial(_integer_lane, 8, 4),
    "INT4 x INT4": functools.partial(_integer_lane, 4, 4),
    "tables of INT8, 4 planes": functools.partial(_lut_lane, 8, 4),
    "FP16 x FP16": _fp16_lane,
    "FP16 x table of FP16 (W4A16)": _w4a16_lane,
}
# The same, of the row look-up that the lane of this label needs.
LOOK_UPS = {
    f"{LOOK_UP}select, no integer mode": functools.partial(look_up, "rounded", False),
    f"{LOOK_UP}select, fixed16, no integer mode": functools.partial(look_up, "fixed16", False),
    f"{LOOK_UP}select, fixed16, antisymmetric, no integer mode": functools.partial(
        look_up, "fixed16", True
    ),
}


def measure_lane(lane: str, libraries: Libraries, clock_ns: float, seed: int = 1) -> PowerReport:
    """Power of one lane or look-up at full rate. AssertionError: a word of the gates is wrong."""
    block, module, vectors, params = (LANES | LOOK_UPS)[lane](seed)
    arguments = {"config": block.config, "vectors": vectors, "params": params, "seed": seed}
    name = re.sub(r"(?<=.)(?=[A-Z])", "_", type(block).__name__).lower()
    recording = Recording(f"lane_power[{lane}]", block, module, arguments)
    return power_of(name, recording, libraries, clock_ns, test="full_rate")


def _shares(figure: dict[str, Any]) -> list[str]:
    total = figure["pj_per_cycle"]
    return [f"{sum(figure['groups'][group].values()) / total:.0%}" for group in GROUPS]


def _period(figure: dict[str, Any]) -> str:
    return "" if figure["ns"] is None else f"{figure['ns']:.3f}"


def energy_table(figures: dict[tuple[str, str], dict[str, Any]]) -> str:
    """``(lane, library) -> power.json``, one row each; none for a look-up."""
    rows = [
        (
            lane,
            library,
            f"{each['kge'] / COLUMNS:.2f}",
            _period(each),
            f"{each['pj_per_operation']['pj']:.4f}",
            *_shares(each),
            f"{each['toggles_per_cycle'] / ELEMENTS / COLUMNS:.1f}",
        )
        for (lane, library), each in figures.items()
        if lane in LANES
    ]
    head = (
        f"{ELEMENTS} elements, {COLUMNS} columns", "library", "kGE per column", "ns", "pJ per MAC",
        *GROUPS, "nets that toggle per MAC",
    )  # fmt: skip
    return table(head, rows)


def _look_up_pj(figure: dict[str, Any]) -> float:
    """pJ per MAC of LOOK_UP_COLUMNS columns."""
    return figure["streams"]["i"]["pj_per_transfer"] / ELEMENTS / LOOK_UP_COLUMNS


def look_up_table(figures: dict[tuple[str, str], dict[str, Any]]) -> str:
    """``(look-up, library) -> power.json``, one row each; the sum only where its lane has one."""
    rows = []
    for (name, library), each in figures.items():
        if name not in LOOK_UPS:
            continue
        own = _look_up_pj(each)
        lane = figures.get((name.removeprefix(LOOK_UP), library))
        rows.append(
            (
                name.removeprefix(LOOK_UP),
                library,
                f"{each['kge']:.1f}",
                _period(each),
                f"{each['streams']['i']['pj_per_transfer']:.2f}",
                *_shares(each),
                f"{own:.4f}",
                f"{own + lane['pj_per_operation']['pj']:.4f}" if lane else "",
            )
        )
    head = (
        f"row look-up, {LOOK_UP_COLUMNS} columns", "library", "kGE", "ns", "pJ per beat", *GROUPS,
        "pJ per MAC", "lane and look-up, pJ per MAC",
    )  # fmt: skip
    return table(head, rows)


def figures_text(figures: dict[tuple[str, str], dict[str, Any]]) -> str:
    """The figures that other tables read: per MAC, with the look-up where a lane needs one."""
    rows = []
    for (lane, library), each in figures.items():
        if lane not in LANES:
            continue
        look_up = figures.get((LOOK_UP + lane, library))
        is_whole = look_up is not None or LOOK_UP + lane not in LOOK_UPS
        parts = [each, look_up] if look_up else [each]
        pj = each["pj_per_operation"]["pj"] + (_look_up_pj(look_up) if look_up else 0)
        rows.append(
            {
                "lane": lane,
                "library": library,
                "ns": max(part["ns"] for part in parts) if is_whole else None,
                "pj_per_mac": round(pj, 6) if is_whole else None,
            }
        )
    return json.dumps({"columns": COLUMNS, "lanes": rows}, indent=2) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.lane_power", description=__doc__)
    add_sets(parser)
    parser.add_argument("--clock-ns", type=period, default=10.0, metavar="T")
    parser.add_argument("--seed", type=whole(0, 2**31 - 1), default=1)
    parser.add_argument(
        "--lane",
        action="append",
        choices=[*LANES, *LOOK_UPS],
        help="measure this lane or look-up; default: all of them",
    )
    parser.add_argument(
        "--keep", type=folder, default=Path("build/lane_power"), metavar="DIR",
        help="one file for each figure; those of lanes that this run leaves out stay in the table",
    )  # fmt: skip
    parser.add_argument(
        "--kept-only", action="store_true", help="measure nothing: the tables of the kept figures"
    )
    add_page(parser, PAGE)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ("lane_power", "look_up_power"))
    if not options.sets:
        if options.page:
            parser.error("--page needs --set: the table is of libraries")
        print(HELP)
        return 0
    figures = {}
    try:
        sets = library_sets(options.sets)
        for libraries in [] if options.kept_only else sets.values():
            delays_of(libraries)
        with claimed_folder(options.keep):
            for lane in (*LANES, *LOOK_UPS):
                for library, libraries in sets.items():
                    file = options.keep / (re.sub(r"\W+", "-", f"{lane} {library}") + ".json")
                    is_chosen = options.lane is None or lane in options.lane
                    if is_chosen and not options.kept_only:
                        report = measure_lane(lane, libraries, options.clock_ns, options.seed)
                        with replacing(file) as part:
                            part.write_text(json.dumps(report.to_json(), indent=2) + "\n")
                        print(f"  {library}: {lane}: {report.power.cycle_pj:.4f} pJ", flush=True)
                    if file.exists():
                        figures[lane, library] = json.loads(file.read_text())
    except (ConfigError, LibraryError, SynthesisError, YosysError, OSError) as error:
        print(f"senbazuru.runs.lane_power: {error}", file=sys.stderr)
        return 2
    except AssertionError as error:
        print(f"senbazuru.runs.lane_power: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    made = {"lane_power": energy_table(figures), "look_up_power": look_up_table(figures)}
    print("\n".join(made.values()))
    write_page(options.page, made)
    if options.page:
        FIGURES.parent.mkdir(exist_ok=True)
        with replacing(FIGURES) as part:
            part.write_text(figures_text(figures))
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.lane_power", main)
