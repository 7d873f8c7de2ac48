"""VQ-LLM: exchange and buffer by the number of steps, and the tiers against their conflicts."""

import dataclasses
import itertools
from collections.abc import Sequence

from golden.markers import table
from golden.sram import ram
from golden.vqllm.config import NAMED, ExchangeShape
from hdl.vqllm.cache.cache import VqCodebookCache
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from hdl.vqllm.exchange import VqExchange, VqExchangeConfig
from hdl.vqllm.layout_buffer import VqLayoutBuffer, VqLayoutBufferConfig
from synth.area import AreaReport, load_libraries
from synth.liberty import Library
from synth.tables.common import SRAM_UM2_PER_BIT, Map, Tables, mapper

_LANES = 16
_SIZES = {1: (2, 4, 8, 16), 2: (4, 8, 16), 4: (8, 16)}  # of vectors, by the elements needed
_ASSUMPTIONS = ("CACTI", *SRAM_UM2_PER_BIT)
# Of each cache: entries in registers and banks.
_TIERS = {
    "gptvq2": ((0, 16), (8, 16), (32, 16), (128, 16), (0, 32)),
    "aqlm3": ((0, 16), (8, 16), (32, 16), (0, 32)),
}
_LOOKUPS = {"gptvq2": 16, "aqlm3": 8}


@dataclasses.dataclass(frozen=True)
class Areas:
    """um2 at 28 nm of logic, and of logic and SRAM by each assumption."""

    logic: float
    gates: float  # of the logic: without flip-flops
    whole: dict[str, float]
    flip_flops: int
    bits: int  # of SRAM

    @classmethod
    def of(cls, report: AreaReport, library: Library) -> "Areas":
        cacti = sum(
            macro.instances * ram(macro.ports, macro.depth, macro.width).um2
            for macro in report.macros
        )
        rams = {"CACTI": cacti} | {
            name: report.macro_bits * per_bit for name, per_bit in SRAM_UM2_PER_BIT.items()
        }
        logic = report.um2_28nm
        registers = sum(
            library.cells[name].area * count
            for name, count in report.cell_counts.items()
            if library.cells[name].is_flip_flop
        )
        whole = {name: logic + each for name, each in rams.items()}
        gates = logic * (1 - registers / report.um2)
        return cls(logic, gates, whole, report.flip_flops, report.macro_bits)


def crossing(steps: Sequence[int], first: Sequence[float], second: Sequence[float]) -> str:
    """Finds the number of steps from which ``second`` is smaller; between the steps, on a line."""
    more = [a - b for a, b in zip(first, second, strict=True)]
    if more[0] > 0:
        return f"below {steps[0]}"
    for (low, high), (a, b) in zip(
        itertools.pairwise(steps), itertools.pairwise(more), strict=True
    ):
        if b > 0:
            return f"{low + (high - low) * a / (a - b):.1f}"
    return f"above {steps[-1]}"


def exchange_tables(map_block: Map, library: Library) -> dict[str, str]:
    """Sections ``vq_exchange`` and ``vq_crossing``: um2 at 28 nm of 16 lanes."""
    rows, crossings = [], []
    for need, sizes in _SIZES.items():
        shapes = [ExchangeShape(size=size, need=need, lanes=_LANES) for size in sizes]
        found: dict[str, list[Areas]] = {"exchange": [], "in place": [], "buffer": []}
        for shape in shapes:
            blocks = {
                "exchange": VqExchange(VqExchangeConfig(shape=shape)),
                "variable": VqExchange(VqExchangeConfig(shape=shape, variable=True)),
                "in place": VqExchange(VqExchangeConfig(shape=shape, in_place=True)),
                "buffer": VqLayoutBuffer(VqLayoutBufferConfig(shape=shape)),
            }
            areas = {
                name: Areas.of(map_block(block, f"vq_{name.replace(' ', '_')}"), library)
                for name, block in blocks.items()
            }
            for name, each in found.items():
                each.append(areas[name])
            buffer = areas["buffer"]
            rows.append(
                (
                    f"{shape.size} to {need}",
                    f"{shape.steps}",
                    *(f"{areas[name].logic:,.0f}" for name in ("exchange", "variable", "in place")),
                    f"{areas['exchange'].flip_flops:,}",
                    f"{areas['exchange'].gates:,.0f}",
                    f"{buffer.logic:,.0f}",
                    f"{buffer.bits:,}",
                    *(f"{buffer.whole[name]:,.0f}" for name in _ASSUMPTIONS),
                )
            )
        steps = [shape.steps for shape in shapes]
        for name in ("exchange", "in place"):
            logic = [each.logic for each in found[name]]
            places = [
                crossing(steps, logic, [each.whole[ram] for each in found["buffer"]])
                for ram in _ASSUMPTIONS
            ]
            crossings.append((f"{name}, to {need}", *places))
    head = (
        "elements", "steps", "exchange", "its pieces variable", "in place",
        "flip-flops of exchange", "exchange without them", "buffer, logic", "SRAM bits",
        *(f"buffer, {name}" for name in _ASSUMPTIONS),
    )  # fmt: skip
    return {
        "vq_exchange": table(head, rows),
        "vq_crossing": table(("steps at which the buffer gets smaller", *_ASSUMPTIONS), crossings),
    }


def cache_tables(map_block: Map, library: Library) -> dict[str, str]:
    """Section ``vq_tiers``: um2 at 28 nm of a cache, and the cycles of real look-ups."""
    from synth.tables.look_ups import real_matrix, tiers  # torch, only now

    rows = []
    for name, sizes in _TIERS.items():
        matrix, base = real_matrix(name), None
        for registers, banks in sizes:
            vq, lookups = NAMED[name], _LOOKUPS[name]
            config = VqCodebookCacheConfig(
                vq=vq, lookups=lookups, shared=vq.entries, registers=registers, banks=banks
            )
            areas = Areas.of(map_block(VqCodebookCache(config), "vq_codebook_cache"), library)
            served = tiers(matrix, lookups, registers, banks)
            base = base or (areas, served)
            more = areas.whole["CACTI"] - base[0].whole["CACTI"]
            fewer = (base[1].conflicts - served.conflicts) / served.beats
            rows.append(
                (
                    f"`{name}`, {registers} in registers, {banks} banks",
                    f"{areas.logic:,.0f}",
                    f"{areas.flip_flops:,}",
                    f"{areas.bits:,}",
                    f"{areas.whole['CACTI']:,.0f}",
                    f"{areas.whole['CACTI'] / base[0].whole['CACTI']:.2f}",
                    f"{served.share:.1%}",
                    f"{served.conflicts / served.beats:.3f}",
                    f"{served.cycles / served.beats:.3f}",
                    f"{more / fewer:,.0f}" if fewer > 0 else "",
                )
            )
    head = (
        "cache", "logic", "flip-flops", "SRAM bits", "with SRAM, CACTI", "ratio",
        "look-ups in registers", "conflicts per beat", "cycles per beat",
        "um2 per conflict removed from a beat",
    )  # fmt: skip
    return {"vq_tiers": table(head, rows)}


def _make(options) -> tuple[dict[str, str], float]:
    libraries = load_libraries()
    map_block, library = mapper(libraries), libraries.library
    return exchange_tables(map_block, library) | cache_tables(map_block, library), 0.0


TABLES = {
    "vqllm": Tables(("vq_exchange", "vq_crossing", "vq_tiers"), _make, page="vqllm-area.md"),
}
