"""Several streams to one, packet by packet (docs/blocks/stream_arbiter.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Mux, Shape, Signal, Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice, flag
from golden.timing import Timing
from hdl.block import Block
from hdl.children import PORTS_BITS, add
from hdl.kinds import BITS, index_of
from hdl.ports import In, Out, Payload
from hdl.stream.link import StreamView
from hdl.stream.payload import LAST, MAX_BITS, payload_layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamArbiterConfig(Config):
    """Payload, number of inputs and policy of StreamArbiter."""

    width: int = 32  # bits of data, 1..65529, and inputs * (width + 2) below 2**20 - 8
    inputs: int = bounded(2, 1, 64, "streams that come in")
    policy: str = choice(
        "round_robin", ("round_robin", "priority"), "priority: the lowest index first"
    )
    last: bool = flag(True, "whether a word has last; without it every word is a packet")

    def __post_init__(self) -> None:
        most = min(MAX_BITS - 6, (PORTS_BITS - 1) // self.inputs - 2)  # room for source
        self._check_range("width", 1, most)

    @property
    def source_bits(self) -> int:
        """The bits of an input's number, at least 1, so that every arbiter has the same fields."""
        return max(1, (self.inputs - 1).bit_length())

    @property
    def i_layout(self):
        return payload_layout(self.width, self.last)

    @property
    def o_layout(self):
        return Payload(
            data=(self.width, "bits that pass unchanged", BITS),
            source=(
                self.source_bits,
                "index of the input that the word came from",
                index_of("inputs"),
            ),
            **({"last": LAST} if self.last else {}),
        )


class StreamArbiter(Block):
    """``o`` carries whole packets of the inputs: none is interrupted before its ``last``.

    Throughput 1 word per cycle, also from one packet to the next; latency 0. ``o`` depends
    combinationally on all ``i_k`` and not on ``o.ready``; ``i_k.ready`` depends combinationally
    on ``o.ready`` and on every ``i_k.valid``. Once offered, a word keeps ``o`` until it is
    taken. Holds no word.

    ``round_robin``: the first valid input after the one served before it; an input waits for at
    most ``inputs - 1`` packets. ``priority``: the lowest valid index; others may starve.
    Golden: ``golden.stream.reference.check_arbitration``.
    """

    golden = "golden.stream.reference:check_arbitration"
    reference = "tests/stream/test_stream.py: test_reference_refuses_bad_merges"
    default = StreamArbiterConfig()
    configs: ClassVar = {
        "smallest": StreamArbiterConfig(width=1, inputs=1),
        "odd": StreamArbiterConfig(width=7, inputs=3),
        "priority": StreamArbiterConfig(width=7, inputs=3, policy="priority"),
    }

    def __init__(self, config: StreamArbiterConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.i_layout), "Packets of source {0}.").array(
                    config.inputs
                ),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "Whole packets, each word with the index of its input.",
                ),
            },
        )
        # State that the proofs in tb/formal speak of. held: source of the latest word offered;
        # its reset value makes input 0 the first choice. locked: a word of held is waiting, or
        # its packet is not finished.
        self.held = Signal(config.source_bits, init=config.inputs - 1)
        self.locked = Signal()

    timing = Timing(latency=0, start="i_k")

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self.config
        inputs = self.i
        source = Signal(config.source_bits)
        choice = Signal(config.source_bits)
        held, locked = self.held, self.locked

        # Later assignments win, so both walks go from the least to the most wanted input.
        for k in reversed(range(config.inputs)):
            with m.If(inputs[k].valid):
                m.d.comb += choice.eq(k)
        if config.policy == "round_robin":
            for k in reversed(range(1, config.inputs)):
                with m.If(inputs[k].valid & (held < k)):
                    m.d.comb += choice.eq(k)

        m.d.comb += source.eq(Mux(locked, held, choice))
        with m.Switch(source):
            for k, i in enumerate(inputs):
                with m.Case(k):
                    m.d.comb += [
                        self.o.valid.eq(i.valid),
                        *(
                            self.o.payload[name].eq(i.payload[name])
                            for name in config.i_layout.members
                        ),
                        i.ready.eq(self.o.ready & i.valid),
                    ]
        m.d.comb += self.o.payload.source.eq(source)
        ends = self.o.ready & self.o.payload.last if config.last else self.o.ready
        with m.If(self.o.valid):
            m.d.sync += [held.eq(source), locked.eq(~ends)]
        return m


@dataclasses.dataclass(frozen=True)
class Arbiter:
    """The result of ``arbiter``: typed streams ``i[k]`` and ``o``; the input that ``o`` is from."""

    i: tuple[StreamView, ...]
    o: StreamView
    source: Value  # 0..inputs - 1, while o is valid


def arbiter(m: Module, name: str, shape, inputs: int, *, policy: str = "round_robin") -> Arbiter:
    """Add a StreamArbiter for words of ``shape`` to ``m`` as ``name``.

    ``shape`` is a layout or a width in bits. If it has a field ``last``, ``o`` carries whole
    packets of one input. Otherwise every word is a packet. Order and timing are those of
    StreamArbiter. ConfigError names a number that StreamArbiter refuses.
    """
    has_last = isinstance(shape, data.StructLayout) and "last" in shape.members
    config = StreamArbiterConfig(
        width=Shape.cast(shape).width, inputs=inputs, policy=policy, last=has_last
    )
    block = add(m, name, StreamArbiter(config))
    words = tuple(StreamView.of(i.p.data, shape, i) for i in block.i)
    if has_last:
        m.d.comb += [i.p.last.eq(word.p.last) for i, word in zip(block.i, words, strict=True)]
    return Arbiter(words, StreamView.of(block.o.p.data, shape, block.o), block.o.p.source)
