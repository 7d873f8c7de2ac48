"""KLLM lanes that share their activations."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Signal
from amaranth.lib import stream

from golden.config import Config, bounded, nested
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.children import add
from hdl.kllm.lane.config import SMALL, KllmPeLaneConfig
from hdl.kllm.lane.engine import KllmPeLane
from hdl.ports import In, Out
from hdl.stream.fork import fork
from hdl.stream.link import StreamView, link

_SHARED = ("job", "a", "x", "codebook")


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmLaneArrayConfig(Config):
    """Number of lanes and what each is."""

    lanes: int = bounded(16, 1, 64, "PE lanes")
    lane: KllmPeLaneConfig = nested(KllmPeLaneConfig)


class KllmLaneArray(Block):
    """``lanes`` lanes on the same activations, each with its own weights: lanes x columns outputs.

    Every job runs on all lanes. Lane l computes output columns from its own ``w_l`` and
    ``s_b_l`` and gives ``y_l`` and ``status_l``, as KllmPeLane says. The words of ``job``, ``a``,
    ``x`` and ``codebook`` go to every lane once. A lane may run one word ahead of another.

    All lanes take a codebook packet between the same two jobs. It comes before a job word that is
    offered with it, and after one that was offered in an earlier cycle. (A lane by itself would
    take the packet first then, too.)

    Throughput and latency are those of a lane; ``ready`` of the shared streams depends
    combinationally on all lanes. Source: KLLM, section IV-A, Table I.
    Golden: golden.kllm.matmul.matmul.

    No packet begins while only some lanes have a job word. A fault in a shared stream appears in
    every ``status_l``, one in a lane's own weights or scales only in its own. The Verilog has one
    lane module for any number of lanes.

    Every lane has its own ``w_l`` of columns * elements * bits_b + 1 bits. All bits of 64 lanes are
    131,136 at Table I's sizes (32, 16, 4) and 262,208 at the widest (64, 16, 4). Amaranth by itself
    numbers all input bits of a module in 16 bits. hdl.back.emit numbers them in 20.
    """

    tier = Tier.PART
    golden = "golden.kllm.matmul:matmul"
    default = KllmLaneArrayConfig()
    configs: ClassVar = {
        "table1": KllmLaneArrayConfig(),
        "small": KllmLaneArrayConfig(lanes=2, lane=SMALL),
    }

    def __init__(self, config: KllmLaneArrayConfig):
        lane = config.lane
        word, value = stream.Signature(lane.word_layout), stream.Signature(lane.value_layout)
        super().__init__(
            config,
            {
                "job": In(stream.Signature(lane.job_layout), "what the next job of all lanes is"),
                "a": In(
                    stream.Signature(lane.a_layout),
                    "activation indices (or integers) and outlier mask, for all lanes",
                ),
                "x": In(value, "FP16 values of the outliers, for all lanes"),
                "codebook": In(
                    stream.Signature(lane.packet_layout),
                    "centroids and their products, for all lanes",
                ),
                "w": In(stream.Signature(lane.w_layout), "weight indices of lane {0}").array(
                    config.lanes
                ),
                "s_b": In(value, "FP16 scale of each output column of lane {0}").array(
                    config.lanes
                ),
                "y": Out(word, "FP16 outputs of lane {0}").array(config.lanes),
                "status": Out(
                    stream.Signature(lane.status_layout),
                    "one word per job: the fault bits of lane {0}, 0 if none",
                ).array(config.lanes),
            },
        )

    @property
    def timing(self) -> Timing:
        return self.config.lane.timing

    @property
    def throughput(self) -> str:
        return f"{self.config.lanes} lanes, each {super().throughput}"

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        lanes = [add(m, f"lane_{n}", KllmPeLane(config.lane)) for n in range(config.lanes)]

        # A codebook must meet every lane between the same jobs: while a job word is offered, which
        # may have reached some lanes already, no packet begins, and the other way round.
        loading = Signal()
        job_pending = Signal()
        gates = {
            "codebook": loading | ~job_pending,
            "job": job_pending | (~loading & ~self.codebook.valid),
        }
        for name in _SHARED:
            source = getattr(self, name)
            if name in gates:
                source = _gated(m, source, gates[name])
            for lane, branch in zip(
                lanes, fork(m, f"fork_{name}", source, len(lanes)), strict=True
            ):
                link(m, branch, getattr(lane, name))
        with m.If(self.codebook.valid & gates["codebook"]):
            m.d.sync += loading.eq(~(self.codebook.ready & self.codebook.p.last))
        with m.If(self.job.valid & gates["job"]):
            m.d.sync += job_pending.eq(~self.job.ready)

        for n, lane in enumerate(lanes):
            link(m, self.w[n], lane.w)
            link(m, self.s_b[n], lane.s_b)
            link(m, lane.y, self.y[n])
            link(m, lane.status, self.status[n])
        return m


def _gated(m: Module, source, allowed) -> StreamView:
    """``source``, offered only while ``allowed``."""
    gated_ready = Signal()
    gated = StreamView(source.payload, source.valid & allowed, gated_ready)
    m.d.comb += source.ready.eq(gated.ready & allowed)
    return gated
