"""Entries on chip: registers that any lane reads, and banks of SRAM with one read each."""

from amaranth import Array, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data

from hdl.block import Block
from hdl.children import add
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out
from hdl.vqllm.cache.config import VqCodebookCacheConfig


class VqEntryBanks(Block):
    """The entries of a beat, in the cycle after its last reads.

    Entry j of stage z is in bank (j + z) % banks. The first entries of each stage are in registers,
    too. Both have two sides: one is read, the other is written.
    """

    def __init__(self, config: VqCodebookCacheConfig):
        lanes = config.lookups
        super().__init__(
            config,
            {
                "side": In(1, "The side that is read."),
                "write": In(config.load_entries, "Write these entries to the other side."),
                "stage": In(range(max(2, config.vq.stages)), "Their stage."),
                "entry": In(range(max(2, config.shared)), "Index of the first one."),
                "word": In(config.load_layout["word"].shape, "Neighbours."),
                "read": In(config.banks, "Banks that read."),
                "row": In(config.row_layout, "Their words, of one side."),
                "beat": In(config.beat_layout, "The beat whose reads these are."),
                "now": In(lanes, "Lanes that are read from banks."),
                "bank": In(data.ArrayLayout(range(max(2, config.banks)), lanes), "Their banks."),
                "done": In(1, "The beat has no other reads."),
                "valid": Out(1, "A beat is there."),
                "shown": Out(config.beat_layout, "The beat."),
                "found": Out(
                    data.ArrayLayout(config.entry_layout, lanes), "Its entries; 0 without one."
                ),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        lanes, banks, stages = config.lookups, config.banks, config.vq.stages
        bank_bits, side_rows = (banks - 1).bit_length(), config.side_rows
        bits = config.entry_bits

        width = config.load_entries
        lane_bits = (width - 1).bit_length()
        first = Signal(range(config.shared + stages))  # place of the first of the neighbours
        rows = [Signal(range(max(2, side_rows)), name=f"row_{above}") for above in range(2)]
        m.d.comb += first.eq(self.entry + self.stage)
        bank = first[:bank_bits] if bank_bits else Const(0, 1)  # of the first one
        for above, row in enumerate(rows):
            m.d.comb += row.eq((first >> bank_bits) + above + self.stage * config.bank_rows)
        read = []
        for n in range(banks):
            memory = add(m, f"bank_{n}", Memory1R1W(config.memory))
            lane = Signal(range(max(2, banks)), name=f"lane_{n}")  # of the neighbours
            is_lane = (lane >> lane_bits) == 0
            chosen = lane[:lane_bits] if lane_bits else Const(0, 1)
            m.d.comb += [
                lane.eq((n - bank)[:bank_bits] if bank_bits else 0),
                memory.read_en.eq(self.read[n]),
                memory.read_addr.eq(self.row[n] + Mux(self.side, side_rows, 0)),
                memory.write_en.eq(is_lane & self.write.bit_select(chosen, 1)),
                memory.write_addr.eq(
                    (Mux(n < bank, rows[1], rows[0]) if n < banks - 1 else rows[0])
                    + Mux(self.side, 0, side_rows)
                ),
                memory.write_data.eq(Value.cast(self.word).word_select(chosen, bits)),
            ]
            read.append(memory.read_data)

        registers = [
            [
                [Signal(bits, name=f"entry_{side}_{z}_{j}", reset_less=True)
                 for j in range(config.registers)]
                for z in range(stages)
            ]
            for side in range(2)
        ]  # fmt: skip
        for side in range(2):
            for z in range(stages):
                for j in range(config.registers):
                    begins = self.entry == j // width * width
                    hit = (self.stage == z) & begins & (self.side != side)
                    with m.If(self.write[j % width] & hit):
                        m.d.sync += registers[side][z][j].eq(self.word[j % width])

        shown_side = Signal(reset_less=True)
        now, banks_of = Signal.like(self.now), Signal.like(self.bank, reset_less=True)
        m.d.sync += [
            self.valid.eq(self.done),
            self.shown.eq(self.beat),
            shown_side.eq(self.side),
            now.eq(self.now),
            banks_of.eq(self.bank),
        ]
        for k in range(lanes):
            held = Signal(bits, name=f"held_{k}", reset_less=True)  # from an earlier cycle
            kept = Signal(name=f"kept_{k}")
            word = Signal(bits, name=f"word_{k}")
            m.d.comb += word.eq(Mux(now[k], Array(read)[banks_of[k]], Mux(kept, held, 0)))
            with m.If(now[k]):
                m.d.sync += held.eq(word)
            m.d.sync += kept.eq((now[k] | kept) & ~self.valid)
            if config.registers:
                index = self.shown.index[k][: (config.registers - 1).bit_length()]
                hot = [Array(registers[side][k % stages])[index] for side in range(2)]
                word = Mux(self.shown.hot[k], Mux(shown_side, hot[1], hot[0]), word)
            m.d.comb += self.found[k].eq(word)
        return m
