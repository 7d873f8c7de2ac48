"""Plans as configurations that generators have accepted, for random works and budgets.

Shown to fail with:

- 64 cores, of which vq_gemv has 16 at most and vq_gemm one
- groups of a gemm that no memory is counted for
- a memory port that is narrower than an entry
- attention with fewer than four groups in a pass, or with codebooks of tiles
"""

import collections
import dataclasses
import functools
import json
import re

import numpy as np
import pytest

from golden.config import ConfigError
from golden.vqllm import timing
from golden.vqllm.config import NAMED, Budget, MatrixShape, Plan, VqShape, Work
from hdl.back.emit import emit
from hdl.registry import find
from hdl.vqllm import plan as command
from hdl.vqllm.plan_config import engine
from hdl.vqllm.plan_search import Estimate, Planner, Shortage, Space, resources

WORKS = 300
BUILT = 4


def random_work(rng: np.random.Generator) -> Work:
    """Draws any operation; sizes are ragged, and half of the codebooks have no name."""
    operation = str(rng.choice(["gemv", "gemm", "attention"]))
    names = ["cq4", "cq2"] if operation == "attention" else list(NAMED)
    vq = NAMED[str(rng.choice(names))]
    if operation == "attention":
        size = int(rng.choice([1, 2, 4, 8]))
        entries = 1 << int(rng.integers(3, 11))
        vq = dataclasses.replace(vq, size=size, tile_columns=size, entries=entries)
        columns, vectors = int(rng.choice([64, 96, 128, 256, 264])), int(rng.integers(1, 9))
    else:
        if not vq.lattice and rng.random() < 0.5:
            size = int(rng.integers(1, 17))
            vq = VqShape(
                size=size, entries=1 << int(rng.integers(2, 12)), stages=int(rng.integers(1, 5)),
                tile_rows=int(rng.choice([0, rng.integers(1, 300)])),
                tile_columns=size * int(rng.choice([0, rng.integers(1, 40)])),
            )  # fmt: skip
        columns, vectors = vq.size * int(rng.integers(1, 600)), int(rng.integers(1, 40))
    matrix = MatrixShape(rows=int(rng.integers(1, 5000)), columns=columns, vq=vq)
    return Work(matrix=matrix, operation=operation, vectors=vectors)


def random_budget(rng: np.random.Generator, work: Work) -> Budget:
    if work.operation == "attention" and rng.random() < 0.7:  # few budgets serve a head
        return Budget(sram_bits=1 << 26, multipliers=1024, data_bits=int(rng.choice([128, 256])))
    return Budget(
        register_bits=int(rng.choice([0, 1 << 12, 1 << 18])),
        sram_bits=1 << int(rng.integers(19, 28)),
        ports=int(rng.choice([8, 256])),
        multipliers=int(rng.choice([8, 128, 512])),
        data_bits=1 << int(rng.integers(6, 11)),
        latency=int(rng.choice([1, 40, 400])),
    )


def random_part(rng: np.random.Generator, space: Space) -> Space:
    """Keeps of each field the least value and another one, so that a search is short."""
    fields = {}
    for field in dataclasses.fields(space):
        values = getattr(space, field.name)
        some = {0, int(rng.integers(len(values)))} if values else set()
        if field.name == "shared":
            some.add(len(values) - 1)  # attention has all entries on chip
        whole = field.name in ("method", "lookups")
        fields[field.name] = values if whole else tuple(values[n] for n in sorted(some))
    return dataclasses.replace(space, **fields)


@functools.cache
def choices() -> list[tuple[Work, Budget, Estimate | str]]:
    """The plan of each work, or the line that says why there is none."""
    rng, found = np.random.default_rng(49), []
    for _ in range(WORKS):
        work = random_work(rng)
        budget = random_budget(rng, work)
        space = random_part(rng, Space.of(work))
        try:
            found.append((work, budget, Planner(work, budget).best(space)))
        except Shortage as error:
            found.append((work, budget, str(error)))
    return found


def test_every_plan_is_a_configuration():
    blocks: collections.Counter[str] = collections.Counter()
    for work, budget, found in choices():
        if isinstance(found, str):
            assert "\n" not in found
            assert re.search(r"must be .*(more than|, not) |no such plan", found), found
            continue
        made = engine(work, found.plan, budget)
        assert dataclasses.replace(made.config) == made.config  # it checks itself once more
        blocks[made.block] += 1
    assert set(blocks) == {"vq_gemv", "vq_gemm", "vq_table_gemv", "vq_attention"}
    assert min(blocks.values()) >= 10
    assert blocks.total() > WORKS / 2


def test_plans_take_what_their_configurations_have():
    """The memories of a core, all but its queue of sums, and its multipliers."""
    seen = 0
    for work, budget, found in choices():
        if isinstance(found, str) or work.operation == "attention":
            continue
        if found.plan.method == "tables":
            continue
        made, plan = engine(work, found.plan, budget), found.plan
        core = made.config.core  # type: ignore[attr-defined]
        sums, cache = core.sums, core.cache
        bits = cache.banks * cache.memory.depth * cache.memory.width
        bits += sums.batch * sums.operands.depth * sums.operands.width
        bits += sums.partials.depth * sums.partials.width
        bits += sums.totals.depth * sums.totals.width if sums.has_groups else 0
        bits += timing.IN_FLIGHT * plan.lookups * (cache.entry_bits + 1)
        if plan.fusion == "buffer":
            bits += 2 * core.vectors * cache.entry_bits
        taken = resources(work, plan)
        assert taken.sram_bits == plan.cores * bits, plan
        assert taken.multipliers == plan.cores * sums.macs * plan.side
        assert taken.fits(budget)
        seen += 1
    assert seen > 50


@pytest.mark.parametrize("number", range(BUILT))
def test_some_plans_are_elaborated(number):
    """The smallest ones of each engine: their modules in all files."""
    own = [
        (found.resources.multipliers * found.plan.cores * found.plan.lookups, n, work, budget)
        for n, (work, budget, found) in enumerate(choices())
        if not isinstance(found, str)
    ]
    by_block: dict[str, list] = {}
    for each in sorted(own, key=lambda each: each[:2]):
        found = choices()[each[1]][2]
        assert isinstance(found, Estimate)
        made = engine(each[2], found.plan, each[3])
        by_block.setdefault(made.block, []).append(made)
    made = by_block[sorted(by_block)[number]][0]
    assert emit(find(made.block).component(made.config), "top")


def test_a_gemm_has_one_core(capsys):
    arguments = "--operation gemm gptvq2 --rows 256 --columns 1024 --tokens 4 vq.tile_columns=32"
    assert command.main(arguments.split()) == 0
    shown = capsys.readouterr().out
    assert "| cores | 1 |" in shown
    assert "Engine: vq_gemm, codes and codebooks from streams." in shown


def test_a_port_narrower_than_an_entry_is_one_line(capsys):
    """Entries of 8 words have 128 bits, and a gemm has no tables."""
    with pytest.raises(SystemExit) as status:
        command.main(
            "aqlm2x8 --operation gemm --rows 64 --columns 512 --tokens 4 data_bits=64".split()
        )
    line = "VqCodebookCacheConfig.data_bits must be a power of two in 128..1024, not 64"
    assert status.value.code == 2
    assert capsys.readouterr().err == f"hdl.vqllm.plan: no plan fits: {line}\n"


@pytest.mark.parametrize("field", [{"tile_columns": 0}, {"tile_rows": 8}])
def test_attention_has_a_codebook_of_each_group(field):
    vq = dataclasses.replace(NAMED["cq4"], **field)
    name = next(iter(field))
    with pytest.raises(ConfigError, match=f"Work.matrix.vq.{name} must be . for attention, not"):
        Work(matrix=MatrixShape(rows=64, columns=64, vq=vq), operation="attention")


# ---- the same terms for each rival


@pytest.mark.parametrize("tile_rows", [0, 64])
def test_tables_wait_for_memory_as_dequantizing_does(tile_rows):
    """360 cycles more from a request to its word: a descriptor, then codebooks.

    With several tiles each descriptor follows another one, too.
    """
    vq = VqShape(size=4, stages=1, tile_rows=tile_rows)
    work = Work(matrix=MatrixShape(rows=128, columns=512, vq=vq))
    plans = [
        Plan(lookups=16, banks=16, shared=256, rows=128),
        Plan(method="tables", lookups=16, builders=16, banks=1, shared=256, rows=128),
    ]
    for plan in plans:
        near, far = (
            Planner(work, Budget(latency=latency)).estimate(plan).cycles for latency in (40, 400)
        )
        assert 2 * 360 <= far - near <= 2 * 360 + (2 * 360 if tile_rows else 360)


def test_tables_of_few_rows_do_not_win_by_what_they_leave_out(capsys):
    """Once 851 cycles against 1,174, without latency, descriptors and loads."""
    assert command.main("gptvq2 --rows 64 --columns 512 latency=400 --json".split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["method"] == "dequantize"
    tables = found["alternatives"]["tables"]
    assert tables["cycles"] > found["cycles"]
    assert tables["engine"] == "vq_table_gemv, codes and codebooks from streams"
    assert found["sixteen_bits"] == 64 * 512 * 16 // 512 + 2 * 400 + timing_fill()


def timing_fill() -> int:
    """The cycles from the first descriptor, and from the last word, with 256 multipliers."""
    return 8 + timing.row_sums(256).latency + timing.row_finish(False).latency
