"""Sizes of a lane, and what its phases hand to each other (docs/blocks/kllm_pe_lane.md)."""

import dataclasses

from amaranth import signed
from amaranth.lib import data, enum

from golden.config import Config, bounded, choice, flag, power_of_two
from golden.fp16.format import FP16, FP32
from golden.index.format import INT_BITS, K_MAX
from golden.kllm.format import PRODUCTS, Status, kmeans_packet_length
from golden.kllm.isa import MatmulMode
from golden.kllm.timing import LaneTiming, lane_latency
from golden.timing import Timing
from hdl.index.histogram_parallel import IndexHistogramParallelConfig
from hdl.index.reducer import IndexReducerConfig
from hdl.kinds import BITS, NUMBER, index_of, mask_of, member_texts
from hdl.kllm.lane.concat import KllmConcatConfig
from hdl.kllm.lane.scaler import KllmScalerConfig
from hdl.kllm.lane.select_config import CODINGS, PACKET_WORDS, KllmSelectConfig
from hdl.kllm.outliers.outlier import KllmOutlierConfig
from hdl.ports import Payload

STATUS_BITS = len(Status)
_STATUS_TEXTS = member_texts(Status)
COUNTERS = ("select", "flipflop")  # how a lane makes its dense sums


class Loaded(enum.Enum, shape=2):
    """The content of the codebook buffer."""

    NOTHING = 0
    KMEANS = 1
    INTEGER = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmPeLaneConfig(Config):
    """Elaboration-time parameters of a lane."""

    bits_a: int = bounded(4, 2, 4, "bits of an activation index")
    bits_b: int = bounded(4, 2, 4, "bits of a weight index")
    elements: int = bounded(16, 1, 16, "elements of the reduction axis per cycle")
    columns: int = bounded(32, 1, 64, "output columns of a job")
    k_max: int = bounded(11008, 1, K_MAX, "longest reduction")
    integer_bits: int = choice(
        8, (0, *INT_BITS), "Integer x K-Means mode: bits of an operand; 0: no such mode"
    )
    counter: str = choice("select", COUNTERS, "micro-architecture; flipflop is the paper's")
    product: str = choice("rounded", PRODUCTS, "words of the table; flipflop: rounded")
    antisymmetric: bool = flag(
        False, "C_B[j] = -C_B[last - j], as C_V: half tables; flipflop: false"
    )
    coding: str = choice(
        "gates", CODINGS, "of select: gates, or sums that simulate faster; flipflop: gates"
    )
    macs: int = power_of_two(32, 1, 256, "MACs of the reducer; select: unused")
    outliers_max: int = bounded(127, 1, 16383, "most outliers of a token")
    weight_buffer_beats: int = bounded(8, 3, 1024, "depth of the weight buffer")
    outlier_parts: int = 1  # cycles of an outlier, a divisor of columns
    scaler_stages: int = choice(6, (6, 9, 12), "cycles of the scaler")
    packet_words: int = choice(
        1, PACKET_WORDS, "words of a codebook packet per cycle; flipflop: 1"
    )

    def __post_init__(self) -> None:
        if self.counter != "select":
            self._check_choice("product", ("rounded",))
            self._check_choice("coding", ("gates",))
            self._check_choice("packet_words", (1,))
            if self.antisymmetric:
                self._refuse("antisymmetric", "False")
        self._check_range("outlier_parts", 1, self.columns)
        if self.columns % self.outlier_parts:
            self._refuse("outlier_parts", f"a divisor of columns = {self.columns}")
        # Rows of a packet hold products, or centroids, but not both.
        if (1 << self.bits_a + self.bits_b - self.antisymmetric) % self.packet_words:
            self._check_choice("packet_words", (1,))

    @property
    def counter_config(self) -> IndexHistogramParallelConfig:
        """The counters; of ``select``, which has none, those whose bins its table has."""
        return IndexHistogramParallelConfig(
            bits_a=self.bits_a,
            bits_b=self.bits_b,
            elements=self.elements,
            k_max=self.k_max,
            integer_bits=self.integer_bits,
            word_bins=self.macs,
        )

    @property
    def reducer_config(self) -> IndexReducerConfig:
        return IndexReducerConfig.of_counter(self.counter_config, self.macs)

    @property
    def select_config(self) -> KllmSelectConfig:
        """Rows and columns of ``select``; a beat carries its outlier through the look-up."""
        return KllmSelectConfig(
            bits_a=self.bits_a,
            bits_b=self.bits_b,
            elements=self.elements,
            columns=self.columns,
            k_max=self.k_max,
            integer_bits=self.integer_bits,
            product=self.product,
            antisymmetric=self.antisymmetric,
            tag_bits=self.outlier_tag.size,
            coding=self.coding,
            packet_words=self.packet_words,
        )

    @property
    def outlier_config(self) -> KllmOutlierConfig:
        return KllmOutlierConfig(
            bits_b=self.bits_b, columns=self.columns, outliers_max=self.outliers_max,
            parts=self.outlier_parts,
        )  # fmt: skip

    @property
    def scaler_config(self) -> KllmScalerConfig:
        return KllmScalerConfig(
            sum_bits=self.outlier_config.sum_bits,
            tag_bits=self.output_tag.size,
            stages=self.scaler_stages,
        )

    @property
    def concat_config(self) -> KllmConcatConfig:
        return KllmConcatConfig(
            value_bits=self.counter_config.value_bits,
            bits_b=self.bits_b,
            elements=self.elements,
            columns=self.columns,
            tag_bits=self.outlier_tag.size,
        )

    @property
    def packet_bits_b(self) -> int:
        """Bits of the weight indices for which a packet has words."""
        return self.select_config.row_index_bits

    @property
    def bins(self) -> int:
        """Products of a packet."""
        return 2 ** (self.bits_a + self.packet_bits_b)

    @property
    def codebook_words(self) -> int:
        return kmeans_packet_length(self.bits_a, self.packet_bits_b)

    @property
    def reduce_cycles(self) -> int:
        """Cycles in which the sums of all columns are made or sent, K-Means mode."""
        if self.counter == "select":
            return self.columns
        return self.columns * self.counter_config.words

    @property
    def cycles(self) -> LaneTiming:
        """The numbers from which golden.kllm.timing counts cycles."""
        if self.counter == "select":
            return LaneTiming(
                columns=self.columns,
                elements=self.elements,
                words=1,
                integer_words=1 if self.integer_bits else 0,
                digits=self.select_config.digits,
                outlier_parts=self.outlier_parts,
                scaler=self.scaler_stages,
            )
        counter = self.counter_config
        return LaneTiming(
            columns=self.columns,
            elements=self.elements,
            words=counter.words,
            integer_words=counter.integer_words if self.integer_bits else 0,
            scaler=self.scaler_stages,
        )

    @property
    def timing(self) -> Timing:
        """One job in an idle lane; ``golden.kllm.timing.lane_cycles`` counts a sequence."""
        shape = self.cycles
        modes = [("of a direct product", MatmulMode.DIRECT)]
        if shape.integer_words:
            modes.append(("of integers", MatmulMode.INTEGER))
        ends = []
        if self.outlier_parts > 1:
            after_one = lane_latency(shape, MatmulMode.KMEANS, ends=True)
            ends.append(("with an outlier in its last beat", after_one))
        return Timing(
            latency=lane_latency(shape, MatmulMode.KMEANS),
            start="a job's last a",
            end="y",
            unit="beat",
            delays=(
                *((what, lane_latency(shape, mode)) for what, mode in modes),
                *ends,
                ("from a column's y to the next", shape.gap(MatmulMode.KMEANS)),
                ("from a job's last y to its status", 1),
            ),
        )

    def bound(self, length: int, jobs: int) -> int:
        """Cycles of ``jobs`` jobs of ``length`` elements: design bound, outliers on own MACs.

        ``jobs * max(T_count, T_reduce) + min(T_count, T_reduce)``: counting a job overlaps
        reducing the last.
        """
        count = -(-length // self.elements)
        return jobs * max(count, self.reduce_cycles) + min(count, self.reduce_cycles)

    @property
    def outlier_tag(self) -> Payload:
        """The fields that a beat carries past the counters."""
        return Payload(
            present=(1, "there is an outlier"),
            x=(FP16.bits, "its FP16 word", FP16),
            element=(range(max(self.elements, 2)), "its element of the beat"),
            direct=(1, "of a job whose elements are all outliers"),
        )

    @property
    def output_tag(self) -> data.StructLayout:
        """The fields that an output carries through the scaler."""
        return data.StructLayout({"empty": 1, "end": 1, "status": STATUS_BITS})

    @property
    def job_layout(self) -> Payload:
        return Payload(
            length=(16, "elements of the reduction", NUMBER),
            outliers=(16, "words of x", NUMBER),
            s_a=(FP16.bits, "FP16 scale of the activations", FP16),
            last_column=(range(max(self.columns, 2)), "output columns less one"),
            integer=(1, "mode: Integer x K-Means"),
        )

    @property
    def a_layout(self) -> Payload:
        value_bits = max(self.bits_a, self.integer_bits)
        return Payload(
            value=(
                data.ArrayLayout(value_bits, self.elements),
                "indices, or unsigned integers",
                NUMBER,
            ),
            outlier=(self.elements, "mask of the outliers", mask_of("elements")),
            last=(1, "the final beat of a job"),
        )

    @property
    def w_layout(self) -> Payload:
        column = data.ArrayLayout(self.bits_b, self.elements)
        return Payload(
            index=(
                data.ArrayLayout(column, self.columns),
                "indices of each column's elements",
                index_of("weight centroids"),
            ),
            last=(1, "the final beat of a job"),
        )

    @property
    def word_layout(self) -> Payload:
        """An FP16 word of a packet: codebooks and outputs."""
        return Payload(word=(FP16.bits, "FP16 word", FP16), last=(1, "the final word of a packet"))

    @property
    def packet_layout(self) -> Payload:
        """A word of a codebook packet: in fixed point only C_B is FP16 (golden.kllm.products).

        A row of several words is as long in the end: words after the packet's last are ignored.
        """
        if self.packet_words > 1:
            return Payload(
                word=(
                    data.ArrayLayout(FP16.bits, self.packet_words),
                    "products or centroids, the first word lowest",
                    FP16 if self.product == "rounded" else BITS,
                ),
                last=(1, "the final row of a packet"),
            )
        if self.product == "rounded":
            return self.word_layout
        return Payload(
            word=(FP16.bits, "product or centroid in fixed point, or FP16 centroid", BITS),
            last=(1, "the final word of a packet"),
        )

    @property
    def value_layout(self) -> Payload:
        """An FP16 word: outlier values and weight scales."""
        return Payload(word=(FP16.bits, "FP16 word", FP16))

    @property
    def status_layout(self) -> Payload:
        return Payload(
            **{status.name.lower(): (1, _STATUS_TEXTS[status.name]) for status in Status}
        )

    # Payloads between the phases.

    @property
    def step_layout(self) -> Payload:
        """One step of a job: a beat, or one more outlier of it."""
        return Payload(
            value=(
                self.concat_config.a_layout["value"].shape,
                "above the indices: an index or an integer",
                NUMBER,
            ),
            inlier=(self.elements, "mask of the elements that count", mask_of("elements")),
            tag=(self.outlier_tag, "the outlier of the step"),
            index=(self.w_layout["index"].shape, "weight indices", index_of("weight centroids")),
            last=(1, "the final step of a job"),
        )

    @property
    def info_layout(self) -> Payload:
        """The result of a job, up to its sums."""
        return Payload(
            s_a=(FP16.bits, "FP16 scale of the activations", FP16),
            last_column=(range(max(self.columns, 2)), "output columns less one"),
            counted=(1, "beats were taken: sums will come"),
            direct=(1, "all its elements are outliers: no dense sum comes"),
            status=(STATUS_BITS, "golden.kllm.format.Status bits of header and beats", Status),
        )

    @property
    def product_layout(self) -> Payload:
        if self.packet_words > 1:
            return self.select_config.product_layout
        return Payload(
            bin=(range(self.bins), "activation index above weight index"),
            word=self.select_config.product_layout.parts["word"],
        )

    @property
    def codebook_b_layout(self) -> data.ArrayLayout:
        return self.outlier_config.codebook_layout

    @property
    def pairs_layout(self) -> Payload:
        """A beat of index pairs, for the counters."""
        return Payload(
            pair=(
                self.concat_config.o_layout["pair"].shape,
                "index pairs of each column",
                index_of("bins"),
            ),
            inlier=(self.elements, "mask of the elements that count", mask_of("elements")),
            last=(1, "the final beat of a packet"),
        )

    @property
    def selected_layout(self) -> Payload:
        """A beat of rows, for the columns of ``select``."""
        return dataclasses.replace(self.select_config, tag_bits=0).rows_layout

    @property
    def dense_beat_layout(self) -> Payload:
        """The layout of the beats that the dense path takes."""
        return self.selected_layout if self.counter == "select" else self.pairs_layout

    @property
    def outlier_layout(self) -> Payload:
        """An outlier, if present, with all weight indices of its beat."""
        return Payload(
            present=(1, "there is an outlier"),
            x=(FP16.bits, "its FP16 word", FP16),
            element=(range(max(self.elements, 2)), "its element of the beat"),
            index=(
                self.w_layout["index"].shape,
                "weight indices of each column's elements",
                index_of("weight centroids"),
            ),
            last=(1, "the final word of a packet"),
        )

    @property
    def dense_layout(self) -> Payload:
        return Payload(y=(FP32.bits, "dense sum of a column, FP32 word", FP32))

    @property
    def sparse_layout(self) -> Payload:
        return Payload(
            sum=(signed(self.outlier_config.sum_bits), "exact sparse sum, on the grid 2**-48"),
            last=(1, "the final column"),
        )


SMALL = KllmPeLaneConfig(
    bits_a=2, bits_b=3, elements=4, columns=3, k_max=100, integer_bits=4, macs=8, outliers_max=9,
    weight_buffer_beats=4,
)  # fmt: skip
# Of few gates: an element a beat, and a multiplier for several columns of outliers.
SERIAL = KllmPeLaneConfig(
    elements=1, columns=6, k_max=100, integer_bits=4, outliers_max=9,
    weight_buffer_beats=4, outlier_parts=3, scaler_stages=9,
)  # fmt: skip
# Sizes of Table I. The paper's lane counts in flip-flops.
SELECTING = {
    "table1": KllmPeLaneConfig(),
    "table1_w4a3": KllmPeLaneConfig(bits_a=3),
    "small": SMALL,
    "serial": SERIAL,
}
COUNTING = {
    "table1_flipflop": KllmPeLaneConfig(counter="flipflop"),
    "small_flipflop": dataclasses.replace(SMALL, counter="flipflop"),
}
LANES = SELECTING | COUNTING
