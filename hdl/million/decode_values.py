"""Weighted sums of past values by decoding them."""

from typing import ClassVar

from amaranth import Array, Cat, Module, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.million import timing
from golden.million.config import NAMED
from golden.million.format import PRODUCT_GRID
from golden.timing import Timing
from hdl.bits import after
from hdl.block import Block, Operations, Tier
from hdl.children import add
from hdl.kinds import fixed
from hdl.million.decode_lookup import MillionDecodeLookup, MillionDecodeLookupConfig
from hdl.million.decode_sum import MillionDecodeSum, MillionDecodeSumConfig
from hdl.million.layouts import score_layout
from hdl.million.shapes import SMALL, SMALL_RATE, SMOLLM2_RATE
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue

_SUM_BITS = 65  # of a sum over 32,768 keys


class MillionDecodeValuesConfig(MillionDecodeLookupConfig):
    """Codes, keys per cycle and queries side by side."""

    @property
    def lookup(self) -> MillionDecodeLookupConfig:
        return MillionDecodeLookupConfig(pq=self.pq, rate=self.rate, max_keys=self.max_keys)

    @property
    def lane(self) -> MillionDecodeSumConfig:
        bits = max(52, (self.max_keys << -PRODUCT_GRID).bit_length() + 1)
        return MillionDecodeSumConfig(keys=self.rate.keys, sum_bits=bits)

    @property
    def weight_layout(self) -> Payload:
        return score_layout(self.rate)

    @property
    def job_layout(self) -> Payload:
        return Payload(**self.job_parts)

    @property
    def sum_layout(self) -> Payload:
        sums = data.ArrayLayout(signed(_SUM_BITS), self.rate.macs)
        return Payload(
            value=(sums, "sums of macs elements in units of 2**-48", fixed(PRODUCT_GRID)),
            last=(1, "ends the sums of a job"),
        )

    @property
    def end_layout(self) -> Payload:
        return Payload(bad_code=(1, "a key has a code beyond the entries"))


class MillionDecodeValues(Block):
    """``N_i = sum over keys of weight * c_i`` of each query and element, exact.

    c is the value that the codes name in the codebook. The sums are those of
    million_value_engine, bit for bit. A code beyond the job's entries adds nothing to its part of
    the vector, and sets ``end.bad_code``.

    A job with ``switch`` takes a packet of ``codebook``, and the jobs after it use the same. It has
    ceil(keys / P) beats of ``code`` and of ``weight``, taken together. Slots beyond ``keys`` of the
    last beat are ignored. The block counts the beats: it does not look at ``last`` of either. Then
    come the sums: for each part of ``macs`` elements, for each query. With keys = 0 they are 0. One
    word of ``end`` per job may come before its sums.

    Contract: the first job has ``switch``; 1 <= entries <= rows of the codebook; |c| <= 1; weights
    are 0..1.

    Latency and delays: golden.million.timing.decode_values. One beat per cycle. The first beat of a
    job is taken when the sums of the job before have left. The next codebook is taken meanwhile.
    ``code.ready`` depends on ``weight.valid`` and ``weight.ready`` on ``code.valid``
    combinationally. The rival of million_value_engine. Golden: golden.million.decode.decode_sums.

    The block keeps two codebooks: one is used, the other one is loaded. P * L * d products per
    cycle are the price. docs/area.md compares it with the bins.
    """

    tier = Tier.PART
    golden = "golden.million.decode:decode_sums"
    default = MillionDecodeValuesConfig()
    configs: ClassVar = {
        "smollm2": MillionDecodeValuesConfig(pq=NAMED["4b_64"], rate=SMOLLM2_RATE),
        "small": MillionDecodeValuesConfig(pq=SMALL, rate=SMALL_RATE, max_keys=64),
    }
    checked = "small"

    def __init__(self, config: MillionDecodeValuesConfig):
        super().__init__(
            config,
            {
                "codebook": In(
                    stream.Signature(config.codebook_layout),
                    "Codebooks, row by row, each used from a job with switch on.",
                ),
                "job": In(stream.Signature(config.job_layout), "Begins a job."),
                "weight": In(stream.Signature(config.weight_layout), "Weights of the job's keys."),
                "code": In(stream.Signature(config.code_layout), "Codes of the job's keys."),
                "sum": Out(stream.Signature(config.sum_layout), "Sums of the job."),
                "end": Out(stream.Signature(config.end_layout), "What was bad, one per job."),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.decode_values()

    @property
    def operations(self) -> Operations:
        return Operations("weight", self.config.rate.keys, "keys")

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        lookup = add(m, "lookup", MillionDecodeLookup(config.lookup))
        link(m, self.codebook, lookup.codebook)
        link(m, self.job, lookup.job)
        weight = Signal(self.weight.p.word.shape(), reset_less=True)
        m.d.sync += weight.eq(self.weight.p.word)
        ended, busy = weighted_sums(m, config, lookup, weight, self.sum)
        m.d.comb += [
            lookup.can_begin.eq(1),
            lookup.can_take.eq(~busy),
            Value.cast(lookup.code.p).eq(Value.cast(self.code.p)),
            lookup.code.valid.eq(self.code.valid & self.weight.valid),
            self.code.ready.eq(lookup.code.ready & self.weight.valid),
            self.weight.ready.eq(lookup.code.ready & self.code.valid),
        ]
        ends = queue(m, "ends", config.end_layout, 2)
        m.d.comb += [
            ends.i.valid.eq(ended),
            ends.i.p.bad_code.eq(lookup.bad_code),
            lookup.can_end.eq(ends.i.ready & ~ended),
        ]
        link(m, ends.o, self.end)
        return m


def weighted_sums(m: Module, config: MillionDecodeValuesConfig, lookup, weight, out) -> tuple:
    """(a job's last elements are shown, its sums are about to leave); the sums go to ``out``.

    ``lookup`` shows elements and their flags, and ``weight`` is that of the elements shown. No beat
    may be taken until they have left.
    """
    pq, rate = config.pq, config.rate
    # ``ended``: the last elements of a job are shown. One cycle later their products are added,
    # and from the next on the sums leave.
    ended = Signal()
    added = Signal()
    gives = Signal()
    leaves = Signal()
    step = Signal()
    first = Signal(reset_less=True)
    m.d.comb += ended.eq(lookup.shown & lookup.last)
    m.d.sync += [
        added.eq(ended),
        gives.eq(added | (gives & ~leaves)),
        step.eq(lookup.shown),
        first.eq(lookup.first),
    ]
    sums = []  # by query, then element
    for n in range(rate.queries):
        for i in range(pq.head_dim):
            lane = add(m, f"lane_{n}_{i}", MillionDecodeSum(config.lane))
            skips = (lookup.dead[p] | lookup.beyond[p][i // pq.sub] for p in range(rate.keys))
            m.d.comb += [
                lane.step.eq(step),
                lane.first.eq(first),
                lane.skips.eq(Cat(skips)),
                *(lane.weight[p].eq(weight[p][n]) for p in range(rate.keys)),
                *(lane.c[p].eq(lookup.word[p][i]) for p in range(rate.keys)),
            ]
            wide = Signal(signed(_SUM_BITS), name=f"sum_{n}_{i}")
            m.d.comb += wide.eq(lane.sum)
            sums.append(wide)

    count = config.lookup.parts * rate.queries
    place = Signal(range(max(2, count)))  # part by part, in each query by query
    words = []
    for part in range(config.lookup.parts):
        for n in range(rate.queries):
            begin = n * pq.head_dim + part * rate.macs
            words.append(Cat(sums[begin : begin + rate.macs]))
    m.d.comb += [
        out.valid.eq(gives),
        Value.cast(out.p.value).eq(Array(words)[place]),
        out.p.last.eq(place == count - 1),
        leaves.eq(gives & out.ready & out.p.last),
    ]
    with m.If(gives & out.ready):
        m.d.sync += place.eq(after(place, count))
    return ended, ended | added | gives
