"""The path from the weight ports to the lanes (docs/blocks/kllm_weight_supply.md)."""

import dataclasses
import math
from fractions import Fraction
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, flag, nested
from golden.fp16.format import FP32
from golden.kllm.config import LaneShape, PortShape
from golden.timing import Timing
from hdl.block import Block
from hdl.children import add
from hdl.kinds import NUMBER, index_of
from hdl.kllm.weights.buffer import GROUP_BITS, KllmWeightBuffer, KllmWeightBufferConfig
from hdl.kllm.weights.stripe import KllmWeightStripe, KllmWeightStripeConfig
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue

_TOKEN_BITS = 8
_WORDS_BITS = 24  # of the words of one read
_JOBS_AHEAD = 4  # jobs whose weights may be requested before the first of them is done


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmWeightSupplyConfig(Config):
    """Shape of the weight image and size of its buffers."""

    lane: LaneShape = nested(LaneShape, "the lanes")
    ports: PortShape = nested(PortShape, "ports of the weights")
    buffer_beats: int = bounded(256, 2, 65_536, "weight beats kept per lane")
    address_bits: int = bounded(32, 8, 64, "bits of an address in port words")
    length_bits: int = bounded(14, 1, 16, "bits of a number of beats")
    come: bool = flag(False, "tells when all words of a job have come")

    def __post_init__(self) -> None:
        if self.slots > 1024:
            most = 1024 // self.buffer_config.lane_words
            self._refuse("lane.lanes", f"at most {most} at ports of {self.ports.bits} bits")

    @property
    def replay_beats(self) -> int:
        """Most weight beats of a group that several tokens may share: the whole buffer."""
        return self.buffer_beats

    @property
    def slots(self) -> int:
        """Port words of an array beat."""
        return self.lane.lanes * self.buffer_config.lane_words

    @property
    def buffer_config(self) -> KllmWeightBufferConfig:
        shape = KllmWeightBufferConfig(
            columns=self.lane.columns,
            elements=self.lane.elements,
            bits_b=self.lane.bits_b,
            port_bits=self.ports.bits,
            buffer_beats=self.buffer_beats,
            length_bits=self.length_bits,
        )
        # In the cycle in which the ports bring a beat's final word they may bring a word of the
        # lane's next beat: one place per slot is enough only where they never do.
        words, ports = shape.lane_words, self.ports.ports
        slots = self.lane.lanes * words
        collides = any(
            (number + words - 1) // ports == (number + slots + word) // ports
            for number in range(0, slots * ports, words)
            for word in range(words)
        )
        if collides and ports % slots:
            shape = dataclasses.replace(shape, word_depth=2)
        return shape

    @property
    def common(self) -> int:
        return math.gcd(self.slots, self.ports.ports)

    @property
    def factor(self) -> int:
        """A port has array beats * factor / divisor words."""
        return self.slots // self.common

    @property
    def divisor(self) -> int:
        return self.ports.ports // self.common

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
        return KllmWeightStripeConfig(
            slots=self.slots, ports=self.ports.ports, port_bits=self.ports.bits
        )

    def bound(self, beats: int, groups: int, tokens: int = 1) -> int:
        """Cycles of a job: ports at one word, lanes at one beat and one scale per cycle."""
        gathered = groups * (beats + self.buffer_config.scale_beats)
        through_ports = -(-gathered * self.slots // self.ports.ports)
        return max(through_ports, gathered, groups * tokens * max(beats, self.lane.columns))

    @property
    def job_layout(self) -> data.StructLayout:
        return Payload(
            address=(self.address_bits, "first port word of the image", index_of("port words")),
            beats=(self.length_bits, "weight beats of a group", NUMBER),
            groups=(GROUP_BITS, "groups of the image", NUMBER),
            tokens=(_TOKEN_BITS, "tokens that the weights go to", NUMBER),
            fold=(1, "the scales are multiplied by rms"),
        )

    @property
    def rms_layout(self) -> data.StructLayout:
        return Payload(word=(FP32.bits, "factor of one token's scales, FP32", FP32))

    @property
    def read_layout(self) -> data.StructLayout:
        return Payload(
            address=(self.address_bits, "first port word", index_of("port words")),
            words=(_WORDS_BITS, "port words to read, 1 or more", NUMBER),
        )

    @property
    def done_layout(self) -> data.StructLayout:
        return Payload(
            error=(1, "a word of the job came with error"),
            refused=(1, "the job has sizes that the supply does not serve, and gave nothing"),
        )


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
    its words of ``rms``. With the field ``come`` the block tells that all words of the eldest job
    that is not done came without an error.

    Rates: one word per port, one beat and one scale per lane and cycle, all at once: see ``bound``.
    A job's reads come ``setup_cycles`` after it, during the job before if there is one. Rounding:
    one, of folded scales. No combinational path leads from an input to an output.
    Source: KLLM, section IV-A. Golden: golden.kllm.image.supply.
    """

    golden = "golden.kllm.image:supply"
    reference = "tests/kllm/test_image.py: test_lanes_are_given_their_columns"
    default = KllmWeightSupplyConfig()
    configs: ClassVar = {
        "table1": KllmWeightSupplyConfig(),
        "small": KllmWeightSupplyConfig(
            lane=LaneShape(lanes=2, columns=3, elements=4, bits_b=3),
            ports=PortShape(ports=3, bits=16),
            buffer_beats=5,
            length_bits=6,
        ),
    }

    def __init__(self, config: KllmWeightSupplyConfig):
        buffer = config.buffer_config
        ports, lanes = config.ports.ports, config.lane.lanes
        come = {}
        if config.come:
            come = {"come": Out(1, "All words of the eldest job have come, without an error.")}
        super().__init__(
            config,
            {
                "job": In(
                    stream.Signature(config.job_layout),
                    "A weight image to hand out, and to how many tokens.",
                ),
                "rms": In(
                    stream.Signature(config.rms_layout),
                    "Factor of each token's scales, jobs with fold only.",
                ),
                "read": Out(
                    stream.Signature(config.read_layout),
                    "Words wanted of port {0}, one request per job.",
                ).array(ports),
                "data": In(
                    stream.Signature(config.stripe_config.data_layout), "Those words, in order."
                ).array(ports),
                "w": Out(stream.Signature(buffer.w_layout), "Weight indices of lane {0}.").array(
                    lanes
                ),
                "s_b": Out(stream.Signature(buffer.s_b_layout), "Weight scales of lane {0}.").array(
                    lanes
                ),
                "done": Out(stream.Signature(config.done_layout), "One word per job, at its end."),
                **come,
            },
        )

    @property
    def timing(self) -> Timing:
        """``setup_cycles`` is a division of the job's groups, a digit per cycle."""
        return Timing(
            latency=self.config.setup_cycles,
            interval=Fraction(1, min(self.config.ports.ports, self.config.slots)),
            start="job",
            end="read_p",
            unit="port word",
        )

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        stripe = add(m, "stripe", KllmWeightStripe(config.stripe_config))
        buffers = [
            add(m, f"buffer_{lane}", KllmWeightBuffer(config.buffer_config))
            for lane in range(config.lane.lanes)
        ]
        for port in range(config.ports.ports):
            link(m, self.data[port], stripe.data[port])
        words = config.buffer_config.lane_words
        for lane, buffer in enumerate(buffers):
            links = [(buffer.w, self.w[lane])]
            links.append((buffer.s_b, self.s_b[lane]))
            links += [(stripe.slot[lane * words + k], buffer.word[k]) for k in range(words)]
            for source, sink in links:
                link(m, source, sink)
        replay_jobs = queue(m, "replay_jobs", _replay_job_layout(config), 2)
        order = queue(m, "order", 1, _JOBS_AHEAD)
        found = _Found.of(m, config)
        heard = _Heard(
            ports=Cat(self.read[port].ready for port in range(config.ports.ports)),
            lanes=Cat(buffer.job.ready for buffer in buffers),
            others=Cat(stripe.job.ready, replay_jobs.i.ready, order.i.ready),
        )
        telling = _jobs(m, config, self.job, found, heard)
        more = Signal(_WORDS_BITS)
        m.d.comb += more.eq(found.quotient + 1)
        for port in range(config.ports.ports):
            read = self.read[port]
            m.d.comb += [
                read.valid.eq(telling.ports[port]),
                read.p.address.eq(found.job.address),
                read.p.words.eq(Mux(found.extra > port, more, found.quotient[:_WORDS_BITS])),
            ]
        for lane, buffer in enumerate(buffers):
            m.d.comb += [
                buffer.job.valid.eq(telling.lanes[lane]),
                buffer.job.p.beats.eq(found.job.beats),
                buffer.job.p.groups.eq(found.job.groups),
            ]
        m.d.comb += [
            stripe.job.valid.eq(telling.others[0]),
            stripe.job.p.ports.eq(Mux(found.quotient != 0, config.ports.ports, found.extra)),
            replay_jobs.i.valid.eq(telling.others[1]),
            *(
                getattr(replay_jobs.i.p, name).eq(getattr(found.job, name))
                for name in ("beats", "groups", "tokens", "fold")
            ),
            replay_jobs.i.p.refused.eq(found.refused),
            order.i.valid.eq(telling.others[2]),
            order.i.p.eq(found.refused),
        ]
        _replays(m, config, replay_jobs.o, self.rms, buffers)
        errors = _done(m, order.o, stripe.done, buffers, self.done)
        if config.come:
            m.d.comb += self.come.eq(order.o.valid & ~order.o.p & errors.valid & ~errors.p)
        return m


def _replay_job_layout(config: KllmWeightSupplyConfig) -> data.StructLayout:
    return Payload(
        beats=(config.length_bits, "weight beats of a group", NUMBER),
        groups=(GROUP_BITS, "groups of the image", NUMBER),
        tokens=(_TOKEN_BITS, "tokens that the weights go to", NUMBER),
        fold=(1, "the scales are multiplied by rms"),
        refused=(1, "the job has sizes that the supply does not serve, and gave nothing"),
    )


@dataclasses.dataclass(frozen=True)
class _Found:
    """A job, and its words divided among the ports.

    Words of a port are ``quotient``, or one more on the first ``extra`` ports.
    """

    job: data.View
    refused: Signal
    quotient: Signal
    remainder: Signal  # in units of ``common`` ports
    extra: Signal

    @classmethod
    def of(cls, m: Module, config: KllmWeightSupplyConfig) -> "_Found":
        remainder = Signal(range(max(config.divisor, 2)), reset_less=True)
        extra = Signal(range(config.ports.ports + 1))
        m.d.comb += extra.eq(remainder * config.common)
        return cls(
            job=Signal(config.job_layout, name="found_job", reset_less=True),
            refused=Signal(name="found_refused", reset_less=True),
            quotient=Signal(2 * config.quotient_digits, name="found_quotient", reset_less=True),
            remainder=remainder,
            extra=extra,
        )


@dataclasses.dataclass(frozen=True)
class _Heard:
    """A bit for each part that a job is passed to: who takes it, or who was not told yet."""

    ports: Value
    lanes: Value
    others: Value  # stripe, replays, done


def _digit(m: Module, dividend, remainder, divisor: int) -> tuple[Signal, Signal]:
    """(digit, rest) of a division to base 4: how often the divisor goes into the next two bits."""
    grown = Signal(range(max(4 * divisor, 2)))
    digit = Signal(2)
    rest = Signal.like(remainder)
    m.d.comb += [grown.eq(Cat(dividend[-2:], remainder)), rest.eq(grown)]
    for times in range(1, 4):
        with m.If(grown >= times * divisor):
            m.d.comb += [digit.eq(times), rest.eq(grown - times * divisor)]
    return digit, rest


def _jobs(m: Module, config: KllmWeightSupplyConfig, job, found: _Found, heard: _Heard) -> _Heard:
    """Checks a job, divides its words among the ports, and passes it to all other parts.

    The result: who was not told yet.
    """
    digits, factor = config.quotient_digits, config.factor
    array_beats = Signal(config.array_beat_bits, reset_less=True)
    # words = array_beats * slots, as quotient * ports + common * remainder
    dividend = Signal(2 * digits, reset_less=True)
    left = Signal(range(digits + 1), reset_less=True)
    too_many = Signal()
    asking = Signal(config.ports.ports)
    telling = Signal(config.lane.lanes)
    pending = Signal(3)
    digit, rest = _digit(m, dividend, found.remainder, config.divisor)
    m.d.comb += too_many.eq(found.quotient >= (1 << _WORDS_BITS) - 2)
    taken = found.job
    with m.FSM():
        with m.State("IDLE"):
            m.d.comb += job.ready.eq(1)
            m.d.sync += taken.eq(job.payload)
            with m.If(job.valid):
                m.next = "MULTIPLY"
        with m.State("MULTIPLY"):
            m.d.sync += [
                array_beats.eq(taken.groups * (taken.beats + config.buffer_config.scale_beats)),
                found.refused.eq(
                    (taken.beats == 0)
                    | (taken.groups == 0)
                    | (taken.tokens == 0)
                    | ((taken.tokens > 1) & (taken.beats > config.replay_beats))
                ),
            ]
            m.next = "SCALE"
        with m.State("SCALE"):
            m.d.sync += [
                dividend.eq(array_beats * factor),
                found.quotient.eq(array_beats * factor),
                found.remainder.eq(0),
                left.eq(digits),
            ]
            m.next = "DIVIDE" if config.divisor > 1 else "CHECK"
        with m.State("DIVIDE"):
            m.d.sync += [
                dividend.eq(dividend << 2),
                found.quotient.eq(Cat(digit, found.quotient)),
                found.remainder.eq(rest),
                left.eq(left - 1),
            ]
            with m.If(left == 1):
                m.next = "CHECK"
        with m.State("CHECK"):
            stops = found.refused | too_many
            m.d.sync += [found.refused.eq(stops), pending.eq(Mux(stops, 0b110, 0b111))]
            with m.If(~stops):
                m.d.sync += [
                    asking.eq(
                        Cat(
                            (found.quotient != 0) | (found.extra > port)
                            for port in range(config.ports.ports)
                        )
                    ),
                    telling.eq(Const(-1, config.lane.lanes)),
                ]
            m.next = "TELL"
        with m.State("TELL"):
            m.d.sync += [
                asking.eq(asking & ~heard.ports),
                telling.eq(telling & ~heard.lanes),
                pending.eq(pending & ~heard.others),
            ]
            with m.If(~Cat(asking, telling, pending).any()):
                m.next = "IDLE"
    return _Heard(ports=asking, lanes=telling, others=pending)


def _replays(m: Module, config: KllmWeightSupplyConfig, jobs, rms, buffers) -> None:
    """Sends one replay to every lane for each token of each group."""
    job = jobs.p
    replay = Signal(config.buffer_config.replay_layout, reset_less=True)
    telling = Signal(config.lane.lanes)  # lanes that have not taken it
    free = Signal()
    m.d.comb += free.eq(~(telling & ~Cat(b.replay.ready for b in buffers)).any())
    for lane, buffer in enumerate(buffers):
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
    group = Signal(GROUP_BITS)
    token = Signal(_TOKEN_BITS)
    is_first = Signal()
    is_final = Signal()
    is_end = Signal()
    fetched = Signal()  # the RAM shows this token's factor
    running = Signal()
    has_factor = Signal()
    go = Signal()
    drain = Signal()
    m.d.comb += [
        running.eq(jobs.valid & ~job.refused),
        is_first.eq(group == 0),
        is_final.eq(token == (job.tokens - 1)[:_TOKEN_BITS]),
        is_end.eq(is_final & (group == (job.groups - 1)[:GROUP_BITS])),
        has_factor.eq(~job.fold | Mux(is_first, rms.valid, fetched)),
        go.eq(running & has_factor & free),
        # A refused job takes its factors and no more.
        drain.eq(jobs.valid & job.refused & job.fold & (job.tokens != 0)),
        rms.ready.eq((running & is_first & job.fold & free) | drain),
        jobs.ready.eq((go & is_end) | Mux(drain, rms.valid & is_final, jobs.valid & job.refused)),
        ram.write_en.eq(go & is_first),
        ram.write_addr.eq(token),
        ram.write_data.eq(rms.p.word),
        ram.read_en.eq(running & ~is_first & ~fetched),
        ram.read_addr.eq(token),
    ]
    with m.If(free):
        m.d.sync += telling.eq(Mux(go, Const(-1, config.lane.lanes), 0))
    with m.Else():
        m.d.sync += telling.eq(telling & ~Cat(b.replay.ready for b in buffers))
    with m.If(go):
        m.d.sync += [
            replay.beats.eq(job.beats),
            replay.rms.eq(Mux(is_first, rms.p.word, ram.read_data)),
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
    with m.Elif(drain & rms.valid):
        m.d.sync += token.eq(Mux(is_final, 0, token + 1))


def _done(m: Module, order, stripe_done, buffers, done):
    """One word per job, in order: refused, or through the stripe and handed over by all.

    Returns the errors of jobs that are through the stripe and not done, the eldest first.
    """
    errors = queue(m, "errors", 1, _JOBS_AHEAD)
    take = Signal()
    handed = Signal(len(buffers))  # lanes that have handed over all of the eldest job
    m.d.comb += [
        errors.i.valid.eq(stripe_done.valid),
        errors.i.p.eq(stripe_done.p.error),
        stripe_done.ready.eq(errors.i.ready),
        done.valid.eq(order.valid & (order.p | (errors.o.valid & handed.all()))),
        done.p.refused.eq(order.p),
        done.p.error.eq(~order.p & errors.o.p),
        order.ready.eq(done.valid & done.ready),
        take.eq(order.ready & ~order.p),
        errors.o.ready.eq(take),
    ]
    for lane, buffer in enumerate(buffers):
        m.d.comb += buffer.done.ready.eq(~handed[lane])
    finished = Cat(buffer.done.valid for buffer in buffers)
    m.d.sync += handed.eq(Mux(take, 0, handed | finished))
    return errors.o
