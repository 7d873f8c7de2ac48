"""synth.tables.million: where area times cycles of two schemes cross, and the table by formula.

Shown to fail:

- the crossing one key late, or that of the other scheme;
- RAMs that count in the logic alone;
- a section of the page that is not the formula's.
"""

from golden.markers import fill
from synth.compare import PAGE
from synth.modules import Cost
from synth.tables.common import SRAM_UM2_PER_BIT
from synth.tables.million import CASES, SIDES, Scheme, crossing_keys, operations_table, rival_tables


def scheme(um2: float, cycles, ram_bits: int = 0, cacti: float = 0.0) -> Scheme:
    return Scheme(Cost(um2=um2 * 1e6, ram_bits=ram_bits), 1.0, 1.0, cacti, cycles)


def test_crossing():
    """A walk of 2,048 cycles and a third of the area: equal at 2,048 / 3 keys."""
    first = scheme(1.0, lambda keys: max(2048, keys))
    rival = scheme(3.0, lambda keys: keys)
    assert crossing_keys(first, rival, "logic") == 683
    assert first.product("logic", 683) <= rival.product("logic", 683)
    assert first.product("logic", 682) > rival.product("logic", 682)
    assert crossing_keys(scheme(1.0, lambda keys: keys), rival, "logic") == 1
    assert crossing_keys(scheme(4.0, lambda keys: max(2048, keys)), rival, "logic") is None


def test_ram_counts():
    with_ram = scheme(1.0, lambda keys: keys, ram_bits=10**6, cacti=0.5)
    assert with_ram.mm2("logic") == 1.0
    assert with_ram.mm2("CACTI") == 1.5
    for which, per_bit in SRAM_UM2_PER_BIT.items():
        assert with_ram.mm2(which) == 1.0 + per_bit
    rival = scheme(1.2, lambda keys: keys)
    assert crossing_keys(with_ram, rival, "logic") == 1
    assert crossing_keys(with_ram, rival, "CACTI") is None


def test_tables():
    schemes = {
        (side, which): scheme(1.0 + (which == "decoded"), lambda keys: keys)
        for side, pair in SIDES.items()
        for which in pair
    } | {("", "a store"): scheme(0.5, lambda keys: 0, cacti=1.0)}
    made = rival_tables(dict.fromkeys(CASES, schemes))
    assert made["million_rivals"].count("\n") == 2 + 4 * len(CASES)
    assert "| (64, 8), 1 query: K, decoded | 2,000 | 0 | 2.00 |" in made["million_rivals"]
    row = "| (64, 8), 1 query: V, logic alone | 0.50 | 0.50 | 0.50 | 0.50 | 1 |\n"
    assert row in made["million_crossings"]
    both = "| (64, 8), 1 query: V, RAM: CACTI, a store in both | 0.29 | 0.29 | 0.29 | 0.29 | 1 |\n"
    assert both in made["million_crossings"]


def test_page():
    """The table by formula needs no mapping."""
    page = PAGE.read_text()
    assert fill(page, operations_table()) == page
