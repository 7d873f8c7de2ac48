"""KLLM in the simulator: cycles of its units are those of hdl, and its schedule adds up."""

import dataclasses

import pytest

from golden.config import ConfigError
from golden.kllm.bounds import Rates, ahead_max, bounds, schedule
from golden.kllm.config import MACHINES
from golden.kllm.isa import Opcode, Unit
from golden.kllm.layer.program import layer_program
from golden.kllm.layer.shape import LayerOptions, LayerShape
from hdl.kllm.accelerator import KllmLaneBuild
from hdl.kllm.function_pipeline import KllmFunctionPipelineConfig
from hdl.kllm.room import BLOCKS
from sim.kllm.schedule import timeline
from sim.kllm.units import CommandCycles, Timings, Units, crowded, slot_words

ACCELERATORS = BLOCKS["kllm_accelerator"].configs
SMOLLM2 = LayerShape(hidden=576, heads=9, kv_heads=3, head_size=64, intermediate=1536)


@pytest.mark.parametrize("name", ACCELERATORS)
@pytest.mark.parametrize("counter", ["select", "flipflop"])
@pytest.mark.parametrize("bits_a", [3, 4])
def test_units_are_those_of_hdl(name, counter, bits_a):
    """Shown to fail: one more cycle of RMS in ``_NORMS``; bins of 4 bits less."""
    config = ACCELERATORS[name]
    machine = dataclasses.replace(
        config.machine, slot=dataclasses.replace(config.machine.slot, bits_a=bits_a)
    )
    build = KllmLaneBuild(counter=counter, macs=min(32, machine.columns))
    config = dataclasses.replace(config, machine=machine, build=build)
    units = Units(counter=counter, macs=build.macs, function_width=config.width)
    assert units.lane(machine) == config.lane.cycles
    assert dataclasses.replace(units.quantizer(machine)) == dataclasses.replace(
        config.quantizer_config.cycles,
        trees=units.quantizer(machine).trees,
        norms=units.quantizer(machine).norms,
    )
    ours, theirs = units.quantizer(machine), config.quantizer_config.cycles
    assert (ours.trees.latency, ours.trees.interval) == (
        theirs.trees.latency,
        theirs.trees.interval,
    )
    assert (ours.norms.latency, ours.norms.latency_max) == (
        theirs.norms.latency, theirs.norms.latency_max,
    )  # fmt: skip
    what = "from a token's last beat to the next job"
    assert ours.norms.delay(what) == theirs.norms.delay(what)
    assert units.function_stages == KllmFunctionPipelineConfig().stages
    assert units.queue == config.queue


@pytest.mark.parametrize("elements", [256, 4096, 11008, 16383])
def test_levels_of_the_trees(elements):
    machine = dataclasses.replace(
        MACHINES["table1"], slot=dataclasses.replace(MACHINES["table1"].slot, elements=elements)
    )
    config = dataclasses.replace(ACCELERATORS["table1"].quantizer_config, slot=machine.slot)
    assert Units().quantizer(machine).trees.interval == config.cycles.trees.interval


def parts(machine, context=100, **options):
    program = layer_program(SMOLLM2, LayerOptions(**options), machine, 1, context)
    return program, program.parts


@pytest.mark.parametrize("options", [{}, {"scores": "index"}, {"glu": "exact"}, {"fuse": False}])
def test_path_adds_up(options):
    """The path is the whole part, and no command begins before what it waits for has ended."""
    machine = MACHINES["smollm2"]
    cycles = CommandCycles(machine, Units(), Timings())
    first = dict.fromkeys(Unit, 0)
    for words in parts(machine, **options)[1]:
        found = bounds(words, machine, Rates())
        least = schedule(words, found, dict(first), ahead_max(machine)).cycles
        made = timeline(words, cycles, first)
        assert sum(taken for _, taken in made.path()) == pytest.approx(made.cycles)
        assert all(taken >= 0 for _, taken in made.path())
        assert made.cycles >= least * 0.97  # queues hold a few words more than the buffers
        for each in made.placed:
            if each.cause is not None:
                before = made.placed[each.cause]
                assert each.begin >= each.since
                assert each.since in (before.end, before.begin)
            assert each.end >= each.begin + min(each.bound, 1)
        assert made.words == sum(bound.words for bound in found)
    assert sum(first.values()) == sum(len(words) // 16 for words in parts(machine, **options)[1])


@pytest.mark.parametrize("field", ["latency", "command", "word", "start", "status"])
def test_slower_is_not_faster(field):
    machine = MACHINES["smollm2"]
    found = []
    for value in (1, 10, 60):
        timings = dataclasses.replace(Timings(), **{field: value})
        cycles = CommandCycles(machine, Units(), timings)
        first = dict.fromkeys(Unit, 0)
        found.append(sum(timeline(w, cycles, first).cycles for w in parts(machine)[1]))
    assert found == sorted(found)
    assert found[0] < found[2]


def test_slot_words_are_those_of_the_machine():
    torch = pytest.importorskip("torch")
    from golden.kllm.functional import Slot
    from golden.kllm.machine import slot_words as golden

    for length, outliers in ((64, 0), (100, 6), (1, 1)):
        mask = torch.zeros(length, dtype=torch.bool)
        mask[:outliers] = True
        slot = Slot(
            index=torch.zeros(length, dtype=torch.int64), outlier=mask,
            words=torch.zeros(length, dtype=torch.int64), scale=0, integer=False,
            rms_reciprocal=0, mean=0,
        )  # fmt: skip
        o = {"length": length, "k_max": outliers, "k_min": 0}
        assert slot_words(o) == len(golden(slot))


def test_crowded_is_a_mean():
    """Of 2 outliers in 4 rows, a quarter of the pairs shares a row."""
    assert crowded(0, 4) == 0
    assert crowded(2, 4) == pytest.approx(0.25)
    assert crowded(40, 1) == 39


def test_bad_units():
    with pytest.raises(ConfigError, match=r"Units\.counter must be select or flipflop"):
        Units(counter="sram")
    with pytest.raises(ConfigError, match=r"Timings\.word must be 1\.\."):
        Timings(word=0.5)


def test_commands_alone():
    """MATMUL of one job is golden's lane, with the delays around it."""
    machine = MACHINES["smollm2"]
    cycles = CommandCycles(machine, Units(), Timings())
    o = {"mode": 0, "tokens": 1, "length": 576, "outputs": 128, "slot": 0}
    t = Timings()
    assert cycles.jobs(o) == 1
    # 36 beats, 2 of the weight buffer, 11 of the lane, 31 further columns, 5 of the ticket
    assert cycles.of(Opcode.MATMUL, o) == t.start + 5 + (2 + 35 + 11 + 31) + t.finish
