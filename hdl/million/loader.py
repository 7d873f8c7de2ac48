"""Codebooks from a stream to the stores of K and V."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream

from golden.fp16.format import FP16
from golden.index.format import CodebookFault
from golden.million.format import Op, Status
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kinds import BITS, NUMBER
from hdl.million.layouts import BEAT_LAST, ENTRIES_BITS, EXPONENT_SHAPE, STATUS_LAYOUT
from hdl.million.shapes import SMALL_CACHE, SMALL_RATE, SMOLLM2_CACHE, LayerConfig
from hdl.ports import In, Out, Payload

LOAD_LAYOUT = Payload(
    tag=(8, "tag of the request", BITS),
    sequence=(8, "field of the request", BITS),
    entries=(ENTRIES_BITS, "entries of each codebook", NUMBER),
    exponent_k=(EXPONENT_SHAPE, "log2 of the scale of K's codebooks"),
    exponent_v=(EXPONENT_SHAPE, "log2 of the scale of V's codebooks"),
)
_K, _V = range(2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionLoaderConfig(LayerConfig):
    """Codebooks, and words per beat and per word of a store."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate.macs % self.rate.lanes:
            self._refuse("rate.lanes", f"a divisor of macs = {self.rate.macs}")

    @property
    def codebook_layout(self) -> Payload:
        words = data.ArrayLayout(FP16.bits, self.rate.lanes)
        return Payload(word=(words, "elements of a row, FP16", FP16))

    @property
    def info_layout(self) -> Payload:
        return Payload(
            entries=(ENTRIES_BITS, "rows of each codebook", NUMBER),
            exponent=(EXPONENT_SHAPE, "the entries are times 2**exponent"),
        )

    @property
    def word_layout(self) -> Payload:
        words = data.ArrayLayout(FP16.bits, self.rate.macs)
        return Payload(word=(words, "macs elements of a row, FP16", FP16), last=BEAT_LAST)


class MillionLoader(Block):
    """One LOAD: the beats of ``codebook`` to the words of K's store, then of V's.

    The codebooks come row by row, one after another, K before V: ``books * entries * head_dim``
    words of each. ``status`` follows the last word.

        what the stores found            status
        nothing                          OK
        a NaN or an infinity             NONFINITE
        a word of magnitude above 1      BAD_REQUEST

    One beat per cycle; a word of a store takes macs / lanes of them. No combinational path leads
    from an input to an output, but from ``word.ready`` to ``codebook.ready``, and from the faults
    to ``status``. The faults must stay until the next ``info``.
    Golden: golden.index.store.store_words, golden.million.verdicts.load_status.

    Entries or an exponent out of range are a BAD_REQUEST too. NONFINITE has priority. A word leaves
    one cycle after its last beat. Three cycles lie between the last beat of K and the first of V.
    """

    tier = Tier.PART
    golden = "golden.index.store:store_words"
    default = MillionLoaderConfig()
    configs: ClassVar = {
        "smollm2": MillionLoaderConfig(cache=SMOLLM2_CACHE),
        "small": MillionLoaderConfig(cache=SMALL_CACHE, rate=SMALL_RATE),
    }

    def __init__(self, config: MillionLoaderConfig):
        faults = [In(len(CodebookFault), f"Faults of store {kv}.", CodebookFault) for kv in "KV"]
        info = stream.Signature(config.info_layout)
        word = stream.Signature(config.word_layout)
        super().__init__(
            config,
            {
                "load": In(stream.Signature(LOAD_LAYOUT), "LOADs."),
                "codebook": In(stream.Signature(config.codebook_layout), "Words of codebooks."),
                "info": Out(info, "Begins a load of store {0}: K, V.").array(2),
                "word": Out(word, "Words for store {0}: K, V.").array(2),
                "faults_k": faults[_K],
                "faults_v": faults[_V],
                "status": Out(stream.Signature(STATUS_LAYOUT), "How the LOAD ended."),
                "idle": Out(1, "No LOAD is under way."),
            },
        )

    @property
    def timing(self) -> Timing:
        """``beats`` of them are a word of a store."""
        beats = self.config.rate.macs // self.config.rate.lanes
        return Timing(
            latency=1,
            start="codebook",
            end="word_k",
            unit="beat",
            delays=(
                ("from load to the first beat", 2),
                ("from the last beat of K to the first of V", 3),
                ("from the last word to status", 1),
            ),
            words=(("codebook", 1), ("word_k", Fraction(1, beats))),
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        cache, rate = config.cache, config.rate
        ratio, parts = rate.macs // rate.lanes, rate.parts(cache.pq)
        load = Signal(LOAD_LAYOUT, reset_less=True)
        kv = Signal()
        words = range(cache.books * cache.pq.entries * parts + 1)
        left = Signal(words)
        beat = Signal(range(max(2, ratio)))
        word = Signal(config.word_layout, reset_less=True)
        full = Signal()
        sent = Signal()
        fault = Signal(len(CodebookFault))
        m.d.comb += [
            sent.eq(full & Mux(kv, self.word[_V].ready, self.word[_K].ready)),
            fault.eq(self.faults_k | self.faults_v),
            self.status.p.tag.eq(load.tag),
            self.status.p.op.eq(Op.LOAD),
            self.status.p.sequence.eq(load.sequence),
        ]
        with m.If(fault[0]):  # CodebookFault.NONFINITE
            m.d.comb += self.status.p.status.eq(Status.NONFINITE)
        with m.Elif(fault.any()):
            m.d.comb += self.status.p.status.eq(Status.BAD_REQUEST)
        for k, exponent in enumerate((load.exponent_k, load.exponent_v)):
            m.d.comb += [
                self.info[k].p.entries.eq(load.entries),
                self.info[k].p.exponent.eq(exponent),
                self.word[k].valid.eq(full & (kv == k)),
                self.word[k].p.word.eq(word.word),
                self.word[k].p.last.eq(left == 0),
            ]
        with m.FSM() as fsm:
            m.d.comb += self.idle.eq(fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                m.d.comb += self.load.ready.eq(1)
                m.d.sync += [load.eq(self.load.p), kv.eq(0)]
                with m.If(self.load.valid):
                    m.next = "INFO"
            with m.State("INFO"):
                m.d.comb += [self.info[k].valid.eq(kv == k) for k in range(2)]
                m.d.sync += [beat.eq(0), left.eq(load.entries * (cache.books * parts))]
                with m.If(Mux(kv, self.info[_V].ready, self.info[_K].ready)):
                    m.next = "WORDS"
            with m.State("WORDS"):
                m.d.comb += self.codebook.ready.eq((left != 0) & (~full | sent))
                with m.If(sent):
                    m.d.sync += full.eq(0)
                    with m.If(left == 0):
                        m.d.sync += kv.eq(1)
                        m.next = "INFO"
                        with m.If(kv):
                            m.next = "STATUS"
                with m.If(self.codebook.valid & self.codebook.ready):
                    m.d.sync += [
                        word.word.as_value()
                        .word_select(beat, FP16.bits * rate.lanes)
                        .eq(self.codebook.p.word),
                        beat.eq(Mux(beat == ratio - 1, 0, beat + 1)),
                    ]
                    with m.If(beat == ratio - 1):
                        m.d.sync += [full.eq(1), left.eq(left - 1)]
            with m.State("STATUS"):
                m.d.comb += self.status.valid.eq(1)
                with m.If(self.status.ready):
                    m.next = "IDLE"
        return m
