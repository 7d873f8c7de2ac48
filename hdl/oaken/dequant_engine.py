"""Dequantization engine: stored records to FP16 (docs/blocks/oaken_dequant_engine.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice, power_of_two
from golden.fp16.format import FP16
from golden.oaken import timing
from golden.oaken.format import DENSE_BITS
from golden.paging.format import Status
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.kinds import NUMBER
from hdl.oaken.inlier_dequantizer import OakenInlierDequantizer, OakenInlierDequantizerConfig
from hdl.oaken.layouts import THRESHOLDS
from hdl.oaken.outlier_dequantizer import OakenOutlierDequantizer, OakenOutlierDequantizerConfig
from hdl.oaken.token_parameters import (
    PASSED,
    OakenTokenParameters,
    OakenTokenParametersConfig,
)
from hdl.oaken.zero_insert import OakenZeroInsert, OakenZeroInsertConfig
from hdl.ports import In, Out, Payload
from hdl.stream.link import StreamView, link
from hdl.stream.queue import queue
from hdl.stream.skid import skid

_TAG_LAYOUT = data.StructLayout({"error": 1, "bad": 1, "last": 1})


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenDequantEngineConfig(Config):
    """Sizes of records and words, and depth."""

    lanes: int = 16  # elements of a beat, a power of two in 8..64, at most block
    block: int = choice(64, (16, 32, 64), "elements that share a count byte")
    data_bits: int = power_of_two(512, 64, 1024, "bits of a word of sparse")
    blocks_max: int = bounded(16, 1, 64, "blocks of the longest record")
    stages: int = bounded(5, 1, 16, "cycles in the lanes")
    scale_stages: int = bounded(7, 1, 16, "cycles from a token's scales to its parameters")

    def __post_init__(self) -> None:
        self._check_power_of_two("lanes", 8, self.block)

    @property
    def zero_insert(self) -> OakenZeroInsertConfig:
        return OakenZeroInsertConfig(
            lanes=self.lanes,
            block=self.block,
            data_bits=self.data_bits,
            blocks_max=self.blocks_max,
        )

    @property
    def parameters(self) -> OakenTokenParametersConfig:
        return OakenTokenParametersConfig(stages=self.scale_stages)

    @property
    def request_layout(self) -> data.StructLayout:
        return Payload(**self.zero_insert.request_layout.parts, thresholds=THRESHOLDS)

    @property
    def scale_layout(self) -> data.StructLayout:
        return self.parameters.scale_layout

    @property
    def dense_layout(self) -> data.StructLayout:
        return Payload(
            code=(data.ArrayLayout(DENSE_BITS, self.lanes), "four bits per element", NUMBER),
            error=(1, "the beat was read with an error"),
        )

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(
            x=(data.ArrayLayout(FP16.bits, self.lanes), "decoded elements, FP16", FP16),
            error=(1, "an input of the request so far had an error or was malformed"),
            last=(1, "final beat of the request"),
        )

    @property
    def status_layout(self) -> data.StructLayout:
        return Payload(status=(4, "golden.paging.format.Status", Status))


class OakenDequantEngine(Block):
    """FP16 values of ``tokens`` records of one head, in order, ``lanes`` elements a beat.

    A request takes ``tokens`` (1..) times one word of ``scale`` and ``blocks * block / lanes``
    beats of ``dense``. It also takes one transfer of ``sparse``, whose first ``skip`` records are
    dropped. Decoding is that of ``oaken_inlier_dequantizer`` and ``oaken_outlier_dequantizer``: one
    rounding of the exact ``base + q * step``, saturated at +-65504. The middle group's base is
    rounded to FP32, once per token and side. Thresholds are taken as they come.

    ``error`` is sticky within the request. Three causes set it:

        cause                                                       status
        a scale word, dense beat or sparse word had its error       OK
        the sparse bytes are no records                             MALFORMED
        scale words without an error that no encoder writes: NaN,   MALFORMED
        infinity, a negative step, a positive minimum, -0

    One status per request follows its last beat. All beats come in any case. The values of a beat
    with ``error`` are unspecified where the inputs are no encoder's.

    1 beat per cycle, also across tokens and requests, while the inputs bring the words; no vector
    is buffered. ``o`` comes from registers; the inputs' ``ready`` depend on no output's ``ready``
    combinationally, ``dense.ready`` on no valid of an input, ``sparse.ready`` on its own payload.
    Source: Oaken, section 5. Golden: golden.oaken.quantize.decode, golden.oaken.dequantize.
    """

    golden = "golden.oaken.quantize:decode"
    reference = "tests/oaken/test_golden.py: test_equals_the_oracle_in_every_bit"
    default = OakenDequantEngineConfig()
    configs: ClassVar = {
        "widest": OakenDequantEngineConfig(lanes=64, data_bits=1024),
        "small": OakenDequantEngineConfig(lanes=8, block=16, data_bits=64, blocks_max=4),
    }

    def __init__(self, config: OakenDequantEngineConfig):
        super().__init__(
            config,
            {
                "request": In(
                    stream.Signature(config.request_layout),
                    "Records to skip, records to decode, their blocks, thresholds.",
                ),
                "scale": In(stream.Signature(config.scale_layout), "Scale words, one per token."),
                "dense": In(
                    stream.Signature(config.dense_layout),
                    "Dense codes, in the order of the elements.",
                ),
                "sparse": In(
                    stream.Signature(config.zero_insert.sparse_layout),
                    "Sparse records: words of one transfer per request.",
                ),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "Decoded elements.",
                ),
                "status": Out(
                    stream.Signature(config.status_layout), "OK or MALFORMED, one per request."
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.dequant_engine(self.config.scale_stages, self.config.stages)

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        zero_insert = add(m, "zero_insert", OakenZeroInsert(config.zero_insert))
        parameters = add(m, "parameters", OakenTokenParameters(config.parameters))
        # Scales are ahead of the sparse records by their preparation.
        requests = queue(m, "requests", config.zero_insert.request_layout, config.scale_stages + 3)
        request = self.request.p
        m.d.comb += [
            self.request.ready.eq(parameters.request.ready & requests.i.ready),
            parameters.request.valid.eq(self.request.valid & requests.i.ready),
            parameters.request.p.tokens.eq(request.tokens),
            parameters.request.p.thresholds.eq(request.thresholds),
            requests.i.valid.eq(self.request.valid & parameters.request.ready),
            *(requests.i.p[name].eq(request[name]) for name in requests.i.p.shape().members),
        ]
        link(m, requests.o, zero_insert.request)
        link(m, self.scale, parameters.scale)
        link(m, self.sparse, zero_insert.sparse)
        inliers, outliers = self._dequantize(m, zero_insert.o, parameters.o)
        self._give(m, self._merge(m, inliers, outliers))
        return m

    def _dequantize(self, m: Module, found, token) -> tuple:
        """Both dequantizers in step, fed with a beat of each kind; their outputs.

        found: positions of outliers, beat by beat; token: parameters, token by token.
        """
        config = self.config
        inliers = add(
            m,
            "inliers",
            OakenInlierDequantizer(
                OakenInlierDequantizerConfig(
                    lanes=config.lanes, stages=config.stages, tag_bits=_TAG_LAYOUT.size
                )
            ),
        )
        outliers = add(
            m,
            "outliers",
            OakenOutlierDequantizer(
                OakenOutlierDequantizerConfig(lanes=config.lanes, stages=config.stages)
            ),
        )
        tag = data.View(_TAG_LAYOUT, inliers.i.p.tag)
        meets = let(m, "meets", self.dense.valid & found.valid & token.valid)
        # of the request so far
        error = Signal()
        bad = Signal()
        now_bad = let(m, "now_bad", bad | found.p.bad | token.p.bad)
        now_error = let(
            m, "now_error", error | now_bad | found.p.error | token.p.error | self.dense.p.error
        )
        is_last = let(m, "is_last", found.p.last & token.p.last)
        m.d.comb += [
            inliers.i.valid.eq(meets),
            outliers.i.valid.eq(meets),
            self.dense.ready.eq(found.valid & token.valid & inliers.i.ready),
            found.ready.eq(self.dense.valid & token.valid & inliers.i.ready),
            token.ready.eq(self.dense.valid & found.valid & found.p.last & inliers.i.ready),
            inliers.i.p.code.eq(self.dense.p.code),
            inliers.i.p.inlier.eq(Cat(~found.p.outlier[k].present for k in range(config.lanes))),
            inliers.i.p.base_low.eq(token.p.base_low),
            inliers.i.p.base_high.eq(token.p.base_high),
            inliers.i.p.zero_code.eq(token.p.zero_code),
            inliers.i.p.step.eq(token.p.middle_step),
            tag.error.eq(now_error),
            tag.bad.eq(now_bad),
            tag.last.eq(is_last),
            outliers.i.p.code.eq(self.dense.p.code),
            outliers.i.p.outlier.eq(found.p.outlier),
        ]
        for name, _ in PASSED:
            if name != "middle_step":
                m.d.comb += outliers.i.p[name].eq(token.p[name])
        with m.If(meets & inliers.i.ready):
            m.d.sync += [error.eq(now_error & ~is_last), bad.eq(now_bad & ~is_last)]
        return inliers.o, outliers.o

    def _merge(self, m: Module, inliers, outliers) -> StreamView:
        """Elements of both groups as one stream: that of ``o``, and ``bad``."""
        layout = data.StructLayout({**self.config.o_layout.members, "bad": 1})
        merged = skid(m, "merged", layout)
        word = merged.i.p
        tag = data.View(_TAG_LAYOUT, inliers.p.tag)
        m.d.comb += [
            merged.i.valid.eq(inliers.valid),
            inliers.ready.eq(merged.i.ready),
            outliers.ready.eq(merged.i.ready),
            word.error.eq(tag.error),
            word.bad.eq(tag.bad),
            word.last.eq(tag.last),
            *(word.x[k].eq(inliers.p.x[k] | outliers.p.x[k]) for k in range(self.config.lanes)),
        ]
        return merged.o

    def _give(self, m: Module, merged: StreamView) -> None:
        """Gives ``o`` and ``status``: a last beat is offered only when its status has a place."""
        statuses = queue(m, "statuses", 1, 2)
        word = merged.p
        offers = let(m, "offers", merged.valid & (~word.last | statuses.i.ready))
        m.d.comb += [
            self.o.valid.eq(offers),
            merged.ready.eq(self.o.ready & (~word.last | statuses.i.ready)),
            self.o.p.x.eq(word.x),
            self.o.p.error.eq(word.error),
            self.o.p.last.eq(word.last),
            statuses.i.valid.eq(offers & self.o.ready & word.last),
            statuses.i.p.eq(word.bad),
            self.status.valid.eq(statuses.o.valid),
            statuses.o.ready.eq(self.status.ready),
            self.status.p.status.eq(Mux(statuses.o.p, Status.MALFORMED, Status.OK)),
        ]
