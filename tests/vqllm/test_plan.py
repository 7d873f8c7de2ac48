"""Plans: expected cycles against golden on drawn codes, the choice against all plans of a space.

Shown to fail with:

- the bank of an entry without its stage; registers counted as a bank; memory left out
- the mean of stages in place of each, where the count is exact; the first chance of a beat lost
- a floor above the expected cycles; the tables of the first slice counted twice
- codebooks loaded once in place of each job; the split left out of the codebooks
- a split at the root rounded down
- codebooks of a part that a core lacks; all cores in each part; no beat makes up for another
"""

import dataclasses
import itertools
import json
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.config import ConfigError
from golden.vqllm import timing
from golden.vqllm.bounds import EngineShape, bounds
from golden.vqllm.cache import LookUps, Tiers
from golden.vqllm.config import NAMED, Budget, MatrixShape, Plan, VqShape, Work
from hdl.vqllm import plan as command
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from hdl.vqllm.gemv.core import VqGemvCoreConfig
from hdl.vqllm.plan_config import engine
from hdl.vqllm.plan_search import (
    Planner,
    Shortage,
    Space,
    resources,
    split_optimum,
    split_traffic,
)

TILES = Work(
    matrix=MatrixShape(
        rows=80,
        columns=96,
        vq=VqShape(size=4, entries=16, stages=1, tile_rows=32, tile_columns=24),
    )
)
WHOLE = Work(matrix=MatrixShape(rows=100, columns=64, vq=VqShape(entries=32)))


def skewed(stages: int, entries: int, seed: int = 1) -> np.ndarray:
    found = np.sort(np.random.default_rng(seed).random((1, stages, entries)) ** 4)[..., ::-1]
    return np.ceil(found * 1000)


@pytest.mark.parametrize(
    ("stages", "lanes", "entries", "tiers"),
    [
        (1, 8, 256, (0, 256, 8)),
        (1, 16, 256, (4, 200, 16)),
        (2, 4, 256, (2, 64, 4)),
        (2, 8, 4096, (16, 4096, 16)),  # exact: 81 states
        (3, 4, 16, (1, 11, 2)),  # 125 states: the mean of the stages
        (4, 2, 64, (0, 64, 4)),
        (1, 1, 4, (1, 4, 1)),
    ],
)
def test_expected_cycles_on_drawn_codes(stages, lanes, entries, tiers):
    """20,000 beats: within 4 standard errors where the count is exact, and 2 % where it is not."""
    counts, rng = skewed(stages, entries), np.random.default_rng(2)
    share = counts[0] / counts[0].sum(-1, keepdims=True)
    code = np.stack(
        [rng.choice(entries, (20_000, lanes), p=share[stage]) for stage in range(stages)], -1
    ).reshape(20_000, -1)
    looks = LookUps(torch.tensor(code), torch.ones(code.shape, dtype=torch.bool), stages)
    cycles = looks.cycles(Tiers(*tiers)).double()
    chances = timing.tier_chances(counts, tiers)
    found = timing.beat_cycles(timing.beat_chances(chances, lanes))[0]
    error = 4 * float(cycles.std()) / math.sqrt(20_000) + 1e-9
    if (lanes + 1) ** stages > 100 and stages > 1:
        error = 0.02 * found
    assert abs(float(cycles.mean()) - found) <= error
    held = timing.beat_cycles(timing.beat_chances(chances, lanes), 3)[0]
    assert abs(float(cycles.clamp(min=3).mean()) - held) <= max(error, 0.02 * held)
    far = float((looks.tier(Tiers(*tiers)) == 2).double().mean())
    assert abs(far - chances[..., tiers[2]].mean()) < 0.01
    assert timing.beat_floor(chances, lanes)[0] <= found + 1e-9


@pytest.mark.parametrize("tiers", [(0, 4, 2), (1, 3, 2), (0, 2, 1), (1, 4, 4)])
@pytest.mark.parametrize(("stages", "lanes"), [(1, 3), (2, 2), (3, 1)])
def test_expected_cycles_of_all_codes(stages, lanes, tiers):
    """Every beat of four entries, by its chance."""
    share = np.random.default_rng(5).dirichlet(np.full(4, 0.5), stages)
    code = torch.tensor(list(itertools.product(range(4), repeat=stages * lanes)))
    looks = LookUps(code, torch.ones(code.shape, dtype=torch.bool), stages)
    weight = share[np.arange(stages * lanes) % stages, code.numpy()].prod(1)
    cycles = looks.cycles(Tiers(*tiers)).numpy()
    chances = timing.beat_chances(timing.tier_chances(share[None], tiers), lanes)
    for least in (1, 2):
        held = np.maximum(cycles, least)
        mean = float(held @ weight)
        assert timing.beat_cycles(chances, least)[0] == pytest.approx(mean, abs=1e-9)
        variance = float((held - mean) ** 2 @ weight)
        assert timing.beat_variance(chances, least)[0] == pytest.approx(variance, abs=1e-9)


def test_equal_entries_of_two_stages_are_in_two_banks():
    counts = np.zeros((1, 2, 8))
    counts[..., 3] = 1
    chances = timing.tier_chances(counts, (0, 8, 4))
    assert chances[0, 0].tolist() == [0, 0, 0, 1, 0, 0]
    assert chances[0, 1].tolist() == [1, 0, 0, 0, 0, 0]
    assert timing.beat_cycles(timing.beat_chances(chances, 3)).tolist() == [3]


def is_accepted(work: Work, plan: Plan, budget: Budget) -> bool:
    """Whether a generator takes the plan."""
    try:
        return bool(engine(work, plan, budget))
    except ConfigError:
        return False


def small_space(work: Work) -> Space:
    return Space(
        need=(2, 4),
        cores=(1, 2, 4),
        lookups=(2, 4, 8),
        split=(1, 2, 4),
        rows=(16, 32),
        builders=(1, 4),
        banks=(1, 4),
        registers=(0, 4, 8),
        shared=(4, 8, work.matrix.vq.stored),
    )


@settings(max_examples=12, deadline=None)
@given(
    work=st.sampled_from([TILES, WHOLE, dataclasses.replace(TILES, operation="gemm", vectors=3)]),
    multipliers=st.sampled_from([4, 16, 64, 256]),
    sram=st.integers(12, 22),
    registers=st.sampled_from([0, 700, 1 << 14]),
    ports=st.integers(4, 80),
    data_bits=st.sampled_from([64, 512]),
    seed=st.integers(0, 99),
)
def test_the_choice_is_the_best_of_all_plans(
    work, multipliers, sram, registers, ports, data_bits, seed
):
    budget = Budget(
        multipliers=multipliers, sram_bits=1 << sram, register_bits=registers, ports=ports,
        data_bits=data_bits,
    )  # fmt: skip
    space, vq = small_space(work), work.matrix.vq
    planner = Planner(work, budget, skewed(vq.stages, vq.entries, seed))
    every = [
        planner.estimate(plan)
        for plan in space.plans(work)
        if resources(work, plan).fits(budget) and is_accepted(work, plan, budget)
    ]
    for each in every:
        for name, least in timing.plan_bound(work, each.plan, budget).items():
            assert each.terms[name] >= least - 1e-6, (each.plan, name)
        assert planner.estimate(each.plan, quick=True).key <= each.key
    if not every:
        with pytest.raises(Shortage, match="must be"):
            planner.best(space)
        return
    best = min(every, key=lambda each: each.key)
    assert planner.best(space) == best
    part = space.fixed(split=1)
    if any(each.plan.split == 1 for each in every):
        assert planner.best(part, space) == planner.best(part)


def test_bound_is_that_of_golden():
    work = Work(matrix=MatrixShape(rows=512, columns=512, vq=NAMED["gptvq2"]))
    plan = Plan(lookups=16, shared=256)
    engine = EngineShape(lookups=16, macs=64, port_bits=512)
    found = timing.plan_bound(work, plan, Budget())
    golden = bounds(work.matrix, engine)
    assert {name: math.ceil(value) for name, value in found.items()} == {
        name: golden[name] for name in found
    }


@pytest.mark.parametrize("plan", [
    Plan(lookups=8, banks=4, registers=3, shared=50, rows=40, side=2),
    Plan(lookups=16, banks=16, shared=256, rows=7),
])  # fmt: skip
def test_resources_are_those_of_the_core(plan):
    """All memories of a core of the plan's configuration count, but for the queue of sums."""
    work = Work(matrix=MatrixShape(rows=100, columns=192, vq=VqShape()), vectors=2)
    cache = VqCodebookCacheConfig(
        lookups=plan.lookups, registers=plan.registers, shared=plan.shared, banks=plan.banks,
        beats=timing.IN_FLIGHT,
    )  # fmt: skip
    core = VqGemvCoreConfig(cache=cache, batch=plan.side, columns=192, rows=plan.rows)
    bank, sums = cache.memory, core.sums
    beats = timing.IN_FLIGHT * plan.lookups * (cache.entry_bits + 1)
    found = resources(work, plan)
    assert found.sram_bits == (
        cache.banks * bank.depth * bank.width
        + plan.side * sums.operands.depth * sums.operands.width
        + sums.partials.depth * sums.partials.width
        + beats
    )
    assert found.multipliers == sums.macs * plan.side
    assert found.register_bits == 2 * 2 * plan.registers * cache.entry_bits
    assert timing.sum_bits(VqShape(), 192) == sums.sum_bits


@pytest.mark.parametrize(("outputs", "codebooks"), [(1, 1), (100, 399), (3, 1000), (7, 16 * 7)])
def test_split_optimum(outputs, codebooks):
    every = [split_traffic(outputs, codebooks, split) for split in range(1, codebooks + 2)]
    assert split_optimum(outputs, codebooks) == 1 + every.index(min(every))


def test_more_splits_move_fewer_codebooks():
    shape = MatrixShape(rows=512, columns=2048, vq=NAMED["gptvq2"])
    moved = [
        timing.loaded_bits(Work(matrix=shape), Plan(cores=8, split=split)) for split in (1, 2, 4, 8)
    ]
    assert moved == [8 * shape.codebook_bits // split for split in (1, 2, 4, 8)]


@pytest.mark.parametrize(
    ("columns", "split", "cores", "whole"),
    [
        (192, 1, [4, 4], [16, 16]),  # the last of the tiles may be narrower
        (192, 2, [4, 2], [32, 16]),  # three tiles in two parts
        (192, 4, [4], [48]),  # fewer tiles than parts: cut between beats
        (64, 4, [2], [16]),  # two beats for four parts
        (256, 4, [4], [64]),
    ],
)
def test_cores_that_have_a_part(columns, split, cores, whole):
    vq = VqShape(size=4, entries=64, stages=1, tile_rows=64, tile_columns=64)
    work = Work(matrix=MatrixShape(rows=64, columns=columns, vq=vq))
    jobs = timing.core_jobs(work, Plan(cores=4, split=split, shared=64, rows=64))
    assert [job.cores for job in jobs] == cores
    assert [job.whole for job in jobs] == whole


def test_cores_without_a_part_load_nothing():
    """The third of three tiles is that of half the cores, so its codebooks come in half the time.

    The look-ups are few, and the port decides.
    """
    vq = VqShape(size=4, entries=64, stages=1, tile_rows=64, tile_columns=64)
    plan = Plan(cores=4, split=2, banks=32, shared=64, rows=64)
    cycles = [
        Planner(
            Work(matrix=MatrixShape(rows=64, columns=columns, vq=vq)), Budget(data_bits=128)
        ).estimate(plan).terms["look-ups"]
        for columns in (128, 192, 256)
    ]  # fmt: skip
    whole, half = cycles[2] - cycles[0], cycles[1] - cycles[0]
    assert half < 0.75 * whole


@pytest.mark.parametrize(("registers", "banks", "need"), [(0, 4, 2), (16, 4, 2), (0, 2, 1)])
def test_held_beats_next_to_a_queue(registers, banks, need):
    """Look-ups fill a queue of 16 beats, and each beat is held for its pieces: within 2 %."""
    vq = VqShape(size=4, entries=64, stages=1)
    work = Work(matrix=MatrixShape(rows=4000, columns=32, vq=vq))
    plan = Plan(
        banks=banks, registers=registers, shared=64, fusion="exchange", need=need, rows=4000
    )
    counts = skewed(1, 64)
    estimate = Planner(work, Budget(data_bits=1024), counts).estimate(plan)
    share = counts[0, 0] / counts.sum()
    code = torch.tensor(np.random.default_rng(3).choice(64, (4000, 8), p=share))
    looks = LookUps(code, torch.ones(code.shape, dtype=torch.bool), 1)
    cycles = looks.cycles(Tiers(registers, 64, banks)).tolist()
    gone = [0] * timing.IN_FLIGHT  # when each beat has left
    looked = 0
    for n, beat in enumerate(cycles):
        looked = max(looked, gone[n]) + beat
        gone.append(max(looked, gone[-1]) + work.matrix.vq.size // need)
    spent = estimate.terms["look-ups"] - timing.load_cycles(16, 5, 40)
    assert abs(spent / gone[-1] - 1) < 0.02


@pytest.mark.parametrize(("rows", "lookups", "builders"), [(600, 8, 4), (40, 8, 1), (300, 16, 8)])
def test_tables_take_the_cycles_of_their_engine(rows, lookups, builders):
    work = Work(matrix=MatrixShape(rows=rows, columns=512, vq=VqShape(entries=64)))
    plan = Plan(
        method="tables", lookups=lookups, builders=builders, shared=64, rows=1024, banks=1
    )  # fmt: skip
    budget = Budget(data_bits=1024)
    found = Planner(work, budget).estimate(plan)
    tables = timing.Tables(size=8, entries=64, stages=2, lookups=lookups, lanes=builders)
    slices = 64 * 2 // lookups
    # The engine's streams are at hand. In a plan a descriptor and the codebooks come from memory.
    spent = timing.table_cycles(tables, [(rows, slices)], slices) + 2 * budget.latency
    assert abs(found.cycles / spent - 1) < 0.01


# Cycles of vq_gemv_core and of vq_table_gemv by senbazuru.runs.vq_tables (docs/vqllm-tables.md)
MEASURED = [
    ("aqlm2x8", 8, 4, 4096, (64, 576), 2856, 9810),
    ("aqlm2x8", 8, 4, 4096, (512, 576), 22136, 10322),
    ("aqlm2x8", 8, 4, 4096, (1536, 576), 66273, 28690),
    ("gptvq2", 16, 16, 256, (256, 576), 6540, 2867),
]


@pytest.mark.parametrize(
    ("name", "lookups", "builders", "rows", "size", "dequantize", "tables"), MEASURED
)
def test_both_methods_next_to_measured_cycles(
    name, lookups, builders, rows, size, dequantize, tables
):
    """Within 2 %, so the planner takes the faster one. The bench has all codes at hand."""
    vq = NAMED[name]
    planner = Planner(
        Work(matrix=MatrixShape(rows=size[0], columns=size[1], vq=vq)),
        Budget(data_bits=1024, latency=1),
    )
    both = {"lookups": lookups, "shared": vq.entries, "rows": rows}
    found = [
        planner.estimate(Plan(banks=lookups, registers=32, **both)),
        planner.estimate(Plan(method="tables", builders=builders, banks=1, **both)),
    ]
    for estimate, cycles in zip(found, (dequantize, tables), strict=True):
        assert abs(estimate.cycles / cycles - 1) < 0.02


MATRIX = ["gptvq2", "--rows", "256", "--columns", "512"]
SHORT = [*MATRIX, "multipliers=16", "ports=20"]


def run(capsys, *arguments: str) -> str:
    assert command.main(list(arguments)) == 0
    return capsys.readouterr().out


def test_command(capsys, tmp_path):
    found = json.loads(run(capsys, *SHORT, "--json"))
    least = [each["cycles"] for each in found["alternatives"].values() if not isinstance(each, str)]
    assert found["cycles"] == min(least)
    assert Plan(**found["plan"]).lookups * 4 <= 16
    shown = run(capsys, *SHORT)
    assert f"| largest, and fill | {found['cycles']:,} |" in shown
    file = tmp_path / "counts.json"
    file.write_text(json.dumps([[[1000, *[1] * 255]]]))
    hot = json.loads(run(capsys, *SHORT, "--json", "--histogram", str(file)))
    assert hot["cycles"] <= found["cycles"]


def test_attention_and_gemm(capsys):
    found = json.loads(
        run(capsys, "cq4", "--operation", "attention", "--columns", "128", "--tokens", "4096",
            "--batch", "4", "--heads", "8", "--json")
    )  # fmt: skip
    assert found["plan"]["method"] == "dequantize"
    run(capsys, "gptvq2", "--operation", "gemm", "--rows", "256", "--columns", "256",
        "--tokens", "16", "multipliers=64", "ports=30")  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["aqlm9"], "SHAPE must be one of"),
        (["a\nb"], "not a\\nb"),
        ([], "SHAPE must be one of"),
        (["aqlm3", "--rows", "8"], "--columns must be given for gemv"),
        (["aqlm3", "--tokens", "8"], "--tokens does not apply to gemv"),
        ([*MATRIX, "multipliers=0"], "Budget.multipliers must be 1..65536, not 0"),
        ([*SHORT, "vq.entries=5"], "VqShape.entries must be a power of two in 4..65536, not 5"),
        ([*MATRIX, "multipliers=2"], "no plan fits: multipliers must be 4 or more, 2 more than 2"),
        ([*SHORT, "sram_bits=10"], "no plan fits: sram_bits must be "),
        ([*SHORT, "--histogram", "nowhere.json"], "nowhere.json: No such file or directory"),
        ([*SHORT, "--rows", "0"], "argument --rows: must be 1..1048576, not '0'"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
    """Shown to fail: the second line of SHAPE as another line."""
    with pytest.raises(SystemExit) as error:
        command.main(arguments)
    found = capsys.readouterr()
    assert (error.value.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert found.err.startswith("hdl.vqllm.plan: ")
    assert message in found.err


@pytest.mark.parametrize("short", [{"sram_bits": 1, "multipliers": 1, "ports": 1}, {"ports": 2}])
def test_a_shortage_names_all_that_a_plan_lacks(short):
    """A plan fits with as much of each. Shown to fail: the worst resource alone."""
    work = Work(matrix=MatrixShape(rows=256, columns=256, vq=NAMED["gptvq2"]))
    with pytest.raises(Shortage) as error:
        Planner(work, Budget(**short)).best(Space.of(work))
    named = re.findall(r"(\w+) must be (\d+) or more, (\d+) more than (\d+)", str(error.value))
    assert {name: int(have) for name, _, _, have in named} == short
    assert all(int(need) - int(more) == int(have) for _, need, more, have in named)
    enough = Budget(**{name: int(need) for name, need, _, _ in named})
    assert Planner(work, enough).best(Space.of(work)).cycles > 0


@pytest.mark.parametrize(
    ("short", "message"),
    [
        ("register_bits=0", "register_bits must be 256 or more, 256 more than 0"),
        ("register_bits=100", "register_bits must be 256 or more, 156 more than 100"),
    ],
)
def test_a_choice_without_a_plan_names_what_it_lacks(short, message, capsys):
    """Shown to fail: banks, and no registers, whatever the choice was; a shortage below 0."""
    found = json.loads(run(capsys, *MATRIX, short, "--json"))
    assert found["alternatives"]["registers and SRAM"] == message


def test_a_lattice_takes_no_tables():
    work = Work(matrix=MatrixShape(rows=4096, columns=64, vq=NAMED["quip4"]))
    space = dataclasses.replace(small_space(work), shared=(256,))
    planner = Planner(work, Budget())
    assert planner.best(space).plan.method == "dequantize"
    with pytest.raises(Shortage, match="signs of single elements share no table"):
        planner.best(space.fixed(method="tables"))
    other = dataclasses.replace(work, matrix=MatrixShape(rows=4096, columns=64, vq=VqShape()))
    assert Planner(other, Budget()).best(space.fixed(method="tables")).plan.method == "tables"


@pytest.mark.parametrize("text", ["", "{}", "[[1]]", "[[[1, -1]]]", "[[[1, 2], [3]]]", "[[[1.5]]]"])
def test_wrong_histograms(text, tmp_path):
    file = tmp_path / "counts.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="must be"):
        command.histogram(file)


def test_a_histogram_of_another_work_is_named(capsys, tmp_path):
    file = tmp_path / "counts.json"
    file.write_text("[[[1, 2]]]")
    with pytest.raises(SystemExit):
        command.main(["gptvq2", "--rows", "8", "--columns", "8", "--histogram", str(file)])
    wanted = f"{file}: histogram must be (1, 1, 256), not (1, 1, 2)"
    assert capsys.readouterr().err == f"hdl.vqllm.plan: {wanted}\n"


@pytest.mark.parametrize("shape", [(1, 1, 16), (2, 1, 16), (1, 2, 16)])
def test_histogram_of_another_work(shape):
    if shape == (1, 1, 16):
        Planner(TILES, Budget(), np.ones(shape))
        return
    with pytest.raises(ConfigError, match=r"histogram must be \(12 or 1, 1, 16\)"):
        Planner(TILES, Budget(), np.ones(shape))
