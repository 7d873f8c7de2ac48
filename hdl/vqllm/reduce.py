"""Exact sums of several cores to those of whole rows (docs/blocks/vq_reduce.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, power_of_two
from golden.timing import Timing
from golden.vqllm import timing
from golden.vqllm.format import ROWS_BITS
from hdl.bits import any_of, let
from hdl.block import Block
from hdl.kinds import NUMBER
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.row.config import SMALL_SUMS, SumsConfig, VqRowSumsConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqReduceConfig(Config):
    """Size of the sums, and how many come and are added at a time."""

    sums: SumsConfig = dataclasses.field(default_factory=VqRowSumsConfig)
    cores: int = power_of_two(4, 1, 16, "sums that come side by side")
    lanes: int = 4  # sums that are added per cycle, a power of two in 1..cores

    def __post_init__(self) -> None:
        if not isinstance(self.sums, SumsConfig) or self.sums.has_groups:
            self._refuse("sums", "a configuration of sums without groups")
        self._check_power_of_two("lanes", 1, self.cores)

    @property
    def job_layout(self) -> data.StructLayout:
        most = self.cores.bit_length() - 1
        return Payload(
            rows=(ROWS_BITS, "rows", NUMBER),
            stripe=(ROWS_BITS, "rows of a stripe: its first row is of core 0", NUMBER),
            split=(range(max(2, most + 1)), "log2 of the sums of a row", NUMBER),
        )


class VqReduce(Block):
    """``sum[n] = sum over p < 2**split of part[r * 2**split + p]``, the next one of each.

    Row n of a stripe has r = n mod (cores / 2**split). So the sums of a row come from 2**split
    neighbours, and the rows go round. ``bad`` is the union. ``last`` ends a job.

    A row takes max(1, 2**split / lanes) cycles. Latency golden.vqllm.timing.reduce, from the sums
    of a row to its sum. ``part[k].ready`` depends combinationally on all ``part[k].valid``.
    Contract: rows and stripe at least 1, 2**split at most cores.
    Source: VQ-LLM, section VI; decision 0207. Golden: golden.vqllm.product.exact_sums.
    """

    golden = "golden.vqllm.product:exact_sums"
    reference = "tests/vqllm/test_product.py: test_by_dequantizing"
    default = VqReduceConfig()
    configs: ClassVar = {"small": VqReduceConfig(sums=SMALL_SUMS, lanes=2)}

    def __init__(self, config: VqReduceConfig):
        sums = stream.Signature(config.sums.sum_layout)
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Rows to add."),
                "part": In(sums, "Sums of core {0}.").array(config.cores),
                "sum": Out(sums, "Sums of rows."),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.reduce()

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        cores, lanes, batch = config.cores, config.lanes, config.sums.batch
        jobs = queue(m, "jobs", config.job_layout, 2)
        link(m, self.job, jobs.i)
        job = Signal(config.job_layout, reset_less=True)
        busy = Signal()
        left, in_stripe = Signal.like(job.rows), Signal.like(job.rows)  # rows before the last
        at = Signal(range(max(2, cores)))
        chunk = Signal(range(max(2, cores)))
        size = Signal(range(cores + 1))
        is_last_chunk = Signal()
        is_last = Signal()
        ends_round = Signal()
        go = Signal()
        sums = queue(m, "sums", config.sums.sum_layout, 2)
        link(m, sums.o, self.sum)

        # The lanes of a cycle are neighbours, and a row has some or all of them.
        first = let(m, "first", at + chunk)
        group, lane = first >> (lanes - 1).bit_length(), first & (lanes - 1)
        uses = [
            let(m, f"uses_{k}", (group == k // lanes) & (lane <= k % lanes)
                & (lane + size > k % lanes))
            for k in range(cores)
        ]  # fmt: skip
        is_there = [part.valid | ~use for part, use in zip(self.part, uses, strict=True)]
        m.d.comb += [
            size.eq(1 << job.split),
            is_last_chunk.eq(chunk + lanes >= size),
            is_last.eq(left == 0),
            go.eq(busy & Cat(is_there).all() & sums.i.ready),
            ends_round.eq(at + size == cores),
            *(part.ready.eq(go & use) for part, use in zip(self.part, uses, strict=True)),
        ]
        total = Signal(config.sums.sums_layout)
        bad = Signal(batch)
        kept = Signal.like(total, reset_less=True)
        kept_bad = Signal(batch, reset_less=True)
        of_lane = [range(lane, cores, lanes) for lane in range(lanes)]
        for b in range(batch):
            terms = [
                any_of(Mux(uses[k], self.part[k].p.value[b], 0) for k in some) for some in of_lane
            ]
            start = Mux(chunk == 0, 0, kept[b])
            m.d.comb += total[b].eq(sum((term.as_signed() for term in terms), start))
        bads = any_of(Mux(use, part.p.bad, 0) for part, use in zip(self.part, uses, strict=True))
        m.d.comb += [
            bad.eq(bads | Mux(chunk == 0, 0, kept_bad)),
            sums.i.valid.eq(go & is_last_chunk),
            sums.i.p.value.eq(total),
            sums.i.p.bad.eq(bad),
            sums.i.p.last.eq(is_last),
            jobs.o.ready.eq(~busy | (go & is_last_chunk & is_last)),
        ]
        with m.If(go):
            m.d.sync += [
                kept.eq(total),
                kept_bad.eq(bad),
                chunk.eq(Mux(is_last_chunk, 0, chunk + lanes)),
            ]
            with m.If(is_last_chunk):
                m.d.sync += [
                    left.eq(left - 1),
                    in_stripe.eq(in_stripe - 1),
                    at.eq(Mux(ends_round, 0, at + size)),
                    busy.eq(~is_last),
                ]
                with m.If(in_stripe == 0):
                    m.d.sync += [at.eq(0), in_stripe.eq(job.stripe - 1)]
        with m.If(jobs.o.valid & jobs.o.ready):
            m.d.sync += [
                busy.eq(1),
                job.eq(jobs.o.p),
                left.eq(jobs.o.p.rows - 1),
                in_stripe.eq(jobs.o.p.stripe - 1),
                at.eq(0),
            ]
        return m
