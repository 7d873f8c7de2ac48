"""From the weight ports to the lanes (docs/blocks/kllm_weight_supply.md)."""

import dataclasses
import math
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from golden.config import Config
from golden.fp16.format import FP32
from golden.kllm import timing
from golden.timing import Timing
from hdl.block import Block
from hdl.emit import add
from hdl.kllm.weight_buffer import GROUP_BITS, KllmWeightBuffer, KllmWeightBufferConfig
from hdl.kllm.weight_stripe import KllmWeightStripe, KllmWeightStripeConfig
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.stream.link import link
from hdl.stream.queue import queue

__all__ = ["KllmWeightSupply", "KllmWeightSupplyConfig"]

_TOKEN_BITS = 8
_WORDS_BITS = 24  # of the words of one read
_JOBS_AHEAD = 4  # jobs whose weights may be requested before the first of them is done


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmWeightSupplyConfig(Config):
    """Shape of the weight image and size of its buffers."""

    lanes: int = 16  # 1..64
    columns: int = 32  # output columns of a lane's beat, 1..64
    elements: int = 16  # elements of the reduction axis in a beat, 1..16
    bits_b: int = 4  # bits of a weight index, 2..4
    ports: int = 24  # read ports, 1..64, and ports * (port_bits + 4) below 65,000
    port_bits: int = 1024  # bits of a port word, 8..4096, a multiple of 8
    buffer_beats: int = 256  # weight beats kept per lane, 2..65536
    address_bits: int = 32  # bits of an address in port words, 8..64
    length_bits: int = 14  # bits of a number of beats, 1..16

    def __post_init__(self) -> None:
        self._check_range("lanes", 1, 64)
        self._check_range("columns", 1, 64)
        self._check_range("elements", 1, 16)
        self._check_range("bits_b", 2, 4)
        self._check_range("port_bits", 8, 4096)
        if self.port_bits % 8:
            self._refuse("port_bits", "a multiple of 8")
        # Amaranth numbers the bits of all input ports together in 16 bits.
        self._check_range("ports", 1, min(64, 65_000 // (self.port_bits + 4)))
        self._check_range("buffer_beats", 2, 65_536)
        self._check_range("address_bits", 8, 64)
        self._check_range("length_bits", 1, 16)
        if self.slots > 1024:
            self._refuse("lanes", f"1..{1024 // self.buffer_config.lane_words} at this width")

    @property
    def replay_beats(self) -> int:
        """Most weight beats of a group that several tokens may share: the whole buffer."""
        return self.buffer_beats

    @property
    def slots(self) -> int:
        """Port words of an array beat."""
        return self.lanes * self.buffer_config.lane_words

    @property
    def buffer_config(self) -> KllmWeightBufferConfig:
        shape = KllmWeightBufferConfig(
            columns=self.columns,
            elements=self.elements,
            bits_b=self.bits_b,
            port_bits=self.port_bits,
            buffer_beats=self.buffer_beats,
            length_bits=self.length_bits,
        )
        # In the cycle in which the ports bring a beat's final word they may bring a word of the
        # lane's next beat: one place per slot is enough only where they never do.
        words = shape.lane_words
        slots = self.lanes * words
        collides = any(
            (number + words - 1) // self.ports == (number + slots + word) // self.ports
            for number in range(0, slots * self.ports, words)
            for word in range(words)
        )
        if collides and self.ports % slots:
            shape = dataclasses.replace(shape, word_depth=2)
        return shape

    @property
    def common(self) -> int:
        return math.gcd(self.slots, self.ports)

    @property
    def factor(self) -> int:
        """A port has array beats * factor / divisor words."""
        return self.slots // self.common

    @property
    def divisor(self) -> int:
        return self.ports // self.common

    @property
    def array_beat_bits(self) -> int:
        """Bits of a number of array beats."""
        return GROUP_BITS + self.length_bits + 1

    @property
    def quotient_digits(self) -> int:
        """Digits to base 4 of a port's words."""
        return -(-(self.array_beat_bits + self.factor.bit_length()) // 2)

    @property
    def setup_cycles(self) -> int:
        """Cycles from a job to its reads: a digit per cycle, unless nothing is to be divided."""
        return 4 + (self.quotient_digits if self.divisor > 1 else 0)

    @property
    def stripe_config(self) -> KllmWeightStripeConfig:
        return KllmWeightStripeConfig(slots=self.slots, ports=self.ports, port_bits=self.port_bits)

    def bound(self, beats: int, groups: int, tokens: int = 1) -> int:
        """Cycles of a job: ports at one word, lanes at one beat and one scale per cycle."""
        through_ports = -(-groups * (beats + 1) * self.slots // self.ports)
        gathered = groups * (beats + 1)
        return max(through_ports, gathered, groups * tokens * max(beats, self.columns))

    @property
    def job_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {
                "address": self.address_bits,
                "beats": self.length_bits,
                "groups": GROUP_BITS,
                "tokens": _TOKEN_BITS,
                "fold": 1,
            }
        )

    @property
    def rms_layout(self) -> data.StructLayout:
        return data.StructLayout({"word": FP32.bits})

    @property
    def read_layout(self) -> data.StructLayout:
        return data.StructLayout({"address": self.address_bits, "words": _WORDS_BITS})

    @property
    def done_layout(self) -> data.StructLayout:
        return data.StructLayout({"error": 1, "refused": 1})


class KllmWeightSupply(Block):
    """The weights of a matmul from ``ports`` memories to ``lanes`` lanes.

    A job is one word of ``job``: a weight image (layout: golden.kllm.format) at port word
    ``address`` of each memory. The image has ``groups`` groups of ``beats`` weight beats and a beat
    of scales. With ``fold``, ``tokens`` words of ``rms`` belong to it. The block reads each port
    with words in the image once.

    Every lane gets, for each group and each token, ``beats`` beats on ``w_l``, ``last`` on the
    final one. It also gets ``columns`` words on ``s_b_l``: ``rne16(s_B * rms[token])``, without
    ``fold`` ``s_B`` as it is. A group is read from the memories once. For the next token it comes
    from the lanes' buffers, while the next group or job fills what is free.

    ``done`` has one word per job, in order. It comes when all words are taken from the ports and
    all beats and scales by the lanes. ``error``: of any of the job's words (they are passed on).
    ``refused``: beats, groups or tokens 0, tokens above 1 with more than ``replay_beats`` beats,
    or a read of 2**24 - 2 words or more. Such a job reads nothing and gives nothing, but takes
    its words of ``rms``.

    Rates: one word per port, one beat and one scale per lane and cycle, all at once: see ``bound``.
    A job's reads come ``setup_cycles`` after it, during the job before if there is one. Rounding:
    one, of folded scales. No combinational path leads from an input to an output.
    Source: KLLM, section IV-A. Golden: golden.kllm.image.supply.

    Members
    -------
    job : In(stream)      address: port words; beats; groups; tokens; fold
    rms : In(stream)      word: FP32, one per token of a job with fold
    read_p : Out(stream)  address: port words; words: 1 or more
    data_p : In(stream)   data: port_bits; last: of the read; error
    w_l : Out(stream)     index: columns x elements x bits_b; last
    s_b_l : Out(stream)   word: FP16
    done : Out(stream)    error; refused
    """

    meaning: ClassVar[dict[str, str]] = {}

    def __init__(self, config: KllmWeightSupplyConfig):
        buffer = config.buffer_config
        members = {
            "job": In(stream.Signature(config.job_layout)),
            "rms": In(stream.Signature(config.rms_layout)),
        }
        self.meaning = {
            "job": "A weight image to hand out, and to how many tokens.",
            "rms": "FP32 factor of each token's scales, jobs with fold only.",
            "done": "A job is over: whether a word came with an error, or it was refused.",
        }
        for port in range(config.ports):
            members[f"read_{port}"] = Out(stream.Signature(config.read_layout))
            members[f"data_{port}"] = In(stream.Signature(config.stripe_config.data_layout))
            self.meaning[f"read_{port}"] = f"Words wanted of port {port}, one request per job."
            self.meaning[f"data_{port}"] = "Those words, in order; last: of the request."
        for lane in range(config.lanes):
            members[f"w_{lane}"] = Out(stream.Signature(buffer.w_layout))
            members[f"s_b_{lane}"] = Out(stream.Signature(buffer.s_b_layout))
            self.meaning[f"w_{lane}"] = f"Weight indices of lane {lane}."
            self.meaning[f"s_b_{lane}"] = f"Weight scales of lane {lane}."
        members["done"] = Out(stream.Signature(config.done_layout))
        super().__init__(config, members)

    @property
    def timing(self) -> Timing:
        return timing.weight_supply(self.config.setup_cycles, self.config.ports, self.config.slots)

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        self.stripe = stripe = add(m, "stripe", KllmWeightStripe(config.stripe_config))
        self.buffers = [
            add(m, f"buffer_{lane}", KllmWeightBuffer(config.buffer_config))
            for lane in range(config.lanes)
        ]
        for port in range(config.ports):
            link(m, getattr(self, f"data_{port}"), getattr(stripe, f"data_{port}"))
        words = config.buffer_config.lane_words
        for lane, buffer in enumerate(self.buffers):
            links = [(buffer.w, getattr(self, f"w_{lane}"))]
            links.append((buffer.s_b, getattr(self, f"s_b_{lane}")))
            links += [
                (getattr(stripe, f"slot_{lane * words + k}"), getattr(buffer, f"word_{k}"))
                for k in range(words)
            ]
            for source, sink in links:
                link(m, source, sink)
        self._elaborate_jobs(m)
        self._elaborate_replays(m)
        self._elaborate_done(m)
        return m

    def _elaborate_jobs(self, m: Module) -> None:
        """Checks a job, divides its words among the ports, and passes it to all other parts."""
        config = self.config
        common, factor, divisor = config.common, config.factor, config.divisor
        digits = config.quotient_digits

        job = Signal(config.job_layout, reset_less=True)
        refused = Signal(reset_less=True)
        array_beats = Signal(config.array_beat_bits, reset_less=True)
        # words = array_beats * slots, as quotient * ports + common * remainder
        dividend = Signal(2 * digits, reset_less=True)
        quotient = Signal(2 * digits, reset_less=True)
        remainder = Signal(range(max(divisor, 2)), reset_less=True)
        left = Signal(range(digits + 1), reset_less=True)
        too_many = Signal()

        # Who has not been told yet.
        asking = Signal(config.ports)
        telling = Signal(config.lanes)
        pending = Signal(3)  # stripe, replays, done
        replay_layout = data.StructLayout(
            {
                "beats": config.length_bits,
                "groups": GROUP_BITS,
                "tokens": _TOKEN_BITS,
                "fold": 1,
                "refused": 1,
            }
        )
        self.replay_jobs = queue(m, "replay_jobs", replay_layout, 2)
        self.order = queue(m, "order", 1, _JOBS_AHEAD)
        replay_job = self.replay_jobs.i.p
        reads = [getattr(self, f"read_{port}") for port in range(config.ports)]
        # Words of a port are quotient, or one more on the first ``extra`` ports.
        extra, more = Signal(range(config.ports + 1)), Signal(_WORDS_BITS)
        m.d.comb += [
            extra.eq(remainder * common),
            more.eq(quotient + 1),
            too_many.eq(quotient >= (1 << _WORDS_BITS) - 2),
        ]
        for port, read in enumerate(reads):
            m.d.comb += [
                read.valid.eq(asking[port]),
                read.p.address.eq(job.address),
                read.p.words.eq(Mux(extra > port, more, quotient[:_WORDS_BITS])),
            ]
        for lane, buffer in enumerate(self.buffers):
            m.d.comb += [
                buffer.job.valid.eq(telling[lane]),
                buffer.job.p.beats.eq(job.beats),
                buffer.job.p.groups.eq(job.groups),
            ]
        m.d.comb += [
            self.stripe.job.valid.eq(pending[0]),
            self.stripe.job.p.ports.eq(Mux(quotient != 0, config.ports, extra)),
            self.replay_jobs.i.valid.eq(pending[1]),
            replay_job.beats.eq(job.beats),
            replay_job.groups.eq(job.groups),
            replay_job.tokens.eq(job.tokens),
            replay_job.fold.eq(job.fold),
            replay_job.refused.eq(refused),
            self.order.i.valid.eq(pending[2]),
            self.order.i.p.eq(refused),
        ]

        # One digit of the quotient: how often the divisor goes into the next two bits.
        grown = Signal(range(max(4 * divisor, 2)))
        m.d.comb += grown.eq(Cat(dividend[-2:], remainder))
        digit = Signal(2)
        rest = Signal.like(remainder)
        m.d.comb += rest.eq(grown)
        for times in range(1, 4):
            with m.If(grown >= times * divisor):
                m.d.comb += [digit.eq(times), rest.eq(grown - times * divisor)]

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.job.ready.eq(1)
                m.d.sync += job.eq(self.job.payload)
                with m.If(self.job.valid):
                    m.next = "MULTIPLY"
            with m.State("MULTIPLY"):
                m.d.sync += [
                    array_beats.eq(job.groups * (job.beats + 1)),
                    refused.eq(
                        (job.beats == 0)
                        | (job.groups == 0)
                        | (job.tokens == 0)
                        | ((job.tokens > 1) & (job.beats > config.replay_beats))
                    ),
                ]
                m.next = "SCALE"
            with m.State("SCALE"):
                m.d.sync += [
                    dividend.eq(array_beats * factor),
                    quotient.eq(array_beats * factor),
                    remainder.eq(0),
                    left.eq(digits),
                ]
                m.next = "DIVIDE" if divisor > 1 else "CHECK"
            with m.State("DIVIDE"):
                m.d.sync += [
                    dividend.eq(dividend << 2),
                    quotient.eq(Cat(digit, quotient)),
                    remainder.eq(rest),
                    left.eq(left - 1),
                ]
                with m.If(left == 1):
                    m.next = "CHECK"
            with m.State("CHECK"):
                stops = refused | too_many
                m.d.sync += [
                    refused.eq(stops),
                    pending.eq(Mux(stops, 0b110, 0b111)),
                ]
                with m.If(~stops):
                    m.d.sync += [
                        asking.eq(
                            Cat((quotient != 0) | (extra > port) for port in range(config.ports))
                        ),
                        telling.eq(Const(-1, config.lanes)),
                    ]
                m.next = "TELL"
            with m.State("TELL"):
                heard = Cat(self.stripe.job.ready, self.replay_jobs.i.ready, self.order.i.ready)
                m.d.sync += [
                    asking.eq(asking & ~Cat(read.ready for read in reads)),
                    telling.eq(telling & ~Cat(buffer.job.ready for buffer in self.buffers)),
                    pending.eq(pending & ~heard),
                ]
                with m.If(~Cat(asking, telling, pending).any()):
                    m.next = "IDLE"

    def _elaborate_replays(self, m: Module) -> None:
        """For each group, for each token: one replay, sent to every lane."""
        config = self.config
        job = self.replay_jobs.o.p
        replay = Signal(config.buffer_config.replay_layout, reset_less=True)
        telling = Signal(config.lanes)  # lanes that have not taken it
        free = Signal()
        m.d.comb += free.eq(~(telling & ~Cat(b.replay.ready for b in self.buffers)).any())
        for lane, buffer in enumerate(self.buffers):
            m.d.comb += [
                buffer.replay.valid.eq(telling[lane]),
                buffer.replay.payload.eq(replay),
            ]

        # The tokens' factors, stored for the groups after the first.
        ram = add(
            m,
            "factors",
            Memory1R1W(MemoryConfig(depth=1 << _TOKEN_BITS, width=FP32.bits)),
        )
        group, token = Signal(GROUP_BITS), Signal(_TOKEN_BITS)
        is_first, is_final, is_end = Signal(), Signal(), Signal()
        fetched = Signal()  # the RAM shows this token's factor
        running, has_factor, go, drain = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            running.eq(self.replay_jobs.o.valid & ~job.refused),
            is_first.eq(group == 0),
            is_final.eq(token == (job.tokens - 1)[:_TOKEN_BITS]),
            is_end.eq(is_final & (group == (job.groups - 1)[:GROUP_BITS])),
            has_factor.eq(~job.fold | Mux(is_first, self.rms.valid, fetched)),
            go.eq(running & has_factor & free),
            # A refused job takes its factors and no more.
            drain.eq(self.replay_jobs.o.valid & job.refused & job.fold & (job.tokens != 0)),
            self.rms.ready.eq((running & is_first & job.fold & free) | drain),
            self.replay_jobs.o.ready.eq(
                (go & is_end)
                | Mux(drain, self.rms.valid & is_final, self.replay_jobs.o.valid & job.refused)
            ),
            ram.write_en.eq(go & is_first),
            ram.write_addr.eq(token),
            ram.write_data.eq(self.rms.p.word),
            ram.read_en.eq(running & ~is_first & ~fetched),
            ram.read_addr.eq(token),
        ]
        with m.If(free):
            m.d.sync += telling.eq(Mux(go, Const(-1, config.lanes), 0))
        with m.Else():
            m.d.sync += telling.eq(telling & ~Cat(b.replay.ready for b in self.buffers))
        with m.If(go):
            m.d.sync += [
                replay.beats.eq(job.beats),
                replay.rms.eq(Mux(is_first, self.rms.p.word, ram.read_data)),
                replay.fold.eq(job.fold),
                replay.release.eq(is_final),
                replay.end.eq(is_end),
                fetched.eq(0),
                token.eq(Mux(is_final, 0, token + 1)),
            ]
            with m.If(is_final):
                m.d.sync += group.eq(Mux(is_end, 0, group + 1))
        with m.Elif(ram.read_en):
            m.d.sync += fetched.eq(1)
        with m.Elif(drain & self.rms.valid):
            m.d.sync += token.eq(Mux(is_final, 0, token + 1))

    def _elaborate_done(self, m: Module) -> None:
        """One word per job, in order: refused, or through the stripe and handed over by all."""
        config = self.config
        errors = queue(m, "errors", 1, _JOBS_AHEAD)
        take = Signal()
        handed = Signal(config.lanes)  # lanes that have handed over all of the eldest job
        order = self.order.o
        m.d.comb += [
            errors.i.valid.eq(self.stripe.done.valid),
            errors.i.p.eq(self.stripe.done.p.error),
            self.stripe.done.ready.eq(errors.i.ready),
            self.done.valid.eq(order.valid & (order.p | (errors.o.valid & handed.all()))),
            self.done.p.refused.eq(order.p),
            self.done.p.error.eq(~order.p & errors.o.p),
            order.ready.eq(self.done.valid & self.done.ready),
            take.eq(order.ready & ~order.p),
            errors.o.ready.eq(take),
        ]
        for lane, buffer in enumerate(self.buffers):
            m.d.comb += buffer.done.ready.eq(~handed[lane])
        finished = Cat(buffer.done.valid for buffer in self.buffers)
        m.d.sync += handed.eq(Mux(take, 0, handed | finished))
