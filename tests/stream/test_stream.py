"""Stream blocks against their references over many small configurations (pysim)."""

import dataclasses
import itertools
import random

import numpy as np
import pytest
from amaranth import ClockDomain, Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from golden.config import ConfigError
from golden.stream import reference
from hdl.back.emit import emit, flat_ports
from hdl.block import Block
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.stream.arbiter import StreamArbiter, StreamArbiterConfig
from hdl.stream.fifo import StreamFifo, StreamFifoConfig
from hdl.stream.fork import StreamFork, StreamForkConfig
from hdl.stream.join import StreamJoin, StreamJoinConfig
from hdl.stream.link import StreamView, link
from hdl.stream.narrow import StreamNarrow, StreamNarrowConfig
from hdl.stream.payload import payload_layout
from hdl.stream.register import StreamRegister, StreamRegisterConfig
from hdl.stream.room import BLOCKS
from hdl.stream.skid import StreamSkidBuffer, StreamSkidBufferConfig
from hdl.stream.widen import StreamWiden, StreamWidenConfig


def stream_of(block, name):
    """Member ``name`` of a block; ``o_1``: element 1 of its array ``o``."""
    stem, _, index = name.rpartition("_")
    return getattr(block, stem)[int(index)] if index.isdigit() else getattr(block, name)


def run(block, offers, takes, *, p_idle=0.0, p_stall=0.0, seed=0):
    """Words per sink and the cycle of every transfer; offers and takes are by stream name.

    Words are payload bits. Fails if an offered word changes, or when more or fewer words come.
    """
    rng = random.Random(seed)
    got = {name: [] for name in takes}
    cycles = {name: [] for name in (*offers, *takes)}
    top = Module()
    top.domains.sync = ClockDomain()  # a block without registers has none
    top.submodules.block = block
    simulator = Simulator(top)
    simulator.add_clock(1e-6)
    queues = {name: list(words) for name, words in offers.items()}
    limit = 200 + 60 * (sum(map(len, offers.values())) + sum(takes.values()))

    async def bench(ctx):
        offered, held = dict.fromkeys(offers), dict.fromkeys(takes)
        cycle = quiet = 0
        while quiet < 6:
            for name, queue in queues.items():
                port = stream_of(block, name)
                if offered[name] is None and queue and rng.random() >= p_idle:
                    offered[name] = queue.pop(0)
                ctx.set(port.valid, offered[name] is not None)
                junk = rng.getrandbits(len(port.payload.as_value()))
                word = junk if offered[name] is None else offered[name]
                ctx.set(port.payload.as_value(), word)
            ready = {name: rng.random() >= p_stall for name in takes}
            for name in takes:
                ctx.set(stream_of(block, name).ready, ready[name])
            for name in offers:
                if offered[name] is not None and ctx.get(stream_of(block, name).ready):
                    cycles[name].append(cycle)
                    offered[name] = None
            for name in takes:
                port = stream_of(block, name)
                word = ctx.get(port.payload.as_value()) if ctx.get(port.valid) else None
                assert held[name] in (None, word), f"{name} changed before its transfer"
                held[name] = None if ready[name] else word
                if ready[name] and word is not None:
                    got[name].append(word)
                    cycles[name].append(cycle)
            done = not any(queues.values()) and all(word is None for word in offered.values())
            done = done and all(len(got[name]) >= takes[name] for name in takes)
            quiet = quiet + 1 if done else 0
            cycle += 1
            assert cycle < limit, f"stuck: { ({name: len(words) for name, words in got.items()}) }"
            await ctx.tick()

    simulator.add_testbench(bench)
    simulator.run()
    assert {name: len(words) for name, words in got.items()} == takes
    return got, cycles


def random_words(rng, width, count, p_last=0.3):
    """(data, last) words; the final one ends its packet."""
    words = [(rng.getrandbits(width), int(rng.random() < p_last)) for _ in range(count - 1)]
    return [*words, (rng.getrandbits(width), 1)]


def bits(layout, *fields):
    """Payload bits from the fields in their order."""
    return layout.const(dict(zip(layout.members, fields, strict=True))).as_bits()


def fields(layout, word):
    constant = layout.from_bits(word)
    return tuple(constant[name] for name in layout.members)


FLOWS = [(0.0, 0.0), (0.5, 0.0), (0.0, 0.6), (0.4, 0.4)]  # p_idle, p_stall
SLICES = [
    *(StreamRegister(StreamRegisterConfig(width=width)) for width in (1, 2, 7)),
    *(StreamSkidBuffer(StreamSkidBufferConfig(width=width)) for width in (1, 2, 7)),
    *(
        StreamFifo(StreamFifoConfig(width=width, depth=depth, storage=storage))
        for width, depth in ((1, 1), (2, 2), (7, 3), (8, 5))
        for storage in ("flipflop", "memory")
    ),
]


def case_id(block):
    return "-".join([type(block).__name__, *(str(value) for value in vars(block.config).values())])


@pytest.mark.parametrize("block", SLICES, ids=case_id)
def test_slice_keeps_words_and_order(block):
    layout = block.config.layout
    for seed, (p_idle, p_stall) in enumerate(FLOWS):
        words = random_words(random.Random(seed), block.config.width, 60)
        sent = [bits(layout, *word) for word in words]
        got, cycles = run(
            block, {"i": sent}, {"o": len(sent)}, p_idle=p_idle, p_stall=p_stall, seed=seed
        )
        assert [fields(layout, word) for word in got["o"]] == reference.identity(words)
        if (p_idle, p_stall) == (0.0, 0.0):
            assert cycles["o"][0] - cycles["i"][0] == block.timing.latency
            assert cycles["o"][-1] - cycles["o"][0] == full_rate_cycles(block, len(sent) - 1)


def full_rate_cycles(block, words):
    """Cycles between the first and the last of words + 1 words at full offer and demand."""
    if isinstance(block, StreamFifo):
        depth, loop = block.config.depth, block.timing.latency + 1
        if depth < loop:
            return words // depth * loop + words % depth
    return words


@pytest.mark.parametrize("storage", ["flipflop", "memory"])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_fifo_holds_exactly_depth_words(storage, depth):
    block = StreamFifo(StreamFifoConfig(width=8, depth=depth, storage=storage))
    simulator = Simulator(block)
    simulator.add_clock(1e-6)

    async def bench(ctx):
        ctx.set(block.i.valid, 1)
        for level in range(depth):
            assert ctx.get(block.level) == level
            assert ctx.get(block.i.ready) == 1
            ctx.set(block.i.payload.data, level)
            await ctx.tick()
        for _ in range(3):
            assert ctx.get(block.i.ready) == 0
            await ctx.tick()
        assert ctx.get(block.level) == depth
        ctx.set(block.i.valid, 0)
        ctx.set(block.o.ready, 1)
        for word in range(depth):
            while not ctx.get(block.o.valid):
                await ctx.tick()
            assert ctx.get(block.o.payload.data) == word
            await ctx.tick()
        assert ctx.get(block.level) == 0

    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize(("width", "outputs"), [(1, 1), (2, 2), (5, 3), (3, 64)])
def test_fork_gives_every_word_to_every_output(width, outputs):
    block = StreamFork(StreamForkConfig(width=width, outputs=outputs))
    layout = block.config.layout
    count = 60 if outputs < 10 else 10
    for seed, (p_idle, p_stall) in enumerate(FLOWS):
        words = random_words(random.Random(seed), width, count)
        got, cycles = run(
            block,
            {"i": [bits(layout, *word) for word in words]},
            {f"o_{k}": count for k in range(outputs)},
            p_idle=p_idle, p_stall=p_stall, seed=seed,
        )  # fmt: skip
        golden = reference.fork(words, outputs)
        for k in range(outputs):
            assert [fields(layout, word) for word in got[f"o_{k}"]] == golden[k]
        if (p_idle, p_stall) == (0.0, 0.0):
            assert all(transfers == list(range(count)) for transfers in cycles.values())


def test_fork_output_does_not_wait_for_another():
    block = StreamFork(StreamForkConfig(width=4, outputs=3))
    simulator = Simulator(block)
    simulator.add_clock(1e-6)

    async def bench(ctx):
        ctx.set(block.i.valid, 1)
        ctx.set(block.o[1].ready, 1)
        assert [ctx.get(o.valid) for o in block.o] == [1, 1, 1]
        await ctx.tick()
        assert [ctx.get(o.valid) for o in block.o] == [1, 0, 1]
        assert ctx.get(block.i.ready) == 0

    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize(("width", "inputs"), [(1, 1), (2, 2), (5, 3)])
def test_join_concatenates(width, inputs):
    block = StreamJoin(StreamJoinConfig(width=width, inputs=inputs))
    for seed, (p_idle, p_stall) in enumerate(FLOWS):
        rng = random.Random(seed)
        words = [random_words(rng, width, 60) for _ in range(inputs)]
        got, cycles = run(
            block,
            {
                f"i_{k}": [bits(block.config.i_layout, *word) for word in words[k]]
                for k in range(inputs)
            },
            {"o": 60},
            p_idle=p_idle, p_stall=p_stall, seed=seed,
        )  # fmt: skip
        golden = [(value, last) for value, last, _ in reference.join(words, width)]
        assert [fields(block.config.o_layout, word) for word in got["o"]] == golden
        if (p_idle, p_stall) == (0.0, 0.0):
            assert cycles["o"] == list(range(60))


@pytest.mark.parametrize(("width", "ratio"), [(1, 1), (1, 2), (5, 3), (2, 7)])
def test_widen_gathers_words(width, ratio):
    block = StreamWiden(StreamWidenConfig(width=width, ratio=ratio))
    layout = block.config.o_layout
    for seed, (p_idle, p_stall) in enumerate(FLOWS):
        words = random_words(random.Random(seed), width, 80, p_last=0.15)
        golden = reference.widen(words, width, ratio)
        got, cycles = run(
            block,
            {"i": [bits(block.config.i_layout, *word) for word in words]},
            {"o": len(golden)},
            p_idle=p_idle, p_stall=p_stall, seed=seed,
        )  # fmt: skip
        assert [fields(layout, word) for word in got["o"]] == golden
        if (p_idle, p_stall) == (0.0, 0.0):
            assert cycles["i"] == list(range(80))
            assert cycles["o"][-1] == 80


@pytest.mark.parametrize(("width", "ratio"), [(1, 1), (1, 2), (5, 3), (2, 7)])
def test_narrow_spreads_words(width, ratio):
    block = StreamNarrow(StreamNarrowConfig(width=width, ratio=ratio))
    layout = block.config.i_layout
    for seed, (p_idle, p_stall) in enumerate(FLOWS):
        rng = random.Random(seed)
        most = (1 << layout["count"].width) - 1  # counts outside 1..ratio too
        beats = [
            (rng.getrandbits(width * ratio), rng.randint(0, most), rng.getrandbits(1))
            for _ in range(30)
        ]
        golden = reference.narrow(beats, width, ratio)
        got, cycles = run(
            block,
            {"i": [bits(layout, *beat) for beat in beats]},
            {"o": len(golden)},
            p_idle=p_idle, p_stall=p_stall, seed=seed,
        )  # fmt: skip
        assert [fields(block.config.o_layout, word) for word in got["o"]] == golden
        if (p_idle, p_stall) == (0.0, 0.0):
            assert cycles["o"] == list(range(len(golden)))


def test_narrow_undoes_widen():
    words = random_words(random.Random(5), 6, 200, p_last=0.2)
    assert reference.narrow(reference.widen(words, 6, 5), 6, 5) == words


def packed(words, width) -> int:
    """Packs by NumPy, bit by bit: the first word in the low bits."""
    bits = (np.array(words)[:, None] >> np.arange(width) & 1).ravel().astype(np.uint8)
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


@pytest.mark.parametrize(("width", "count"), [(1, 1), (1, 3), (5, 3), (7, 2), (12, 9)])
def test_words_join_and_split_as_numpy_packs_them(width, count):
    """Shown to fail: the first word in the high bits; ``last`` of input 0 alone."""
    words = random_words(random.Random(width * count), width, 100, p_last=0.2)
    packets = np.split(words, np.flatnonzero(np.array(words)[:, 1]) + 1)[:-1]
    beats = [
        (packed(part[:, 0], width), len(part), int(part[-1, 1]))
        for packet in packets
        for part in np.split(packet, range(count, len(packet), count))
    ]
    assert reference.widen(words, width, count) == beats
    assert reference.narrow(beats, width, count) == words
    assert reference.narrow([(beats[0][0], 0, 1)], width, count) == reference.narrow(
        [(beats[0][0], count, 1)], width, count
    )
    inputs = [random_words(random.Random(100 + k), width, 50) for k in range(count)]
    lasts = np.array(inputs)[:, :, 1]
    assert reference.join(inputs, width) == [
        (packed([each[n][0] for each in inputs], width), lasts[:, n].max(), np.ptp(lasts[:, n]))
        for n in range(50)
    ]


@pytest.mark.parametrize(("size", "out"), [(1, 1), (4, 3), (3, 8), (16, 12)])
def test_repack_keeps_bytes(size, out):
    rng = random.Random(size)
    packets = []
    for _ in range(60):
        words = []
        for _ in range(rng.randint(1, 6)):
            first, end = rng.randint(0, size - 1), rng.randint(0, size)
            words.append((rng.getrandbits(8 * size), first, end, rng.getrandbits(1), 0))
        packets.append([*words[:-1], (*words[-1][:4], 1)])
    found = reference.repack([word for packet in packets for word in packet], size, out)
    for packet in packets:
        wanted = [
            (value >> 8 * k & 255, error)
            for value, first, end, error, _ in packet
            for k in range(first, end)
        ]
        for at in itertools.count(0, out):
            value, count, error, last = found.pop(0)
            part = wanted[at : at + out]
            assert count == len(part)
            assert value.to_bytes(out, "little")[:count] == bytes(byte for byte, _ in part)
            assert value >> 8 * count == 0
            assert error == any(error for _, error in part)
            if last:
                assert at + count == len(wanted)
                break
            assert count == out
    assert not found


@pytest.mark.parametrize("policy", ["round_robin", "priority"])
@pytest.mark.parametrize(("width", "inputs"), [(1, 1), (2, 2), (5, 3), (4, 5)])
def test_arbiter_merges_whole_packets(width, inputs, policy):
    block = StreamArbiter(StreamArbiterConfig(width=width, inputs=inputs, policy=policy))
    layout = block.config.o_layout
    for seed, (p_idle, p_stall) in enumerate(FLOWS):
        rng = random.Random(seed)
        words = [random_words(rng, width, 30) for _ in range(inputs)]
        got, cycles = run(
            block,
            {
                f"i_{k}": [bits(block.config.i_layout, *word) for word in words[k]]
                for k in range(inputs)
            },
            {"o": 30 * inputs},
            p_idle=p_idle, p_stall=p_stall, seed=seed,
        )  # fmt: skip
        output = [fields(layout, word) for word in got["o"]]
        reference.check_arbitration(words, output)
        if (p_idle, p_stall) == (0.0, 0.0):
            assert cycles["o"] == list(range(30 * inputs))
            order = [source for _, source, last in output if last]
            packets = [sum(last for _, last in queue) for queue in words]
            assert order == expected_order(packets, policy)


def expected_order(packets, policy):
    """Sources of the packets when every input always has one waiting until it runs out."""
    left, order, after = list(packets), [], -1
    while any(left):
        if policy == "priority":
            source = next(k for k in range(len(left)) if left[k])
        else:
            around = [(after + 1 + k) % len(left) for k in range(len(left))]
            source = next(k for k in around if left[k])
        left[source] -= 1
        order.append(source)
        after = source
    return order


def test_reference_refuses_bad_merges():
    inputs = [[(1, 0), (2, 1)], [(3, 1)]]
    reference.check_arbitration(inputs, [(1, 0, 0), (2, 0, 1), (3, 1, 1)])
    with pytest.raises(AssertionError, match="interrupted"):
        reference.check_arbitration(inputs, [(1, 0, 0), (3, 1, 1), (2, 0, 1)])
    with pytest.raises(AssertionError, match="lost"):
        reference.check_arbitration(inputs, [(1, 0, 0), (2, 0, 1)])


class Wrapped(wiring.Component):
    """A register slice on a payload of its own: ``data`` of the slice seen as that payload."""

    def __init__(self, layout):
        self.layout = layout
        super().__init__({"i": In(stream.Signature(layout)), "o": Out(stream.Signature(layout))})

    def elaborate(self, platform):
        m = Module()
        config = StreamRegisterConfig(width=self.layout.size)
        m.submodules.slice = block = StreamRegister(config)
        link(m, self.i, StreamView.of(block.i.p.data, self.layout, block.i))
        link(m, StreamView.of(block.o.p.data, self.layout, block.o), self.o)
        return m


@pytest.mark.parametrize(
    "members", [{"a": 3, "last": 1, "b": 4}, {"a": 3, "b": data.ArrayLayout(2, 3)}]
)
def test_own_payload_passes_unchanged(members):
    block = Wrapped(data.StructLayout(members))
    words = [random.Random(1).getrandbits(block.layout.size) for _ in range(40)]
    got, _ = run(block, {"i": words}, {"o": 40}, p_idle=0.3, p_stall=0.3)
    assert got["o"] == words


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: StreamRegisterConfig(width=0),
        lambda: StreamSkidBufferConfig(width=65_536),
        lambda: StreamFifoConfig(depth=0),
        lambda: StreamFifoConfig(depth=2.5),
        lambda: StreamFifoConfig(storage="latch"),
        lambda: StreamForkConfig(outputs=65),
        lambda: StreamJoinConfig(inputs=0),
        lambda: StreamWidenConfig(ratio=0),
        lambda: StreamWidenConfig(width=30_000, ratio=3),
        lambda: StreamNarrowConfig(ratio=257),
        lambda: StreamArbiterConfig(inputs=True),
        lambda: StreamArbiterConfig(policy="random"),
    ],
)
def test_config_rejects(wrong):
    with pytest.raises(ConfigError, match=r"^Stream\w+Config\.\w+ must be .*, not .+$"):
        wrong()


WIDEST = [
    StreamRegisterConfig(width=65_535),
    StreamSkidBufferConfig(width=65_535),
    StreamFifoConfig(width=65_535, depth=2, storage="memory"),
    StreamForkConfig(width=65_535, outputs=15),
    StreamForkConfig(width=16_381, outputs=64),
    StreamJoinConfig(width=1_023, inputs=64),
    StreamWidenConfig(width=65_526, ratio=1),
    StreamNarrowConfig(width=65_526, ratio=1),
    StreamNarrowConfig(width=255, ratio=256),
    StreamArbiterConfig(width=65_529, inputs=15),
    StreamArbiterConfig(width=16_381, inputs=64),
]


@pytest.mark.parametrize("config", WIDEST, ids=repr)
def test_largest_width_fits_the_netlist(config):
    """A signal has at most 2**16 bits; all inputs, or all outputs of a child, at most 2**20.

    ``hdl.back.emit`` adds clk, rst and two constants to the inputs.
    """
    (block,) = (
        each.component(config) for each in BLOCKS.values() if type(each.config) is type(config)
    )
    block._MustUse__silence = True  # emitting all of these takes minutes
    ports = flat_ports(block)
    assert max(port.width for port in ports) <= 1 << 16
    for direction in ("input", "output"):
        assert sum(port.width for port in ports if port.direction == direction) + 4 <= 1 << 20
    with pytest.raises(ConfigError, match="width must be"):
        dataclasses.replace(config, width=config.width + 1)


@pytest.mark.parametrize(
    "block",
    [
        StreamRegister(StreamRegisterConfig(width=65_535)),
        Memory1R1W(MemoryConfig(width=65_536, depth=2)),
    ],
    ids=case_id,
)
def test_the_widest_signal_is_emitted(block):
    """Failed before: widths from 65,521 and from 32,761 bits on were refused."""
    assert "wire width 65536 " in emit(block, "wide")[-1].rtlil


def test_a_wider_signal_is_refused():
    """Amaranth refuses it: the limit of the configurations is its limit."""

    class Wide(Block):
        def __init__(self):
            super().__init__(StreamRegisterConfig(), {"i": In(65_537), "o": Out(65_537)})

        def elaborate(self, platform):
            m = Module()
            m.d.comb += self.o.eq(self.i)
            return m

    with pytest.raises(OverflowError, match="65537 bits wide"):
        emit(Wide(), "wide")


def test_every_block_states_its_ports():
    for name, registered in BLOCKS.items():
        block = registered.component(registered.config)
        assert set(block.texts) == set(block.signature.members), name
        assert "docs" not in block.latency + block.throughput, name
        block._MustUse__silence = True


def test_payload_has_data_then_last():
    assert bits(payload_layout(5), 3, 1) == 0b1_00011
