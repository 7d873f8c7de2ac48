"""MILLION: tables and bins against decoded keys and values, by formula and by area times cycles."""

import dataclasses
from collections.abc import Callable, Sequence

from golden.markers import table
from golden.million.config import NAMED, PqShape, RateShape
from golden.million.operations import SCHEMES, crossing, once
from golden.million.timing import decode_values, value_finish, value_interval
from hdl.back.verilog import convert
from hdl.block import Block
from hdl.index.codebook_store import IndexCodebookStore, IndexCodebookStoreConfig
from hdl.million.decode_keys import MillionDecodeKeys, MillionDecodeKeysConfig
from hdl.million.decode_values import MillionDecodeValues, MillionDecodeValuesConfig
from hdl.million.score_engine import MillionScoreEngine, MillionScoreEngineConfig
from hdl.million.table_builder import MillionTableBuilder, MillionTableBuilderConfig
from hdl.million.value_engine import MillionValueEngine, MillionValueEngineConfig
from synth.area import load_libraries
from synth.modules import Cost, MappedDesign, map_modules
from synth.tables.common import SRAM_UM2_PER_BIT, Tables, cacti_mm2, mm2

QUERIES = (1, 4)
KEYS = (128, 1024, 8192, 32768)
KEYS_MAX = KEYS[-1]
# What is compared: shape and queries side by side.
CASES = {
    "(64, 8), 4 queries": (NAMED["4b"], RateShape(queries=4)),
    "(64, 8), 1 query": (NAMED["4b"], RateShape(queries=1)),
    "(32, 12), 4 queries": (NAMED["3b"], RateShape(queries=4)),
}
SIDES = {"K": ("tables", "decoded"), "V": ("bins", "decoded")}
_STORE = "a store"  # of the codebook, with which an encoder works
_RAM = "CACTI"  # or an assumption of SRAM_UM2_PER_BIT
# Rows of the crossings: what counts of the RAMs, and whether the rival has a store too.
_COUNTED = {
    "logic alone": ("logic", False),
    "RAM: CACTI": (_RAM, False),
    "RAM: CACTI, a store in both": (_RAM, True),
    "RAM: middle": ("middle", False),
    "RAM: middle, a store in both": ("middle", True),
}


def operations_table() -> dict[str, str]:
    """Section ``million_operations``: of one key, by formula."""
    rows = []
    for pq in NAMED.values():
        name = f"({pq.subspaces}, {pq.bits}) at {pq.head_dim}"
        least = crossing(pq)
        for (side, scheme), work in SCHEMES.items():
            one = work(pq, 1)
            is_rival = scheme == "decoded"
            rows.append(
                (
                    f"{name}: {side}, {scheme}",
                    f"{one.reads}",
                    *(f"{work(pq, queries).sram_bits:,}" for queries in QUERIES),
                    f"{one.additions}",
                    f"{one.products}",
                    "" if is_rival else f"{once(pq):,}",
                    "" if is_rival or least is None else f"{int(least):,}",
                )
            )
    head = (
        "per key", "reads", *(f"SRAM bits, {n} quer{'y' if n == 1 else 'ies'}" for n in QUERIES),
        "additions per query", "products per query", "products once per query",
        "operations equal at keys",
    )  # fmt: skip
    return {"million_operations": table(head, rows)}


@dataclasses.dataclass(frozen=True)
class Scheme:
    """One side of a comparison: what it takes, and its cycles of a job of some keys."""

    cost: Cost
    scale_28nm: float
    nand2_um2: float
    cacti_mm2: float  # of all RAMs
    cycles: Callable[[int], int]

    def mm2(self, which: str) -> float:
        """Logic and RAM; ``which``: whose figures of the RAM, or ``logic`` for none."""
        logic, rams = mm2(self.cost, self.scale_28nm)
        return logic + {**rams, _RAM: self.cacti_mm2, "logic": 0.0}[which]

    def plus(self, other: "Scheme") -> "Scheme":
        """Adds the parts of ``other``; the cycles remain its own."""
        return dataclasses.replace(
            self, cost=self.cost + other.cost, cacti_mm2=self.cacti_mm2 + other.cacti_mm2
        )

    def product(self, which: str, keys: int) -> float:
        """mm2 x cycles."""
        return self.mm2(which) * self.cycles(keys)


def crossing_keys(first: Scheme, rival: Scheme, which: str) -> int | None:
    """Keys from which ``first`` has no larger area times cycles; None: not up to KEYS_MAX.

    More keys never make it worse: its cycles are those of the rival but for a walk of fixed length.
    """
    low, high = 0, KEYS_MAX + 1
    while high - low > 1:
        middle = (low + high) // 2
        if first.product(which, middle) <= rival.product(which, middle):
            high = middle
        else:
            low = middle
    return high if high <= KEYS_MAX else None


def _cycles(pq: PqShape, rate: RateShape) -> dict[tuple[str, str], Callable[[int], int]]:
    """Cycles of a job in steady state, all that can overlap overlapped."""
    parts = rate.parts(pq)
    walk = rate.queries * pq.entries * parts  # of all codebook words, for each query
    finish = value_finish(pq.entries, parts, rate.queries)
    drain = decode_values().latency + parts * rate.queries

    def beats(keys: int) -> int:
        return -(-keys // rate.keys)

    return {
        ("K", "tables"): lambda keys: max(walk, beats(keys)),
        ("K", "decoded"): beats,
        ("V", "bins"): lambda keys: value_interval(beats(keys), finish),
        ("V", "decoded"): lambda keys: beats(keys) + drain,
        ("", _STORE): lambda keys: 0,
    }


def _blocks(pq: PqShape, rate: RateShape) -> dict[tuple[str, str], Sequence[Block]]:
    """The blocks of each scheme: engines, and the codebook where they do not hold it."""
    store = IndexCodebookStoreConfig(
        macs=rate.macs, parts=rate.parts(pq), entries=pq.entries
    )
    return {
        ("K", "tables"): (
            MillionTableBuilder(MillionTableBuilderConfig(pq=pq, rate=rate)),
            MillionScoreEngine(MillionScoreEngineConfig(pq=pq, rate=rate)),
            IndexCodebookStore(store),
        ),
        ("K", "decoded"): (MillionDecodeKeys(MillionDecodeKeysConfig(pq=pq, rate=rate)),),
        ("V", "bins"): (
            MillionValueEngine(MillionValueEngineConfig(pq=pq, rate=rate)),
            IndexCodebookStore(store),
        ),
        ("V", "decoded"): (MillionDecodeValues(MillionDecodeValuesConfig(pq=pq, rate=rate)),),
        ("", _STORE): (IndexCodebookStore(store),),
    }


def _scheme(designs: Sequence[MappedDesign], cycles: Callable[[int], int]) -> Scheme:
    return Scheme(
        sum((design.total() for design in designs), Cost()),
        designs[0].scale_28nm,
        designs[0].nand2_um2,
        sum(cacti_mm2(design) for design in designs),
        cycles,
    )


def rival_tables(cases: dict[str, dict[tuple[str, str], Scheme]]) -> dict[str, str]:
    """Sections ``million_rivals`` and ``million_crossings``: by case, then side and scheme.

    Tables and bins take a walk over a store of the codebook, so they have one. Decoding has the
    codebook in its banks, whose ports are busy: an encoder there needs a store in addition.
    """
    areas, products = [], []
    for name, schemes in cases.items():
        for (side, which), scheme in schemes.items():
            cost = scheme.cost
            if not side:
                continue
            areas.append(
                (
                    f"{name}: {side}, {which}",
                    f"{cost.um2 / scheme.nand2_um2 / 1000:,.0f}",
                    f"{cost.flip_flops:,}",
                    f"{scheme.mm2('logic'):.2f}",
                    f"{cost.ram_bits / 8192:,.0f}",
                    f"{scheme.cacti_mm2:.2f}",
                    f"{scheme.mm2(_RAM):.2f}",
                    *(f"{scheme.mm2(assumed):.2f}" for assumed in SRAM_UM2_PER_BIT),
                )
            )
        for side, (first, rival) in SIDES.items():
            one, plain = schemes[side, first], schemes[side, rival]
            for label, (which, has_store) in _COUNTED.items():
                other = plain.plus(schemes["", _STORE]) if has_store else plain
                ratios = (f"{one.product(which, n) / other.product(which, n):.2f}" for n in KEYS)
                found = crossing_keys(one, other, which)
                products.append(
                    (f"{name}: {side}, {label}", *ratios, "none" if found is None else f"{found:,}")
                )
    area_head = (
        "scheme", "kGE", "flip-flops", "logic, mm2", "RAM, KB", "RAM, CACTI, mm2", "all, CACTI",
        *(f"all, {assumed}" for assumed in SRAM_UM2_PER_BIT),
    )  # fmt: skip
    product_head = (
        "area x cycles / those of decoding", *(f"{n:,} keys" for n in KEYS), "1.00 from keys",
    )  # fmt: skip
    return {
        "million_rivals": table(area_head, areas),
        "million_crossings": table(product_head, products),
    }


def _map_rivals() -> tuple[dict[str, str], float]:
    """All tables, seconds of mapping."""
    libraries, seconds = load_libraries(), 0.0
    cases: dict[str, dict[tuple[str, str], Scheme]] = {}
    for name, (pq, rate) in CASES.items():
        cycles = _cycles(pq, rate)
        cases[name] = {}
        for key, blocks in _blocks(pq, rate).items():
            designs = [map_modules(convert(block, "part"), libraries) for block in blocks]
            seconds += sum(design.seconds for design in designs)
            cases[name][key] = scheme = _scheme(designs, cycles[key])
            label = " ".join((name, *key))
            print(f"  {label}: {scheme.mm2('logic'):.3f} mm2 of logic, 28 nm eq.", flush=True)
    return operations_table() | rival_tables(cases), seconds


TABLES = {
    "million": Tables(
        ("million_operations", "million_rivals", "million_crossings"),
        lambda options: _map_rivals(),
    ),
}
