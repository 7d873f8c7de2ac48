"""The dense path of a lane: counters and a reducer."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.kllm.isa import MatmulMode
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.children import add
from hdl.index.histogram_parallel import IndexHistogramParallel
from hdl.index.reducer import IndexReducer
from hdl.kllm.lane.config import COUNTING, KllmPeLaneConfig
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out
from hdl.stream.fork import fork
from hdl.stream.link import link


class KllmLaneDense(Block):
    """``D[c] = sum over bins b of count[c][b] * weight[b]``: rne32, column by column.

    ``count[c]`` is the histogram of a packet of pairs (IndexHistogramParallel). ``weight`` is the
    table of products. In integer mode ``count`` has sums of integers, in the first ``2**bits_b``
    bins. The sum is exact. Its rounding to FP32, to nearest even, is the only one.

    A packet of beats gives ``columns`` words, column 0 first. Counting a packet overlaps reducing
    the last. The parent changes ``is_integer`` and the table only while no packet is inside.
    ``i.ready`` depends combinationally on ``o.ready``.

    Latency and throughput: ``timing``. Source: KLLM, sections III-B and IV-B.
    Golden: golden.kllm.blocks.dense_sums.

    A column that is read out early may count one beat ahead. One IndexReducer takes ``macs`` bins
    per cycle, of one column after the other. ``product`` writes single words of the table, in any
    order: the word of bin b is in row b // macs.
    """

    tier = Tier.PART
    golden = "golden.kllm.blocks:dense_sums"
    default = COUNTING["table1_flipflop"]
    configs = COUNTING

    def __init__(self, config: KllmPeLaneConfig):
        config._check_choice("counter", ("flipflop",))
        super().__init__(
            config,
            {
                "i": In(
                    stream.Signature(config.pairs_layout),
                    "Index pairs of one beat, column by column.",
                ),
                "is_integer": In(1, "Integer mode, constant while a packet is inside."),
                "o": Out(stream.Signature(config.dense_layout), "Dense sums, column by column."),
                "product": In(
                    stream.Signature(config.product_layout),
                    "Entries of the table of products, in any order.",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        """Counting overlaps reducing: from a packet's last beat to the sum of column 0."""
        shape = self.config.cycles
        integer = (("in integer mode", 6 + shape.integer_words),) if shape.integer_words else ()
        return Timing(
            latency=6 + shape.words,
            start="a packet's last i",
            unit="beat",
            delays=(*integer, ("from a sum to the next", shape.gap(MatmulMode.KMEANS))),
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        # Columns that are read out early may count ahead by one beat.
        beats = fork(m, "beats", self.i, config.columns)
        counters = []
        for c, beat in enumerate(beats):
            counter = add(m, f"counter_{c}", IndexHistogramParallel(config.counter_config))
            m.d.comb += [
                counter.i.valid.eq(beat.valid),
                beat.ready.eq(counter.i.ready),
                counter.i.p.pair.eq(beat.p.pair[c]),
                counter.i.p.inlier.eq(beat.p.inlier),
                counter.i.p.integer.eq(self.is_integer),
                counter.i.p.last.eq(beat.p.last),
            ]
            counters.append(counter)

        # A word of counts is fetched with its weights: those of word ``word`` in the next cycle.
        fetch = Signal()
        word = Signal(range(max(config.counter_config.words, 2)))
        is_last = Signal()
        with m.If(fetch):
            m.d.sync += word.eq(Mux(is_last, 0, word + 1))
        weights = _table(m, config, self.product, fetch, word)
        _columns_in_turn(m, self, counters, weights, fetch, is_last)
        return m


def _table(m: Module, config: KllmPeLaneConfig, product, fetch, word):
    """Rows of ``macs`` products, in a RAM."""
    per_row = config.macs
    shape = MemoryConfig(
        depth=max(config.counter_config.words, 2),
        width=per_row * FP16.bits,
        granularity=FP16.bits,
    )
    table = add(m, "products", Memory1R1W(shape))
    m.d.comb += [
        product.ready.eq(1),
        table.write_en.eq(Mux(product.valid, 1 << (product.p.bin % per_row), 0)),
        table.write_addr.eq(product.p.bin // per_row),
        table.write_data.eq(product.p.word.replicate(per_row)),
        table.read_en.eq(fetch),
        table.read_addr.eq(word),
    ]
    return table.read_data


def _columns_in_turn(m: Module, block: KllmLaneDense, counters, weights, fetch, is_last) -> None:
    """One reducer of ``macs`` bins per cycle; the columns' sums come evenly spaced."""
    config = block.config
    reducer = add(m, "reducer", IndexReducer(config.reducer_config))
    count_layout = config.counter_config.o_layout["count"].shape
    column = Signal(range(max(config.columns, 2)))
    selected = [column == c for c in range(config.columns)]
    head_valid = Signal()
    free = Signal()
    head = Signal(count_layout)
    held_valid = Signal()
    held_last = Signal()
    held = Signal(count_layout, reset_less=True)

    def of_selected(values):
        return _any_of(Mux(one, value, 0) for one, value in zip(selected, values, strict=True))

    m.d.comb += [
        head_valid.eq(of_selected([counter.o.valid for counter in counters])),
        is_last.eq(of_selected([counter.o.p.last for counter in counters])),
        head.as_value().eq(of_selected([c.o.p.count.as_value() for c in counters])),
        free.eq(~held_valid | reducer.i.ready),
        fetch.eq(head_valid & free),
    ]
    m.d.comb += [
        counter.o.ready.eq(free & one) for counter, one in zip(counters, selected, strict=True)
    ]
    with m.If(fetch):
        m.d.sync += [held_valid.eq(1), held.eq(head), held_last.eq(is_last)]
        with m.If(is_last):
            m.d.sync += column.eq(Mux(column == config.columns - 1, 0, column + 1))
    with m.Elif(reducer.i.ready):
        m.d.sync += held_valid.eq(0)
    m.d.comb += [
        reducer.i.valid.eq(held_valid),
        reducer.i.p.count.eq(held),
        reducer.i.p.weight.as_value().eq(weights),
        reducer.i.p.last.eq(held_last),
    ]
    link(m, reducer.o, block.o)


def _any_of(values):
    """Bitwise OR of all, as a balanced tree."""
    terms = list(values)
    while len(terms) > 1:
        terms = [
            terms[n] | terms[n + 1] if n + 1 < len(terms) else terms[n]
            for n in range(0, len(terms), 2)
        ]
    return terms[0]
