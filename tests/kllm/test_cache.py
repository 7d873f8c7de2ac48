"""The unit CACHE of the golden machine: its arithmetic, its programs, its faults.

Shown to fail:

- the rows of another token, or of another KV head, attended;
- K appended where V belongs;
- a place without a token that appends;
- a refused token whose rows are written.
"""

import dataclasses
import zlib

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.kllm.assembler import Assembler, AssemblyError
from golden.kllm.cache import CacheUnit, Place
from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.isa import CommandStatus, Opcode, Unit, encode
from golden.kllm.layer.compiler import compile_layer
from golden.kllm.layer.host import memories
from golden.kllm.layer.shape import LayerOptions
from golden.kllm.machine import Machine
from golden.llm.kllm.reference import reference
from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.kv_engine import Request
from golden.paging.format import Kv, Op, Status
from tests.kllm.test_layer import SMALL, relative, tiny, tiny_quantized

THRESHOLDS = bits_from_float(torch.tensor([-2.0, -0.02, 0.02, 2.0])).tolist()
CACHE = CacheConfig(
    kv=KvShape(heads=2, head_dim=32, block=32), sequences=4, layers=2, pages=512, page_bytes=256,
    max_tokens=64,
)  # fmt: skip
PAGED = dataclasses.replace(SMALL, batch=3, cache=CACHE)
CENTRED = LayerOptions(center=True)


def unit(config: MachineConfig = PAGED) -> CacheUnit:
    """A cache with thresholds for each layer."""
    made = CacheUnit(config.cache, config.batch, config.engines)
    made.begin(torch.tensor(THRESHOLDS).expand(config.cache.layers, len(Kv), -1))
    return made


def opened(made: CacheUnit) -> int:
    answer = made.request(Request(Op.OPEN))
    assert answer.status == Status.OK
    return answer.sequence


def fp16(values) -> torch.Tensor:
    return bits_from_float(torch.as_tensor(values, dtype=torch.float64))


def history(made: CacheUnit, sequence: int, k: torch.Tensor, v: torch.Tensor, layer=0) -> None:
    """Tokens of real (T, D) K and V, appended from the beginning."""
    for kv, real in ((Kv.K, k), (Kv.V, v)):
        for token, words in enumerate(fp16(real).tolist()):
            request = Request(Op.APPEND, sequence, layer, kv, token=token, vector=words)
            assert made.request(request).status == Status.OK


def decoded(made: CacheUnit, sequence: int, kv: Kv, tokens: int, layer=0) -> torch.Tensor:
    """(heads, tokens, head_dim) real."""
    heads = CACHE.kv.heads
    answer = made.request(Request(Op.READ, sequence, layer, kv, 0, heads, tokens))
    assert answer.status == Status.OK
    return float_from_bits(torch.tensor(answer.words))


@pytest.mark.parametrize(
    ("tokens", "context", "glu"),
    [(1, 0, "index"), (1, 20, "index"), (2, 7, "index"), (3, 4, "exact")],
)
def test_a_layer_attends_to_the_pages(tokens: int, context: int, glu: str) -> None:
    """Near the real layer, and the pages are near its K and V: 4 bits are the distance."""
    quantized = tiny_quantized(dataclasses.replace(CENTRED, glu=glu))
    _, weights, (cos, sin) = tiny()
    end = context + tokens
    compiled = compile_layer(quantized, PAGED, tokens, context)
    x = torch.randn(end, 80, generator=torch.Generator().manual_seed(2)).half().double()
    whole = reference(weights, x, cos[:end], sin[:end])
    assert quantized.offset is not None
    keys = whole["k"].double() + float_from_bits(quantized.offset)
    cached = unit()
    opened(cached)  # sequence 0 stays empty
    sequence = opened(cached)
    history(cached, sequence, *(each[:context].flatten(1) for each in (keys, whole["v"])))
    for t in range(tokens):
        cached.batch[t] = Place(sequence, context + t)
    new = x[context:], cos[context:end], sin[context:end]
    machine = Machine(PAGED, *memories(compiled, *new))
    machine.cache = cached
    assert not any(result.status for result in machine.run(compiled.program.words))
    words = torch.tensor(machine.readback)
    y = float_from_bits(torch.stack((words & 0xFFFF, words >> 16), 1).reshape(tokens, 80))
    moved = whole["y"][context:] - x[context:]
    assert relative(y - x[context:], moved) < 0.35
    for kv, real in ((Kv.K, keys), (Kv.V, whole["v"].double())):
        held = decoded(cached, sequence, kv, end).transpose(0, 1)
        assert relative(held[context:], real[context:]) < 0.25
    answer = cached.request(Request(Op.READ, 0, 0, 0, 0, 2, 1))
    assert answer.status == Status.BEYOND_LENGTH


def program(config: MachineConfig = PAGED) -> tuple[Assembler, list]:
    """APPEND of V and K, then ATTEND, of three tokens; q with three heads per KV head."""
    asm = Assembler(config)
    kv = config.cache.kv
    k, v = (asm.vector(kv.elements, config.batch) for _ in range(2))
    q, o = (asm.vector(3 * kv.elements, config.batch) for _ in range(2))
    asm.append(src=v, layer=1, kv=Kv.V)
    asm.append(src=k, layer=1, kv=Kv.K)
    asm.attend(src=q, dst=o, layer=1, heads=3 * kv.heads)
    return asm, [k, v, q, o]


def step(cached: CacheUnit, seed: int, config: MachineConfig = PAGED):
    """(results, o (3, length), machine) of ``program`` on random vectors."""
    asm, (k, v, q, o) = program()
    machine = Machine(config)
    machine.cache = cached
    generator = torch.Generator().manual_seed(seed)
    for vector in (k, v, q, o):
        for t in range(vector.tokens):
            words = fp16(torch.randn(vector.length, generator=generator).double())
            machine.state.write(vector.token(t).row, words)
    before = [machine.state.read(o.token(t).row, o.length) for t in range(3)]
    results = machine.run(asm.words())
    after = [machine.state.read(o.token(t).row, o.length) for t in range(3)]
    return results, after, before


def test_a_batch_is_each_sequence_alone() -> None:
    """Sequences of other lengths in the batch change no bit; an empty place gives zeros."""
    generator = torch.Generator().manual_seed(9)
    past = [torch.randn(2, n, 64, generator=generator) for n in (0, 40, 5)]
    alone = []
    for t in range(3):
        cached = unit()
        sequence = opened(cached)
        history(cached, sequence, *past[t], layer=1)
        cached.batch[t] = Place(sequence, past[t].shape[1])
        results, made, _ = step(cached, 1)
        assert not any(result.status for result in results)
        assert all(not words.any() for n, words in enumerate(made) if n != t)
        alone.append(made[t])
    cached = unit()
    sequences = [opened(cached) for _ in range(3)][::-1]
    for t, sequence in enumerate(sequences):
        history(cached, sequence, *past[t], layer=1)
        cached.batch[t] = Place(sequence, past[t].shape[1])
    results, made, _ = step(cached, 1)
    assert not any(result.status for result in results)
    assert all(torch.equal(a, b) for a, b in zip(made, alone, strict=True))
    assert cached.engines[0].free_pages < CACHE.pages
    for sequence in sequences:
        assert cached.request(Request(Op.FREE, sequence)).status == Status.OK
    assert cached.engines[0].free_pages == CACHE.pages


def test_an_empty_place_takes_nothing() -> None:
    cached = unit()
    opened(cached)
    free = cached.engines[0].free_pages
    results, made, _ = step(cached, 2)
    assert not any(result.status for result in results)
    assert not any(words.any() for words in made)
    assert cached.engines[0].free_pages == free


def test_statuses_of_places() -> None:
    """The good token goes on; a refused one leaves its rows; the status has the bits of all."""
    cached = unit()
    good = opened(cached)
    cached.batch[:] = [Place(good, 0), Place(3, 0), Place(good, 5)]
    results, made, before = step(cached, 3)
    assert [result.status for result in results] == [CommandStatus.SLOT_MISMATCH] * 3
    assert not torch.equal(made[0], before[0])
    assert torch.equal(made[1], before[1])
    assert torch.equal(made[2], before[2])


def test_memory_faults_and_a_full_cache() -> None:
    cached = unit()
    sequence = opened(cached)
    cached.batch[0] = Place(sequence, 0)
    assert not any(result.status for result in step(cached, 4)[0])
    cached.batch[0] = Place(sequence, 1)
    cached.memory = [Status.DECODE_ERROR]
    results, made, _ = step(cached, 5)
    assert results[0].status == results[1].status == CommandStatus.BUS_ERROR
    assert results[2].status == CommandStatus.SLOT_MISMATCH  # token 1 was not appended
    cached.batch[0] = Place(sequence, 0)
    results, made, _ = step(cached, 5)
    assert results[2].status == CommandStatus.BUS_ERROR
    assert (made[0] == 0x7E00).all()
    cached.memory = [Status.OK]
    token = 1
    while True:
        cached.batch[0] = Place(sequence, token)
        results, _, _ = step(cached, 6)
        if results[0].status:
            break
        token += 1
    assert results[0].status == CommandStatus.CAPACITY
    assert token == CACHE.max_tokens


@pytest.mark.parametrize("word", [0x7E00, 0xFC00, 0x7BFF])
def test_a_query_without_a_result(word: int) -> None:
    """NaN, infinity, scores beyond FP16: NaN for this query of the first token alone."""
    asm, (k, v, q, o) = program()
    machine = Machine(PAGED)
    machine.cache = unit()
    machine.cache.batch[:2] = [Place(opened(machine.cache), 0) for _ in range(2)]
    for vector in (k, v, q):
        for t in range(3):
            machine.state.write(vector.token(t).row, fp16(torch.full((vector.length,), 1.0)))
    queries = torch.full((q.length,), 0x3C00)
    queries[32:64] = word
    machine.state.write(q.row, queries)
    results = machine.run(asm.words())
    assert [result.status for result in results] == [0, 0, CommandStatus.NONFINITE]
    made = [machine.state.read(o.token(t).row, o.length) for t in range(2)]
    assert (made[0][32:64] == 0x7E00).all()
    rest = torch.cat((made[0][:32], made[0][64:], made[1]))
    assert len(rest.unique()) == 1
    assert float_from_bits(rest[0]).item() == pytest.approx(1, abs=0.1)


def test_a_layer_without_thresholds() -> None:
    cached = CacheUnit(CACHE, 3)
    cached.batch[0] = Place(opened(cached), 0)
    results, _, _ = step(cached, 7)
    assert [result.status for result in results] == [CommandStatus.CODEBOOK_MISSING] * 3


PLAIN = {"window": 0, "cap": 0, "sinks": 0, "has_sinks": 0}  # of ATTEND


@pytest.mark.parametrize(
    ("opcode", "wrong"),
    [
        (Opcode.APPEND, {"tokens": 0}),
        (Opcode.APPEND, {"tokens": 4}),
        (Opcode.APPEND, {"place": 3}),
        (Opcode.ATTEND, {"place": 2, "tokens": 2}),
        (Opcode.APPEND, {"layer": 2}),
        (Opcode.APPEND, {"src": 253}),
        (Opcode.APPEND, {"tokens": 2, "stride": 300}),
        (Opcode.ATTEND, {"heads": 3}),
        (Opcode.ATTEND, {"heads": 0}),
        (Opcode.ATTEND, {"layer": 255}),
        (Opcode.ATTEND, {"dst": 253}),
        (Opcode.ATTEND, {"tokens": 3, "dst_stride": 130}),
        (Opcode.ATTEND, {"window": 1}),
        (Opcode.ATTEND, {"cap": 1 << 31}),
        (Opcode.ATTEND, {"has_sinks": 1}),
    ],
)
def test_range(opcode: Opcode, wrong: dict[str, int]) -> None:
    cached = unit()
    cached.batch[0] = Place(opened(cached), 0)
    machine = Machine(PAGED)
    machine.cache = cached
    append = {"src": 0, "stride": 4, "tokens": 1, "layer": 1, "place": 0}
    if opcode == Opcode.APPEND:
        good = append | {"kv": 0}
    else:
        good = append | {"dst": 100, "dst_stride": 4, "heads": 2, **PLAIN}
        first, second = (encode(Opcode.APPEND, 0, {}, append | {"kv": kv}) for kv in Kv)
        assert not any(result.status for result in machine.run(first + second))
    assert machine.run(encode(opcode, 1, {}, good | wrong))[0].status == CommandStatus.RANGE
    assert not machine.run(encode(opcode, 2, {}, good))[0].status


@pytest.mark.parametrize("groups", [1, 2])
def test_order_of_the_cache_changes_no_bit(groups: int) -> None:
    """A cache of records by token attends as one of records by head.

    Shown to fail: heads of a group taken for tokens.
    """
    made = []
    for kv in (CACHE.kv, dataclasses.replace(CACHE.kv, order="token", groups=groups)):
        config = dataclasses.replace(PAGED, cache=dataclasses.replace(CACHE, kv=kv))
        cached = unit(config)
        past = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(4))
        sequence = opened(cached)
        history(cached, sequence, *past, layer=1)
        cached.batch[0] = Place(sequence, 5)
        results, words, _ = step(cached, 8)
        assert not any(result.status for result in results)
        made.append(words[0])
    assert made[0].any()
    assert torch.equal(*made)


TWO = dataclasses.replace(PAGED, engines=2)


def test_an_engine_is_a_cache_of_its_heads() -> None:
    """Each head of two engines is that of a unit with this head alone.

    Shown to fail: queries of the other engine's heads; the first engine's vector in both.
    """
    generator = torch.Generator().manual_seed(11)
    past = torch.randn(2, 6, 64, generator=generator)
    q = fp16(torch.randn(2, 192, generator=generator).double())
    both, one = unit(TWO), CACHE.part(2)
    places = [Place(opened(both), 5), None, Place(opened(both), 0)]
    both.batch[:] = places
    history(both, 0, *past)
    history(both, 1, *past[:, 3:])
    made, status = both.attend([q[0], q[1], q[1]], 0)
    assert not status
    assert not any(part.any() for part in made[1] if part is not None)
    for n in range(2):
        alone = CacheUnit(one, 3)
        alone.begin(torch.tensor(THRESHOLDS).expand(2, len(Kv), -1))
        alone.batch[:] = [Place(opened(alone), 5), None, Place(opened(alone), 0)]
        some = past.chunk(2, dim=-1)[n]
        history(alone, 0, *some)
        history(alone, 1, *some[:, 3:])
        words, _ = alone.attend([part.chunk(2)[n] for part in (q[0], q[1], q[1])], 0)
        for t in range(3):
            found, wanted = made[t][n], words[t][0]
            assert found is not None
            assert wanted is not None
            assert torch.equal(found, wanted)
    assert not torch.equal(*(part for part in made[0] if part is not None))


def test_an_append_that_one_engine_refuses() -> None:
    """The others keep their tokens; the sequence goes on when it is repeated, and FREE ends it.

    Shown to fail: a status that is the last engine's alone; an append that ends with the first
    fault; a refused part that is written.
    """
    cached = unit(TWO)
    sequence = opened(cached)
    cached.batch[0] = Place(sequence, 0)
    assert not any(result.status for result in step(cached, 4, TWO)[0])
    cached.batch[0] = Place(sequence, 1)
    cached.memory[1] = Status.SLAVE_ERROR
    results, made, before = step(cached, 5, TWO)
    assert [result.status for result in results[:2]] == [CommandStatus.BUS_ERROR] * 2
    # The first engine attends; the second has no such token.
    assert results[2].status == CommandStatus.SLOT_MISMATCH
    assert not torch.equal(made[0][:96], before[0][:96])
    assert torch.equal(made[0][96:], before[0][96:])
    assert [each.tokens(sequence, 1, 0) for each in cached.engines] == [2, 1]
    assert cached.tokens(sequence, 1, 0) == 1
    cached.memory[1] = Status.OK
    # Of all engines, that of the first whose status is not OK: layer 0 has no token at all.
    trim = Request(Op.TRIM, sequence, token=1)
    assert cached.request(trim).status == Status.BEYOND_LENGTH
    results, made, _ = step(cached, 5, TWO)
    assert [result.status for result in results] == [CommandStatus.SLOT_MISMATCH] * 2 + [0]
    assert [each.tokens(sequence, 1, 0) for each in cached.engines] == [2, 2]
    cached.batch[0] = Place(sequence, 2)
    assert not any(result.status for result in step(cached, 6, TWO)[0])
    # A memory that fails a READ: NaN of its heads, and words of the others.
    cached.memory[0] = Status.DECODE_ERROR
    operands = {"src": 0, "stride": 0, "tokens": 1, "layer": 1, "dst": 100, "dst_stride": 0,
                "heads": 6, "place": 0, **PLAIN}  # fmt: skip
    machine = Machine(TWO)
    machine.cache = cached
    status = machine.run(encode(Opcode.ATTEND, 0, {}, operands))[0].status
    assert status == CommandStatus.BUS_ERROR
    o = machine.state.read(100, 192)
    assert (o[:96] == 0x7E00).all()
    assert not (o[96:] == 0x7E00).any()
    cached.memory[:] = [Status.OK] * 2
    assert cached.request(Request(Op.FREE, sequence)).status == Status.OK
    assert [each.free_pages for each in cached.engines] == [CACHE.pages] * 2
    assert opened(cached) == sequence


def test_trims_of_engines_meet_again() -> None:
    """A TRIM that one engine refuses trims the other; when it is repeated, both are alike."""
    config = dataclasses.replace(TWO, cache=dataclasses.replace(CACHE, layers=1))
    cached = unit(config)
    sequence = opened(cached)
    history(cached, sequence, *torch.ones(2, 3, 64))
    more = Request(Op.APPEND, sequence, token=3, vector=[0] * 32)
    for kv in Kv:
        assert cached.engines[0].request(more._replace(kv=kv)).status == Status.OK
    trim = Request(Op.TRIM, sequence, token=4)
    assert cached.request(trim).status == Status.BEYOND_LENGTH
    read = Request(Op.READ, sequence, heads=1, token=3)
    assert [each.request(read).status for each in cached.engines] == [Status.EMPTY, Status.OK]
    for kv in Kv:
        assert cached.engines[1].request(more._replace(kv=kv)).status == Status.OK
    assert cached.request(trim).status == Status.OK
    assert [each.request(read).status for each in cached.engines] == [Status.EMPTY] * 2


def test_engines_of_a_machine() -> None:
    """One engine, and no experts, keep the word that a machine had without the field."""
    said = repr(MACHINES["small"]).replace(", engines=1", "").replace(", experts=0", "")
    assert "engines" not in said
    assert "experts" not in said
    assert dataclasses.replace(PAGED, experts=2).word != PAGED.word
    assert MACHINES["small"].word == zlib.crc32(said.encode())
    assert dataclasses.replace(PAGED, engines=2).word != PAGED.word
    with pytest.raises(ConfigError, match=r"engines must be a divisor of cache.kv.heads = 2"):
        dataclasses.replace(PAGED, engines=4)
    kv = KvShape(heads=6, head_dim=32, block=32, order="token", groups=3)
    grouped = dataclasses.replace(CACHE, kv=kv)
    with pytest.raises(ConfigError, match=r"engines must be a divisor of cache.kv.groups = 3"):
        dataclasses.replace(PAGED, cache=grouped, engines=2)
    assert dataclasses.replace(PAGED, cache=grouped, engines=3).cache_part.kv.groups == 1


@pytest.mark.parametrize("heads", [2, 4, 6])
def test_queries_of_a_machine(heads: int) -> None:
    """``queries`` above 0 is the one number of query heads."""
    machine = Machine(dataclasses.replace(PAGED, queries=2))
    operands = {"src": 0, "stride": 0, "tokens": 1, "layer": 0, "dst": 100, "dst_stride": 0,
                "place": 0, **PLAIN}  # fmt: skip
    result = machine.run(encode(Opcode.ATTEND, 0, {}, operands | {"heads": heads}))[0]
    assert result.status == (CommandStatus(0) if heads == 4 else CommandStatus.RANGE)


def test_a_machine_without_the_unit() -> None:
    """Its opcodes are unknown, and the bits of its wait must be zero."""
    words = program()[0].words()
    results = Machine(SMALL).run(words)
    assert [result.status for result in results] == [CommandStatus.MALFORMED] * 3
    assert all(result.unit == Unit.LOAD for result in results)
    with pytest.raises(AssemblyError, match="has no unit CACHE"):
        program(dataclasses.replace(PAGED, batch=0))
    operands = {"src": 0, "rows": 1}
    waits = encode(Opcode.READ, 3, {Unit.CACHE: 1}, operands)
    assert Machine(SMALL).run(waits)[0].status == CommandStatus.MALFORMED
    assert Machine(PAGED).run(waits)[0].status == CommandStatus.DEPENDENCY
    assert not Machine(SMALL).run(encode(Opcode.READ, 4, {}, operands))[0].status


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SMALL, "batch must be 2"),
        (dataclasses.replace(PAGED, cache=CacheConfig(kv=KvShape(heads=1, head_dim=32, block=32))),
         "cache.kv.heads must be 2"),
        (dataclasses.replace(PAGED, queries=3), "queries must be 2"),
        (dataclasses.replace(PAGED, cache=dataclasses.replace(CACHE, max_tokens=10)),
         "cache.max_tokens must be 12"),
    ],
)  # fmt: skip
def test_a_layer_that_the_unit_does_not_serve(config: MachineConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compile_layer(tiny_quantized(CENTRED), config, 2, 10)
