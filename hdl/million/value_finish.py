"""The pass that turns bins into sums of values: once over the codebook, for all queries."""

import dataclasses

from amaranth import Array, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.fp16.format import FP16
from golden.million.format import PRODUCT_GRID
from hdl.block import Block
from hdl.children import add
from hdl.index.histogram_ram import IndexHistogramRamConfig
from hdl.kinds import fixed, index_of
from hdl.million.layouts import BEAT_LAST
from hdl.million.shapes import VectorConfig
from hdl.million.value_lane import MillionValueLane, MillionValueLaneConfig
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue

VALUE_SUM_BITS = 65  # |N| <= 2**63, for 32,768 keys
_JOBS = 4  # that wait: two sets of bins, and two packets before them
_FLAGS = data.StructLayout({"first": 1, "give": 1, "last": 1})


def value_sum_layout(macs: int) -> Payload:
    """Sums of ``macs`` elements of a query; the same width for any number of keys."""
    values = data.ArrayLayout(signed(VALUE_SUM_BITS), macs)
    return Payload(
        value=(values, "sums of weight times codebook entry, exact", fixed(PRODUCT_GRID)),
        last=BEAT_LAST,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionValueFinishConfig(VectorConfig):
    """Codebooks, products per cycle, and keys; MillionValueEngineConfig checks the numbers."""

    books: int = 1  # codebooks in the store
    max_keys: int = 32768  # keys of a job

    @property
    def histogram(self) -> IndexHistogramRamConfig:
        """Bins of all subspaces; a word has those of one codebook word."""
        return IndexHistogramRamConfig(
            banks=self.pq.subspaces,
            bits=self.pq.bits,
            elements=self.rate.keys,
            values=self.rate.queries,
            word_banks=self.group,
            k_max=self.max_keys,
        )

    @property
    def lane(self) -> MillionValueLaneConfig:
        bin_bits = self.histogram.bank.bin_bits
        return MillionValueLaneConfig(
            bin_bits=bin_bits,
            sum_bits=(self.max_keys << -PRODUCT_GRID).bit_length() + 1,
            queries=self.rate.queries,
        )

    @property
    def book_words(self) -> int:
        return self.pq.entries * self.parts

    @property
    def address(self) -> range:
        """The addresses of the words of the store."""
        return range(max(2, self.books * self.book_words))

    @property
    def job_layout(self) -> Payload:
        return Payload(
            entries=(range(self.pq.entries + 1), "entries of the codebook, 1.."),
            book=(range(max(2, self.books)), "codebook of the store", index_of("codebooks")),
        )

    @property
    def end_layout(self) -> Payload:
        return Payload(bad_code=(1, "a key has a code beyond the entries"))

    def read_ports(self) -> dict:
        """Members that read the store: data one cycle after ``read_en``, in that cycle alone."""
        return {
            "read_en": Out(1, "Read word read_addr of the store."),
            "read_addr": Out(self.address, "Word of the store.", index_of("words of the store")),
            "read_data": In(FP16.bits * self.rate.macs, "The word, one cycle later.", FP16),
        }


class MillionValueFinish(Block):
    """``N[l] = sum over rows j of bin[j][l] * C[j]`` of each element, part by part.

    A word of ``bins`` meets the codebook word of its row and part for ``queries`` cycles. So the
    bins and the codebook are read once per job. The first word of a job gives ``end``; then the
    codebook is read, until the last word of the job. Codebook data are kept while ``sum`` stalls.

    From the first word of bins: ``end`` after 1 cycle, the first product after 1, a job every
    entries * parts * queries + 1 cycles. Each sum comes 3 cycles after its last row.
    """

    def __init__(self, config: MillionValueFinishConfig):
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Codebooks of the jobs."),
                "bins": In(stream.Signature(config.histogram.o_layout), "Bins of the jobs."),
                **config.read_ports(),
                "sum": Out(
                    stream.Signature(value_sum_layout(config.rate.macs)),
                    "For each part, for each query.",
                ),
                "end": Out(stream.Signature(config.end_layout), "What was bad, one per job."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        queries = config.rate.queries
        jobs = queue(m, "jobs", config.job_layout, _JOBS)
        ends = queue(m, "ends", config.end_layout, 2)
        link(m, self.job, jobs.i)
        link(m, ends.o, self.end)
        job = jobs.o.p

        # A job begins with its first bins, when ``end`` has a place.
        begun = Signal()
        begins = Signal()
        job_ends = Signal()
        m.d.comb += [
            begins.eq(self.bins.valid & jobs.o.valid & ~begun & ends.i.ready),
            ends.i.valid.eq(begins),
            ends.i.p.bad_code.eq(self.bins.p.bad),
            jobs.o.ready.eq(job_ends),
        ]
        m.d.sync += begun.eq((begun | begins) & ~job_ends)

        # Words of the codebook: the next is read when the one before is used up.
        fresh = Signal()
        held_valid = Signal()
        have = Signal()
        release = Signal()
        held = Signal(len(self.read_data), reset_less=True)
        word = Signal(len(self.read_data))
        flags = Signal(_FLAGS, reset_less=True)  # of the word; of any query
        all_read = Signal()
        m.d.comb += [
            have.eq(fresh | held_valid),
            word.eq(Mux(fresh, self.read_data, held)),
            self.read_en.eq((begins | begun) & ~all_read & (~have | release)),
        ]
        m.d.sync += [fresh.eq(self.read_en), held_valid.eq(have & ~release)]
        with m.If(fresh):
            m.d.sync += held.eq(self.read_data)
        self._addresses(m, job, flags, all_read, job_ends)

        # Stage 0: bins of a query. Stage 1: products. Stage 2: sums.
        query = Signal(range(max(2, queries)))
        last_query = Signal()
        fire = Signal()
        moves = [Signal(name=f"move_{n}") for n in range(3)]
        valid = [Signal(name=f"valid_{n}") for n in range(3)]  # of the registers of each stage
        stages = [Signal(_FLAGS, name=f"flags_{n}", reset_less=True) for n in range(3)]
        m.d.comb += [
            last_query.eq(query == queries - 1),
            fire.eq(have & self.bins.valid & moves[0]),
            release.eq(fire & last_query),
            job_ends.eq(release & flags.last),
            self.bins.ready.eq(have & moves[0] & last_query),
            moves[2].eq(~valid[2] | self.sum.ready),
            moves[1].eq(~valid[1] | moves[2]),
            moves[0].eq(~valid[0] | moves[1]),
        ]
        bins = [
            Signal(config.histogram.bank.bin_bits, name=f"bin_{g}", reset_less=True)
            for g in range(config.histogram.word_banks)
        ]
        factor = Signal(len(self.read_data), reset_less=True)
        with m.If(moves[0]):
            m.d.sync += valid[0].eq(fire)
        with m.If(fire):
            m.d.sync += [
                query.eq(Mux(last_query, 0, query + 1)),
                factor.eq(word),
                *(bins[g].eq(_of_query(self.bins.p.bin[g], query)) for g in range(len(bins))),
                stages[0].eq(flags),
                stages[0].last.eq(flags.last & last_query),
            ]
        with m.If(moves[1]):
            m.d.sync += [valid[1].eq(valid[0]), stages[1].eq(stages[0])]
        adds = Signal()
        gives = Signal()
        m.d.comb += [adds.eq(valid[1] & moves[2]), gives.eq(adds & stages[1].give)]
        with m.If(gives):
            m.d.sync += [valid[2].eq(1), stages[2].eq(stages[1])]
        with m.Elif(self.sum.ready):
            m.d.sync += valid[2].eq(0)
        m.d.comb += [self.sum.valid.eq(valid[2]), self.sum.p.last.eq(stages[2].last)]
        for element in range(config.rate.macs):
            lane = add(m, f"lane_{element}", MillionValueLane(config.lane))
            m.d.comb += [
                lane.word.eq(factor.word_select(element, FP16.bits)),
                lane.bin.eq(bins[element // config.pq.sub]),
                lane.multiply.eq(valid[0] & moves[1]),
                lane.add.eq(adds),
                lane.first.eq(stages[1].first),
                lane.give.eq(stages[1].give),
                self.sum.p.value[element].eq(lane.sum),
            ]
        return m

    def _addresses(self, m: Module, job, flags, all_read: Signal, restart: Signal) -> None:
        """Drive read_addr, the flags of the word that is read, and ``all_read``."""
        config = self.config
        part = Signal(range(max(2, config.parts)))
        row = Signal(range(config.pq.entries))
        last_row = Signal()
        last_part = Signal()
        m.d.comb += [
            last_row.eq(row + 1 == job.entries),
            last_part.eq(part == config.parts - 1),
            self.read_addr.eq(job.book * config.book_words + row * config.parts + part),
        ]
        with m.If(self.read_en):
            m.d.sync += [
                flags.first.eq(row == 0),
                flags.give.eq(last_row),
                flags.last.eq(last_row & last_part),
                row.eq(Mux(last_row, 0, row + 1)),
                part.eq(Mux(last_row & last_part, 0, part + last_row)),
                all_read.eq(last_row & last_part),
            ]
        with m.If(restart):
            m.d.sync += all_read.eq(0)


def _of_query(values, query: Signal) -> Value:
    words = [Value.cast(each) for each in values]
    return Array(words)[query] if len(words) > 1 else words[0]
