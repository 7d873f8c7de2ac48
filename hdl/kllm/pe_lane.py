"""KLLM's processing element lane (docs/blocks/kllm_pe_lane.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Array, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, enum, stream
from amaranth.lib.wiring import In, Out

from golden.config import Config
from golden.fp16.format import FP16
from golden.index.format import INT_BITS, K_MAX
from golden.kllm.format import (
    NO_OUTPUT,
    Status,
    integer_packet_length,
    kmeans_packet_length,
)
from hdl.block import Block
from hdl.emit import add
from hdl.index.histogram_parallel import (
    ARCHITECTURES,
    IndexHistogramParallel,
    IndexHistogramParallelConfig,
)
from hdl.index.reducer import IndexReducer, IndexReducerConfig, centroid_parts
from hdl.kllm.concat import KllmConcat, KllmConcatConfig
from hdl.kllm.outlier import KllmOutlier, KllmOutlierConfig
from hdl.kllm.scaler import KllmScaler, KllmScalerConfig, is_special
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.stream.fifo import StreamFifo, StreamFifoConfig

__all__ = ["KllmPeLane", "KllmPeLaneConfig"]

_STATUS_BITS = len(Status)
_JOBS_IN_FLIGHT = 4  # counted, handed over, reduced, scaled


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmPeLaneConfig(Config):
    """Elaboration-time parameters of a lane."""

    bits_a: int = 4  # bits of an activation index, 2..4
    bits_b: int = 4  # bits of a weight index, 2..4
    elements: int = 16  # elements of the reduction axis per cycle, 1..16
    columns: int = 32  # output columns of a job, 1..64
    k_max: int = 11008  # longest reduction, 1..16383
    integer_bits: int = 8  # Integer x K-Means mode: bits of an operand; 0 leaves the mode out
    counter: str = "flipflop"  # micro-architecture: flipflop, sram or two_level
    macs: int = 32  # MACs of the reducer, a power of two 1..256; sram: as many as columns
    outliers_max: int = 127  # most outliers of a token, 1..16383
    weight_buffer_beats: int = 8  # depth of the weight buffer, 3..1024

    def __post_init__(self) -> None:
        self._check_range("bits_a", 2, 4)
        self._check_range("bits_b", 2, 4)
        self._check_range("elements", 1, 16)
        self._check_range("columns", 1, 64)
        self._check_range("k_max", 1, K_MAX)
        self._check_choice("integer_bits", (0, *INT_BITS))
        self._check_choice("counter", ARCHITECTURES)
        if self.counter == "sram":
            self._check_range("macs", self.columns, self.columns)
        else:
            self._check_power_of_two("macs", 1, 256)
        self._check_range("outliers_max", 1, 16383)
        self._check_range("weight_buffer_beats", 3, 1024)

    @property
    def product(self) -> str:
        """Product codebook of golden.kllm: the two-level histogram factorises exact products."""
        return "exact" if self.counter == "two_level" else "rounded"

    @property
    def word_bins(self) -> int:
        """Bins of one column that are reduced per cycle."""
        return 1 if self.counter == "sram" else self.macs

    @property
    def counter_config(self) -> IndexHistogramParallelConfig:
        return IndexHistogramParallelConfig(
            bits_a=self.bits_a,
            bits_b=self.bits_b,
            elements=self.elements,
            k_max=self.k_max,
            integer_bits=self.integer_bits,
            architecture=self.counter,
            word_bins=self.word_bins,
        )

    @property
    def reducer_config(self) -> IndexReducerConfig:
        return IndexReducerConfig.of_counter(self.counter_config, self.word_bins)

    @property
    def outlier_config(self) -> KllmOutlierConfig:
        return KllmOutlierConfig(
            bits_b=self.bits_b, columns=self.columns, outliers_max=self.outliers_max
        )

    @property
    def scaler_config(self) -> KllmScalerConfig:
        return KllmScalerConfig(
            sum_bits=self.outlier_config.sum_bits, tag_bits=self._output_tag.size
        )

    @property
    def concat_config(self) -> KllmConcatConfig:
        return KllmConcatConfig(
            value_bits=self.counter_config.value_bits,
            bits_b=self.bits_b,
            elements=self.elements,
            columns=self.columns,
            tag_bits=self._outlier_tag.size,
        )

    @property
    def codebook_words(self) -> int:
        return kmeans_packet_length(self.bits_a, self.bits_b, self.product)

    @property
    def reduce_cycles(self) -> int:
        """Cycles in which the bins of all columns are reduced, K-Means mode."""
        bins = self.counter_config.words
        return bins if self.counter == "sram" else self.columns * bins

    def bound(self, length: int, jobs: int) -> int:
        """Cycles of ``jobs`` jobs of ``length`` elements: design bound, outliers on own MACs.

        ``jobs * max(T_count, T_reduce) + min(T_count, T_reduce)``: counting a job overlaps
        reducing the last.
        """
        count = -(-length // self.elements)
        return jobs * max(count, self.reduce_cycles) + min(count, self.reduce_cycles)

    @property
    def latency(self) -> str:
        return (
            f"ceil(length / {self.elements}) + {self.reduce_cycles} cycles and a pipeline of a "
            "dozen, first beat to last output"
        )

    @property
    def throughput(self) -> str:
        return (
            f"{self.columns * self.elements} pairs per cycle; a job of {self.columns} columns per "
            f"max(ceil(length / {self.elements}), {self.reduce_cycles}) cycles"
        )

    @property
    def _outlier_tag(self) -> data.StructLayout:
        return data.StructLayout(
            {
                "present": 1,
                "x": FP16.bits,
                "element": range(max(self.elements, 2)),
                "sparse": 1,  # of a job whose elements are all outliers
            }
        )

    @property
    def _output_tag(self) -> data.StructLayout:
        return data.StructLayout({"empty": 1, "end": 1, "status": _STATUS_BITS})

    @property
    def job_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {
                "length": 16,
                "outliers": 16,
                "s_a": FP16.bits,
                "last_column": range(max(self.columns, 2)),
                "integer": 1,
            }
        )

    @property
    def a_layout(self) -> data.StructLayout:
        value_bits = max(self.bits_a, self.integer_bits)
        return data.StructLayout(
            {
                "value": data.ArrayLayout(value_bits, self.elements),
                "outlier": self.elements,
                "last": 1,
            }
        )

    @property
    def w_layout(self) -> data.StructLayout:
        column = data.ArrayLayout(self.bits_b, self.elements)
        return data.StructLayout({"index": data.ArrayLayout(column, self.columns), "last": 1})

    @property
    def word_layout(self) -> data.StructLayout:
        """An FP16 word of a packet: codebooks and outputs."""
        return data.StructLayout({"word": FP16.bits, "last": 1})

    @property
    def value_layout(self) -> data.StructLayout:
        """An FP16 word: outlier values and weight scales."""
        return data.StructLayout({"word": FP16.bits})

    @property
    def status_layout(self) -> data.StructLayout:
        return data.StructLayout({status.name.lower(): 1 for status in Status})


class _Loaded(enum.Enum, shape=2):
    """What the codebook buffer holds."""

    NOTHING = 0
    KMEANS = 1
    INTEGER = 2


class KllmPeLane(Block):
    """``y[n] = rne16(fma32(s_a, rne32(D[n]), rne32(S[n])) * s_b[n])`` for up to ``columns`` n.

    K-Means x K-Means: ``D[n] = sum over inliers k of P[a_k, w_kn]`` by counting index pairs,
    ``S[n] = sum over outliers k of x_k * C_B[w_kn]``. P holds rne16 of the products of centroids;
    with ``counter=two_level`` it is exact and never stored. Integer x K-Means: ``D[n] = sum_j
    C_V[j] * (sum of a_k with w_kn = j)``, no outliers. All sums are exact; the roundings are
    those written above, nearest even, in golden at the same places.

    A job consists of these words:

        job  1 word
        a    ``ceil(length / elements)`` beats, ``last`` on the final one
        w    as many beats, ``last`` on the final one
        x    ``outliers`` words in ascending position
        s_b  ``last_column + 1`` words

    It gives ``last_column + 1`` words of ``y`` (``last`` on the final one) and then one word of
    ``status``. A job with one of the bits in golden.kllm.format.NO_OUTPUT gives no y. The lane
    drains what belongs to it: a length of 0 has no beats, other lengths have ``a`` and ``w`` up to
    ``last``. It computes the next job as if this one had not been.

    A packet on ``codebook`` (words and order: golden.kllm.format) is taken between jobs, once the
    jobs before it are done. It has priority over the next job. A packet of another length, or with
    an entry that is not in -1..1, leaves the buffer empty.

    Rate: one beat (columns x elements pairs) per cycle. A beat with o outliers takes max(1, o)
    cycles. Counting a job overlaps reducing the last: see ``KllmPeLaneConfig.bound``.
    A job whose elements are all outliers (a direct product: FP16 by centroids) is not reduced. It
    takes its ``length`` or ``last_column + 1`` cycles, whichever is more.
    ``ready`` of job, a, x and s_b depends combinationally on ``valid`` of every input but w, on
    ``y.ready`` and on ``status.ready``. No ``valid`` of an output depends on an input.
    Source: KLLM, sections III-B, III-D, IV-A, Table I. Golden: golden.kllm.matmul.matmul,
    integer_matmul.

    Members
    -------
    job : In(stream)       length: elements; outliers: words of x; s_a: FP16 word; last_column;
                           integer: mode
    a : In(stream)         value: elements x index or unsigned integer; outlier: mask; last
    w : In(stream)         index: columns x elements x bits_b; last
    x : In(stream)         word: FP16 value of an outlier
    s_b : In(stream)       word: FP16 scale of an output column
    codebook : In(stream)  word: FP16 centroid or product; last
    y : Out(stream)        word: FP16 output; last
    status : Out(stream)   one bit per golden.kllm.format.Status
    """

    meaning: ClassVar[dict[str, str]] = {
        "job": "what the next job is: length, outliers, activation scale, columns, mode",
        "a": "activation indices (or integers) and outlier mask, elements at a time",
        "w": "weight indices, columns x elements at a time",
        "x": "FP16 values of the outliers, ascending positions",
        "s_b": "FP16 scale of each output column",
        "codebook": "centroids and their products, loaded between jobs",
        "y": "FP16 outputs of a job",
        "status": "one word per job: its fault bits, 0 if none",
    }

    def __init__(self, config: KllmPeLaneConfig):
        value = stream.Signature(config.value_layout)
        word = stream.Signature(config.word_layout)
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout)),
                "a": In(stream.Signature(config.a_layout)),
                "w": In(stream.Signature(config.w_layout)),
                "x": In(value),
                "s_b": In(value),
                "codebook": In(word),
                "y": Out(word),
                "status": Out(stream.Signature(config.status_layout)),
            },
        )

    @property
    def latency(self) -> str:
        return self.config.latency

    @property
    def throughput(self) -> str:
        return self.config.throughput

    def elaborate(self, platform) -> Module:
        m = Module()
        self._elaborate_codebook(m)
        self._elaborate_control(m)
        self._elaborate_dense(m)
        self._elaborate_sparse(m)
        self._elaborate_output(m)
        return m

    def _elaborate_codebook(self, m: Module) -> None:
        """C_B, and C_A (two_level) or the table of products, loaded one word per cycle."""
        config = self.config
        word = self.codebook.p.word
        self.loading = Signal()  # the control lets a packet in
        self.loaded = Signal(_Loaded)
        count = Signal(range(config.codebook_words + 2))  # words so far, held at one too many
        is_bad = Signal()  # a word of this packet is out of range
        take = Signal()
        too_large = Signal()
        m.d.comb += [
            self.codebook.ready.eq(self.loading),
            take.eq(self.codebook.valid & self.codebook.ready),
            # 1.0 is the largest magnitude; infinities and NaN are above it as integers
            too_large.eq(word[:-1] > (FP16.bias << FP16.frac_bits)),
        ]
        with m.If(take):
            m.d.sync += [
                self.loaded.eq(_Loaded.NOTHING),
                is_bad.eq(is_bad | too_large),
                count.eq(Mux(count == config.codebook_words + 1, count, count + 1)),
            ]
            with m.If(self.codebook.p.last):
                m.d.sync += [count.eq(0), is_bad.eq(0)]
                with m.If(~is_bad & ~too_large):
                    with m.If(count == config.codebook_words - 1):
                        m.d.sync += self.loaded.eq(_Loaded.KMEANS)
                    if config.integer_bits:
                        with m.Elif(count == integer_packet_length(config.bits_b) - 1):
                            m.d.sync += self.loaded.eq(_Loaded.INTEGER)

        # The last words of a packet are C_B (or C_V), so a shift register keeps the right ones.
        def shifted_in(name: str, entries: int, newest):
            words = [Signal(FP16.bits, name=f"{name}_{j}", reset_less=True) for j in range(entries)]
            with m.If(take):
                for held, following in zip(words, [*words[1:], newest], strict=True):
                    m.d.sync += held.eq(following)
            return words

        self.codebook_b = shifted_in("codebook_b", 2**config.bits_b, word)
        self.is_integer = Signal()
        m.d.comb += self.is_integer.eq(self.loaded == _Loaded.INTEGER)
        if config.counter == "two_level":
            self.codebook_a = shifted_in("codebook_a", 2**config.bits_a, self.codebook_b[0])
            return
        per_word = config.word_bins
        bins = config.counter_config.bins
        self.products = add(
            m,
            "products",
            Memory1R1W(
                MemoryConfig(
                    depth=max(config.counter_config.words, 2),
                    width=per_word * FP16.bits,
                    granularity=FP16.bits,
                )
            ),
        )
        slot = count % per_word
        m.d.comb += [
            self.products.write_en.eq(Mux(take & (count < bins), 1 << slot, 0)),
            self.products.write_addr.eq(count // per_word),
            self.products.write_data.eq(word.replicate(per_word)),
        ]

    def _elaborate_control(self, m: Module) -> None:
        """Takes jobs, joins their beats, and says what became of them."""
        config = self.config
        elements = config.elements
        self.w_buffer = w_buffer = add(
            m,
            "weight_buffer",
            StreamFifo(
                StreamFifoConfig(
                    width=config.concat_config.w_layout.size,
                    depth=config.weight_buffer_beats,
                    storage="memory",
                )
            ),
        )
        self.concat = concat = add(m, "concat", KllmConcat(config.concat_config))
        info_layout = data.StructLayout(
            {
                "s_a": FP16.bits,
                "last_column": range(max(config.columns, 2)),
                "counted": 1,  # beats were taken: sums will come
                "sparse": 1,  # all its elements are outliers: no dense sum comes
                "status": _STATUS_BITS,
            }
        )
        self.info_layout = info_layout
        self.info_queue = info_queue = add(
            m,
            "info_queue",
            StreamFifo(StreamFifoConfig(width=info_layout.size, depth=_JOBS_IN_FLIGHT)),
        )
        self.job_done = Signal()
        in_flight = Signal(range(2 * _JOBS_IN_FLIGHT + 2))

        job = self.job.p
        a, x = self.a, self.x
        left = Signal(16)  # elements of the job not yet counted
        x_left = Signal(16)  # outlier values not yet taken
        status = Signal(_STATUS_BITS)  # faults of the job so far
        s_a = Signal(FP16.bits)
        last_column = Signal(range(max(config.columns, 2)))
        counted = Signal()
        is_sparse = Signal()  # every element is an outlier: the counters are left out
        a_done, w_done = Signal(), Signal()  # draining: the packet has ended
        m.d.comb += [
            w_buffer.i.valid.eq(self.w.valid),
            self.w.ready.eq(w_buffer.i.ready),
            w_buffer.i.p.data.eq(self.w.p.index),
            w_buffer.i.p.last.eq(self.w.p.last),
        ]
        w = w_buffer.o

        # One step: a beat, or one more outlier of the same beat.
        done = Signal(elements)  # outliers of this beat already multiplied
        present = Signal(elements)
        outlier = Signal(elements)
        todo = Signal(elements)
        chosen = Signal(range(max(elements, 2)))
        more = Signal()
        x_needed, excess = Signal(), Signal()
        final, closing, misplaced = Signal(), Signal(), Signal()
        step, fire = Signal(), Signal()
        step_status = Signal(_STATUS_BITS)
        clean = Signal()  # nothing is left to drain after the closing step
        m.d.comb += [
            present.eq(Cat(left > e for e in range(elements))),
            outlier.eq(a.p.outlier & present),
            todo.eq(outlier & ~done),
            more.eq((todo & (todo - 1))[:elements].any()),
            x_needed.eq(todo.any() & (x_left != 0)),
            excess.eq(todo.any() & (x_left == 0)),
            final.eq(left <= elements),
            closing.eq((final | a.p.last | w.p.last) & ~more),
            misplaced.eq(closing & ((a.p.last != final) | (w.p.last != final))),
            clean.eq((a.p.last & w.p.last) & (x_left == x_needed)),
            fire.eq(step & concat.i_a.ready),
            step_status.eq(
                status
                | Mux(misplaced, int(Status.LAST_MISPLACED), 0)
                | Mux(excess, int(Status.OUTLIER_COUNT), 0)
                | Mux(closing & (x_left != x_needed), int(Status.OUTLIER_COUNT), 0)
                | Mux(x_needed & is_special(x.p.word), int(Status.NONFINITE), 0)
            ),
        ]
        for e in reversed(range(elements)):
            with m.If(todo[e]):
                m.d.comb += chosen.eq(e)

        values = self._counted_values(m)
        tag = data.View(config._outlier_tag, concat.i_a.p.tag)
        m.d.comb += [
            concat.i_a.valid.eq(step),
            concat.i_w.valid.eq(step),
            concat.i_w.p.index.eq(w.p.data),
            Cat(*(concat.i_a.p.value[e] for e in range(elements))).eq(Cat(*values)),
            concat.i_a.p.inlier.eq(Mux(done.any(), 0, present & ~a.p.outlier)),
            concat.i_a.p.last.eq(closing),
            tag.present.eq(x_needed),
            tag.x.eq(x.p.word),
            tag.element.eq(chosen),
            tag.sparse.eq(is_sparse),
        ]

        # What the header alone says.
        header_status = Signal(_STATUS_BITS)
        mode = Mux(job.integer, _Loaded.INTEGER.value, _Loaded.KMEANS.value)
        m.d.comb += header_status.eq(
            Mux(job.length == 0, int(Status.LENGTH_ZERO), 0)
            | Mux(job.length > config.k_max, int(Status.LENGTH_TOO_LONG), 0)
            | Mux(self.loaded.as_value() != mode, int(Status.CODEBOOK_MISSING), 0)
            | Mux(is_special(job.s_a), int(Status.NONFINITE), 0)
            | Mux(job.last_column >= config.columns, int(Status.COLUMN_RANGE), 0)
            | Mux(
                (job.outliers > config.outliers_max) | (job.integer & (job.outliers != 0)),
                int(Status.OUTLIER_COUNT),
                0,
            )
        )
        info_view = data.View(info_layout, info_queue.i.p.data)
        final_status = Signal(_STATUS_BITS)
        m.d.comb += [
            info_view.s_a.eq(s_a),
            info_view.last_column.eq(last_column),
            info_view.counted.eq(counted),
            info_view.sparse.eq(is_sparse),
            info_view.status.eq(final_status),
            info_queue.i.p.last.eq(0),
        ]
        push = Signal()
        m.d.comb += push.eq(info_queue.i.valid & info_queue.i.ready)
        m.d.sync += in_flight.eq(in_flight + push - self.job_done)

        with m.FSM():

            def accept_job():
                """In the cycle in which no other job needs the registers."""
                with m.If(self.job.valid & ~self.codebook.valid):
                    m.d.comb += self.job.ready.eq(1)
                    m.d.sync += [
                        left.eq(job.length),
                        x_left.eq(job.outliers),
                        status.eq(header_status),
                        s_a.eq(job.s_a),
                        last_column.eq(job.last_column),
                        counted.eq(header_status == 0),
                        is_sparse.eq((job.outliers == job.length) & ~job.integer),
                        a_done.eq(job.length == 0),
                        w_done.eq(job.length == 0),
                    ]
                    with m.If(header_status == 0):
                        m.next = "COUNT"
                    with m.Else():
                        m.next = "DRAIN"
                with m.Else():
                    m.next = "IDLE"

            with m.State("IDLE"):
                with m.If(self.codebook.valid & (in_flight == 0)):
                    m.next = "LOAD"
                with m.Else():
                    accept_job()
            with m.State("LOAD"):
                m.d.comb += self.loading.eq(1)
                with m.If(self.codebook.valid & self.codebook.p.last):
                    m.next = "IDLE"
            with m.State("COUNT"):
                pop = fire & ~more
                m.d.comb += [
                    step.eq(
                        a.valid
                        & w.valid
                        & (x.valid | ~x_needed)
                        & (~closing | ~clean | info_queue.i.ready)
                    ),
                    a.ready.eq(pop),
                    w.ready.eq(pop),
                    x.ready.eq(fire & x_needed),
                    info_queue.i.valid.eq(fire & closing & clean),
                    final_status.eq(step_status),
                ]
                with m.If(fire):
                    m.d.sync += [
                        status.eq(step_status),
                        x_left.eq(x_left - x_needed),
                        done.eq(Mux(more, done | (todo & ~(todo - 1))[:elements], 0)),
                    ]
                    with m.If(~more):
                        m.d.sync += left.eq(left - elements)
                    with m.If(closing):
                        m.d.sync += [a_done.eq(a.p.last), w_done.eq(w.p.last)]
                        with m.If(clean):
                            accept_job()
                        with m.Else():
                            m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.comb += [
                    a.ready.eq(~a_done),
                    w.ready.eq(~w_done),
                    x.ready.eq(x_left != 0),
                    final_status.eq(status),
                    info_queue.i.valid.eq(a_done & w_done & (x_left == 0)),
                ]
                with m.If(a.valid & a.p.last):
                    m.d.sync += a_done.eq(1)
                with m.If(w.valid & w.p.last):
                    m.d.sync += w_done.eq(1)
                with m.If(x.valid & x.ready):
                    m.d.sync += x_left.eq(x_left - 1)
                with m.If(push):
                    m.next = "IDLE"

    def _counted_values(self, m: Module) -> list:
        """The value above each weight index: index, integer, or (two_level) addend."""
        config = self.config
        values = list(self.a.p.value)
        if config.counter != "two_level":
            return values
        entries = []
        for j, word in enumerate(self.codebook_a):
            sign, significand, shift = centroid_parts(word)
            magnitude = significand << shift
            entry = Signal(signed(config.counter_config.value_bits), name=f"addend_{j}")
            m.d.comb += entry.eq(Mux(sign, -magnitude, magnitude))
            entries.append(entry)
        addends = []
        for e, value in enumerate(values):
            addend = Signal(signed(config.counter_config.value_bits), name=f"addend_of_{e}")
            looked_up = Array(entries)[value[: config.bits_a]]
            m.d.comb += addend.eq(
                Mux(self.is_integer, value[: config.integer_bits], looked_up)
                if config.integer_bits
                else looked_up
            )
            addends.append(addend)
        return addends

    def _elaborate_dense(self, m: Module) -> None:
        """Counters and reducers: ``self.dense`` is a stream of rne32(D), column by column."""
        config = self.config
        concat = self.concat
        counters = [
            add(m, f"counter_{c}", IndexHistogramParallel(config.counter_config))
            for c in range(config.columns)
        ]
        self.sparse = sparse = add(m, "outlier", KllmOutlier(config.outlier_config))
        # A fork of the beat: columns that are read out early may count ahead by one.
        units = [*counters, sparse]
        done = Signal(len(units))  # units that have taken the beat
        served = Signal(len(units))  # the same, counting this cycle
        # The dense sum of a job without inliers is 0: its beats pass the counters by, and no bins
        # are reduced for it.
        skipped = Signal(len(units))
        beat_tag = data.View(config._outlier_tag, concat.o.p.tag)
        m.d.comb += [
            skipped.eq(Mux(beat_tag.sparse, (1 << len(counters)) - 1, 0)),
            served.eq(done | skipped | Cat(unit.i.ready for unit in units)),
            concat.o.ready.eq(served.all()),
        ]
        m.d.comb += [
            unit.i.valid.eq(concat.o.valid & ~done[n] & ~skipped[n]) for n, unit in enumerate(units)
        ]
        with m.If(concat.o.valid):
            m.d.sync += done.eq(Mux(concat.o.ready, 0, served))
        for c, counter in enumerate(counters):
            m.d.comb += [
                counter.i.p.pair.eq(concat.o.p.pair[c]),
                counter.i.p.inlier.eq(concat.o.p.inlier),
                counter.i.p.integer.eq(self.is_integer),
                counter.i.p.last.eq(concat.o.p.last),
            ]
        self.dense = stream.Signature(data.StructLayout({"y": 32})).create(path=("dense",))
        if config.counter == "sram":
            self._reduce_columns_together(m, counters)
        else:
            self._reduce_columns_in_turn(m, counters)

    def _reduce_columns_in_turn(self, m: Module, counters: list) -> None:
        """One reducer of ``macs`` bins per cycle; the columns' outputs come evenly spaced."""
        config = self.config
        reducer = add(m, "reducer", IndexReducer(config.reducer_config))
        count_layout = config.counter_config.o_layout["count"].shape
        column = Signal(range(max(config.columns, 2)))
        word = Signal(range(max(config.counter_config.words, 2)))
        selected = [column == c for c in range(config.columns)]
        head_valid, head_last, free, take = Signal(), Signal(), Signal(), Signal()
        head = Signal(count_layout)
        held_valid, held_last = Signal(), Signal()
        held = Signal(count_layout, reset_less=True)
        held_word = Signal.like(word)

        def of_selected(values):
            return _any_of(Mux(one, value, 0) for one, value in zip(selected, values, strict=True))

        m.d.comb += [
            head_valid.eq(of_selected([counter.o.valid for counter in counters])),
            head_last.eq(of_selected([counter.o.p.last for counter in counters])),
            head.as_value().eq(of_selected([c.o.p.count.as_value() for c in counters])),
            free.eq(~held_valid | reducer.i.ready),
            take.eq(head_valid & free),
        ]
        m.d.comb += [
            counter.o.ready.eq(free & one) for counter, one in zip(counters, selected, strict=True)
        ]
        with m.If(take):
            m.d.sync += [
                held_valid.eq(1),
                held.eq(head),
                held_last.eq(head_last),
                held_word.eq(word),
                word.eq(Mux(head_last, 0, word + 1)),
            ]
            with m.If(head_last):
                m.d.sync += column.eq(Mux(column == config.columns - 1, 0, column + 1))
        with m.Elif(reducer.i.ready):
            m.d.sync += held_valid.eq(0)

        weights = reducer.i.p.weight.as_value()
        if config.counter == "two_level":
            # Rows of C_B; slots beyond its end meet counts of zero.
            entries = self.codebook_b
            rows = [
                Cat(entries[at : at + config.macs]) for at in range(0, len(entries), config.macs)
            ]
            m.d.comb += [
                weights.eq(Array(rows)[held_word]),
                reducer.i.p.fine.eq(~self.is_integer),
            ]
        else:
            m.d.comb += [
                self.products.read_en.eq(take),
                self.products.read_addr.eq(word),
                weights.eq(self.products.read_data),
            ]
        m.d.comb += [
            reducer.i.valid.eq(held_valid),
            reducer.i.p.count.eq(held),
            reducer.i.p.last.eq(held_last),
            self.dense.valid.eq(reducer.o.valid),
            self.dense.p.y.eq(reducer.o.p.y),
            reducer.o.ready.eq(self.dense.ready),
        ]

    def _reduce_columns_together(self, m: Module, counters: list) -> None:
        """A MAC per column, since RAMs give one bin per cycle; the sums then go out in turn."""
        config = self.config
        reducers = [
            add(m, f"reducer_{c}", IndexReducer(config.reducer_config))
            for c in range(config.columns)
        ]
        word = Signal(range(config.counter_config.words))
        held_valid, held_last = Signal(), Signal()
        free, take, forward = Signal(), Signal(), Signal()
        m.d.comb += [
            forward.eq(held_valid & Cat(reducer.i.ready for reducer in reducers).all()),
            free.eq(~held_valid | forward),
            # The counters meet the same beats and the same reads: all are in the state of one.
            take.eq(counters[0].o.valid & free),
            self.products.read_en.eq(take),
            self.products.read_addr.eq(word),
        ]
        with m.If(take):
            m.d.sync += [
                held_valid.eq(1),
                held_last.eq(counters[0].o.p.last),
                word.eq(Mux(counters[0].o.p.last, 0, word + 1)),
            ]
        with m.Elif(forward):
            m.d.sync += held_valid.eq(0)

        column = Signal(range(max(config.columns, 2)))
        sent = self.dense.valid & self.dense.ready
        with m.If(sent):
            m.d.sync += column.eq(Mux(column == config.columns - 1, 0, column + 1))
        for c, (counter, reducer) in enumerate(zip(counters, reducers, strict=True)):
            held = Signal(counter.o.p.count.shape(), name=f"held_{c}", reset_less=True)
            with m.If(take):
                m.d.sync += held.eq(counter.o.p.count)
            m.d.comb += [
                counter.o.ready.eq(free),
                reducer.i.valid.eq(forward),
                reducer.i.p.count.eq(held),
                reducer.i.p.weight.as_value().eq(self.products.read_data),
                reducer.i.p.last.eq(held_last),
                reducer.o.ready.eq(sent & (column == c)),
            ]
        m.d.comb += [
            self.dense.valid.eq(Array(reducer.o.valid for reducer in reducers)[column]),
            self.dense.p.y.eq(Array(reducer.o.p.y for reducer in reducers)[column]),
        ]

    def _elaborate_sparse(self, m: Module) -> None:
        config = self.config
        sparse, beat = self.sparse, self.concat.o.p
        tag = data.View(config._outlier_tag, beat.tag)
        element = tag.element
        m.d.comb += [
            sparse.i.p.present.eq(tag.present),
            sparse.i.p.x.eq(tag.x),
            sparse.i.p.last.eq(beat.last),
            Cat(sparse.codebook).eq(Cat(self.codebook_b)),
        ]
        for c in range(config.columns):
            indices = [beat.pair[c][e][: config.bits_b] for e in range(config.elements)]
            m.d.comb += sparse.i.p.index[c].eq(Array(indices)[element])

    def _elaborate_output(self, m: Module) -> None:
        """Joins the sums of a column with its scales; ends each job with its status."""
        config = self.config
        dense, sparse, s_b = self.dense, self.sparse, self.s_b
        scaler = add(m, "scaler", KllmScaler(config.scaler_config))
        info = data.View(self.info_layout, self.info_queue.o.p.data)
        info_valid = self.info_queue.o.valid

        column = Signal(range(max(config.columns, 2)))
        wanted, is_end, is_last, dropped = Signal(), Signal(), Signal(), Signal()
        ready, send, go = Signal(), Signal(), Signal()
        m.d.comb += [
            dropped.eq((info.status & int(NO_OUTPUT)) != 0),
            wanted.eq(column <= info.last_column),
            # The column that ends the job's outputs, and the one that ends the job.
            is_last.eq(column == Mux(info.counted, config.columns - 1, info.last_column)),
            is_end.eq(Mux(dropped, is_last, column == info.last_column)),
            ready.eq(
                info_valid
                & (s_b.valid | ~wanted)
                & (((dense.valid | info.sparse) & sparse.o.valid) | ~info.counted)
            ),
            send.eq(ready & Mux(dropped, is_end, wanted)),
            go.eq(ready & (~send | scaler.i.ready)),
            s_b.ready.eq(go & wanted),
            dense.ready.eq(go & info.counted & ~info.sparse),
            sparse.o.ready.eq(go & info.counted),
            self.info_queue.o.ready.eq(go & is_last),
        ]
        with m.If(go):
            m.d.sync += column.eq(Mux(is_last, 0, column + 1))
        bad_scale = wanted & is_special(s_b.p.word)
        tag = data.View(config._output_tag, scaler.i.p.tag)
        m.d.comb += [
            scaler.i.valid.eq(send),
            scaler.i.p.d.eq(Mux(info.sparse, 0, dense.p.y)),
            scaler.i.p.s.eq(sparse.o.p.sum),
            scaler.i.p.s_a.eq(info.s_a),
            scaler.i.p.s_b.eq(s_b.p.word),
            tag.empty.eq(dropped),
            tag.end.eq(is_end),
            tag.status.eq(info.status | Mux(bad_scale & ~dropped, int(Status.SCALE_NONFINITE), 0)),
        ]

        # y, and after the last y of a job its status.
        out = scaler.o
        out_tag = data.View(config._output_tag, out.p.tag)
        faults = Signal(_STATUS_BITS)  # of the outputs so far
        new_faults = Signal(_STATUS_BITS)
        status_free, gone = Signal(), Signal()
        m.d.comb += [
            status_free.eq(~out_tag.end | ~self.status.valid),
            self.y.valid.eq(out.valid & ~out_tag.empty & status_free),
            self.y.p.word.eq(out.p.y),
            self.y.p.last.eq(out_tag.end),
            out.ready.eq(status_free & (out_tag.empty | self.y.ready)),
            gone.eq(out.valid & out.ready),
            new_faults.eq(
                faults
                | out_tag.status
                | Mux(out.p.overflow & ~out_tag.empty, int(Status.OVERFLOW), 0)
            ),
            self.job_done.eq(gone & out_tag.end),
        ]
        with m.If(self.status.ready):
            m.d.sync += self.status.valid.eq(0)
        with m.If(gone):
            m.d.sync += faults.eq(Mux(out_tag.end, 0, new_faults))
            with m.If(out_tag.end):
                m.d.sync += [
                    self.status.valid.eq(1),
                    self.status.p.as_value().eq(new_faults),
                ]


def _any_of(values):
    """Bitwise OR of all, as a balanced tree."""
    terms = list(values)
    while len(terms) > 1:
        terms = [
            terms[n] | terms[n + 1] if n + 1 < len(terms) else terms[n]
            for n in range(0, len(terms), 2)
        ]
    return terms[0]
