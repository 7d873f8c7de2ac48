"""Streams of a chip's memory, the rows of DRAMsim3, and the tables of docs/sim.md.

Shown to fail:

- the page of a run's start in the place of the burst's;
- a bus that gets the bytes of all buses;
- a port that does not wait for the burst before;
- a mean of shares by bytes in the place of that by times;
- columns of HBM as single words.
"""

import dataclasses
import stat

import pytest

from golden.config import ConfigError
from sim import dram_rows, memory
from sim.dram import ORDERS, Dram, Read, dram_of, in_flight, sequential, serve
from sim.dram_rows import FIELDS, STREAMS, compared, rows_of
from sim.engine import engine_of
from sim.fit import dramsim
from sim.memory import bus_of, cache_stream, mixed
from sim.requests import Read as PageRead
from sim.requests import Run, Window, bursts_of, read_of, walk

SLOW = Dram(
    burst=10, access=32, row=1024, banks=4, groups=2, trcd=100, trp=50, tras=300, trrd=20, tfaw=200,
    tccd=10, trtp=40, tcl=70, trfc=1000, trefi=1 << 39, trfc_bank=0,
)  # fmt: skip


def test_bursts_cover_each_run_once():
    """Bursts are in pages, follow each other along the chain, and their words are the runs'."""
    window = Window(page_bytes=512, burst_beats=8, latency=20)
    reads = [PageRead(Run(5, 3), ((Run(70, 10), Run(9)), (Run(20), Run(4, 15))))] * 3
    found = bursts_of(window, reads)
    assert [each.at for each in found] == sorted(each.at for each in found)
    assert len(found) == walk(window, reads).bursts
    runs = {}
    for each in found:
        assert 0 <= each.position < each.position + each.words <= window.page_words
        runs.setdefault((each.kind, each.run), []).append(each)
    expected = {}
    for number, read in enumerate(reads):
        expected[2, number] = read.scale
        for head, parts in enumerate(read.heads):
            for kind, run in enumerate(parts):
                expected[kind, 2 * number + head] = run
    assert runs.keys() == expected.keys()
    for key, run in expected.items():
        at = run.position
        for each in runs[key]:
            assert (each.page, each.position) == divmod(at, window.page_words)
            at += each.words
        assert at == run.position + run.words
    with pytest.raises(ConfigError, match="reads must be READs with heads"):
        bursts_of(window, [])


def test_a_bus_gets_its_part_of_the_pages():
    """All buses together get the words of all cores, and no byte comes twice."""
    dram, cores = dram_of("hbm2e"), 3
    window = Window()
    read = read_of(window, memory._KV, memory._TOKENS, memory._OUTLIERS, 1)
    words = cores * sum(read.words)
    alone = cache_stream(dram, 1, 256, "columns", cores=cores)
    assert len(alone) == words * window.word_bytes // dram.access
    many = [len(cache_stream(dram, 8, 256, "columns", cores=cores, seed=s)) for s in range(4)]
    assert sum(many) / 4 == pytest.approx(len(alone) / 8, rel=0.1)
    # A piece of 256 bytes is eight reads of one row.
    bank, row, _ = alone[0]
    assert alone[:8] == [Read(bank, row)] * 8


def test_bytes_of_a_bus_follow_each_other(monkeypatch):
    """Page 5, two buses of 256 bytes in turn: the first one has every other piece."""
    dram = dram_of("hbm2")
    seen = []
    monkeypatch.setattr(memory, "place", lambda _, address, order: seen.append(address) or (0, 0))
    monkeypatch.setattr(memory.random.Random, "randrange", lambda *_: 5)
    cache_stream(dram, 2, 256, "groups", cores=1)
    base = 5 * 4096 // 2
    assert {each for each in seen if each < base + 512} == set(range(base, base + 512, 32))
    assert max(seen) < base + 2048


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (lambda: cache_stream(dram_of("hbm2"), 2, 48, "groups"), "interleave must be a multiple"),
        (lambda: cache_stream(dram_of("hbm2"), 2, 8192, "groups"), "divides a page of 4096"),
        (lambda: cache_stream(dram_of("hbm2"), 0, 256, "groups"), "buses must be 1 or more"),
        (lambda: in_flight(SLOW, [Read(0, 0)], 0, 1, 500), "together must be 1..1024, not 0"),
        (lambda: in_flight(SLOW, [Read(0, 0)], 1, 2000, 500), "flights must be 1..1024"),
        (lambda: in_flight(SLOW, [Read(0, 0)], 1, 1, 100), "latency must be 170 ps or more"),
        (lambda: bus_of(engine_of("a40")), "kind of memory must be a known name"),
    ],
)
def test_odd_choices_are_one_line(made, error):
    with pytest.raises(ConfigError, match=error) as found:
        made()
    assert "\n" not in str(found.value)


def test_bursts_in_flight_by_hand():
    """One burst of four reads at a time: 4 bursts of data, tCL, and 330 ps of way."""
    reads = [Read(0, 0)] * 4000
    period = 4 * 10 + 70 + (500 - 170)
    assert in_flight(SLOW, reads, 4, 1, 500) == pytest.approx(40 / period, rel=1e-2)
    assert in_flight(SLOW, reads, 4, 2, 500) == pytest.approx(80 / period, rel=1e-2)
    assert in_flight(SLOW, reads, 4, 12, 500) == pytest.approx(1, rel=1e-2)


def test_a_port_with_enough_in_flight_gets_what_the_bus_gives():
    dram = dram_of("hbm2")
    reads = sequential(dram, 12_000)
    assert in_flight(dram, reads, 64, 8, 100_000) == pytest.approx(
        serve(dram, reads).share, rel=0.01
    )
    shares = [in_flight(dram, reads, 64, flights, 100_000) for flights in (1, 2, 8)]
    assert shares == sorted(shares)


def test_mixed_shares_are_of_times():
    """Half of the bytes at half of the speed take two thirds of the time."""
    assert mixed({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 0.5}) == pytest.approx(2 / 3)
    assert mixed({"a": 5.0, "b": 0.0}, {"a": 0.9, "b": 0.1}) == pytest.approx(0.9)


def test_buses_of_chips():
    dram, buses = bus_of(engine_of("oaken-lpddr"))
    assert (buses, dram.burst) == (64, round(32 / 17.1875e-3))
    dram, buses = bus_of(engine_of("kllm-a4"))
    assert (buses, dram.burst) == (48, 1000)


def test_tables_with_few_reads(monkeypatch):
    """Each table has its rows. The numbers are those of the streams, which have their own tests."""
    monkeypatch.setattr(memory, "_READS", 400)
    monkeypatch.setattr(memory, "_CORES", 2)
    monkeypatch.setattr(memory, "_CASES", (("all", 256),))
    monkeypatch.setattr(memory, "_CHIPS", (("kllm-a4", 1, 128), ("oaken-hbm", 16, 1024)))
    monkeypatch.setattr(memory, "known", lambda: {"hbm2e": None, "ddr4": None})
    for each in (memory.sequential_share, memory.cache_share, memory.port_share):
        each.cache_clear()
    try:
        assert len(memory.shares().splitlines()) == 2 + 3
        assert len(memory.loaded().splitlines()) == 2 + 4
        lines = memory.chips().splitlines()
        assert len(lines) == 2 + 2
        assert lines[2].startswith("| kllm-a4, batch 1 after 128 | 85.0 % | 311 | ")
    finally:
        for each in (memory.sequential_share, memory.cache_share, memory.port_share):
            each.cache_clear()


# DRAMsim3


def test_dramsim3_agrees():
    """Each stream's time, and the mean of all. No row was used to fit anything."""
    rows = rows_of()
    errors = [row.predicted / row.measured - 1 for row in rows]
    assert len(errors) == 2 * len(STREAMS)
    assert max(map(abs, errors)) < 0.09
    assert sum(map(abs, errors)) / len(errors) < 0.03
    text = compared(rows)
    assert text.count("| HBM2_8Gb_x128, ") == text.count("| DDR4_8Gb_x16_3200, ") == len(STREAMS)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda line: line.replace("sequential groups", "other"), "stream must be one of"),
        (
            lambda line: line.replace("HBM2_8Gb_x128,sequential groups,", "a,sequential groups,x"),
            "x",
        ),
        (lambda line: line.replace(",40000.0,", ",0,"), "reads and ns must be above 0"),
        (lambda line: line.replace(",40000.0,2000,", ",40000.0,0,"), "burst must be 1"),
    ],
)
def test_an_odd_row_is_one_line(tmp_path, change, error):
    lines = dram_rows.FILE.read_text().splitlines()[:2]
    path = tmp_path / "dram.csv"
    path.write_text(f"{lines[0]}\n{change(lines[1])}\n")
    with pytest.raises(ConfigError, match=error) as found:
        rows_of(path)
    assert str(found.value).startswith("dram.csv:2: ")
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match=r"dram\.csv: fields must be config, stream"):
        rows_of(path)
    path.write_text(lines[0] + "\n")
    with pytest.raises(ConfigError, match="has no rows"):
        rows_of(path)


CONFIG = """[dram_structure]
protocol = HBM
bankgroups = 4
banks_per_group = 4
rows = 32768
columns = 64
device_width = 128
BL = 4

[timing]
tCK = 1
CL = 14
tRCDRD = 14 ; a comment
tRP = 14
tRAS = 34
tRFC = 260
tREFI = 3900
tRRD_S = 4
tFAW = 30
tCCD_L = 2
tRTP_L = 6

[system]
bus_width = 128
"""


def test_a_configuration_of_dramsim3(tmp_path):
    """The text states 64 bytes in 2 ns and rows of 2 KiB."""
    path = tmp_path / "HBM.ini"
    path.write_text(CONFIG)
    found = dramsim.source_of(path)
    assert dataclasses.asdict(found.dram) == dataclasses.asdict(
        Dram(
            burst=2000, access=64, row=2048, banks=16, groups=4, trcd=14_000, trp=14_000,
            tras=34_000, trrd=4_000, tfaw=30_000, tccd=2_000, trtp=6_000, tcl=14_000,
            trfc=260_000, trefi=3_900_000, trfc_bank=0,
        )
    )  # fmt: skip
    assert (found.cycle, found.columns) == (1000, 32)
    lines = list(dramsim._lines(found, [Read(5, 3), Read(5, 3), Read(0, 0)]))
    # Row 3, bank 1 of group 1: ((3 * 4 + 1) * 4 + 1) * 32 columns of 64 bytes.
    assert lines == ["0x1a800 READ 0\n", "0x1a840 READ 0\n", "0x0 READ 0\n"]


def test_a_run_of_dramsim3(tmp_path, capsys):
    """A program that writes DRAMsim3's file: reads of the trace become rows."""
    config, binary = tmp_path / "HBM.ini", tmp_path / "dramsim3main"
    config.write_text(CONFIG)
    binary.write_text(
        "#!/bin/sh\n"
        "grep -q 'address_mapping = rochrababgco' config.ini || exit 3\n"
        "done=$(($(wc -l < trace.txt) - 1000))\n"
        'echo "{\\"0\\": {\\"num_reads_done\\": $done}}" > dramsim3.json\n'
    )
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    arguments = ["--binary", str(binary), "--config", str(config), "--commit", "c"]
    assert dramsim.main([*arguments, "--cycles", "5000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ",".join(FIELDS)
    assert [line.split(",")[1] for line in lines[1:]] == list(STREAMS)
    assert lines[1].startswith("HBM,sequential groups,2500,5000.0,2000,64,2048,16,4,14000,")
    binary.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    assert dramsim.main(arguments) == 2
    assert capsys.readouterr().err == "sim.fit.dramsim: dramsim3main: broken\n"
    config.write_text(CONFIG.replace("tRFC = 260\n", ""))
    assert dramsim.main(arguments) == 2
    assert capsys.readouterr().err.startswith("sim.fit.dramsim: HBM.ini: StopIteration")


def test_orders_are_known():
    assert ORDERS == ("groups", "columns")
