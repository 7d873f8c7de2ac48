"""Dequantization engine: stored records to FP16 (docs/blocks/oaken_dequant_engine.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from golden.config import Config
from golden.fp16.format import FP16
from golden.oaken import timing
from golden.oaken.format import DENSE_BITS, ScaleWord, Threshold
from golden.paging.format import Status
from golden.timing import Timing
from hdl.block import Block
from hdl.emit import add
from hdl.fp16.shift import let
from hdl.oaken.dequant_scales import OakenDequantScales, OakenDequantScalesConfig
from hdl.oaken.inlier_dequantizer import OakenInlierDequantizer, OakenInlierDequantizerConfig
from hdl.oaken.layouts import SCALE_LAYOUT, THRESHOLD_LAYOUT
from hdl.oaken.outlier_dequantizer import OakenOutlierDequantizer, OakenOutlierDequantizerConfig
from hdl.oaken.zero_insert import OakenZeroInsert, OakenZeroInsertConfig
from hdl.paging.layouts import TOKEN_BITS
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.stream.skid import StreamSkidBuffer, StreamSkidBufferConfig

__all__ = ["OakenDequantEngine", "OakenDequantEngineConfig"]

_PASSED = (  # words that the preparation of the scales does not change
    ("outer_low", Threshold.OUTER_LOW),
    ("outer_high", Threshold.OUTER_HIGH),
    ("middle_step", ScaleWord.MIDDLE_STEP),
    ("outer_low_step", ScaleWord.OUTER_LOW_STEP),
    ("outer_high_step", ScaleWord.OUTER_HIGH_STEP),
    ("inner_min", ScaleWord.INNER_MIN),
    ("inner_step", ScaleWord.INNER_STEP),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenDequantEngineConfig(Config):
    """Sizes of records and words, and depth."""

    lanes: int = 16  # elements of a beat, a power of two in 8..64, at most block
    block: int = 64  # elements that share a count byte: 16, 32 or 64
    data_bits: int = 512  # bits of a word of sparse, a power of two in 64..1024
    blocks_max: int = 16  # blocks of the longest record, 1..64
    stages: int = 3  # cycles in the lanes, 1..16
    scale_stages: int = 4  # cycles from a token's scales to its parameters, 1..16

    def __post_init__(self) -> None:
        self._check_choice("block", (16, 32, 64))
        self._check_power_of_two("lanes", 8, self.block)
        self._check_power_of_two("data_bits", 64, 1024)
        self._check_range("blocks_max", 1, 64)
        self._check_range("stages", 1, 16)
        self._check_range("scale_stages", 1, 16)

    @property
    def zero_insert(self) -> OakenZeroInsertConfig:
        return OakenZeroInsertConfig(
            lanes=self.lanes,
            block=self.block,
            data_bits=self.data_bits,
            blocks_max=self.blocks_max,
        )

    @property
    def request_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {**self.zero_insert.request_layout.members, "thresholds": THRESHOLD_LAYOUT}
        )

    @property
    def scale_layout(self) -> data.StructLayout:
        return data.StructLayout({"scale": SCALE_LAYOUT, "error": 1})

    @property
    def dense_layout(self) -> data.StructLayout:
        return data.StructLayout({"code": data.ArrayLayout(DENSE_BITS, self.lanes), "error": 1})

    @property
    def o_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {"x": data.ArrayLayout(FP16.bits, self.lanes), "error": 1, "last": 1}
        )

    @property
    def status_layout(self) -> data.StructLayout:
        return data.StructLayout({"status": 4})


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

    Members
    -------
    request : In(stream)  tokens, skip, blocks, thresholds: four FP16 words
    scale : In(stream)    scale: six FP16 words; error
    dense : In(stream)    code: 4 bits per lane; error
    sparse : In(stream)   word_layout(data_bits)
    o : Out(stream)       x: FP16 per lane; error; last (of the request)
    status : Out(stream)  status: golden.paging.format.Status
    """

    meaning: ClassVar[dict[str, str]] = {
        "request": "Records to skip, records to decode, their blocks, thresholds.",
        "scale": "Scale words, one per token.",
        "dense": "Dense codes, in the order of the elements.",
        "sparse": "Sparse records: words of one transfer per request.",
        "o": "Decoded elements; error: something was wrong so far; last: of the request.",
        "status": "OK or MALFORMED, one per request.",
    }

    def __init__(self, config: OakenDequantEngineConfig):
        super().__init__(
            config,
            {
                "request": In(stream.Signature(config.request_layout)),
                "scale": In(stream.Signature(config.scale_layout)),
                "dense": In(stream.Signature(config.dense_layout)),
                "sparse": In(stream.Signature(config.zero_insert.sparse_layout)),
                "o": Out(stream.Signature(config.o_layout)),
                "status": Out(stream.Signature(config.status_layout)),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.dequant_engine(self.config.scale_stages, self.config.stages)

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        zero_insert = add(m, "zero_insert", OakenZeroInsert(config.zero_insert))
        # Scales are ahead of the sparse records by their preparation.
        record_layout = config.zero_insert.request_layout
        requests = queue(m, "requests", record_layout, config.scale_stages + 3)

        # ---- scales of the request's tokens
        passed_layout = data.StructLayout(
            {**{name: FP16.bits for name, _ in _PASSED}, "error": 1, "bad": 1, "last": 1}
        )
        prepare = add(
            m,
            "prepare",
            OakenDequantScales(
                OakenDequantScalesConfig(stages=config.scale_stages, tag_bits=passed_layout.size)
            ),
        )
        active = Signal()
        tokens_left = Signal(TOKEN_BITS, reset_less=True)
        thresholds = Signal(THRESHOLD_LAYOUT, reset_less=True)
        is_last_token = let(m, "is_last_token", tokens_left == 1)
        taken = let(m, "taken", self.scale.valid & self.scale.ready)
        free = let(m, "free", ~active | (taken & is_last_token))
        passed = data.View(passed_layout, prepare.i.p.tag)
        m.d.comb += [
            prepare.i.valid.eq(active & self.scale.valid),
            self.scale.ready.eq(active & prepare.i.ready),
            prepare.i.p.scale.eq(self.scale.p.scale),
            prepare.i.p.thresholds.eq(thresholds),
            passed.error.eq(self.scale.p.error),
            passed.bad.eq(~self.scale.p.error & _is_unsound(self.scale.p.scale)),
            passed.last.eq(is_last_token),
            self.request.ready.eq(free & requests.i.ready),
            requests.i.valid.eq(self.request.valid & free),
            *(requests.i.p[name].eq(self.request.p[name]) for name in record_layout.members),
        ]
        link(m, requests.o, zero_insert.request)
        for name, which in _PASSED:
            source = thresholds if isinstance(which, Threshold) else self.scale.p.scale
            m.d.comb += passed[name].eq(source[which])
        with m.If(taken):
            m.d.sync += tokens_left.eq(tokens_left - 1)
        with m.If(free):
            m.d.sync += active.eq(self.request.valid & requests.i.ready)
            with m.If(self.request.valid):
                m.d.sync += [
                    tokens_left.eq(self.request.p.tokens),
                    thresholds.eq(self.request.p.thresholds),
                ]

        # ---- sparse words
        link(m, self.sparse, zero_insert.sparse)

        # ---- both dequantizers in step, fed with a beat of each kind
        tag_layout = data.StructLayout({"error": 1, "bad": 1, "last": 1})
        inliers = add(
            m,
            "inliers",
            OakenInlierDequantizer(
                OakenInlierDequantizerConfig(
                    lanes=config.lanes, stages=config.stages, tag_bits=tag_layout.size
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
        found, parameters = zero_insert.o, prepare.o
        token = data.View(passed_layout, parameters.p.tag)
        tag = data.View(tag_layout, inliers.i.p.tag)
        meets = let(m, "meets", self.dense.valid & found.valid & parameters.valid)
        error, bad = Signal(), Signal()  # of the request so far
        now_bad = let(m, "now_bad", bad | found.p.bad | token.bad)
        now_error = let(
            m, "now_error", error | now_bad | found.p.error | token.error | self.dense.p.error
        )
        is_last = let(m, "is_last", found.p.last & token.last)
        m.d.comb += [
            inliers.i.valid.eq(meets),
            outliers.i.valid.eq(meets),
            self.dense.ready.eq(found.valid & parameters.valid & inliers.i.ready),
            found.ready.eq(self.dense.valid & parameters.valid & inliers.i.ready),
            parameters.ready.eq(self.dense.valid & found.valid & found.p.last & inliers.i.ready),
            inliers.i.p.code.eq(self.dense.p.code),
            inliers.i.p.inlier.eq(Cat(~found.p.outlier[k].present for k in range(config.lanes))),
            inliers.i.p.base_low.eq(parameters.p.base_low),
            inliers.i.p.base_high.eq(parameters.p.base_high),
            inliers.i.p.zero_code.eq(parameters.p.zero_code),
            inliers.i.p.step.eq(token.middle_step),
            tag.error.eq(now_error),
            tag.bad.eq(now_bad),
            tag.last.eq(is_last),
            outliers.i.p.code.eq(self.dense.p.code),
            outliers.i.p.outlier.eq(found.p.outlier),
        ]
        for name, _ in _PASSED:
            if name != "middle_step":
                m.d.comb += outliers.i.p[name].eq(token[name])
        with m.If(meets & inliers.i.ready):
            m.d.sync += [error.eq(now_error & ~is_last), bad.eq(now_bad & ~is_last)]

        # ---- merge
        merged_layout = data.StructLayout({**config.o_layout.members, "bad": 1})
        merged = add(
            m, "merged", StreamSkidBuffer(StreamSkidBufferConfig(width=merged_layout.size))
        )
        word = data.View(merged_layout, merged.i.p.data)
        tag = data.View(tag_layout, inliers.o.p.tag)
        m.d.comb += [
            merged.i.valid.eq(inliers.o.valid),
            inliers.o.ready.eq(merged.i.ready),
            outliers.o.ready.eq(merged.i.ready),
            word.error.eq(tag.error),
            word.bad.eq(tag.bad),
            word.last.eq(tag.last),
        ]
        m.d.comb += [
            word.x[k].eq(inliers.o.p.x[k] | outliers.o.p.x[k]) for k in range(config.lanes)
        ]

        # ---- output and status: a last beat is offered only when its status has a place
        statuses = queue(m, "statuses", 1, 2)
        word = data.View(merged_layout, merged.o.p.data)
        offers = let(m, "offers", merged.o.valid & (~word.last | statuses.i.ready))
        m.d.comb += [
            self.o.valid.eq(offers),
            merged.o.ready.eq(self.o.ready & (~word.last | statuses.i.ready)),
            self.o.p.x.eq(word.x),
            self.o.p.error.eq(word.error),
            self.o.p.last.eq(word.last),
            statuses.i.valid.eq(offers & self.o.ready & word.last),
            statuses.i.p.eq(word.bad),
            self.status.valid.eq(statuses.o.valid),
            statuses.o.ready.eq(self.status.ready),
            self.status.p.status.eq(Mux(statuses.o.p, Status.MALFORMED, Status.OK)),
        ]
        return m


def _is_unsound(scale):
    """No encoder writes these six words (golden.oaken.quantize.scales_valid)."""
    found = []
    for which in ScaleWord:
        word = scale[which]
        is_minimum = which in (ScaleWord.MIDDLE_MIN, ScaleWord.INNER_MIN)
        found.append(word[FP16.frac_bits : -1].all())
        found.append((word[-1] != word[:-1].any()) if is_minimum else word[-1])
    return Cat(found).any()
