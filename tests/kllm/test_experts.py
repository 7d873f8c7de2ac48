"""Choices of TOP_K, what LOAD_AT takes by them, bases of weights, and layers of experts.

Shown to fail:

- of equal elements the higher id first; choices of a command without ``end``;
- a choice of the neighbour's place, or of rank 0 for each rank;
- a base that a MATMUL without ``based`` takes, or that one with ``based`` leaves out;
- a base of words in the other order; an address beyond 2**32 that does not begin again;
- a choice that needs a token; a rank that the place does not have, with an entry;
- in a layer: the experts of the first token for all; two images of the router.
"""

import dataclasses
import functools

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.kllm.assembler import Assembler, AssemblyError
from golden.kllm.cache import Place
from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.isa import COMMANDS, CommandStatus, Index, Opcode, Unit, decode, encode
from golden.kllm.layer import host
from golden.kllm.layer.compiler import compile_layer
from golden.kllm.layer.host import History, history_of, run_layer
from golden.kllm.layer.layout import ROUTER_IMAGES, router_image
from golden.kllm.layer.program import layer_program
from golden.kllm.layer.quantized import QuantizedLayer, quantize_layer
from golden.kllm.layer.shape import LayerOptions, LayerShape
from golden.kllm.machine import Machine
from golden.kllm.top_k import ids
from golden.llm.kllm.example import KINDS, example
from golden.llm.kllm.reference import reference

MACHINE = MachineConfig.parse(MACHINES["small_cache"], ["experts=3"])
assert isinstance(MACHINE, MachineConfig)
LARGE = MachineConfig.parse(
    MACHINES["small_cache"],
    ["cache.pages=512", "cache.page_bytes=512", "cache.max_tokens=160", "experts=4",
     "slot.slots=8", "vectors.rows=512", "cache.windows=true", "cache.sinks=true",
     "extra.quick_gelu=true", "extra.bounds=true"],
)  # fmt: skip
assert isinstance(LARGE, MachineConfig)
PLAIN = MACHINES["small_cache"]
OF_EXPERTS = [name for name in KINDS if "experts" in name]


class Bench:
    """A machine with a table of numbered rows, and commands one by one."""

    def __init__(self, config: MachineConfig = MACHINE) -> None:
        rows = np.repeat(np.arange(64, dtype="<u2"), 16)
        self.machine = Machine(config, rows.view(np.uint8))
        self.machine.vector[:] = 0xAAAA

    def do(self, opcode: Opcode, **operands: int) -> CommandStatus:
        words = encode(opcode, 0, {}, COMMANDS[opcode].defaults | operands)
        return self.machine.step(words).status

    def choose(self, *vectors: list[float], route: int = 3, **operands: int) -> CommandStatus:
        """TOP_K of vectors in the rows from 10 on, one of each place."""
        for t, each in enumerate(vectors):
            words = bits_from_float(torch.tensor(each, dtype=torch.float64))
            self.machine.state.write(10 + t, words)
        given = {"src": 10, "stride": 1, "tokens": len(vectors), "length": len(vectors[0])}
        return self.do(Opcode.TOP_K, **given, first=0, route=route, **operands)

    def load(self, index: Index, rank: int, tokens: int = 1, place: int = 0) -> list[int]:
        """The first words of entries of one row from row 4 of the table on."""
        self.status = self.do(
            Opcode.LOAD_AT, address=4, rows=1, index=index, limit=16, dst=30, stride=1,
            tokens=tokens, place=place, rank=rank,
        )  # fmt: skip
        rows = self.machine.vector[30 : 30 + tokens]
        assert (rows == rows[:, :1]).all()
        return rows[:, 0].tolist()


def test_entries_and_words_of_choices() -> None:
    """Each place has its own, though none has a token; ties go to the lower id."""
    bench = Bench()
    assert not bench.choose([0.5, 3, 1, 3], [2, -1, 2, 2], [-4, -3, -2, -1])
    assert not bench.machine.readback
    wanted = [[1, 3, 2], [0, 2, 3], [3, 2, 1]]
    values = [[3, 3, 1], [2, 2, 2], [-1, -2, -3]]
    for rank in range(3):
        entries = bench.load(Index.CHOICE, rank, tokens=3)
        assert not bench.status
        assert entries == [4 + each[rank] for each in wanted]
        assert bench.load(Index.CHOICE, rank, tokens=2, place=1) == entries[1:]
        words = torch.tensor(bench.load(Index.CHOICE_VALUE, rank, tokens=3))
        assert not bench.status
        assert float_from_bits(words).tolist() == [each[rank] for each in values]


def test_choices_stay_until_the_next_ones() -> None:
    bench = Bench()
    assert bench.load(Index.CHOICE, 0) == [0]  # no choice after reset
    assert bench.status == CommandStatus.RANGE
    assert not bench.choose([1, 2, 3, 4])
    assert not bench.choose([9, 2, 3, 4], route=2, end=0)
    assert not bench.do(Opcode.TOP_K, src=10, tokens=1, length=2, first=5)
    assert bench.machine.readback == [5]
    assert bench.load(Index.CHOICE, 0) == [7]
    assert not bench.choose([9, 2, 3, 4], route=2)
    assert [bench.load(Index.CHOICE, rank)[0] for rank in range(3)] == [4, 7, 0]
    assert bench.status == CommandStatus.RANGE  # of the third, which is no choice now
    assert bench.choose([float("nan"), 5, 2, 1]) == CommandStatus.NONFINITE
    assert [bench.load(Index.CHOICE, rank)[0] for rank in range(3)] == [5, 6, 7]


def test_pieces_of_a_choice() -> None:
    bench = Bench()
    assert not bench.choose([1, 7, 2, 0], end=0)
    words = bits_from_float(torch.tensor([5.0, 9.0, 1.0], dtype=torch.float64))
    bench.machine.state.write(10, words)
    assert not bench.do(Opcode.TOP_K, src=10, tokens=1, length=3, first=8, begin=0, route=3)
    assert [bench.load(Index.CHOICE, rank)[0] for rank in range(3)] == [4 + 9, 4 + 1, 4 + 8]


def test_ids_of_the_limit_have_no_entry() -> None:
    bench = Bench()
    bench.machine.state.write(10, torch.tensor([0x3C00, 0x4000]))
    assert not bench.do(Opcode.TOP_K, src=10, tokens=1, length=2, first=15, route=2)
    for index in (Index.CHOICE, Index.CHOICE_VALUE):
        assert bench.load(index, 0) == [0]
        assert bench.status == CommandStatus.RANGE
        assert bench.load(index, 1) != [0]
        assert not bench.status


@pytest.mark.parametrize(
    ("opcode", "wrong"),
    [
        (Opcode.LOAD_AT, {"index": Index.CHOICE}),
        (Opcode.LOAD_AT, {"index": Index.CHOICE_VALUE}),
        (Opcode.LOAD_AT, {"rank": 1}),
        (Opcode.LOAD_AT, {"place": 1}),
        (Opcode.TOP_K, {"route": 1}),
        (Opcode.MATMUL, {"based": 1}),
    ],
)
def test_a_machine_without_experts(opcode: Opcode, wrong: dict[str, int]) -> None:
    given: dict[Opcode, dict[str, int]] = {
        Opcode.LOAD_AT: {"address": 0, "rows": 1, "index": 0, "limit": 9, "dst": 0},
        Opcode.TOP_K: {"src": 0, "length": 4, "first": 0},
        Opcode.MATMUL: {"mode": 2, "length": 1, "outputs": 1, "weights": 0, "dst": 9},
    }
    assert Bench(PLAIN).do(opcode, **given[opcode] | wrong) == CommandStatus.RANGE
    assert Bench(PLAIN).do(Opcode.WEIGHT_BASE, src=0) == CommandStatus.RANGE
    bench = Bench()
    assert not bench.choose([1, 2, 3], [1, 2, 3])
    assert bench.do(opcode, **given[opcode] | wrong) != CommandStatus.RANGE
    with pytest.raises(ConfigError, match=r"experts must be 0 without a batch, not 2"):
        dataclasses.replace(MACHINES["small"], experts=2)


def test_beyond_the_machine() -> None:
    bench = Bench()
    assert bench.choose([1, 2], route=4) == CommandStatus.RANGE
    assert bench.do(Opcode.WEIGHT_BASE, src=MACHINE.vector_rows) == CommandStatus.RANGE
    given = {"address": 0, "rows": 1, "index": Index.CHOICE, "limit": 9, "dst": 0, "tokens": 2}
    assert bench.do(Opcode.LOAD_AT, **given, place=2) == CommandStatus.RANGE
    assert not bench.choose([1, 2], [1, 2])
    assert not bench.do(Opcode.LOAD_AT, **given, stride=1)
    asm = Assembler(MACHINE)
    dst = asm.vector(16, 2)
    with pytest.raises(AssemblyError, match=r"LOAD_AT\.place must be 0\.\.1, not 2"):
        asm.load_at(address=0, rows=1, index=Index.CHOICE, limit=9, dst=dst, place=2)


@pytest.mark.parametrize("base", [1, 0x10000, 0x12345678, 0xFFFFFFFF])
def test_bases(base: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that the weights are read from, with a base and without."""
    bench, seen = Bench(), []
    monkeypatch.setattr(bench.machine, "_weights", lambda *args: seen.append(args[0]))
    bench.machine.vector[5, :2] = torch.tensor([base & 0xFFFF, base >> 16])
    bench.machine.vector[8 : 8 + 17] = 0
    assert not bench.do(Opcode.LANE_CODEBOOK, src=8, kind=0)
    given = {"mode": 2, "length": 1, "outputs": 1, "dst": 40, "src": 8}
    assert bench.do(Opcode.MATMUL, **given, weights=7, based=1) == CommandStatus.BUS_ERROR
    assert not bench.do(Opcode.WEIGHT_BASE, src=5)
    for weights in (7, 0xFFFFFFFE):
        bench.do(Opcode.MATMUL, **given, weights=weights, based=1)
        bench.do(Opcode.MATMUL, **given, weights=weights)
    assert seen == [7, (7 + base) % 2**32, 7, (0xFFFFFFFE + base) % 2**32, 0xFFFFFFFE]


def test_waits_for_choices() -> None:
    """LOAD_AT waits for the TOP_K of its place alone; TOP_K for the LOAD_AT before it."""
    asm = Assembler(MACHINE)
    x, y = asm.vector(16, 3), asm.vector(16, 3)
    for place in range(3):
        asm.top_k(src=x.token(place), place=place, route=2)
    given = {"address": 0, "rows": 1, "limit": 9, "dst": y.token(0)}
    asm.load_at(index=Index.CHOICE, place=1, **given)  # type: ignore[arg-type]
    asm.load_at(index=Index.TOKEN, **given)  # type: ignore[arg-type]
    asm.top_k(src=x.token(0), place=1, route=2)
    asm.top_k(src=x.token(0), place=1)
    words = asm.words()
    waits = [decode(words[n : n + 16])[2] for n in range(0, len(words), 16)]
    assert [each[Unit.READ] for each in waits[3:5]] == [2, 2]
    assert waits[2][Unit.LOAD] == 0
    assert waits[5][Unit.LOAD] == 1


# Layers.


@functools.cache
def quantized_example(name: str) -> QuantizedLayer:
    return quantize_layer(example(name).weights, example(name).seen)


def history(name: str, tokens: int) -> History:
    seen = example(name).seen
    return history_of(quantized_example(name), seen["k"][:tokens], seen["v"][:tokens])


def other_context(name: str, context: int) -> int:
    """A later place of the text, whose token has other best experts."""
    found = example(name)
    post, weights = found.seen["post"], found.weights
    u = post * torch.rsqrt(post.square().mean(-1, keepdim=True) + weights.shape.epsilon)
    best = (u * weights.post_norm @ weights.linear["router"].t()).topk(2).indices.tolist()
    return next(n for n in range(context + 1, 60) if set(best[n]) != set(best[context]))


@pytest.mark.parametrize("name", OF_EXPERTS)
def test_each_token_has_its_own_experts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of a step, an empty place among them: each to the bit as in a step of its own."""
    machines: list[Machine] = []

    class Seen(Machine):
        def __init__(self, *args, **fields) -> None:
            super().__init__(*args, **fields)
            machines.append(self)

    monkeypatch.setattr(host, "Machine", Seen)
    found, quantized = example(name), quantized_example(name)
    contexts, chosen = (9, other_context(name, 9)), []
    histories = [history(name, context) for context in contexts]
    alone = []
    for sequence, context in enumerate(contexts):
        new = slice(context, context + 1)
        given = (each[new] for each in (found.inputs.x, found.inputs.cos, found.inputs.sin))
        compiled = compile_layer(quantized, LARGE, 1, context)
        alone.append(run_layer(compiled, *given, histories, [Place(sequence, context)]).y[0])
        chosen.append(ids(machines[-1].choices[0]).tolist())
    assert chosen[0] != chosen[1]
    pick = [contexts[0], 0, contexts[1]]
    x, cos, sin = (each[pick] for each in (found.inputs.x, found.inputs.cos, found.inputs.sin))
    x = x * torch.tensor([[1.0], [0.0], [1.0]])
    batch = [Place(0, contexts[0]), None, Place(1, contexts[1])]
    compiled = compile_layer(quantized, LARGE, 3, max(contexts))
    made = run_layer(compiled, x, cos, sin, histories, batch)
    assert torch.equal(made.y[0], alone[0])
    assert torch.equal(made.y[2], alone[1])
    assert [ids(machines[-1].choices[n]).tolist() for n in (0, 2)] == chosen


@pytest.mark.parametrize("name", OF_EXPERTS)
def test_the_router_is_as_near_as_fp16(name: str) -> None:
    """The images together are off by no more than the roundings of FP16 logits."""
    weights, quantized = example(name).weights, quantized_example(name)
    images = [quantized.weight[router_image(n)] for n in range(ROUTER_IMAGES)]
    real = weights.linear["router"].t() * weights.post_norm[:, None]
    left = real - sum(each.dequantize() for each in images)
    assert float(left.norm() / real.norm()) < 2.0**-9
    assert len({tuple(each.codebook.tolist()) for each in images}) == 1


def test_a_layer_of_experts_is_saved(tmp_path) -> None:
    quantized = quantized_example("experts")
    quantized.save(tmp_path / "layer.npz")
    found = QuantizedLayer.load(tmp_path / "layer.npz")
    assert found.shape == quantized.shape
    assert found.weight.keys() == quantized.weight.keys()
    assert all(torch.equal(found.weight[n].index, quantized.weight[n].index) for n in found.weight)
    made = [compile_layer(each, LARGE, 1, 5) for each in (quantized, found)]
    assert np.array_equal(made[0].data, made[1].data)
    assert all(map(np.array_equal, made[0].weights, made[1].weights))


def test_biases_of_experts_and_router() -> None:
    """gpt-oss has them; near the layer in float64, in which they are added."""
    found = example("experts")
    rng = torch.Generator().manual_seed(3)
    weights = found.weights
    names = [name for name in weights.linear if name[0] not in "qkvo"]
    bias = {
        name: torch.randn(len(weights.linear[name]), generator=rng, dtype=torch.float64)
        for name in names
    }
    shape = dataclasses.replace(weights.shape, biases=("gate", "up", "down", "router"))
    weights = dataclasses.replace(weights, shape=shape, bias=bias)
    inputs = found.inputs
    seen = reference(weights, inputs.x, inputs.cos, inputs.sin)
    quantized = quantize_layer(weights, seen, options=LayerOptions(glu="exact"))
    errors = []
    for context in (20, 33, 47):
        new = slice(context, context + 1)
        cached = history_of(quantized, seen["k"][:context], seen["v"][:context])
        compiled = compile_layer(quantized, LARGE, 1, context)
        given = inputs.x[new], inputs.cos[new], inputs.sin[new]
        run = run_layer(compiled, *given, [cached])
        real = seen["y"][new] - inputs.x[new]
        errors.append(float((run.value - seen["y"][new]).norm() / real.norm()))
    # Of 4 bits. Without a bias one is above 0.4; without the router's other experts are chosen.
    assert max(errors) < 0.2, errors


def test_what_the_compiler_refuses() -> None:
    shape = quantized_example("experts").shape
    with pytest.raises(ConfigError, match=r"\.experts must be 2 for this layer, not 0"):
        layer_program(shape, LayerOptions(), PLAIN)
    with pytest.raises(ConfigError, match="and parts 1, not 96 in 3 parts"):
        layer_program(shape, LayerOptions(parts=3), LARGE)
    with pytest.raises(ConfigError, match="norm_places must be before with experts, not 'both'"):
        dataclasses.replace(shape, norm_places="both")
    many = dataclasses.replace(shape, experts=300)
    with pytest.raises(ConfigError, match=r"softmax_elements must be 300 for this layer, not 256"):
        layer_program(many, LayerOptions(), LARGE)
    for active in (0, 5):
        with pytest.raises(ConfigError, match=rf"LayerShape\.active must be 1\.\.4, not {active}"):
            dataclasses.replace(shape, active=active)
    with pytest.raises(ConfigError, match=r"LayerShape\.active must be 0\.\.0, not 1"):
        LayerShape(hidden=64, heads=2, kv_heads=2, head_size=32, intermediate=64, active=1)
