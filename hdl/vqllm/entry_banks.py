"""Entries on chip: registers that any lane reads, and banks of SRAM with one read each."""

from amaranth import Array, Module, Mux, Signal
from amaranth.lib import data

from hdl.block import Block
from hdl.emit import add
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out
from hdl.vqllm.cache_config import VqCodebookCacheConfig

__all__ = ["VqEntryBanks"]


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
                "write": In(1, "Write an entry to the other side."),
                "stage": In(range(max(2, config.vq.stages)), "Its stage."),
                "entry": In(range(max(2, config.shared)), "Its index."),
                "word": In(config.entry_layout, "The entry."),
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

        place = Signal(range(config.shared + stages))
        row = Signal(range(max(2, side_rows)))
        m.d.comb += [
            place.eq(self.entry + self.stage),
            row.eq((place >> bank_bits) + self.stage * config.bank_rows),
        ]
        read = []
        for n in range(banks):
            memory = add(m, f"bank_{n}", Memory1R1W(config.memory))
            m.d.comb += [
                memory.read_en.eq(self.read[n]),
                memory.read_addr.eq(self.row[n] + Mux(self.side, side_rows, 0)),
                memory.write_en.eq(self.write & (place[:bank_bits] == n)),
                memory.write_addr.eq(row + Mux(self.side, 0, side_rows)),
                memory.write_data.eq(self.word),
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
                    hit = (self.stage == z) & (self.entry == j) & (self.side != side)
                    with m.If(self.write & hit):
                        m.d.sync += registers[side][z][j].eq(self.word)

        shown_side = Signal(reset_less=True)
        now, bank = Signal.like(self.now), Signal.like(self.bank, reset_less=True)
        m.d.sync += [
            self.valid.eq(self.done),
            self.shown.eq(self.beat),
            shown_side.eq(self.side),
            now.eq(self.now),
            bank.eq(self.bank),
        ]
        for k in range(lanes):
            held = Signal(bits, name=f"held_{k}", reset_less=True)  # from an earlier cycle
            kept = Signal(name=f"kept_{k}")
            word = Signal(bits, name=f"word_{k}")
            m.d.comb += word.eq(Mux(now[k], Array(read)[bank[k]], Mux(kept, held, 0)))
            with m.If(now[k]):
                m.d.sync += held.eq(word)
            m.d.sync += kept.eq((now[k] | kept) & ~self.valid)
            if config.registers:
                index = self.shown.index[k][: (config.registers - 1).bit_length()]
                hot = [Array(registers[side][k % stages])[index] for side in range(2)]
                word = Mux(self.shown.hot[k], Mux(shown_side, hot[1], hot[0]), word)
            m.d.comb += self.found[k].eq(word)
        return m
