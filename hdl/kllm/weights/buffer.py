"""A lane's weights: gathered from port words, kept, replayed."""

import dataclasses

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.fp16.format import FP16, FP32
from golden.kllm.format import weight_beat_bits, weight_lane_words, weight_scale_beats
from golden.timing import Timing
from hdl.bits import after
from hdl.block import Block, FieldOf, Tier
from hdl.children import add
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.kinds import BITS, NUMBER, index_of
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out, Payload
from hdl.stream.queue import queue

GROUP_BITS = 16  # of a job's number of groups
_MULTIPLY_STAGES = 3
# Passes whose scales are still wanted while a later one's weights go out: what a lane has in
# flight (counted, handed over, reduced, scaled) and two on the path to it.
_PASSES_AHEAD = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmWeightBufferConfig(Config):
    """Shape of a lane's beats and size of their buffer."""

    columns: int = bounded(32, 1, 64, "output columns of a beat")
    elements: int = bounded(16, 1, 16, "elements of the reduction axis")
    bits_b: int = bounded(4, 2, 4, "bits of a weight index")
    port_bits: int = bounded(1024, 8, 4096, "bits of a port word")
    buffer_beats: int = bounded(256, 2, 65_536, "weight beats kept")
    length_bits: int = bounded(14, 1, 16, "bits of a number of beats")
    word_depth: int = bounded(1, 1, 4, "words held of each slot while its beat is gathered")

    @property
    def beat_bits(self) -> int:
        return weight_beat_bits(self.columns, self.elements, self.bits_b)

    @property
    def lane_words(self) -> int:
        """Port words of a beat."""
        return weight_lane_words(self.columns, self.elements, self.bits_b, self.port_bits)

    @property
    def scale_beats(self) -> int:
        """Beats of a group's scales."""
        return weight_scale_beats(self.columns, self.elements, self.bits_b, self.port_bits)

    @property
    def memory(self) -> MemoryConfig:
        return MemoryConfig(depth=self.buffer_beats, width=self.beat_bits)

    @property
    def job_layout(self) -> data.StructLayout:
        return Payload(
            beats=(self.length_bits, "weight beats of a group, 1 or more", NUMBER),
            groups=(GROUP_BITS, "groups of the job", NUMBER),
        )

    @property
    def replay_layout(self) -> data.StructLayout:
        return Payload(
            beats=(self.length_bits, "beats of the group, as its job says", NUMBER),
            rms=(FP32.bits, "factor of the scales, FP32", FP32),
            fold=(1, "the scales are multiplied by rms"),
            release=(1, "the group is free after this replay"),
            end=(1, "last replay of the job"),
        )

    @property
    def word_layout(self) -> data.StructLayout:
        return Payload(data=(self.port_bits, "word of the beat", BITS))

    @property
    def w_layout(self) -> data.StructLayout:
        """The weight beat as a lane takes it (hdl.kllm.lane.config)."""
        column = data.ArrayLayout(self.bits_b, self.elements)
        return Payload(
            index=(
                data.ArrayLayout(column, self.columns),
                "weight index of each column and element",
                index_of("weight centroids"),
            ),
            last=(1, "final beat of the replay"),
        )

    @property
    def s_b_layout(self) -> data.StructLayout:
        return Payload(word=(FP16.bits, "scale, FP16", FP16))


class KllmWeightBuffer(Block):
    """Groups of beats, each sent once per replay, with ``s_b = rne16(scale * rms)``.

    A job is one word of ``job`` and, on each ``word_k``, ``groups * (beats + scale_beats)`` words.
    A beat is the words of all k, the lowest bits in word_0. The buffer stores ``beats`` weight
    beats of each group in a RAM of ``buffer_beats``. It stores ``scale_beats`` beats, of
    ``columns`` scales per group, in registers. These have room for the scales of two groups.

    A word of ``replay`` gives the current group's ``beats`` beats on ``w`` (``last`` on the final
    one) and ``columns`` words on ``s_b``. These are the scales, or with ``fold`` their product with
    the FP32 word ``rms``, rounded once (NaN: 0x7E00). ``release`` frees the group, beat by beat as
    it is read, and goes to the next one. A group that is replayed without it must fit:
    ``beats <= buffer_beats``. ``end`` marks the last replay of a job: when all that it gives has
    been transferred, ``done`` has a word. ``beats`` of job and replays agree and are 1 or more.

    Rates per cycle, all at once: one beat taken, one beat of ``w`` without a gap between
    replays, one word of ``s_b``. Scales come up to 6 replays later than weights.
    No combinational path leads from an input to an output.
    Golden: golden.kllm.image.replay.

    Scales do not pass through the RAM, so ``w`` never waits for them (decision 0036). A group
    without replays may be longer than the RAM. ``word_depth`` 1 stores one word per slot. That is
    enough if a beat is complete before the words of the next one come.

    ``python -m synth.report kllm_weight_buffer --config table1`` gives 34.7 kGE and 3,597
    flip-flops. Most of these store the beat's words (2,048) and the two sets of scales (1,024). The
    RAM of 256 x 2048 bits is not in this area.
    """

    tier = Tier.PART
    golden = "golden.kllm.image:replay"
    configs = FieldOf("kllm_weight_supply", "buffer_config")

    verilate_separately = True  # a supply has one per lane

    def __init__(self, config: KllmWeightBufferConfig):
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Groups whose words come next."),
                "replay": In(
                    stream.Signature(config.replay_layout),
                    "The current group is to be given out, once per word.",
                ),
                "word": In(stream.Signature(config.word_layout), "Word {0} of each beat.").array(
                    config.lane_words
                ),
                "w": Out(stream.Signature(config.w_layout), "Weight indices of the lane."),
                "s_b": Out(
                    stream.Signature(config.s_b_layout),
                    "Weight scales of the lane, folded if the replay requests it.",
                ),
                "done": Out(
                    stream.Signature(Payload(last=(1, "always 1"))),
                    "All of a job has been handed over.",
                ),
            },
        )

    # Of a job of one group: from the last word of its first beat to that beat.
    timing = Timing(latency=3, start="a beat's last word", end="w", unit="beat")

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        has_room = Signal()
        scales_have_room = Signal()
        gathered = _gather(
            m, config, self.job, list(self.word),
            has_room, scales_have_room,
        )  # fmt: skip
        passes = queue(m, "passes", _pass_layout(config), 2)
        scale_passes = queue(m, "scale_passes", _scale_pass_layout, _PASSES_AHEAD)
        w_ended = _weights(m, config, gathered, passes.o, self.w, has_room)
        asked = self.replay.p
        m.d.comb += [
            *(
                getattr(each.i.p, name).eq(getattr(asked, name))
                for each, names in (
                    (passes, ("beats", "release", "end")),
                    (scale_passes, ("rms", "fold", "release", "end")),
                )
                for name in names
            ),
            # A replay is told to both sides at once.
            self.replay.ready.eq(scale_passes.i.ready & passes.i.ready),
            scale_passes.i.valid.eq(self.replay.valid & passes.i.ready),
            passes.i.valid.eq(self.replay.valid & scale_passes.i.ready),
        ]
        s_b_ended = _scales(m, config, gathered, scale_passes.o, self.s_b, scales_have_room)
        # Both sides stop at the end of a job until ``done`` is taken.
        m.d.comb += [self.done.valid.eq(w_ended & s_b_ended), self.done.p.last.eq(1)]
        with m.If(self.done.valid & self.done.ready):
            m.d.sync += [w_ended.eq(0), s_b_ended.eq(0)]
        return m


def _pass_layout(config: KllmWeightBufferConfig) -> data.StructLayout:
    return data.StructLayout({"beats": config.length_bits, "release": 1, "end": 1})


_scale_pass_layout = data.StructLayout({"rms": FP32.bits, "fold": 1, "release": 1, "end": 1})


@dataclasses.dataclass(frozen=True)
class _Gathered:
    """A beat of all words."""

    beat: Value
    keep: Signal  # it is weights, and is stored
    keep_scales: Signal  # it is scales, and is stored
    scale_beat: Signal  # which of the beats of scales
    is_end: Signal  # the last of them


def _gather(m: Module, config, job, words, has_room, scales_have_room) -> _Gathered:
    """Beats from words; which of them are scales."""
    take = Signal()  # a beat is complete and has a place
    complete = []
    beat = []
    for k, word in enumerate(words):
        if config.word_depth == 1:
            held = Signal(name=f"held_{k}")
            kept = Signal(config.port_bits, name=f"kept_{k}", reset_less=True)
            m.d.comb += word.ready.eq(~held | take)
            with m.If(word.ready):
                m.d.sync += held.eq(word.valid)
                with m.If(word.valid):
                    m.d.sync += kept.eq(word.p.data)
            complete.append(held)
            beat.append(kept)
        else:
            stored = queue(m, f"words_{k}", config.port_bits, config.word_depth)
            m.d.comb += [
                stored.i.valid.eq(word.valid),
                stored.i.p.eq(word.p.data),
                word.ready.eq(stored.i.ready),
                stored.o.ready.eq(take),
            ]
            complete.append(stored.o.valid)
            beat.append(stored.o.p)
    gathering = Signal()
    beats = Signal(config.length_bits, reset_less=True)  # of a group
    groups = Signal(GROUP_BITS, reset_less=True)  # that still end
    at = Signal(config.length_bits + 1)
    is_scale = Signal()
    is_end = Signal()
    scale_beat = Signal(range(max(config.scale_beats, 2)))
    keep = Signal()
    keep_scales = Signal()
    m.d.comb += [
        job.ready.eq(~gathering),
        is_scale.eq(at == beats),
        take.eq(gathering & Cat(complete).all() & Mux(is_scale, scales_have_room, has_room)),
        keep.eq(take & ~is_scale),
        keep_scales.eq(take & is_scale),
        is_end.eq(scale_beat == config.scale_beats - 1),
    ]
    with m.If(take & ~is_scale):
        m.d.sync += at.eq(at + 1)
    with m.If(take & is_scale):
        m.d.sync += scale_beat.eq(scale_beat + 1)
        with m.If(is_end):
            m.d.sync += [at.eq(0), scale_beat.eq(0)]
            m.d.sync += [groups.eq(groups - 1), gathering.eq(groups != 1)]
    with m.Elif(~gathering & job.valid):
        m.d.sync += [
            gathering.eq(1),
            beats.eq(job.p.beats),
            groups.eq(job.p.groups),
        ]
    return _Gathered(Cat(beat), keep, keep_scales, scale_beat, is_end)


def _weights(m: Module, config, gathered: _Gathered, passes, w, has_room) -> Signal:
    """The RAM as a ring: a group is read from its first row again until it is released.

    The result: the last beat of a job was taken.
    """
    depth = config.buffer_beats
    current = passes.p

    ram = add(m, "ram", Memory1R1W(config.memory))
    write_row, read_row, first_row = (
        Signal(config.memory.address_bits, name=name)
        for name in ("write_row", "read_row", "first_row")
    )
    level = Signal(range(depth + 1))  # rows written and not freed
    unread = Signal(range(depth + 1))  # rows written and not read in this pass
    at = Signal(config.length_bits)
    shown = Signal()
    shown_last = Signal()
    shown_end = Signal()
    fetch = Signal()
    is_last = Signal()
    free = Signal()
    blocked = Signal()
    w_ended = Signal()

    m.d.comb += [
        has_room.eq(level != depth),
        ram.write_en.eq(gathered.keep),
        ram.write_addr.eq(write_row),
        ram.write_data.eq(gathered.beat[: config.beat_bits]),
        # The RAM's read register is the output register.
        blocked.eq(shown_end & w_ended),
        free.eq(~shown | (w.ready & ~blocked)),
        fetch.eq(passes.valid & (unread != 0) & free),
        is_last.eq(at == (current.beats - 1)[: config.length_bits]),
        passes.ready.eq(fetch & is_last),
        ram.read_en.eq(fetch),
        ram.read_addr.eq(read_row),
        w.valid.eq(shown & ~blocked),
        w.p.index.as_value().eq(ram.read_data),
        w.p.last.eq(shown_last),
    ]
    m.d.sync += [
        level.eq(level + gathered.keep - (fetch & current.release)),
        unread.eq(Mux(fetch & is_last & ~current.release, level, unread - fetch) + gathered.keep),
    ]
    with m.If(gathered.keep):
        m.d.sync += write_row.eq(after(write_row, depth))
    with m.If(fetch):
        m.d.sync += [
            at.eq(Mux(is_last, 0, at + 1)),
            read_row.eq(Mux(is_last & ~current.release, first_row, after(read_row, depth))),
            shown_last.eq(is_last),
            shown_end.eq(is_last & current.end),
        ]
        with m.If(is_last & current.release):
            m.d.sync += first_row.eq(after(read_row, depth))
    with m.If(free):
        m.d.sync += shown.eq(fetch)
    with m.If(w.valid & w.ready & shown_end):
        m.d.sync += w_ended.eq(1)
    return w_ended


def _scales(m: Module, config, gathered: _Gathered, passes, s_b, have_room) -> Signal:
    """Scales of two groups; those of the elder are multiplied column by column.

    The result: the last scale of a job was taken.
    """
    current = passes.p

    sets = [
        Signal(data.ArrayLayout(FP16.bits, config.columns), name=f"scales_{k}", reset_less=True)
        for k in range(2)
    ]
    held = Signal(2)  # which of them hold scales
    # the set to fill, the set in use
    newest = Signal()
    eldest = Signal()
    column = Signal(range(max(config.columns, 2)))
    go = Signal()
    is_last = Signal()
    freed = Signal()
    raw_layout = data.StructLayout({"word": FP16.bits, "fold": 1, "end": 1})
    multiply = add(
        m,
        "multiply",
        FpMul(
            FpMulConfig(a=FP16, b=FP32, o=FP16, stages=_MULTIPLY_STAGES, tag_bits=raw_layout.size)
        ),
    )
    tag = data.View(raw_layout, multiply.i.p.tag)
    chosen = Array(sets)[eldest]
    m.d.comb += [
        have_room.eq(~held.all()),
        multiply.i.valid.eq(passes.valid & held.bit_select(eldest, 1)),
        go.eq(multiply.i.valid & multiply.i.ready),
        is_last.eq(column == config.columns - 1),
        passes.ready.eq(go & is_last),
        freed.eq(go & is_last & current.release),
        tag.word.eq(chosen[column]),
        tag.fold.eq(current.fold),
        tag.end.eq(is_last & current.end),
        multiply.i.p.a.eq(tag.word),
        multiply.i.p.b.eq(current.rms),
    ]
    complete = Signal()
    m.d.comb += complete.eq(gathered.keep_scales & gathered.is_end)
    for k, scales in enumerate(sets):
        with m.If(gathered.keep_scales & (newest == k)), m.Switch(gathered.scale_beat):
            for n in range(config.scale_beats):
                with m.Case(n):
                    part = scales.as_value()[n * len(gathered.beat) :][: len(gathered.beat)]
                    m.d.sync += part.eq(gathered.beat)
        with m.If(complete & (newest == k)):
            m.d.sync += held[k].eq(1)
        with m.Elif(freed & (eldest == k)):
            m.d.sync += held[k].eq(0)
    with m.If(complete):
        m.d.sync += newest.eq(~newest)
    with m.If(freed):
        m.d.sync += eldest.eq(~eldest)
    with m.If(go):
        m.d.sync += column.eq(Mux(is_last, 0, column + 1))

    ended = Signal()
    blocked = Signal()
    out = data.View(raw_layout, multiply.o.p.tag)
    m.d.comb += [
        blocked.eq(out.end & ended),
        s_b.valid.eq(multiply.o.valid & ~blocked),
        multiply.o.ready.eq(s_b.ready & ~blocked),
        s_b.p.word.eq(Mux(out.fold, multiply.o.p.y, out.word)),
    ]
    with m.If(s_b.valid & s_b.ready & out.end):
        m.d.sync += ended.eq(1)
    return ended
