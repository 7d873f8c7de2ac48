"""Typed streams (link, queue, skid, arbiter, fork): words arrive in order, field by field (pysim).

Seen to fail with: ``rename`` applied to the wrong side, widths not compared, and fields connected
by position. Also with a fork whose source is ready when one output is, and with an arbiter that
does not drive ``last`` of its block.
"""

import random

import pytest
from amaranth import Module, Shape, Signal, Value, signed
from amaranth.lib import data, stream
from amaranth.sim import Simulator

from golden.config import ConfigError
from hdl.stream.arbiter import arbiter
from hdl.stream.fork import fork
from hdl.stream.link import StreamView, link
from hdl.stream.queue import queue
from hdl.stream.skid import skid

INNER = data.StructLayout({"x": 3, "y": signed(4)})
LAYOUT = data.StructLayout({"a": 5, "inner": INNER, "words": data.ArrayLayout(6, 3), "last": 1})


def used(m):
    """``m``, which stays without elaboration, without Amaranth's warning about that."""
    m._MustUse__silence = True
    return m


def stream_of(shape):
    return stream.Signature(shape).create()


def moved(source_shape, sink_shape, rename, word, discard=()):
    """The fields of the sink after one word on the source."""
    m = Module()
    source, sink = stream_of(source_shape), stream_of(sink_shape)
    link(m, source, sink, rename, discard)
    seen = {}

    async def bench(ctx):
        ctx.set(source.payload, word)
        ctx.set(source.valid, 1)
        ctx.set(sink.ready, 1)
        await ctx.delay(1e-9)
        seen["word"] = ctx.get(sink.payload)
        seen["flow"] = ctx.get(sink.valid), ctx.get(source.ready)
        ctx.set(source.valid, 0)
        ctx.set(sink.ready, 0)
        await ctx.delay(1e-9)
        seen["idle"] = ctx.get(sink.valid), ctx.get(source.ready)

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()
    assert seen["flow"] == (1, 1)
    assert seen["idle"] == (0, 0)
    return seen["word"]


def test_fields_go_by_name():
    word = moved(
        data.StructLayout({"a": 4, "b": 4}), data.StructLayout({"b": 4, "a": 4}), {},
        {"a": 3, "b": 12},
    )  # fmt: skip
    assert (word.a, word.b) == (3, 12)


def test_rename_maps_source_to_sink():
    word = moved(
        data.StructLayout({"a": 4, "b": 4}), data.StructLayout({"b": 4, "c": 4}), {"a": "c"},
        {"a": 3, "b": 12},
    )  # fmt: skip
    assert (word.c, word.b) == (3, 12)


def test_a_swap_of_two_fields():
    layout = data.StructLayout({"a": 4, "b": 4})
    word = moved(layout, layout, {"a": "b", "b": "a"}, {"a": 3, "b": 12})
    assert (word.a, word.b) == (12, 3)


def test_a_discarded_field():
    word = moved(
        data.StructLayout({"a": 4, "b": 4}), data.StructLayout({"a": 4}), {}, {"a": 3, "b": 12},
        discard=("b",),
    )  # fmt: skip
    assert word.a == 3


def test_unknown_discard_is_refused():
    shape = data.StructLayout({"a": 4})
    with pytest.raises(ValueError, match=r"^link: discard has z; the source has a$"):
        link(used(Module()), stream_of(shape), stream_of(shape), discard=("z",))


def test_payload_without_fields():
    assert moved(9, 9, None, 300) == 300


@pytest.mark.parametrize(
    ("source", "sink", "rename", "says"),
    [
        ({"a": 4}, {"a": 5}, {}, "field 'a' of the source is unsigned(4), of the sink unsigned(5)"),
        ({"a": 4}, {"a": signed(4)}, {}, "of the sink signed(4)"),
        ({"a": 4}, {"b": 4}, {}, "the source has a, the sink b"),
        ({"a": 4, "last": 1}, {"a": 4}, {}, "the source has a, last, the sink a"),
        ({"i": INNER}, {"i": data.StructLayout({"y": signed(4), "x": 3})}, {}, "{x, y}"),
        ({"i": data.ArrayLayout(2, 3)}, {"i": data.ArrayLayout(3, 2)}, {}, "3 elements"),
        ({"i": INNER}, {"i": data.StructLayout({"x": 3, "y": signed(5)})}, {}, "signed(5)"),
    ],
)
def test_mismatch_is_refused(source, sink, rename, says):
    with pytest.raises(TypeError) as error:
        link(
            used(Module()),
            stream_of(data.StructLayout(source)),
            stream_of(data.StructLayout(sink)),
            rename,
        )  # fmt: skip
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_struct_and_bits_do_not_match():
    with pytest.raises(TypeError):
        link(used(Module()), stream_of(data.StructLayout({"a": 4, "b": 1})), stream_of(8))


@pytest.mark.parametrize("shape", [data.StructLayout({"a": 4}), 4])
def test_unknown_rename_is_refused(shape):
    with pytest.raises(ValueError, match=r"^link: rename has z; the source has \w+"):
        link(used(Module()), stream_of(shape), stream_of(shape), {"z": "a"})


@pytest.mark.parametrize("storage", ["flipflop", "memory"])
@pytest.mark.parametrize("depth", [1, 3])
def test_queue_keeps_words_and_fields(storage, depth, seed):
    rng = random.Random(seed)
    m = Module()
    source = stream_of(LAYOUT)
    typed = queue(m, "typed", LAYOUT, depth, storage=storage)
    link(m, source, typed.i)
    words = [
        {
            "a": rng.getrandbits(5),
            "inner": {"x": rng.getrandbits(3), "y": rng.randrange(-8, 8)},
            "words": [rng.getrandbits(6) for _ in range(3)],
            "last": rng.getrandbits(1),
        }
        for _ in range(40)
    ]
    got = []
    ready = Signal()
    m.d.comb += typed.o.ready.eq(ready)
    assert typed.i.payload.shape() == LAYOUT

    async def bench(ctx):
        sent, level = 0, 0
        while len(got) < len(words):
            offer = sent < len(words) and rng.random() < 0.7
            ctx.set(source.valid, offer)
            if offer:
                ctx.set(source.payload, words[sent])
            ctx.set(ready, rng.random() < 0.6)
            assert ctx.get(typed.level) == level
            if offer and ctx.get(source.ready):
                sent, level = sent + 1, level + 1
            if ctx.get(typed.o.valid) and ctx.get(ready):
                word = ctx.get(typed.o.payload)
                inner = {"x": word.inner.x, "y": word.inner.y}
                got.append({"a": word.a, "inner": inner, "words": [*word.words], "last": word.last})
                level -= 1
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert got == words


def test_queue_has_no_bit_that_its_shape_lacks():
    m = used(Module())
    typed = queue(m, "typed", 7, 2)
    assert len(typed.o.payload) == 7
    assert isinstance(typed.i, StreamView)
    m.submodules.typed._MustUse__silence = True


def test_queue_refuses_a_depth():
    with pytest.raises(ConfigError, match=r"^StreamFifoConfig\.depth must be 1\.\.65536, not 0$"):
        queue(used(Module()), "typed", 7, 0)


def test_fork_gives_each_output_every_word(seed):
    """Typed outputs that are ready at different times; the words of any width bypass the block."""
    rng = random.Random(seed)
    m = Module()
    source = stream_of(LAYOUT)
    outputs = fork(m, "fork", source, 3)
    ready = Signal(3)
    m.d.comb += [o.ready.eq(ready[n]) for n, o in enumerate(outputs)]
    assert all(o.payload.shape() == LAYOUT for o in outputs)
    words = [{"a": rng.getrandbits(5), "words": [rng.getrandbits(6)] * 3} for _ in range(40)]
    got = [[], [], []]

    async def bench(ctx):
        sent = 0
        while sent < len(words):
            ctx.set(source.payload, words[sent])
            ctx.set(source.valid, rng.random() < 0.7)
            ctx.set(ready, rng.getrandbits(3))
            for o, taken, is_ready in zip(outputs, got, f"{ctx.get(ready):03b}"[::-1], strict=True):
                if ctx.get(o.valid) and is_ready == "1":
                    taken.append(ctx.get(o.payload))
            sent += ctx.get(source.valid & source.ready)
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    expected = [(word["a"], word["words"]) for word in words]
    assert [[(w.a, [*w.words]) for w in taken] for taken in got] == [expected] * 3


@pytest.mark.parametrize("shape", [LAYOUT, 7])
def test_skid_keeps_words_and_shape(shape, seed):
    rng = random.Random(seed)
    m = Module()
    source = stream_of(shape)
    typed = skid(m, "typed", shape)
    link(m, source, typed.i)
    assert typed.o.payload.shape() == (shape if shape is LAYOUT else Shape(7))
    bits = Shape.cast(shape).width
    assert len(Value.cast(m.submodules.typed.o.payload)) == bits  # none that the shape lacks
    words = [rng.getrandbits(bits) for _ in range(40)]
    got = []
    ready = Signal()
    m.d.comb += typed.o.ready.eq(ready)

    async def bench(ctx):
        sent = 0
        while len(got) < len(words):
            offer = sent < len(words) and rng.random() < 0.7
            ctx.set(source.valid, offer)
            if offer:
                ctx.set(Value.cast(source.payload), words[sent])
            ctx.set(ready, rng.random() < 0.6)
            sent += offer and ctx.get(source.ready)
            if ctx.get(typed.o.valid) and ctx.get(ready):
                got.append(ctx.get(Value.cast(typed.o.payload)))
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert got == words


@pytest.mark.parametrize("has_last", [True, False])
def test_arbiter_keeps_packets_of_its_shape(has_last, seed):
    """Two inputs with packets of three words: interleaved by packets, or word by word."""
    rng = random.Random(seed)
    members = {"last": 1, "a": 5} if has_last else {"a": 5}
    shape = data.StructLayout(members)
    m = Module()
    sources = [stream_of(shape) for _ in range(2)]
    merged = arbiter(m, "merged", shape, 2)
    for source, sink in zip(sources, merged.i, strict=True):
        link(m, source, sink)
    assert merged.o.payload.shape() == shape
    words = [[rng.getrandbits(5) for _ in range(12)] for _ in range(2)]
    got = []
    m.d.comb += merged.o.ready.eq(1)

    async def bench(ctx):
        sent = [0, 0]
        while len(got) < 24:
            for source, word, n in zip(sources, words, sent, strict=True):
                ctx.set(source.valid, n < 12)
                if n < 12:
                    ctx.set(source.payload.a, word[n])
                    if has_last:
                        ctx.set(source.payload.last, n % 3 == 2)
            source = ctx.get(merged.source)
            got.append((source, ctx.get(merged.o.payload.a)))
            assert ctx.get(merged.o.valid)
            sent[source] += 1
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    length = 3 if has_last else 1
    order = [n // length % 2 for n in range(24)]
    places = [iter(words[0]), iter(words[1])]
    assert got == [(source, next(places[source])) for source in order]


def test_arbiter_refuses_a_policy():
    with pytest.raises(ConfigError, match=r"^StreamArbiterConfig\.policy must be "):
        arbiter(used(Module()), "merged", 7, 2, policy="lottery")
