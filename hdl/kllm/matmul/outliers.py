"""The outlier words of jobs on slots."""

from amaranth import Module, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kinds import index_of
from hdl.kllm.engine import SLOT_LENGTH_BITS
from hdl.kllm.matmul.config import KllmMatmulPhaseConfig
from hdl.kllm.matmul.payloads import outlier_count_layout
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue

_COUNTS = 4  # jobs whose counts wait
_IN_FLIGHT_BITS = 24


class KllmOutlierWalk(Block):
    """Gives on ``x`` outlier words 0 .. outliers - 1 of the slot of each ``count``, in order.

    Up to 4 counts wait. Requests run ahead of the words, as far as the slots take them. A count
    takes one cycle in addition to those of its requests.

    Latency: ``count`` to its first request 1 cycle, a word to ``x`` 0 cycles. Throughput 1 word per
    cycle within a count. ``idle``: no count waits, and every requested word was taken.
    Golden: golden.kllm.walks.outlier_places.
    """

    tier = Tier.PART
    golden = "golden.kllm.walks:outlier_places"
    default = KllmMatmulPhaseConfig()

    def __init__(self, config: KllmMatmulPhaseConfig):
        place = Payload(
            slot=(8, "number of the slot", index_of("slots")),
            position=(
                SLOT_LENGTH_BITS,
                "number of the outlier within its token, in ascending place",
                index_of("outliers"),
            ),
        )
        word = Payload(word=(FP16.bits, "FP16 word", FP16))
        super().__init__(
            config,
            {
                "count": In(stream.Signature(outlier_count_layout), "Outliers of each job."),
                "outlier_request": Out(stream.Signature(place), "Outlier words wanted."),
                "outlier": In(stream.Signature(word), "Those words, in order."),
                "x": Out(stream.Signature(word), "The same words."),
                "idle": Out(1, "No word is left."),
            },
        )

    # The memory's latency is not included. The cycles of one count.
    timing = Timing(
        latency=0,
        start="outlier",
        end="x",
        unit="word",
        delays=(("from count to its first request", 1), ("of each count in addition", 1)),
    )

    def elaborate(self, platform) -> Module:
        m = Module()
        counts = queue(m, "counts", outlier_count_layout, depth=_COUNTS)
        link(m, self.count, counts.i)
        link(m, self.outlier, self.x)
        position = Signal(SLOT_LENGTH_BITS)
        is_end = Signal()
        in_flight = Signal(_IN_FLIGHT_BITS)
        request = self.outlier_request
        asks = Signal()
        gives = Signal()
        m.d.comb += [
            is_end.eq(position == counts.o.p.outliers),
            counts.o.ready.eq(is_end),
            request.valid.eq(counts.o.valid & ~is_end),
            request.p.slot.eq(counts.o.p.slot),
            request.p.position.eq(position),
            asks.eq(request.valid & request.ready),
            gives.eq(self.x.valid & self.x.ready),
            self.idle.eq((counts.level == 0) & (in_flight == 0)),
        ]
        m.d.sync += in_flight.eq(in_flight + asks - gives)
        with m.If(asks):
            m.d.sync += position.eq(position + 1)
        with m.If(counts.o.valid & is_end):
            m.d.sync += position.eq(0)
        return m
