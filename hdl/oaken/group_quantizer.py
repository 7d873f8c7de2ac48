"""The path that the inlier and the outlier quantizer share: statistics, scales, then codes.

A vector comes twice. On ``scan`` the quantizer finds its largest shifted magnitudes per group and
side. At the end of the vector they become scale words, and the parameters of the lanes wait for the
vector on ``i``. Every part is a pipeline of 1 beat or 1 vector per cycle, so that vectors of one
beat keep the rate.
"""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, power_of_two
from golden.oaken import timing
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.fp16.pipeline import Operator, OperatorConfig
from hdl.oaken.arithmetic import MAGNITUDE_BITS, maximum
from hdl.oaken.decomposer import GROUP_BITS, LANES_PER_MODULE, shifted_layout
from hdl.oaken.layouts import FP16_BITS
from hdl.ports import In, Out, Payload
from hdl.stream.queue import queue

LONGEST_SCALE_STAGES = 9  # of the quantizers that work side by side
_FLIPFLOP_VECTORS = 8  # beyond, the waiting parameters are in a RAM


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupQuantizerConfig(Config):
    """Width of a quantizer and how far ``scan`` may be ahead of ``i``."""

    lanes: int = power_of_two(16, 8, 64, "elements per beat")
    vectors: int = bounded(
        4, 3, 16_384, "vectors scanned whose codes are still to come; beyond, scan waits"
    )

    @property
    def scan_layout(self) -> data.StructLayout:
        shifted = shifted_layout(self.lanes).parts
        return Payload(**shifted, drop=(1, "with last: the vector is discarded"))

    @property
    def i_layout(self) -> data.StructLayout:
        return shifted_layout(self.lanes)


def lane_fields(config, f: dict, lane: int) -> tuple[Value, Value, Value]:
    """(magnitude, sign, group) of a lane of operands y and group."""
    word = f["y"][lane * FP16_BITS : (lane + 1) * FP16_BITS]
    group = f["group"][lane * GROUP_BITS : (lane + 1) * GROUP_BITS]
    return word[:MAGNITUDE_BITS], word[-1], group


def minimum_word(m: Module, lo, name: str) -> Signal:
    """FP16 word of -lo: +0 where there is none."""
    return let(m, name, Cat(lo, lo.any()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MaximaConfig(OperatorConfig):
    lanes: int = 16
    groups: tuple[int, ...] = (0,)

    @property
    def operands(self) -> dict:
        return {"y": self.lanes * FP16_BITS, "group": self.lanes * GROUP_BITS}

    @property
    def results(self) -> dict:
        return {"maxima": 2 * len(self.groups) * MAGNITUDE_BITS}


class _Maxima(Operator):
    """Per group of ``groups``: the largest magnitude of the upper side, then of the lower."""

    def phases(self) -> list:
        config = self.config
        levels = (config.lanes - 1).bit_length()
        sides = [(group, sign) for group in config.groups for sign in (0, 1)]

        def select(m: Module, f: dict) -> list:
            chosen = []
            for group, lower in sides:
                lanes = []
                for lane in range(config.lanes):
                    magnitude, sign, its_group = lane_fields(config, f, lane)
                    wanted = (its_group == group) & (sign == lower)
                    lanes.append(let(m, f"of_{group}_{lower}_{lane}", Mux(wanted, magnitude, 0)))
                chosen.append(lanes)
            return chosen

        def reduce(first: int, last: int):
            def phase(m: Module, f: dict) -> dict:
                if first == 0:
                    chosen = select(m, f)
                else:
                    width = config.lanes >> first
                    chosen = [[f[f"m_{s}_{k}"] for k in range(width)] for s in range(len(sides))]
                for level in range(first, last):
                    chosen = [
                        [
                            maximum(m, a, b, f"max_{s}_{level}_{k}")
                            for k, (a, b) in enumerate(zip(row[::2], row[1::2], strict=True))
                        ]
                        for s, row in enumerate(chosen)
                    ]
                if last == levels:
                    return {"maxima": Cat(*(row[0] for row in chosen))}
                return {
                    f"m_{s}_{k}": value
                    for s, row in enumerate(chosen)
                    for k, value in enumerate(row)
                }

            return phase

        return [reduce(k, min(k + 2, levels)) for k in range(0, levels, 2)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalesConfig(OperatorConfig):
    """Operands and results of the pipeline from maxima to scales."""

    maxima: int = 2  # magnitudes, upper then lower side of each group
    scale_bits: int = 32
    parameter_bits: int = 34

    @property
    def operands(self) -> dict:
        return {"maxima": self.maxima * MAGNITUDE_BITS}

    @property
    def results(self) -> dict:
        return {"scale": self.scale_bits, "parameters": self.parameter_bits}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanesConfig(OperatorConfig):
    """Operands of the lanes; a subclass gives the results."""

    lanes: int = 16
    parameter_bits: int = 34

    @property
    def operands(self) -> dict:
        return {
            "y": self.lanes * FP16_BITS,
            "group": self.lanes * GROUP_BITS,
            "parameters": self.parameter_bits,
        }


class GroupQuantizer(Block):
    """Streams, statistics and queues; a subclass gives the two pipelines that compute."""

    GROUPS: ClassVar[tuple[int, ...]] = ()
    SCALE_STAGES: ClassVar[int] = 0  # of scales_pipeline

    def __init__(self, config: GroupQuantizerConfig, scale_layout, o_layout):
        self._scale_layout = scale_layout
        super().__init__(
            config,
            {
                "scan": In(
                    stream.Signature(config.scan_layout),
                    "shifted elements of a vector, for its statistics",
                ),
                "i": In(stream.Signature(config.i_layout), "the same vector again"),
                "scale": Out(
                    stream.Signature(scale_layout), "scale words of the groups handled here"
                ),
                "o": Out(
                    stream.Signature(o_layout), "codes of the elements of these groups, 0 elsewhere"
                ),
            },
        )

    def scales_pipeline(self) -> Operator:
        raise NotImplementedError

    def lanes_pipeline(self, lanes: int) -> Operator:
        raise NotImplementedError

    @property
    def _queue_cycles(self) -> int:
        """Latency of the queue of scales, which is a RAM when many vectors may wait."""
        return 1 if self.config.vectors <= _FLIPFLOP_VECTORS else 2

    @property
    def timing(self) -> Timing:
        return timing.group_quantizer(self.config.lanes, self.SCALE_STAGES, self._queue_cycles)

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        ends = data.StructLayout({"last": 1, "drop": 1})
        count = 2 * len(self.GROUPS)
        stages = -(-(config.lanes - 1).bit_length() // 2)
        maxima = add(
            m,
            "maxima",
            _Maxima(
                _MaximaConfig(
                    lanes=config.lanes, groups=self.GROUPS, stages=stages, tag_bits=ends.size
                )
            ),
        )
        # Its ready comes from a register: the pipelines before and after it stall apart.
        ranges = queue(m, "ranges", count * MAGNITUDE_BITS, 2)
        scales = add(m, "scales", self.scales_pipeline())
        codes = [
            add(m, f"lanes_{first}", self.lanes_pipeline(LANES_PER_MODULE))
            for first in range(0, config.lanes, LANES_PER_MODULE)
        ]
        # Words of all groups leave together: those that are ready first wait without a stall, even
        # where every beat is a vector.
        words = queue(m, "words", self._scale_layout, 2 + LONGEST_SCALE_STAGES - self.SCALE_STAGES)
        waiting = queue(
            m,
            "waiting",
            len(scales.o.p.parameters),
            config.vectors,
            storage="flipflop" if config.vectors <= _FLIPFLOP_VECTORS else "memory",
        )

        end_i, end_o = data.View(ends, maxima.i.p.tag), data.View(ends, maxima.o.p.tag)
        so_far = Signal(count * MAGNITUDE_BITS)
        here = Cat(
            *(
                maximum(
                    m,
                    so_far.word_select(k, MAGNITUDE_BITS),
                    maxima.o.p.maxima.word_select(k, MAGNITUDE_BITS),
                    f"here_{k}",
                )
                for k in range(count)
            )
        )
        wanted = end_o.last & ~end_o.drop
        m.d.comb += [
            maxima.i.valid.eq(self.scan.valid),
            self.scan.ready.eq(maxima.i.ready),
            maxima.i.p.y.eq(self.scan.p.y),
            maxima.i.p.group.eq(self.scan.p.group),
            end_i.last.eq(self.scan.p.last),
            end_i.drop.eq(self.scan.p.drop),
            ranges.i.valid.eq(maxima.o.valid & wanted),
            ranges.i.p.eq(here),
            maxima.o.ready.eq(~wanted | ranges.i.ready),
        ]
        with m.If(maxima.o.valid & maxima.o.ready):
            m.d.sync += so_far.eq(Mux(end_o.last, 0, here))

        # A vector's scale words and its lanes' parameters leave together.
        m.d.comb += [
            scales.i.valid.eq(ranges.o.valid),
            ranges.o.ready.eq(scales.i.ready),
            scales.i.p.maxima.eq(ranges.o.p),
            scales.o.ready.eq(words.i.ready & waiting.i.ready),
            words.i.valid.eq(scales.o.valid & waiting.i.ready),
            words.i.p.eq(scales.o.p.scale),
            waiting.i.valid.eq(scales.o.valid & words.i.ready),
            waiting.i.p.eq(scales.o.p.parameters),
            self.scale.valid.eq(words.o.valid),
            words.o.ready.eq(self.scale.ready),
            self.scale.payload.eq(words.o.p),
        ]
        # Fed and emptied together, all slices of the lanes are always in the same state.
        lanes = codes[0]
        m.d.comb += [
            self.i.ready.eq(lanes.i.ready & waiting.o.valid),
            waiting.o.ready.eq(lanes.i.ready & self.i.valid & self.i.p.last),
            self.o.valid.eq(lanes.o.valid),
            self.o.p.last.eq(lanes.o.p.tag),
        ]
        y, group = Value.cast(self.i.p.y), Value.cast(self.i.p.group)
        for k, each in enumerate(codes):
            m.d.comb += [
                each.i.valid.eq(self.i.valid & waiting.o.valid),
                each.i.p.y.eq(y.word_select(k, LANES_PER_MODULE * FP16_BITS)),
                each.i.p.group.eq(group.word_select(k, LANES_PER_MODULE * GROUP_BITS)),
                each.i.p.parameters.eq(waiting.o.p),
                each.i.p.tag.eq(self.i.p.last),
                each.o.ready.eq(self.o.ready),
            ]
        for name in self.o.payload.shape().members:
            if name != "last":
                m.d.comb += Value.cast(self.o.p[name]).eq(Cat(*(each.o.p[name] for each in codes)))
        return m
