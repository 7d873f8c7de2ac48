"""A bus of a DRAM: times by hand, every command against the standard's rules, and laws.

Shown to fail:

- an activation that waits for tRRD alone, or a precharge that does not wait for tRAS or tRTP;
- a read that does not wait for tRCD, or for tCCD of its group;
- a refresh that does not close its banks first, or that is left out;
- the data of two reads at once;
- the bank in the place of the group;
- the share of all reads in the place of whole periods.
"""

import dataclasses
import itertools
import random

import pytest

from golden.config import ConfigError
from sim import dram as module
from sim.dram import (
    FIELDS,
    ORDERS,
    REFRESH,
    Dram,
    Read,
    arriving,
    commands,
    dram_of,
    known,
    place,
    reads_at,
    scattered,
    sequential,
    serve,
    timings_of,
)
from sim.hardware import MEMORIES

# Round numbers, so that each rule is alone: a burst of 10, tRCD 100, tRP 50, tRAS 300.
SMALL = Dram(
    burst=10, access=32, row=128, banks=4, groups=2, trcd=100, trp=50, tras=300, trrd=20, tfaw=200,
    tccd=30, trtp=40, tcl=70, trfc=1000, trefi=10_000, trfc_bank=400,
)  # fmt: skip


def ends(reads, **choices):
    served = serve(SMALL, reads, **{"refresh": "none", **choices})
    return [wait + read.at for wait, read in zip(served.waits, reads, strict=True)]


def test_reads_by_hand():
    """Activate, read after tRCD, data after tCL; the next read of the row tCCD later."""
    assert ends([Read(0, 5)]) == [100 + 70 + 10]
    assert ends([Read(0, 5), Read(0, 5)]) == [180, 210]
    # Another group: activated tRRD later, and its data follow at once where the row is open.
    assert ends([Read(0, 5), Read(1, 5)]) == [180, 200]
    assert ends([Read(0, 5), Read(1, 5), Read(0, 5)]) == [180, 200, 210]
    # Another row: tRAS after the activation, tRP, tRCD.
    assert ends([Read(0, 5), Read(0, 6)]) == [180, 300 + 50 + 100 + 80]
    # A read that arrives late keeps its row open: tRTP after it.
    late = [Read(0, 5, 0), Read(0, 5, 290), Read(0, 6, 290)]
    assert ends(late) == [180, 290 + 80, 290 + 40 + 50 + 100 + 80]


def test_five_activations_by_hand():
    """The fifth waits for tFAW."""
    wide = dataclasses.replace(SMALL, banks=8, groups=8)
    served = serve(wide, [Read(bank, 0) for bank in range(5)], refresh="none")
    assert served.waits == (180, 200, 220, 240, 200 + 180)


def test_open_rows_come_first():
    """A read of the open row passes an older one of another row, as far as the queue sees."""
    reads = [Read(0, 5), Read(0, 6), Read(0, 5)]
    assert ends(reads) == [180, 530, 210]
    assert ends(reads, queue=1) == [180, 530, 530 + 350]


def test_refresh_by_hand():
    """A refresh at 10,000 closes the row, takes tRFC, and the row is activated again."""
    reads = [Read(0, 5, 0), Read(0, 5, 10_000)]
    assert ends(reads, refresh="all") == [180, 10_000 + 50 + 1000 + 180]
    # Of one bank each 2,500: the fifth is of bank 0 again.
    assert ends(reads, refresh="bank") == [180, 10_000 + 180 - 0]
    reads = [Read(0, 5, 0), Read(0, 5, 12_500)]
    assert ends(reads, refresh="bank") == [180, 12_500 + 400 + 180]


def broken(dram, found, refresh):
    """The first rule that commands break; empty if none. It is written apart from the model."""
    rows = dict.fromkeys(range(dram.banks))
    last = {}  # (name, bank): cycle
    acts, reads, due = [], [], dram.trefi if refresh == "all" else dram.trefi // dram.banks

    def since(name, bank):
        return last.get((name, bank), -(1 << 60))

    def row_of(bank):
        return rows[bank]

    for name, at, bank, row in found:
        if name == "ACT":
            if row_of(bank) is not None:
                return "ACT of an open bank"
            if at < since("PRE", bank) + dram.trp or at < since("REF", bank):
                return "tRP or refresh"
            if at < since("ACT", bank) + dram.trc:
                return "tRC"
            if acts and at < acts[-1] + dram.trrd:
                return "tRRD"
            if len(acts) >= 4 and at < acts[-4] + dram.tfaw:
                return "tFAW"
            acts.append(at)
            rows[bank] = row
        elif name == "PRE":
            if at < since("ACT", bank) + dram.tras or at < since("READ", bank) + dram.trtp:
                return "tRAS or tRTP"
            rows[bank] = None
        elif name == "READ":
            if row_of(bank) != row:
                return "READ of a closed row"
            if at < since("ACT", bank) + dram.trcd:
                return "tRCD"
            if reads and at < reads[-1][0] + dram.burst:
                return "data of two reads at once"
            same = [when for when, other in reads if (other - bank) % dram.groups == 0]
            if same and at < same[-1] + dram.tccd:
                return "tCCD"
            reads.append((at, bank))
        else:
            chosen = range(dram.banks) if name == "REF" else [bank]
            if any(row_of(each) is not None for each in chosen):
                return "refresh of an open bank"
            if any(at < since("PRE", each) + dram.trp for each in chosen):
                return "refresh within tRP"
            if not due <= at <= due + 2 * dram.trc + dram.trfc:
                return "refresh at the wrong time"
            due += dram.trefi if name == "REF" else dram.trefi // dram.banks
            for each in chosen:
                last["REF", each] = at + (dram.trfc if name == "REF" else dram.trfc_bank)
        last[name, bank] = at
    return ""


def streams(dram, seed):
    drawn = random.Random(seed)
    yield sequential(dram, 300, "groups")
    yield sequential(dram, 300, "columns")
    yield scattered(dram, 300, 8 * dram.access, seed, "columns")
    yield scattered(dram, 300, dram.access, seed)
    few = [Read(drawn.randrange(dram.banks), drawn.randrange(2)) for _ in range(300)]
    yield few
    yield arriving(dram, few, drawn.choice((0.1, 0.5, 0.9)), 4, seed)


def refreshes(dram):
    return REFRESH if dram.trfc_bank else ("all", "none")


@pytest.mark.parametrize("kind", [*known(), "small"])
def test_no_command_breaks_a_rule(kind):
    dram = SMALL if kind == "small" else dram_of(kind)
    for refresh, queue in itertools.product(refreshes(dram), (1, 5, 64)):
        for seed in range(2):
            for reads in streams(dram, seed):
                found = commands(dram, reads, queue=queue, refresh=refresh)
                assert broken(dram, found, refresh) == ""
                given = [each for each in found if each.name == "READ"]
                assert sorted((each.bank, each.row) for each in given) == sorted(
                    (each.bank, each.row) for each in reads
                )


@pytest.mark.parametrize("kind", known())
def test_never_above_the_pins(kind):
    dram = dram_of(kind)
    for seed in range(2):
        for reads in streams(dram, seed):
            for refresh in refreshes(dram):
                served = serve(dram, reads, refresh=refresh)
                assert served.share <= 1
                assert served.end >= len(reads) * dram.burst


@pytest.mark.parametrize("kind", known())
def test_consecutive_reads_lose_refresh_alone(kind):
    """All of the pins without refresh. With it, tRFC of each tREFI and the rows opened again."""
    dram = dram_of(kind)
    count = 6 * dram.trefi // dram.burst
    assert serve(dram, sequential(dram, 20_000), refresh="none").share > 0.999
    share = serve(dram, sequential(dram, count), refresh="all").share
    again = dram.trp + dram.trcd + dram.tras + dram.groups * dram.trrd + dram.tccd
    assert 1 - (dram.trfc + again) / dram.trefi <= share
    assert share <= 1 - dram.trfc / dram.trefi + dram.burst / dram.trefi


def test_refresh_alone_costs_trfc_of_trefi():
    """One row of one bank: no other loss than refresh, which closes the row."""
    dram = dataclasses.replace(dram_of("hbm2e"), tccd=1250)
    reads = [Read(0, 0)] * (8 * dram.trefi // dram.burst)
    lost = 1 - serve(dram, reads).share
    fixed = dram.trfc + dram.trp + dram.trcd
    assert fixed / dram.trefi <= lost <= (fixed + dram.trtp + 2 * dram.burst) / dram.trefi


@pytest.mark.parametrize("kind", known())
def test_rows_at_random_are_bounded_by_banks_and_activations(kind):
    """A read of each row: one of tRC in a bank, four of tFAW on the bus."""
    dram = dram_of(kind)
    one = [Read(0, row % 1000) for row in range(500)]
    served = serve(dram, one, queue=1, refresh="none")
    period = max(dram.trc, dram.trcd + dram.trtp + dram.trp)
    assert served.end == 499 * period + dram.trcd + dram.tcl + dram.burst
    many = scattered(dram, 4000, dram.access)
    seconds = serve(dram, many, refresh="none").end
    activations = 0.99 * len(many)  # a few rows may meet
    assert seconds >= activations * max(dram.trc / dram.banks, dram.tfaw / 4, dram.trrd)


def test_more_choice_is_not_slower():
    """A longer queue gives at least the share of a shorter one, within a thousandth."""
    dram = dram_of("lpddr5x")
    reads = scattered(dram, 4000, 256)
    found = [serve(dram, reads, queue=queue, refresh="none").share for queue in (1, 4, 16, 64)]
    assert all(b >= a - 1e-3 for a, b in itertools.pairwise(found))


def test_waits_grow_with_the_load():
    dram = dram_of("hbm2e")
    reads = scattered(dram, 4000, 256, order="columns")
    waits = [
        serve(dram, arriving(dram, reads, load, 8), refresh="none").mean
        for load in (0.05, 0.4, 0.7, 0.9)
    ]
    assert waits == sorted(waits)
    alone = serve(dram, [Read(0, 0)], refresh="none").mean
    assert alone == pytest.approx((14_000 + 14_000 + 1250) / 1e3)
    assert alone < waits[0] < 2 * alone
    assert serve(dram, reads).percentile(1.0) * 1e3 == max(serve(dram, reads).waits)


def test_whole_periods_of_refresh():
    """Reads that end within a period count as far as the last refresh."""
    reads = sequential(SMALL, 10_000)
    shares = [serve(SMALL, reads[:count]).share for count in (6_000, 6_500, 7_000)]
    assert max(shares) - min(shares) < 2e-3


@pytest.mark.parametrize("order", ORDERS)
def test_places_of_consecutive_bytes(order):
    """Each place once: rows of all banks are full before the next ones."""
    bursts = SMALL.banks * SMALL.row // SMALL.access
    found = [place(SMALL, each * 32, order) for each in range(2 * bursts)]
    assert all(found.count(each) == 4 for each in set(found))
    assert {row for _, row in found[:bursts]} == {0}
    groups = [bank % 2 for bank, _ in found[:4]]
    assert groups == ([0, 1, 0, 1] if order == "groups" else [0, 0, 0, 0])
    assert reads_at(SMALL, [0, 96], order) == [Read(*found[0]), Read(*found[3])]


def test_timings_have_sources_and_memories():
    for kind in known():
        assert (MEMORIES / f"{kind}.json").is_file()
        found = timings_of(kind)
        assert set(found) == set(FIELDS)
        dram = dram_of(kind)
        faster = dram_of(kind, 2 * dram.access / dram.burst * 1e12 * found["buses"].base)
        assert faster.burst in (dram.burst // 2, -(-dram.burst // 2))


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (lambda: dram_of("sram"), "kind of memory must be a known name"),
        (lambda: dram_of("hbm2", 0.0), "bandwidth must be above 0"),
        (lambda: serve(SMALL, []), "reads must be 1 or more"),
        (lambda: serve(SMALL, [Read(4, 0)]), "read 0: bank must be 0..3, not 4"),
        (lambda: serve(SMALL, [Read(0, 0, 5), Read(0, 0, 4)]), "read 1: must not arrive before"),
        (lambda: serve(SMALL, [Read(0, 0)], queue=0), "queue must be 1..1024, not 0"),
        (lambda: serve(SMALL, [Read(0, 0)], refresh="some"), "refresh must be one of all, bank"),
        (lambda: serve(dram_of("ddr4"), [Read(0, 0)], refresh="bank"), "trfc_bank is 0"),
        (lambda: place(SMALL, 0, "rows"), "order must be one of groups, columns"),
        (lambda: scattered(SMALL, 1, 48), "piece must be a multiple of 32 bytes, not 48"),
        (lambda: arriving(SMALL, [Read(0, 0)], 0.0, 1), "load must be above 0"),
        (lambda: arriving(SMALL, [Read(0, 0)], 0.5, 0), "together must be 1 or more"),
        (lambda: dataclasses.replace(SMALL, groups=8), "groups must be at most the 4 banks"),
        (lambda: dataclasses.replace(SMALL, access=256), "access must be at most the 128 bytes"),
        (lambda: dataclasses.replace(SMALL, trfc=10_000), "trfc must be below the 10000 ps"),
        (lambda: dataclasses.replace(SMALL, trfc_bank=10_000), "trfc_bank must be below"),
    ],
)
def test_odd_numbers_are_one_line(made, error):
    with pytest.raises(ConfigError, match=error) as found:
        made()
    assert "\n" not in str(found.value)


def test_a_file_without_a_timing_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    (tmp_path / "hbm2.json").write_text('{"about": "a"}')
    with pytest.raises(ConfigError, match="timings of hbm2 lacks buses"):
        timings_of("hbm2")
    (tmp_path / "hbm2.json").write_text("{")
    with pytest.raises(ConfigError, match=r"hbm2\.json: Expecting"):
        timings_of("hbm2")
