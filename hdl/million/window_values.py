"""Weighted sums of the exact values: part of million_window."""

from amaranth import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream

from golden.attention.format import WEIGHTED_BITS
from golden.fp16.format import FP16
from hdl.attention.products import complements, delayed, product_registers
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.fp16.unpack import unpack
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.million.window_config import ExactKeys, MillionWindowConfig
from hdl.million.window_rows import row_ports
from hdl.ports import In, Out, Payload
from hdl.walk import Walk

_FLAGS = data.StructLayout({"last": 1, "job_last": 1})


class MillionWindowValues(Block):
    """``sum`` = sum over the exact keys of w * v, for each query and each word of a row in turn.

    The weights of a job come first, key by key, with all queries; two jobs' are held. Then the
    keys pass once per query and word, ``window_macs`` products per cycle. A job without keys takes
    no weights, and its sums are 0. The last key of a group waits until the sums before are taken.
    """

    def __init__(self, config: MillionWindowConfig):
        super().__init__(
            config,
            {
                "job": In(stream.Signature(Payload(**config.keys_parts)), "Keys."),
                "weight": In(stream.Signature(config.heads_layout), "Weights of the keys."),
                **row_ports(config, "v", Out),
                "sum": Out(stream.Signature(config.sum_layout), "Sums, in units of 2**-48."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        job = Signal(Payload(**config.keys_parts), reset_less=True)
        is_open = Signal()
        begin = Signal()
        go = Signal()
        release = Signal()
        count = let(m, "count", job.sinks + job.recent)
        has_keys = let(m, "has_keys", count != 0)
        passes = let(m, "passes", Mux(has_keys, count, 1))  # without keys: a product of 0
        walk = Walk(m, "walk", queries=config.rate.queries, steps=config.steps, keys=passes)
        keys = ExactKeys(m, config, self.job.p, job)
        busy = Signal()  # sums are in flight, or wait to be taken
        finish = Signal()
        weights, has_weights = self._weights(m, walk, go, release & has_keys)
        m.d.comb += [
            self.job.ready.eq(~is_open),
            begin.eq(self.job.valid & self.job.ready),
            go.eq(is_open & (has_weights | ~has_keys) & ~(walk.last.keys & busy)),
            finish.eq(go & walk.last.keys),
            walk.start.eq(begin),
            walk.step.eq(go),
            keys.restart.eq(begin),
            keys.rewind.eq(finish),
            keys.advance.eq(go),
            release.eq(go & walk.is_last),
            self.v_en.eq(go & has_keys),
            self.v_row.eq(keys.row),
            self.v_step.eq(walk.at.steps),
        ]
        with m.If(begin):
            m.d.sync += [is_open.eq(1), job.eq(self.job.p)]
        with m.If(release):
            m.d.sync += is_open.eq(0)

        flags = Signal(_FLAGS)
        m.d.comb += [
            flags.last.eq(walk.last.keys),
            flags.job_last.eq(walk.is_last),
        ]
        adds, at = delayed(m, go, flags, 4)
        query = Signal(range(max(2, config.rate.queries)), reset_less=True)
        counts = Signal(reset_less=True)
        weight = Signal(FP16.bits, reset_less=True)
        value = Signal(config.memory.width, reset_less=True)
        m.d.sync += [
            query.eq(walk.at.queries),
            counts.eq(has_keys),
            weight.eq(Mux(counts, weights[query if config.rate.queries > 1 else 0], 0)),
            value.eq(self.v_data),
        ]
        raw = unpack(m, weight, FP16, "weight")
        shown = Signal()
        shown_last = Signal(reset_less=True)
        for n in range(config.rate.window_macs):
            word = unpack(m, value.word_select(n, FP16.bits), FP16, f"value_{n}")
            sign, product, shift = product_registers(m, f"{n}", raw, word)
            shifted = let(m, f"shifted_{n}", (product << shift)[:WEIGHTED_BITS])
            # 0 before each group: the flag selects after the sum, so its fan-out delays nothing.
            total = Signal(signed(config.value_bits), name=f"total_{n}")
            result = Signal(signed(config.value_bits), name=f"result_{n}", reset_less=True)
            (term,) = complements(m, f"term_{n}", [(sign, shifted)])
            one = Signal(name=f"one_{n}", reset_less=True)
            m.d.sync += one.eq(sign)
            # The one that a complement lacks is the carry into the sum.
            pair = Cat(one, total).as_signed() + Cat(one, term).as_signed()
            added = let(m, f"added_{n}", pair[1 : config.value_bits + 1])
            with m.If(adds):
                m.d.sync += total.eq(Mux(at.last, 0, added))
            with m.If(adds & at.last):
                m.d.sync += result.eq(added)
            m.d.comb += self.sum.p.value[n].eq(result)
        m.d.comb += [self.sum.valid.eq(shown), self.sum.p.last.eq(shown_last)]
        with m.If(shown & self.sum.ready):
            m.d.sync += [shown.eq(0), busy.eq(0)]
        with m.If(adds & at.last):
            m.d.sync += [shown.eq(1), shown_last.eq(at.job_last)]
        with m.If(finish):
            m.d.sync += busy.eq(1)
        return m

    def _weights(self, m: Module, walk: Walk, go, release):
        """(weights of the key a cycle after go, whether a whole job's weights are there)."""
        config = self.config
        size = config.keys
        layout = config.heads_layout["word"].shape
        shape = MemoryConfig(depth=2 * size, width=layout.size)
        memory = add(m, "weights", Memory1R1W(shape))
        place = Signal(range(max(2, size)))
        full = Signal(range(3))
        fill_half = Signal()
        half = Signal()
        take = Signal()
        fills = Signal()
        m.d.comb += [
            self.weight.ready.eq(full != 2),
            take.eq(self.weight.valid & self.weight.ready),
            fills.eq(take & self.weight.p.last),
            memory.write_en.eq(take),
            memory.write_addr.eq(Mux(fill_half, size, 0) + place),
            memory.write_data.eq(self.weight.p.word),
            memory.read_en.eq(go),
            memory.read_addr.eq(Mux(half, size, 0) + walk.at.keys),
        ]
        with m.If(take):
            m.d.sync += place.eq(Mux(fills, 0, place + 1))
        m.d.sync += [
            full.eq(full + fills - release),
            fill_half.eq(fill_half ^ fills),
            half.eq(half ^ release),
        ]
        return data.View(layout, memory.read_data), full != 0
