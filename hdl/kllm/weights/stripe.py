"""Words of the weight ports to the lanes' slots."""

import dataclasses
import math
from fractions import Fraction

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.kllm.format import weight_word_place
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.children import PORTS_BITS
from hdl.kinds import BITS
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmWeightStripeConfig(Config):
    """Shape of the network."""

    slots: int = 32  # port words of an array beat, 1..1024; (port_bits + 1) * slots < 2**20 - 71
    ports: int = bounded(24, 1, 64, "weight read ports")
    port_bits: int = bounded(1024, 8, 4096, "bits of a port word")

    def __post_init__(self) -> None:
        # The words of all slots are outputs of one child, as are ready of 64 ports.
        self._check_range("slots", 1, min(1024, (PORTS_BITS - 64) // (self.port_bits + 1)))

    @property
    def slots_of_port(self) -> list[list[int]]:
        """Slots that each port serves, in rotation."""
        turns = self.slots // math.gcd(self.slots, self.ports)
        return [
            [(port + turn * self.ports) % self.slots for turn in range(turns)]
            for port in range(self.ports)
        ]

    @property
    def ports_of_slot(self) -> list[list[int]]:
        """Ports that each slot takes from, in rotation."""
        turns = self.ports // math.gcd(self.slots, self.ports)
        return [
            [weight_word_place(turn, slot, self.slots, self.ports)[0] for turn in range(turns)]
            for slot in range(self.slots)
        ]

    @property
    def data_layout(self) -> data.StructLayout:
        return Payload(
            data=(self.port_bits, "word of the weight image", BITS),
            last=(1, "the port's last word of the job"),
            error=(1, "the word was read with an error"),
        )

    @property
    def slot_layout(self) -> data.StructLayout:
        return Payload(data=(self.port_bits, "word of the weight image", BITS))

    @property
    def job_layout(self) -> data.StructLayout:
        return Payload(
            ports=(
                range(self.ports + 1),
                "ports that have words in this job, the first ones, 1 or more",
            )
        )


class KllmWeightStripe(Block):
    """Word number i of an image goes from port i mod ``ports`` to slot i mod ``slots``.

    A static network: port and slot each walk their own rotation of ports/gcd and slots/gcd
    partners. A word moves when the two point at each other. A slot's words come in the order
    of i, whatever the ports' delays. A job is one word of ``job``; ``last`` ends each port's words
    (golden.kllm.format.weight_port_words of them) and is believed. When all ports have ended, the
    rotations start again. ``done`` then says whether any word came with ``error``; such words are
    passed on. Words of the next job wait on the ports until then: 2 cycles between jobs.

    Throughput: 1 word per port and per slot and cycle. Latency 0: no register is in the way of the
    words. ``slot_s`` depends combinationally on ``data_p``, ``data_p.ready`` on ``slot_s.ready``;
    neither valid on a ready nor ready on a valid. Golden: golden.kllm.image.stripe.

    With g = gcd(S, P) a port serves S / g slots in rotation, and a slot takes from P / g ports. So
    there are S * P / g crossings instead of S * P. At Table I's sizes (S = 32, P = 24) these are 96
    of 768, with a multiplexer of 3 ports before each slot. The oldest waiting word is always at the
    head of its port, and its slot always selects that port. So no delays of the ports make a
    deadlock.

    ``python -m synth.report kllm_weight_stripe --config table1`` gives 133 kGE and 140 flip-flops.
    With ``port_bits=64`` it is 10.4 kGE. The area is all multiplexers: 4 gate equivalents for each
    of the 32 x 1024 bits that a slot selects from 3 ports.
    """

    tier = Tier.PART
    golden = "golden.kllm.image:stripe"
    configs = FieldOf("kllm_weight_supply", "stripe_config")

    def __init__(self, config: KllmWeightStripeConfig):
        error = Payload(error=(1, "a word of the job came with error"))
        super().__init__(
            config,
            {
                "job": In(
                    stream.Signature(config.job_layout), "What the next words on the ports are."
                ),
                "data": In(stream.Signature(config.data_layout), "Image words of port {0}.").array(
                    config.ports
                ),
                "slot": Out(
                    stream.Signature(config.slot_layout), "Words of slot {0}, one per array beat."
                ).array(config.slots),
                "done": Out(
                    stream.Signature(error), "One word per job: its words are all in their slots."
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        interval = Fraction(1, min(self.config.ports, self.config.slots))
        return Timing(latency=0, interval=interval, start="data_p", end="slot_s")

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        sources = list(self.data)
        sinks = list(self.slot)

        def rotation(name: str, turns: int, moves, restart):
            """Counts the moves modulo ``turns``."""
            at = Signal(range(max(turns, 2)), name=name)
            if turns > 1:
                with m.If(restart):
                    m.d.sync += at.eq(0)
                with m.Elif(moves):
                    m.d.sync += at.eq(Mux(at == turns - 1, 0, at + 1))
            return at

        busy = Signal()
        restart = Signal()
        ended = Signal(config.ports)  # ports whose words of this job are through
        port_moves = [Signal(name=f"port_moves_{p}") for p in range(config.ports)]
        slot_moves = [Signal(name=f"slot_moves_{s}") for s in range(config.slots)]
        port_at = [
            rotation(f"port_at_{p}", len(slots), port_moves[p], restart)
            for p, slots in enumerate(config.slots_of_port)
        ]
        slot_at = [
            rotation(f"slot_at_{s}", len(ports), slot_moves[s], restart)
            for s, ports in enumerate(config.ports_of_slot)
        ]

        for p, (source, slots) in enumerate(zip(sources, config.slots_of_port, strict=True)):
            # The slot that the port's next word is for, and whether it points back.
            with m.Switch(port_at[p]):
                for turn, s in enumerate(slots):
                    meets = slot_at[s] == config.ports_of_slot[s].index(p)
                    with m.Case(turn):
                        m.d.comb += source.ready.eq(~ended[p] & busy & meets & sinks[s].ready)
            m.d.comb += port_moves[p].eq(source.valid & source.ready)
        for s, (sink, ports) in enumerate(zip(sinks, config.ports_of_slot, strict=True)):
            with m.Switch(slot_at[s]):
                for turn, p in enumerate(ports):
                    meets = port_at[p] == config.slots_of_port[p].index(s)
                    with m.Case(turn):
                        m.d.comb += [
                            sink.valid.eq(sources[p].valid & ~ended[p] & busy & meets),
                            sink.p.data.eq(sources[p].p.data),
                        ]
            m.d.comb += slot_moves[s].eq(sink.valid & sink.ready)

        error = Signal()  # of the words so far
        any_error = Signal()
        m.d.comb += [
            any_error.eq(
                Cat(moves & i.p.error for moves, i in zip(port_moves, sources, strict=True)).any()
            ),
            self.job.ready.eq(~busy),
            restart.eq(busy & ended.all() & (~self.done.valid | self.done.ready)),
        ]
        with m.If(self.done.ready):
            m.d.sync += self.done.valid.eq(0)
        with m.If(restart):
            m.d.sync += [busy.eq(0), self.done.valid.eq(1), self.done.p.error.eq(error)]
        with m.Elif(busy):
            m.d.sync += [
                error.eq(error | any_error),
                ended.eq(
                    ended
                    | Cat(moves & i.p.last for moves, i in zip(port_moves, sources, strict=True))
                ),
            ]
        with m.Elif(self.job.valid):
            m.d.sync += [
                busy.eq(1),
                error.eq(0),
                ended.eq(Cat(self.job.p.ports <= p for p in range(config.ports))),
            ]
        return m
