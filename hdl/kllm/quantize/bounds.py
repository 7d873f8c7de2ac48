"""The last pop of either tree bounds a token's outliers."""

from amaranth import Module, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, Tier
from hdl.fp16.compare import total_order_key
from hdl.kllm.engine import SLOT_LENGTH_BITS
from hdl.kllm.outliers.orizuru import KllmOrizuruConfig
from hdl.kllm.quantize.payloads import KllmQuantizePhaseConfig, bound_layout, found_layout
from hdl.ports import In, Out


class KllmOutlierBounds(Block):
    """``o`` = of each token the last word of either tree with its position, and the scale.

    The order of the trees is strict. So an element is an outlier of a tree exactly if it is not
    after the last pop of this tree in that order. A side without pops is not ``on``. ``bad`` is
    set if the token's status is not 0.

    Latency: done to o 1 cycle. Throughput 1 pop of either tree per cycle, 1 token per cycle. A
    tree waits after its last pop until its token's ``done`` is taken. ``done.ready`` depends
    combinationally on ``o.ready``. Nothing rounds.
    Golden: golden.kllm.quantizer_phases.outlier_bound.

    The block holds one token for ``o``. Decision 0040 says why two bounds suffice.
    """

    tier = Tier.PART
    golden = "golden.kllm.quantizer_phases:outlier_bound"
    default = KllmQuantizePhaseConfig()

    def __init__(self, config: KllmQuantizePhaseConfig):
        trees = KllmOrizuruConfig()  # its sizes do not shape these payloads
        super().__init__(
            config,
            {
                "pop_max": In(
                    stream.Signature(trees.pop_layout), "Largest words, in descending order."
                ),
                "pop_min": In(
                    stream.Signature(trees.pop_layout), "Smallest words, in ascending order."
                ),
                "done": In(
                    stream.Signature(trees.done_layout), "One word per token, after its pops."
                ),
                "o": Out(stream.Signature(found_layout), "Bounds and scale of each token."),
            },
        )

    # ``done`` comes after the pops of its token; a pop of each tree may come in a cycle.
    timing = Timing(latency=1, start="done", unit="pop of each tree")

    def elaborate(self, platform) -> Module:
        m = Module()
        valid = Signal()
        found = Signal(found_layout, reset_less=True)
        free = let(m, "free", ~valid | self.o.ready)
        take = let(m, "take", self.done.valid & free)
        m.d.comb += [
            self.done.ready.eq(free),
            self.o.valid.eq(valid),
            self.o.payload.eq(found),
        ]
        for name, pops in (("largest", self.pop_max), ("smallest", self.pop_min)):
            bound = found[name]
            assert bound.shape() == bound_layout
            ended = Signal(name=f"{name}_ended")
            word = Signal(FP16.bits, name=f"{name}_word", reset_less=True)
            index = Signal(SLOT_LENGTH_BITS, name=f"{name}_index", reset_less=True)
            m.d.comb += pops.ready.eq(~ended)
            with m.If(pops.valid & pops.ready):
                m.d.sync += [word.eq(pops.p.word), index.eq(pops.p.index), ended.eq(pops.p.last)]
            with m.If(take):
                m.d.sync += [
                    bound.on.eq(ended),
                    bound.tie.eq(1),
                    bound.key.eq(total_order_key(word)),
                    bound.position.eq(index),
                    ended.eq(0),
                ]
        with m.If(take):
            m.d.sync += [
                valid.eq(1),
                found.bad.eq(self.done.p.status.as_value() != 0),
                found.s.eq(self.done.p.scale),
            ]
        with m.Elif(self.o.ready):
            m.d.sync += valid.eq(0)
        return m
