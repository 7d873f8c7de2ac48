"""KLLM lanes that share their activations (docs/blocks/kllm_lane_array.md)."""

import dataclasses

from amaranth import Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from golden.config import Config
from hdl.block import Block
from hdl.emit import add
from hdl.kllm.pe_lane import KllmPeLane, KllmPeLaneConfig
from hdl.stream.fork import StreamFork, StreamForkConfig

__all__ = ["KllmLaneArray", "KllmLaneArrayConfig"]

_SHARED = ("job", "a", "x", "codebook")


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmLaneArrayConfig(Config):
    """Number of lanes and what each is."""

    lanes: int = 16  # 1..31 at this lane's width, up to 64 where lanes are narrower
    lane: KllmPeLaneConfig = dataclasses.field(default_factory=KllmPeLaneConfig)

    def __post_init__(self) -> None:
        self._check_range("lanes", 1, 64)
        if not isinstance(self.lane, KllmPeLaneConfig):
            self._refuse("lane", "a KllmPeLaneConfig")
        if self.lanes > self.lanes_max:
            self._refuse("lanes", f"1..{self.lanes_max} at this width")

    @property
    def lanes_max(self) -> int:
        """Most lanes whose input ports fit: Amaranth numbers all input bits of a module in 16 bits.

        A lane takes its weight beat and at most 64 bits more, its part of the shared streams among
        them.
        """
        return min(64, (2**16 - 1) // (self.lane.w_layout.size + 64))


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

    Members
    -------
    job, a, x, codebook : In(stream)         as in KllmPeLane, shared
    w_0, w_1, ... ; s_b_0, ... : In(stream)  of each lane
    y_0, ... ; status_0, ... : Out(stream)   of each lane
    """

    def __init__(self, config: KllmLaneArrayConfig):
        lane = config.lane
        word, value = stream.Signature(lane.word_layout), stream.Signature(lane.value_layout)
        members = {
            "job": In(stream.Signature(lane.job_layout)),
            "a": In(stream.Signature(lane.a_layout)),
            "x": In(value),
            "codebook": In(word),
        }
        self.meaning = {name: f"{KllmPeLane.meaning[name]}; all lanes" for name in members}
        of_lane = {
            "w": In(stream.Signature(lane.w_layout)),
            "s_b": In(value),
            "y": Out(word),
            "status": Out(stream.Signature(lane.status_layout)),
        }
        for number in range(config.lanes):
            for name, member in of_lane.items():
                members[f"{name}_{number}"] = member
                self.meaning[f"{name}_{number}"] = f"{KllmPeLane.meaning[name]}; lane {number}"
        super().__init__(config, members)

    @property
    def latency(self) -> str:
        return self.config.lane.latency

    @property
    def throughput(self) -> str:
        return f"{self.config.lanes} lanes, each {self.config.lane.throughput}"

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        lanes = [add(m, f"lane_{n}", KllmPeLane(config.lane)) for n in range(config.lanes)]

        # A codebook must meet every lane between the same jobs: while a job word is offered, which
        # may have reached some lanes already, no packet begins, and the other way round.
        allowed = {"a": 1, "x": 1}
        loading, job_pending = Signal(), Signal()
        allowed["codebook"] = loading | ~job_pending
        allowed["job"] = job_pending | (~loading & ~self.codebook.valid)
        for name in _SHARED:
            source = getattr(self, name)
            fork = add(
                m,
                f"fork_{name}",
                StreamFork(
                    StreamForkConfig(width=len(source.payload.as_value()), outputs=config.lanes)
                ),
            )
            m.d.comb += [
                fork.i.p.data.eq(source.payload),
                fork.i.p.last.eq(0),
                fork.i.valid.eq(source.valid & allowed[name]),
                source.ready.eq(fork.i.ready & allowed[name]),
            ]
            for n, lane in enumerate(lanes):
                branch, sink = getattr(fork, f"o_{n}"), getattr(lane, name)
                m.d.comb += [
                    sink.payload.eq(branch.p.data),
                    sink.valid.eq(branch.valid),
                    branch.ready.eq(sink.ready),
                ]
            if name == "codebook":
                with m.If(source.valid & allowed[name]):
                    m.d.sync += loading.eq(~(source.ready & source.p.last))
            elif name == "job":
                with m.If(source.valid & allowed[name]):
                    m.d.sync += job_pending.eq(~source.ready)

        for n, lane in enumerate(lanes):
            for name in ("w", "s_b"):
                source, sink = getattr(self, f"{name}_{n}"), getattr(lane, name)
                m.d.comb += [
                    sink.payload.eq(source.payload),
                    sink.valid.eq(source.valid),
                    source.ready.eq(sink.ready),
                ]
            for name in ("y", "status"):
                source, sink = getattr(lane, name), getattr(self, f"{name}_{n}")
                m.d.comb += [
                    sink.payload.eq(source.payload),
                    sink.valid.eq(source.valid),
                    source.ready.eq(sink.ready),
                ]
        return m
